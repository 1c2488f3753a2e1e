"""CustomResourceDefinitions, both ways: made from Muster's own kinds, and read from what users bring.

`crd_for` gives manifests that kube-apiserver accepts from 1.20 on. A user's definition is held against the same rules by
`validate_crd` (in `crd_rules`); what passes becomes resources and schemas by `resource_from_crd` and `schema_from_crd`.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from muster.objects.crd_rules import APPROVAL, crd_warnings, is_protected, validate_crd
from muster.objects.resources import Column, Resource
from muster.objects.schema import publishable, schema_of
from muster.objects.status import Raw
from muster.objects.view import copy_json

_APPROVED_AT: Final = {"scheduling.sigs.k8s.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"}
_VERSION: Final = re.compile(r"v([1-9]\d{0,8})(?:(alpha|beta)([1-9]\d{0,8}))?", re.ASCII)
_PUBLISHED_FORMATS: Final = frozenset({"int32", "int64", "double", "float", "byte", "date", "date-time"})


# -- from our kinds to definitions ------------------------------------------------------------------------------------------


def crd_for(resource: Resource, *, selectable_fields: bool = False) -> Raw:
    """The definition of one kind in one version.

    `selectable_fields` also publishes the fields for `--field-selector`, which clusters know from 1.30 on; older ones refuse
    or drop them.
    """
    return _definition([resource], selectable_fields=selectable_fields)


def crds_for(resources: Iterable[Resource], *, selectable_fields: bool = False) -> list[Raw]:
    """One definition for each kind, all its versions inside; the version listed first is the one that is stored."""
    by_name: dict[str, list[Resource]] = {}
    for resource in resources:
        by_name.setdefault(resource.qualified, []).append(resource)
    return [_definition(versions, selectable_fields=selectable_fields) for versions in by_name.values()]


def _definition(versions: list[Resource], *, selectable_fields: bool) -> Raw:
    first = versions[0]
    metadata: Raw = {"name": first.qualified, "labels": {"app.kubernetes.io/part-of": "muster"}}
    if is_protected(first.group):
        metadata["annotations"] = {APPROVAL: _APPROVED_AT.get(first.group, "unapproved, as its project publishes it")}
    names: Raw = {
        "plural": first.plural,
        "singular": first.singular or first.kind.lower(),
        "kind": first.kind,
        "listKind": first.list_kind or f"{first.kind}List",
    }
    if first.short_names:
        names["shortNames"] = list(first.short_names)
    if first.categories:
        names["categories"] = list(first.categories)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": first.group,
            "names": names,
            "scope": "Namespaced" if first.namespaced else "Cluster",
            "versions": [_version(r, is_stored=r is first, selectable_fields=selectable_fields) for r in versions],
        },
    }


def _version(resource: Resource, *, is_stored: bool, selectable_fields: bool) -> Raw:
    if resource.view is None:
        raise ValueError(f"{resource.qualified} has no view to take a schema from")
    version: Raw = {
        "name": resource.version,
        "served": True,
        "storage": is_stored,
        "schema": {"openAPIV3Schema": published_schema(resource)},
    }
    subresources: Raw = {}
    if resource.has_status:
        subresources["status"] = {}
    if resource.scale_paths:
        spec, status, selector = resource.scale_paths
        subresources["scale"] = {"specReplicasPath": spec, "statusReplicasPath": status}
        if selector:
            subresources["scale"]["labelSelectorPath"] = selector
    if subresources:
        version["subresources"] = subresources
    if resource.columns:
        version["additionalPrinterColumns"] = [_column_to_raw(column) for column in resource.columns]
    if selectable_fields and resource.selectable_fields:
        version["selectableFields"] = [{"jsonPath": f".{field}"} for field in resource.selectable_fields]
    return version


def published_schema(resource: Resource) -> Raw:
    """The schema of a kind as a CRD may have it: no extensions that only native kinds know, nothing about metadata."""
    assert resource.view is not None
    schema = _fit_for_crd(publishable(schema_of(resource.view), drop_prefixes=("x-kubernetes-patch-",)))
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def _fit_for_crd(schema: Raw) -> Raw:
    """`schema` (a copy, changed in place) with keys of map lists required, and without formats that only we know."""
    if schema.get("format") not in _PUBLISHED_FORMATS:
        schema.pop("format", None)
    for inner in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            _fit_for_crd(inner)
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        items = schema["items"]
        if key not in items.get("required", ()) and "default" not in items["properties"].get(key, {}):
            items["required"] = [*items.get("required", ()), key]
    return schema


def _column_to_raw(column: Column) -> Raw:
    raw: Raw = {"name": column.name, "type": column.type, "jsonPath": column.path}
    for key, value in (("priority", column.priority), ("description", column.description), ("format", column.format)):
        if value:
            raw[key] = value
    return raw


# -- from definitions to kinds ----------------------------------------------------------------------------------------------


def resource_from_crd(crd: Mapping[str, Any]) -> list[Resource]:
    """The kind that a valid definition describes, once for each served version, the preferred version first."""
    spec = crd["spec"]
    names = spec["names"]
    served = [version for version in spec["versions"] if version.get("served")]
    return [
        Resource(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            namespaced=spec["scope"] == "Namespaced",
            singular=names.get("singular") or names["kind"].lower(),
            list_kind=names.get("listKind") or f"{names['kind']}List",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=frozenset(
                name for name in ("status", "scale") if (version.get("subresources") or {}).get(name) is not None
            ),
            columns=tuple(_column_from_raw(column) for column in version.get("additionalPrinterColumns") or ()),
            selectable_fields=tuple(f["jsonPath"].removeprefix(".") for f in version.get("selectableFields") or ()),
            scale_paths=_scale_paths(version),
            is_custom=True,
        )
        for version in sorted(served, key=lambda v: version_order(v["name"]))
    ]


def schema_from_crd(crd: Mapping[str, Any], version: str) -> Raw | None:
    """The schema of one version; None when there is no such version or it has none."""
    for candidate in crd["spec"]["versions"]:
        if candidate["name"] == version:
            schema = (candidate.get("schema") or {}).get("openAPIV3Schema")
            return copy_json(schema) if isinstance(schema, dict) else None
    return None


def storage_version(crd: Mapping[str, Any]) -> str:
    """The version in which a valid definition stores its objects."""
    return next(str(version["name"]) for version in crd["spec"]["versions"] if version.get("storage"))


def version_order(name: str) -> tuple[int, int, int, str]:
    """Sorts v2 before v1 before v1beta1 before v1alpha1 before any other word, as Kubernetes prefers them."""
    found = _VERSION.fullmatch(name)
    if found is None:
        return (3, 0, 0, name)
    stage = {None: 0, "beta": 1, "alpha": 2}[found[2]]
    return (stage, -int(found[1]), -int(found[3] or 0), name)


def _column_from_raw(column: Mapping[str, Any]) -> Column:
    return Column(
        name=column["name"],
        path=column["jsonPath"],
        type=column["type"],
        priority=column.get("priority") or 0,
        description=column.get("description") or "",
        format=column.get("format") or "",
    )


def _scale_paths(version: Mapping[str, Any]) -> tuple[str, str, str] | None:
    scale = (version.get("subresources") or {}).get("scale")
    if not scale:
        return None
    return (scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath") or "")


__all__ = [
    "APPROVAL",
    "crd_for",
    "crd_warnings",
    "crds_for",
    "published_schema",
    "resource_from_crd",
    "schema_from_crd",
    "storage_version",
    "validate_crd",
    "version_order",
]
