"""Builders for tests about volumes: claims, volumes and storage classes, put into the state's books."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from muster.engine.facts import ClaimFacts, PersistentVolumeFacts, PodFacts, StorageClassFacts
from muster.engine.state import State
from tests.engine.building import pod


def claim(
    name: str,
    *,
    volume: str = "",
    storage_class: str | None = None,
    modes: tuple[str, ...] = ("ReadWriteOnce",),
    phase: str = "",
    **meta: Any,
) -> ClaimFacts:
    """Further keywords become members of `metadata` as they are, in JSON spelling."""
    spec: dict[str, Any] = {"volumeName": volume, "storageClassName": storage_class, "accessModes": list(modes)}
    raw = {"metadata": {"name": name, "namespace": "default", **meta}, "spec": spec, "status": {"phase": phase}}
    return msgspec.convert(raw, ClaimFacts)


def volume(name: str, *, zone: tuple[str, str] | None = None, labels: Mapping[str, str] | None = None) -> PersistentVolumeFacts:
    """`zone`: a node label and its value that the required node affinity demands."""
    spec: dict[str, Any] = {}
    if zone is not None:
        expression = {"key": zone[0], "operator": "In", "values": [zone[1]]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    return msgspec.convert({"metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec}, PersistentVolumeFacts)


def storage_class(name: str, mode: str, provisioner: str = "csi.example.org", **more: Any) -> StorageClassFacts:
    raw = {"metadata": {"name": name}, "volumeBindingMode": mode, "provisioner": provisioner, **more}
    return msgspec.convert(raw, StorageClassFacts)


def keep(state: State, *objects: ClaimFacts | PersistentVolumeFacts | StorageClassFacts) -> State:
    for one in objects:
        if isinstance(one, ClaimFacts):
            state.claims[one.metadata.namespace, one.metadata.name] = one
        elif isinstance(one, PersistentVolumeFacts):
            state.volumes[one.metadata.name] = one
        else:
            state.storage_classes[one.metadata.name] = one
    return state


def mounting(name: str, *claims: str, on: str = "", **spec: Any) -> PodFacts:
    volumes = [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": one}} for n, one in enumerate(claims)]
    return pod(name, node=on, volumes=volumes, **spec)
