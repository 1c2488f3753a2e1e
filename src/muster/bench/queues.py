"""How fast waiting work is admitted when it stands in many queues, in a process of its own. Blocking."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from muster.bench.handover import CHILD_TIMEOUT_S
from muster.bench.lines import Say
from muster.bench.queues_process import QueuesLine

SIZES = ((30, 500), (1_000, 50))
"""Queues, and workloads in each."""
DEFAULT_NODES = 100
DEFAULT_POLICY = "balanced"


def measure(queues: int, per_queue: int, *, nodes: int, say: Say, policy: str = DEFAULT_POLICY) -> QueuesLine:
    say(f"queues: {queues * per_queue:,} workloads in {queues:,} queues, {nodes:,} nodes, policy {policy}")
    command = [sys.executable, "-m", "muster.bench.queues_process", str(queues), str(per_queue), str(nodes), policy]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, timeout=CHILD_TIMEOUT_S, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"the run failed with code {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=QueuesLine)
