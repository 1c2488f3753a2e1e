"""Ages and durations for people, as kubectl shows them. Pure; the present instant is handed in."""

from __future__ import annotations

from muster.objects.time import parse_time

INVALID = "<invalid>"
UNKNOWN = "<unknown>"


def since(timestamp: object, now: float) -> str:
    """The age of an RFC 3339 time, in kubectl's short form."""
    if not isinstance(timestamp, str) or not timestamp:
        return UNKNOWN
    try:
        return human_duration(now - parse_time(timestamp))
    except ValueError:
        return INVALID


def human_duration(seconds: float) -> str:
    """`5s`, `2m3s`, `45m`, `3h5m`, `26h`, `3d4h`, `40d`, `2y30d`: two units at most, fewer as it gets longer."""
    whole = int(seconds)
    if seconds < -1:
        return INVALID
    if whole <= 0:
        return "0s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 2920:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big}{big_unit}{small}{small_unit}" if small else f"{big}{big_unit}"
