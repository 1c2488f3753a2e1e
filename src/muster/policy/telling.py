"""What people are shown of the order: places, factor tables, lines. Answers about the line as it was last ranked.

Pure: reads the order's books and changes nothing. Called between two steps of the engine, from its thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from muster.engine.columns import Array
from muster.objects.reasons import Verdict
from muster.policy.places import Line, Place, PlaceFactor
from muster.policy.ranking import FIRST
from muster.policy.table import NOT_PINNED

if TYPE_CHECKING:
    from muster.policy.order import PolicyOrder


_NOBODY: Array = np.zeros(0, np.int64)
_FactorTable = tuple[str, tuple[PlaceFactor, ...]]
"""The name of a policy, and what each of its factors says of a unit."""


class Telling:
    def __init__(self, order: PolicyOrder) -> None:
        self._order, self._book = order, order.book
        self._by_queue: tuple[int, dict[int, Array]] = (-1, {})
        self.refused: dict[str, Verdict] = {}
        """What the gate said last to each sleeper."""

    def lines(self) -> Mapping[str, Line]:
        table, names = self._book.table, self._book.table.queues.names
        found: dict[str, Line] = {name: Line(queue=name) for name in sorted(self._book.tree.queues)}
        is_queued = table.queue >= 0
        waits, runs = np.flatnonzero(table.is_waiting & is_queued), np.flatnonzero(table.is_running & is_queued)
        counts = [_counted(table.queue[rows], len(names)) for rows in (waits, runs, waits[table.is_held[waits]])]
        asked = self._summed(waits, table.request, len(names))
        used = self._summed(runs, table.used, len(names))
        for number in np.flatnonzero(counts[0] + counts[1]).tolist():
            name = names[number]
            line = self.rows(name)
            head = int(line[0]) if len(line) else -1
            found[name] = Line(
                queue=name,
                waiting=int(counts[0][number]),
                running=int(counts[1][number]),
                held=int(counts[2][number]),
                head=(table.works[head].job or table.ids[head]) if head >= 0 else "",
                waiting_request=self._amounts(asked[:, number]),
                running_request=self._amounts(used[:, number]),
            )
        return found

    def _summed(self, rows: Array, amounts: Array, count: int) -> Array:
        """Of each resource, the sum over the rows of each queue. In whole numbers: sums of bytes are exact."""
        sums = np.zeros((len(amounts), count), np.int64)
        queues = self._book.table.queue[rows]
        for at in np.flatnonzero(amounts[:, rows].any(axis=1)).tolist() if len(rows) else ():
            np.add.at(sums[at], queues, amounts[at, rows])
        return sums

    def rows(self, queue: str) -> Array:
        """Those that wait in the queue, in order."""
        ranked, table = self._order.ranked_now, self._book.table
        if self._by_queue[0] != ranked.number:
            self._by_queue = (ranked.number, _divided(ranked.rows, table.queue[ranked.rows]))
        number = table.queues.find(queue)
        found = self._by_queue[1].get(number, _NOBODY)
        # Who left since the line was ranked is not told of any more.
        kept: Array = found[table.is_waiting[found] & (table.queue[found] == number)]
        return kept

    def ranked(self, queue: str) -> Sequence[str]:
        ids = self._book.table.ids
        return [ids[row] for row in self.rows(queue).tolist()]

    def places(self, queue: str, first: int) -> list[Place]:
        rows = self.rows(queue)
        shown = rows[: max(first, 0)]
        # All at once: one by one, a long line would keep the scheduler waiting for seconds.
        tables = self._factor_tables(shown)
        return [
            self._place(row, at, len(rows), table)
            for at, (row, table) in enumerate(zip(shown.tolist(), tables, strict=True), 1)
        ]

    def place_of(self, unit_id: str, now: float, *, with_start: bool) -> Place | None:
        found = self._find(unit_id)
        if found is None:
            row = self._book.table.row_of.get(unit_id)
            return None if row is None else self._place(row, 0, 0)
        rows, at = found
        place = self._place(int(rows[at]), at + 1, len(rows))
        return self._with_start(place, now) if with_start else place

    def ahead_of(self, unit_id: str) -> Place | None:
        found = self._find(unit_id)
        if found is None or found[1] == 0:
            return None
        rows, at = found
        return self._place(int(rows[at - 1]), at, len(rows))

    def unit_of(self, job: str) -> str | None:
        return next(iter(sorted(self._book.jobs.get(job, ()))), None)

    def factors_of(self, unit_ids: Sequence[str]) -> dict[str, dict[str, float]]:
        """The score and each factor's part in it, of units that are known."""
        table, order, found = self._book.table, self._order, dict[str, dict[str, float]]()
        known = {
            unit_id: row for unit_id in unit_ids if (row := table.row_of.get(unit_id)) is not None and table.queue[row] >= 0
        }
        ids, rows = list(known), np.fromiter(known.values(), np.int64, len(known))
        scores = table.score[rows].tolist()
        # All of a policy at once: a step may decide about thousands.
        for policy, at, scored in order.ranker.factor_tables(rows, order.state.now, order.views.of):
            names = [factor.name for factor in policy.factors]
            for position, parts in zip(at.tolist(), scored.contributions.T.tolist(), strict=True):
                found[ids[position]] = {"score": scores[position], **dict(zip(names, parts, strict=True))}
        return found

    # -- inside ----------------------------------------------------------------------------------------------------------------

    def _find(self, unit_id: str) -> tuple[Array, int] | None:
        row = self._book.table.row_of.get(unit_id)
        if row is None or self._book.table.queue[row] < 0 or not self._book.table.is_waiting[row]:
            return None
        rows = self.rows(self._book.table.queue_name(row))
        at = np.flatnonzero(rows == row)
        return (rows, int(at[0])) if len(at) else None

    def _factor_tables(self, rows: Array) -> list[_FactorTable]:
        """Of each of `rows`, which wait or run in one queue: the name of its policy, and the factors."""
        if not len(rows):
            return []
        order, table = self._order, self._book.table
        group, policies, _ = order.ranker.policies()
        name, policy = policies[int(group[table.queue[rows[0]]])]
        scored = policy.scores(table, rows, order.state.now, order.views.of(policy.spec))
        values, parts = scored.values.T.tolist(), scored.contributions.T.tolist()
        return [
            (
                name,
                tuple(
                    PlaceFactor(factor.name, value, factor.weight, part)
                    for factor, value, part in zip(policy.factors, mine, adds, strict=True)
                ),
            )
            for mine, adds in zip(values, parts, strict=True)
        ]

    def _place(self, row: int, position: int, of: int, factor_table: _FactorTable | None = None) -> Place:
        order, table = self._order, self._book.table
        work, unit_id = table.works[row], table.ids[row]
        if factor_table is None:
            factor_table = self._factor_tables(np.array([row]))[0] if table.queue[row] >= 0 else ("", ())
        policy, factors = factor_table
        plan = order.plans.of(unit_id)
        expected = order.learning.of(row)
        starving = order.ranked_now.starving
        return Place(
            unit=unit_id,
            job=work.job,
            queue=table.queue_name(row),
            position=position,
            of=of,
            score=float(table.score[row]),
            factors=factors,
            policy=policy,
            user=work.user,
            submitted=float(table.submitted[row]),
            hold=work.hold,
            pin=None if table.pin[row] == NOT_PINNED else int(table.pin[row]),
            is_starving=bool(position) and int(table.place[row]) < FIRST + starving,
            refused=self.refused.get(unit_id) if table.refusal[row] else None,
            planned_start=plan.start if plan is not None else None,
            predicted_s=_known(table.predicted_s[row]),
            predicted_high_s=_known(table.predicted_high_s[row]),
            predicted_use=expected.use if expected is not None else {},
            affinity=expected.affinity if expected is not None else {},
            affinity_grounds=expected.affinity_grounds if expected is not None else "",
            grounds=expected.grounds if expected is not None else "",
        )

    def _with_start(self, place: Place, now: float) -> Place:
        start = self._order.forecaster.of(place.unit, now)
        if start is None:
            return place
        return msgspec.structs.replace(
            place,
            likely_start=start.likely,
            earliest_start=start.earliest,
            latest_start=start.latest,
            confidence=start.confidence,
            start_grounds=start.grounds,
        )

    def _amounts(self, sums: Array) -> dict[str, int]:
        names = self._book.state.table.names
        return {names[at]: int(sums[at]) for at in np.flatnonzero(sums).tolist() if at < len(names)}


def _counted(queues: Array, count: int) -> Array:
    return np.bincount(queues, minlength=count) if len(queues) else np.zeros(count, np.int64)


def _divided(rows: Array, queues: Array) -> dict[int, Array]:
    """The line of each queue, in the order of the one line of all."""
    order = np.argsort(queues, kind="stable")
    numbers, starts = np.unique(queues[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(rows[order], starts[1:]), strict=True)) if len(rows) else {}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
