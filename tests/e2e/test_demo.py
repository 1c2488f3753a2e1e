"""`make demo` works: the script that it runs ends well and leaves nothing behind, or leaves a Muster that can be stopped."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _processes(word: str) -> list[str]:
    """Command lines of processes that have this word in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if word in command:
            found.append(command)
    return found


@pytest.mark.slow
def test_demo_shows_and_cleans_up() -> None:
    shown = _run(sys.executable, "tools/demo.py")
    assert "spec.maxParallelism" in shown
    assert "spec.scheduleMode" in shown
    assert "Reason: BandwidthInsufficient" in shown
    assert shown.count("5,000 items are common") == 2
    assert "KusciaJob cross-domain/psi-wide Succeeded" in shown
    assert "acknowledged and lost: 0" in shown
    data_dir = re.search(r"--data-dir (\S+)", shown)
    assert data_dir
    assert not Path(data_dir[1]).exists()
    assert _processes(data_dir[1]) == []


@pytest.mark.slow
def test_demo_can_be_kept() -> None:
    shown = _run(sys.executable, "tools/demo.py", "--keep")
    kubeconfig = re.search(r"export KUBECONFIG=(\S+)\n  \S+muster down", shown)
    assert kubeconfig
    data_dir = Path(kubeconfig[1]).parent
    muster = Path(sys.executable).parent / "muster"
    try:
        assert "cross-domain" in _run(muster, "--kubeconfig", kubeconfig[1], "get", "namespaces")
    finally:
        _run(muster, "down", "--tasks", "--data-dir", data_dir)
        shutil.rmtree(data_dir.parent)
    assert _processes(str(data_dir)) == []
