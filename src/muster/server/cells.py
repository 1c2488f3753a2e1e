"""What table printers are made of: the shape of a printer, ages, and reading objects that may have any shape.

Pure; the present instant is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from muster.objects.ages import since
from muster.objects.resources import Column
from muster.objects.status import Raw

NONE = "<none>"
_ITEMS_SHOWN_MAX = 3

Cells = Callable[[Raw, float], Sequence[Any]]
"""From an object and the present instant to the cells after the name."""


class Printer(msgspec.Struct, frozen=True):
    """How one kind is shown: `cells` gives one value per column."""

    columns: tuple[Column, ...]
    cells: Cells
    names_itself: bool = False
    """The name is among these columns; otherwise it is the first one, before them."""


def column(name: str, type_: str = "string", *, wide: bool = False) -> Column:
    return Column(name=name, path="", type=type_, priority=1 if wide else 0)


def age(raw: Raw, now: float) -> str:
    return since(raw["metadata"].get("creationTimestamp"), now)


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
