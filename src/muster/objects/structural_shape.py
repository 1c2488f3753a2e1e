"""Defaulting and pruning half of `muster.objects.structural`: a schema becomes functions that reshape a value.

Both return the value itself when there is nothing to do, and otherwise a copy that shares what did not change; a schema that
can't change anything becomes None, so that nothing below it is walked. Pure.

What the defaults of one object may add is bounded: a short list of empty items can ask for any number of long defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from muster.objects.quantity import as_kept
from muster.objects.rules.metadata import embedded_metadata
from muster.objects.schema import EMBEDDED, EMPTY_IS_ABSENT, PRESERVE
from muster.objects.status import Raw, RequestEntityTooLarge
from muster.objects.structural_check import Rules, key_path
from muster.objects.view import copy_json

DEFAULTS_BYTES_MAX: Final = 4 << 20
"""What the defaults of a schema may add to one object, about as JSON. More than any object that can be stored."""


class Budget:
    """What may still be added to one object."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = DEFAULTS_BYTES_MAX

    def spend(self, size: int, path: str, name: str) -> None:
        self._left -= size
        if self._left < 0:
            field = (path + key_path(name)).removeprefix(".")
            raise RequestEntityTooLarge(
                f"the defaults of the schema add more than {DEFAULTS_BYTES_MAX} bytes to the object; the limit was reached at "
                f"{field[:200]}: send fewer items there, or give the schema shorter defaults"
            )


Fill = Callable[[Any, Budget, Any], Any]
"""(value, what may be added, settled): a part of the value that is the very part of `settled` in its place is passed over."""
Trim = Callable[[Any, list[str]], Any]

UNKNOWN_MAX: Final = 64
"""Paths of unknown fields that are told; more are dropped, or refused, without a word."""

_MISSING = object()
_NOTHING: Final[Raw] = {}


def fill_of(schema: Raw, rules: Rules, path: str = "") -> Fill | None:
    """The function that puts the defaults of `schema`, which stands at `path`, into a value and drops nulls that mean "absent".

    In Kubernetes' own kinds it also writes quantities the way that Kubernetes does.
    It raises RequestEntityTooLarge when the defaults are more than the budget that it is handed.
    """
    fill = _plain_fill_of(schema, rules.at(schema), path)
    return _fill_embedded(fill) if schema.get(EMBEDDED) is True else fill


def _plain_fill_of(schema: Raw, rules: Rules, path: str) -> Fill | None:
    if rules.is_native and schema.get("format") == "quantity":
        return _fill_quantity
    if schema.get("type") == "array" or "items" in schema:
        items = schema.get("items")
        child = fill_of(items, rules, f"{path}[*]") if isinstance(items, dict) else None
        default = _instead_of_null(items, rules)
        return None if child is None and default is _MISSING else _fill_list(child, default, path)
    properties: Mapping[str, Any] = {k: v for k, v in (schema.get("properties") or {}).items() if isinstance(v, dict)}
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        others = fill_of(extra, rules, f"{path}[*]")
        drops_nulls = not rules.null_is_absent and extra.get("nullable") is not True
        if others is not None or drops_nulls:
            others = _fill_listed_quantity if others is _fill_quantity else others
            return _fill_map(others, _instead_of_null(extra, rules), path, drops_nulls=drops_nulls)
    defaults = {name: inner["default"] for name, inner in properties.items() if "default" in inner}
    children = {
        name: fill for name, inner in properties.items() if (fill := fill_of(inner, rules, path + key_path(name))) is not None
    }
    nulls_dropped = frozenset(
        name
        for name, inner in properties.items()
        # A field of any shape takes null as well, in kinds that are not told by a definition.
        if inner.get("nullable") is not True and (inner.keys() - {PRESERVE} or not rules.null_is_absent)
    )
    if not defaults and not children and not nulls_dropped:
        return None
    empties_filled = frozenset(name for name in defaults if rules.is_native and properties[name].get(EMPTY_IS_ABSENT) is True)
    return _fill_object(defaults, children, nulls_dropped, empties_filled, path)


def _fill_object(
    defaults: Mapping[str, Any],
    children: Mapping[str, Fill],
    nulls_dropped: frozenset[str],
    empties_filled: frozenset[str],
    path: str,
) -> Fill:
    sized = [
        (name, default, _size(name) + _size(default), "" if name in empties_filled else _MISSING)
        for name, default in defaults.items()
    ]

    def fill(value: Any, budget: Budget, settled: Any) -> Any:
        if type(value) is not dict or value is settled:
            return value
        before = settled if type(settled) is dict else _NOTHING
        result: Raw = value
        for key, item in value.items():
            if item is None:
                if key in nulls_dropped:
                    result = dict(value) if result is value else result
                    del result[key]
                continue
            child = children.get(key)
            if child is not None:
                filled = child(item, budget, before.get(key))
                if filled is not item:
                    result = dict(value) if result is value else result
                    result[key] = filled
        for name, default, size, unset in sized:
            if name not in result or result[name] == unset:
                budget.spend(size, path, name)
                result = dict(value) if result is value else result
                fresh = copy_json(default)
                result[name] = children[name](fresh, budget, None) if name in children else fresh
        return result

    return fill


def _fill_embedded(inner: Fill | None) -> Fill:
    def fill(value: Any, budget: Budget, settled: Any) -> Any:
        if type(value) is dict and value is not settled and "metadata" in value:
            kept = embedded_metadata(value["metadata"])
            if kept is not value["metadata"]:
                value = {**value, "metadata": kept}
        return value if inner is None else inner(value, budget, settled)

    return fill


def _fill_quantity(value: Any, budget: Budget, settled: Any) -> Any:
    return as_kept(value, is_listed=False)


def _fill_listed_quantity(value: Any, budget: Budget, settled: Any) -> Any:
    return as_kept(value, is_listed=True)


def _instead_of_null(schema: Any, rules: Rules) -> Any:
    """What an item of a list, or a value of a map, becomes that is null and may not be; _MISSING when it has no default."""
    if rules.null_is_absent or not isinstance(schema, dict) or schema.get("nullable") is True:
        return _MISSING
    return schema.get("default", _MISSING)


def _fill_item(item: Any, child: Fill | None, default: Any, budget: Budget, path: str) -> Any:
    if item is None and default is not _MISSING:
        budget.spend(_size(default), path, "")
        item = copy_json(default)
    return item if child is None else child(item, budget, None)


def _fill_map(child: Fill | None, default: Any, path: str, *, drops_nulls: bool) -> Fill:
    has_default = default is not _MISSING

    def fill(value: Any, budget: Budget, settled: Any) -> Any:
        if type(value) is not dict or value is settled:
            return value
        if drops_nulls and not has_default and None in value.values():
            value = {key: item for key, item in value.items() if item is not None}
        if child is None and not has_default:
            return value
        changed = {
            key: filled for key, item in value.items() if (filled := _fill_item(item, child, default, budget, path)) is not item
        }
        return {**value, **changed} if changed else value

    return fill


def _fill_list(child: Fill | None, default: Any, path: str) -> Fill:
    def fill(value: Any, budget: Budget, settled: Any) -> Any:
        if type(value) is not list or value is settled:
            return value
        result = value
        for index, item in enumerate(value):
            filled = _fill_item(item, child, default, budget, path)
            if filled is not item:
                result = list(value) if result is value else result
                result[index] = filled
        return result

    return fill


_EMPTY: Final[Mapping[str, Any]] = {"object": {}, "array": [], "string": "", "integer": 0, "number": 0, "boolean": False}


def with_items(schema: Raw, value: Any) -> Any:
    """`value` with an empty item wherever a list has null, as Go reads it. Slow: for what was found wrong."""
    if isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, dict):
            return value
        empty = _EMPTY.get(str(items.get("type")))
        return [copy_json(empty) if item is None else with_items(items, item) for item in value]
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        return {
            key: with_items(inner, item) if isinstance(inner := properties.get(key, extra), dict) else item
            for key, item in value.items()
        }
    return value


def _size(value: Any) -> int:
    """About the length of `value` as JSON; what is short there and large in memory counts a little more."""
    if isinstance(value, dict):
        return 8 + sum(_size(key) + _size(item) for key, item in value.items())
    if isinstance(value, list):
        return 8 + sum(_size(item) for item in value)
    return 4 + len(value.encode(errors="replace")) if isinstance(value, str) else 8


def trim_of(schema: Raw) -> Trim | None:
    """The function that drops from a value what `schema` does not know, and appends the paths of it, up to `UNKNOWN_MAX`."""
    if schema.get("type") == "array" or "items" in schema:
        items = schema.get("items")
        child = trim_of(items) if isinstance(items, dict) else None
        return None if child is None else _trim_list(child)
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        child = trim_of(extra)
        return None if child is None else _trim_map(child)
    keeps_all = schema.get(PRESERVE) is True or extra is True
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        is_container = schema.get("type") == "object"
        return _trim_object({}, keeps_all=False) if is_container and not keeps_all else None
    children = {name: trim_of(inner) if isinstance(inner, dict) else None for name, inner in properties.items()}
    if keeps_all and not any(children.values()):
        return None
    return _trim_object(children, keeps_all=keeps_all)


def _trim_object(children: Mapping[str, Trim | None], *, keeps_all: bool) -> Trim:
    def trim(value: Any, unknown: list[str]) -> Any:
        if type(value) is not dict:
            return value
        result: Raw = value
        for key, item in value.items():
            child = children.get(key, _MISSING)
            if child is None:
                continue
            if child is _MISSING:
                if not keeps_all:
                    if len(unknown) < UNKNOWN_MAX:
                        unknown.append(key_path(key))
                    result = dict(value) if result is value else result
                    del result[key]
            elif type(item) is dict or type(item) is list:
                count = len(unknown)
                trimmed = child(item, unknown)  # type: ignore[operator]
                if trimmed is not item:
                    result = dict(value) if result is value else result
                    result[key] = trimmed
                    if len(unknown) > count:
                        _prefix(unknown, count, key_path(key))
        return result

    return trim


def _trim_map(child: Trim) -> Trim:
    def trim(value: Any, unknown: list[str]) -> Any:
        if type(value) is not dict:
            return value
        result: Raw = value
        for key, item in value.items():
            count = len(unknown)
            trimmed = child(item, unknown)
            if trimmed is not item:
                result = dict(value) if result is value else result
                result[key] = trimmed
                if len(unknown) > count:
                    _prefix(unknown, count, key_path(key))
        return result

    return trim


def _trim_list(child: Trim) -> Trim:
    def trim(value: Any, unknown: list[str]) -> Any:
        if type(value) is not list:
            return value
        result = value
        for index, item in enumerate(value):
            count = len(unknown)
            trimmed = child(item, unknown)
            if trimmed is not item:
                result = list(value) if result is value else result
                result[index] = trimmed
                if len(unknown) > count:
                    _prefix(unknown, count, f"[{index}]")
        return result

    return trim


def _prefix(paths: list[str], start: int, prefix: str) -> None:
    for index in range(start, len(paths)):
        paths[index] = prefix + paths[index]
