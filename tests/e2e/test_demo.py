"""`make demo` works: the script that it runs ends well and leaves nothing behind, or leaves a server that can be stopped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_demo_shows_and_cleans_up() -> None:
    shown = _run(sys.executable, "tools/demo.py")
    assert "acknowledged and lost: 0" in shown
    assert "spec.maxParallelism" in shown
    assert "spec.scheduleMode" in shown
    data_dir = re.search(r"--data-dir (\S+)", shown)
    assert data_dir
    assert not Path(data_dir[1]).exists()


@pytest.mark.slow
def test_demo_can_be_kept() -> None:
    shown = _run(sys.executable, "tools/demo.py", "--keep")
    kubeconfig = re.search(r"export KUBECONFIG=(\S+)", shown)
    assert kubeconfig
    data_dir = Path(kubeconfig[1]).parent
    muster = Path(sys.executable).parent / "muster"
    assert "cross-domain" in _run(muster, "--kubeconfig", kubeconfig[1], "get", "namespaces")
    _run(muster, "down", "--data-dir", data_dir)
    subprocess.run(["rm", "-rf", str(data_dir.parent)], check=True)
