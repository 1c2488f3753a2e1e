"""Instants and how Kubernetes writes them.

An instant is `float` seconds since 1970 in UTC. Code that needs the present takes a `Clock`; `wall_clock` is the one real
clock of the project, named only where a process starts. Everything else here is pure.

What is set so far ahead that its time has no text (users may say "after 2**63 seconds") gets the last one there is: it never
comes either way.

Invariants, within the years 1 to 9999: `parse_time(format_time(t)) == floor(t)`; `parse_time(format_micro_time(t))` is within
half a microsecond of `t`.
"""

from __future__ import annotations

import calendar
import functools
import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

import msgspec

Clock = Callable[[], float]
"""Gives the present instant. Simulations hand in a virtual one."""

Otherwise = TypeVar("Otherwise", float, None)

Timestamp = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""The type of a view's field that holds a time with whole seconds."""

MICRO: Final = "x-muster-micro-time"
"""On a text of the format date-time: it has six decimals, Kubernetes' MicroTime. Its clients can read no other."""

MicroTimestamp = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time", MICRO: True})]
"""The type of a view's field that holds a time with microseconds."""

wall_clock: Clock = time.time  # noqa: TID251 - the one real clock, handed to everything else

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,32}))?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_TEXT_LEN_MAX = 80
FIRST_S = -62_135_596_800
LAST_S = 253_402_300_799
"""The first and the last second that can be written: years have four digits."""


def format_time(instant: float) -> str:
    """`2026-11-15T20:05:41Z`. Fractions of a second are cut off, as Kubernetes does."""
    return _format_second(math.floor(_finite(instant)))


@functools.lru_cache(maxsize=64)
def _format_second(whole_s: int) -> str:
    """Remembered, because thousands of objects are stamped in the same second. Arithmetic on whole seconds is exact where
    fromtimestamp(float) would round; without a zone, so that isoformat adds none."""
    written_s = min(max(whole_s, FIRST_S), LAST_S)
    return datetime.fromtimestamp(written_s, tz=UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def format_micro_time(instant: float) -> str:
    """`2026-11-15T20:05:41.000250Z`, rounded to the nearest microsecond: what leases and events carry."""
    _finite(instant)
    whole_s = math.floor(instant)
    micros = round((instant - whole_s) * 1_000_000)
    if micros == 1_000_000:
        whole_s, micros = whole_s + 1, 0
    return f"{_format_second(whole_s)[:-1]}.{micros:06d}Z"


def parse_time(text: str) -> float:
    """The instant that an RFC 3339 `text` names: any offset, any number of decimals. ValueError says what is wrong."""
    if not isinstance(text, str):
        raise ValueError(f"a time must be a string like 2026-11-15T20:05:41Z, not {type(text).__name__}")
    match = _RFC3339.fullmatch(text) if len(text) <= _TEXT_LEN_MAX else None
    if match is None:
        raise ValueError(f"{text[:_TEXT_LEN_MAX]!r} is not an RFC 3339 time; write it like 2026-11-15T20:05:41Z")
    year, month, day, hour, minute, second = (int(part) for part in match.group(1, 2, 3, 4, 5, 6))
    offset_s = 0
    if match[8]:
        offset_hour, offset_minute = int(match[9]), int(match[10])
        if offset_hour > 23 or offset_minute > 59:
            raise ValueError(f"{text!r} has an impossible UTC offset; offsets go from -23:59 to +23:59")
        offset_s = (offset_hour * 3600 + offset_minute * 60) * (-1 if match[8] == "-" else 1)
    try:
        # timegm alone would quietly carry 30 February into March; datetime refuses it.
        naive = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"{text!r} is no moment on the calendar: {error}") from None
    fraction_s = float(f"0.{match[7]}") if match[7] else 0.0
    return calendar.timegm(naive.timetuple()) - offset_s + fraction_s


def time_or(text: object, otherwise: Otherwise) -> float | Otherwise:
    """The instant that `text` names; `otherwise` when it is empty, or no time that can be read."""
    try:
        return parse_time(text) if isinstance(text, str) and text else otherwise
    except ValueError:
        return otherwise


def _finite(instant: float) -> float:
    if not math.isfinite(instant):
        raise ValueError(f"{instant} is not a moment in time")
    return instant
