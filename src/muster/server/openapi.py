"""OpenAPI v3: a document per group and version, as `kubectl explain`, `apply` and `--validate` read them.

Schemas come from the store (`store.schema(resource)`): structural and without references. Here they get their names, the
`x-kubernetes-group-version-kind` by which clients find them, and one shared definition of object metadata. Paths list the
operations with the parameters that clients probe for (`dryRun`, `fieldValidation`, `fieldManager`).

Pure, lazy: a document is made when it is first asked for and kept, with its hash, until the resources change. A client that has
the hash in its URL may keep the document for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from muster.objects.meta import ObjectMeta
from muster.objects.resources import Resource
from muster.objects.schema import publishable, schema_of
from muster.objects.status import Raw
from muster.store.contract import PatchType

SchemaOf = Callable[[Resource], Raw | None]

META_PREFIX = "io.k8s.apimachinery.pkg.apis.meta.v1"
OBJECT_META = f"{META_PREFIX}.ObjectMeta"
LIST_META = f"{META_PREFIX}.ListMeta"
_JSON = "application/json"
_GVK = "x-kubernetes-group-version-kind"
_QUERY = {
    "dryRun": ("string", "All: check and answer as if stored, and store nothing."),
    "fieldManager": ("string", "Who is to own the fields that this write sets."),
    "fieldValidation": ("string", "Ignore, Warn or Strict: what to do about fields that the schema does not know."),
    "force": ("boolean", "Take over fields that another manager has applied."),
    "labelSelector": ("string", "Only objects whose labels match."),
    "fieldSelector": ("string", "Only objects whose fields match."),
    "limit": ("integer", "At most so many objects; the answer has a continue token when there are more."),
    "continue": ("string", "The token of the page before."),
    "resourceVersion": ("string", "At which version, or from which."),
    "resourceVersionMatch": ("string", "NotOlderThan or Exact."),
    "watch": ("boolean", "Stream changes instead."),
    "timeoutSeconds": ("integer", "End the watch or the list after so long."),
    "allowWatchBookmarks": ("boolean", "Send BOOKMARK events."),
    "sendInitialEvents": ("boolean", "Begin a watch with what exists."),
    "pretty": ("string", "Ignored; answers are compact."),
}
_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_LIST = ("labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch", "timeoutSeconds")
_WATCH = ("watch", "allowWatchBookmarks", "sendInitialEvents")
_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "get": ("resourceVersion",),
    "list": (*_LIST, *_WATCH),
    "post": _WRITE,
    "put": _WRITE,
    "patch": (*_WRITE, "force"),
    "delete": ("dryRun",),
    "deletecollection": (*_LIST, "dryRun"),
}


class OpenApi:
    """The v3 documents for the resources of one moment."""

    def __init__(self, resources: Iterable[Resource], schema_of_resource: SchemaOf) -> None:
        self._by_path: dict[str, list[Resource]] = {}
        for resource in resources:
            key = f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"
            self._by_path.setdefault(key, []).append(resource)
        self._schema_of = schema_of_resource
        self._documents: dict[str, tuple[bytes, str]] = {}

    def index(self) -> Raw:
        """`/openapi/v3`"""
        return {
            "paths": {
                path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={self.document(path)[1]}"}
                for path in sorted(self._by_path)
            }
        }

    def has(self, path: str) -> bool:
        return path in self._by_path

    def document(self, path: str) -> tuple[bytes, str]:
        """(body, hash) of one group and version, such as `apis/apps/v1`."""
        found = self._documents.get(path)
        if found is None:
            body = msgspec.json.encode(self._build(self._by_path[path]))
            found = self._documents[path] = (body, hashlib.sha256(body).hexdigest().upper())
        return found

    def _build(self, resources: list[Resource]) -> Raw:
        schemas: Raw = {OBJECT_META: publishable(schema_of(ObjectMeta)), LIST_META: _list_meta()}
        paths: Raw = {}
        for resource in resources:
            name = definition_name(resource)
            schemas[name] = object_schema(resource, self._schema_of(resource), "#/components/schemas/")
            if "list" in resource.verbs:
                schemas[f"{name}List"] = _list_schema(resource, name)
            paths.update(_paths(resource, name))
        return {
            "openapi": "3.0.0",
            "info": {"title": "Muster", "version": "v1"},
            "paths": paths,
            "components": {"schemas": schemas},
        }


def definition_name(resource: Resource) -> str:
    """Kubernetes' own kinds keep the names that tools know; others are named by their reversed group."""
    group = resource.group
    if group == "apiextensions.k8s.io":
        return f"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{resource.version}.{resource.kind}"
    if not resource.is_custom and (group.endswith(".k8s.io") or "." not in group):
        return f"io.k8s.api.{group.partition('.')[0] or 'core'}.{resource.version}.{resource.kind}"
    return ".".join([*reversed(group.split(".")), resource.version, resource.kind])


def object_schema(resource: Resource, schema: Raw | None, prefix: str) -> Raw:
    """The schema of a whole object under its name; `prefix` is where references point."""
    result: Raw = publishable(schema) if schema else {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    result["type"] = "object"
    properties = dict(result.get("properties") or {})
    for key in ("apiVersion", "kind"):
        properties[key] = {"type": "string", "description": _TYPE_DESCRIPTIONS[key]}
    properties["metadata"] = {
        "description": "Name, namespace, labels, owners and what the server keeps about the object.",
        "allOf": [{"$ref": prefix + OBJECT_META}],
        "default": {},
    }
    result["properties"] = properties
    result[_GVK] = [gvk(resource)]
    return result


_TYPE_DESCRIPTIONS = {
    "apiVersion": "Group and version of this kind's schema, as `group/version`, or `v1` for the core group.",
    "kind": "Name of the kind in CamelCase.",
}


def gvk(resource: Resource) -> Raw:
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def _list_meta() -> Raw:
    return {
        "type": "object",
        "description": "Metadata of a list.",
        "properties": {
            "continue": {"type": "string"},
            "remainingItemCount": {"type": "integer", "format": "int64"},
            "resourceVersion": {"type": "string"},
            "selfLink": {"type": "string"},
        },
    }


def _list_schema(resource: Resource, name: str) -> Raw:
    kind = resource.list_kind or f"{resource.kind}List"
    return {
        "type": "object",
        "description": f"A list of {resource.kind} objects.",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"allOf": [{"$ref": f"#/components/schemas/{LIST_META}"}], "default": {}},
            "items": {"type": "array", "items": {"allOf": [{"$ref": f"#/components/schemas/{name}"}], "default": {}}},
        },
        _GVK: [{**gvk(resource), "kind": kind}],
    }


def _paths(resource: Resource, name: str) -> Raw:
    verbs = set(resource.verbs)
    collection = resource.path("{namespace}" if resource.namespaced else None)
    item = f"{collection}/{{name}}"
    paths: Raw = {}
    many: Raw = {}
    if "list" in verbs:
        many["get"] = _operation(resource, name, "list")
    if "create" in verbs:
        many["post"] = _operation(resource, name, "post")
    if "deletecollection" in verbs:
        many["delete"] = _operation(resource, name, "deletecollection")
    one = {
        method: _operation(resource, name, method)
        for verb, method in (("get", "get"), ("update", "put"), ("patch", "patch"), ("delete", "delete"))
        if verb in verbs
    }
    namespace = [_path_parameter("namespace")] if resource.namespaced else []
    if many:
        paths[collection] = {**many, "parameters": namespace}
    if one:
        paths[item] = {**one, "parameters": [*namespace, _path_parameter("name")]}
    if resource.namespaced and "list" in verbs:
        paths[resource.path()] = {"get": _operation(resource, name, "list")}
    for sub in sorted(resource.subresources & {"status", "scale"}):
        methods = {method: _operation(resource, name, method) for method in ("get", "put", "patch")}
        paths[f"{item}/{sub}"] = {**methods, "parameters": [*namespace, _path_parameter("name")]}
    return paths


def _operation(resource: Resource, name: str, action: str) -> Raw:
    shown = f"{name}List" if action == "list" else name
    operation: Raw = {
        "description": f"{action} {resource.kind}",
        "operationId": f"{action}{resource.kind}",
        "parameters": [query_parameter(parameter) for parameter in _PARAMETERS[action]],
        "responses": {"200": {"description": "OK", "content": {_JSON: {"schema": {"$ref": f"#/components/schemas/{shown}"}}}}},
        "x-kubernetes-action": action,
        _GVK: gvk(resource),
    }
    if action in ("post", "put"):
        body: Any = {"$ref": f"#/components/schemas/{name}"}
        operation["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": body}, "application/yaml": {"schema": body}},
        }
    elif action == "patch":
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": {}} for kind in patch_media_types(resource)}}
    return operation


def patch_media_types(resource: Resource) -> list[str]:
    """Kinds that come from CRDs have no strategic merge, as in Kubernetes."""
    return [kind.value for kind in PatchType if kind is not PatchType.STRATEGIC or not resource.is_custom]


def query_parameter(name: str) -> Raw:
    kind, description = _QUERY[name]
    return {"name": name, "in": "query", "description": description, "schema": {"type": kind, "uniqueItems": True}}


def _path_parameter(name: str) -> Raw:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "uniqueItems": True}}
