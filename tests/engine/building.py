"""Builders for engine tests: nodes and pods from a few words, as facts, by way of ordinary manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from muster.engine.events import NodeSeen
from muster.engine.facts import NodeFacts, PodFacts
from muster.engine.pods import PodRecord
from muster.engine.state import State

PROFILE = "muster-scheduler"


def node(name: str, *, cpu: str = "8", memory: str = "16Gi", pods: int = 110, **more: Any) -> NodeFacts:
    """`labels`, `annotations`, `taints` (list of {key, value, effect}), `unschedulable`, `images`, `resources` by name."""
    labels = {"kubernetes.io/hostname": name, **more.pop("labels", {})}
    raw = {
        "metadata": {"name": name, "uid": f"node-{name}", "labels": labels, "annotations": more.pop("annotations", {})},
        "spec": {"taints": more.pop("taints", []), "unschedulable": more.pop("unschedulable", False)},
        "status": {
            "images": more.pop("images", []),
            "allocatable": {"cpu": cpu, "memory": memory, "pods": pods, **more.pop("resources", {})},
        },
    }
    assert not more, f"node() does not know {sorted(more)}"
    return msgspec.convert(raw, NodeFacts)


def pod(
    name: str,
    *,
    cpu: str | None = None,
    memory: str | None = None,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    resources: Mapping[str, Any] | None = None,
    node: str = "",
    phase: str = "",
    created: str = "2026-01-01T00:00:00Z",
    scheduler: str = PROFILE,
    uid: str = "",
    **spec: Any,
) -> PodFacts:
    """`resources` are further requests by name; other keywords become members of `spec` as they are, in JSON spelling."""
    requests = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v is not None} | dict(resources or {})
    container: dict[str, Any] = {"image": spec.pop("image", "app"), "resources": {"requests": requests}}
    if "ports" in spec:
        container["ports"] = spec.pop("ports")
    body: dict[str, Any] = {"containers": [container], "schedulerName": scheduler, "nodeName": node, **spec}
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{namespace}-{name}",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
        "creationTimestamp": created,
    }
    return msgspec.convert({"metadata": meta, "spec": body, "status": {"phase": phase}}, PodFacts)


def state_of(nodes: Iterable[NodeFacts] = (), pods: Iterable[PodFacts] = ()) -> State:
    state = State()
    for one in nodes:
        state.apply_node(NodeSeen(one))
    state.flush_nodes()
    for each in pods:
        state.see_pod(each)
    return state


def see(state: State, *pods: PodFacts) -> list[PodRecord]:
    return [state.see_pod(one) for one in pods]
