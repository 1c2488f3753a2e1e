"""How long to wait before trying again: exponential, bounded, and spread by name instead of by chance.

Many clients that fail together must not come back together. The usual cure is a random factor; here the factor is a hash of
who waits and how often it has tried, so that the same history gives the same waits (replay, simulation) and two names still
wait differently. Pure, but for `is_cancelled`.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec


def spread(*parts: object) -> float:
    """A number in [0, 1) that depends on `parts` alone and looks random between different `parts`."""
    digest = hashlib.blake2b("\x00".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest) / (1 << 56)


def doubled_s(base_s: float, times: int, max_s: float) -> float:
    """`base_s` doubled so many times, at most `max_s`: the pauses that users set for their own work, so without a spread."""
    return float(max(min(base_s * 2 ** min(max(times, 0), 64), max_s), 0.0))


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """`delay_s(0, who)` is the wait after the first failure. The spread takes away up to `spread_ratio` of each wait."""

    base_s: float = 0.005
    max_s: float = 60.0
    factor: float = 2.0
    spread_ratio: float = 0.25

    def __post_init__(self) -> None:
        if not (0 < self.base_s <= self.max_s and self.factor >= 1 and 0 <= self.spread_ratio < 1):
            raise ValueError(f"{self} makes no sense: it needs 0 < base_s <= max_s, factor >= 1, 0 <= spread_ratio < 1")

    def delay_s(self, failures_before: int, who: object = "") -> float:
        full_s = self.max_s
        # Beyond 64 doublings any sensible base has reached its maximum, and a float power would overflow.
        if failures_before < 64:
            full_s = min(self.max_s, self.base_s * self.factor**failures_before)
        return full_s * (1 - self.spread_ratio * spread(who, failures_before))


def is_cancelled() -> bool:
    """Whether the running task was told to end.

    Loops that retry whatever fails ask this first: a clean-up that fails while a cancellation is on its way would hide it, and
    the loop would go on for ever.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
