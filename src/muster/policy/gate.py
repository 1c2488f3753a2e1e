"""The gate: which unit may be tried now, and which of those that were turned away may be tried again.

`refuse` asks, cheapest first: is it held, does its queue exist and start work, do limits allow it, and would it pass or delay
work that stands before it? Who is turned away sleeps, at no cost, until `wakes` lets it go, by what turned it away. Limits wake
by the node of the quota tree whose use fell, one unit of each kind at a time: the next is asked when that one has gone. For
plans the question is asked for all sleepers at once, in columns, and the next in line wakes: nobody goes before a sleeper that
stands before it and could go as well.

Pure, single-threaded. Invariants: who sleeps has a number in the column `refusal`; after `wakes`, every sleeper would be turned
away again if it were tried, or there is no room for its kind; who wakes and is turned away again sleeps until the next change.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from muster.engine.columns import Array, nonzero
from muster.objects.reasons import Reason, Verdict
from muster.policy.backfill import Pieces, Plan
from muster.policy.book import Book
from muster.policy.plans import Plans
from muster.policy.ranking import Ranked
from muster.policy.refusals import REFUSED_BY_PLAN, Refusal
from muster.quota.tree import NodeKey

if TYPE_CHECKING:
    from muster.engine.pods import PodRecord
    from muster.engine.units import Unit


WAKES_MAX: Final = 4
"""Plans change as those that they are for are tried: so often one is asked again while nothing has been placed, or ended, or
was heard of. More would help nobody, and the engine must come to rest."""


class Gate:
    def __init__(self, book: Book, plans: Plans) -> None:
        self._book, self._plans = book, plans
        plans.front.bar = self.bar
        self.limit: Array | None = None
        """Where the unit that was let through last may go: what is left beside plans, (rows, nodes)."""
        self.limited: frozenset[str] = frozenset()
        """Its pods."""
        self._at_limit: dict[NodeKey, dict[str, None]] = {}
        self._limit_of: dict[str, NodeKey] = {}
        self._opened: dict[str, NodeKey] = {}
        """Units that a limit let go and that have not started yet."""
        self._asked: tuple[int, ...] = ()
        self._moment: tuple[int, ...] = ()
        self._first_of: tuple[int, ...] = ()
        self._first: list[int] = []
        self._woken: dict[int, int] = {}
        """By row: how often it woke at this moment."""
        self._called: dict[str, None] = {}
        """Sleepers that an event lets go."""
        self._open: dict[int, bool] = {}
        self._open_of: tuple[int, ...] = ()
        self._asleep: Array = np.zeros(0, np.int64)
        self._asleep_of: tuple[int, ...] = ()
        self._too_large_of: tuple[object, ...] = ()
        """While that is the same: no sleeper asks for as little as there is in all."""
        self._nobody_of: tuple[int, ...] = ()
        self._nobody_before = 0.0
        """While `_room_since` is that: no sleeper before this place could go."""

    # -- refusing --------------------------------------------------------------------------------------------------------------

    def refuse(self, unit: Unit, row: int, ranked: Ranked, now: float) -> Verdict | None:
        """Why the unit, which waits in a queue, may not be tried now."""
        self.limit, self.limited = None, frozenset()
        table = self._book.table
        found = self._barred(row)
        if found is not None:
            self._sleep(row, found[0], is_blocked=False)
            return found[1]
        bound = self._plans.bound(row, ranked, now)
        if bound.stopped is not None:
            plan = bound.stopped
            self._sleep(row, Refusal.PASSING if plan.is_strict else Refusal.DELAYING, is_blocked=bool(table.is_blocked[row]))
            return _behind(plan, Reason.QUEUE_BLOCKED if plan.is_strict else Reason.BACKFILL_WOULD_DELAY)
        if bound.limit is not None:
            pieces = self._book.pieces[int(table.kind[row])]
            if not self._plans.fits_within(pieces, bound.limit) and not self._is_to_learn(unit, pieces):
                self._sleep(row, Refusal.DELAYING, is_blocked=bool(table.is_blocked[row]))
                return _behind(bound.crosses[0], Reason.BACKFILL_WOULD_DELAY)
            self.limit, self.limited = bound.limit.copy(), frozenset(unit.pods)
        first = self._before(row, ranked, now)
        if first is not None:
            self.limit, self.limited = None, frozenset()
            self._sleep(row, Refusal.DELAYING, is_blocked=bool(table.is_blocked[row]))
            message = "in line behind work for which there is room now"
            return Verdict(reason=Reason.QUEUED, subject=table.ids[first], message=message)
        self._book.mark(row, refusal=0, is_blocked=bool(table.is_blocked[row]))
        self._plans.let_pass(unit.id, bound)
        return None

    def take_off(self, pod: PodRecord, slot: int, count: int) -> None:
        """So many pods like this (-1: one less) were placed there: if they are of the unit that was let through, what is left
        for the rest of it follows."""
        if self.limit is not None and pod.uid in self.limited:
            height = min(len(pod.request), len(self.limit))
            self.limit[:height, slot] -= count * pod.request[:height]

    def _is_to_learn(self, unit: Unit, pieces: Pieces) -> bool:
        """Whether a unit for which plans have no room is tried all the same, beside them: it could never be placed, and is to
        hear so; or it keeps what places it finds (a NonStrict gang), and would not find all without plans either."""
        return not self._plans.could_ever(pieces) or (unit.keeps_s > 0 and self._plans.room(pieces) <= 0)

    def bar(self, row: int) -> bool:
        """Put a unit to sleep that stands in front, but may not start whatever the others do; whether it was one."""
        book, table = self._book, self._book.table
        if not book.limits.is_any and not table.is_held[row] and self._is_open(int(table.queue[row])):
            return False
        found = self._barred(row)
        if found is not None:
            self._sleep(row, found[0], is_blocked=False)
        return found is not None

    def _is_open(self, queue: int) -> bool:
        """Whether the queue with this number exists, and starts work."""
        tree, names = self._book.tree, self._book.table.queues
        made_of = (tree.version, names.version)
        if made_of != self._open_of:
            self._open, self._open_of = {}, made_of
        found = self._open.get(queue)
        if found is None:
            name = names.names[queue]
            found = self._open[queue] = name in tree.queues and not tree.stopped_by(name)
        return found

    def _barred(self, row: int) -> tuple[Refusal, Verdict] | None:
        """What keeps it from starting whatever the others do."""
        book, table = self._book, self._book.table
        work = table.works[row]
        if not work.hold and not book.limits.is_any and self._is_open(int(table.queue[row])):
            return None
        if work.hold:
            return Refusal.HELD, Verdict(reason=Reason.HELD_BY_ADMIN, message=f"held in the queue: {work.hold}")
        queue = table.queue_name(row)
        if queue not in book.tree.queues:
            message = f"Queue {queue} does not exist; create it, or name another in the job's spec.queue"
            return Refusal.NO_QUEUE, Verdict(reason=Reason.QUEUE_NOT_FOUND, subject=f"Queue {queue}", message=message)
        stopped = book.tree.stopped_by(queue)
        if stopped:
            message = f"Queue {stopped} starts nothing: its spec.state is Stopped; an administrator sets it to Open"
            return Refusal.STOPPED, Verdict(reason=Reason.QUEUE_STOPPED, subject=f"Queue {stopped}", message=message)
        if not book.limits.is_any:
            return None
        breach = book.check(row)
        if breach is None:
            return None
        self._at_limit.setdefault(breach.node, {})[table.ids[row]] = None
        self._limit_of[table.ids[row]] = breach.node
        return Refusal.LIMIT, breach.verdict()

    def _sleep(self, row: int, why: Refusal, *, is_blocked: bool) -> None:
        unit_id = self._book.table.ids[row]
        if why is not Refusal.LIMIT:
            self._pass_on(unit_id)
        self._book.mark(row, refusal=int(why), is_blocked=is_blocked)

    def _pass_on(self, unit_id: str) -> None:
        """A unit that a limit let go has gone, or can't go for another reason: the next may be asked."""
        node = self._opened.pop(unit_id, None)
        if node is not None:
            self._book.limits.fell[node] = None

    def left(self, unit_id: str) -> None:
        """The unit waits no more."""
        self._pass_on(unit_id)
        self._forget(unit_id)
        self._called.pop(unit_id, None)

    def _forget(self, unit_id: str) -> None:
        node = self._limit_of.pop(unit_id, None)
        if node is not None:
            sleepers = self._at_limit[node]
            sleepers.pop(unit_id, None)
            if not sleepers:
                del self._at_limit[node]

    # -- waking ----------------------------------------------------------------------------------------------------------------

    def call(self, unit_id: str) -> None:
        """What is known about the unit has changed: it is to be asked about anew."""
        self._called[unit_id] = None

    def call_all(self, *whys: Refusal) -> None:
        """Everything that sleeps for one of these reasons is."""
        table = self._book.table
        for row in nonzero(np.isin(table.refusal, whys) & table.is_waiting).tolist():
            self._called[table.ids[row]] = None

    @property
    def has_sleepers_by_plan(self) -> bool:
        return bool(len(self._sleepers()))

    @property
    def could_matter(self) -> bool:
        """Whether another order of the line alone could let anybody start: somebody sleeps for whom there is room."""
        sleepers = self._sleepers()
        return bool(len(sleepers)) and self._plans.has_room(sleepers)

    def wakes(self, ranked: Ranked, now: float) -> list[str]:
        """Who may be tried now, in the order of the line."""
        table = self._book.table
        rows: list[int] = []
        if self._called:
            called, self._called = self._called, {}
            # Also who waits for room: a hold must take it out of the way of others.
            rows += [row for unit_id in called if (row := table.row_of.get(unit_id)) is not None and table.is_waiting[row]]
        if self._book.limits.fell:
            rows += self._within_limits()
        rows += self._beside_plans(ranked, now)
        found: list[str] = []
        for row in dict.fromkeys(rows):
            unit_id = table.ids[row]
            self._forget(unit_id)
            self._book.mark(row, refusal=0, is_blocked=bool(table.is_blocked[row]))
            found.append(unit_id)
        return found

    def _within_limits(self) -> list[int]:
        book, table = self._book, self._book.table
        fell, book.limits.fell = book.limits.fell, {}
        found: list[int] = []
        for node in fell:
            sleepers = self._at_limit.get(node)
            if not sleepers:
                continue
            rows = np.array([table.row_of[unit_id] for unit_id in sleepers], np.int64)
            rows = rows[np.argsort(table.place[rows], kind="stable")]
            _, first = np.unique(table.kind[rows], return_index=True)
            for row in rows[np.sort(first)].tolist():
                breach = book.check(row)
                unit_id = table.ids[row]
                if breach is None:
                    self._opened[unit_id] = node
                    found.append(row)
                elif breach.node != node:
                    self._move_kind(node, int(table.kind[row]), breach.node)
        return found

    def _move_kind(self, node: NodeKey, kind: int, to: NodeKey) -> None:
        """Another limit keeps this kind from starting now: it wakes by that one."""
        table = self._book.table
        for unit_id in [each for each in self._at_limit[node] if table.kind[table.row_of[each]] == kind]:
            self._forget(unit_id)
            self._at_limit.setdefault(to, {})[unit_id] = None
            self._limit_of[unit_id] = to

    def _beside_plans(self, ranked: Ranked, now: float) -> list[int]:
        sleepers = self._sleepers()
        if not len(sleepers):
            return []
        made_of = (self._asleep_of, self._book.room_version, self._book.state.nodes.version)
        if made_of == self._too_large_of:
            return []
        if not self._plans.is_any_within(sleepers):
            # Whatever is planned, nobody of them fits.
            self._too_large_of = made_of
            return []
        asked = self._now_asked(ranked, now)
        if asked is None or asked == self._asked:
            return []
        self._asked = asked
        found = self._next(ranked, now)
        for row in found:
            self._woken[row] = self._woken.get(row, 0) + 1
        return found

    def _sleepers(self) -> Array:
        """Rows of those that a plan turned away. Others sleep than before only after a mark, or when somebody joins anew."""
        book = self._book
        made_of = (book.blocked_version, book.line_version)
        if made_of != self._asleep_of:
            self._asleep, self._asleep_of = nonzero(book.table.refusal >= REFUSED_BY_PLAN), made_of
        return self._asleep

    def _now_asked(self, ranked: Ranked, now: float) -> tuple[int, ...] | None:
        """What the answer of `_next` depends on; None when nobody sleeps because of a plan."""
        if not self.has_sleepers_by_plan:
            return None
        self._plans.current(ranked, now)
        return (self._plans.version, self._book.room_version, ranked.number, self._book.state.nodes.version)

    def _next(self, ranked: Ranked, now: float) -> list[int]:
        """The sleepers that are to be tried next, but for those that were tried often enough at this moment."""
        moment = (self._book.room_version, self._book.state.nodes.version, ranked.number, self._book.epoch)
        if moment != self._moment:
            self._moment, self._woken = moment, {}
        sleepers = self._sleepers()
        spent = [row for row, count in self._woken.items() if count >= WAKES_MAX]
        if spent:
            sleepers = sleepers[~np.isin(sleepers, spent)]
        found: list[int] = self._plans.may_go(sleepers, ranked, now).tolist()
        return found

    def _before(self, row: int, ranked: Ranked, now: float) -> int | None:
        """The sleeper that stands before the unit and could go now: it is tried first."""
        table = self._book.table
        if self._plans.front.is_before_all(row, ranked):
            return None
        asked = self._now_asked(ranked, now)
        if asked is None or (self._room_since(ranked) == self._nobody_of and table.place[row] <= self._nobody_before):
            return None
        key = (*asked, self._book.blocked_version)
        if key != self._first_of:
            self._first_of, self._first = key, self._next(ranked, now)[:1]
            self._nobody_of = self._room_since(ranked)
            self._nobody_before = float(table.place[self._first[0]]) if self._first else math.inf
        if not self._first or table.refusal[self._first[0]] < REFUSED_BY_PLAN:
            return None
        return self._first[0] if table.place[self._first[0]] < table.place[row] else None

    def _room_since(self, ranked: Ranked) -> tuple[int, ...]:
        """While this is the same, work was at most started: nobody has found room who had none."""
        book = self._book
        return (ranked.number, book.state.nodes.version, book.stops, book.epoch, self._plans.made)


def _behind(plan: Plan, reason: Reason) -> Verdict:
    head = plan.head.unit
    if reason is Reason.QUEUE_BLOCKED:
        message = "behind work that does not fit yet; the policy of the queue lets nobody pass"
    else:
        message = "would delay work that is before it in the line and has room planned for it"
    return Verdict(reason=reason, subject=head, message=message)
