"""PolicyOrder: queues, policies, limits, plans and preemption as one `engine.order.Order`.

It is handed to an engine (`Engine(profiles, order=PolicyOrder())`) and then fed by it: Queue, SchedulingPolicy, User and
UserGroup objects, units that join and leave, pods that are placed and go. What it answers follows from that and the time, so a
log of events replays it, and the same events with another policy say what would have been.

Work that is in no queue (it names none, and there is no default Queue) goes before all that is, by the engine's own order; it
is never turned away, and plans do not bind it.

The parts: `book` (who waits and runs), `ranking` (one line), `plans` and `backfill` (room kept in time), `gate` (who may be
tried), `preemption` (who makes way), `telling` (what people are shown). Pure, single-threaded, as the engine is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from muster.engine import events as ev
from muster.engine.blocks import PodBlock
from muster.engine.facts import UserFacts
from muster.engine.order import Ranking
from muster.engine.plugin import Nomination, Plugin, PostFilterHelper
from muster.engine.state import State
from muster.engine.units import Unit
from muster.objects.kinds.muster_queues import SchedulingPolicySpec
from muster.objects.reasons import Reason, Verdict
from muster.policy.book import Book
from muster.policy.eta import Forecaster
from muster.policy.factors import served_s
from muster.policy.first_come import FirstCome
from muster.policy.gate import Gate
from muster.policy.in_force import InForce
from muster.policy.learning import Foretells, Learning
from muster.policy.limits import group_node, queue_node, user_node
from muster.policy.places import Line, Place
from muster.policy.plans import Plans
from muster.policy.plugin import PolicyPlugin
from muster.policy.policies import Policy
from muster.policy.predict import Predictor
from muster.policy.preemption import Preempting
from muster.policy.ranking import Ranked, Ranker
from muster.policy.refusals import Refusal
from muster.policy.telling import Telling
from muster.policy.views import Views

LOOK_S_MAX: Final = 3_600.0
"""While looking at the line again changes nothing, it is looked at ever less often, down to once in so long."""


class _Places:
    """The ranking as the engine reads it: only of the units that it is about to try."""

    def __init__(self, book: Book) -> None:
        self._table = book.table

    def get(self, unit_id: str, otherwise: int) -> int:
        row = self._table.row_of.get(unit_id)
        if row is None:
            return otherwise
        return int(self._table.place[row]) if self._table.queue[row] >= 0 else 0


class PolicyOrder:
    def __init__(self, predictor: Foretells | None = None, *, learns: bool = True, forecasts: bool = True) -> None:
        """`predictor`: the usual one unless another is given; none with `learns` False: then only what owners say is known.
        Without `forecasts` nothing is kept for telling when work will start, which decides nothing: for simulations."""
        self._predictor = (predictor or Predictor()) if learns else None
        self._forecasts = forecasts
        self.book: Book
        self.plugin: Plugin | None = PolicyPlugin(self)
        self._is_stale = False
        """Queues or people changed: the rows follow before anything is decided."""
        self._look_at: float | None = None
        self._look_s = 0.0
        self._ranked = Ranked(np.zeros(0, np.int64), 0, {}, None)
        self._ranked_of: tuple[object, ...] = ()
        self._told = -1

    def attach(self, state: State) -> None:
        self.state = state
        self.book = Book(state)
        self._in_force = InForce(state)
        self.first_come = FirstCome(self.book.table)
        self.views = Views(self.book, self.first_come)
        self.ranker = Ranker(self.book.table, self.book.tree, self.policy_of)
        self.plans = Plans(self.book, self.ranker)
        self.gate = Gate(self.book, self.plans)
        self.preempting = Preempting(self.book, self.plans, self.ranker, self.views.of)
        self.learning = Learning(self.book, self._predictor)
        self.book.finding, self.book.stopping = self._finding, self._stopping
        self.forecaster = Forecaster(self)
        self._places = _Places(self.book)
        self._telling = Telling(self)

    def placing(self, names: Sequence[str], helper: PostFilterHelper) -> None:
        for name in names:
            self.plans.helpers[name] = helper

    # -- events ----------------------------------------------------------------------------------------------------------------

    def event(self, event: ev.AnyEvent) -> None:
        book, people = self.book, self.book.people
        book.epoch += 1
        match event:
            case ev.Bound() | ev.PodGone():
                pass  # the books follow what is placed by themselves
            case ev.PodSeen(pod=facts):
                self.learning.seen(facts)
                if facts.is_finished and not facts.metadata.deletion_timestamp:
                    self.first_come.ending(book.unit_of_placed(facts.metadata.uid))
                pod = self.state.pods.get(facts.metadata.uid)
                if pod is not None and book.reread(pod):
                    self.gate.call(pod.unit)
                    self.learning.foretell(book.table.row_of[pod.unit])
            case ev.QueueSeen(queue=queue):
                book.set_limits(queue_node(queue))
                self._queues_change(lambda: book.tree.put(queue))
            case ev.QueueGone(name=name):
                book.drop_limits("Queue", name)
                self._queues_change(lambda: book.tree.drop(name))
            case ev.PolicySeen(policy=policy):
                self._set_policy(policy.metadata.name, policy.spec)
            case ev.PolicyGone(name=name):
                self._set_policy(name, None)
            case ev.UserSeen(user=user):
                name = user.metadata.name
                old_user, people.users[name] = people.users.get(name), user
                book.set_limits(user_node(user))
                people.seed("user", name, user.status.standing, self.views.totals(), self.state.now)
                self._is_stale |= old_user is None or _of_user(old_user) != _of_user(user)
            case ev.UserGone(name=name):
                people.users.pop(name, None)
                book.drop_limits("User", name)
                self._is_stale = True
            case ev.UserGroupSeen(group=group):
                name = group.metadata.name
                old_group, people.groups[name] = people.groups.get(name), group
                book.set_limits(group_node(group))
                people.seed("group", name, group.status.standing, self.views.totals(), self.state.now)
                self._is_stale |= old_group is None or old_group.spec != group.spec
            case ev.UserGroupGone(name=name):
                people.groups.pop(name, None)
                book.drop_limits("UserGroup", name)
                self._is_stale = True
            case ev.RunsSeen():
                self.learning.learn(event)
            case ev.NodeMetricSeen(metric=metric):
                self.learning.measured(metric)

    def _queues_change(self, change: Callable[[], None]) -> None:
        before = self.book.tree.default
        change()
        self._is_stale |= self.book.tree.default != before
        self.ranker.forget_policies()
        self._called_anew()

    def _set_policy(self, name: str, spec: SchedulingPolicySpec | None) -> None:
        if spec is None:
            self._in_force.drop(name)
        else:
            used = self._in_force.put(name, spec)
            if used is not None and any(factor.source == "FairShare" for factor in used.spec.factors):
                self.book.people.follow(float(used.spec.fair_share.half_life_seconds), self.state.now)
        self.ranker.forget_policies()
        self._called_anew()

    def _called_anew(self) -> None:
        """Rules changed: whoever was turned away by them is asked about again."""
        self.gate.call_all(Refusal.NO_QUEUE, Refusal.STOPPED, Refusal.LIMIT, Refusal.PASSING, Refusal.DELAYING)
        self.book.version += 1
        self.book.blocked_version += 1

    def policy_of(self, queue: str) -> tuple[str, Policy]:
        """The name and the policy of a queue; by age alone where there is none."""
        facts = self.book.tree.queues.get(queue)
        name = facts.spec.policy if facts is not None else ""
        return name, self._in_force.get(name)

    # -- units -----------------------------------------------------------------------------------------------------------------

    def joined(self, unit: Unit) -> None:
        row = self.book.join(unit)
        if row is not None:
            self.views.add_up()
            self.learning.foretell(row)
            self.book.settle()  # an earlier attempt may have gone just now
            self.first_come.joined(row, self.state.now)
            if self._forecasts:
                self.forecaster.joined(row)

    def left(self, unit_id: str) -> None:
        before = self.book.surprises
        if self._forecasts:
            self.forecaster.leaves(unit_id)
        self.gate.left(unit_id)
        self.plans.front.awaits(unit_id, False)
        self._telling.refused.pop(unit_id, None)
        self.book.leave(unit_id)
        has_started = unit_id in self.book.table.row_of
        if self._forecasts:
            self.forecaster.left(unit_id, self.state.now, has_started=has_started)
        if not has_started:
            self.first_come.gone(unit_id, self.state.now)
        elif self.book.surprises != before:
            self.plans.started(unit_id, before, self.book.placed_pods(unit_id))

    def _finding(self, row: int) -> None:
        """A unit runs that was not seen waiting."""
        self.views.add_up()
        self.first_come.found(row, self.state.now)

    def _stopping(self, unit_id: str, row: int) -> None:
        """Nothing of the unit runs any more; its row still says what ran."""
        self.learning.stopping(unit_id, row)
        table, now = self.book.table, self.state.now
        if not table.is_waiting[row]:
            self.first_come.stopped(unit_id, float(served_s(table, np.array([row]), now)[0]), now)

    def parked(self, unit: Unit, verdict: Verdict, now: float) -> None:
        row = self.book.table.row_of.get(unit.id)
        if row is None:
            return
        self.plans.front.awaits(unit.id, verdict.reason is Reason.WAITING_FOR_VICTIMS)
        self.book.mark(row, refusal=0, is_blocked=True)

    # -- the line --------------------------------------------------------------------------------------------------------------

    def rank(self, now: float) -> Ranking | None:
        self._update(now)
        if self._told == self._ranked.number:
            return None
        self._told = self._ranked.number
        return self._places

    def _update(self, now: float) -> Ranked:
        """Bring books and line up to date."""
        book = self.book
        if self._is_stale:
            self._is_stale = False
            book.refill()
            self._called_anew()
        book.settle()
        self.views.add_up()
        # What has been used counts only between queues, and where a policy looks at it.
        used = book.room_version if self.ranker.depends_on_use else 0
        made_of = (book.line_version, book.tree.version, self.views.total_version, self.ranker.version, used)
        is_due = self._look_at is not None and now >= self._look_at
        if made_of == self._ranked_of and not is_due:
            return self._ranked
        before, running = self._ranked.rows, self.preempting.wanted(now)
        self._ranked = self.ranker.rank(book.line, now, self.views.of, running)
        if len(running) and len(self._ranked.beside) == len(running):
            self.preempting.keep(self.ranker.policies()[1][0][1], running, self._ranked.beside, now)
        self._plan_look(now, is_same=is_due and made_of == self._ranked_of and np.array_equal(before, self._ranked.rows))
        self._ranked_of = made_of
        return self._ranked

    def _plan_look(self, now: float, *, is_same: bool) -> None:
        """When to look at the line again although nothing has happened: soon after a change, ever less often while that
        changes nothing, and when somebody begins to starve."""
        shortest = min((policy.spec.reevaluate_seconds for _, policy in self.ranker.policies()[1]), default=1)
        self._look_s = min(max(2 * self._look_s, shortest), LOOK_S_MAX) if is_same else float(shortest)
        later = now + self._look_s
        crossing = self._ranked.next_crossing
        self._look_at = later if crossing is None else min(later, crossing)

    def refuse(self, unit: Unit, now: float) -> Verdict | None:
        row = self.book.table.row_of.get(unit.id)
        if row is None or self.book.table.queue[row] < 0:
            self.gate.limit, self.gate.limited = None, frozenset()
            return None
        self.book.settle()
        verdict = self.gate.refuse(unit, row, self._ranked, now)
        if verdict is not None:
            self._telling.refused[unit.id] = verdict
        return verdict

    def wakes(self, now: float) -> Iterable[str]:
        ranked = self._update(now)
        found = self.gate.wakes(ranked, now)
        found += self.preempting.wakes(ranked, now)
        return found

    def next_look(self) -> float | None:
        if not len(self.book.line):
            return None
        times: list[float] = []
        table = self.book.table
        # Plans that are over were not needed since: nobody fits, whatever is planned.
        change = self.plans.next_change
        if change is not None and change > self.state.now and self.gate.has_sleepers_by_plan:
            times.append(change)
        if self._look_at is not None and (self.gate.could_matter or self.preempting.could_matter):
            times.append(self._look_at)
        elif self._ranked.next_crossing is not None and (table.is_blocked.any() or self.gate.has_sleepers_by_plan):
            times.append(self._ranked.next_crossing)
        return min(times, default=None)

    def make_room(self, unit: Unit, pods: PodBlock, helper: PostFilterHelper | None, now: float) -> Nomination | Verdict | None:
        """Policy preemption; None when nobody is to make way."""
        row = self.book.table.row_of.get(unit.id)
        if row is None or self.book.table.queue[row] < 0:
            return None
        self.book.settle()
        return self.preempting.make_room(unit, row, pods, helper, ranked=self._ranked, now=now)

    # -- what people see -------------------------------------------------------------------------------------------------------

    @property
    def ranked_now(self) -> Ranked:
        """The line as it was last ranked."""
        return self._ranked

    @property
    def ranking_version(self) -> int:
        # Who leaves changes the places of those behind, though nobody has to be ranked anew.
        return self._ranked.number + self.book.version

    @property
    def not_a_number(self) -> Mapping[str, int]:
        """By policy: for how many units its formula gave no number when the line was last ranked."""
        return self._ranked.not_a_number

    def refused(self, unit_id: str) -> Verdict | None:
        """What the gate said last to a unit that sleeps."""
        return self._telling.refused.get(unit_id)

    def lines(self) -> Mapping[str, Line]:
        return self._telling.lines()

    def ranked(self, queue: str) -> Sequence[str]:
        return self._telling.ranked(queue)

    def job_of(self, unit_id: str) -> str:
        row = self.book.table.row_of.get(unit_id)
        return self.book.table.works[row].job if row is not None else ""

    def places(self, queue: str, now: float, first: int = 100) -> Sequence[Place]:
        return self._telling.places(queue, first)

    def place_of(self, unit_id: str, now: float, *, with_start: bool = True) -> Place | None:
        return self._telling.place_of(unit_id, now, with_start=with_start)

    def ahead_of(self, unit_id: str, now: float) -> Place | None:
        return self._telling.ahead_of(unit_id)

    def unit_of(self, job: str) -> str | None:
        return self._telling.unit_of(job)

    def factors_of(self, unit_ids: Sequence[str]) -> Mapping[str, Mapping[str, float]]:
        return self._telling.factors_of(unit_ids)

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Mapping[str, object]:
        table = self.book.table
        started = {table.ids[row]: float(table.started[row]) for row in np.flatnonzero(table.is_running).tolist()}
        return {
            "started": started,
            "people": self.book.people.checkpoint(),
            "firstCome": self.first_come.kept(),
            "look": [self._look_at, self._look_s],
            "policies": self._in_force.checkpoint(),
            "learned": self.learning.checkpoint(),
            "forecasts": self.forecaster.checkpoint(),
        }

    def restore(self, kept: Mapping[str, object]) -> None:
        self.book.settle()
        table = self.book.table
        started, people, first_come = kept.get("started"), kept.get("people"), kept.get("firstCome")
        for unit_id, time in started.items() if isinstance(started, Mapping) else ():
            row = table.row_of.get(unit_id)
            if row is not None and table.is_running[row]:
                table.started[row] = float(time)
        policies = kept.get("policies")
        if isinstance(policies, Mapping):
            self._in_force.restore(policies)
            self.ranker.forget_policies()
        if isinstance(people, Mapping):
            self.book.people.restore(people)
        if isinstance(first_come, Mapping):
            self.first_come.restore(first_come)
        learned = kept.get("learned")
        if isinstance(learned, Mapping):
            self.learning.restore(learned)
        forecasts = kept.get("forecasts")
        if isinstance(forecasts, Mapping):
            self.forecaster.restore(forecasts)
        self.book.version += 1


class UnlearnedOrder(PolicyOrder):
    """The same without any learning, under a name of its own: so a log of it replays without, too."""

    def __init__(self, *, forecasts: bool = True) -> None:
        super().__init__(learns=False, forecasts=forecasts)


def _of_user(user: UserFacts) -> tuple[object, ...]:
    """What rows keep of a user."""
    return user.spec.group, user.spec.level
