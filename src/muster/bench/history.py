"""What recording costs the engine: the same run with and without, step by step in turn, in a process of its own. Blocking."""

from __future__ import annotations

import msgspec

from muster.bench.handover import child_line, scratch, write
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
    say(f"history of {scenario}: {nodes:,} nodes, {pods:,} pods, {pairs} runs of both at once")
    workload = generate(load_scenario(scenario), nodes, pods, seed, scheduler_name=DEFAULT_NAME)
    with scratch() as directory:
        write(workload, directory)
        answer = child_line("muster.bench.history_process", str(directory), str(pairs), say=say)
    line = msgspec.json.decode(answer, type=HistoryLine)
    return msgspec.structs.replace(line, scenario=scenario, nodes=nodes)
