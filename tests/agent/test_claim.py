"""One agent per data directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.agent.claim import Claim, Taken, holder_of
from tests.waiting import blocked_until


def test_a_second_one_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    lock = tmp_path / "agent.lock"
    assert holder_of(lock) is None
    claim = Claim(lock)
    assert holder_of(lock) == os.getpid()
    with pytest.raises(Taken, match=f"process {os.getpid()} runs an agent on it"):
        Claim(lock)
    claim.release()
    claim.release()
    assert holder_of(lock) is None
    Claim(lock).release()


def test_the_lock_goes_with_the_process_and_not_to_its_children(tmp_path: Path) -> None:
    lock = tmp_path / "agent.lock"
    code = (
        "import subprocess, sys; from pathlib import Path; from muster.agent.claim import Claim\n"
        "claim = Claim(Path(sys.argv[1])); child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True)\n"
        "import time; time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        assert holder_of(lock) == holder.pid
        holder.kill()
        holder.wait()
        blocked_until(lambda: holder_of(lock) is None)
    finally:
        os.kill(child, signal.SIGKILL)
        holder.kill()
        holder.wait()
        holder.stdout.close()
