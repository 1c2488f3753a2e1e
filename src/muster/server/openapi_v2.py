"""OpenAPI v2, for clients older than v3: JSON, and the protobuf form that kubectl before 1.27 insists on.

One document over all groups: definitions for validation, and the PATCH operations, whose parameters tell kubectl that
`--dry-run=server` works. Where a schema lets unknown fields pass, v2 shows no properties at all: an old kubectl would refuse
fields that the schema does not name.

Pure. The protobuf writer knows exactly the messages of gnostic's `openapi.v2` that the document uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from muster.objects import yaml_text
from muster.objects.meta import ObjectMeta
from muster.objects.resources import Resource
from muster.objects.schema import publishable, schema_of
from muster.objects.status import Raw
from muster.server.openapi import OBJECT_META, SchemaOf, definition_name, gvk, object_schema

MEDIA_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
MEDIA_PROTOBUF_NAMES = (MEDIA_PROTOBUF, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
_PREFIX = "#/definitions/"
_KEPT = ("description", "type", "format", "required", "enum", "pattern", "minimum", "maximum", "default", "$ref")
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_GVK = "x-kubernetes-group-version-kind"
_PATCH_QUERY = ("dryRun", "fieldManager", "fieldValidation")


def document(resources: Iterable[Resource], schema_of_resource: SchemaOf) -> Raw:
    """The whole document as JSON values."""
    definitions: Raw = {OBJECT_META: _simplified(publishable(schema_of(ObjectMeta)))}
    paths: Raw = {}
    for resource in resources:
        shaped = object_schema(resource, schema_of_resource(resource), _PREFIX)
        shaped["properties"]["metadata"] = {"$ref": _PREFIX + OBJECT_META}
        definitions[definition_name(resource)] = {**_simplified(shaped, is_root=True), _GVK: shaped[_GVK]}
        if "patch" in resource.verbs:
            path = resource.path("{namespace}" if resource.namespaced else None, "{name}")
            parameters = [{"name": name, "in": "query", "type": "string"} for name in _PATCH_QUERY]
            paths[path] = {
                "patch": {"parameters": parameters, "responses": {"200": {"description": "OK"}}, _GVK: gvk(resource)}
            }
    return {"swagger": "2.0", "info": {"title": "Muster", "version": "v1"}, "paths": paths, "definitions": definitions}


def _simplified(schema: Any, *, is_root: bool = False) -> Raw:
    """A v3 schema in v2's words; what v2 can't say is left out, which only ever allows more."""
    if not isinstance(schema, dict):
        return {}
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    result: Raw = {key: schema[key] for key in _KEPT if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": "string", "format": "int-or-string", **{k: v for k, v in result.items() if k == "description"}}
    if schema.get(_PRESERVE) and not is_root:
        return {key: result[key] for key in ("description", "type") if key in result}
    if isinstance(schema.get("properties"), dict) and not (is_root and schema.get(_PRESERVE)):
        result["properties"] = {name: _simplified(inner) for name, inner in schema["properties"].items()}
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _simplified(schema["additionalProperties"])
    if isinstance(schema.get("items"), dict):
        result["items"] = _simplified(schema["items"])
    for key, value in schema.items():
        if key in (
            "x-kubernetes-patch-merge-key",
            "x-kubernetes-patch-strategy",
            "x-kubernetes-list-type",
            "x-kubernetes-list-map-keys",
        ):
            result[key] = value
    return result


# --- protobuf: fields are (number, wire type); numbers are those of gnostic's OpenAPIv2.proto


def protobuf(doc: Raw) -> bytes:
    """`doc`, as `document` made it, as an `openapi.v2.Document`."""
    info = _text(1, doc["info"]["title"]) + _text(2, doc["info"]["version"])
    paths = b"".join(_message(2, _text(1, path) + _message(2, _path_item(item))) for path, item in doc["paths"].items())
    definitions = b"".join(_named_schema(name, schema) for name, schema in doc["definitions"].items())
    return _text(1, doc["swagger"]) + _message(2, info) + _message(8, paths) + _message(9, definitions)


def _path_item(item: Raw) -> bytes:
    operation = item["patch"]
    parameters = b"".join(
        # ParametersItem.parameter > Parameter.non_body_parameter > NonBodyParameter.query_parameter_sub_schema
        _message(8, _message(1, _message(2, _message(3, _text(2, p["in"]) + _text(4, p["name"]) + _text(6, p["type"])))))
        for p in operation["parameters"]
    )
    response = _message(1, _text(1, "200") + _message(2, _message(1, _text(1, "OK"))))
    extension = _message(13, _named_any(_GVK, operation[_GVK]))
    return _message(8, parameters + _message(9, response) + extension)


def _named_schema(name: str, schema: Raw) -> bytes:
    return _message(1, _text(1, name) + _message(2, _schema(schema)))


def _schema(schema: Raw) -> bytes:
    parts = [
        _text(1, schema.get("$ref", "")),
        _text(2, schema.get("format", "")),
        _text(4, schema.get("description", "")),
        _text(13, schema.get("pattern", "")),
        *(_text(19, name) for name in schema.get("required", ())),
        *(_message(20, _any(value)) for value in schema.get("enum", ())),
    ]
    if isinstance(schema.get("additionalProperties"), dict):
        parts.append(_message(21, _message(1, _schema(schema["additionalProperties"]))))
    if schema.get("type"):
        parts.append(_message(22, _text(1, schema["type"])))
    if isinstance(schema.get("items"), dict):
        parts.append(_message(23, _message(1, _schema(schema["items"]))))
    if isinstance(schema.get("properties"), dict):
        parts.append(_message(25, b"".join(_named_schema(name, inner) for name, inner in schema["properties"].items())))
    parts += [_message(31, _named_any(key, value)) for key, value in schema.items() if key.startswith("x-")]
    return b"".join(parts)


def _named_any(name: str, value: Any) -> bytes:
    return _text(1, name) + _message(2, _any(value))


def _any(value: Any) -> bytes:
    """Values travel as YAML text inside the message."""
    return (
        _text(2, yaml_text.dump(value)) if not isinstance(value, str) else _text(2, msgspec.json.encode(value).decode() + "\n")
    )


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode()) if text else b""


def _message(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
