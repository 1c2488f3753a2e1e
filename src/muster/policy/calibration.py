"""How wide an interval must be for what it promises: learned from how earlier forecasts came out (conformal prediction).

A forecast has a middle and a spread, both of the logarithm of the wait. When the wait is over, its distance from the middle, in
spreads, is kept. A new interval takes the NEAR kept ones that are nearest to it, by middle and by size of the work, and goes so
far to both sides that the promised part of them would have been inside: of all such intervals the shortest in seconds.

Promises that were broken too often make it wider, and kept ones slowly narrower (adaptive conformal inference): `miss` is the
part that it aims to leave out, moved by RATE with each outcome, so that in the long run the promised part is inside, whatever
the waits do. Promises are broken in bursts: one long run that was not foreseen makes all that wait behind it late. That is paid
back slowly: below MISS_LOW the part shrinks ever less, as an interval that leaves out next to nothing is very wide, and helps
nobody who was late already. A wait that is longer than its interval counts as soon as that is sure, not when it ends: else only
short waits would teach.

Pure, bounded (KEPT_MAX), deterministic. Before KEPT_MIN outcomes there is no interval: nothing honest could be said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from muster.policy.quantiles import HIGH

CONFIDENCE: Final = HIGH
RATE: Final = 0.02
KEPT_MIN: Final = 80
KEPT_MAX: Final = 500
NEAR: Final = 120
SIZE_WEIGHT: Final = 0.5
"""Twice the size is as far away as a wait that differs by so much of a logarithm."""
MISS_MAX: Final = 0.4
MISS_LOW: Final = 0.04
_EASES: Final = 0.1
SPLITS: Final = (0.0, 0.1, 0.2, 0.3, 0.5)
"""Of the part that is left out: how much of it on the early side. The split that gives the shortest interval is taken."""
AT_ONCE_S: Final = 60.0
"""Added to waits before the logarithm: below a minute, twice as long is no difference that matters."""
_BEYOND: Final = 0.3
_DEEP: Final = 0.3
"""Once so much is owed, nothing that was seen is wide enough: intervals grow for as long as promises fail."""
_LONGER: Final = 0.2


class Calibration:
    def __init__(self) -> None:
        self._middles: list[float] = []
        self._distances: list[float] = []
        self._sizes: list[float] = []
        self._turn = 0
        self.miss = 1.0 - CONFIDENCE
        self.told = 0
        """Intervals whose outcome is known, and how many of them held."""
        self.held = 0

    @property
    def kept(self) -> int:
        return len(self._middles)

    def interval(self, middle: float, spread: float, size: float = 0.0) -> tuple[float, float] | None:
        """From and to, as logarithms of waits; None while too little is known."""
        count = len(self._middles)
        if count < KEPT_MIN:
            return None
        # The latest first, so that it is they who count where many are equally near.
        turns = np.arange(self._turn, self._turn - count, -1) % KEPT_MAX if count == KEPT_MAX else np.arange(count - 1, -1, -1)
        middles, sizes = np.array(self._middles)[turns], np.array(self._sizes)[turns]
        nearest = turns[np.argsort(np.abs(middles - middle) + SIZE_WEIGHT * np.abs(sizes - size), kind="stable")[:NEAR]]
        kept = np.sort(np.array(self._distances)[nearest]).tolist()
        miss = self.left_out
        best, width = (0.0, 0.0), math.inf
        for split in SPLITS:
            low, high = self._reach(kept, miss * split, 1.0 - miss * (1.0 - split))
            first = max(middle + spread * low, math.log(AT_ONCE_S))
            last = max(middle + spread * high, first)
            if math.exp(last) - math.exp(first) < width:
                best, width = (first, last), math.exp(last) - math.exp(first)
        return best

    @property
    def left_out(self) -> float:
        """The part that a new interval is to leave out."""
        return min(self.miss, MISS_MAX) if self.miss >= MISS_LOW else MISS_LOW * math.exp((self.miss - MISS_LOW) / _EASES)

    def _reach(self, kept: list[float], low: float, high: float) -> tuple[float, float]:
        """The distances between which the part from `low` to `high` lies, of one more like those that are kept."""
        count = len(kept)
        first, last = math.floor(low * (count + 1)) - 1, math.ceil(high * (count + 1)) - 1
        more = _BEYOND + max(-self.miss - _DEEP, 0.0)
        beyond = kept[-1] + more * max(kept[-1] - kept[count // 2], _LONGER)
        return (kept[first] if first >= 0 else -math.inf), (kept[last] if last < count else beyond)

    def add(self, middle: float, distance: float, size: float = 0.0) -> int:
        """An outcome; the number under which it may be corrected."""
        self._turn += 1
        if len(self._middles) < KEPT_MAX:
            self._middles.append(middle)
            self._distances.append(distance)
            self._sizes.append(size)
            return len(self._middles) - 1
        at = self._turn % KEPT_MAX
        self._middles[at], self._distances[at], self._sizes[at] = middle, distance, size
        return at

    def correct(self, number: int, middle: float, distance: float) -> None:
        """It waited longer still; nothing if the outcome is not kept any more."""
        if self._middles[number] == middle:
            self._distances[number] = distance

    def count(self, *, has_held: bool) -> None:
        """An interval that was told came true, or did not."""
        self.told += 1
        self.held += has_held
        self.miss += RATE * ((1.0 - CONFIDENCE) - (not has_held))

    def checkpoint(self) -> dict[str, Any]:
        return {
            "middles": list(self._middles),
            "distances": list(self._distances),
            "sizes": list(self._sizes),
            "turn": self._turn,
            "miss": self.miss,
            "told": [self.told, self.held],
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        self._middles = [float(one) for one in kept["middles"]][:KEPT_MAX]
        self._distances = [float(one) for one in kept["distances"]][: len(self._middles)]
        self._sizes = [float(one) for one in kept["sizes"]][: len(self._middles)]
        self._turn, self.miss = int(kept["turn"]), float(kept["miss"])
        self.told, self.held = (int(one) for one in kept["told"])


def log_wait(seconds: float) -> float:
    return math.log(max(seconds, 0.0) + AT_ONCE_S)


def wait_of(logarithm: float) -> float:
    return max(math.exp(logarithm) - AT_ONCE_S, 0.0)


def longer(distance: float) -> float:
    """A distance that is known to be at least this."""
    return distance + _LONGER
