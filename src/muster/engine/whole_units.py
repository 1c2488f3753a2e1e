"""Units that are evicted whole: which there are, whether they may be evicted, and what that costs.

What is left of a gang after one of its pods was evicted holds resources for nothing, so all of it goes or none of it does.
Pure; made anew for each question, and only when a pod of such a unit could be a victim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from muster.engine.columns import Column, Mask
from muster.engine.pods import PodRecord
from muster.engine.reprieve import COST_SHIFT, started

if TYPE_CHECKING:
    from muster.engine.state import State


class WholeUnit(msgspec.Struct, frozen=True):
    """All members that are placed and not on their way out, two at least."""

    members: tuple[PodRecord, ...]
    can_go: bool
    """Whether each of them may be evicted."""
    cost: int
    """Of its most important member."""
    weight: int
    """What it adds to a sum of costs."""
    start: int
    """The earliest of its most important members."""


def is_shared(unit: str) -> bool:
    """Whether a unit of this id may have several pods."""
    return bool(unit) and not unit.startswith("Pod/")


def whole_units(state: State, eligible: Mask, cost: Column) -> dict[str, WholeUnit]:
    """By id: every unit of several placed pods."""
    placed = state.placed
    by_unit: dict[str, list[PodRecord]] = {}
    for index in np.flatnonzero((placed.node >= 0) & ~placed.ending).tolist():
        pod = placed.records[index]
        if pod is not None and is_shared(pod.unit):
            by_unit.setdefault(pod.unit, []).append(pod)
    return {unit: _whole(pods, eligible, cost) for unit, pods in by_unit.items() if len(pods) > 1}


def _whole(pods: list[PodRecord], eligible: Mask, cost: Column) -> WholeUnit:
    members = tuple(sorted(pods, key=lambda pod: pod.uid))
    costs = [int(cost[pod.index]) for pod in members]
    top = max(costs)
    return WholeUnit(
        members,
        all(bool(eligible[pod.index]) for pod in members),
        top,
        sum(costs) + len(costs) * COST_SHIFT,
        min(started(pod) for pod, price in zip(members, costs, strict=True) if price == top),
    )
