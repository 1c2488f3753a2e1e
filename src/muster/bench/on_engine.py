"""`--on engine`: the engine alone, in a fresh process, one core, no store and no network. See `engine_process`."""

from __future__ import annotations

from muster.bench.handover import measure_in_child
from muster.bench.lines import Say, SchedulingLine
from muster.bench.scenario import Scenario


def run(scenario: Scenario, nodes: int, pods: int, *, seed: int, say: Say) -> SchedulingLine:
    module = "muster.bench.engine_process"
    return measure_in_child(module, "engine", scenario, nodes=nodes, pods=pods, seed=seed, say=say)
