"""Agent, tasks and server killed in any order: no task lost, none run twice, nothing leaked. See `agent_faults`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SOAK = bool(os.environ.get("MUSTER_SOAK"))
ROUNDS = 20 if SOAK else 3
SEEDS = 15 if SOAK else 1
ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, cgroups, other users")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_kills_in_any_order(seed: int) -> None:
    # Not below the directory of the tests: tasks, which are other users, must reach the ledger.
    directory = Path(tempfile.mkdtemp(prefix="muster-faults-", dir="/var/tmp"))
    directory.chmod(0o711)
    try:
        command = [sys.executable, "-m", "tests.e2e.agent_faults", str(seed), str(ROUNDS), str(directory)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, done.stdout[-6000:]
        assert done.stdout.count("round ") == ROUNDS
    finally:
        shutil.rmtree(directory, ignore_errors=True)
