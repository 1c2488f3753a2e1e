"""Counters to rates: what was used between two readings. Pure.

A counter that went back (a group or an interface was made anew) and two readings that lie far apart say nothing about the time
between them: the next reading starts afresh. So a rate is never negative, and never spread over a time that was not watched.
"""

from __future__ import annotations

from typing import Final

import msgspec

GAP_INTERVALS_MAX: Final = 4
"""Readings further apart than so many intervals are not compared."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Counters at one moment; None: not known."""

    at: float
    cpu_ns: int | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None


class Rates(msgspec.Struct, frozen=True):
    """NaN where there is none."""

    cpu_milli: float
    egress_bps: float
    ingress_bps: float


NAN: Final = float("nan")


def rates(before: Reading | None, now: Reading, every_s: float) -> Rates | None:
    """None when nothing can be said: the first reading, no time between, too much of it, or CPU time that went back."""
    if before is None:
        return None
    seconds = now.at - before.at
    if not 0 < seconds <= every_s * GAP_INTERVALS_MAX:
        return None
    if before.cpu_ns is not None and now.cpu_ns is not None and now.cpu_ns < before.cpu_ns:
        return None
    return Rates(
        _rate(before.cpu_ns, now.cpu_ns, seconds) / 1e6,
        _rate(before.sent_bytes, now.sent_bytes, seconds) * 8,
        _rate(before.received_bytes, now.received_bytes, seconds) * 8,
    )


def _rate(before: int | None, now: int | None, seconds: float) -> float:
    if before is None or now is None or now < before:
        return NAN
    return (now - before) / seconds
