"""`--on embedded`: store and scheduler in one fresh process, until the last binding is durable. See `embedded_process`."""

from __future__ import annotations

from muster.bench.handover import measure_in_child
from muster.bench.lines import Say, SchedulingLine
from muster.bench.scenario import Scenario


def run(scenario: Scenario, nodes: int, pods: int, *, seed: int, say: Say) -> SchedulingLine:
    module = "muster.bench.embedded_process"
    return measure_in_child(module, "embedded", scenario, nodes=nodes, pods=pods, seed=seed, say=say)
