"""Builders of what the task controller makes: TaskResourceGroups and the pods of a task."""

from __future__ import annotations

from typing import Any

from tests.controllers.scheduling import PROFILE

from muster.controllers.task_reservation import task_resource_name
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of, name_of, owner_reference, uid_of
from muster.objects.status import Raw

PARTY_LABEL = KusciaLabel.NODE_NAMESPACE


def party(domain: str, task: str, *, pods: int = 1, least: int = 0, role: str = "") -> Raw:
    name = f"{task}-{role}" if role else task
    made: Raw = {
        "domainID": domain,
        "pods": [{"name": f"{name}-{n}"} for n in range(pods)],
        "taskResourceName": task_resource_name(f"uid-of-{task}", domain, role),
    }
    return made | ({"minReservedPods": least} if least else {}) | ({"role": role} if role else {})


def group(
    name: str,
    own: list[Raw],
    others: list[Raw] | None = None,
    *,
    least: int | None = None,
    initiator: str = "alice",
    is_member: bool = False,
    created: str = "2026-01-01T00:00:00Z",
    **spec: Any,
) -> Raw:
    annotations = {
        KusciaAnnotation.INITIATOR: initiator,
        KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR: "false" if is_member else "true",
        Muster.ORIGIN_CREATED: created,
        Muster.ORIGIN_UID: f"uid-of-{name}",
    }
    others = others or []
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "TaskResourceGroup",
        "metadata": {"name": name, "labels": {KusciaLabel.TASK_UID: f"uid-of-{name}"}, "annotations": annotations},
        "spec": {
            "minReservedMembers": len(own) + len(others) if least is None else least,
            "resourceReservedSeconds": 30,
            "retryIntervalSeconds": 30,
            "initiator": initiator,
            "parties": own,
            "outOfControlledParties": others,
            **spec,
        },
    }


def pods_of(made: Raw, cpu: str = "1", **spec: Any) -> list[Raw]:
    """The pods of a group's own parties, as the task controller makes them. `made` was read from the store."""
    found = []
    for one in made["spec"]["parties"]:
        for listed in one["pods"]:
            container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
            found.append(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        "name": listed["name"],
                        "namespace": one["domainID"],
                        "labels": {
                            KusciaLabel.TASK_RESOURCE_GROUP_UID: uid_of(made),
                            KusciaLabel.TASK_UID: labels_of(made).get(KusciaLabel.TASK_UID, ""),
                        },
                        "annotations": {
                            KusciaAnnotation.TASK_RESOURCE_GROUP: name_of(made),
                            KusciaAnnotation.TASK_RESOURCE: one["taskResourceName"],
                            KusciaAnnotation.TASK_ID: name_of(made),
                            Muster.ORIGIN_CREATED: annotations_of(made).get(Muster.ORIGIN_CREATED, ""),
                            Muster.ORIGIN_UID: annotations_of(made).get(Muster.ORIGIN_UID, ""),
                        },
                        "ownerReferences": [owner_reference(made)],
                    },
                    "spec": {
                        "schedulerName": PROFILE,
                        "restartPolicy": "Never",
                        "containers": [container],
                        "nodeSelector": {PARTY_LABEL: one["domainID"]},
                        **spec,
                    },
                }
            )
    return found
