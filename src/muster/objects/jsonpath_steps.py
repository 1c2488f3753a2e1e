"""The steps of a JSONPath and how each turns a list of values into the next one. Used by `muster.objects.jsonpath` only.

Pure. An evaluation carries a budget, so that no path can be made to visit more than a bounded number of values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

FIND_VISITED_MAX: Final = 10_000
"""Values that one path may visit: it may be a column that others print for every object."""
RENDER_VISITED_MAX: Final = 1_000_000
"""Values that one template may visit: it is written by who waits for it, and may go through a whole list."""
_DEPTH_MAX: Final = 200


class Evaluation:
    """What one evaluation may still cost, and how it treats what is missing."""

    def __init__(self, allow_missing: bool, visited_max: int = FIND_VISITED_MAX) -> None:
        self.allow_missing = allow_missing
        self._visited_max = visited_max
        self._left = visited_max

    def spend(self, values: list[Any]) -> list[Any]:
        self.visit(len(values) + 1)
        return values

    def visit(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError(f"the path visits more than {self._visited_max} values; make it more precise")

    def missing(self, what: str) -> None:
        if not self.allow_missing:
            raise ValueError(what)


@dataclass(frozen=True, slots=True)
class Field:
    name: str

    def apply(self, values: list[Any], run: Evaluation) -> list[Any]:
        found = [value[self.name] for value in values if isinstance(value, dict) and self.name in value]
        if values and not found:
            run.missing(f"{self.name} is not found")
        return found


@dataclass(frozen=True, slots=True)
class Key:
    """A quoted key. `['a.b']` is the key `a.b` where there is one, and the path `.a.b` otherwise (all that kubectl knows)."""

    name: str

    def apply(self, values: list[Any], run: Evaluation) -> list[Any]:
        found: list[Any] = []
        parts = self.name.split(".")
        for value in values:
            if isinstance(value, dict) and self.name in value:
                found.append(value[self.name])
                continue
            inner = value
            for part in parts:
                run.visit(1)
                if not isinstance(inner, dict) or part not in inner:
                    break
                inner = inner[part]
            else:
                found.append(inner)
        if values and not found:
            run.missing(f"{self.name} is not found")
        return found


@dataclass(frozen=True, slots=True)
class Index:
    index: int

    def apply(self, values: list[Any], run: Evaluation) -> list[Any]:
        found = []
        for value in values:
            if not isinstance(value, list):
                if value is not None:
                    run.missing(f"[{self.index}] needs a list, not {_type_name(value)}")
            elif -len(value) <= self.index < len(value):
                found.append(value[self.index])
            else:
                run.missing(f"[{self.index}] is out of bounds: the list has {len(value)} items")
        return found


@dataclass(frozen=True, slots=True)
class Slice:
    start: int | None
    end: int | None
    step: int | None

    def apply(self, values: list[Any], run: Evaluation) -> list[Any]:
        found: list[Any] = []
        for value in values:
            if isinstance(value, list):
                found += run.spend(value[self.start : self.end : self.step])
            elif value is not None:
                run.missing(f"a slice needs a list, not {_type_name(value)}")
        return found


@dataclass(frozen=True, slots=True)
class Wildcard:
    def apply(self, values: list[Any], run: Evaluation) -> list[Any]:
        found: list[Any] = []
        for value in values:
            found += run.spend(list(_children(value)))
        return found


@dataclass(frozen=True, slots=True)
class Recursive:
    """Every container at or below the values, outer ones first; empty ones hold nothing that a next step could find."""

    def apply(self, values: list[Any], run: Evaluation) -> list[Any]:
        found: list[Any] = []
        pending = [(value, 0) for value in reversed(values)]
        while pending:
            value, depth = pending.pop()
            if depth > _DEPTH_MAX:
                raise ValueError(f"'..' meets an object nested more than {_DEPTH_MAX} levels deep")
            children = list(_children(value))
            if children:
                found.append(value)
                run.spend(children)
                pending += [(child, depth + 1) for child in reversed(children)]
        return found


@dataclass(frozen=True, slots=True)
class Union:
    branches: tuple[tuple[Step, ...], ...]

    def apply(self, values: list[Any], run: Evaluation) -> list[Any]:
        return [found for branch in self.branches for found in walk(branch, values, run)]


@dataclass(frozen=True, slots=True)
class Literal:
    value: str | int | float | bool

    def apply(self, values: list[Any], run: Evaluation) -> list[Any]:
        return [self.value]


@dataclass(frozen=True, slots=True)
class Filter:
    left: tuple[Step, ...]
    operator: str
    right: tuple[Step, ...]

    def apply(self, values: list[Any], run: Evaluation) -> list[Any]:
        found: list[Any] = []
        for value in values:
            if isinstance(value, list):
                found += [item for item in run.spend(value) if self._holds(item, run)]
            elif value is not None:
                run.missing(f"a filter needs a list, not {_type_name(value)}")
        return found

    def _holds(self, item: Any, run: Evaluation) -> bool:
        # An item without the field is passed over, not an error: filters exist to tell such items apart.
        lenient = run.allow_missing
        run.allow_missing = True
        try:
            left = walk(self.left, [item], run)
            if not self.operator:
                return bool(left)
            right = walk(self.right, [item], run)
        finally:
            run.allow_missing = lenient
        if len(left) > 1 or len(right) > 1:
            raise ValueError("a filter compares one value with one value; this one finds several")
        return bool(left and right) and _compare(left[0], self.operator, right[0])


Step = Field | Key | Index | Slice | Wildcard | Recursive | Union | Literal | Filter


def walk(steps: tuple[Step, ...], values: list[Any], run: Evaluation) -> list[Any]:
    for step in steps:
        values = run.spend(step.apply(values, run))
    return values


def text_of(value: Any) -> str:
    """How kubectl prints one value: text as it is, objects and lists as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, int):
        return str(value)
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    except RecursionError:
        raise ValueError("the value is nested too deeply to be printed") from None


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _compare(left: Any, operator: str, right: Any) -> bool:
    """Values of different kinds are unequal and have no order."""
    alike = (
        (isinstance(left, str) and isinstance(right, str))
        or (isinstance(left, bool) and isinstance(right, bool))
        or (_is_number(left) and _is_number(right))
    )
    if operator == "==":
        return alike and bool(left == right)
    if operator == "!=":
        return not alike or bool(left != right)
    if not alike or isinstance(left, bool):
        return False
    match operator:
        case "<":
            return bool(left < right)
        case "<=":
            return bool(left <= right)
        case ">":
            return bool(left > right)
    return bool(left >= right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _type_name(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number")


def _float_text(value: float) -> str:
    """Shortest digits, with an exponent below 1e-04 and from 1e+06 up: how Go prints floats."""
    if not math.isfinite(value):
        return str(value)
    exact = Decimal(repr(value)).normalize()
    exponent = exact.adjusted()
    if not exact or -4 <= exponent < 6:
        return f"{exact:f}"
    digits = "".join(str(digit) for digit in exact.as_tuple().digits)
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{'-' if value < 0 else ''}{mantissa}e{exponent:+03d}"
