"""Is a schema structural? Kubernetes' rules for the schemas of CustomResourceDefinitions, with every breach named.

In short: one tree that gives each value its type, and value checks (allOf, anyOf, oneOf, not) that add bounds to what the tree
has already named, never types, defaults or new fields. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from muster.objects.regex import compile_pattern
from muster.objects.schema import EMBEDDED, PRESERVE
from muster.objects.status import Cause, Raw, shown
from muster.objects.structural_check import Rules, check_of
from muster.objects.structural_shape import trim_of

DEPTH_MAX = 64
NODES_MAX = 50_000
CAUSES_MAX = 64
"""More causes than this are not reported: nobody reads them, and an answer must stay small."""

INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_FORBIDDEN = {
    "$ref": "copy the schema to where it is used",
    "definitions": "copy the schemas to where they are used",
    "dependencies": "there is no replacement",
    "deprecated": "say so in the description",
    "discriminator": "there is no replacement",
    "id": "leave it out",
    "patternProperties": "use additionalProperties",
    "readOnly": "leave it out",
    "writeOnly": "leave it out",
    "xml": "leave it out",
    "additionalItems": "leave it out",
}
_NOT_IN_JUNCTORS = (
    "description",
    "type",
    "default",
    "additionalProperties",
    "nullable",
    "title",
    PRESERVE,
    EMBEDDED,
    LIST_TYPE,
)
_JUNCTORS = ("allOf", "anyOf", "oneOf")
_INT_OR_STRING_TYPES = [{"type": "integer"}, {"type": "string"}]
_WORD_TYPES: dict[str, tuple[type, ...]] = {
    "description": (str,),
    "title": (str,),
    "format": (str,),
    "pattern": (str,),
    "nullable": (bool,),
    "uniqueItems": (bool,),
    "exclusiveMinimum": (bool,),
    "exclusiveMaximum": (bool,),
    "minimum": (int, float),
    "maximum": (int, float),
    "multipleOf": (int, float),
    "minLength": (int,),
    "maxLength": (int,),
    "minItems": (int,),
    "maxItems": (int,),
    "minProperties": (int,),
    "maxProperties": (int,),
    "properties": (dict,),
    "required": (list,),
    "enum": (list,),
    "allOf": (list,),
    "anyOf": (list,),
    "oneOf": (list,),
    "not": (dict,),
    PRESERVE: (bool,),
    INT_OR_STRING: (bool,),
    EMBEDDED: (bool,),
    LIST_TYPE: (str,),
    LIST_KEYS: (list,),
}


_PAIRS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)
_BOUNDS = frozenset(low for low, _ in _PAIRS)


def definition_causes(schema: Any, field: str) -> list[Cause]:
    """Everything that keeps `schema` from being structural."""
    walk = _Walk()
    if not isinstance(schema, dict):
        return [_invalid(field, f"Invalid value: {shown(schema)}: a schema is an object")]
    walk.node(schema, field, depth=0)
    if not walk.causes:
        walk.root(schema, field)
    return walk.causes


def definition_warnings(schema: Any, field: str) -> list[str]:
    """What is stored but not enforced: CEL rules (`x-kubernetes-validations`)."""
    return [
        f"{path}.x-kubernetes-validations: CEL rules are stored but not evaluated by this server"
        for path, node in _nodes(schema, field)
        if node.get("x-kubernetes-validations")
    ][:16]


def _nodes(schema: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Raw]]:
    if not isinstance(schema, dict) or depth > DEPTH_MAX:
        return
    yield path, schema
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        yield from _nodes(inner, f"{path}.properties[{name}]", depth + 1)
    for word in ("items", "additionalProperties"):
        yield from _nodes(schema.get(word), f"{path}.{word}", depth + 1)


def _invalid(field: str, message: str, reason: str = "FieldValueInvalid") -> Cause:
    return Cause(field=field, message=message, reason=reason)


def _forbidden(field: str, message: str) -> Cause:
    return Cause(field=field, message=f"Forbidden: {message}", reason="FieldValueForbidden")


def _has_type(value: Any, types: tuple[type, ...]) -> bool:
    return value is None or (isinstance(value, types) and (not isinstance(value, bool) or bool in types))


def _is_well_typed(word: str, value: Any) -> bool:
    if word in _FORBIDDEN:
        return False
    types = _WORD_TYPES.get(word)
    return types is None or _has_type(value, types)


class _Walk:
    def __init__(self) -> None:
        self.causes: list[Cause] = []
        self.node_count = 0

    def root(self, schema: Raw, path: str) -> None:
        if schema.get("type") != "object":
            self.causes.append(
                _invalid(f"{path}.type", f"Invalid value: {shown(schema.get('type'))}: must be object at the root")
            )
        if schema.get("additionalProperties") is not None:
            # It would be the schema of kind and metadata, too.
            self.causes.append(_forbidden(f"{path}.additionalProperties", "additionalProperties must not be used at the root"))
        metadata = (schema.get("properties") or {}).get("metadata")
        if metadata is not None:
            beyond = [f"properties[{name}]" for name in metadata.get("properties", {}) if name not in ("name", "generateName")]
            beyond += [w for w in metadata if w not in ("type", "properties", "description", "title")]
            if beyond:
                self.causes.append(
                    _forbidden(f"{path}.properties[metadata].{beyond[0]}", "metadata may only restrict name and generateName")
                )

    def node(self, schema: Any, path: str, depth: int) -> None:
        """A part of the tree that gives types."""
        if not self.enter(schema, path, depth):
            return
        self.words(schema, path)
        self.type_of(schema, path)
        self.extensions(schema, path)
        properties, extra, items = schema.get("properties"), schema.get("additionalProperties"), schema.get("items")
        if isinstance(properties, dict):
            for name, inner in properties.items():
                self.node(inner, f"{path}.properties[{name}]", depth + 1)
            if extra is not None:
                self.causes.append(
                    _forbidden(f"{path}.additionalProperties", "additionalProperties and properties exclude each other")
                )
        if extra is False:
            self.causes.append(
                _forbidden(
                    f"{path}.additionalProperties", "additionalProperties: false is not allowed; unknown fields are pruned"
                )
            )
        elif extra is not None and extra is not True:
            self.node(extra, f"{path}.additionalProperties", depth + 1)
        if isinstance(items, list):
            self.causes.append(_forbidden(f"{path}.items", "items must be one schema, not a list"))
        elif items is not None:
            self.node(items, f"{path}.items", depth + 1)
        elif schema.get("type") == "array":
            self.causes.append(_invalid(f"{path}.items", "Required value: must be specified for arrays", "FieldValueRequired"))
        self.junctors(schema, schema, path, depth)
        self.default(schema, path)

    def enter(self, schema: Any, path: str, depth: int) -> bool:
        if len(self.causes) >= CAUSES_MAX:
            return False  # more would not be told
        self.node_count += 1
        if not isinstance(schema, dict):
            self.causes.append(_invalid(path, f"Invalid value: {shown(schema)}: a schema is an object"))
            return False
        if depth > DEPTH_MAX:
            self.causes.append(_invalid(path, f"Invalid value: nested over {DEPTH_MAX} deep"))
            return False
        if self.node_count > NODES_MAX:
            if self.node_count == NODES_MAX + 1:
                self.causes.append(_invalid(path, f"Invalid value: the schema has over {NODES_MAX} nodes", "FieldValueTooMany"))
            return False
        return True

    def words(self, schema: Raw, path: str) -> None:
        """Keywords that may stand anywhere: right types, sensible bounds."""
        # A schema may have tens of thousands of nodes with a few words each, so the words are gone through, not the tables.
        if not all(map(_is_well_typed, schema.keys(), schema.values())):
            self.misused(schema, path)
        if schema.get("uniqueItems") is True:
            self.causes.append(_forbidden(f"{path}.uniqueItems", f"use {LIST_TYPE}: set instead"))
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            try:
                compile_pattern(pattern)
            except ValueError as error:
                self.causes.append(_invalid(f"{path}.pattern", f"Invalid value: {error}"))
        if not _BOUNDS.isdisjoint(schema):
            self.bounds(schema, path)
        required = schema.get("required")
        if isinstance(required, list) and not all(isinstance(name, str) for name in required):
            self.causes.append(_invalid(f"{path}.required", f"Invalid value: {shown(required)}: must be a list of field names"))
        step = schema.get("multipleOf")
        if isinstance(step, int | float) and not isinstance(step, bool) and step <= 0:
            self.causes.append(_invalid(f"{path}.multipleOf", f"Invalid value: {shown(step)}: must be greater than 0"))

    def bounds(self, schema: Raw, path: str) -> None:
        for low, high in _PAIRS:
            least, most = schema.get(low), schema.get(high)
            if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
                self.causes.append(
                    _invalid(f"{path}.{high}", f"Invalid value: {most}: is below {low} ({least}), so no value fits")
                )

    def misused(self, schema: Raw, path: str) -> None:
        """Keywords that are not allowed, or have values of the wrong type."""
        for word, way_out in _FORBIDDEN.items():
            if word in schema:
                self.causes.append(_forbidden(f"{path}.{word}", f"{word} is not allowed in a structural schema; {way_out}"))
        for word, types in _WORD_TYPES.items():
            value = schema.get(word)
            if not _has_type(value, types):
                wanted = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}[
                    types[0]
                ]
                self.causes.append(
                    _invalid(
                        f"{path}.{word}", f"Invalid value: {shown(value)}: must be of type {wanted}", "FieldValueTypeInvalid"
                    )
                )

    def type_of(self, schema: Raw, path: str) -> None:
        kind = schema.get("type")
        if schema.get(INT_OR_STRING) is True:
            if kind is not None:
                self.causes.append(
                    _invalid(f"{path}.type", f"Invalid value: {shown(kind)}: must be empty with {INT_OR_STRING}")
                )
        elif kind is None:
            if schema.get(PRESERVE) is not True:
                self.causes.append(
                    _invalid(f"{path}.type", f"Required value: must be one of {', '.join(_TYPES)}", "FieldValueRequired")
                )
        elif kind not in _TYPES:
            self.causes.append(
                _invalid(
                    f"{path}.type",
                    f"Unsupported value: {shown(kind)}: supported values: {', '.join(_TYPES)}",
                    "FieldValueNotSupported",
                )
            )

    def extensions(self, schema: Raw, path: str) -> None:
        if schema.get(PRESERVE) is False:
            self.causes.append(_invalid(f"{path}.{PRESERVE}", "Invalid value: false: must be true or absent"))
        if schema.get(EMBEDDED) is True:
            if schema.get("type") != "object":
                self.causes.append(
                    _invalid(f"{path}.type", f"Invalid value: {shown(schema.get('type'))}: must be object with {EMBEDDED}")
                )
            if schema.get(PRESERVE) is not True and not schema.get("properties"):
                self.causes.append(
                    _invalid(
                        f"{path}.properties", f"Required value: {EMBEDDED} needs properties or {PRESERVE}", "FieldValueRequired"
                    )
                )
        list_type, keys = schema.get(LIST_TYPE), schema.get(LIST_KEYS)
        if list_type is None:
            if keys:
                self.causes.append(_forbidden(f"{path}.{LIST_KEYS}", f"only with {LIST_TYPE}: map"))
            return
        if list_type not in ("atomic", "set", "map"):
            self.causes.append(
                _invalid(
                    f"{path}.{LIST_TYPE}",
                    f"Unsupported value: {shown(list_type)}: supported values: atomic, map, set",
                    "FieldValueNotSupported",
                )
            )
        if schema.get("type") != "array":
            self.causes.append(
                _invalid(f"{path}.type", f"Invalid value: {shown(schema.get('type'))}: must be array with {LIST_TYPE}")
            )
        items = schema.get("items")
        if isinstance(items, dict):
            if list_type == "map":
                self.list_map(items, keys, path)
            elif list_type == "set":
                self.list_set(items, path)

    def list_map(self, items: Raw, keys: Any, path: str) -> None:
        if items.get("type") != "object":
            self.causes.append(_invalid(f"{path}.items.type", f"Invalid value: must be object with {LIST_TYPE}: map"))
        if not isinstance(keys, list) or not keys:
            self.causes.append(
                _invalid(f"{path}.{LIST_KEYS}", f"Required value: must name keys with {LIST_TYPE}: map", "FieldValueRequired")
            )
            return
        properties, required = items.get("properties"), items.get("required")
        for index, key in enumerate(keys):
            inner = properties.get(key) if isinstance(properties, dict) and isinstance(key, str) else None
            if not isinstance(inner, dict):
                self.causes.append(
                    _invalid(f"{path}.{LIST_KEYS}[{index}]", f"Invalid value: {shown(key)}: items have no such property")
                )
            elif inner.get("type") in ("array", "object"):
                self.causes.append(_invalid(f"{path}.items.properties[{key}].type", "Invalid value: a key must be a scalar"))
            elif inner.get("nullable") is True:
                self.causes.append(_forbidden(f"{path}.items.properties[{key}].nullable", "a key can't be null"))
            elif "default" not in inner and key not in (required if isinstance(required, list) else ()):
                self.causes.append(
                    _invalid(
                        f"{path}.items.properties[{key}].default",
                        "Required value: a key must be required or have a default",
                        "FieldValueRequired",
                    )
                )

    def list_set(self, items: Raw, path: str) -> None:
        kind = items.get("type")
        is_atomic = (kind == "array" and items.get(LIST_TYPE, "atomic") == "atomic") or (
            kind == "object" and items.get("x-kubernetes-map-type") == "atomic"
        )
        if kind in ("array", "object") and not is_atomic:
            self.causes.append(
                _invalid(f"{path}.items.type", f"Invalid value: {shown(kind)}: elements of a set must be scalars or atomic")
            )
        if items.get("nullable") is True:
            self.causes.append(_forbidden(f"{path}.items.nullable", "elements of a set can't be null"))

    def junctors(self, schema: Raw, tree: Raw, path: str, depth: int) -> None:
        """`schema`'s value checks, and those of what they contain; `tree` is the part of the tree they stand at."""
        for word in _JUNCTORS:
            parts = schema.get(word)
            for index, part in enumerate(parts if isinstance(parts, list) else ()):
                if tree.get(INT_OR_STRING) is True and word in ("allOf", "anyOf") and _is_int_or_string(parts, part):
                    continue
                self.value_check(part, tree, f"{path}.{word}[{index}]", depth + 1)
        if schema.get("not") is not None:
            self.value_check(schema["not"], tree, f"{path}.not", depth + 1)

    def value_check(self, schema: Any, tree: Any, path: str, depth: int) -> None:
        if not self.enter(schema, path, depth):
            return
        tree = tree if isinstance(tree, dict) else {}
        self.words(schema, path)
        for word in _NOT_IN_JUNCTORS:
            if schema.get(word) is not None:
                self.causes.append(
                    _forbidden(f"{path}.{word}", f"{word} belongs into the schema itself, not under allOf, anyOf, oneOf or not")
                )
        properties = schema.get("properties")
        known = tree.get("properties") if isinstance(tree.get("properties"), dict) else {}
        for name, inner in properties.items() if isinstance(properties, dict) else ():
            if name not in known:
                self.causes.append(
                    _invalid(
                        f"{path}.properties[{name}]",
                        "Required value: must be specified outside the value check too",
                        "FieldValueRequired",
                    )
                )
            self.value_check(inner, known.get(name, {}), f"{path}.properties[{name}]", depth + 1)
        if schema.get("items") is not None:
            if not isinstance(tree.get("items"), dict):
                self.causes.append(
                    _invalid(
                        f"{path}.items", "Required value: must be specified outside the value check too", "FieldValueRequired"
                    )
                )
            self.value_check(schema["items"], tree.get("items"), f"{path}.items", depth + 1)
        self.junctors(schema, tree, path, depth)

    def default(self, schema: Raw, path: str) -> None:
        if "default" not in schema or self.causes:
            return
        default = schema["default"]
        if default is None and schema.get("nullable") is not True:
            self.causes.append(_invalid(f"{path}.default", "Invalid value: null: must not be null unless nullable is true"))
            return
        reached = _reached(schema, [default])
        for inner, reason, message in check_of(reached, Rules())(default) or ():
            self.causes.append(_invalid(f"{path}.default{inner}", message, reason))
        unknown: list[str] = []
        trim = trim_of(reached)
        if trim is not None:
            trim(default, unknown)
        self.causes += [_invalid(f"{path}.default{inner}", "Invalid value: the schema has no such field") for inner in unknown]


def _reached(schema: Raw, values: Sequence[Any]) -> Raw:
    """`schema` as far as `values` go into it.

    Each level of a schema may have a default of its own, so to make the whole of what is below ready for each would take the
    square of the schema's size.
    """
    if not values:
        return {}
    part = dict(schema)
    properties, extra, items = (schema.get(word) for word in ("properties", "additionalProperties", "items"))
    objects = [value for value in values if isinstance(value, dict)]
    if isinstance(properties, dict):
        by_name: dict[str, list[Any]] = {}
        for value in objects:
            for name, inner in value.items():
                by_name.setdefault(name, []).append(inner)
        part["properties"] = {
            name: _reached(properties[name], found) if isinstance(properties[name], dict) else properties[name]
            for name, found in by_name.items()
            if name in properties
        }
    elif isinstance(extra, dict):
        part["additionalProperties"] = _reached(extra, [inner for value in objects for inner in value.values()])
    if isinstance(items, dict):
        part["items"] = _reached(items, [item for value in values if isinstance(value, list) for item in value])
    return part


def _is_int_or_string(parts: Any, part: Any) -> bool:
    """The one type union that is allowed: `anyOf: [{type: integer}, {type: string}]`, alone or first in allOf."""
    if parts == _INT_OR_STRING_TYPES:
        return True
    return isinstance(part, dict) and part == {"anyOf": _INT_OR_STRING_TYPES}
