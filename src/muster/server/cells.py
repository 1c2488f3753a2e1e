"""What table printers are made of: the shape of a printer, ages, and reading objects that may have any shape.

Pure; the present instant is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from muster.objects.resources import Column
from muster.objects.status import Raw
from muster.objects.time import parse_time

INVALID = "<invalid>"
UNKNOWN = "<unknown>"
NONE = "<none>"
_ITEMS_SHOWN_MAX = 3

Cells = Callable[[Raw, float], Sequence[Any]]
"""From an object and the present instant to the cells after the name."""


class Printer(msgspec.Struct, frozen=True):
    """How one kind is shown: `cells` gives one value per column."""

    columns: tuple[Column, ...]
    cells: Cells


def column(name: str, type_: str = "string", *, wide: bool = False) -> Column:
    return Column(name=name, path="", type=type_, priority=1 if wide else 0)


def since(timestamp: Any, now: float) -> str:
    """The age of an RFC 3339 time, in kubectl's short form."""
    if not isinstance(timestamp, str) or not timestamp:
        return UNKNOWN
    try:
        return human_duration(now - parse_time(timestamp))
    except ValueError:
        return INVALID


def age(raw: Raw, now: float) -> str:
    return since(raw["metadata"].get("creationTimestamp"), now)


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


# --- reading


def part(raw: Any, *path: str) -> Raw:
    """The object at `path`; empty when something else or nothing is there."""
    for key in path:
        raw = raw.get(key) if isinstance(raw, dict) else None
    return raw if isinstance(raw, dict) else {}


def items(raw: Raw, key: str) -> list[Raw]:
    """The objects in the list `raw[key]`."""
    found = raw.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def number(raw: Raw, key: str) -> int:
    found = raw.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def text(raw: Raw, key: str, default: str = "") -> str:
    found = raw.get(key)
    return str(found) if found not in (None, "") else default


def pairs(mapping: Any) -> str:
    """`a=b,c=d`, the way selectors and node selectors are shown."""
    shown = ",".join(f"{key}={value}" for key, value in sorted(mapping.items())) if isinstance(mapping, dict) else ""
    return shown or NONE


def shortened(values: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    if not values:
        return NONE
    more = len(values) - _ITEMS_SHOWN_MAX
    shown = ",".join(values[:_ITEMS_SHOWN_MAX])
    return f"{shown} + {more} more..." if more > 0 else shown


def selector_text(selector: Raw) -> str:
    """A label selector in kubectl's one-line form."""
    terms = [f"{key}={value}" for key, value in sorted(part(selector, "matchLabels").items())]
    for term in items(selector, "matchExpressions"):
        key, operator = text(term, "key"), text(term, "operator")
        values = ",".join(str(value) for value in term.get("values") or [])
        terms.append({"Exists": key, "DoesNotExist": f"!{key}"}.get(operator, f"{key} {operator.lower()} ({values})"))
    return ",".join(terms) or NONE


def containers_and_images(template: Raw) -> tuple[str, str]:
    """Names and images of the containers of a pod template."""
    found = items(part(template, "spec"), "containers")
    return ",".join(text(c, "name") for c in found), ",".join(text(c, "image") for c in found)
