"""Whom a node that offers more than before could help: those that fit there now, and those that could make room there now.

Pure. Rules between pods are not asked: what they refuse wakes by what the plugins listen to (`Plugin.wakes_on`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from muster.engine.columns import nonzero
from muster.engine.cycle import Cycle
from muster.engine.holding import Held
from muster.engine.pods import PodRecord
from muster.engine.queue import Kind, Waiting
from muster.engine.shapes import Shape
from muster.engine.state import State
from muster.engine.vectors import widened

Promised = Mapping[str, Sequence[PodRecord]]
"""By node: waiting pods that room was made for there."""


def promised(state: State) -> Promised:
    found: dict[str, list[PodRecord]] = {}
    for node, pod in state.nominations.values():
        found.setdefault(node, []).append(pod)
    return found


class RoomInAll:
    """For how many gangs of equal pods the free amounts of all nodes together have room. Each kind is answered once, as those
    that it lets wake are to be tried before others of their kind: one object per round of waking."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pods: dict[int, int] = {}
        self._asked: set[Kind] = set()

    def take(self, shape: Shape, copies: int) -> int:
        kind = (shape.number, copies)
        if kind in self._asked:
            return 0
        self._asked.add(kind)
        if shape.number not in self._pods:
            rows = nonzero(shape.request)
            free = np.maximum(self._state.nodes.free[rows], 0) // shape.request[rows, None]
            self._pods[shape.number] = int(free.min(axis=0).sum()) if len(rows) else copies
        return self._pods[shape.number] // copies


def wake_for_node(  # noqa: PLR0917 - a node, the engine's parts, and what is worked out once for all nodes
    slot: int, state: State, waiting: Waiting, cycles: Mapping[str, Cycle], kept: Promised, in_all: RoomInAll
) -> None:
    """`cycles` are by the name of the profile."""
    kept_here = kept.get(state.nodes.names[slot], ())

    def fits(shape: Shape) -> bool:
        return fits_at(slot, shape, cycles)

    def spare(shape: Shape) -> int:
        before = [pod for pod in kept_here if pod.priority >= shape.priority]
        # Amounts are not all that counts: where nobody else is expected, one is let try.
        return _room(slot, state, shape, before) if before else max(_room(slot, state, shape), 1)

    def room(shape: Shape, copies: int) -> int:
        return max(_room(slot, state, shape), 1) if copies == 1 else in_all.take(shape, copies)

    waiting.wake_for(state.nodes.free[:, slot], fits, room, spare)
    waiting.wake_all([pod.unit for pod in kept_here if _is_ready(slot, state, pod, cycles)])
    _wake_evictors(slot, state, waiting, cycles)


def _is_ready(slot: int, state: State, pod: PodRecord, cycles: Mapping[str, Cycle]) -> bool:
    """Whether a pod that room was made for on the node would learn anything there: it fits by now, or it never will, or there
    is nobody left to wait for. As long as victims are left, trying it would end in waiting for them."""
    there = state.on_node.get(state.nodes.names[slot], {}).values()
    if not any((other.is_victim or other.is_ending) and other.priority < pod.priority for other in there):
        return True
    if fits_at(slot, pod.shape, cycles):
        return True
    cycle = cycles.get(pod.shape.spec.scheduler_name)
    return cycle is None or not cycle.evaluator.allows_at(pod.shape, slot)


def fits_at(slot: int, shape: Shape, cycles: Mapping[str, Cycle]) -> bool:
    """Whether the NODE and LOCAL filters of its profile let the shape onto the node."""
    cycle = cycles.get(shape.spec.scheduler_name)
    return cycle is not None and cycle.evaluator.fits_at(shape, slot)


def _room(slot: int, state: State, shape: Shape, before: Sequence[PodRecord] = ()) -> int:
    """How many pods of the shape the node's free amounts cover, once those have come that go before."""
    found: int | None = None
    for row, amount in shape.asks:
        free = int(state.nodes.free[row, slot])
        for pod in before:
            free -= int(pod.request[row]) if row < len(pod.request) else 0
        found = free // amount if found is None else min(found, free // amount)
    return 1 if found is None else found


def _wake_evictors(slot: int, state: State, waiting: Waiting, cycles: Mapping[str, Cycle]) -> None:
    """Wake who could make room on the node now: what is free there, and what is less important than they are, is enough for
    them together."""
    name = state.nodes.names[slot]
    top = waiting.top_priority
    if not any(pod.priority < top and not pod.is_victim for pod in state.on_node.get(name, {}).values()):
        return
    there = [pod for pod in state.on_node[name].values() if not pod.is_victim]

    def could_fit(shape: Shape) -> bool:
        cycle = cycles.get(shape.spec.scheduler_name)
        if cycle is None or not cycle.profile.at["post_filter"] or shape.spec.preemption_policy == "Never":
            return False
        less = [pod for pod in there if pod.priority < shape.priority]
        return bool(less) and _is_enough(slot, state, shape, less) and cycle.evaluator.allows_at(shape, slot)

    waiting.wake_for(state.nodes.capacity[:, slot], could_fit, lambda _, __: 1)


def wake_wounders(slot: int, state: State, waiting: Waiting, cycles: Mapping[str, Cycle], holds: Mapping[str, Held]) -> None:
    """Wake who would fit if what is held on the node, and not bound yet, were given back: they may be older than the holder."""
    name = state.nodes.names[slot]
    there = [one.pod for held in holds.values() for one in held.placed if one.pod.node == name]
    if not there:
        return
    free = state.nodes.free[:, slot].copy()
    for pod in there:
        free += widened(pod.request, len(free))

    def could_fit(shape: Shape) -> bool:
        cycle = cycles.get(shape.spec.scheduler_name)
        return cycle is not None and cycle.evaluator.allows_at(shape, slot)

    waiting.wake_for(free, could_fit, lambda _, __: 1)


def _is_enough(slot: int, state: State, shape: Shape, gone: list[PodRecord]) -> bool:
    """Whether the node could hold a pod of the shape, by amounts alone, with these gone."""
    rows = nonzero(shape.request)
    free = state.nodes.free[rows, slot]
    for pod in gone:
        free = free + widened(pod.request, len(state.nodes.free))[rows]
    return bool((free >= shape.request[rows]).all())
