"""Takes one sample of everything: the machine, each pod, each host application; keeps the last ones of each.

On a machine that several agents share, a node's use is that of its own pods, plus its share of what is neither a pod's of any
agent nor a host application's. Otherwise it is the machine's. System use is what is left of the node's after pods and host
applications, never below nothing.

Called on the agent's event loop; hands it back between pods. Bounded: `PODS_MAX` pods, `APPLICATIONS_MAX` applications, and
rings of a fixed size.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from muster.agent.contracts import CgroupUsage, Traffic
from muster.agent.host_usage import Host, HostUsage
from muster.agent.metrics_counters import Counted, CpuCounters
from muster.agent.metrics_policy import Policy, priority_class, qos_class
from muster.agent.metrics_rates import NAN, Reading, rates
from muster.agent.metrics_rings import COLUMNS, EGRESS, INGRESS, Ring, Values
from muster.objects.status import Raw

PODS_MAX: Final = 1000
APPLICATIONS_MAX: Final = 50
PODS_AT_ONCE: Final = 8
"""Then other work of the agent has its turn."""


class Groups(Protocol):
    """The part of `PodCgroups` that is needed here."""

    def usage(self, uid: str, container: str | None = None) -> CgroupUsage | None: ...

    def usage_at(self, group: str) -> CgroupUsage | None: ...

    def agents(self) -> Sequence[str]: ...

    def pod_path(self, uid: str) -> str: ...


class Counts(Protocol):
    """The part of `Networks` that is needed here."""

    def traffic_of_all(self) -> Mapping[str, Traffic]: ...


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """A program of the machine that is no pod. `group`: the path of its cgroup."""

    name: str
    group: str
    priority: str = ""
    qos: str = ""


class Tracked:
    """One thing that is measured: its last reading, its samples, and its last pressure."""

    def __init__(self, rows: int) -> None:
        self.ring = Ring(rows)
        self.reading: Reading | None = None
        self.pressure: Mapping[str, float] = {}
        self.values: Values = np.full(COLUMNS, NAN)
        """The newest sample; NaN where there is none of now."""

    def take(self, reading: Reading, memory: float, with_cache: float, every_s: float) -> bool:
        """False while nothing can be said about rates."""
        found = rates(self.reading, reading, every_s)
        self.reading = reading
        if found is None:
            self.values = np.full(COLUMNS, NAN)
            return False
        self.put(reading.at, np.array([found.cpu_milli, memory, with_cache, found.egress_bps, found.ingress_bps]))
        return True

    def put(self, at: float, values: Values) -> None:
        self.values = values
        self.ring.add(at, values)


class PodTracked(Tracked):
    def __init__(self, rows: int, pod: Raw) -> None:
        super().__init__(rows)
        metadata = pod.get("metadata") or {}
        self.namespace = str(metadata.get("namespace") or "")
        self.name = str(metadata.get("name") or "")
        self.priority = priority_class(pod)
        self.qos = qos_class(pod)
        self.counted: Counted | None = None
        """The processor's counters, in its last turn."""


class Sampler:
    def __init__(
        self,
        host: Host,
        groups: Groups,
        counts: Counts,
        pods: Callable[[], Iterable[Raw]],
        *,
        share: float = 1.0,
        counters: CpuCounters | None = None,
    ) -> None:
        """`pods`: those of this node, as they are in the store. `share`: the part of the machine that is this node."""
        self.host = host
        self.counters = counters
        self._groups = groups
        self._counts = counts
        self._pods_now = pods
        self._share = share
        self._policy = Policy()
        self.node = Tracked(self._policy.node_rows)
        self.system = Tracked(self._policy.node_rows)
        self.pods: dict[str, PodTracked] = {}
        self.applications: dict[Application, Tracked] = {}
        self._agents: dict[str, Tracked] = {}
        self.left_out = 0
        """Pods beyond `PODS_MAX`."""

    def set_policy(self, policy: Policy) -> None:
        before, self._policy = self._policy, policy
        if before.node_rows != policy.node_rows:
            for one in (self.node, self.system):
                one.ring = one.ring.resized(policy.node_rows)
        if before.pod_rows != policy.pod_rows:
            for tracked in (*self.pods.values(), *self.applications.values()):
                tracked.ring = tracked.ring.resized(policy.pod_rows)

    def set_applications(self, applications: Iterable[Application]) -> None:
        wanted = dict.fromkeys(list(applications)[:APPLICATIONS_MAX])
        self.applications = {one: self.applications.get(one) or Tracked(self._policy.pod_rows) for one in wanted}

    async def sample(self, ticks: Callable[[], float]) -> None:
        """`ticks` gives seconds that never go back."""
        every_s = self._policy.sample_s
        machine, at = self.host.read(), ticks()
        for application, tracked in self.applications.items():
            _take_group(tracked, self._groups.usage_at(application.group), ticks(), every_s)
        await self._sample_pods(ticks, every_s)
        rest = self._rest(ticks, every_s) if self._share < 1 else None
        self._sample_node(machine, at, rest, every_s)
        if self.counters is not None:
            paths = {self._groups.pod_path(uid): tracked for uid, tracked in self.pods.items()}
            self.counters.step(paths)
            for path, tracked_pod in paths.items():
                tracked_pod.counted = self.counters.figures.get(path)

    async def _sample_pods(self, ticks: Callable[[], float], every_s: float) -> None:
        pods = {uid: pod for pod in self._pods_now() if (uid := _uid(pod))}
        self.left_out = max(len(pods) - PODS_MAX, 0)
        for uid in [uid for uid in self.pods if uid not in pods]:
            del self.pods[uid]
        traffic = self._counts.traffic_of_all()
        for index, (uid, pod) in enumerate(list(pods.items())[:PODS_MAX]):
            if index % PODS_AT_ONCE == PODS_AT_ONCE - 1:
                await asyncio.sleep(0)
            usage = self._groups.usage(uid)
            if usage is None:
                self.pods.pop(uid, None)
                continue
            tracked = self.pods.get(uid)
            if tracked is None:
                tracked = self.pods[uid] = PodTracked(self._policy.pod_rows, pod)
            _take_group(tracked, usage, ticks(), every_s, traffic.get(uid))

    def _rest(self, ticks: Callable[[], float], every_s: float) -> Values | None:
        """What the pods of all agents of the machine use together; None while that can't be said."""
        names = self._groups.agents()
        self._agents = {name: self._agents.get(name) or Tracked(2) for name in names}
        known = [_take_group(one, self._groups.usage_at(name), ticks(), every_s) for name, one in self._agents.items()]
        return _sum(self._agents.values()) if all(known) else None

    def _sample_node(self, machine: HostUsage, at: float, all_pods: Values | None, every_s: float) -> None:
        self.node.pressure = machine.pressure
        reading = Reading(at=at, cpu_ns=machine.cpu_ns, sent_bytes=machine.sent_bytes, received_bytes=machine.received_bytes)
        found = rates(self.node.reading, reading, every_s)
        self.node.reading = reading
        if found is None or (self._share < 1 and all_pods is None):
            return
        pods, applications = _sum(self.pods.values()), _sum(self.applications.values())
        node = np.array(
            [
                found.cpu_milli,
                _float(machine.memory_bytes),
                _float(machine.memory_with_cache_bytes),
                found.egress_bps,
                found.ingress_bps,
            ]
        )
        if all_pods is not None:
            node = pods + applications + self._share * np.maximum(node - all_pods - applications, 0.0)
        for column in (EGRESS, INGRESS):
            if all_pods is not None or math.isnan(node[column]):
                node[column] = pods[column]
        self.node.put(at, node)
        self.system.put(at, np.maximum(node - pods - applications, 0.0))


def _take_group(tracked: Tracked, usage: CgroupUsage | None, at: float, every_s: float, traffic: Traffic | None = None) -> bool:
    if usage is None:
        tracked.reading, tracked.values = None, np.full(COLUMNS, NAN)
        return False
    tracked.pressure = usage.pressure
    reading = Reading(
        at=at,
        cpu_ns=usage.cpu_ns,
        sent_bytes=traffic.sent_bytes if traffic is not None else None,
        received_bytes=traffic.received_bytes if traffic is not None else None,
    )
    return tracked.take(reading, float(usage.memory_bytes), float(usage.memory_with_cache_bytes), every_s)


def _sum(many: Iterable[Tracked]) -> Values:
    """What is known of now, added up."""
    rows = [one.values for one in many]
    return np.nansum(np.array(rows), axis=0) if rows else np.zeros(COLUMNS)


def _float(value: int | None) -> float:
    return NAN if value is None else float(value)


def _uid(pod: Mapping[str, Any]) -> str:
    metadata = pod.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    return uid if isinstance(uid, str) else ""
