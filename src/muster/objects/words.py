"""Small texts that many read and write alike: whole numbers in labels and annotations, lists of names in messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence

NAMES_SHOWN_MAX = 3


def whole_number(text: str, otherwise: int = 0, *, digits_max: int = 9) -> int:
    """The number that `text` is; `otherwise` when it is none, or has more than `digits_max` digits."""
    return int(text) if len(text) <= digits_max and text.isascii() and text.isdecimal() else otherwise


def short_list(names: Sequence[str], shown_max: int = NAMES_SHOWN_MAX) -> str:
    """`a, b, c and 4 more`."""
    more = f" and {len(names) - shown_max} more" if len(names) > shown_max else ""
    return ", ".join(names[:shown_max]) + more


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 task`, `2 tasks`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
