"""Requests as values: which path, which parameters, which body an operation on an object needs.

Pure. Names are checked before they become part of a path: an empty name would turn "delete this object" into "delete all of
them", and a slash would address something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from muster.client.messages import Request
from muster.objects.requests import PatchType, Preconditions, Propagation, WriteOptions
from muster.objects.resources import Resource
from muster.objects.status import BadRequest, Raw

Params = list[tuple[str, str]]

TABLE = ",".join(
    ["application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/json"]
)


def segment(value: str, what: str, resource: Resource) -> str:
    """`value` as one segment of a path. BadRequest when it cannot be one."""
    try:
        quoted = quote(value, safe=":~")
    except UnicodeEncodeError:
        quoted = ""
    if not quoted or value in (".", "..") or "/" in value or "%" in value:
        raise BadRequest(
            f'{what} "{value}" of {resource.qualified} cannot be part of a path: it is empty, ".", "..", or holds "/" or "%"',
            kind=resource.plural,
            group=resource.group,
            name=value,
        )
    return quoted


def object_path(resource: Resource, name: str, namespace: str | None, subresource: str = "") -> str:
    return resource.path(_namespace(resource, namespace), segment(name, "name", resource), subresource)


def collection_path(resource: Resource, namespace: str | None, *, is_write: bool = False) -> str:
    """All namespaces when `namespace` is None, which a write must not be for a namespaced kind."""
    if namespace is None and not is_write:
        return resource.path()
    return resource.path(_namespace(resource, namespace))


def _namespace(resource: Resource, namespace: str | None) -> str | None:
    if not resource.namespaced:
        return None
    if not namespace:
        raise BadRequest(
            f"{resource.qualified} live in namespaces and none was given; pass namespace=...",
            kind=resource.plural,
            group=resource.group,
        )
    return segment(namespace, "namespace", resource)


def metadata_of(obj: Mapping[str, Any], resource: Resource) -> Mapping[str, Any]:
    metadata = obj.get("metadata")
    if not isinstance(metadata, Mapping):
        raise BadRequest(
            f"{resource.kind}: metadata must be a mapping, not {type(metadata).__name__}",
            kind=resource.kind,
            group=resource.group,
        )
    return metadata


def namespace_for(obj: Mapping[str, Any], resource: Resource, namespace: str | None) -> str | None:
    """Where a write goes: the namespace that was given, else the one that the object names."""
    return namespace or str(metadata_of(obj, resource).get("namespace") or "") or None


def with_type(obj: Mapping[str, Any], resource: Resource) -> Mapping[str, Any]:
    """`obj` with apiVersion and kind filled in where they are missing: what a typed list gave may lack them."""
    if obj.get("apiVersion") and obj.get("kind"):
        return obj
    return {"apiVersion": resource.api_version, "kind": resource.kind, **{k: v for k, v in obj.items() if v is not None}}


def check_type(obj: Mapping[str, Any], resource: Resource) -> None:
    """An applied object must be of the kind that its path says; servers before 1.21 answer with an internal error."""
    for field, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        given = obj.get(field)
        if given is not None and given != expected:
            raise BadRequest(
                f'{field} "{given}" cannot be applied to {resource.qualified}, whose {field} is "{expected}"',
                kind=resource.kind,
                group=resource.group,
            )


def selection(label_selector: str, field_selector: str) -> Params:
    params: Params = []
    if label_selector:
        params.append(("labelSelector", label_selector))
    if field_selector:
        params.append(("fieldSelector", field_selector))
    return params


def list_request(
    resource: Resource,
    namespace: str | None,
    *,
    label_selector: str = "",
    field_selector: str = "",
    limit: int = 0,
    continue_token: str = "",
    resource_version: str = "",
) -> Request:
    params = selection(label_selector, field_selector)
    if limit:
        params.append(("limit", str(limit)))
    if continue_token:
        params.append(("continue", continue_token))
    elif resource_version:
        params.append(("resourceVersion", resource_version))
    return Request(method="GET", path=collection_path(resource, namespace), params=params)


def watch_request(
    resource: Resource,
    namespace: str | None,
    *,
    label_selector: str = "",
    field_selector: str = "",
    resource_version: str = "",
    bookmarks: bool = True,
    timeout_s: float | None = None,
) -> Request:
    params = [("watch", "true"), *selection(label_selector, field_selector)]
    if resource_version:
        params.append(("resourceVersion", resource_version))
    if bookmarks:
        params.append(("allowWatchBookmarks", "true"))
    if timeout_s is not None:
        # Whole seconds, and a little more than ours: this side ends it exactly, the other side at the latest.
        params.append(("timeoutSeconds", str(int(timeout_s) + 2)))
    return Request(method="GET", path=collection_path(resource, namespace), params=params)


def write_params(options: WriteOptions, *, is_apply: bool = False) -> Params:
    """`fieldValidation` is sent although servers before 1.25 do not know it: they ignore it, later ones would warn unasked."""
    params: Params = [("fieldManager", options.field_manager)] if options.field_manager else []
    params.append(("fieldValidation", options.field_validation))
    if options.dry_run:
        params.append(("dryRun", "All"))
    if options.force and is_apply:
        params.append(("force", "true"))
    return params


def patch_request(path: str, patch: Raw | Sequence[Raw], patch_type: PatchType, options: WriteOptions) -> Request:
    is_list = not isinstance(patch, Mapping)
    if is_list != (patch_type is PatchType.JSON):
        wanted = "a list of operations" if patch_type is PatchType.JSON else "an object"
        raise BadRequest(f"PATCH {path}: {patch_type.value} is {wanted}, not {type(patch).__name__}")
    return Request(
        method="PATCH",
        path=path,
        params=write_params(options, is_apply=patch_type is PatchType.APPLY),
        body=encode(list(patch) if is_list else patch),
        content_type=patch_type.value,
    )


def delete_options(
    *,
    propagation: Propagation | None = None,
    grace_period_s: int | None = None,
    preconditions: Preconditions | None = None,
    dry_run: bool = False,
) -> Raw:
    options: Raw = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if propagation is not None:
        options["propagationPolicy"] = propagation
    if grace_period_s is not None:
        options["gracePeriodSeconds"] = grace_period_s
    if preconditions is not None and (conditions := preconditions.to_raw()):
        options["preconditions"] = conditions
    if dry_run:
        options["dryRun"] = ["All"]
    return options


def binding(pod: str, namespace: str, node: str, *, uid: str, annotations: Mapping[str, str] | None) -> Raw:
    metadata: Raw = {"name": pod, "namespace": namespace}
    if uid:
        metadata["uid"] = uid
    if annotations:
        metadata["annotations"] = dict(annotations)
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def eviction(pod: str, namespace: str, api_version: str, options: Raw) -> Raw:
    # The options inside an Eviction take the group's version, not v1, when they name one at all.
    options = {key: value for key, value in options.items() if key not in ("apiVersion", "kind")}
    return {
        "apiVersion": api_version,
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
        "deleteOptions": options,
    }


def encode(value: Any) -> bytes:
    """JSON. BadRequest names the type that JSON cannot say."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRequest(f"the object cannot be written as JSON: {error}") from error
