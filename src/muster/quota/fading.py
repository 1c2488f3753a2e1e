"""Past use that fades: what was used a half life ago counts half. Pure, worked out in closed form: no steps, no drift.

A run at rate r from s to e counts, at time t >= e, r * H / ln 2 * (2^((e-t)/H) - 2^((s-t)/H)) resource-seconds. Sums of such
terms fade together, so a whole history is one number per resource, and the moment that it stands for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from muster.quota.ledger import BITS_MS_PER_BYTE, Run

_REBASE_HALF_LIVES: Final = 64.0


class Faded:
    """Use of one user, group or queue, by resource."""

    def __init__(self, half_life_s: float) -> None:
        """`spec.fairShare.halfLifeSeconds` of a policy."""
        if not half_life_s > 0:
            raise ValueError(f"a half life of {half_life_s} s is not more than nothing")
        self._half_life_s = half_life_s
        self._at_s = 0.0
        self._sums: dict[str, float] = {}

    def add(self, rates: Mapping[str, float], start_s: float, end_s: float) -> None:
        """Use at these rates from start to end."""
        if end_s <= start_s:
            return
        self._rebase(end_s)
        weight = weight_s(start_s, end_s, self._at_s, self._half_life_s)
        for name, rate in rates.items():
            self._sums[name] = self._sums.get(name, 0.0) + rate * weight

    def add_run(self, run: Run, now_ms: int) -> None:
        """A run, up to now when it goes on."""
        ended = run.until(now_ms)
        assert ended.end_ms is not None
        self.add(rates_of(ended), run.start_ms / 1000, ended.end_ms / 1000)

    def at(self, instant_s: float, running: Iterable[Run] = ()) -> dict[str, float]:
        """Faded use in resource-seconds, with what runs at that moment."""
        fade = math.exp2(min((self._at_s - instant_s) / self._half_life_s, 1000.0))
        found = {name: amount * fade for name, amount in self._sums.items()}
        for run in running:
            ended = run.until(round(instant_s * 1000))
            assert ended.end_ms is not None
            weight = weight_s(run.start_ms / 1000, ended.end_ms / 1000, instant_s, self._half_life_s)
            for name, rate in rates_of(ended).items():
                found[name] = found.get(name, 0.0) + rate * weight
        return {name: amount for name, amount in found.items() if amount > 0}

    def _rebase(self, end_s: float) -> None:
        """Keep the moment that the sums stand for near the present, so that no power overflows."""
        if end_s - self._at_s > _REBASE_HALF_LIVES * self._half_life_s:
            fade = math.exp2((self._at_s - end_s) / self._half_life_s)
            self._sums = {name: amount * fade for name, amount in self._sums.items()}
            self._at_s = end_s


def weight_s(start_s: float, end_s: float, at_s: float, half_life_s: float) -> float:
    """How many seconds at full weight the time from start to end counts at `at_s`."""
    scale = half_life_s / math.log(2)
    # 2^x - 2^y with y < x, without losing digits when the two are close.
    return scale * math.exp2((end_s - at_s) / half_life_s) * -math.expm1((start_s - end_s) / scale)


def rates_of(run: Run) -> dict[str, float]:
    """What the ended run used per second: what it asked for, or what it moved, spread over it."""
    assert run.end_ms is not None
    rates = {name: float(amount) for name, amount in run.amounts.items() if name not in run.moved}
    length_ms = run.end_ms - run.start_ms
    if length_ms > 0:
        rates.update({name: moved * BITS_MS_PER_BYTE / length_ms for name, moved in run.moved.items()})
    return rates
