"""The periods over which use is added up, in UTC. Pure; times are whole milliseconds since 1970.

Every period begins and ends at midnight, so that sums of days give all of them: a week begins on Monday, `Ever` in 1970.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from muster.objects.kinds.muster_base import Period

DAY_MS: Final = 86_400_000
PERIODS: Final[tuple[Period, ...]] = ("Day", "Week", "Month", "Year", "Ever")
END_MS: Final = 253_370_764_800_000
"""The year 9999: the end of `Ever`."""


def day_of(instant_ms: int) -> int:
    """The number of the day, from 1970-01-01."""
    return instant_ms // DAY_MS


def bounds_ms(period: Period, instant_ms: int) -> tuple[int, int]:
    """First millisecond of the period that holds the instant, and of the next one."""
    if period == "Ever":
        return 0, END_MS
    day = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day_of(min(max(instant_ms, 0), END_MS - 1)))
    if period == "Day":
        first, after = day, day + timedelta(days=1)
    elif period == "Week":
        first = day - timedelta(days=day.weekday())
        after = first + timedelta(days=7)
    elif period == "Month":
        first = day.replace(day=1)
        after = first.replace(year=first.year + 1, month=1) if first.month == 12 else first.replace(month=first.month + 1)
    else:
        first = day.replace(month=1, day=1)
        after = first.replace(year=first.year + 1)
    return _ms(first), _ms(after)


def _ms(day: datetime) -> int:
    return (day - datetime(1970, 1, 1, tzinfo=UTC)).days * DAY_MS
