"""Typed views over raw objects: decode what the code reads, write back only what it changed.

A view names the fields that code uses. The raw JSON stays the truth: a field that no view knows is kept, because writing
back means applying the *difference* between two views of the same object to its raw form (`write_back`), or sending that
difference as a merge patch (`merge_patch_between`).

Pure. Views are plain data; treat them as immutable and use `msgspec.structs.replace`.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import msgspec

from muster.objects.status import Raw

V = TypeVar("V", bound="View")


class View(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Base of every typed view. Python names are snake_case; JSON names are camelCase unless `msgspec.field(name=...)` says so.

    A field with a default is optional. `X | None = None` where absent differs from empty. Constraints go into
    `Annotated[T, msgspec.Meta(...)]`: `ge`, `le`, `min_length`, `pattern`, `description`, and Kubernetes' own extensions in
    `extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}`. Enums are `Literal[...]`.
    """


def without_nulls(value: Any) -> Any:
    """`value` with every null member dropped. Kubernetes writes null where Go had a nil list or an unset time."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value if v is not None]
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


def merge_patch_between(before: View, after: View) -> Raw:
    """The JSON merge patch that turns `before` into `after`; empty when they are equal."""
    return _difference(to_raw(before), to_raw(after))


def write_back(raw: Raw, before: View, after: View) -> Raw:
    """`raw` with the change from `before` to `after` applied, everything else kept. `raw` itself is not touched."""
    result = copy.deepcopy(raw)
    _apply(result, merge_patch_between(before, after))
    return result


def _difference(before: Raw, after: Raw) -> Raw:
    patch: Raw = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            inner = _difference(old, value)
            if inner:
                patch[key] = inner
        elif key not in before or old != value:
            patch[key] = value
    return patch


def _apply(target: Raw, patch: Raw) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _apply(target[key], value)
        else:
            target[key] = copy.deepcopy(value)
