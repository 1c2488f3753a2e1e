"""A small controller to test the frame with: keeps `spec.replicas` pods of a ReplicaSet, by name, and places them on nodes.

`plan` is pure. The shell also binds, which is not an action yet: it stands for the scheduler that is to come.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muster.controllers.actions import Action, Create, Delete, PatchStatus, target_of
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch, controller_key
from muster.objects.meta import is_deleting, name_of, namespace_of, owner_reference, uid_of
from muster.objects.status import Raw
from muster.objects.view import View
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey


class SetSpec(View):
    replicas: int = 1


class SetView(View):
    spec: SetSpec = msgspec.field(default_factory=SetSpec)


def member(owner: Raw, index: int) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name_of(owner)}-{index}",
            "namespace": namespace_of(owner),
            "labels": {"app": name_of(owner)},
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]},
    }


def plan(owner: Raw, replicas: int, pods: Sequence[Raw]) -> list[Action]:
    """Members 0 to replicas-1 exist, others and those that failed go, and the status says how many run."""
    wanted = {f"{name_of(owner)}-{n}": n for n in range(replicas)}
    present = {name_of(pod) for pod in pods}
    actions: list[Action] = [Create(member(owner, n)) for name, n in wanted.items() if name not in present]
    for pod in pods:
        has_failed = (pod.get("status") or {}).get("phase") == "Failed"
        if (name_of(pod) not in wanted or has_failed) and not is_deleting(pod):
            actions.append(Delete(target_of(pod)))
    running = sum(1 for pod in pods if (pod.get("status") or {}).get("phase") == "Running" and name_of(pod) in wanted)
    status = {"replicas": replicas, "readyReplicas": running}
    if {k: (owner.get("status") or {}).get(k) for k in status} != status:
        actions.append(PatchStatus(target_of(owner), status))
    return actions


SETS = Watch(group="apps", kind="ReplicaSet", view=SetView)
PODS = Watch(group="", kind="Pod", keys=controller_key("apps", "ReplicaSet"))
NODES = Watch(group="", kind="Node", keys=lambda _obj, caches: [s.key for s in caches[SETS].select()])


class Replicas(Controller):
    """Keys are ReplicaSets. Pods go to nodes round robin by their index."""

    name = "replicas"
    watches = (SETS, PODS, NODES)
    workers = 2

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        owner = caches[SETS].get(key)
        if owner is None or owner.deleting:
            return Plan()
        pods = caches[PODS].by_index(CONTROLLER_INDEX, owner.uid)
        return Plan(plan(owner.raw, owner.view(SetView).spec.replicas, [pod.raw for pod in pods]))

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        again_s = await super().handle(key, context)
        owner = context.caches[SETS].get(key)
        nodes = [node.key.name for node in context.caches[NODES].select()]
        if owner is not None and nodes:
            for pod in context.caches[PODS].by_index(CONTROLLER_INDEX, owner.uid):
                await self._bind(pod, nodes, context)
        return again_s

    async def _bind(self, pod: Cached, nodes: list[str], context: Context) -> None:
        raw = pod.raw
        if not raw["spec"].get("nodeName") and not pod.deleting:
            index = int(pod.key.name.rpartition("-")[2])
            await context.store.bind(name_of(raw), namespace_of(raw), nodes[index % len(nodes)], uid=uid_of(raw))


def replica_set(name: str, replicas: int, namespace: str = "default") -> Raw:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }
