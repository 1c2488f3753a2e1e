"""Samples of use over time, in columns, bounded; and what is said about a window of them. Pure.

A percentile is a sample, not a mean of two: of n ascending samples the one at int(n * p) - 1, the first at least, as
Koordinator's agent has it. Ages are by a clock that never goes back, so that setting the machine's time changes nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

CPU, MEMORY, MEMORY_WITH_CACHE, EGRESS, INGRESS = range(5)
COLUMNS: Final = 5
"""Thousandths of a core, bytes, bytes, bits per second twice. NaN: not known for this sample."""
PERCENTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
SPAN_RATIO_MIN: Final = 0.5
"""A window is told only when its samples reach over at least this part of it."""
ROWS_MAX: Final = 8192

Values = NDArray[np.float64]


class Ring:
    """The last `rows` samples."""

    def __init__(self, rows: int) -> None:
        self._rows = min(max(rows, 2), ROWS_MAX)
        self._at = np.zeros(self._rows)
        self._values = np.zeros((self._rows, COLUMNS))
        self._next = 0
        self._len = 0

    def __len__(self) -> int:
        return self._len

    @property
    def last_at(self) -> float | None:
        return float(self._at[self._next - 1]) if self._len else None

    @property
    def last(self) -> Values | None:
        return self._values[self._next - 1] if self._len else None

    def add(self, at: float, values: Sequence[float] | Values) -> None:
        """A sample that is not newer than the last one is left out."""
        if self._len and at <= self._at[self._next - 1]:
            return
        self._at[self._next] = at
        self._values[self._next] = values
        self._next = (self._next + 1) % self._rows
        self._len = min(self._len + 1, self._rows)

    def resized(self, rows: int) -> Ring:
        """With other bounds, and the newest samples that fit."""
        other = Ring(rows)
        for index in self._order()[-other._rows :]:
            other.add(float(self._at[index]), self._values[index])
        return other

    def window(self, now: float, seconds: float) -> tuple[Values, Values]:
        """When, and what, of the samples that are at most `seconds` old; oldest first."""
        order = self._order()
        at = self._at[order]
        inside = order[at >= now - seconds]
        return self._at[inside], self._values[inside]

    def _order(self) -> NDArray[np.intp]:
        return (np.arange(self._next - self._len, self._next) % self._rows).astype(np.intp)


def average(values: Values) -> Values:
    """Of each column; NaN where there is none."""
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def percentile(values: Values, part: float) -> Values:
    """Of each column; NaN where there is none."""
    ordered = np.sort(values, axis=0)  # NaN goes last.
    counts = (~np.isnan(values)).sum(axis=0)
    index = np.maximum((counts * part).astype(np.intp) - 1, 0)
    return np.where(counts > 0, ordered[np.minimum(index, len(ordered) - 1), np.arange(values.shape[1])], np.nan)


def aggregate(ring: Ring, now: float, seconds: float, every_s: float) -> Mapping[str, Values] | None:
    """`avg` and the percentiles of a window; None while its samples reach over less than half of it. A sample stands for the
    `every_s` before it."""
    at, values = ring.window(now, seconds)
    if not len(at) or at[-1] - at[0] + every_s < seconds * SPAN_RATIO_MIN:
        return None
    return {"avg": average(values)} | {name: percentile(values, part) for name, part in PERCENTILES.items()}
