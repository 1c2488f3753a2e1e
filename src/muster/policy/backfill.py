"""Backfill: who may go before work that does not fit yet.

The first in line that does not fit gets a plan: the time at which there will be room for all of it, if what runs ends when it
is expected to, and what is left on each node at that time beside it (`extra`). Work behind it may go now if it ends by then, or
if it fits into what is left. So it never delays the plan, on any node, in any resource: GPUs and bandwidth like CPU.

Modes of a policy: `EASY` makes one plan per line, `Conservative` one for each that does not fit (as far as PLANS_MAX), each
after the others; `Strict` lets nobody pass; `None` makes no plan. Starving work gets a plan whatever the mode.

What could not run even on an empty cluster stops nobody. Pure: plans are values, made anew when anything has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from muster.engine.columns import Array, Mask, nonzero
from muster.engine.counting import Group, copies_in_all, place_groups
from muster.engine.forecast import Forecast
from muster.engine.reprieve import all_amounts
from muster.engine.shapes import Shape
from muster.engine.victims import free_ahead

if TYPE_CHECKING:
    from muster.engine.state import State

LINES_MAX: Final = 8
"""So many lines (top queues and their pools) have a plan at once, the first in rank."""
PLANS_MAX: Final = 64
"""So many plans there are in a line with Conservative backfill."""
TRIES_MAX: Final = 8
"""So many of a line are looked at until one is found that a plan helps."""

Feasible = Callable[[Shape], Mask | None]
Pieces = tuple[tuple[Shape, int], ...]
"""What a unit is made of: shapes, and how many pods of each."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """One that does not fit, as it stands in the line."""

    row: int
    unit: str
    place: int
    line: int
    """Whose line it is in: the same number, the same line."""
    pieces: Pieces
    run_s: float
    mode: str
    depth: int
    is_next: bool = False
    """It is about to be tried, or others were evicted for it: if there is room, that is kept for it from now on."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    head: Head
    start: float
    extra: Array
    """What is left on each node then, (rows, nodes). Nothing changes it but `with_less`."""

    @property
    def is_strict(self) -> bool:
        return self.head.mode == "Strict"

    def with_less(self, slot: int, request: Array) -> None:
        """Something was started there that runs on past the plan's time."""
        self.extra[: len(request), slot] -= request[: len(self.extra)]


def groups_of(pieces: Pieces, feasible: Feasible) -> list[Group]:
    return [Group(shape, count, feasible(shape)) for shape, count in pieces]


class Releases(msgspec.Struct, frozen=True):
    """What will be given back when and where; columns over releases, `held` with rows first."""

    times: Array
    nodes: Array
    held: Array


def releases(state: State, indices: Array, ends: Array) -> Releases:
    """Of placed pods: when each is expected to end; infinite for who is not. What ends already counts as gone."""
    placed = state.placed
    nodes = placed.node[indices]
    counts = (ends < np.inf) & ~placed.ending[indices] & (nodes >= 0)
    if np.count_nonzero(counts) < len(indices):
        indices, ends, nodes = indices[counts], ends[counts], nodes[counts]
    return Releases(ends, nodes, all_amounts(placed, len(state.nodes.free), indices))


class Planner:
    """Makes plans one after the other, each beside those before it."""

    def __init__(self, state: State, coming: Releases, now: float, feasible: Feasible) -> None:
        self._state, self._now, self._feasible = state, now, feasible
        self._free = free_ahead(state)
        self._coming = coming
        self._last: tuple[Array, float] | None = None
        """What the last plan took, and until when: nobody plans with that any more."""
        self._forecast: Forecast | None = None
        """Of all that is coming; it holds until another plan takes something."""

    def add(self, head: Head) -> Plan | None:
        """A plan for `head`; None when one does not help it."""
        state = self._state
        if self._last is not None:
            self._free, self._coming = _beside(self._free, self._coming, *self._last)
            self._last = self._forecast = None
        groups = groups_of(head.pieces, self._feasible)
        if any(shape.height > len(self._free) for shape, _ in head.pieces):
            return None
        if self._forecast is None:
            coming = self._coming
            self._forecast = Forecast.of(state, self._free, coming.times, coming.nodes, coming.held, self._now)
        forecast = self._forecast
        start = forecast.earliest(groups)
        if start is None:
            return None
        if start <= self._now and not head.is_next and head.mode != "Strict":
            # There is room: what keeps it from starting is another rule, which keeping room does not help.
            return None
        left = forecast.free_at(start)
        before = left.copy()
        if place_groups(left, groups, state.nodes.capacity) is None:
            return None
        self._last = (before - left, start + head.run_s)
        return Plan(head=head, start=start, extra=left)


def _beside(free: Array, coming: Releases, taken: Array, end: float) -> tuple[Array, Releases]:
    """What the next may plan with: as if the room of the plan were given away now, until its unit ends."""
    free = free - taken
    if not np.isfinite(end):
        return free, coming
    slots = nonzero(np.logical_or.reduce(taken, axis=0))
    times = np.concatenate([coming.times, np.full(len(slots), end)])
    held = np.concatenate([coming.held, taken.take(slots, axis=1)], axis=1)
    return free, Releases(times, np.concatenate([coming.nodes, slots]), held)


def room_for(pieces: Pieces, free: Array, capacity: Array, feasible: Feasible) -> int:
    """How many such units fit into `free`; where a unit is of several shapes, 1 if one does."""
    if len(pieces) == 1:
        shape, count = pieces[0]
        return copies_in_all(shape, free, feasible(shape)) // count
    groups = groups_of(pieces, feasible)
    return 0 if place_groups(free.copy(), groups, capacity) is None else 1


class Bound(msgspec.Struct, frozen=True):
    """What plans say to one unit: `stopped` by a plan (and whether that is only because of the order), or free to go where
    `limit` (rows, nodes) has room; without a limit, anywhere. `crosses` are the plans that it would run past. Only one that
    `is_behind_all` leaves all plans as they are when it goes."""

    stopped: Plan | None = None
    limit: Array | None = None
    crosses: tuple[Plan, ...] = ()
    is_behind_all: bool = True


def bound_by(plans: Sequence[Plan], place: int, line: int, end: float) -> Bound:
    """For a unit at `place` of `line` that would run until `end`."""
    limit: Array | None = None
    crosses: list[Plan] = []
    is_behind_all = True
    for plan in plans:
        head = plan.head
        if head.place >= place:
            is_behind_all = False
            continue
        if plan.is_strict:
            if head.line == line:
                return Bound(plan)
            continue
        if place - head.place > head.depth:
            return Bound(plan)
        if end > plan.start:
            crosses.append(plan)
            limit = plan.extra if limit is None else np.minimum(limit, plan.extra)
    return Bound(None, limit, tuple(crosses), is_behind_all)
