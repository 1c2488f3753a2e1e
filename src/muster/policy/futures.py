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
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from muster.engine.columns import Array
from muster.objects.kinds.muster_queues import PolicyPreemption, SchedulingPolicySpec
from muster.objects.reasons import Reason
from muster.policy.arrivals import ARRIVALS_MAX, MEMBERS, Arrival, Arrivals, drawn, uniform
from muster.policy.expecting import expected_ends, run_times
from muster.policy.forward import Dues, Held, Lane, Runs, Scene, Waits, starts
from muster.policy.purses import Purses
from muster.policy.ranking import FIRST
from muster.policy.refusals import Refusal
from muster.policy.table import NOT_PINNED

if TYPE_CHECKING:
    from muster.policy.order import PolicyOrder

LINE_MAX: Final = 500
LANES_MAX: Final = 64
LANES_UNDER_LIMITS_MAX: Final = 128
"""Beyond so many, further work is played as if no limit held it."""
LENGTHS_S: Final = (60.0, 300.0, 1_200.0, 3_600.0, 14_400.0, 43_200.0, 172_800.0)
"""Where lengths matter, work between two of these counts as equally long."""
NODES_MAX: Final = 512
"""In a larger cluster only sums over all nodes are played."""
RESOURCES_MAX: Final = 3
EVENTS_MAX: Final = 2_000
UNKNOWN_S: Final = 3_600.0
"""The median of what nobody knows anything about; nine in ten end within ten times that."""
EPOCHS_S: Final = (900.0, 3_600.0, 14_400.0, 57_600.0, 230_400.0)
_FIRST_OF_ALL: Final = -1e300
_LEFT_OUT: Final = (Refusal.NO_QUEUE, Refusal.STOPPED, Refusal.LIMIT)
_ENDS_BY_ITSELF: Final = (Reason.USER_LIMIT_REACHED, Reason.GROUP_LIMIT_REACHED, Reason.QUEUE_LIMIT_REACHED)
"""Limits on what is in use at once: as work ends, there is room under them again. The others end when somebody or a new period
ends them."""


class _Stage(msgspec.Struct, frozen=True, kw_only=True):
    """`line` and `running` have what `Waits` and `Runs` need besides run times, in their order."""

    scene: Scene
    line: Sequence[tuple[float, int, float, float]]
    running: Sequence[tuple[Held, float, float, int, float, float]]
    lane_of: Callable[[Sequence[int], int, float], int]


class Futures:
    def __init__(self, order: PolicyOrder) -> None:
        self._order = order
        self.arrivals = Arrivals()
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
        self.arrivals.kept.append(arrival)
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
        table = self._order.book.table
        line = self.line() if instead is None else self._line_with(*instead)
        rows, running = line[:LINE_MAX], np.flatnonzero(table.is_running)
        purses = Purses(self._order.book)
        rows = rows[[purses.could_ever(purses.dues(row, table.request[:, row])) for row in rows.tolist()]]
        index = {row: at for at, row in enumerate(rows.tolist())}
        played = frozenset(index[row] for row in wanted if row in index)
        stage = self._stage(rows, running, now, purses)
        past = self.arrivals.past(stage.lane_of, len(line), by_score=bool(stage.scene.later))
        wait_s, run_s = self._lengths(rows), self._lengths(running)
        kept = table.attained_s[rows]
        served = table.attained_s[running] + np.maximum(now - table.started[running], 0.0)
        found: dict[int, list[float]] = {row: [] for row in wanted}
        for member in range(MEMBERS):
            left = drawn(*run_s, uniform(running, member, 1), served) - served
            lengths = drawn(*wait_s, uniform(rows, member, 2), kept) - kept
            begun = starts(
                stage.scene,
                [Runs(end, *one) for end, one in zip(np.maximum(left, 1.0).tolist(), stage.running, strict=True)],
                [
                    Waits(key, lane, run, 0.0, *rest)
                    for run, (key, lane, *rest) in zip(lengths.tolist(), stage.line, strict=True)
                ],
                past.coming(now, member),
                played,
            )
            for row in wanted:
                at = index.get(row)
                found[row].append(begun.get(at, math.inf) if at is not None else math.inf)
        return {row: np.array(times) for row, times in found.items()}

    def _stage(self, rows: Array, running: Array, now: float, purses: Purses) -> _Stage:
        """What all members have in common."""
        order, table = self._order, self._order.book.table
        resources, total = self._resources(rows, running)
        free = np.maximum(order.state.nodes.free[resources], 0).astype(np.float64).T
        by_node = len(free) <= NODES_MAX
        rules = self._rules(rows)
        lanes = _Lanes(total, by_node, by_length=rules.backfill.mode in ("EASY", "Conservative"))
        chosen = resources.tolist()

        def lane_of(request: Sequence[int], pods: int, said_s: float) -> int:
            return lanes.of([request[at] if at < len(request) else 0 for at in chosen], pods, said_s)

        wait_s = run_times(table, rows).tolist()
        line_lanes, held_lanes = (
            [
                lanes.of(request, pods, said_s, purses.dues(row, amounts[:, row]))
                for row, request, pods, said_s in zip(
                    of.tolist(), table.request[resources][:, of].T.tolist(), table.pods[of].tolist(), said, strict=True
                )
            ]
            for of, said, amounts in (
                (rows, wait_s, table.request),
                (running, run_times(table, running).tolist(), table.used),
            )
        )
        keys, later = self._keys(rows, now)
        yields, again = self._yielding(running, rules.preemption, now, is_scored=later is not None)
        line_yields, _ = self._yielding(rows, rules.preemption, now, is_scored=later is not None)
        since = np.minimum(table.started[running] - now, 0.0).tolist()
        said = expected_ends(table, running, now)[0] - now
        held = [self._held(row, resources, by_node) for row in running.tolist()]
        scene = Scene(
            free=(free if by_node else free.sum(axis=0, keepdims=True)).tolist(),
            lanes=lanes.lanes,
            mode=rules.backfill.mode,
            later=later or (),
            restart_s=float(rules.preemption.restart_cost_seconds),
            events_max=EVENTS_MAX,
            purses=purses.left,
        )
        return _Stage(
            scene=scene,
            line=list(zip(keys, line_lanes, line_yields, wait_s, strict=True)),
            running=list(zip(held, yields, again, held_lanes, since, said.tolist(), strict=True)),
            lane_of=lane_of,
        )

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
            score = order.ranker.scored(line, now + ahead, order.views.of)[0]
            made.append(np.where(is_first, first, -np.nan_to_num(score, nan=-1e299)).tolist())
        return made[0], list(zip(EPOCHS_S, made[1:], strict=True))

    def _line_with(self, row: int, place: int, without: str) -> Array:
        table, line = self._order.book.table, self.line()
        at = int((table.place[line] - FIRST < place).sum())
        line = np.insert(line, at, row)
        kept: Array = line[line != table.row_of.get(without, -1)]
        return kept

    def line(self) -> Array:
        """Those that wait and may be tried, or may be once work of theirs ends, in order."""
        table, rows = self._order.book.table, self._order.ranked_now.rows
        refusal = table.refusal[rows]
        may = table.is_waiting[rows] & ~table.is_held[rows]
        for at in np.flatnonzero(may & np.isin(refusal, [int(one) for one in _LEFT_OUT])).tolist():
            said = self._order.refused(table.ids[rows[at]])
            may[at] = said is not None and said.reason in _ENDS_BY_ITSELF
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

    def _rules(self, line: Array) -> SchedulingPolicySpec:
        """The policy of most of the line."""
        order, table = self._order, self._order.book.table
        numbers = table.queue[line]
        number = int(np.bincount(numbers[numbers >= 0]).argmax()) if (numbers >= 0).any() else -1
        return order.policy_of(table.queues.names[number])[1].spec if number >= 0 else SchedulingPolicySpec()

    def _yielding(
        self, rows: Array, rules: PolicyPreemption, now: float, *, is_scored: bool
    ) -> tuple[list[float], list[float]]:
        """Of work that runs or may: for which keys it makes way, and its own key when it waits again. Nobody makes way where
        scores do not compare."""
        table = self._order.book.table
        own = np.zeros(len(rows))
        if not rules.enabled or not is_scored or not table.is_preemptible[rows].any():
            return [-math.inf] * len(rows), own.tolist()
        able = table.is_preemptible[rows] & (table.pin[rows] == NOT_PINNED) & (table.preemptions[rows] < rules.per_job_max)
        own = -np.nan_to_num(self._order.ranker.scored(rows, now, self._order.views.of)[0], nan=-1e299)
        # A hair less than its own, so that equals never stop each other.
        bar = own - np.abs(own) * (rules.gain_percent_min / 100.0 + 1e-9) - 1e-9
        return np.where(able, bar, -np.inf).tolist(), own.tolist()

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> list[list[Any]]:
        return self.arrivals.checkpoint()

    def restore(self, kept: Sequence[Sequence[Any]]) -> None:
        self._new.clear()
        self.arrivals.restore(kept)


class _Lanes:
    """Different requests, numbered. When there are too many, they are rounded up, ever more coarsely."""

    def __init__(self, total: Array, by_node: bool, *, by_length: bool) -> None:
        self.lanes: list[Lane] = []
        self._numbers: dict[Lane, int] = {}
        self._total, self._by_node, self._by_length = [max(float(one), 1.0) for one in total], by_node, by_length

    def of(self, request: Sequence[int], pods: int, said_s: float, dues: Dues = ()) -> int:
        """The lane of a unit that asks for `request` in all; its pods are taken to be alike."""
        count = max(pods, 1) if self._by_node else 1
        length = bisect_left(LENGTHS_S, said_s) if self._by_length else 0
        lane = Lane(tuple(float(one) / count for one in request), count, length, dues)
        number = self._numbers.get(lane)
        if number is None and len(self.lanes) >= (LANES_UNDER_LIMITS_MAX if dues else LANES_MAX):
            lane = Lane(tuple(_power(one, whole) for one, whole in zip(lane.piece, self._total, strict=True)), count, length)
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
