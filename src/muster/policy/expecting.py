"""When running work is expected to end, and how long waiting work would run: columns of seconds.

What its owner estimated counts, else what history predicts. Work of which nobody knows anything is taken to run for HORIZON_S:
so it ends in the order in which it started, long after all that is known about, and whoever plans by it keeps to that order.

Work that has run longer than was said is expected to run on for at least as long as it is over, at least OVERRUN_S_MIN. That
grows in doublings, not with every second: between two of them an answer stays as it is (`expected_ends` says until when).

Pure.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from muster.engine.columns import Array
from muster.policy.table import Table

HORIZON_S: Final = 30 * 86_400.0
OVERRUN_S_MIN: Final = 60.0


def expected_ends(table: Table, rows: Array, now: float) -> tuple[Array, Array]:
    """Of running rows: when each is expected to end, and until when that holds if it does not."""
    run = np.where(np.isnan(table.estimate_s[rows]), table.predicted_s[rows], table.estimate_s[rows])
    run = np.where(np.isnan(run), HORIZON_S, np.maximum(run - table.attained_s[rows], 0.0))
    said = table.started[rows] + run
    over = now - said
    is_over = over >= 0
    if not is_over.any():
        return said, said
    # The smallest of 60, 120, 240 ... seconds that is more than it is over.
    doublings = np.floor(np.log2(np.maximum(over, OVERRUN_S_MIN) / OVERRUN_S_MIN)) + (over >= OVERRUN_S_MIN)
    step = OVERRUN_S_MIN * np.exp2(doublings)
    return np.where(is_over, said + 2.0 * step, said), np.where(is_over, said + step, said)


def end_said(table: Table, row: int) -> float:
    """When a running row is to end, as was said when it started."""
    run = float(table.estimate_s[row])
    if math.isnan(run):
        run = float(table.predicted_s[row])
    return float(table.started[row]) + (HORIZON_S if math.isnan(run) else max(run - float(table.attained_s[row]), 0.0))


def run_times(table: Table, rows: Array) -> Array:
    """Of waiting rows: how long each would run, on the safe side; infinite where nobody knows."""
    run = np.where(np.isnan(table.estimate_s[rows]), table.predicted_high_s[rows], table.estimate_s[rows])
    return np.where(np.isnan(run), np.inf, np.maximum(run - table.attained_s[rows], 0.0))


def run_time(table: Table, row: int) -> float:
    """`run_times` of one row."""
    run = float(table.estimate_s[row])
    if math.isnan(run):
        run = float(table.predicted_high_s[row])
    return math.inf if math.isnan(run) else max(run - float(table.attained_s[row]), 0.0)


def kept_service(table: Table, rows: Array, now: float) -> Array:
    """What running rows would keep if they were stopped now: what was kept before, and what was saved since the start."""
    elapsed = np.fmax(now - table.started[rows], 0.0)
    every = table.checkpoint_s[rows]
    with np.errstate(invalid="ignore", divide="ignore"):
        saved = np.where(every > 0, np.floor(elapsed / every) * every, np.where(every == 0, elapsed, 0.0))
    kept: Array = table.attained_s[rows] + saved
    return kept
