"""Clusters with queues, for tests of the order: the real engine with the real PolicyOrder, and no shell around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from muster.engine import events as ev
from muster.engine.decisions import AnyDecision, Evict, Park, Place
from muster.engine.facts import Meta, PodFacts, PolicyFacts, QueueFacts, UserFacts, UserGroupFacts
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.engine.work import Work, encode_work
from muster.objects.kinds.muster_queues import SchedulingPolicySpec
from muster.objects.labels import Muster
from muster.policy.order import PolicyOrder
from tests.engine.building import PROFILE, node, pod

GPU = "nvidia.com/gpu"
FIFO: dict[str, Any] = {"factors": [{"name": "age", "source": "AgeSeconds"}], "formula": "age"}
SHORTEST: dict[str, Any] = {"factors": [{"name": "left", "source": "RemainingSeconds", "default": 1e9}], "formula": "-left"}


def policy_facts(name: str, **spec: Any) -> PolicyFacts:
    return PolicyFacts(metadata=Meta(name=name), spec=msgspec.convert(spec, SchedulingPolicySpec))


def queue_facts(name: str, **spec: Any) -> QueueFacts:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, QueueFacts)


def user_facts(name: str, *, status: Mapping[str, Any] | None = None, **spec: Any) -> UserFacts:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec, "status": status or {}}, UserFacts)


def group_facts(name: str, **spec: Any) -> UserGroupFacts:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, UserGroupFacts)


class World:
    """An engine whose pods end when told, and whose evictions happen at once: the victim comes back with what it kept."""

    def __init__(self, nodes: int = 1, gpus: int = 8, **policy: Any) -> None:
        self.order = PolicyOrder()
        self.engine = Engine([Profile(PROFILE, [Fit()])], order=self.order)
        self.now = 0.0
        self.running: dict[str, str] = {}
        """By pod name: its node."""
        self.evicted: list[str] = []
        self.evictors: list[tuple[str, str]] = []
        self.ran: list[float] = []
        """How long each victim had run."""
        self.parked: dict[str, str] = {}
        self.works: dict[str, tuple[Work, int, int]] = {}
        self.last: list[AnyDecision] = []
        self.started: dict[str, float] = {}
        made: list[ev.AnyEvent] = [
            ev.NodeSeen(node(f"n{i:03d}", cpu="64", resources={GPU: gpus, "example.com/link": 100})) for i in range(nodes)
        ]
        spec = {**FIFO, "starvationBoundSeconds": 10**9, **policy}
        self.step(*made, ev.PolicySeen(policy_facts("p", **spec)), ev.QueueSeen(queue_facts("q", policy="p", isDefault=True)))

    # -- doing ---------------------------------------------------------------------------------------------------------------

    def step(self, *events: ev.AnyEvent, at: float | None = None) -> list[AnyDecision]:
        self.now = self.now if at is None else at
        decisions = self.last = self.engine.step(list(events), self.now)
        assert not self.engine.state.faults, self.engine.state.faults
        gone: list[ev.AnyEvent] = []
        for decision in decisions:
            if isinstance(decision, Place):
                for placed in decision.pods:
                    self.running[placed.name] = placed.node
                    self.started.setdefault(placed.name, self.now)
                    self.parked.pop(placed.name, None)
            elif isinstance(decision, Park):
                for uid in decision.pods:
                    self.parked[uid.removeprefix("uid-default-").partition("~")[0]] = decision.verdict.reason.value
            elif isinstance(decision, Evict):
                for victim in decision.victims:
                    self.evicted.append(victim.name)
                    self.evictors.append((decision.unit, victim.name))
                    gone.append(ev.PodGone(victim.uid))
        if gone:
            back = [self._stopped(victim) for victim in list(dict.fromkeys(self.evicted[-len(gone) :]))]
            self.step(*gone, *back)
        return decisions

    def _stopped(self, name: str) -> ev.AnyEvent:
        work, gpus, pods = self.works[name]
        ran = self.now - self.started.pop(name)
        self.ran.append(ran)
        every = work.checkpoint_s
        kept = (ran // every) * every if every else 0.0
        work = msgspec.structs.replace(work, attained_s=work.attained_s + kept, preemptions=work.preemptions + 1)
        self.works[name] = (work, gpus, pods)
        del self.running[name]
        gang = name.rpartition("-")[0] if pods > 1 else ""
        return ev.PodSeen(pod_of(name, work, gpus, suffix=f"~{work.preemptions}", gang=gang, size=pods))

    def submit(self, name: str, gpus: int = 1, *, seconds: float | None = None, at: float | None = None, **work: Any) -> None:
        self.now = self.now if at is None else at
        given = Work(**{"queue": "q", "submitted": self.now, "estimate_s": seconds, **work})
        self.works[name] = (given, gpus, 1)
        self.step(ev.PodSeen(pod_of(name, given, gpus)))

    def submit_gang(
        self, name: str, pods: int, gpus: int, *, seconds: float | None = None, at: float | None = None, **work: Any
    ) -> None:
        self.now = self.now if at is None else at
        given = Work(**{"queue": "q", "submitted": self.now, "estimate_s": seconds, **work})
        members = [ev.PodSeen(pod_of(f"{name}-{i}", given, gpus, gang=name, size=pods)) for i in range(pods)]
        for i in range(pods):
            self.works[f"{name}-{i}"] = (given, gpus, pods)
        self.step(*members)

    def end(self, *names: str, at: float | None = None) -> None:
        self.now = self.now if at is None else at
        events: list[ev.AnyEvent] = []
        for name in names:
            self.running.pop(name, None)
            self.started.pop(name, None)
            preemptions = self.works[name][0].preemptions
            events.append(ev.PodGone(f"uid-default-{name}" + (f"~{preemptions}" if preemptions else "")))
        self.step(*events)

    def tick(self, at: float) -> None:
        self.step(ev.Tick(), at=at)

    # -- asking --------------------------------------------------------------------------------------------------------------

    def line(self, queue: str = "q") -> list[str]:
        return [unit.rpartition("/")[2] for unit in self.order.ranked(queue)]

    def asleep(self) -> list[str]:
        """Ids of units that wait and are not tried."""
        return sorted(self.engine.waiting.parked)


def pod_of(name: str, work: Work, gpus: int, *, suffix: str = "", gang: str = "", size: int = 1) -> PodFacts:
    labels = {"pod-group.scheduling.sigs.k8s.io": gang} if gang else {}
    annotations = {Muster.WORK: encode_work(work)}
    if gang:
        annotations["gang.scheduling.koordinator.sh/name"] = gang
        annotations["gang.scheduling.koordinator.sh/min-available"] = str(size)
    made = pod(name, resources={GPU: gpus} if gpus else {}, annotations=annotations, labels=labels, cpu="100m")
    if suffix:
        made = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, uid=made.metadata.uid + suffix))
    return made
