"""Pods that nobody looks after any more go: those whose node was deleted, and the oldest finished ones beyond a limit.

Embedded store only: on a real cluster kube-controller-manager does this. A node that is merely silent keeps its pods: what
may still run there is not replaced until somebody says so, and deleting the Node object is how an admin says it. Since an
agent that lives registers its node again, pods wait for `QUARANTINE_S` after their node was first missed, and the node is
looked up in the store itself before anything is deleted.

`plan_orphans` and `plan_finished` are pure; the controller around them reads caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from muster.controllers.actions import Action, Delete, Target
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.objects.status import NotFound
from muster.objects.view import View
from muster.store.cache import Cached, ObjectKey

FINISHED_MAX = 12_500
QUARANTINE_S = 40.0
LOOK_EVERY_S = 5.0
"""Between two looks at which finished pods are the oldest."""

_FINISHED_KEY = ObjectKey("", "")
"""Stands for the limit on finished pods; all other keys are nodes."""


class PodMeta(View):
    creation_timestamp: str = ""


class PodSpec(View):
    node_name: str = ""


class PodStatus(View):
    phase: str = ""


class PodView(View):
    metadata: PodMeta = msgspec.field(default_factory=PodMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class FinishedPod(msgspec.Struct, frozen=True, order=True):
    created: str
    target: tuple[str, str, str]
    """Namespace, name, uid."""


def plan_orphans(pods: Sequence[Target], missed_s: float) -> tuple[list[Action], float | None]:
    """What to do with the pods of a node that has been missing for so long."""
    if not pods:
        return [], None
    if missed_s < QUARANTINE_S:
        return [], QUARANTINE_S - missed_s
    return [Delete(pod, grace_period_s=0) for pod in pods], None


def plan_finished(pods: Sequence[FinishedPod], finished_max: int) -> list[Action]:
    """Delete the oldest beyond the limit; among those of one second, by name, so that the choice is the same everywhere."""
    surplus = sorted(pods)[: max(0, len(pods) - finished_max)]
    return [Delete(Target("", "Pod", pod.target[1], pod.target[0], pod.target[2]), grace_period_s=0) for pod in surplus]


def by_node(pod: Cached) -> Iterable[str]:
    node = pod.view(PodView).spec.node_name
    return (node,) if node else ()


def _by_finished(pod: Cached) -> Iterable[str]:
    return ("yes",) if pod.view(PodView).status.phase in ("Succeeded", "Failed") else ()


def _pod_keys(pod: Cached, _caches: Caches) -> list[ObjectKey]:
    keys = [ObjectKey("", node) for node in by_node(pod)]
    return [*keys, _FINISHED_KEY] if pod.view(PodView).status.phase in ("Succeeded", "Failed") else keys


PODS = Watch(
    group="",
    kind="Pod",
    view=PodView,
    keep="nothing",
    indexes={"node": by_node, "finished": _by_finished},
    keys=_pod_keys,
)
NODES = Watch(group="", kind="Node")


class PodGarbage(Controller):
    """Keys are node names, and one for the limit."""

    name = "pod-gc"
    watches = (PODS, NODES)

    def __init__(self, finished_max: int = FINISHED_MAX) -> None:
        self._finished_max = finished_max
        self._missed_since: dict[str, float] = {}
        self._next_look = 0.0

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        if key == _FINISHED_KEY:
            return self._look_at_finished(caches, now)
        # Most keys are of pods on nodes that are there: their neighbours are not looked at.
        orphans = caches[PODS].by_index("node", key.name) if key not in caches[NODES] else ()
        if not orphans:
            self._missed_since.pop(key.name, None)
            return Plan()
        since = self._missed_since.setdefault(key.name, now)
        targets = [Target("", "Pod", pod.key.name, pod.key.namespace, pod.uid) for pod in orphans]
        return Plan(*plan_orphans(targets, now - since))

    def _look_at_finished(self, caches: Caches, now: float) -> Plan:
        """All of them have to be put in order to find the oldest, so not for each one that ends."""
        if caches[PODS].index_len("finished", "yes") <= self._finished_max:
            return Plan()
        if now < self._next_look:
            return Plan((), self._next_look - now)
        self._next_look = now + LOOK_EVERY_S
        finished = caches[PODS].by_index("finished", "yes")
        return Plan(plan_finished([_finished(pod) for pod in finished if not pod.deleting], self._finished_max))

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        plan = self.reconcile(key, context.caches, context.clock())
        if plan.actions and key != _FINISHED_KEY and await _exists(key.name, context):
            self._missed_since.pop(key.name, None)
            return None
        await context.executor.apply(plan.actions)
        return plan.requeue_after_s


def _finished(pod: Cached) -> FinishedPod:
    return FinishedPod(pod.view(PodView).metadata.creation_timestamp, (pod.key.namespace, pod.key.name, pod.uid))


async def _exists(node: str, context: Context) -> bool:
    try:
        await context.store.get(await context.store.resource("", "Node"), node)
    except NotFound:
        return False
    return True
