"""What `muster bench run queues` puts into queues, in either place: classes of workloads, nodes and queues. Pure.

Three classes in the manner of Kueue's benchmark. Six queues share a parent, which may use twice its share of the cluster;
among themselves they may use all of that.
"""

from __future__ import annotations

from typing import Final

import msgspec

from muster.objects.status import Raw

QUEUES_PER_PARENT: Final = 6
NODE_CPUS: Final = 64
NODE_AMOUNTS: Final = {"cpu": str(NODE_CPUS), "memory": "256Gi", "pods": "250"}
NAMESPACE: Final = "bench"


class Class(msgspec.Struct, frozen=True):
    """A class of workloads: of every ten, how many are of it."""

    name: str
    share: int
    cpus: int
    runs_s: float
    level: int


CLASSES: Final = (Class("small", 7, 1, 0.2, 50), Class("medium", 2, 5, 0.5, 100), Class("large", 1, 20, 1.0, 200))


def class_of(queue: int, number: int) -> Class:
    """Of the workload with this number in a queue; queues begin at different ones, so that few of each have all classes too."""
    turn = (queue + number) % sum(each.share for each in CLASSES)
    for each in CLASSES:
        if turn < each.share:
            return each
        turn -= each.share
    raise AssertionError("the shares of all classes are all there is")


def queue_name(number: int) -> str:
    return f"queue-{number}"


def queue_manifests(queues: int, nodes: int, policy: str) -> list[Raw]:
    """Parents first."""
    parents = -(-queues // QUEUES_PER_PARENT)
    cpus = max(2 * nodes * NODE_CPUS // parents, 2 * max(each.cpus for each in CLASSES))
    limits = {"limits": {"concurrent": {"cpu": str(cpus)}}}
    made = [_queue(f"team-{number}", {"policy": policy, **limits}) for number in range(parents)]
    made += [
        _queue(queue_name(number), {"policy": policy, "parent": f"team-{number // QUEUES_PER_PARENT}"})
        for number in range(queues)
    ]
    return made


def _queue(name: str, spec: Raw) -> Raw:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def job_manifest(queue: int, number: int) -> Raw:
    """A Job of one pod. Its role is named after its class, which the simulated nodes and the counts go by."""
    kind = class_of(queue, number)
    amounts = {"cpu": str(kind.cpus)}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {"name": f"q{queue}-{kind.name}-{number}", "namespace": NAMESPACE},
        "spec": {
            "queue": queue_name(queue),
            "priority": kind.level,
            "estimate": {"runSeconds": max(1, round(kind.runs_s))},
            "roles": [{"name": kind.name, "command": ["run"], "resources": {"requests": amounts, "limits": amounts}}],
        },
    }
