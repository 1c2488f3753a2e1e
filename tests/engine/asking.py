"""Asking one plugin about one pod, in all the ways in which the engine does: the answers must be the same."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock, one_shape
from muster.engine.facts import PodFacts
from muster.engine.plugin import Plugin
from muster.engine.profile import Profile
from muster.engine.state import State
from muster.objects.reasons import Reason, Shortfall

P = TypeVar("P", bound=Plugin)


def attached(state: State, plugin: P) -> P:
    Profile("test", [plugin]).attach(state)
    return plugin


def block_of(state: State, facts: PodFacts) -> PodBlock:
    """The pod as the engine hands it to plugins. It is not taken into the state."""
    block = one_shape(state.shapes.shape_of(facts))
    block.pod = facts
    return block


def allowed(plugin: Plugin, facts: PodFacts) -> list[str]:
    """Names of the nodes that the plugin lets the pod onto."""
    block, nodes = block_of(plugin.state, facts), plugin.state.nodes
    mask = _everywhere(plugin.filter, block, plugin.state)
    assert mask.dtype == np.bool_
    return [name for name, fits in zip(nodes.names, mask.tolist(), strict=True) if fits]


def scored(plugin: Plugin, facts: PodFacts) -> dict[str, int]:
    """Scores by node before they are brought to scale."""
    scores = _everywhere(plugin.score, block_of(plugin.state, facts), plugin.state)
    assert scores.dtype == np.int64
    return dict(zip(plugin.state.nodes.names, scores.tolist(), strict=True))


def normalised(plugin: Plugin, facts: PodFacts, feasible: list[bool] | None = None) -> dict[str, int]:
    """Scores by node brought to scale; all nodes are feasible unless `feasible` says otherwise."""
    state = plugin.state
    raw = plugin.score(block_of(state, facts), NodeBlock(state.nodes))
    mask = np.ones(len(state.nodes), np.bool_) if feasible is None else np.array(feasible)
    return dict(zip(state.nodes.names, plugin.normalise(raw, mask).tolist(), strict=True))


def explained(plugin: Plugin, facts: PodFacts) -> tuple[Reason, list[Shortfall]]:
    """What it says about the nodes that it refuses."""
    state, block = plugin.state, block_of(plugin.state, facts)
    refused = np.flatnonzero(~np.broadcast_to(plugin.filter(block, NodeBlock(state.nodes)), len(state.nodes)))
    assert len(refused), "nothing to explain"
    reason, shortfalls = plugin.explain(block, NodeBlock(state.nodes, refused))
    return reason, list(shortfalls)


def _everywhere(method: Any, block: PodBlock, state: State) -> Any:
    """The answer for all nodes; those for each one, and for some in reverse order, must agree with it."""
    count = len(state.nodes)
    whole = np.broadcast_to(method(block, NodeBlock(state.nodes)), count)
    one_by_one = [np.asarray(method(block, NodeBlock(state.nodes, slot))).tolist() for slot in range(count)]
    assert one_by_one == whole.tolist()
    backwards = np.arange(count)[::-1]
    some = np.broadcast_to(method(block, NodeBlock(state.nodes, backwards)), count)
    assert some.tolist() == whole[::-1].tolist()
    return whole
