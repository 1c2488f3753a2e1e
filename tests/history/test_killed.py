"""A log whose writer was killed, with SIGKILL, wherever it was: all that is whole in it replays, and the cut is reported."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.history.replaying import replay
from tests.history.recording import log_at, maker


@pytest.mark.parametrize(
    ("size_bytes", "segments"),
    [pytest.param(1, 1, id="at once"), pytest.param(20_000, 1, id="later"), pytest.param(1, 3, id="in the third segment")],
)
def test_a_killed_writer(size_bytes: int, segments: int, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-m", "tests.history.killed", str(tmp_path), "7"], stderr=subprocess.PIPE)
    try:
        while sum(sizes := [one.stat().st_size for one in tmp_path.glob("*.mlog")]) < size_bytes or len(sizes) < segments:
            assert child.poll() is None, child.stderr and child.stderr.read().decode()
            time.sleep(0.005)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert child.stderr is not None
        child.stderr.close()
    log = log_at(tmp_path)
    outcome = replay(log, maker())
    assert outcome.is_equal, outcome.difference and outcome.difference.text()
    assert "killed" in outcome.findings[-1].text
    assert outcome.findings[-1].segment == str(log.names[-1])
    assert [finding.text for finding in outcome.findings[:-1]] == []
    if segments > 1:
        assert outcome.segments >= segments - 1  # of the last there may be no step yet
        assert outcome.decisions > 0
