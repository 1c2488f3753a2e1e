"""Preemption by policy: blocked work at the front of its line may have running work make way that the policy holds for worse.

Only work that is marked preemptible makes way, as a whole, not more often than the policy allows, not before it has run for as
long as a restart costs, and not if it would stand first again at once (starving or pinned). Who evicts must score better, by
the policy of its own queue, than the victim does both as it runs and as it would wait once it was stopped; by `gainPercentMin`
of the victim's score; and also after the costs of the stop (a restart, and the work since the last checkpoint) are added to its
own run time and service. Work of another queue makes way only if its queue is of no higher level, and, of an equal level, has
no less of its share than the evictor's queue would have.

Why there is no loop: at one moment, "scores better as waiting work" is a strict order, and every eviction goes down in it: the
victim's score as waiting work was part of the comparison. So a victim can't evict its evictor, nor can a chain of evictions
come back to where it began, unless the time or other work has changed the scores by the gain; and then only after the victim's
successor has run for as long as a restart costs, and at most `perJobMax` times for each.

Pure; nothing is kept but what was worked out for the moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from muster.engine.blocks import PodBlock
from muster.engine.columns import Array, Mask, nonzero
from muster.engine.making_room import make_room
from muster.engine.plugin import Nomination, PostFilterHelper
from muster.engine.pods import PodRecord
from muster.engine.units import Unit
from muster.engine.victims import Ask, free_ahead, select
from muster.objects.kinds.muster_queues import PolicyPreemption
from muster.objects.reasons import Reason, Verdict
from muster.policy.expecting import kept_service
from muster.policy.queues import common
from muster.policy.ranking import Ranked, Ranker, ViewOf
from muster.policy.refusals import REFUSED_BY_PLAN
from muster.policy.starvation import bounds_of
from muster.policy.table import NAN, NOT_PINNED, Table, View

if TYPE_CHECKING:
    from muster.policy.book import Book
    from muster.policy.plans import Plans
    from muster.policy.policies import Policy

EVICTORS_MAX: Final = 4
"""So many of the first in line that do not fit are looked at, whether they could have others make way."""
_NOBODY: Final[Array] = np.zeros(0, np.int64)
_NO_BARS: Final[Array] = np.zeros(0)


class Scores:
    """Running work that could make way, by one policy at one moment. `bar` is what an evictor's score is held against; it and
    `costs_s` are worked out when somebody beats what `running` alone says, which is rare."""

    def __init__(self, rows: Array, running: Array, rest: Callable[[], tuple[Array, Array]]) -> None:
        self.rows, self.running, self._rest = rows, running, rest
        self._both: tuple[Array, Array] | None = None
        # The least of all numbers among them; infinite where there is none.
        self._lowest = float(np.fmin.reduce(running, initial=math.inf))

    def _worked_out(self) -> tuple[Array, Array]:
        if self._both is None:
            waiting, costs_s = self._rest()
            self._both = (np.maximum(self.running, waiting), costs_s)
        return self._both

    @property
    def bar(self) -> Array:
        return self._worked_out()[0]

    @property
    def costs_s(self) -> Array:
        return self._worked_out()[1]

    def may_beat(self, score: float, gain_percent: float) -> bool:
        """False when nobody is beaten by it, as the bar is at least `running`. A gain of more than the whole says nothing about
        higher bars below zero, so it is left out."""
        if self._lowest == -math.inf:
            return True
        gain = gain_percent / 100.0 if gain_percent <= 100.0 else 0.0
        # What beats anybody beats the lowest; a hair less is asked for than `is_better` will.
        return score > self._lowest and score - self._lowest >= abs(self._lowest) * gain * (1.0 - 1e-9)


def candidates(table: Table, rules: PolicyPreemption, bounds: Array, now: float) -> Array:
    """Running rows that may be stopped at all."""
    rows = nonzero(table.is_running & table.is_preemptible & ~table.is_waiting & (table.queue >= 0))
    ran_s = now - table.started[rows]
    # What started this very moment stays for it, or one moment could see it come and go again and again.
    has_run = ran_s >= rules.restart_cost_seconds if rules.restart_cost_seconds > 0 else ran_s > 0.0
    has_run &= table.preemptions[rows] < rules.per_job_max
    if table.pinned:
        has_run &= table.pin[rows] == NOT_PINNED
    rows = rows[has_run]
    # Starving work would be the first in line again. Service that it keeps counts for it: nobody starves who would not without.
    due = table.submitted[rows] + bounds_of(bounds, table, rows)
    if np.count_nonzero(due > now) < len(rows):
        rows = rows[due + kept_service(table, rows, now) > now]
    found: Array = rows
    return found


def scores_of(policy: Policy, table: Table, rows: Array, running: Array, *, now: float, view_of: ViewOf) -> Scores:
    """`running` are the scores of the running `rows`."""
    rules = policy.spec.preemption

    def rest() -> tuple[Array, Array]:
        """The scores that they would have as waiting work, and what stopping each costs."""
        kept = kept_service(table, rows, now)
        stopped = table.select(rows)
        lost_s = np.maximum(now - table.started[rows], 0.0) - (kept - table.attained_s[rows])
        stopped.started[:] = NAN
        stopped.attained_s = kept
        stopped.preemptions = stopped.preemptions + 1
        waiting = policy.scores(stopped, np.arange(len(rows)), now, view_of(policy.spec)).total
        return waiting, rules.restart_cost_seconds + lost_s

    return Scores(rows, running, rest)


def is_better(score: Array | float, bar: Array, gain_percent: float) -> Mask:
    """Whether a score beats the bar by the gain; a score that is no number beats nothing, and none beats one."""
    with np.errstate(invalid="ignore"):
        found: Mask = (score > bar) & (score - bar >= np.abs(bar) * (gain_percent / 100.0))
    return found


def charged(policy: Policy, table: Table, row: int, costs_s: Array, *, now: float, view: View) -> Array:
    """The score of a waiting row, with each of the costs added to its run time and to the service it has had; never more than
    without."""
    twin = table.select(np.full(len(costs_s), row))
    twin.estimate_s = twin.estimate_s + 2.0 * costs_s
    twin.predicted_s = twin.predicted_s + 2.0 * costs_s
    twin.attained_s = twin.attained_s + costs_s
    with_costs = policy.scores(twin, np.arange(len(costs_s)), now, view).total
    found: Array = np.minimum(with_costs, table.score[row])
    return found


class Preempting:
    """Keeps the scores of what runs for the moment, and asks `victims` who must go."""

    def __init__(self, book: Book, plans: Plans, ranker: Ranker, view_of: ViewOf) -> None:
        self._book, self._plans, self._ranker, self._view_of = book, plans, ranker, view_of
        self._scores: dict[int, Scores] = {}
        self._scores_of: tuple[object, ...] = ()
        self._asked: tuple[object, ...] = ()
        self._is_enabled: tuple[object, bool] = (None, False)

    @property
    def is_enabled(self) -> bool:
        """Whether any queue's policy has others make way."""
        policies = self._ranker.policies()[1]
        if self._is_enabled[0] is not policies:
            self._is_enabled = (policies, any(policy.spec.preemption.enabled for _, policy in policies))
        return self._is_enabled[1]

    @property
    def could_matter(self) -> bool:
        """Whether another order of the line, or other scores alone, could have somebody make way."""
        table = self._book.table
        return self.is_enabled and bool((table.is_running & table.is_preemptible).any()) and self._has_blocked()

    def _has_blocked(self) -> bool:
        table = self._book.table
        return bool(np.count_nonzero(table.is_blocked) or np.count_nonzero(table.refusal >= REFUSED_BY_PLAN))

    # -- waking ----------------------------------------------------------------------------------------------------------------

    def wakes(self, ranked: Ranked, now: float) -> list[str]:
        """Of the first in line that do not fit: those that could have others make way now, as far as scores tell."""
        if not self.is_enabled:
            return []
        book, table = self._book, self._book.table
        asked = (ranked.number, book.room_version)
        if asked == self._asked:
            return []
        self._asked = asked
        blocked = self._plans.front.blocked(ranked)[:EVICTORS_MAX]
        if not len(blocked) or not any(self._may_any(policy, blocked, now) for policy in self._policies(blocked)):
            return []
        return [table.ids[row] for row in blocked.tolist() if self._could_evict(row, now)]

    def _may_any(self, policy: Policy, rows: Array, now: float) -> bool:
        """Whether the best of the rows could have anybody make way, by the policy; a quick no for most moments."""
        rules = policy.spec.preemption
        if not rules.enabled:
            return False
        best = float(np.fmax.reduce(self._book.table.score[rows]))
        return self._scores_for(policy, now).may_beat(best, rules.gain_percent_min)

    def _could_evict(self, row: int, now: float) -> bool:
        table = self._book.table
        if self._plans.front.is_awaiting(table.ids[row]):
            return False
        policy = self._policy(row)
        rules = policy.spec.preemption
        if not rules.enabled:
            return False
        scores = self._scores_for(policy, now)
        if not scores.may_beat(float(table.score[row]), rules.gain_percent_min):
            return False
        better = scores.rows[is_better(float(table.score[row]), scores.bar, rules.gain_percent_min)]
        if not len(better):
            return False
        free = self._plans.free_in_all()
        height = min(len(free), len(table.request))
        gained = np.add.reduce(table.used[:height].take(better, axis=1), axis=1)
        return bool((table.request[:height, row] <= free[:height] + gained).all())

    # -- making room -----------------------------------------------------------------------------------------------------------

    def make_room(
        self, unit: Unit, row: int, pods: PodBlock, helper: PostFilterHelper | None, *, ranked: Ranked, now: float
    ) -> Nomination | Verdict | None:
        """Whom to stop for the unit, or that it waits for some who are stopped already; None when nobody is to make way."""
        policy = self._policy(row)
        if not policy.spec.preemption.enabled:
            return None
        waits = self._waits(unit)
        if waits is not None:
            return waits
        if not self._is_in_front(row, ranked, now):
            return None
        victims, bars = self._victims(policy, row, now)
        if not len(victims) or helper is None:
            return None
        ask = self._ask(victims, bars, unit)
        found = _for_gang(self._book, unit, ask, helper) if not unit.is_single else _for_one(self._book, pods, ask, helper)
        return found if found is not None and found.victims else None

    def _waits(self, unit: Unit) -> Verdict | None:
        """That others make way for it already."""
        state = self._book.state
        for uid in unit.pods:
            kept = state.nominations.get(uid)
            there = state.on_node.get(kept[0], {}).values() if kept is not None else ()
            ending = sum(pod.is_victim or pod.is_ending for pod in there)
            if kept is not None and ending:
                message = f"waits for {ending} pods to end on node {kept[0]}"
                return Verdict(reason=Reason.WAITING_FOR_VICTIMS, subject=kept[0], message=message)
        return None

    def _is_in_front(self, row: int, ranked: Ranked, now: float) -> bool:
        """Whether it is one of the first that do not fit, and would delay no plan of those before it."""
        bound = self._plans.bound(row, ranked, now)
        if bound.stopped is not None or bound.crosses:
            return False
        table, rows = self._book.table, ranked.rows
        before = rows[: max(int(table.place[row]) - 1, 0)]
        return int(np.count_nonzero(table.is_blocked[before])) < EVICTORS_MAX

    def _victims(self, policy: Policy, row: int, now: float) -> tuple[Array, Array]:
        """Rows that may make way for the waiting `row`, and what its score was held against, for each."""
        table = self._book.table
        rules, scores = policy.spec.preemption, self._scores_for(policy, now)
        if not scores.may_beat(float(table.score[row]), rules.gain_percent_min):
            return _NOBODY, _NO_BARS
        kept = nonzero(is_better(float(table.score[row]), scores.bar, rules.gain_percent_min))
        if not len(kept):
            return _NOBODY, _NO_BARS
        own = charged(policy, table, row, scores.costs_s[kept], now=now, view=self._view_of(policy.spec))
        kept = kept[is_better(own, scores.bar[kept], rules.gain_percent_min)]
        job = table.works[row].job
        if job:
            kept = kept[np.array([table.works[each].job != job for each in scores.rows[kept].tolist()], np.bool_)]
        queues = table.queue[scores.rows[kept]].tolist()
        allowed = {queue: self._may_take(row, queue) for queue in set(queues)}
        kept = kept[np.array([allowed[queue] for queue in queues], np.bool_)]
        return scores.rows[kept], scores.bar[kept]

    def _may_take(self, row: int, other: int) -> bool:
        """Whether work of the queue with number `other` may make way for it, as far as the queues are concerned."""
        table, tree = self._book.table, self._book.tree
        if other == table.queue[row]:
            return True
        mine, theirs = common(tree.chain(table.queue_name(row)), tree.chain(table.queues.names[other]))
        level = tree.queues[mine].spec.level if mine else 0
        other_level = tree.queues[theirs].spec.level if theirs else 0
        if level != other_level:
            return level > other_level
        return self._share(mine, float(table.dominant[row])) <= self._share(theirs, 0.0)

    def _share(self, queue: str, more: float) -> float:
        table, tree = self._book.table, self._book.tree
        below = [number for number, name in enumerate(table.queues.names) if name and queue in tree.chain(name)]
        rows = nonzero(table.is_running & np.isin(table.queue, below))
        weight = tree.queues[queue].spec.weight if queue else 1
        return (float(table.used_dominant[rows].sum()) + more) / weight

    def _ask(self, victims: Array, bars: Array, unit: Unit) -> Ask:
        book = self._book
        placed, state = book.state.placed, book.state
        chosen: Array = np.zeros(book.table.size, np.bool_)
        chosen[victims] = True
        size = min(len(placed.node), len(book.row_at))
        at = book.row_at[:size]
        eligible: Mask = np.zeros(len(placed.node), np.bool_)
        eligible[:size] = (at >= 0) & chosen[np.maximum(at, 0)]
        # The worst goes first; of equals the one that has run shortest.
        table = book.table
        ids = np.argsort(np.argsort([table.ids[each] for each in victims.tolist()]))
        order = np.lexsort((ids, -table.started[victims], bars))
        cost_of: Array = np.zeros(book.table.size, np.int64)
        cost_of[victims[order]] = np.arange(1, len(victims) + 1)
        cost: Array = np.zeros(len(placed.node), np.int64)
        cost[:size] = cost_of[np.maximum(at, 0)]
        own = set(unit.pods)
        promised = [kept for uid, kept in state.nominations.items() if uid not in own]
        return Ask(eligible=eligible, cost=cost, whole_units=True, free=free_ahead(state, promised) if promised else None)

    def _policies(self, rows: Array) -> Sequence[Policy]:
        """Of the rows, each once."""
        policies = self._ranker.policies()[1]
        if len(policies) == 1:
            return (policies[0][1],)
        return list({id(policy): policy for policy in map(self._policy, rows.tolist())}.values())

    def _policy(self, row: int) -> Policy:
        group, policies, _ = self._ranker.policies()
        return policies[int(group[self._book.table.queue[row]])][1]

    def _scores_for(self, policy: Policy, now: float) -> Scores:
        self._be_at(now)
        found = self._scores.get(id(policy))
        if found is None:
            rows = self._candidates(policy, now)
            self.keep(policy, rows, policy.scores(self._book.table, rows, now, self._view_of(policy.spec)).total, now)
            found = self._scores[id(policy)]
        return found

    def _be_at(self, now: float) -> None:
        """Forget scores of another moment."""
        book = self._book
        # Who starts at this moment is no candidate at it; what is used counts only where a policy looks at it.
        used = book.room_version if self._ranker.depends_on_use else 0
        made_of = (now, book.epoch, book.stops, book.line_version, self._ranker.version, used)
        if made_of != self._scores_of:
            self._scores, self._scores_of = {}, made_of

    def _candidates(self, policy: Policy, now: float) -> Array:
        return candidates(self._book.table, policy.spec.preemption, self._ranker.policies()[2], now)

    def wanted(self, now: float) -> Array:
        """Running rows whose scores will be asked for, where all work goes by one policy: to be scored with the line."""
        policies = self._ranker.policies()[1]
        if len(policies) != 1 or not self.is_enabled or not self._has_blocked():
            return _NOBODY
        return self._candidates(policies[0][1], now)

    def keep(self, policy: Policy, rows: Array, running: Array, now: float) -> None:
        """The scores of running rows, as they were just worked out."""
        self._be_at(now)
        self._scores[id(policy)] = scores_of(policy, self._book.table, rows, running, now=now, view_of=self._view_of)


def _for_one(book: Book, pods: PodBlock, ask: Ask, helper: PostFilterHelper) -> Nomination | None:
    def feasible(slot: int, gone: Sequence[PodRecord]) -> bool:
        return helper.feasible_without(pods, slot, gone)

    room = select(book.state, pods, msgspec.structs.replace(ask, nodes=helper.static_mask(pods), feasible=feasible))
    if room is None:
        return None
    message = f"by policy, {len(room.victims)} pods make way on node {room.node}"
    return Nomination(room.node, tuple(pod.uid for pod in room.victims), message=message)


def _for_gang(book: Book, unit: Unit, ask: Ask, helper: PostFilterHelper) -> Nomination | None:
    groups = [group for group in unit.groups if group.controlled]
    members = [book.state.pods[pod] for group in groups for pod in group.pods[: group.missing]]
    if not members:
        return None
    room = make_room(
        book.state, members, ask, where=helper.static_mask, feasible=helper.feasible_without, block_of=helper.block
    )
    if room is None:
        return None
    places = dict(room.places)
    message = f"by policy, {len(room.victims)} pods make way, so that {len(places)} pods can start together"
    return Nomination(room.places[0][1], tuple(pod.uid for pod in room.victims), message=message, pods=places)
