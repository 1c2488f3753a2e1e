"""How often a long-lived process looks for reference cycles.

Called once, from the process's own start. The interpreter's defaults suit short scripts: with caches of a hundred thousand
objects that hold no cycles, a good part of the scheduler's time goes into looking through them again and again.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (50_000, 20, 50)
"""Allocations before the young are looked at; then how often before the older ones are."""


def tune_for_long_runs() -> None:
    gc.set_threshold(*_THRESHOLDS)
