"""The pods of a decision log as units with their attempts' beginnings and ends, and all else that happened around them.

Takes events and decisions in, in their order. Pure, single-threaded; `recorded` makes jobs of what is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from muster.engine import events as ev
from muster.engine.decisions import Evict, Place
from muster.engine.facts import Meta, PodFacts
from muster.engine.gangs import gang_key_of
from muster.engine.units import gang_id, single_unit_id, task_id, task_name_of
from muster.history.records import Step

_ANSWERS = (
    ev.BindFailed,
    ev.Bound,
    ev.Planned,
    ev.EvictFailed,
    ev.Permitted,
    ev.Denied,
    ev.Ranked,
    ev.Retry,
    ev.Tick,
    ev.PodGroupSeen,
    ev.PodGroupGone,
    ev.TaskGroupSeen,
    ev.TaskGroupGone,
)
"""What became of recorded decisions, and the gangs of recorded pods: of no use to other decisions."""


class SeenPod:
    """One pod: when it came, was placed, and ended; `is_background` if it is none of the jobs."""

    __slots__ = ("ended", "facts", "is_background", "seen", "started", "unit")

    def __init__(self, facts: PodFacts, unit: str, now: float, *, is_ours: bool) -> None:
        self.facts, self.unit, self.seen = facts, unit, now
        self.started = self.ended = math.nan
        self.is_background = not is_ours or bool(facts.spec.node_name) or facts.is_finished


class SeenUnit:
    """The pods of one attempt, in the order in which they came."""

    def __init__(self, unit_id: str) -> None:
        self.id = unit_id
        self.pods: list[SeenPod] = []
        self.is_evicted = False


class Reading:
    """Takes events and decisions in, in their order; `recorded_of` makes jobs of them."""

    def __init__(self) -> None:
        self.world: list[tuple[float, ev.AnyEvent]] = []
        self.pods: dict[str, SeenPod] = {}
        self.units: list[SeenUnit] = []
        self._open: dict[str, SeenUnit] = {}
        self.begin, self.end = math.inf, -math.inf
        self.configuration: dict[str, object] | None = None
        """Of the scheduler, as the first segment has it."""
        self.served: frozenset[str] | None = None
        """Names of schedulers whose pods it places; of others they are part of the world. None: all are its own."""

    def take(self, now: float, events: Iterable[ev.AnyEvent]) -> None:
        self.begin, self.end = min(self.begin, now), max(self.end, now)
        for event in events:
            if isinstance(event, ev.PodSeen):
                self._see(event.pod, now)
            elif isinstance(event, ev.PodGone):
                self._gone(event.uid, now)
            elif not isinstance(event, _ANSWERS):
                self.world.append((now, event))

    def decide(self, step: Step) -> None:
        for decision in step.decisions:
            if isinstance(decision, Place):
                for placed in decision.pods:
                    self._start(placed.uid, step.now)
            elif isinstance(decision, Evict):
                for victim in decision.victims:
                    pod = self.pods.get(victim.uid)
                    unit = self._open.get(pod.unit) if pod is not None else None
                    if unit is not None:
                        unit.is_evicted = True

    def _see(self, facts: PodFacts, now: float) -> None:
        uid = facts.metadata.uid
        pod = self.pods.get(uid)
        if pod is None:
            if facts.spec.scheduling_gates:
                return  # it comes when it is let through
            is_ours = self.served is None or facts.spec.scheduler_name in self.served
            pod = self.pods[uid] = SeenPod(facts, _unit_of(facts.metadata), now, is_ours=is_ours)
            if not pod.is_background:
                self._join(pod)
        if pod.is_background:
            self.world.append((now, ev.PodSeen(facts)))
            return
        if facts.spec.node_name:
            self._start(uid, now)
        if facts.is_finished:
            self._end(pod, now)

    def _join(self, pod: SeenPod) -> None:
        unit = self._open.get(pod.unit)
        if unit is None or all(not math.isnan(one.ended) for one in unit.pods) or unit.is_evicted:
            unit = self._open[pod.unit] = SeenUnit(pod.unit)
            self.units.append(unit)
        unit.pods.append(pod)

    def _start(self, uid: str, now: float) -> None:
        pod = self.pods.get(uid)
        if pod is not None and math.isnan(pod.started):
            pod.started = now

    def _end(self, pod: SeenPod, now: float) -> None:
        if math.isnan(pod.ended):
            pod.ended = now

    def _gone(self, uid: str, now: float) -> None:
        pod = self.pods.get(uid)
        if pod is None:
            return
        if pod.is_background:
            self.world.append((now, ev.PodGone(uid)))
        self._end(pod, now)


def _unit_of(meta: Meta) -> str:
    if task := task_name_of(meta):
        return task_id(task)
    key = gang_key_of(meta)
    return gang_id(key) if key else single_unit_id(meta.namespace, meta.name)
