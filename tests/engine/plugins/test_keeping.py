"""Own columns that instances do not share, and alarms that move with their nodes."""

from __future__ import annotations

import math

from muster.engine.blocks import NodeBlock
from muster.engine.events import NodeGone, NodeSeen
from muster.engine.plugin import Plugin
from muster.engine.plugins.keeping import Alarms, Kept
from muster.engine.profile import Profile
from muster.engine.state import State
from tests.engine.building import node, state_of


class Keeper(Plugin):
    name = "Keeper"

    def attach(self, state: State) -> None:
        super().attach(state)
        self.kept = Kept(self, state, "figures", 2)
        self.alarms = Alarms(self, state)

    @property
    def kept_names(self) -> tuple[str, ...]:
        return (self.kept.name, self.alarms.name)


def attached(state: State) -> tuple[Keeper, Profile]:
    plugin = Keeper()
    profile = Profile("test", [plugin])
    profile.attach(state)
    return plugin, profile


def test_instances_do_not_share_columns_and_names_are_used_again() -> None:
    state = state_of([node("a")])
    one, first = attached(state)
    two, _ = attached(state)
    one.kept.all[:, 0] = 7
    assert two.kept.all.tolist() == [[0], [0]]
    first.detach(state)
    three, _ = attached(state)
    assert three.kept.name == one.kept.name
    assert three.kept.all.tolist() == [[0], [0]], "what an earlier instance left is wiped"


def test_columns_and_alarms_move_with_their_nodes() -> None:
    state = state_of([node("b"), node("d")])
    plugin, _ = attached(state)
    for slot, when in ((0, math.inf), (1, 50.0)):
        plugin.kept.all[:, slot] = slot + 1
        plugin.alarms.set(slot, when)
    state.apply_node(NodeSeen(node("a")))
    state.apply_node(NodeGone("b"))
    state.flush_nodes()
    plugin.alarms.set(state.nodes.slots["a"], math.inf)
    assert state.nodes.names == ["a", "d"]
    assert plugin.kept.of(NodeBlock(state.nodes)).tolist() == [[0, 2], [0, 2]]
    assert plugin.alarms.ring(49.0) == []
    assert plugin.alarms.ring(50.0) == [1]


def test_sooner_never_delays() -> None:
    state = state_of([node("a"), node("b")])
    plugin, _ = attached(state)
    for slot in (0, 1):
        plugin.alarms.set(slot, 100.0)
    plugin.alarms.sooner(0, 60.0)
    plugin.alarms.sooner(0, 80.0)
    assert plugin.alarms.ring(59.9) == []
    assert plugin.alarms.ring(60.0) == [0]
    plugin.alarms.set(0, math.inf)
    assert plugin.alarms.ring(99.0) == []
    assert plugin.alarms.ring(100.0) == [1]
