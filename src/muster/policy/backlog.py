"""How much work was there before a unit came, and how late the last of all would be if each just waited for that.

The backlog of a unit is what the cluster still had to do when the unit first joined: over all units that waited or ran,
remaining run time times share of the cluster, added up. So long the unit would wait, first come, first served, if work were
water.
It is worked out once, and kept over all attempts of the same job: being stopped, or coming back, makes nobody younger.

Units of which nobody knows how long they run count nothing: a bound that is guessed would be none.

Pure, single-threaded. The same calls give the same figures; `kept` and `restore` carry them over a checkpoint. Many units that
join at one instant cost one look at the table together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from muster.engine.columns import Array, nonzero
from muster.policy.factors import expected_s, remaining_s
from muster.policy.table import Table

JOBS_MAX: Final = 200_000
"""So many jobs are remembered; the one that came first is forgotten first."""


class Backlog:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._first: dict[str, float] = {}
        """By job (or unit, where there is no job) and when that was submitted: its backlog when it came."""
        self._now = math.nan
        self._sum_s = 0.0
        """Of all units present at `_now`."""

    def joined(self, row: int, now: float) -> None:
        """A unit has a row, and waits: set its `backlog_s`."""
        table = self._table
        key = _key(table, row)
        if key not in self._first:
            rows = present(table) if now != self._now else np.array([row])
            work_s, is_own = self._work_s(rows, now), rows == row
            if now != self._now:
                self._now, self._sum_s = now, float(work_s[~is_own].sum())
            while len(self._first) >= JOBS_MAX:
                del self._first[next(iter(self._first))]
            self._first[key] = round(self._sum_s, 3)
            self._sum_s += float(work_s[is_own].sum())
        table.backlog_s[row] = self._first[key]

    def settle(self) -> None:
        """Others may go from here on: the next that joins looks at the table again, even at the same instant."""
        self._now = math.nan

    def longest_s(self) -> float:
        """Of all units present, the largest sum of backlog and run time; NaN where nothing is known of any."""
        rows = present(self._table)
        takes: Array = self._table.backlog_s[rows] + expected_s(self._table, rows)
        # No number counts less than any.
        return float(np.fmax.reduce(takes)) if len(takes) else math.nan

    def kept(self) -> dict[str, float]:
        """What does not follow from the objects."""
        return dict(self._first)

    def restore(self, kept: Mapping[str, float]) -> None:
        """Take over what another one kept; what has joined here since counts only where that knows nothing."""
        self.settle()
        self._first = {**kept, **{key: value for key, value in self._first.items() if key not in kept}}
        for row in present(self._table).tolist():
            self._table.backlog_s[row] = self._first.get(_key(self._table, row), math.nan)

    def _work_s(self, rows: Array, now: float) -> Array:
        """What each of the rows still has to do, in seconds of the whole cluster; 0 where nobody knows."""
        found: Array = remaining_s(self._table, rows, now) * self._table.dominant[rows]
        found[np.isnan(found)] = 0.0
        return found


def _key(table: Table, row: int) -> str:
    """All attempts of a job have it in common; a namesake that is submitted later has another."""
    return f"{table.works[row].job or table.ids[row]} {float(table.submitted[row])}"


def present(table: Table) -> Array:
    """Rows of what waits or runs."""
    return nonzero(table.is_waiting | table.is_running)
