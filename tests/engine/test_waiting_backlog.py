"""Ten thousand units that can't fit: each says why, and freeing one node tries only those that it could help."""

from __future__ import annotations

from typing import Any

import pytest

from muster.engine import events as ev
from muster.engine.blocks import PodBlock
from muster.engine.decisions import Park, Place
from muster.engine.machine import Engine
from muster.engine.plugin import Plugin, Scope
from muster.engine.plugins.bandwidth import Bandwidth
from muster.engine.plugins.fit import Fit
from muster.engine.plugins.node_affinity import NodeAffinity
from muster.engine.profile import Profile
from muster.engine.units import Unit
from muster.objects.reasons import Reason
from tests.engine.building import PROFILE, node, pod

UNITS = 10_000
NODES = 50


class Counting(Plugin):
    """Notes every attempt."""

    name = "Counting"
    scope = Scope.NODE

    def __init__(self, args: Any = None) -> None:
        super().__init__(args)
        self.tried: list[str] = []

    def prefilter(self, unit: Unit, pods: PodBlock, now: float) -> None:
        self.tried.append(unit.id)


def cluster(*, selector: bool) -> tuple[Engine, Counting]:
    """Nodes of 100 cores that are full, and units that each ask for another amount of CPU, memory and bandwidth."""
    counting = Counting()
    made = Engine([Profile(PROFILE, [NodeAffinity(), counting, Fit(), Bandwidth()])])
    nodes = [
        node(f"n{i}", cpu="100", memory="100Gi", labels={"zone": f"z{i % 2}"}, annotations={"muster.dev/bandwidth": "10Gbps"})
        for i in range(NODES)
    ]
    full = [pod(f"full-{i}", cpu="100", memory="50Gi", node=f"n{i}") for i in range(NODES)]
    made.step([*(ev.NodeSeen(n) for n in nodes), *(ev.PodSeen(p) for p in full)], 0.0)
    waiting = [
        pod(
            f"w{i}",
            # From 10.005 to 60.000 cores, all different, so that no two units share a shape.
            cpu=f"{10_000 + 5 * (i + 1)}m",
            memory=f"{1 + i % 60}Gi",
            annotations={"muster.dev/bandwidth": f"{1 + i % 7}Mbps"} if i % 3 == 0 else {},
            nodeSelector={"zone": f"z{i % 2}"} if selector and i % 5 == 0 else {},
        )
        for i in range(UNITS)
    ]
    decisions = made.step([ev.PodSeen(p) for p in waiting], 1.0)
    assert sum(isinstance(d, Park) for d in decisions) == UNITS
    return made, counting


@pytest.mark.slow
def test_everybody_has_an_explanation_and_only_those_wake_that_a_freed_node_could_help() -> None:
    made, counting = cluster(selector=True)
    assert len(made.waiting.parked) == UNITS
    for unit, parked in made.waiting.parked.items():
        verdict = parked.verdict
        assert verdict.reason is Reason.CPU_INSUFFICIENT, unit
        assert sum(verdict.nodes_by_reason.values()) == NODES
        assert verdict.shortfalls
        assert verdict.shortfalls[0].missing > 0
        assert verdict.shortfalls[0].holders
        assert verdict.nearest
        assert verdict.helps
        assert verdict.message

    counting.tried.clear()
    made.step([ev.PodGone("uid-default-full-0")], 2.0)
    first = set(counting.tried)
    free_milli = 100_000
    could = {f"Pod/default/w{i}" for i in range(UNITS) if 10_000 + 5 * (i + 1) <= free_milli and (i % 5 or i % 2 == 0)}
    assert first <= could, "somebody was tried whom the node could not help"
    assert first

    # A sliver of room on a full node helps nobody, and nobody is tried.
    made.step([ev.NodeSeen(node("n1", cpu="101", memory="100Gi", labels={"zone": "z1"}))], 3.0)
    counting.tried.clear()
    made.step([ev.NodeSeen(node("n1", cpu="105", memory="100Gi", labels={"zone": "z1"}))], 4.0)
    assert counting.tried == []

    # Ten and a half cores help the smallest hundred, and of those only the ones that its zone and memory let in.
    decisions = made.step([ev.NodeSeen(node("n1", cpu="110.5", memory="60Gi", labels={"zone": "z1"}))], 5.0)
    fits = {i for i in range(UNITS) if 10_000 + 5 * (i + 1) <= 10_500 and 1 + i % 60 <= 10 and i % 3 and (i % 5 or i % 2)}
    tried = {int(unit.rpartition("w")[2]) for unit in counting.tried}
    assert tried
    assert tried <= fits
    assert sum(isinstance(d, Place) for d in decisions) == 1
