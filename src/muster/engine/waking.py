"""Whom a node that offers more than before could help: those that fit there now, and those that could make room there now.

Pure. Rules between pods are not asked: what they refuse wakes by what the plugins listen to (`Plugin.wakes_on`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from muster.engine.cycle import Cycle
from muster.engine.pods import PodRecord
from muster.engine.queue import Waiting
from muster.engine.resources import widened
from muster.engine.shapes import Shape
from muster.engine.state import State


def wake_for_node(slot: int, state: State, waiting: Waiting, cycles: Mapping[str, Cycle]) -> None:
    """`cycles` are by the name of the profile."""

    def fits(shape: Shape) -> bool:
        return fits_at(slot, shape, cycles)

    waiting.wake_for(state.nodes.free[:, slot], fits, functools.partial(_room, slot, state))
    _wake_evictors(slot, state, waiting, cycles)


def fits_at(slot: int, shape: Shape, cycles: Mapping[str, Cycle]) -> bool:
    """Whether the NODE and LOCAL filters of its profile let the shape onto the node."""
    cycle = cycles.get(shape.spec.scheduler_name)
    return cycle is not None and cycle.evaluator.fits_at(shape, slot)


def _room(slot: int, state: State, shape: Shape) -> int:
    """How many pods of the shape the node's free amounts cover."""
    rows = np.flatnonzero(shape.request)
    return int((state.nodes.free[rows, slot] // shape.request[rows]).min()) if len(rows) else 1


def _wake_evictors(slot: int, state: State, waiting: Waiting, cycles: Mapping[str, Cycle]) -> None:
    """Wake who made room on the node (did others take it?), and who could now: what is free there, and what is less important
    than they are, is enough for them together."""
    name = state.nodes.names[slot]
    waiting.wake_all([pod.unit for node, pod in state.nominations.values() if node == name])
    there = [pod for pod in state.on_node.get(name, {}).values() if not pod.is_victim]
    if not there or min(pod.priority for pod in there) >= waiting.top_priority:
        return

    def could_fit(shape: Shape) -> bool:
        cycle = cycles.get(shape.spec.scheduler_name)
        if cycle is None or not cycle.profile.at["post_filter"] or shape.spec.preemption_policy == "Never":
            return False
        less = [pod for pod in there if pod.priority < shape.priority]
        return bool(less) and _is_enough(slot, state, shape, less) and cycle.evaluator.allows_at(shape, slot)

    waiting.wake_for(state.nodes.capacity[:, slot], could_fit, lambda _: 1, is_free=False)


def _is_enough(slot: int, state: State, shape: Shape, gone: list[PodRecord]) -> bool:
    """Whether the node could hold a pod of the shape, by amounts alone, with these gone."""
    rows = np.flatnonzero(shape.request)
    free = state.nodes.free[rows, slot]
    for pod in gone:
        free = free + widened(pod.request, len(state.nodes.free))[rows]
    return bool((free >= shape.request[rows]).all())
