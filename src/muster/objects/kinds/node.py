"""Kubernetes' `node.k8s.io/v1`: runtime classes. The kind Node is in `nodes`. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.affinity import Toleration
from muster.objects.kinds.base import AGE, AtomicTexts, Native, NativeObject
from muster.objects.resources import Column, Resource
from muster.objects.view import ATOMIC, Quantities


class Overhead(Native):
    """What a pod takes besides its containers."""

    pod_fixed: Annotated[Quantities, "For each pod."] = {}


class Scheduling(Native):
    """Nodes that have the runtime."""

    node_selector: Annotated[AtomicTexts, "Labels of such nodes, added to the pod's own selector."] = {}
    tolerations: Annotated[list[Toleration], ATOMIC, "Taints of such nodes, which the pod then bears."] = []


class RuntimeClass(NativeObject, kw_only=True):
    """A way of running containers that pods can name."""

    handler: Annotated[str, "The node's runtime setup: process, runc, ... Can't be changed."]
    overhead: Annotated[Overhead | None, "What a pod takes besides its containers."] = None
    scheduling: Annotated[Scheduling | None, "Nodes that have it."] = None


RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="node.k8s.io",
        version="v1",
        kind="RuntimeClass",
        plural="runtimeclasses",
        namespaced=False,
        generation_tracked=False,
        view=RuntimeClass,
        columns=(Column(name="Handler", path=".handler"), AGE),
    ),
)
