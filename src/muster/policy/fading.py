"""Use that fades: what users, groups and queues have had of the cluster, older use counting less.

Use is counted in shares of the cluster times seconds, by the dominant resource of each piece of work, from the moment it is
placed; so a burst of submissions is charged as it starts, not at the next look. One `Fading` per half-life that a policy names.

Pure, single-threaded. Invariant: `value` is exact as of `as_of`, with everything in `rate` going on since.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from muster.engine.columns import Array

NAMES_MAX: Final = 16_384
"""When more names are known, those whose use has faded away are forgotten."""
_FADED: Final = 1e-9


class Fading:
    def __init__(self, half_life_s: float, now: float) -> None:
        self.half_life_s = half_life_s
        self.as_of = now
        self._numbers: dict[str, int] = {}
        self._value: Array = np.zeros(16)
        self._rate: Array = np.zeros(16)

    def advance(self, now: float) -> None:
        """Let the time pass up to `now`."""
        passed = now - self.as_of
        if passed <= 0:
            return
        kept = 2.0 ** (-passed / self.half_life_s)
        # Exact also for half-lives so long that nothing seems to fade: 1 - kept would be 0, and no use would count.
        grown = -math.expm1(-passed * math.log(2) / self.half_life_s) * self.half_life_s / math.log(2)
        self._value = self._value * kept + self._rate * grown
        self.as_of = now

    def change(self, name: str, rate: float) -> None:
        """It uses so much more (or less) of the cluster from `as_of` on."""
        if name:
            number = self._number(name)
            self._rate[number] = max(self._rate[number] + rate, 0.0) if abs(self._rate[number] + rate) > _FADED else 0.0

    def add(self, name: str, use: float) -> None:
        """Use from before, faded to `as_of`."""
        if name:
            number = self._number(name)  # which may make the columns anew
            self._value[number] += use

    def values(self, names: Sequence[str]) -> Array:
        """Faded use of each."""
        numbers = self._numbers
        return np.array([self._value[numbers[name]] if name in numbers else 0.0 for name in names], np.float64)

    def rates(self) -> dict[str, float]:
        return {name: float(self._rate[number]) for name, number in self._numbers.items() if self._rate[number]}

    def kept(self) -> dict[str, float]:
        """For a checkpoint; rates follow from what runs."""
        return {name: float(self._value[number]) for name, number in self._numbers.items() if self._value[number] > 0}

    def restore(self, values: Mapping[str, float], as_of: float) -> None:
        self.as_of = as_of
        self._value[:] = 0.0
        for name, value in values.items():
            number = self._number(name)
            self._value[number] = value

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            if len(self._numbers) >= NAMES_MAX:
                self._forget()
            number = self._numbers[name] = len(self._numbers)
            if number >= len(self._value):
                self._value = np.concatenate([self._value, np.zeros_like(self._value)])
                self._rate = np.concatenate([self._rate, np.zeros_like(self._rate)])
        return number

    def _forget(self) -> None:
        """Of names that use nothing now, keep the half that has used most."""
        by_use = sorted(
            self._numbers, key=lambda name: (-self._rate[self._numbers[name]], -self._value[self._numbers[name]], name)
        )
        kept = [name for place, name in enumerate(by_use) if place < NAMES_MAX // 2 or self._rate[self._numbers[name]] > 0]
        numbers = [self._numbers[name] for name in kept]
        value, rate = self._value[numbers], self._rate[numbers]
        self._value[:] = 0.0
        self._rate[:] = 0.0
        self._value[: len(kept)], self._rate[: len(kept)] = value, rate
        self._numbers = {name: place for place, name in enumerate(kept)}


def ratios(use: Array, weight: Array) -> Array:
    """Use over entitlement among those beside each other: 1 is exactly its share of what all have used, by weight."""
    used, weights = float(use.sum()), float(weight.sum())
    if used <= 0.0 or weights <= 0.0:
        return np.zeros(len(use))
    return (use / used) / np.maximum(weight / weights, _FADED)
