"""Discovery: what the server serves, in the forms that clients ask for.

Two forms: the old one, a document per group and version, and the aggregated one (`APIGroupDiscoveryList`, v2 and v2beta1), all
of it at once with an ETag, so that a client that has it already gets 304.

Pure. A `Discovery` is built from the resources of one moment; when they change (a CustomResourceDefinition came or went), the
server builds another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from muster.objects.crd import version_order
from muster.objects.resources import Resource
from muster.objects.status import Raw

AGGREGATED_GROUP = "apidiscovery.k8s.io"
AGGREGATED_VERSIONS = ("v2", "v2beta1")


class _Sub(msgspec.Struct, frozen=True):
    """A subresource whose objects may be of another kind than their parent; empty strings mean the parent's own."""

    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""
    kind: str = ""


_SUBRESOURCES = {
    "approval": _Sub(("get", "patch", "update")),
    "binding": _Sub(("create",), "", "v1", "Binding"),
    "eviction": _Sub(("create",), "policy", "v1", "Eviction"),
    "exec": _Sub(("create", "get"), "", "v1", "PodExecOptions"),
    "finalize": _Sub(("update",)),
    "log": _Sub(("get",)),
    "portforward": _Sub(("create", "get"), "", "v1", "PodPortForwardOptions"),
    "scale": _Sub(("get", "patch", "update"), "autoscaling", "v1", "Scale"),
    "status": _Sub(("get", "patch", "update")),
    "token": _Sub(("create",), "authentication.k8s.io", "v1", "TokenRequest"),
}


class Discovery:
    """Look up by group and version; the dicts returned are shared, for encoding only."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self.groups: dict[str, dict[str, list[Resource]]] = {}
        """Group to version to resources, the preferred version of a group first."""
        for resource in resources:
            self.groups.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
        for group, versions in self.groups.items():
            # Definitions of one group come in any order.
            self.groups[group] = {version: versions[version] for version in sorted(versions, key=version_order)}
        self._aggregated: dict[tuple[bool, str], tuple[bytes, str]] = {}

    # --- the old form

    def api_versions(self, address: str) -> Raw:
        """`/api`"""
        return {
            "kind": "APIVersions",
            "versions": list(self.groups.get("", {})),
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        }

    def group_list(self) -> Raw:
        """`/apis`"""
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [self._group(name) for name in self.groups if name]}

    def group(self, name: str) -> Raw | None:
        """`/apis/{group}`"""
        if not name or name not in self.groups:
            return None
        return {"kind": "APIGroup", "apiVersion": "v1", **self._group(name)}

    def _group(self, name: str) -> Raw:
        versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in self.groups[name]]
        return {"name": name, "versions": versions, "preferredVersion": versions[0]}

    def resource_list(self, group: str, version: str) -> Raw | None:
        """`/api/v1` and `/apis/{group}/{version}`"""
        found = self.groups.get(group, {}).get(version)
        if found is None:
            return None
        entries: list[Raw] = []
        for resource in sorted(found, key=lambda r: r.plural):
            entries.append(_entry(resource))
            entries += [_sub_entry(resource, name) for name in sorted(resource.subresources & _SUBRESOURCES.keys())]
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": entries,
        }

    # --- the aggregated form

    def aggregated(self, version: str, *, is_core: bool) -> tuple[bytes, str]:
        """(body, ETag) of `/api` (`is_core`) or `/apis` as an APIGroupDiscoveryList."""
        key = (is_core, version)
        found = self._aggregated.get(key)
        if found is None:
            body = msgspec.json.encode(self._aggregated_list(version, is_core))
            tag = '"' + hashlib.sha256(body).hexdigest().upper()[:64] + '"'
            found = self._aggregated[key] = (body, tag)
        return found

    def _aggregated_list(self, version: str, is_core: bool) -> Raw:
        items = [
            {
                "metadata": {"name": group, "creationTimestamp": None},
                "versions": [
                    {"version": name, "resources": [_aggregated_entry(r) for r in resources], "freshness": "Current"}
                    for name, resources in versions.items()
                ],
            }
            for group, versions in self.groups.items()
            if (group == "") == is_core
        ]
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"{AGGREGATED_GROUP}/{version}",
            "metadata": {},
            "items": items,
        }


def _entry(resource: Resource) -> Raw:
    entry: Raw = {
        "name": resource.plural,
        "singularName": resource.singular or resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": sorted(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    return entry


def _sub_entry(resource: Resource, name: str) -> Raw:
    sub = _SUBRESOURCES[name]
    entry: Raw = {
        "name": f"{resource.plural}/{name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": sub.kind or resource.kind,
        "verbs": list(sub.verbs),
    }
    if sub.kind and (sub.group, sub.version) != (resource.group, resource.version):
        entry["group"], entry["version"] = sub.group, sub.version
    return entry


def _aggregated_entry(resource: Resource) -> Raw:
    entry: Raw = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular or resource.kind.lower(),
        "verbs": sorted(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    subresources = []
    for name in sorted(resource.subresources & _SUBRESOURCES.keys()):
        sub = _SUBRESOURCES[name]
        own = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        kind = {"group": sub.group, "version": sub.version, "kind": sub.kind} if sub.kind else own
        subresources.append({"subresource": name, "responseKind": kind, "verbs": list(sub.verbs)})
    if subresources:
        entry["subresources"] = subresources
    return entry
