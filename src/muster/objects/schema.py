"""From a view to its schema: structural OpenAPI v3, whole and without `$ref`, as CRDs, defaults and `kubectl explain` need it.

Pure and cached: the dict that `schema_of` returns is shared, so read it and copy before changing it.

What becomes of what:
- a field without a default is required; `| None` means that the field may be absent, never that null is a value of its own;
- the first paragraph of a docstring, `Meta(description=...)` or a plain string in `Annotated` is the description;
- `Literal` and enums become `enum`, `Meta`'s bounds their JSON Schema names, `Meta(extra_json_schema=...)` is merged as it is;
- a default is emitted when it says something. Those that only mean "absent" (None, "", 0, False, an empty container or view)
  are not, unless `extra_json_schema={"default": ...}` names them;
- `Any` and `dict[str, Any]` keep whatever they are given; so does everything under a view whose `__schema_extra__` is
  `KEEP_UNKNOWN`, and a view inside itself, where the schema is cut.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as AbstractSequence
from datetime import datetime
from typing import Annotated, Any, Literal, Union

import msgspec

from muster.objects.status import Raw
from muster.objects.view import View

NULL_IS_ABSENT = "x-muster-null-is-absent"
"""On a root schema: null stands for an absent field, as in Kubernetes' own kinds. Leaves the schema with `publishable`."""

NATIVE = "x-muster-native"
"""On a root schema: a kind of Kubernetes' own, which its server decodes into Go types that know neither null nor "unset"."""

EMPTY_IS_ABSENT = "x-muster-empty-is-absent"
"""On a text with a default: in a native kind "" stands for the default, since in Go it is no pointer (`| None` here)."""

PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
_PLAIN: Mapping[Any, Raw] = {
    Any: {PRESERVE: True},
    object: {PRESERVE: True},
    dict: {"type": "object", PRESERVE: True},
    list: {"type": "array", "items": {PRESERVE: True}},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number", "format": "double"},
    bytes: {"type": "string", "format": "byte"},
    datetime: {"type": "string", "format": "date-time"},
}
_LENGTH_NAMES = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


@functools.cache
def schema_of(cls: type[View]) -> Raw:
    """The schema of `cls` as the root of an object."""
    return {**_Walk().struct(cls, keep=False), NULL_IS_ABSENT: True}


def publishable(schema: Raw, *, drop_prefixes: tuple[str, ...] = ()) -> Raw:
    """A copy of `schema` without Muster's own extensions, and without those that start with one of `drop_prefixes`."""
    result: Raw = _without(schema, ("x-muster-", *drop_prefixes))
    return result


def _without(schema: Any, prefixes: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_without(item, prefixes) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key.startswith(prefixes):
            continue
        if key == "properties":
            result[key] = {name: _without(inner, prefixes) for name, inner in value.items()}
        elif key in {"default", "enum", "example"}:
            result[key] = value  # data, not schema
        else:
            result[key] = _without(value, prefixes)
    return result


_finished: dict[tuple[type, bool], Raw] = {}
"""Schemas of views, shared wherever they appear: nine kinds hold a whole PodSpec."""


class _Walk:
    """One way down through the views. `stack` holds those being described, `cuts` those met again inside themselves."""

    def __init__(self) -> None:
        self.stack: list[type] = []
        self.cuts: set[type] = set()

    def struct(self, cls: type[msgspec.Struct], *, keep: bool) -> Raw:
        known = _finished.get((cls, keep))
        if known is not None:
            return known
        if cls in self.stack:
            self.cuts.add(cls)
            return {"type": "object", "description": _docstring(cls), PRESERVE: True}
        outer_cuts, self.cuts = self.cuts, set()
        self.stack.append(cls)
        schema = self.members(cls, keep=keep)
        self.stack.pop()
        self.cuts.discard(cls)
        if not self.cuts:  # the same from wherever it is reached
            _finished[cls, keep] = schema
        self.cuts |= outer_cuts
        return schema

    def members(self, cls: type[msgspec.Struct], *, keep: bool) -> Raw:
        extra = dict(getattr(cls, "__schema_extra__", {}))
        keep = bool(extra.get(PRESERVE, keep))
        hints = typing.get_type_hints(cls, include_extras=True)
        properties: Raw = {}
        required = []
        for field in msgspec.structs.fields(cls):
            properties[field.encode_name] = _with_default(self.schema(hints[field.name], keep=keep), field, hints[field.name])
            if field.required:
                required.append(field.encode_name)
        schema: Raw = {"type": "object"}
        for word, value in (("description", _docstring(cls)), ("properties", properties), ("required", required)):
            if value:
                schema[word] = value
        if keep:
            schema[PRESERVE] = True
        schema.update(extra)
        return schema

    def schema(self, hint: Any, *, keep: bool) -> Raw:
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return self.struct(hint, keep=keep)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _enum([member.value for member in hint])
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            return _annotated(dict(self.schema(arguments[0], keep=keep)), hint.__metadata__)
        if origin is Literal:
            return _enum(arguments)
        if origin in {Union, types.UnionType}:
            return self.union(arguments, keep=keep)
        if origin is dict or origin is Mapping:
            values = self.schema(arguments[1], keep=keep)
            return dict(_PLAIN[dict]) if values == _PLAIN[Any] else {"type": "object", "additionalProperties": values}
        if origin in {list, tuple, AbstractSequence}:
            return {"type": "array", "items": self.schema(arguments[0], keep=keep)}
        raise TypeError(f"a view's field can't have the type {hint!r}: no schema says what JSON it is")

    def union(self, arguments: Iterable[Any], *, keep: bool) -> Raw:
        members = [a for a in arguments if a is not types.NoneType]
        if len(members) == 1:
            return self.schema(members[0], keep=keep)
        if {int, str} <= set(members) <= {int, str, float}:
            return {"x-kubernetes-int-or-string": True}
        if set(members) == {int, float}:
            return dict(_PLAIN[float])
        return dict(_PLAIN[Any])


def _with_default(schema: Raw, field: msgspec.structs.FieldInfo, hint: Any) -> Raw:
    if "default" in schema or field.required:
        return schema
    value = field.default_factory() if callable(field.default_factory) else field.default
    plain = msgspec.to_builtins(value)
    if not plain:
        return schema
    is_text = isinstance(plain, str) and not _may_be_none(hint)
    return {**schema, "default": plain, EMPTY_IS_ABSENT: True} if is_text else {**schema, "default": plain}


def _may_be_none(hint: Any) -> bool:
    while typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    return types.NoneType in typing.get_args(hint)


def _enum(values: Iterable[Any]) -> Raw:
    listed = list(values)
    is_text = all(isinstance(value, str) for value in listed)
    return {"type": "string" if is_text else "integer", "enum": listed}


def _annotated(schema: Raw, metadata: Iterable[Any]) -> Raw:
    for meta in metadata:
        if isinstance(meta, str):
            schema["description"] = meta
        elif isinstance(meta, msgspec.Meta):
            _constrain(schema, meta)
    return schema


def _constrain(schema: Raw, meta: msgspec.Meta) -> None:
    for value, name in (
        (meta.ge, "minimum"),
        (meta.le, "maximum"),
        (meta.multiple_of, "multipleOf"),
        (meta.pattern, "pattern"),
    ):
        if value is not None:
            schema[name] = value
    for value, name, exclusive in (
        (meta.gt, "minimum", "exclusiveMinimum"),
        (meta.lt, "maximum", "exclusiveMaximum"),
    ):
        if value is not None:
            schema[name] = value
            schema[exclusive] = True
    names = _LENGTH_NAMES.get(schema.get("type", ""))
    if names:
        for value, name in ((meta.min_length, names[0]), (meta.max_length, names[1])):
            if value is not None:
                schema[name] = value
    for value, name in ((meta.title, "title"), (meta.description, "description")):
        if value is not None:
            schema[name] = value
    schema.update(meta.extra_json_schema or {})


def _docstring(cls: type) -> str:
    """The first paragraph of the class's own docstring, as one line."""
    own = cls.__dict__.get("__doc__") or ""
    return " ".join(inspect.cleandoc(own).split("\n\n", 1)[0].split())
