"""Kubernetes' `scheduling.k8s.io/v1`: priority classes. Pure."""

from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import AGE, NativeObject, one_of
from muster.objects.resources import Column, Resource
from muster.objects.view import Int32


class PriorityClass(NativeObject):
    """A name for a priority that pods can have."""

    value: Annotated[Int32, "The priority; higher goes first. Can't be changed."] = 0
    global_default: Annotated[bool, "For pods that name no class; at most one."] = False
    description: Annotated[str, "When to use it."] = ""
    preemption_policy: Annotated[
        str | None, one_of("PreemptLowerPriority", "Never"), "Whether pods of lower priority may be evicted for it."
    ] = "PreemptLowerPriority"


RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="scheduling.k8s.io",
        version="v1",
        kind="PriorityClass",
        plural="priorityclasses",
        namespaced=False,
        short_names=("pc",),
        view=PriorityClass,
        columns=(
            Column(name="Value", path=".value", type="integer"),
            Column(name="Global-Default", path=".globalDefault", type="boolean"),
            AGE,
            Column(name="PreemptionPolicy", path=".preemptionPolicy", priority=1),
        ),
    ),
)
