"""`--on engine` and `--on embedded` through the command line: whole lines, every pod placed. Figures are not judged."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from muster.bench.command import bench
from muster.bench.lines import SchedulingLine


def _run(*arguments: str) -> SchedulingLine:
    shown = CliRunner().invoke(bench, ["run", *arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    return msgspec.json.decode(shown.stdout.splitlines()[-1], type=SchedulingLine)


def _check(line: SchedulingLine, pods: int) -> None:
    assert line.pods == pods
    assert line.unbound == 0
    assert line.pods_per_s > 0
    assert line.decision_p50_us is not None
    assert line.decision_p99_us is not None
    assert line.decision_p50_us <= line.decision_p99_us
    assert line.rss_mb is not None
    assert line.rss_mb > 10
    assert line.bound_by


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["basic", "nodeaffinity", "affinity", "spread", "preemption", "unschedulable", "churn", "bandwidth", "gang-8"]
)
def test_engine(name: str) -> None:
    _check(_run(name, "--on", "engine", "--nodes", "60", "--pods", "48"), 48)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["basic", "churn", "gang-8"])
def test_embedded(name: str) -> None:
    _check(_run(name, "--on", "embedded", "--nodes", "40", "--pods", "48"), 48)
