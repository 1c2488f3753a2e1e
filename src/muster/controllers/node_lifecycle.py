"""Nodes that have gone silent, and nodes that do not feel well: their conditions, their taints, and what becomes of their pods.

Embedded store only: on a real cluster kube-controller-manager does this. Only nodes with a Lease in `kube-node-lease` are
looked after; those that somebody made by hand, or whose agent has taken its Lease away, are left alone.

- A node whose Lease is not renewed within its own duration is *silent*: Ready and the pressures become Unknown, reason
  NodeStatusUnknown. When it is renewed, the agent's next report says how the node is.
- Taints with the effect NoSchedule follow from the conditions: unreachable (Ready is Unknown), not-ready (False), and one for
  each pressure. They go when the condition does; taints of other names or effects are never touched.
- No second start: the pods of a silent node are not replaced, since they may still run. There are two ways out. An agent that
  announced a fence (annotation `muster.dev/fence-seconds`) kills its tasks that long after it last reached the control plane;
  so `lease + fence + margin` after its last renewal its pods are marked Failed, reason NodeLost, and may start elsewhere.
  That is one transaction with the Lease, in the version that was found unrenewed: an agent that is back either was earlier, and
  keeps its pods, or was later, and finds them Failed. Without a fence nothing happens until an administrator deletes the Node;
  then `pod-gc` lets the pods go.

How long a node is silent is measured here, on a clock that never jumps, from when its last renewal was seen; never by the time
that the agent wrote. So clocks may differ, and a controller that starts anew waits in full before it judges. Before a node is
taken for silent, its Lease is read from the store itself: caches may lag.

`plan` is pure; the controller around it reads caches. Conditions and taints are lists that others write too, so each write
names the version that it was planned from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from muster.controllers.actions import Action, Delete, Emit, Patch, PatchStatus, Target, target_of
from muster.controllers.pod_gc import PodView, by_node
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.objects.conditions import find_condition, set_condition
from muster.objects.labels import Kubernetes, Muster
from muster.objects.meta import annotations_of, is_deleting, name_of, resource_version_of, uid_of
from muster.objects.names import NAMESPACE_NODE_LEASE
from muster.objects.reason_codes import Reason
from muster.objects.resources import Resource
from muster.objects.rules.report import obj, text
from muster.objects.status import NotFound, Raw
from muster.objects.time import format_time
from muster.objects.view import View
from muster.store.cache import Cached, ObjectKey
from muster.store.contract import Operation, Preconditions
from muster.store.events import WARNING
from muster.store.informer import Change

LEASE_S_DEFAULT: Final = 40
LEASE_S_MAX: Final = 86_400
MARGIN_S: Final = 30.0
"""On top of lease and fence: for what was on its way, and for killing."""
MARGIN_RATIO: Final = 0.05
"""And so much of the fence, since the node's clock may run slower than ours."""
LOOK_S_MIN: Final = 0.1
"""A wait that is too short to move the clock would be no wait."""
SILENT_REASON: Final = "NodeStatusUnknown"
_EFFECT: Final = "NoSchedule"
_TAINTS: Final = (
    ("Ready", "Unknown", Kubernetes.TAINT_UNREACHABLE),
    ("Ready", "False", Kubernetes.TAINT_NOT_READY),
    ("MemoryPressure", "True", Kubernetes.TAINT_MEMORY_PRESSURE),
    ("DiskPressure", "True", Kubernetes.TAINT_DISK_PRESSURE),
    ("PIDPressure", "True", Kubernetes.TAINT_PID_PRESSURE),
    ("NetworkUnavailable", "True", Kubernetes.TAINT_NETWORK_UNAVAILABLE),
)
_OURS: Final = frozenset(key for _, _, key in _TAINTS)
_REPORTED: Final = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_OVER: Final = ("Succeeded", "Failed")
BATCH_LEN: Final = 100
"""Pods that are given up in one transaction."""


class LeaseSpec(View):
    lease_duration_seconds: int | None = None
    renew_time: str = ""


class LeaseView(View):
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class BoundPod(msgspec.Struct, frozen=True):
    """A pod of the node that has not ended."""

    target: Target
    is_deleting: bool = False


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has a Lease."""

    node: Raw
    lease_s: int
    silent_s: float
    """Since its last renewal was seen."""
    renewed: str = ""
    """What the agent wrote as the time of it; shown, never compared."""
    pods: Sequence[BoundPod] = ()

    @property
    def is_silent(self) -> bool:
        return self.silent_s >= self.lease_s

    @property
    def fence_s(self) -> int:
        """0 when the agent never kills its tasks by itself."""
        announced = annotations_of(self.node).get(Muster.FENCE_SECONDS, "")
        return int(announced) if announced.isascii() and announced.isdecimal() and len(announced) <= 9 else 0

    @property
    def lost_s(self) -> float | None:
        """After how long a silence its tasks have certainly been killed; None: that is never certain."""
        fence_s = self.fence_s
        return self.lease_s + fence_s + max(MARGIN_S, MARGIN_RATIO * fence_s) if fence_s else None

    @property
    def is_lost(self) -> bool:
        """Whether nothing of the node's runs any more."""
        return self.lost_s is not None and self.silent_s >= self.lost_s


def plan(at: Situation, now: float) -> Plan:
    """Pure; doing it twice changes nothing. Looks again when something could become due."""
    if is_deleting(at.node):
        return Plan()
    actions: list[Action] = []
    conditions = obj(at.node, "status").get("conditions")
    if at.is_silent:
        known = _unknown(at, conditions, now)
        if known is not None:
            actions.append(PatchStatus(target_of(at.node, at_version=True), {"conditions": known}))
            actions.append(Emit(at.node, WARNING, "NodeNotReady", _silence(at)))
            # The write moves the version that the taints would stand on: they follow when the change is seen.
            return Plan(actions)
    taints = _taints(at.node)
    if taints is not None:
        actions.append(Patch(target_of(at.node, at_version=True), {"spec": {"taints": taints}}))
    if not at.is_silent:
        return Plan(actions, max(at.lease_s - at.silent_s, LOOK_S_MIN))
    lost_s = at.lost_s
    return Plan(actions, None if lost_s is None or at.is_lost else max(lost_s - at.silent_s, LOOK_S_MIN))


def _unknown(at: Situation, conditions: object, now: float) -> list[Raw] | None:
    """The conditions of a silent node; None when they say so already."""
    found = [dict(c) for c in conditions if isinstance(c, dict)] if isinstance(conditions, list) else []
    ready = find_condition(found, "Ready") or {}
    if ready.get("status") == "Unknown" and ready.get("reason") == SILENT_REASON:
        return None
    for type_ in _REPORTED:
        if type_ == "Ready" or find_condition(found, type_) is not None:
            found = set_condition(found, type_=type_, status="Unknown", now=now, reason=SILENT_REASON, message=_silence(at))
    return found


def _silence(at: Situation) -> str:
    since = f" since {at.renewed}" if at.renewed else ""
    return f"its agent has not renewed its lease{since}; what runs there may still run"


def _taints(node: Raw) -> list[Raw] | None:
    """All taints of the node as they should be; None when they are."""
    found = obj(node, "spec").get("taints")
    present = [taint for taint in found if isinstance(taint, dict)] if isinstance(found, list) else []
    conditions = obj(node, "status").get("conditions")
    wanted = [key for type_, status, key in _TAINTS if (find_condition(conditions, type_) or {}).get("status") == status]
    has = [text(taint, "key") for taint in present if _is_ours(taint)]
    if sorted(has) == sorted(wanted):
        return None
    kept = [taint for taint in present if not _is_ours(taint) or text(taint, "key") in wanted]
    return [*kept, *({"key": key, "effect": _EFFECT} for key in wanted if key not in has)]


def _is_ours(taint: Raw) -> bool:
    return text(taint, "key") in _OURS and text(taint, "effect") == _EFFECT


def lost_status(at: Situation) -> Raw:
    """Of the pods of a node that is lost."""
    message = (
        f"node {text(obj(at.node, 'metadata'), 'name')} is silent, and its fence of {at.fence_s} s has passed: "
        "its agent has killed what ran there"
    )
    return {"phase": "Failed", "reason": Reason.NODE_LOST.value, "message": message}


# -- the controller -----------------------------------------------------------------------------------------------------------


class NodeLifecycle(Controller):
    """Keys are nodes. A renewal only moves a time, and leads to work when the node had been silent: many cost little."""

    name = "node-lifecycle"

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}
        """By node: the renewal that was seen last, and when, on the loop's clock."""
        self._silent: set[str] = set()
        self._nodes = Watch(group="", kind="Node")
        self._leases = Watch(
            group="coordination.k8s.io",
            kind="Lease",
            namespace=NAMESPACE_NODE_LEASE,
            view=LeaseView,
            keep="nothing",
            keys=lambda lease, _caches: (ObjectKey("", lease.key.name),),
            matters=self._is_news,
        )
        self._pods = Watch(group="", kind="Pod", view=PodView, keep="nothing", indexes={"node": by_node}, keys=self._pod_keys)
        self.watches = (self._nodes, self._leases, self._pods)

    def _is_news(self, change: Change) -> bool:
        name = change.newest.key.name
        if change.new is None:
            self._seen.pop(name, None)
            return True
        renewed = change.new.view(LeaseView).spec.renew_time
        known = self._seen.get(name)
        if known is None or known[0] != renewed:
            self._seen[name] = (renewed, asyncio.get_running_loop().time())
        return known is None or name in self._silent

    def _pod_keys(self, pod: Cached, _caches: Caches) -> list[ObjectKey]:
        """Only what is bound to a silent node."""
        return [ObjectKey("", node) for node in by_node(pod) if node in self._silent]

    def _situation(self, key: ObjectKey, caches: Caches) -> Situation | None:
        node, lease = caches[self._nodes].get(key), caches[self._leases].get(ObjectKey(NAMESPACE_NODE_LEASE, key.name))
        seen = self._seen.get(key.name)
        if node is None or lease is None or seen is None:
            self._silent.discard(key.name)
            return None
        lease_s = lease.view(LeaseView).spec.lease_duration_seconds or LEASE_S_DEFAULT
        at = Situation(
            node=node.raw,
            lease_s=min(max(lease_s, 1), LEASE_S_MAX),
            silent_s=asyncio.get_running_loop().time() - seen[1],
            renewed=seen[0],
            pods=[_bound(pod) for pod in caches[self._pods].by_index("node", key.name) if _is_unfinished(pod)],
        )
        (self._silent.add if at.is_silent else self._silent.discard)(key.name)
        return at

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        at = self._situation(key, caches)
        return Plan() if at is None else plan(at, now)

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        at, lease = self._situation(key, context.caches), None
        if at is not None and at.is_silent:
            lease = await self._unrenewed(key.name, context)
            if lease is None:
                at = self._situation(key, context.caches)
        if at is None:
            return None
        decided = plan(at, context.clock())
        await context.executor.apply(decided.actions)
        if lease is not None and at.is_lost and not decided.actions:
            await self._give_up(at, lease, context)
        return decided.requeue_after_s

    async def _unrenewed(self, node: str, context: Context) -> Raw | None:
        """The Lease as the store has it, if it is still as it was seen; otherwise it is seen now."""
        leases = await context.store.resource("coordination.k8s.io", "Lease")
        try:
            live = await context.store.get(leases, node, NAMESPACE_NODE_LEASE)
        except NotFound:
            self._seen.pop(node, None)
            return None
        renewed, known = text(obj(live, "spec"), "renewTime"), self._seen.get(node)
        if known is not None and known[0] == renewed:
            return live
        self._seen[node] = (renewed, asyncio.get_running_loop().time())
        return None

    async def _give_up(self, at: Situation, lease: Raw, context: Context) -> None:
        """Its pods have failed; those that were being deleted go."""
        pods, leases = await context.store.resource("", "Pod"), await context.store.resource("coordination.k8s.io", "Lease")
        version, status = resource_version_of(lease), lost_status(at)
        for start in range(0, len(at.pods), BATCH_LEN):
            batch = at.pods[start : start + BATCH_LEN]
            writes = [_mark(leases, lease, version, context.clock()), *(_fail(pods, pod, status) for pod in batch)]
            version = resource_version_of((await context.store.transaction(writes))[0])
            await context.executor.apply([Delete(_any_version(p), grace_period_s=0) for p in batch if p.is_deleting])
        if at.pods:
            message = f"{len(at.pods)} pods may start elsewhere: {status['message']}"
            await context.executor.apply([Emit(at.node, WARNING, Reason.NODE_LOST.value, message)])


def _mark(leases: Resource, lease: Raw, version: str, now: float) -> Operation:
    return Operation(
        verb="patch",
        resource=leases,
        name=name_of(lease),
        namespace=NAMESPACE_NODE_LEASE,
        patch={"metadata": {"annotations": {Muster.GIVEN_UP: format_time(now)}}},
        preconditions=Preconditions(uid_of(lease), version),
    )


def _fail(pods: Resource, pod: BoundPod, status: Raw) -> Operation:
    """Named with its version: what the agent has said since then counts."""
    target = pod.target
    return Operation(
        verb="patch",
        resource=pods,
        name=target.name,
        namespace=target.namespace,
        patch={"status": status},
        subresource="status",
        preconditions=Preconditions(target.uid, target.resource_version),
    )


def _any_version(pod: BoundPod) -> Target:
    return msgspec.structs.replace(pod.target, resource_version="")


def _is_unfinished(pod: Cached) -> bool:
    return pod.view(PodView).status.phase not in _OVER


def _bound(pod: Cached) -> BoundPod:
    key = pod.key
    return BoundPod(Target("", "Pod", key.name, key.namespace, pod.uid, pod.resource_version), pod.deleting)
