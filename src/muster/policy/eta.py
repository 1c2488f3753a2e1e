"""When waiting work will start: an interval with a confidence that is measured, for units in the line and for work that is not
there yet.

The middle and the spread of a forecast come from playing the queue forward (`futures`), the width from how earlier forecasts
came out (`calibration`). The first forecast of a unit, soon after it came, and those that are made of it later, are calibrated
apart: what has waited long already is another kind of wait. Later ones are followed again whenever it has waited twice as long.

Nothing is worked out in a step of the engine. Somebody asks (`of`, `asked`), at most every REFRESH_S for the same line; between
two questions answers are the ones that were found last. So forecasts never decide anything, and cost nothing where nobody
looks. Work that is held, or turned away by a stopped queue, a spent budget or used-up consumption, has none: when that ends is
not ours to know. Limits on what is in use at once are played.

Pure, single-threaded, between two steps of the engine. Bounded: BATCH units of the line are forecast at a time, and a few more
when they are asked about; OPEN_MAX outcomes are awaited.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from muster.engine.columns import Array
from muster.engine.work import Work
from muster.policy.calibration import CONFIDENCE, KEPT_MIN, Calibration, log_wait, longer, wait_of
from muster.policy.futures import LINE_MAX, Futures
from muster.policy.quantiles import plain
from muster.policy.ranking import FIRST
from muster.policy.table import Row

if TYPE_CHECKING:
    from muster.policy.order import PolicyOrder

REFRESH_S: Final = 5.0
BATCH: Final = 200
MORE_MAX: Final = 3
"""Of those further back so many are played between two refreshes, for people who ask; others are told by their place."""
OPEN_MAX: Final = 5_000
FRESH_S: Final = 60.0
"""A forecast made so soon after the unit came is one of its first."""
SPREAD_MIN: Final = 0.3
SPREAD_POWER: Final = 0.25
ASKED: Final = "(asked)"
_HORIZON_S: Final = 30 * 86_400.0


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Instants. `confidence` is the part of such intervals that is to hold; `grounds` says what it rests on. While too few
    starts were seen to promise anything there is no interval, and the confidence is 0."""

    likely: float
    earliest: float | None = None
    latest: float | None = None
    confidence: float = 0.0
    grounds: str = ""


class _Open:
    """A forecast whose outcome is awaited. `first` and `last` are NaN where no interval was told."""

    __slots__ = ("at", "calibration", "first", "is_counted", "last", "middle", "number", "size", "spread", "unit")

    def __init__(self, unit: str, at: float, calibration: int, seen: tuple[float, float, float]) -> None:
        self.unit, self.at, self.calibration = unit, at, calibration
        self.middle, self.spread, self.size = (round(one, 6) for one in seen)
        self.first = self.last = math.nan
        self.is_counted = False
        self.number = -1

    def distance(self, now: float) -> float:
        return (log_wait(now - self.at) - self.middle) / self.spread


class Forecaster:
    def __init__(self, order: PolicyOrder) -> None:
        self._order = order
        self.futures = Futures(order)
        self.calibrations = (Calibration(), Calibration())
        """Of first forecasts, and of later ones."""
        self._open: dict[str, _Open] = {}
        self._late: list[tuple[float, str, float]] = []
        """When each open forecast turns out too early, if nothing happens: instant, unit, when it was made."""
        self._told: dict[str, Start] = {}
        self._told_of: tuple[int, float] = (-1, -math.inf)
        self._more_left = MORE_MAX

    # -- following -------------------------------------------------------------------------------------------------------------

    def joined(self, row: int) -> None:
        self.futures.joined(row)

    def leaves(self, unit_id: str) -> None:
        """It is about to leave the line."""
        self.futures.note_standing(unit_id)

    def left(self, unit_id: str, now: float, *, has_started: bool) -> None:
        self._told.pop(unit_id, None)
        self._settle_late(now)
        one = self._open.pop(unit_id, None)
        if one is not None and has_started:
            self._came(one, now)

    def _came(self, one: _Open, now: float) -> None:
        calibration, distance = self.calibrations[one.calibration], round(one.distance(now), 6)
        if one.is_counted:
            calibration.correct(one.number, one.middle, max(distance, longer(one.distance(one.at + wait_of(one.last)))))
            return
        calibration.add(one.middle, distance, one.size)
        if not math.isnan(one.last):
            # The promise is in whole instants: what is told is where it is measured.
            calibration.count(has_held=one.first - 1e-9 <= log_wait(now - one.at) <= one.last + 1e-9)

    def _settle_late(self, now: float) -> None:
        """Intervals that can't hold any more count now, not when the wait is over."""
        while self._late and self._late[0][0] < now:
            instant, unit_id, made = heapq.heappop(self._late)
            one = self._open.get(unit_id)
            if one is None or one.at != made or one.is_counted:
                continue
            calibration = self.calibrations[one.calibration]
            calibration.count(has_held=False)
            one.is_counted = True
            one.number = calibration.add(one.middle, round(longer(one.distance(instant)), 6), one.size)

    # -- answering -------------------------------------------------------------------------------------------------------------

    def of(self, unit_id: str, now: float) -> Start | None:
        """Of a waiting unit; None where nothing can be said."""
        row = self._order.book.table.row_of.get(unit_id)
        if row is None or not self._order.book.table.is_waiting[row]:
            return None
        self._refresh(now)
        if unit_id not in self._told and self._more_left:
            self._more_left -= 1
            self.forecast([unit_id], now)
        return self._told.get(unit_id) or self._coarse(row, now)

    def _coarse(self, row: int, now: float) -> Start | None:
        """Of a unit so far back that it was not played: as long as the last that was, and in proportion to its place."""
        line = self.futures.line()
        at = np.flatnonzero(line == row)
        last = self._told.get(self._order.book.table.ids[int(line[min(BATCH, len(line)) - 1])]) if len(line) else None
        if not len(at) or last is None:
            return None
        likely = now + max(last.likely - now, 0.0) * (int(at[0]) + 1) / min(BATCH, len(line))
        return Start(likely=likely, grounds=f"only the first {BATCH} of the line are played; by its place")

    def _refresh(self, now: float) -> None:
        """Forecast the first of the line, if that is due."""
        ranked = self._order.ranked_now
        number, since = self._told_of
        # A long line takes longer to play, and changes less.
        due_s = REFRESH_S * (1.0 + len(ranked.rows) / BATCH)
        if now - since < due_s or (number == ranked.number and now - since < 4 * due_s):
            return
        self._told_of = (ranked.number, now)
        self._told, self._more_left = {}, MORE_MAX
        ids = self._order.book.table.ids
        self.forecast([ids[row] for row in self.futures.line()[:BATCH].tolist()], now)

    def forecast(self, unit_ids: Sequence[str], now: float) -> Mapping[str, Start]:
        """Of these units, anew; those that do not stand in the line are left out."""
        self._settle_late(now)
        table = self._order.book.table
        line = set(self.futures.line()[:LINE_MAX].tolist())
        rows = [row for one in unit_ids if (row := table.row_of.get(one, -1)) in line]
        for row, times in self.futures.play(rows, now).items():
            unit_id = table.ids[row]
            if not np.isfinite(times).any():
                continue  # more than its limits ever allow
            middle, spread = summary(times)
            which = int(now - table.submitted[row] > FRESH_S)
            size = _size(float(table.dominant[row]))
            span = self.calibrations[which].interval(middle, spread, size)
            self._follow(_Open(unit_id, now, which, (middle, spread, size)), span)
            self._told[unit_id] = self._start(middle, span, now, which)
        return {table.ids[row]: self._told[table.ids[row]] for row in rows if table.ids[row] in self._told}

    def _follow(self, one: _Open, span: tuple[float, float] | None) -> None:
        """Await the outcome, of the first forecast and, once that has failed, whenever it has waited twice as long."""
        before = self._open.get(one.unit)
        if before is not None:
            came = float(self._order.book.table.submitted[self._order.book.table.row_of[one.unit]])
            if not before.is_counted or one.at - came < 2.0 * max(before.at - came, FRESH_S):
                return
        elif len(self._open) >= OPEN_MAX:
            return
        self._open[one.unit] = one
        if span is not None:
            one.first, one.last = span
            heapq.heappush(self._late, (one.at + wait_of(span[1]), one.unit, one.at))

    def _start(self, middle: float, span: tuple[float, float] | None, now: float, which: int) -> Start:
        calibration = self.calibrations[which]
        likely = now + wait_of(middle)
        if span is None:
            return Start(likely=likely, grounds=f"not measured yet: {calibration.kept} of {KEPT_MIN} starts seen")
        told, held = calibration.told, calibration.held
        return Start(
            likely=min(max(likely, now + wait_of(span[0])), now + wait_of(span[1])),
            earliest=now + wait_of(span[0]),
            latest=now + wait_of(span[1]),
            confidence=CONFIDENCE,
            grounds="the line played forward" + (f"; {held} of {told} such intervals held so far" if told else ""),
        )

    def asked(self, work: Work, request: Mapping[str, int], now: float, instead_of: str = "") -> Start | None:
        """Of work that is not there, if it came now: all its pods together ask for `request`. `instead_of` names a unit that
        would not be there then."""
        book, table, state = self._order.book, self._order.book.table, self._order.state
        if ASKED in table.row_of:
            return None
        wanted: Array = np.zeros(len(state.table), np.int64)
        for name, amount in request.items():
            row = state.table.rows.get(name)
            if row is None:
                return None  # nobody has any
            wanted[row] = amount
        queue = work.queue or book.tree.default
        if not queue:
            return None
        group = book.people.group_of(work.user, work.group)
        filling = Row(
            request=wanted,
            queue=queue,
            user=work.user,
            group=group,
            user_level=book.people.user_level(work.user),
            group_level=book.people.group_level(group),
        )
        # For the question it has a row as all others have, and none after it.
        at = table.put(ASKED, work, filling)
        try:
            self._order.learning.foretell(at)
            times = self.futures.play([at], now, instead=(at, self._place_of(at, now), instead_of))[at]
            size = _size(float(table.dominant[at]))
        finally:
            table.drop(ASKED)
        if not np.isfinite(times).any():
            return None  # too far back in the line
        middle, spread = summary(times)
        return self._start(middle, self.calibrations[0].interval(middle, spread, size), now, 0)

    def _place_of(self, row: int, now: float) -> int:
        """Before which place of the line it would stand: behind all of its queue that score as much as it does."""
        order, table = self._order, self._order.book.table
        rows = order.ranked_now.rows
        mine = rows[(table.queue[rows] == table.queue[row]) & table.is_waiting[rows]]
        if not len(mine):
            return len(rows)
        score = float(order.ranker.scored(np.array([row]), now, order.views.of)[0][0])
        behind = mine[~(table.score[mine] >= score)] if not math.isnan(score) else mine[:0]
        return int(table.place[behind].min()) - FIRST if len(behind) else len(rows)

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, Any]:
        return {
            "arrivals": self.futures.checkpoint(),
            "calibrations": [one.checkpoint() for one in self.calibrations],
            "open": [
                [one.unit, one.at, one.calibration, one.middle, one.spread, one.size, plain(one.first), plain(one.last)]
                for one in self._open.values()
                if not one.is_counted
            ],
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.futures.restore(kept["arrivals"])
        for one, was in zip(self.calibrations, kept["calibrations"], strict=True):
            one.restore(was)
        self._open, self._late, self._told, self._told_of = {}, [], {}, (-1, -math.inf)
        for unit, at, which, *seen, first, last in kept["open"][:OPEN_MAX]:
            middle, spread, size = (float(one) for one in seen)
            again = self._open[str(unit)] = _Open(str(unit), float(at), int(which), (middle, spread, size))
            if last is not None:
                again.first, again.last = (-math.inf if first is None else float(first)), float(last)
                heapq.heappush(self._late, (again.at + wait_of(again.last), again.unit, again.at))


def summary(times: Array) -> tuple[float, float]:
    """The middle of an ensemble of waits, and its spread, as logarithms. The fourth root of the spread: what futures differ by
    says far less than it seems, as all of them leave out the same things."""
    logs = np.array([log_wait(float(one)) for one in np.minimum(times, _HORIZON_S)])
    low, middle, high = np.quantile(logs, [0.16, 0.5, 0.84]).tolist()
    return float(middle), max((high - low) / 2.0, SPREAD_MIN) ** SPREAD_POWER


def _size(share: float) -> float:
    """Of the cluster, in doublings."""
    return math.log2(max(share, 1e-6))
