"""Typed views over raw objects: decode what the code reads, write back only what it changed.

A view names the fields that code uses. The raw JSON stays the truth: a field that no view knows is kept, because writing
back means carrying the *difference* between two views of the same object over to its raw form (`write_back`), or sending
that difference as a merge patch (`merge_patch`). That holds inside lists too: the elements of a changed list are matched
with the raw ones they came from, and keep what the view does not know.

Pure. Views are plain data; treat them as immutable and use `msgspec.structs.replace`.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from muster.objects.status import Raw

V = TypeVar("V", bound="View")


class View(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Base of every typed view. Python names are snake_case; JSON names are camelCase unless `msgspec.field(name=...)` says so.

    A field with a default is optional. `X | None = None` where absent differs from empty. Constraints go into
    `Annotated[T, msgspec.Meta(...)]`: `ge`, `le`, `min_length`, `pattern`, `description`, and Kubernetes' own extensions in
    `extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}`; a plain string inside
    `Annotated` is the description. Enums are `Literal[...]`. `muster.objects.schema` turns a view into its schema.
    """

    __schema_extra__: ClassVar[Mapping[str, Any]] = types.MappingProxyType({})
    """Merged into the class's schema; `KEEP_UNKNOWN` for kinds of other projects."""


KEEP_UNKNOWN: Mapping[str, Any] = types.MappingProxyType({"x-kubernetes-preserve-unknown-fields": True})
"""For `__schema_extra__`: fields that the view does not name are kept, here and in the views below it."""

QUANTITY_PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"

QuantityValue = Annotated[
    str | int | float,
    msgspec.Meta(extra_json_schema={"x-kubernetes-int-or-string": True, "format": "quantity", "pattern": QUANTITY_PATTERN}),
]
"""A quantity as users write it: `"500m"`, `2`, `0.5`. `muster.objects.quantity.Quantity.parse` reads it."""

Quantities = dict[str, QuantityValue]
"""Resource name to quantity: `{"cpu": "500m", "memory": "1Gi"}`."""

IntOrString = Annotated[int | str, msgspec.Meta(extra_json_schema={"x-kubernetes-int-or-string": True})]
Int32 = Annotated[int, msgspec.Meta(extra_json_schema={"format": "int32"})]
Bytes = Annotated[str, msgspec.Meta(extra_json_schema={"format": "byte"})]
"""Base64 text; it stays text in the view."""

ATOMIC = msgspec.Meta(extra_json_schema={"x-kubernetes-list-type": "atomic"})
"""A list that is owned and replaced as a whole."""
SET = msgspec.Meta(extra_json_schema={"x-kubernetes-list-type": "set"})
"""A list of distinct scalars that several managers may add to."""


def keyed(*keys: str) -> msgspec.Meta:
    """A list of objects told apart by these members (JSON names); several managers may own its elements."""
    return msgspec.Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)})


def merged(key: str = "", strategy: str = "merge") -> msgspec.Meta:
    """How a strategic merge patch treats the field: elements are matched by `key`, or united when there is none."""
    extra: Raw = {"x-kubernetes-patch-strategy": strategy}
    if key:
        extra["x-kubernetes-patch-merge-key"] = key
    return msgspec.Meta(extra_json_schema=extra)


def without_nulls(value: Any) -> Any:
    """`value` with every null member dropped. Kubernetes writes null where Go had a nil list or an unset time."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value if v is not None]
    return value


def copy_json(value: Any) -> Any:
    """A deep copy of JSON data; several times faster than `copy.deepcopy`, which has to expect anything."""
    kind = type(value)
    if kind is dict:
        return {k: copy_json(v) if type(v) is dict or type(v) is list else v for k, v in value.items()}
    if kind is list:
        return [copy_json(v) if type(v) is dict or type(v) is list else v for v in value]
    return value


def view_of(cls: type[V], raw: Raw | bytes) -> V:
    """Decode `raw` as `cls`. Nulls count as absent. Raises `msgspec.ValidationError` naming the JSON path that does not fit."""
    try:
        return msgspec.json.decode(raw, type=cls) if isinstance(raw, bytes) else msgspec.convert(raw, cls)
    except msgspec.ValidationError:
        plain = msgspec.json.decode(raw) if isinstance(raw, bytes) else raw
        return msgspec.convert(without_nulls(plain), cls)


def to_raw(view: View) -> Raw:
    """The view's own fields as JSON; what it does not know is not there, so never store this over an existing object."""
    raw = msgspec.to_builtins(view)
    assert isinstance(raw, dict)
    return raw


def write_back(raw: Raw, before: View, after: View) -> Raw:
    """`raw` with the change from `before` (a view of `raw`) to `after` made, and all that the view does not know kept.

    `raw` itself is not touched, and the result shares nothing with it.
    """
    result = copy_json(_carry(raw, before, after, ()))
    assert isinstance(result, dict)
    return result


def merge_patch(raw: Raw, before: View, after: View) -> Raw:
    """The JSON merge patch that turns `raw` into `write_back(raw, before, after)`; empty when the views are equal.

    Merge patches know no part of a list: one that changed is there whole, unknown members included.
    """
    return _difference(raw, _carry(raw, before, after, ()))


def _carry(raw: Any, before: Any, after: Any, keys: tuple[str, ...]) -> Any:
    """The value that `raw` becomes when its view changes from `before` to `after`. Shares unchanged parts with `raw`."""
    if before is after or (type(before) is type(after) and before == after):
        return raw
    if isinstance(after, msgspec.Struct) and type(before) is type(after) and isinstance(raw, dict):
        return _carry_struct(raw, before, after)
    if isinstance(after, dict) and isinstance(before, dict) and isinstance(raw, dict):
        return _carry_map(raw, before, after)
    if isinstance(after, list) and isinstance(before, list) and isinstance(raw, list):
        return _carry_list(raw, before, after, keys)
    return msgspec.to_builtins(after)


def _carry_struct(raw: Raw, before: msgspec.Struct, after: msgspec.Struct) -> Raw:
    result = dict(raw)
    for name, json_name, default, keys in _fields(type(after)):
        old, new = getattr(before, name), getattr(after, name)
        if old is new or (type(old) is type(new) and old == new):
            continue
        if _is_default(new, default) and not isinstance(new, msgspec.Struct):
            result.pop(json_name, None)
            continue
        value = _carry(result.get(json_name), old, new, keys)
        result[json_name] = value
    return result


def _carry_map(raw: Raw, before: Mapping[str, Any], after: Mapping[str, Any]) -> Raw:
    result = {key: value for key, value in raw.items() if key in after or key not in before}
    for key, new in after.items():
        if key not in before:
            result[key] = msgspec.to_builtins(new)
        elif key in raw:
            result[key] = _carry(raw[key], before[key], new, ())
        else:
            result[key] = msgspec.to_builtins(new)
    return result


def _carry_list(raw: Sequence[Any], before: Sequence[Any], after: Sequence[Any], keys: tuple[str, ...]) -> list[Any]:
    if len(raw) != len(before):
        raw = [value for value in raw if value is not None]  # the view was decoded without the nulls
    if len(raw) != len(before):
        return [msgspec.to_builtins(value) for value in after]
    origins = _origins(before, after, keys)
    return [
        msgspec.to_builtins(value) if origin is None else _carry(raw[origin], before[origin], value, ())
        for value, origin in zip(after, origins, strict=True)
    ]


def _origins(before: Sequence[Any], after: Sequence[Any], keys: tuple[str, ...]) -> list[int | None]:
    """For each element of `after` the index in `before` that it came from; None for a new one. No index is used twice."""
    free: dict[int, None] = dict.fromkeys(range(len(before)))
    origins: list[int | None] = [None] * len(after)

    def take(target: int, origin: int) -> None:
        origins[target] = origin
        del free[origin]

    identity = functools.partial(_key_of, keys=keys) if keys else _frozen
    was, now = [identity(value) for value in before], [identity(value) for value in after]
    for index in range(min(len(was), len(now))):
        if was[index] == now[index]:
            take(index, index)
    places: dict[Any, list[int]] = {}
    for index in reversed(free):
        places.setdefault(was[index], []).append(index)
    for target, value in enumerate(now):
        if origins[target] is None and (found := places.get(value)):
            take(target, found.pop())
    if keys:
        return origins  # another key is another element, wherever it stands

    for target in range(len(after)):
        if origins[target] is None:
            place = _neighbour(origins, target, free)
            if place is not None:
                take(target, place)
    if len(before) == len(after):  # nothing came or went: what is left over was edited and moved
        for target in range(len(after)):
            if origins[target] is None:
                take(target, next(iter(free)))
    return origins


def _neighbour(origins: Sequence[int | None], target: int, free: Mapping[int, None]) -> int | None:
    """A free place next to where the element's neighbours came from, or its own place; None when neither is free."""
    previous = origins[target - 1] if target else -1
    following = origins[target + 1] if target + 1 < len(origins) else None
    places = (
        previous + 1 if previous is not None else None,
        following - 1 if following is not None else None,
        target,
    )
    return next((place for place in places if place is not None and place in free), None)


def _key_of(value: Any, keys: tuple[str, ...]) -> Any:
    plain = msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
    return tuple(_frozen(plain.get(key)) for key in keys) if isinstance(plain, dict) else _frozen(plain)


def _frozen(value: Any) -> bytes:
    """Something hashable that is equal for equal JSON."""
    return msgspec.json.encode(value, order="deterministic")


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


@functools.cache
def _fields(cls: type[msgspec.Struct]) -> tuple[tuple[str, str, Any, tuple[str, ...]], ...]:
    """Of each field: name, JSON name, default (NODEFAULT when it has none), and the keys of its list."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(
        (f.name, f.encode_name, f.default_factory() if callable(f.default_factory) else f.default, _list_keys(hints[f.name]))
        for f in msgspec.structs.fields(cls)
    )


def _list_keys(hint: Any) -> tuple[str, ...]:
    """The `x-kubernetes-list-map-keys` in a type's metadata, also under `| None`."""
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra_json_schema:
            keys = meta.extra_json_schema.get("x-kubernetes-list-map-keys")
            if keys:
                return tuple(keys)
    if typing.get_origin(hint) in {Annotated, typing.Union, types.UnionType}:
        return next((keys for argument in typing.get_args(hint) if (keys := _list_keys(argument))), ())
    return ()


def _difference(before: Raw, after: Raw) -> Raw:
    patch: Raw = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if old is value:
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            inner = _difference(old, value)
            if inner:
                patch[key] = inner
        elif key not in before or old != value or type(old) is not type(value):
            patch[key] = copy_json(value)
    return patch
