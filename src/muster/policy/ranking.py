"""One line out of all waiting work: scores by each queue's policy, starving work first, queues merged by weight.

`Ranker.rank` is a handful of operations on columns, whatever the number of units. Pure, single-threaded: it reads the table and
writes its columns `score` and `place`.

Order within a queue: pinned work (the smallest pin first), then by score, larger first, no number last; equals by the time they
were submitted, then by id.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from muster.engine.columns import Array, nonzero
from muster.objects.kinds.muster_queues import SchedulingPolicySpec
from muster.policy.queues import QueueTree
from muster.policy.starvation import bounds_of, crossings, next_crossing
from muster.policy.table import Table, View

if TYPE_CHECKING:
    from muster.policy.policies import Policy, Scored

FIRST: Final = 1
"""The place of the first in line; 0 is for work that is in no queue."""
_MENDED_MAX: Final = 8
"""Changes of a line that are worked into its array one by one; from so many on, it is made anew when it is read."""
_NOBODY: Final[Array] = np.zeros(0, np.int64)
_NO_SCORES: Final[Array] = np.zeros(0)
ViewOf = Callable[[SchedulingPolicySpec], View]


class Line:
    """Waiting units that are in a queue, by age: submitted, then id."""

    def __init__(self) -> None:
        self._ages: list[tuple[float, str, int]] = []
        self._rows: Array | None = None
        self._changes = 0
        """Since the rows were read: a few are worked in at once, many together when they are read next."""

    def __len__(self) -> int:
        return len(self._ages)

    def add(self, submitted: float, unit_id: str, row: int) -> None:
        at = bisect_left(self._ages, (submitted, unit_id, row))
        self._ages.insert(at, (submitted, unit_id, row))
        rows = self._mended()
        if rows is not None:
            self._rows = np.concatenate([rows[:at], np.array([row], np.int64), rows[at:]])

    def remove(self, submitted: float, unit_id: str, row: int) -> None:
        at = bisect_left(self._ages, (submitted, unit_id, row))
        if at < len(self._ages) and self._ages[at] == (submitted, unit_id, row):
            del self._ages[at]
            rows = self._mended()
            if rows is not None:
                self._rows = np.concatenate([rows[:at], rows[at + 1 :]])

    def _mended(self) -> Array | None:
        self._changes += 1
        if self._changes > _MENDED_MAX:
            self._rows = None
        return self._rows

    @property
    def rows(self) -> Array:
        if self._rows is None:
            self._rows = np.fromiter((age[2] for age in self._ages), np.int64, len(self._ages))
        self._changes = 0
        return self._rows


class Ranked:
    """What came out. `rows` in order of place; `starving` says how many of the first are starving; `number` tells one ranking
    from another."""

    def __init__(
        self,
        rows: Array,
        starving: int,
        not_a_number: Mapping[str, int],
        next_crossing: float | None,
        beside: Array = _NO_SCORES,
    ) -> None:
        self.rows, self.starving, self.number = rows, starving, 0
        self.beside = beside
        """Scores of the running rows that were asked for with it."""
        self.not_a_number = not_a_number
        """By policy: for how many units its formula gave no number."""
        self.next_crossing = next_crossing
        """When the next of them begins to starve."""


class Ranker:
    def __init__(self, table: Table, tree: QueueTree, policy_of: Callable[[str], tuple[str, Policy]]) -> None:
        """`policy_of` gives the name and the policy of a queue."""
        self._table, self._tree, self._policy_of = table, tree, policy_of
        self._groups: tuple[Array, list[tuple[str, Policy]], Array] | None = None
        self._groups_of = (-1, -1)
        self._looks_at_use = False
        self._number = 0
        self.version = 0
        """Grows when policies change."""

    def forget_policies(self) -> None:
        """Policies changed."""
        self._groups = None
        self.version += 1

    @property
    def depends_on_use(self) -> bool:
        """Whether the line depends on what runs: on the shares of several queues, or because a policy looks at it."""
        self.policies()
        return self._looks_at_use

    def policies(self) -> tuple[Array, list[tuple[str, Policy]], Array]:
        """By the number of a queue: which of the policies it has, and its bound on starvation."""
        names, made_of = self._table.queues, self._groups_of
        if self._groups is None or names.version != made_of[0] or self._tree.version != made_of[1]:
            found: dict[str, int] = {}
            policies: list[tuple[str, Policy]] = []
            group: Array = np.zeros(max(len(names), 1), np.int64)
            for number, queue in enumerate(names.names):
                name, policy = self._policy_of(queue)
                if name not in found:
                    found[name] = len(policies)
                    policies.append((name, policy))
                group[number] = found[name]
            bounds = np.array([float(policy.spec.starvation_bound_seconds) for _, policy in policies] or [0.0], np.float64)
            self._groups, self._groups_of = (group, policies, bounds[group]), (names.version, self._tree.version)
            has_several = len(self._tree.layout(names).level) > 2
            self._looks_at_use = has_several or any(policy.looks_at_use for _, policy in policies)
        return self._groups

    def scored(self, rows: Array, now: float, view_of: ViewOf, beside: Array = _NOBODY) -> tuple[Array, dict[str, int]]:
        """The scores of waiting `rows`, each by its queue's policy; and how many have none, by policy. Where there is but one
        policy, those of `beside` too, behind the others: one long column costs less than two short ones."""
        table = self._table
        group, policies, _ = self.policies()
        missing: dict[str, int] = {}
        if len(policies) == 1:
            name, policy = policies[0]
            every = np.concatenate([rows, beside]) if len(beside) else rows
            score = policy.scores(table, every, now, view_of(policy.spec)).total
            if count := int(np.count_nonzero(np.isnan(score[: len(rows)]))):
                missing[name] = count
            return score, missing
        score = np.zeros(len(rows), np.float64)
        of = group[table.queue[rows]]
        for number, (name, policy) in enumerate(policies):
            mine = nonzero(of == number)
            if len(mine):
                score[mine] = policy.scores(table, rows[mine], now, view_of(policy.spec)).total
                if count := int(np.count_nonzero(np.isnan(score[mine]))):
                    missing[name] = count
        return score, missing

    def factor_tables(self, rows: Array, now: float, view_of: ViewOf) -> Iterator[tuple[Policy, Array, Scored]]:
        """The factor tables of several units: for each policy, which of `rows` are its own (positions), and theirs."""
        group, policies, _ = self.policies()
        of = group[self._table.queue[rows]]
        for number, (_, policy) in enumerate(policies):
            at = nonzero(of == number)
            if len(at):
                yield policy, at, policy.scores(self._table, rows[at], now, view_of(policy.spec))

    def rank(self, line: Line, now: float, view_of: ViewOf, beside: Array = _NOBODY) -> Ranked:
        """`beside`: running rows whose scores are wanted as well (`Ranked.beside`), as far as there is one policy for all."""
        ranked = self._rank(line, now, view_of, beside)
        self._number += 1
        ranked.number = self._number
        return ranked

    def _rank(self, line: Line, now: float, view_of: ViewOf, beside: Array) -> Ranked:
        table, rows = self._table, line.rows
        if not len(rows):
            return Ranked(rows, 0, {}, None)
        score, missing = self.scored(rows, now, view_of, beside)
        score, scores_beside = score[: len(rows)], score[len(rows) :]
        table.score[rows] = score
        _, _, bounds = self.policies()
        times = crossings(table, rows, bounds_of(bounds, table, rows))
        starves = times <= now
        starving = nonzero(starves)
        # -score: larger first, and NumPy puts NaN last; stable, so equals stay by age.
        if len(starving):
            starves &= ~table.is_held[rows]
            starving, others = nonzero(starves), nonzero(~starves)
            others = others[(-score[others]).argsort(kind="stable")]
        else:
            others = (-score).argsort(kind="stable")
        if table.pinned:
            others = others[table.pin[rows[others]].argsort(kind="stable")]
        layout = self._tree.layout(table.queues)
        if layout.depth > 1 or len(layout.level) > 2:
            running = nonzero(table.is_running & (table.queue >= 0))
            using = np.append(running, rows[starving])
            amounts = np.append(table.used_dominant[running], table.dominant[rows[starving]])
            uses = layout.uses(table.queue[using], amounts)
            ranked = rows[others]
            others = others[layout.merge(table.queue[ranked], table.dominant[ranked], others, uses)]
        ordered: Array = rows[np.concatenate([starving, others]) if len(starving) else others]
        table.place[ordered] = np.arange(FIRST, len(ordered) + FIRST)
        return Ranked(ordered, len(starving), missing, next_crossing(times, now), scores_beside)
