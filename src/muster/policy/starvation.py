"""The bound on starvation: who waited longer than its policy allows goes before all that came after it.

Starving work stands before everything else, by age alone, and the first of it that does not fit has room kept for it, whatever
the policy says about backfill. So from the bound on, a unit waits only for work that is older than it, and for what runs: see
`tests/policy/test_starvation.py` for the proof.

Waiting is the time since it was submitted in which it did not run (as far as that was kept). What its owner or an administrator
keeps from starting (a hold, a limit) waits too, but keeps nobody else from starting.

Pure.
"""

from __future__ import annotations

import numpy as np

from muster.engine.columns import Array
from muster.policy.table import Table


def crossings(table: Table, rows: Array, bound_s: Array) -> Array:
    """When each of `rows` has waited for its bound, `bound_s`: from then on it starves."""
    return table.submitted[rows] + table.attained_s[rows] + bound_s


def next_crossing(times: Array, now: float) -> float | None:
    """The first of the times that is still to come."""
    if len(times) and (first := float(np.minimum.reduce(times))) > now:
        return first
    later = times[times > now]
    return float(later.min()) if len(later) else None


def bounds_of(bounds_by_queue: Array, table: Table, rows: Array) -> Array:
    """By row, from bounds by the number of the queue; a single one for all, where there is but one queue."""
    found: Array = bounds_by_queue[table.queue[rows]] if len(bounds_by_queue) > 1 else bounds_by_queue
    return found
