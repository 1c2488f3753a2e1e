"""What a reservation is made of: names, TaskResources, their phases and conditions, the order in which phases follow. Pure.

A phase belongs to a *try* (`retryCount` of the group when it was written), and (try, phase) only ever grows:

    Pending < Reserving < Reserved < Schedulable < Failed, and everything of a later try is later

Everyone who writes a TaskResource (the reservation controller, the scheduler, the two ends between control planes) keeps to
that, and writes with the version that it read. So a cache that lags, a write that is repeated or one that arrives late can't
bring back what was already decided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from muster.controllers.actions import Patch, Target
from muster.objects.conditions import ConditionStatus, set_condition
from muster.objects.kinds.kuscia_base import API_VERSION, GROUP
from muster.objects.kinds.kuscia_tasks import TaskResource, TaskResourceGroup, TaskResourceGroupParty, TaskResourcePhase
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of
from muster.objects.quantity import Quantity
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import View, view_of

GROUP_KIND, RESOURCE_KIND = "TaskResourceGroup", "TaskResource"

_RANK: Mapping[str, int] = {"": 0, "Pending": 0, "Reserving": 1, "Reserved": 2, "Schedulable": 3, "Failed": 4}


class PodMeta(View):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class Amounts(View):
    requests: dict[str, Any] = msgspec.field(default_factory=dict)
    limits: dict[str, Any] = msgspec.field(default_factory=dict)


class Container(View):
    resources: Amounts = msgspec.field(default_factory=Amounts)


class PodSpec(View):
    node_name: str = ""
    containers: list[Container] = msgspec.field(default_factory=list)


class ReservationPod(View):
    """A pod of a task, as far as its reservation is concerned."""

    metadata: PodMeta = msgspec.field(default_factory=PodMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)


def task_resource_name(task_uid: str, domain_id: str, role: str) -> str:
    """The name of a party's TaskResource. It follows from the task, so that whoever comes first makes the same one."""
    digest = hashlib.sha256("\0".join((task_uid, domain_id, role)).encode()).hexdigest()
    return f"tr-{digest[:16]}"


def spread_s(uid: str, retry_count: int, within_s: float) -> float:
    """A pause below `within_s` that is different for each task and try, and the same wherever it is worked out."""
    digest = hashlib.sha256(f"{uid}/{retry_count}".encode()).digest()
    return within_s * int.from_bytes(digest[:4]) / 2**32


def is_member(group: TaskResourceGroup) -> bool:
    """Whether another control plane decides, and this one only takes part."""
    return group.metadata.annotations.get(KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR) == "false"


def all_parties(group: TaskResourceGroup) -> list[TaskResourceGroupParty]:
    return [*group.spec.parties, *group.spec.out_of_controlled_parties]


def is_later(phase: str, retry_count: int, than: TaskResource) -> bool:
    """Whether (try, phase) comes after what the TaskResource says."""
    return (retry_count, _RANK.get(phase, 0)) > (than.status.retry_count, _RANK.get(than.status.phase, 0))


def least_pods(party: TaskResourceGroupParty) -> int:
    """How many of the party's pods must have a place; all when it is not said, and never none."""
    return max(party.min_reserved_pods or len(party.pods), 1)


def resource_target(resource: TaskResource) -> Target:
    """This very TaskResource, as it was read."""
    meta = resource.metadata
    return Target(GROUP, RESOURCE_KIND, meta.name, meta.namespace, meta.uid, meta.resource_version)


def advance(
    raw: Raw, phase: TaskResourcePhase, retry_count: int, *, now: float, reason: str, message: str = ""
) -> Patch | None:
    """The patch that brings a TaskResource to a phase; None when it is there or further.

    Preconditioned on the version that was read. A new try begins with a clean sheet: earlier conditions are False, and what
    was asked to be given back is no longer asked for.
    """
    resource = view_of(TaskResource, raw)
    if not is_later(phase, retry_count, resource):
        return None
    old = raw.get("status")
    status = old if isinstance(old, dict) else {}
    conditions: Sequence[Raw] = status.get("conditions") or []
    patch: Raw = {"status": {"phase": phase, "retryCount": retry_count, "lastTransitionTime": format_time(now)}}
    if phase == "Reserving":
        for known in conditions:
            if known.get("type") in ("Reserved", "Failed") and known.get("status") == "True":
                conditions = set_condition(
                    conditions, type_=known["type"], status="False", now=now, reason="Retried", message="in an earlier try"
                )
        if status.get("completionTime"):
            patch["status"]["completionTime"] = None
        if Muster.WITHDRAW in annotations_of(raw):
            patch["metadata"] = {"annotations": {Muster.WITHDRAW: None}}
    elif phase in ("Schedulable", "Failed"):
        patch["status"]["completionTime"] = format_time(now)
    if not status.get("startTime"):
        patch["status"]["startTime"] = format_time(now)
    patch["status"]["conditions"] = set_condition(
        conditions, type_=phase, status="True", now=now, reason=reason, message=message
    )
    return Patch(resource_target(resource), patch)


def new_resource(group: Raw, party: TaskResourceGroupParty, *, now: float) -> Raw:
    """The TaskResource of a party, for a group that was read from the store.

    What its pods ask for is added when they exist (`sums`): pods are made after it, because they carry its uid.
    """
    view = view_of(TaskResourceGroup, group)
    meta = view.metadata
    carried = (
        KusciaAnnotation.INITIATOR,
        KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR,
        Muster.ORIGIN_CREATED,
        Muster.ORIGIN_UID,
    )
    annotations = {name: meta.annotations[name] for name in carried if name in meta.annotations}
    labels = {KusciaLabel.TASK_RESOURCE_GROUP_UID: meta.uid}
    if task_uid := meta.labels.get(KusciaLabel.TASK_UID):
        labels[KusciaLabel.TASK_UID] = task_uid
    return {
        "apiVersion": API_VERSION,
        "kind": RESOURCE_KIND,
        "metadata": {
            "name": party.task_resource_name,
            "namespace": party.domain_id,
            "labels": labels,
            "annotations": {**annotations, KusciaAnnotation.TASK_RESOURCE_GROUP: meta.name},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": GROUP_KIND,
                    "name": meta.name,
                    "uid": meta.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            **({"role": party.role} if party.role else {}),  # some API servers take an empty text for null
            "minReservedPods": least_pods(party),
            "resourceReservedSeconds": view.spec.resource_reserved_seconds,
            "initiator": view.spec.initiator,
            "pods": [{"name": pod.name} for pod in party.pods],
        },
        "status": {
            "phase": "Pending",
            "startTime": format_time(now),
            "lastTransitionTime": format_time(now),
            "conditions": set_condition([], type_="Pending", status="True", now=now, reason="Created"),
        },
    }


def sums(resource: TaskResource, pods: Mapping[str, ReservationPod]) -> Patch | None:
    """The patch that adds to `spec.pods` what each pod asks for; None before all pods exist, and when it is there already."""
    if not resource.spec.pods or any(pod.resources.requests or pod.resources.limits for pod in resource.spec.pods):
        return None
    found = [pods.get(pod.name) for pod in resource.spec.pods]
    listed: list[Raw] = []
    for pod in found:
        if pod is None:
            return None
        asked = {
            field: total
            for field in ("requests", "limits")
            if (total := _total(getattr(container.resources, field) for container in pod.spec.containers))
        }
        listed.append({"name": pod.metadata.name, "resources": asked} if asked else {"name": pod.metadata.name})
    if not any("resources" in one for one in listed):
        return None
    return Patch(resource_target(resource), {"spec": {"pods": listed}})


def _total(amounts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    total: dict[str, Quantity] = {}
    for one in amounts:
        for name, amount in one.items():
            try:
                quantity = Quantity.parse(amount)
            except ValueError:
                continue  # not an amount that can be added; the pod itself says what it is
            total[name] = total[name] + quantity if name in total else quantity
    return {name: str(quantity) for name, quantity in total.items()}


class Fact(msgspec.Struct, frozen=True):
    """A condition to set on a group."""

    type: str
    reason: str
    message: str = ""
    status: ConditionStatus = "True"


def with_facts(conditions: Sequence[Raw], facts: Iterable[Fact], now: float) -> list[Raw]:
    known = list(conditions)
    for fact in facts:
        known = set_condition(known, type_=fact.type, status=fact.status, now=now, reason=fact.reason, message=fact.message)
    return known
