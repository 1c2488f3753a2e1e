"""The front: of each line those that do not fit, in order, as many as a plan could be for.

It is kept from one question to the next, and found again only when somebody in it, or before the last of it, was turned away or
let go. So thousands that are turned away further behind cost next to nothing, one by one.

Pure, single-threaded; part of `Plans`. It hears of every mark through `Book.marked`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from muster.engine.columns import Array
from muster.objects.kinds.muster_queues import Backfill
from muster.policy.backfill import LINES_MAX, PLANS_MAX, TRIES_MAX
from muster.policy.book import Book
from muster.policy.ranking import FIRST, Ranked, Ranker
from muster.policy.refusals import REFUSED_BY_PLAN


class Foremost(msgspec.Struct, frozen=True):
    """One of the front."""

    row: int
    line: int
    mode: str
    is_next: bool
    """It is about to be tried, or others were evicted for it."""


class Front:
    def __init__(self, book: Book, ranker: Ranker, lines: Callable[[], Array]) -> None:
        """`lines`: by the number of a queue, which line it waits in."""
        self._book, self._ranker, self._lines = book, ranker, lines
        self.bar: Callable[[int], bool] = lambda row: False
        """Puts a unit to sleep that may not start whatever the others do; whether it did. Set by the gate."""
        self._awaiting: dict[str, None] = {}
        """Units that wait for victims to end."""
        self._found: list[Foremost] = []
        self._rows: set[int] = set()
        """Those that were looked at."""
        self._last: dict[int, float] = {}
        """By line of those that were looked at: the place behind which nobody of it matters; infinite while there are few."""
        self._beyond = math.inf
        """The place behind which no further line matters."""
        self._first_place = math.inf
        """Of the first that is in a line and does not fit."""
        self._is_stale = True
        self._known: tuple[int, int] = (-1, -1)
        self._marks = -1
        self._in_use = 0
        self._blocked_of: tuple[object, Array] = (None, np.zeros(0, np.int64))
        self._flagged_of: tuple[object, Array] = (None, np.zeros(0, np.int64))
        self._modes: tuple[object, bool] = (None, False)

    def awaits(self, unit_id: str, is_so: bool) -> None:
        """Whether the unit waits for victims to end, from now on."""
        if is_so != (unit_id in self._awaiting):
            self._is_stale = True
            if is_so:
                self._awaiting[unit_id] = None
            else:
                del self._awaiting[unit_id]

    def is_awaiting(self, unit_id: str) -> bool:
        return unit_id in self._awaiting

    def is_before_all(self, row: int, ranked: Ranked) -> bool:
        """Whether it stands before everybody that a plan could be for, or that one could have turned away."""
        self._listen(ranked)
        return bool(self._book.table.place[row] <= self._first_place)

    def find(self, ranked: Ranked) -> list[Foremost]:
        """The same list as before when nothing has changed."""
        self._listen(ranked)
        if self._is_stale:
            found = self._look(ranked)
            while found is None:
                found = self._look(ranked)
            self._found = found
            self._begin(ranked)
            self._is_stale = False
        return self._found

    # -- what changes it -------------------------------------------------------------------------------------------------------

    def _begin(self, ranked: Ranked) -> None:
        """From here on only marks matter, until the line is another."""
        flagged, book = self._flagged(ranked), self._book
        self._first_place = float(book.table.place[flagged[0]]) if len(flagged) else math.inf
        book.marked.clear()
        self._known, self._marks = (ranked.number, self._ranker.version), book.blocked_version

    def _listen(self, ranked: Ranked) -> None:
        book = self._book
        # Who in front a limit keeps from starting, whatever the others do, follows from what is in use.
        in_use = book.room_version if book.limits.is_any else 0
        if in_use != self._in_use:
            self._in_use, self._is_stale = in_use, True
        is_known = ranked.number == self._known[0] and self._ranker.version == self._known[1]
        if is_known and book.blocked_version == self._marks:
            return
        # Whatever else counts as blocked than marks (limits, rules) could change anybody's answer.
        is_by_marks = book.blocked_version - self._marks == len(book.marked)
        if not is_by_marks or not is_known:
            self._is_stale = True
            self._begin(ranked)
            return
        marked, book.marked = book.marked, []
        self._marks = book.blocked_version
        for row in marked:
            self._hear(row, ranked)

    def _hear(self, row: int, ranked: Ranked) -> None:
        """A unit was marked."""
        table = self._book.table
        place = float(table.place[row])
        is_flagged = bool(table.refusal[row] >= REFUSED_BY_PLAN)
        is_flagged |= bool(table.is_blocked[row]) and (not self._plans_nothing() or place < FIRST + ranked.starving)
        if row in self._rows:
            self._is_stale = True
        elif is_flagged and not self._is_stale:
            self._is_stale = place < self._last.get(int(self._lines()[table.queue[row]]), self._beyond)
        if is_flagged:
            self._first_place = min(self._first_place, place)
        elif place == self._first_place:
            flagged = self._flagged(ranked)
            self._first_place = float(table.place[flagged[0]]) if len(flagged) else math.inf

    def blocked(self, ranked: Ranked) -> Array:
        """Those in the line that were tried in vain, and those that a plan turned away; in order."""
        table = self._book.table
        made_of = (self._book.blocked_version, ranked.number)
        if made_of != self._blocked_of[0]:
            rows = ranked.rows
            self._blocked_of = (made_of, rows[table.is_blocked[rows] | (table.refusal[rows] >= REFUSED_BY_PLAN)])
        return self._blocked_of[1]

    def _flagged(self, ranked: Ranked) -> Array:
        """`blocked`, without those that were tried in vain and could not have a plan."""
        if not self._plans_nothing():
            return self.blocked(ranked)
        table, book = self._book.table, self._book
        made_of = (book.blocked_version, ranked.number, self._ranker.version)
        if made_of != self._flagged_of[0]:
            rows = ranked.rows
            found = table.refusal[rows] >= REFUSED_BY_PLAN
            tried = rows[: ranked.starving]
            found[: len(tried)] |= table.is_blocked[tried]
            self._flagged_of = (made_of, rows[found])
        return self._flagged_of[1]

    def _plans_nothing(self) -> bool:
        """Whether no policy plans for anybody but starving work."""
        group, policies, _ = self._ranker.policies()
        if self._modes[0] is not policies:
            there, names = self._book.tree.queues, self._book.table.queues.names
            used = {number for number, name in zip(group.tolist(), names, strict=False) if name in there}
            self._modes = (policies, all(policies[number][1].spec.backfill.mode == "None" for number in used))
        return self._modes[1]

    # -- finding it ---------------------------------------------------------------------------------------------------------

    def _look(self, ranked: Ranked) -> list[Foremost] | None:
        """None when somebody in front may not start whatever the others do, and was put to sleep: then look again."""
        self._last, self._beyond, self._rows = {}, math.inf, set()
        flagged, table = self._flagged(ranked), self._book.table
        if not len(flagged):
            return []
        group, policies, _ = self._ranker.policies()
        only = policies[0][1].spec.backfill if len(policies) == 1 else None
        found: list[Foremost] = []
        taken: dict[int, int] = {}
        is_any_barred = False
        policy = only or policies[0][1].spec.backfill
        most = _most(policy)
        for row, line in self._first_of_lines(flagged):
            self._rows.add(row)
            if only is None:
                policy = policies[group[table.queue[row]]][1].spec.backfill
                most = _most(policy)
            mode = "EASY" if policy.mode == "None" and table.place[row] < FIRST + ranked.starving else policy.mode
            count = taken.get(line, 0)
            self._last.setdefault(line, math.inf)
            if count >= most:
                continue
            if self.bar(row):
                is_any_barred = True
                continue
            if mode == "None":
                taken[line], self._last[line] = PLANS_MAX, float(table.place[row])
                continue
            is_next = bool(table.refusal[row] >= REFUSED_BY_PLAN) or table.ids[row] in self._awaiting
            found.append(Foremost(row, line, mode, is_next))
            taken[line] = count + 1
            if count + 1 >= most:
                self._last[line] = float(table.place[row])
        return None if is_any_barred else found

    def _first_of_lines(self, flagged: Array) -> list[tuple[int, int]]:
        """Of the first LINES_MAX lines the first rows each, as many as any policy could look at; in order, with their lines."""
        lines = self._lines()
        most = max((_most(policy.spec.backfill) for _, policy in self._ranker.policies()[1]), default=TRIES_MAX)
        if len(lines) == 1:
            return [(row, int(lines[0])) for row in flagged[:most].tolist()]
        of = lines[self._book.table.queue[flagged]]
        order = np.argsort(of, kind="stable")
        starts = np.flatnonzero(np.append(True, np.diff(of[order]) != 0))
        # By line: where its first stands; the lines whose first stand foremost are taken.
        chosen = np.sort(np.argsort(order[starts], kind="stable")[:LINES_MAX])
        if len(chosen) == LINES_MAX:
            self._beyond = float(self._book.table.place[flagged[order[starts[chosen]]]].max())
        stops = np.append(starts[1:], len(order))
        picked = [order[starts[each] : min(stops[each], starts[each] + most)] for each in chosen.tolist()]
        at = np.sort(np.concatenate(picked))
        return list(zip(flagged[at].tolist(), of[at].tolist(), strict=True))


def _most(backfill: Backfill) -> int:
    """So many of a line are looked at."""
    return min(backfill.depth, PLANS_MAX) if backfill.mode == "Conservative" else TRIES_MAX
