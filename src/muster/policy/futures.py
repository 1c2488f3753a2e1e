"""Possible futures of the queue, as the order's books have it now: an ensemble of when waiting units would start.

Each of MEMBERS futures draws run times from what is predicted (log-logistic, through the median and the high quantile; of what
runs already, given that it has run so long), and lets new work come as it came on one of the last days, at that time of day.
Draws are a fixed function of the member and the unit: equal books give equal futures.

What comes later may go before what waits now, or behind it. In one queue that is for the scores to say: those of the line, now
and at some later instants (EPOCHS_S), against those that recent arrivals had when they came. Where several queues share the
line, scores of different policies do not compare; then it is where arrivals stood in the line when they came.

Pure. It reads the books between two steps of the engine; it keeps the last ARRIVALS_MAX arrivals. At most LINE_MAX units of the
line are played, the first ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from muster.engine.columns import Array
from muster.policy.forward import Held, Lane, Mode, Scene, Waits, starts
from muster.policy.gate import Refusal
from muster.policy.ranking import FIRST
from muster.policy.table import NOT_PINNED

if TYPE_CHECKING:
    from muster.policy.order import PolicyOrder

MEMBERS: Final = 8
LINE_MAX: Final = 500
ARRIVALS_MAX: Final = 4_096
LANES_MAX: Final = 32
NODES_MAX: Final = 64
"""In a larger cluster only sums over all nodes are played."""
RESOURCES_MAX: Final = 3
DAYS_MAX: Final = 7
DAY_S: Final = 86_400.0
WINDOW_S_MIN: Final = 3_600.0
EVENTS_MAX: Final = 2_000
RUN_S_MAX: Final = 30 * DAY_S
UNKNOWN_S: Final = 3_600.0
"""The median of what nobody knows anything about; nine in ten end within ten times that."""
EPOCHS_S: Final = (900.0, 3_600.0, 14_400.0, 57_600.0, 230_400.0)
_NINE: Final = math.log(9.0)
_FIRST_OF_ALL: Final = -1e300
_LEFT_OUT: Final = (Refusal.NO_QUEUE, Refusal.STOPPED, Refusal.LIMIT)


class Arrival:
    """Work that came: when, asking for what, how long it was expected to run, and how it stood: its score, and its place in the
    line (0 to 1); NaN where that is not known."""

    __slots__ = ("at", "high_s", "median_s", "pods", "request", "score", "standing")

    def __init__(self, at: float, request: tuple[int, ...], pods: int, median_s: float, high_s: float) -> None:
        self.at, self.request, self.pods, self.median_s, self.high_s = at, request, pods, median_s, high_s
        self.standing = self.score = math.nan


class Futures:
    def __init__(self, order: PolicyOrder) -> None:
        self._order = order
        self.arrivals: deque[Arrival] = deque(maxlen=ARRIVALS_MAX)
        self._new: dict[str, Arrival] = {}
        """Those whose standing is not known yet."""

    # -- following -------------------------------------------------------------------------------------------------------------

    def joined(self, row: int) -> None:
        table, state = self._order.book.table, self._order.state
        if table.attained_s[row] > 0 or table.preemptions[row] > 0:
            return  # it has come before
        median_s, high_s = self._lengths(np.array([row]))
        request = tuple(table.request[:, row].tolist())
        arrival = Arrival(state.now, request, int(table.pods[row]), float(median_s[0]), float(high_s[0]))
        self.arrivals.append(arrival)
        if len(self._new) < ARRIVALS_MAX:
            self._new[table.ids[row]] = arrival

    def note_standing(self, unit_id: str) -> None:
        """It has a place in the line now, or had one just before it started."""
        arrival = self._new.pop(unit_id, None)
        row = self._order.book.table.row_of.get(unit_id)
        if arrival is not None and row is not None:
            count, place = len(self._order.ranked_now.rows), int(self._order.book.table.place[row]) - FIRST
            arrival.score = float(self._order.book.table.score[row])
            if count > 1 and 0 <= place < count:
                arrival.standing = place / (count - 1)

    # -- playing ---------------------------------------------------------------------------------------------------------------

    def play(self, wanted: Sequence[int], now: float, instead: tuple[int, int, str] | None = None) -> dict[int, Array]:
        """By row of waiting units: seconds until each starts, one for each member; inf where a future ends before. `instead`: a
        row that does not wait, the place before which it would, and the unit that would not be there then."""
        for unit_id in list(self._new):
            self.note_standing(unit_id)
        order, table = self._order, self._order.book.table
        line = self.line() if instead is None else self._line_with(*instead)
        line_rows = line[:LINE_MAX]
        index = {row: at for at, row in enumerate(line_rows.tolist())}
        played = frozenset(index[row] for row in wanted if row in index)
        running = np.flatnonzero(table.is_running)
        resources, total = self._resources(line_rows, running)
        free = np.maximum(order.state.nodes.free[resources], 0).astype(np.float64).T
        by_node = len(free) <= NODES_MAX
        free = free if by_node else free.sum(axis=0, keepdims=True)
        lanes = _Lanes(total, by_node)
        asked = zip(table.request[resources][:, line_rows].T.tolist(), table.pods[line_rows].tolist(), strict=True)
        line_lanes = [lanes.of(one, pods) for one, pods in asked]
        chosen = resources.tolist()
        arrivals = [
            (one, lanes.of([one.request[at] if at < len(one.request) else 0 for at in chosen], one.pods))
            for one in self.arrivals
        ]
        held = [self._held(row, resources, by_node) for row in running.tolist()]
        wait_s, run_s = self._lengths(line_rows), self._lengths(running)
        served = table.attained_s[running] + np.maximum(now - table.started[running], 0.0)
        keys, later = self._keys(line_rows, now)
        coming_keys = self._coming_keys(len(line), later is not None)
        scene = Scene(
            free=free.tolist(), lanes=lanes.lanes, mode=self._mode(line_rows), later=later or (), events_max=EVENTS_MAX
        )
        found: dict[int, list[float]] = {row: [] for row in wanted}
        for member in range(MEMBERS):
            left = drawn(*run_s, _uniform(running, member, 1), served) - served
            lengths = drawn(*wait_s, _uniform(line_rows, member, 2), table.attained_s[line_rows]) - table.attained_s[line_rows]
            ends = list(zip(np.maximum(left, 1.0).tolist(), held, strict=True))
            waits = [Waits(*one) for one in zip(keys, line_lanes, lengths.tolist(), strict=True)]
            begun = starts(scene, ends, waits, _coming(arrivals, coming_keys, now, member), played)
            for row in wanted:
                at = index.get(row)
                found[row].append(begun.get(at, math.inf) if at is not None else math.inf)
        return {row: np.array(times) for row, times in found.items()}

    def _held(self, row: int, resources: Array, by_node: bool) -> Held:
        """What a running unit holds, and where."""
        table = self._order.book.table
        if not by_node:
            return [(0, tuple(table.used[resources, row].astype(np.float64).tolist()))]
        found = []
        for slot, request in self._order.book.placed_pods(table.ids[row]):
            height = len(request)
            found.append((slot, tuple(float(request[at]) if at < height else 0.0 for at in resources.tolist())))
        return found

    def _keys(self, line: Array, now: float) -> tuple[list[float], list[tuple[float, list[float]]] | None]:
        """Of the line, now and later; no later ones where scores do not compare, and places stand for them."""
        order, table = self._order, self._order.book.table
        queues = table.queue[line]
        if not len(line) or (queues != queues[0]).any():
            return [float(at) for at in range(len(line))], None
        # Who is pinned or starves goes before all others, whatever the scores are.
        is_first = (table.pin[line] != NOT_PINNED) | (table.place[line] < FIRST + order.ranked_now.starving)
        first = _FIRST_OF_ALL * (1.0 - np.arange(len(line)) / (2.0 * len(line)))
        made = []
        for ahead in (0.0, *EPOCHS_S):
            score = order.ranker.scored(line, now + ahead, order.view_of)[0]
            made.append(np.where(is_first, first, -np.nan_to_num(score, nan=-1e299)).tolist())
        return made[0], list(zip(EPOCHS_S, made[1:], strict=True))

    def _coming_keys(self, count: int, by_score: bool) -> list[float]:
        """One for each arrival."""
        known = [one.score if by_score else one.standing for one in self.arrivals]
        usual = [one for one in known if not math.isnan(one)]
        middle = float(np.median(usual)) if usual else (-1e299 if by_score else 1.0)
        filled = [middle if math.isnan(one) else one for one in known]
        return [-one for one in filled] if by_score else [one * count - 0.5 for one in filled]

    def _line_with(self, row: int, place: int, without: str) -> Array:
        table, line = self._order.book.table, self.line()
        at = int((table.place[line] - FIRST < place).sum())
        line = np.insert(line, at, row)
        kept: Array = line[line != table.row_of.get(without, -1)]
        return kept

    def line(self) -> Array:
        """Those that wait and may be tried, in order."""
        table, rows = self._order.book.table, self._order.ranked_now.rows
        refusal = table.refusal[rows]
        may = table.is_waiting[rows] & ~table.is_held[rows] & ~np.isin(refusal, [int(one) for one in _LEFT_OUT])
        kept: Array = rows[may]
        return kept

    def _resources(self, line: Array, running: Array) -> tuple[Array, Array]:
        """The resources that work waits for: those of which the largest parts are asked for."""
        table, nodes = self._order.book.table, self._order.state.nodes
        total = nodes.capacity.sum(axis=1).astype(np.float64)
        height = min(len(total), len(table.request))
        asked = table.request[:height, line].sum(axis=1) + table.used[:height, running].sum(axis=1)
        share = np.where(total[:height] > 0, asked / np.maximum(total[:height], 1.0), 0.0)
        rows = np.argsort(-share, kind="stable")[:RESOURCES_MAX]
        rows = np.sort(rows[(share[rows] > 0.02) | (rows == rows[:1])])
        return rows, total[rows]

    def _lengths(self, rows: Array) -> tuple[Array, Array]:
        table = self._order.book.table
        median, high = table.predicted_s[rows], table.predicted_high_s[rows]
        said = table.estimate_s[rows]
        median = np.where(np.isnan(median), np.where(np.isnan(said), UNKNOWN_S, said / 2.0), median)
        high = np.where(np.isnan(high), np.where(np.isnan(said), 10.0 * UNKNOWN_S, said), high)
        return np.maximum(median, 1.0), np.maximum(high, 1.05 * np.maximum(median, 1.0))

    def _mode(self, line: Array) -> Mode:
        """The backfilling of most of the line."""
        order, table = self._order, self._order.book.table
        if not len(line):
            return "None"
        numbers = table.queue[line]
        number = int(np.bincount(numbers[numbers >= 0]).argmax()) if (numbers >= 0).any() else -1
        if number < 0:
            return "None"
        return order.policy_of(table.queues.names[number])[1].spec.backfill.mode

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> list[list[Any]]:
        return [
            [one.at, list(one.request), one.pods, one.median_s, one.high_s, _plain(one.standing), _plain(one.score)]
            for one in self.arrivals
        ]

    def restore(self, kept: Sequence[Sequence[Any]]) -> None:
        self._new.clear()
        self.arrivals.clear()
        for at, request, pods, median_s, high_s, standing, score in kept:
            arrival = Arrival(float(at), tuple(int(one) for one in request), int(pods), float(median_s), float(high_s))
            arrival.standing = math.nan if standing is None else float(standing)
            arrival.score = math.nan if score is None else float(score)
            self.arrivals.append(arrival)


class _Lanes:
    """Different requests, numbered. When there are too many, they are rounded up, ever more coarsely."""

    def __init__(self, total: Array, by_node: bool) -> None:
        self.lanes: list[Lane] = []
        self._numbers: dict[Lane, int] = {}
        self._total, self._by_node = [max(float(one), 1.0) for one in total], by_node

    def of(self, request: Sequence[int], pods: int) -> int:
        """The lane of a unit that asks for `request` in all; its pods are taken to be alike."""
        count = max(pods, 1) if self._by_node else 1
        lane = Lane(tuple(float(one) / count for one in request), count)
        number = self._numbers.get(lane)
        if number is None and len(self.lanes) >= LANES_MAX:
            lane = Lane(tuple(_power(one, whole) for one, whole in zip(lane.piece, self._total, strict=True)), count)
            number = self._numbers.get(lane)
        if number is None:
            number = self._numbers[lane] = len(self.lanes)
            self.lanes.append(lane)
        return number


def _power(amount: float, whole: float) -> float:
    """The next larger power of two of a thousandth of the whole, at most the whole."""
    if amount <= 0:
        return 0.0
    return float(min(whole / 1024 * 2.0 ** max(math.ceil(math.log2(amount * 1024 / whole)), 0), max(whole, amount)))


def drawn(median: Array, high: Array, uniform: Array, served: Array) -> Array:
    """Run times in all, given that so much was served already."""
    width = np.log(high / median) / _NINE
    # The odds that it would have ended by now; as logarithms, as they may be astronomical.
    odds = np.clip(np.log(np.maximum(served, 1e-9) / median) / width, -60.0, 60.0)
    before = 1.0 / (1.0 + np.exp(-odds))
    level = np.clip(before + (1.0 - before) * uniform, 1e-6, 1.0 - 1e-6)
    times: Array = np.minimum(median * np.power(level / (1.0 - level), width), RUN_S_MAX)
    return np.maximum(times, served + 1.0)


def _uniform(rows: Array, member: int, stream: int) -> Array:
    """Numbers between 0 and 1 that look like chance and are none: a mix of the bits of row, member and stream."""
    mixed = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
        (member * 7 + stream) * 0xD1B54A32D192ED03 % 2**64
    )
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    uniform: Array = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
    return uniform


def _plain(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _coming(arrivals: Sequence[tuple[Arrival, int]], keys: Sequence[float], now: float, member: int) -> Iterator[Waits]:
    """What will come, as it came before: on another day, at this time of day; in the first day, as in the time until now."""
    span = now - arrivals[0][0].at if arrivals else 0.0
    if span < WINDOW_S_MIN:
        return
    if span >= DAY_S:
        period = DAY_S * (1 + member % min(int(span / DAY_S), DAYS_MAX))
        begin = now - period
    else:
        period, begin = span, now - span * (1.0 - (member * 5 % MEMBERS) / MEMBERS)
    kept = [(one, lane, key) for (one, lane), key in zip(arrivals, keys, strict=True) if one.at > now - period]
    phase = np.mod(np.array([one.at for one, _, _ in kept]) - begin, period)
    numbers = np.arange(len(kept))
    lengths = drawn(
        np.array([one.median_s for one, _, _ in kept]),
        np.array([one.high_s for one, _, _ in kept]),
        _uniform(numbers, member, 3),
        np.zeros(len(kept)),
    )
    turns = np.argsort(phase, kind="stable").tolist()
    shift = 0.0
    while kept:
        for at in turns:
            _, lane, key = kept[at]
            yield Waits(key, lane, float(lengths[at]), float(phase[at]) + shift)
        shift += period
