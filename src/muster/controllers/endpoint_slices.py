"""EndpointSlices beside Endpoints: the same addresses in the form that newer tools read. Pure; `endpoints` keeps them.

One slice for each subset, named after its ports, so that a pod that comes or goes changes one object.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster.controllers.actions import Action, Create, Delete, Patch, Target
from muster.objects.status import Raw

GROUP: Final = "discovery.k8s.io"
SERVICE_NAME: Final = "kubernetes.io/service-name"
MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
MANAGER: Final = "endpoints.muster.dev"


def plan(
    service: Target, labels: Mapping[str, str], owner: Raw, subsets: Sequence[Raw], present: Mapping[str, Raw]
) -> list[Action]:
    """What the service's slices lack; `present` are those that it owns, by name."""
    actions: list[Action] = []
    wanted = {name_of(service.name, subset): subset for subset in subsets}
    for name, subset in wanted.items():
        content: Raw = {"endpoints": _endpoints(subset), "ports": [{"name": "", **port} for port in subset.get("ports", [])]}
        marks = {**labels, SERVICE_NAME: service.name, MANAGED_BY: MANAGER}
        old = present.get(name)
        if old is None:
            meta = {"name": name, "namespace": service.namespace, "labels": marks, "ownerReferences": [owner]}
            made = {"apiVersion": f"{GROUP}/v1", "kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4"}
            actions.append(Create({**made, **content}))
            continue
        old_marks: Mapping[str, str] = (old.get("metadata") or {}).get("labels") or {}
        if {key: old.get(key) or [] for key in content} != content or dict(old_marks) != marks:
            changed = {**dict.fromkeys(set(old_marks) - set(marks)), **marks}
            actions.append(Patch(_target(service, name), {"metadata": {"labels": changed}, **content}))
    return [*actions, *(Delete(_target(service, name)) for name in present if name not in wanted)]


def name_of(service: str, subset: Raw) -> str:
    ports = msgspec.json.encode(subset.get("ports", []), order="deterministic")
    return f"{service}-{hashlib.sha256(ports).hexdigest()[:8]}"


def _target(service: Target, name: str) -> Target:
    return Target(GROUP, "EndpointSlice", name, service.namespace)


def _endpoints(subset: Raw) -> list[Raw]:
    found: list[Raw] = []
    for word, is_ready in (("addresses", True), ("notReadyAddresses", False)):
        for address in subset.get(word, []):
            if ipaddress.ip_address(address["ip"]).version == 4:
                rest = {key: address[key] for key in ("hostname", "nodeName", "targetRef") if key in address}
                found.append({"addresses": [address["ip"]], "conditions": {"ready": is_ready}, **rest})
    return found
