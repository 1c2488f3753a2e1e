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


@pytest.mark.parametrize("size_bytes", [1, 20_000, 70_000])
def test_a_killed_writer(size_bytes: int, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-m", "tests.history.killed", str(tmp_path), "7"], stderr=subprocess.PIPE)
    try:
        while sum(one.stat().st_size for one in tmp_path.glob("*.mlog")) < size_bytes:
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
    if size_bytes > 50_000:
        assert outcome.segments > 1
        assert outcome.decisions > 0
