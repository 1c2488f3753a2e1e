"""The plans in force: who in the line has room kept for it, and who has room now.

Keeps what `backfill` works out until something changes: pods that were placed or went, nodes, the order of the line, who is
blocked, or the moment at which work has run longer than was expected of it. Work that is started beside a plan is taken off
what is left beside it, without working it all out again.

Pure, single-threaded. `version` grows whenever the plans are others than before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from muster.engine.blocks import one_shape
from muster.engine.columns import Array, Mask, nonzero
from muster.engine.plugin import PostFilterHelper
from muster.engine.shapes import Shape
from muster.policy.backfill import (
    Bound,
    Head,
    Pieces,
    Plan,
    Planner,
    Releases,
    bound_by,
    releases,
    room_for,
)
from muster.policy.book import Book
from muster.policy.expecting import HORIZON_S, end_said, expected_ends, run_time, run_times
from muster.policy.front import Foremost, Front
from muster.policy.ranking import Ranked, Ranker

MASKS_MAX: Final = 4_096
"""Answers that are kept, of each kind."""
_BEFORE_ALL: Final = Bound(is_behind_all=False)


class Plans:
    def __init__(self, book: Book, ranker: Ranker) -> None:
        self._book, self._ranker, self._state = book, ranker, book.state
        self.helpers: dict[str, PostFilterHelper] = {}
        """By the name of the profile."""
        self.version = 0
        self.made = 0
        """How often they were made: in between they only have less beside them."""
        self.front = Front(book, ranker, self.lines)
        self._plans: list[Plan] = []
        self._made_of: tuple[int, ...] = ()
        self._front: list[Foremost] = []
        """Those that the plans were made for."""
        self._valid_until = math.inf
        self._is_open = False
        """Somebody in front needs no plan while there is room for it: that changes when somebody takes the room."""
        self._until: Array = np.zeros(0)
        """By row: until when what was expected of it holds."""
        self._masks: dict[int, Mask | None] = {}
        self._masks_of = (-1, 0)
        self._rooms: dict[tuple[Pieces, int, int], int] = {}
        self._rooms_of: tuple[object, ...] = ()
        self._ever: dict[Pieces, bool] = {}
        self._ever_of: tuple[int, ...] = ()
        self._free: Array = np.zeros(0, np.int64)
        self._free_of: tuple[int, ...] = ()
        self._fitting: tuple[object, object, Array] = (None, None, self._free)
        """The last answer of `_within`, behind what it was about."""
        self._lines: tuple[object, Array] | None = None
        self._passing: tuple[str, Bound] = ("", Bound())

    # -- the plans -----------------------------------------------------------------------------------------------------------

    @property
    def next_change(self) -> float | None:
        """When time alone makes them others."""
        return self._valid_until if self._plans and math.isfinite(self._valid_until) else None

    def current(self, ranked: Ranked, now: float) -> Sequence[Plan]:
        book, nodes = self._book, self._state.nodes
        room = (book.surprises, nodes.version, len(nodes.free))
        is_same_room = room == self._made_of and (now < self._valid_until or not self._is_any_over(now))
        front = self.front.find(ranked)
        if is_same_room and front is self._front:
            return self._plans
        self._made_of = room
        if is_same_room and front == self._front:
            self._front = front
            place = self._book.table.place
            self._plans = [
                msgspec.structs.replace(plan, head=msgspec.structs.replace(plan.head, place=int(place[plan.head.row])))
                for plan in self._plans
            ]
            return self._plans
        self._front = front
        before = self._plans
        self._plans = self._make(front, now) if front else []
        self.made += 1
        if not front:
            self._valid_until = math.inf
        if before or self._plans:
            self.version += 1
        return self._plans

    def _is_any_over(self, now: float) -> bool:
        """Whether anything runs that is expected to end later than when the plans were made."""
        until = np.where(self._book.table.is_running[: len(self._until)], self._until, math.inf)
        self._valid_until = float(until.min()) if len(until) else math.inf
        return self._valid_until <= now

    def of(self, unit_id: str) -> Plan | None:
        """The plan of a unit, as last made."""
        return next((plan for plan in self._plans if plan.head.unit == unit_id and not plan.is_strict), None)

    def bound(self, row: int, ranked: Ranked, now: float) -> Bound:
        """What the plans say to a waiting unit."""
        if self.front.is_before_all(row, ranked):
            # Nothing is kept from it; the plans are looked at when somebody comes that they could stop.
            return _BEFORE_ALL
        plans = self.current(ranked, now)
        if not plans:
            return Bound()
        table = self._book.table
        end = now + run_time(table, row)
        return bound_by(plans, int(table.place[row]), int(self.lines()[table.queue[row]]), end)

    def let_pass(self, unit_id: str, bound: Bound) -> None:
        """The unit is about to be tried."""
        self._passing = (unit_id, bound)

    def started(self, unit_id: str, surprises: int, pods: Sequence[tuple[int, Array]]) -> None:
        """The unit that was let pass was placed (slots and requests of its pods), and nothing else has changed since the books
        had so many `surprises`: the plans still hold, less what it took beside them."""
        name, bound = self._passing
        if name != unit_id or not self._made_of or self._made_of[0] != surprises or not bound.is_behind_all or self._is_open:
            return
        row = self._book.table.row_of[unit_id]
        if row >= len(self._until):
            return
        self._until[row] = end_said(self._book.table, row)
        self._valid_until = min(self._valid_until, float(self._until[row]))
        for plan in bound.crosses:
            for slot, request in pods:
                plan.with_less(slot, request)
        self._made_of = (self._book.surprises, *self._made_of[1:])
        self.version += 1

    def _head(self, one: Foremost) -> Head:
        table, book = self._book.table, self._book
        group, policies, _ = self._ranker.policies()
        row = one.row
        return Head(
            row=row,
            unit=table.ids[row],
            place=int(table.place[row]),
            line=one.line,
            pieces=book.pieces[int(table.kind[row])],
            run_s=min(run_time(table, row), HORIZON_S),
            mode=one.mode,
            depth=policies[group[table.queue[row]]][1].spec.backfill.depth,
            is_next=one.is_next,
        )

    def _make(self, front: Sequence[Foremost], now: float) -> list[Plan]:
        """Of each line the first that a plan helps; with Conservative backfill all."""
        planner = Planner(self._state, self._coming(now), now, self.feasible)
        plans: list[Plan] = []
        settled: set[int] = set()
        self._is_open = False
        for one in front:
            if one.line in settled and one.mode != "Conservative":
                continue
            plan = planner.add(self._head(one))
            if plan is not None:
                plans.append(plan)
                if plan.start > now or plan.is_strict:
                    settled.add(one.line)
            else:
                self._is_open = True
        return plans

    def _coming(self, now: float) -> Releases:
        """What is expected to be given back, and when. Also finds out until when that holds."""
        table, row_at = self._book.table, self._book.row_at
        rows = nonzero(table.is_running)
        expected, until = expected_ends(table, rows, now)
        self._valid_until = float(np.minimum.reduce(until)) if len(until) else math.inf
        self._until = by_row = np.full(table.size, np.inf)
        by_row[rows] = until
        if expected is not until:
            by_row = by_row.copy()
            by_row[rows] = expected
        placed = nonzero(row_at >= 0)
        return releases(self._state, placed, by_row[row_at[placed]])

    def lines(self) -> Array:
        """By the number of a queue: which line it waits in."""
        names, tree = self._book.table.queues, self._book.tree
        made_of = (names.version, tree.version)
        if self._lines is None or self._lines[0] != made_of:
            numbers: dict[object, int] = {}
            found = [numbers.setdefault(tree.key(name), len(numbers)) for name in names.names]
            self._lines = (made_of, np.array(found or [0], np.int64))
        return self._lines[1]

    # -- room ----------------------------------------------------------------------------------------------------------------

    def feasible(self, shape: Shape) -> Mask | None:
        """Where a pod of the shape could be at all; None for anywhere."""
        made_of = (self._state.nodes.version, len(self._state.nodes))
        if made_of != self._masks_of or len(self._masks) > MASKS_MAX:
            self._masks, self._masks_of = {}, made_of
        if shape.number not in self._masks:
            helper = self.helpers.get(shape.spec.scheduler_name)
            mask: Mask | None = None
            if helper is not None:
                shape.widen(len(self._state.nodes.free))
                mask = np.asarray(helper.static_mask(one_shape(shape)))
                mask = None if mask.all() else mask
            self._masks[shape.number] = mask
        return self._masks[shape.number]

    def room(self, pieces: Pieces, plan: Plan | None = None) -> int:
        """How many units of these pieces fit now; with a plan, beside it."""
        nodes = self._state.nodes
        made_of = (self._book.room_version, nodes.version)
        if made_of != self._rooms_of or len(self._rooms) > MASKS_MAX:
            self._rooms, self._rooms_of = {}, made_of
        # Without a plan it is the same whatever is planned.
        key = (pieces, plan.head.row, self.version) if plan is not None else (pieces, -1, 0)
        found = self._rooms.get(key)
        if found is None:
            free = np.minimum(nodes.free, plan.extra) if plan is not None else nodes.free
            found = self._rooms[key] = room_for(pieces, free, nodes.capacity, self.feasible)
        return found

    def could_ever(self, pieces: Pieces) -> bool:
        """Whether a unit of these pieces would fit on the nodes if nothing else were there."""
        nodes = self._state.nodes
        made_of = (nodes.version, len(nodes.capacity))
        if made_of != self._ever_of or len(self._ever) > MASKS_MAX:
            self._ever, self._ever_of = {}, made_of
        if pieces not in self._ever:
            self._ever[pieces] = room_for(pieces, nodes.capacity, nodes.capacity, self.feasible) > 0
        return self._ever[pieces]

    def fits_within(self, pieces: Pieces, limit: Array) -> bool:
        free = np.minimum(self._state.nodes.free, limit)
        return room_for(pieces, free, self._state.nodes.capacity, self.feasible) > 0

    def has_room(self, rows: Array) -> bool:
        """Whether there is room now for any of the rows, plans aside."""
        pieces, _ = self._pieces_of(self._within(rows))
        return any(self.room(each) > 0 for each in pieces)

    def is_any_within(self, rows: Array) -> bool:
        """Whether any of the rows asks for no more than there is in all. The cheapest question of all."""
        return bool(len(self._within(rows)))

    def _within(self, rows: Array) -> Array:
        """Nobody else fits than these, whatever the nodes. `rows` are asked about again while nothing has changed."""
        request, free = self._book.table.request, self.free_in_all()
        if self._fitting[0] is rows and self._fitting[1] is free:
            return self._fitting[2]
        height = min(len(free), len(request))
        found: Array = rows[np.logical_and.reduce(request[:height].take(rows, axis=1) <= free[:height, None], axis=0)]
        self._fitting = (rows, free, found)
        return found

    def free_in_all(self) -> Array:
        """What is free on all nodes together, by resource."""
        nodes = self._state.nodes
        made_of = (self._book.room_version, nodes.version, len(nodes.free))
        if made_of != self._free_of:
            self._free, self._free_of = np.add.reduce(np.maximum(nodes.free, 0), axis=1), made_of
        return self._free

    def may_go(self, rows: Array, ranked: Ranked, now: float) -> Array:
        """Of sleeping rows, the next to be tried: there is room now, and no plan keeps it from them."""
        table = self._book.table
        plans = self.current(ranked, now)
        if len(self.lines()) == 1 and plans and plans[0].is_strict:
            # Nobody passes in the only line there is: all behind need not be looked at.
            rows = rows[table.place[rows] <= plans[0].head.place]
            if not len(rows):
                return rows
        rows = self._within(rows)
        if not len(rows):
            return rows
        rows = rows[table.place[rows].argsort(kind="stable")]
        pieces, of = self._pieces_of(rows)
        has_room = [self.room(each) > 0 for each in pieces]
        goes = np.array(has_room, np.bool_)[of]
        if plans and any(has_room):
            fitting = [each if fits else None for each, fits in zip(pieces, has_room, strict=True)]
            goes &= self._allowed(plans, rows, fitting, of, now)
        # The first in line, and those right behind it as far as there is room for all of them: whoever comes after that is
        # asked about again when these have been tried, as the plans are others then.
        first = int(goes.argmax())
        if not goes[first]:
            return rows[:0]
        stop = first + _true_ahead(goes[first:])
        free = self.free_in_all()
        height = min(len(free), len(table.request))
        together = table.request[:height].take(rows[first:stop], axis=1).cumsum(axis=1) <= free[:height, None]
        count = _true_ahead(np.logical_and.reduce(together, axis=0))
        chosen: Array = rows[first : first + max(count, 1)]
        return chosen

    def _pieces_of(self, rows: Array) -> tuple[list[Pieces], Array]:
        """What the rows are made of, each once, and which of them each row is: kinds of many queues are often made alike."""
        kinds = self._book.table.kind[rows].tolist()
        numbers: dict[Pieces, int] = {}
        number = {kind: numbers.setdefault(self._book.pieces[kind], len(numbers)) for kind in dict.fromkeys(kinds)}
        return list(numbers), np.array([number[kind] for kind in kinds], np.int64)

    def _allowed(self, plans: Sequence[Plan], rows: Array, pieces: Sequence[Pieces | None], of: Array, now: float) -> Mask:
        """Whom no plan keeps from going. `of`: which of the pieces each row is made of; None for those that do not fit."""
        table = self._book.table
        place, end = table.place[rows], now + run_times(table, rows)
        lines = self.lines()[table.queue[rows]]
        goes: Mask = np.ones(len(rows), np.bool_)
        for plan in plans:
            below = place > plan.head.place
            if plan.is_strict:
                goes &= ~(below & (lines == plan.head.line))
                continue
            ends = end <= plan.start
            beside = np.array([each is not None and self.room(each, plan) > 0 for each in pieces], np.bool_)
            goes &= ~below | ((ends | beside[of]) & (place - plan.head.place <= plan.head.depth))
        return goes


def _true_ahead(mask: Mask) -> int:
    """How many are true before the first that is not; the mask is not empty."""
    first = int(mask.argmin())
    return len(mask) if mask[first] else first
