"""The page about the client: its examples run, its tables are complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from muster.bench.kubernetes import ControlPlane
from muster.client.stats import METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.kubernetes
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run_as_they_stand(kubernetes: ControlPlane, number: int) -> None:
    environ = {**os.environ, "KUBECONFIG": str(kubernetes.kubeconfig_path)}
    done = subprocess.run(
        # Not ResourceWarning: how long a TLS connection takes to say goodbye is the other side's affair.
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", EXAMPLES[number]],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_every_metric_is_documented() -> None:
    for name, (kind, _, _) in METRICS.items():
        assert f"`{name}{'_total' if kind == 'counter' else ''}`" in PAGE
