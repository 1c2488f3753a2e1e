"""Kubernetes' `policy/v1`: disruption budgets, and evictions that respect them. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.conditions import Conditions
from muster.objects.kinds.base import AGE, REPLACE, Native, NativeObject, Selector, Strings, one_of
from muster.objects.resources import Column, Resource
from muster.objects.time import Timestamp
from muster.objects.view import Int32, IntOrString


class PodDisruptionBudgetSpec(Native):
    """How many of which pods must stay. One of the two numbers is set."""

    min_available: Annotated[IntOrString | None, "Pods that must stay, as a number or a percentage."] = None
    max_unavailable: Annotated[IntOrString | None, "Pods that may be missing, as a number or a percentage."] = None
    selector: Annotated[Selector | None, REPLACE, "The pods; empty means all of the namespace, absent none."] = None
    unhealthy_pod_eviction_policy: Annotated[
        str | None, one_of("IfHealthyBudget", "AlwaysAllow"), "Whether pods that are not ready may always be evicted."
    ] = None


class PodDisruptionBudgetStatus(Native):
    """How many pods may go now."""

    disruptions_allowed: Annotated[Int32, "How many may be evicted now."] = 0
    current_healthy: Annotated[Int32, "Healthy pods."] = 0
    desired_healthy: Annotated[Int32, "Healthy pods that there must be."] = 0
    expected_pods: Annotated[Int32, "Pods that there should be."] = 0
    disrupted_pods: Annotated[dict[str, Timestamp], "Pods whose eviction was allowed and is not seen yet, and when."] = {}
    observed_generation: Annotated[int, "The generation that this speaks of."] = 0
    conditions: Annotated[Conditions, "Facts about it."] = []


class PodDisruptionBudget(NativeObject):
    """How many pods of a set may be evicted at the same time."""

    spec: Annotated[PodDisruptionBudgetSpec | None, "How many must stay."] = None
    status: Annotated[PodDisruptionBudgetStatus | None, "How many may go now."] = None


class Preconditions(Native):
    """What must hold for a deletion to happen."""

    uid: Annotated[str | None, "The object's UID."] = None
    resource_version: Annotated[str | None, "Its version."] = None


class DeleteOptions(Native):
    """How to delete."""

    api_version: Annotated[str, "Group and version of this schema."] = ""
    kind: Annotated[str, "DeleteOptions."] = ""
    grace_period_seconds: Annotated[int | None, "Time to end in peace; 0 deletes at once."] = None
    preconditions: Annotated[Preconditions | None, "What must hold."] = None
    orphan_dependents: Annotated[bool | None, "Old form of `propagationPolicy`."] = None
    propagation_policy: Annotated[
        str | None, one_of("Orphan", "Background", "Foreground"), "What becomes of the objects that it owns."
    ] = None
    dry_run: Annotated[Strings, "`All`: check everything and change nothing."] = []
    ignore_store_read_error_with_cluster_breaking_potential: Annotated[
        bool | None, "Delete an object that can't be read any more."
    ] = None


class Eviction(NativeObject):
    """Deletes a pod unless a disruption budget forbids it: what is posted to the pod's `eviction` subresource."""

    delete_options: Annotated[DeleteOptions | None, "How to delete it."] = None


RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="policy",
        version="v1",
        kind="PodDisruptionBudget",
        plural="poddisruptionbudgets",
        short_names=("pdb",),
        subresources=frozenset({"status"}),
        view=PodDisruptionBudget,
        columns=(
            Column(name="Min Available", path=".spec.minAvailable"),
            Column(name="Max Unavailable", path=".spec.maxUnavailable"),
            Column(name="Allowed Disruptions", path=".status.disruptionsAllowed", type="integer"),
            AGE,
        ),
    ),
)
