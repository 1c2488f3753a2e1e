"""What came, and what will come as it came before: the part of possible futures that is not in the line yet.

The last ARRIVALS_MAX units are remembered as they were when they came. A future has them come again: as on one of the last
days, at this time of day; within the first day, as in the time until now. Each draws its run time anew. Draws are a fixed
function of the member and the number of the unit: equal books give equal futures. Pure, single-threaded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from muster.engine.columns import Array
from muster.policy.forward import Waits
from muster.policy.quantiles import HIGH_LOGIT, plain

MEMBERS: Final = 8
ARRIVALS_MAX: Final = 4_096
DAYS_MAX: Final = 7
DAY_S: Final = 86_400.0
WINDOW_S_MIN: Final = 3_600.0
RUN_S_MAX: Final = 30 * DAY_S


class Arrival:
    """Work that came: when, asking for what, how long it was expected to run, and how it stood: its score, and its place in the
    line (0 to 1); NaN where that is not known."""

    __slots__ = ("at", "high_s", "median_s", "pods", "request", "score", "standing")

    def __init__(self, at: float, request: tuple[int, ...], pods: int, median_s: float, high_s: float) -> None:
        self.at, self.request, self.pods, self.median_s, self.high_s = at, request, pods, median_s, high_s
        self.standing = self.score = math.nan


class Arrivals:
    def __init__(self) -> None:
        self.kept: deque[Arrival] = deque(maxlen=ARRIVALS_MAX)
        """By time."""

    def past(self, lane_of: Callable[[Sequence[int], int, float], int], line_len: int, *, by_score: bool) -> Past:
        """For one play: in lanes, and with keys to compare with those of a line of so many."""
        alike: dict[tuple[tuple[int, ...], int, float], int] = {}
        for one in self.kept:
            if (one.request, one.pods, one.high_s) not in alike:
                alike[one.request, one.pods, one.high_s] = lane_of(one.request, one.pods, one.high_s)
        known = np.array([one.score if by_score else one.standing for one in self.kept])
        usual = known[~np.isnan(known)]
        middle = float(np.median(usual)) if len(usual) else (-1e299 if by_score else 1.0)
        filled = np.where(np.isnan(known), middle, known)
        keys = -filled if by_score else filled * line_len - 0.5
        return Past(self.kept, [alike[one.request, one.pods, one.high_s] for one in self.kept], keys.tolist())

    def checkpoint(self) -> list[list[Any]]:
        return [
            [one.at, list(one.request), one.pods, one.median_s, one.high_s, plain(one.standing), plain(one.score)]
            for one in self.kept
        ]

    def restore(self, kept: Sequence[Sequence[Any]]) -> None:
        self.kept.clear()
        for at, request, pods, median_s, high_s, standing, score in kept:
            arrival = Arrival(float(at), tuple(int(one) for one in request), int(pods), float(median_s), float(high_s))
            arrival.standing = math.nan if standing is None else float(standing)
            arrival.score = math.nan if score is None else float(score)
            self.kept.append(arrival)


class Past:
    """Arrivals in columns."""

    def __init__(self, arrivals: Sequence[Arrival], lanes: Sequence[int], keys: Sequence[float]) -> None:
        self._at = np.array([one.at for one in arrivals])
        self._median_s = np.array([one.median_s for one in arrivals])
        self._high_s = np.array([one.high_s for one in arrivals])
        self._lanes, self._keys = lanes, keys

    def coming(self, now: float, member: int) -> Iterator[Waits]:
        """What will come in one future, by time, for ever."""
        span = now - float(self._at[0]) if len(self._at) else 0.0
        if span < WINDOW_S_MIN:
            return
        if span >= DAY_S:
            period = DAY_S * (1 + member % min(int(span / DAY_S), DAYS_MAX))
            begin = now - period
        else:
            period, begin = span, now - span * (1.0 - (member * 5 % MEMBERS) / MEMBERS)
        first = int(np.searchsorted(self._at, now - period, side="right"))
        phase = np.mod(self._at[first:] - begin, period)
        count = len(phase)
        lengths = drawn(
            self._median_s[first:], self._high_s[first:], uniform(np.arange(count), member, 3), np.zeros(count)
        ).tolist()
        high_s = self._high_s[first:].tolist()
        turns, phases = np.argsort(phase, kind="stable").tolist(), phase.tolist()
        shift = 0.0
        while turns:
            for at in turns:
                key, lane, said_s = self._keys[first + at], self._lanes[first + at], high_s[at]
                yield Waits(key, lane, lengths[at], phases[at] + shift, said_s=said_s)
            shift += period


def drawn(median: Array, high: Array, chance: Array, served: Array) -> Array:
    """Run times in all, given that so much was served already."""
    width = np.log(high / median) / HIGH_LOGIT
    # The odds that it would have ended by now; as logarithms, as they may be astronomical.
    odds = np.clip(np.log(np.maximum(served, 1e-9) / median) / width, -60.0, 60.0)
    before = 1.0 / (1.0 + np.exp(-odds))
    level = np.clip(before + (1.0 - before) * chance, 1e-6, 1.0 - 1e-6)
    times: Array = np.minimum(median * np.power(level / (1.0 - level), width), RUN_S_MAX)
    return np.maximum(times, served + 1.0)


def uniform(rows: Array, member: int, stream: int) -> Array:
    """Numbers between 0 and 1 that look like chance and are none: a mix of the bits of row, member and stream."""
    mixed = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
        (member * 7 + stream) * 0xD1B54A32D192ED03 % 2**64
    )
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    found: Array = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
    return found
