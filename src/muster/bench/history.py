"""What recording costs the engine: the same run with and without, in turn, in a process of its own. Blocking."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from muster.bench.handover import CHILD_TIMEOUT_S, scratch, write
from muster.bench.history_process import HistoryLine
from muster.bench.lines import Say
from muster.bench.scenario import load_scenario
from muster.bench.workload import generate
from muster.engine.configuration import DEFAULT_NAME

SCENARIOS = ("basic", "gang-64", "churn")
DEFAULT_NODES = 1000
DEFAULT_PODS = 20_000
DEFAULT_PAIRS = 5


def measure(scenario: str, *, nodes: int, pods: int, pairs: int, seed: int, say: Say) -> HistoryLine:
    say(f"history of {scenario}: {nodes:,} nodes, {pods:,} pods, {pairs} pairs of runs")
    workload = generate(load_scenario(scenario), nodes, pods, seed, scheduler_name=DEFAULT_NAME)
    with scratch() as directory:
        write(workload, directory)
        command = [sys.executable, "-m", "muster.bench.history_process", str(directory), str(pairs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, timeout=CHILD_TIMEOUT_S, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"the run failed with code {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}")
    line = msgspec.json.decode(done.stdout.splitlines()[-1], type=HistoryLine)
    return msgspec.structs.replace(line, scenario=scenario, nodes=nodes)
