"""What became of every pod, worked out from a log as it is read: who ran what where when, what it waited for, what it used.

A `Tracker` is fed segments and steps in order and gives a `Run` for each pod: when it ends, or at the end of the log. Pure;
single-threaded; keeps in memory what is open, and what ended until it is taken.

Times are those of the steps in which something was seen or decided; a pod's own start is taken from it, where a node said one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from muster.engine import events as ev
from muster.engine.checkpoint import Checkpoint
from muster.engine.decisions import AnyDecision, Evict, Hold, Park, Place, Release
from muster.engine.facts import NodeMetricFacts, PodFacts
from muster.engine.resources import requests_of
from muster.engine.work import work_of
from muster.history.records import Header, Step
from muster.objects.amounts import amount_of
from muster.objects.time import parse_time

WAITING, RUNNING = "Waiting", "Running"
GONE, EVICTED, UNKNOWN = "Gone", "Evicted", "Unknown"
"""Ends that a pod does not tell itself: deleted; deleted after it was chosen to make way; ended while nobody recorded."""


class Run(msgspec.Struct, kw_only=True):
    """One pod. Times are seconds since 1970, None while they are not known."""

    namespace: str
    pod: str
    uid: str
    unit: str = ""
    job: str = ""
    """`Kind/namespace/name`, or the unit where the pod belongs to no job."""
    user: str = ""
    group: str = ""
    queue: str = ""
    type: str = ""
    name: str = ""
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)
    node: str = ""
    submitted: float | None = None
    placed: float | None = None
    started: float | None = None
    ended: float | None = None
    outcome: str = WAITING
    requests: Mapping[str, int] = msgspec.field(default_factory=dict)
    used_mean: dict[str, float] = msgspec.field(default_factory=dict)
    used_max: dict[str, float] = msgspec.field(default_factory=dict)
    samples: int = 0
    reasons_s: dict[str, float] = msgspec.field(default_factory=dict)
    """How long it waited for what, by reason code."""
    score: float | None = None
    """Its place in the order of work when it was placed, if that was recorded."""

    @property
    def wait_s(self) -> float | None:
        if self.submitted is None or self.placed is None:
            return None
        return max(self.placed - self.submitted, 0.0)

    @property
    def run_s(self) -> float | None:
        begin = self.started if self.started is not None else self.placed
        return max(self.ended - begin, 0.0) if begin is not None and self.ended is not None else None


class Tracker:
    def __init__(self) -> None:
        self.open: dict[str, Run] = {}
        """By uid: pods that have not ended."""
        self._ended: list[Run] = []
        self._by_key: dict[tuple[str, str], Run] = {}
        self._reason: dict[str, tuple[str, float]] = {}
        """By uid: what it waits for, since when."""
        self._victims: set[str] = set()
        self._over: set[str] = set()
        """Pods that have ended and are still there: they change and go, and that is no run."""
        self._groups: dict[str, str] = {}
        """By user."""
        self._defaults: set[str] = set()
        """Queues that take work that names none."""
        self._unconfirmed: set[str] | None = None
        """Pods from before this term that it has not shown yet."""
        self._now = 0.0

    def take(self) -> list[Run]:
        """Runs that ended since the last call."""
        taken, self._ended = self._ended, []
        return taken

    # -- what is read --------------------------------------------------------------------------------------------------------

    def segment(self, header: Header, kept: Checkpoint | None) -> None:
        """A segment begins."""
        if header.is_aside:
            return
        self._confirm(header.began)
        if kept is None:
            if header.sequence == 1:
                self._unconfirmed = set(self.open)
            return
        self._now = max(self._now, kept.now)
        listed = {event.pod.metadata.uid for event in kept.events if isinstance(event, ev.PodSeen)}
        self._over &= listed
        for event in kept.events:
            if isinstance(event, ev.PodSeen):
                self._see(event.pod)
            else:
                self._learn(event)
        for pod in kept.pods:
            if (run := self.open.get(pod.uid)) is not None and pod.node and not run.node:
                run.node, run.outcome = pod.node, RUNNING
        for uid in [uid for uid in self.open if uid not in listed]:
            self._end(uid, UNKNOWN, kept.now)

    def step(self, step: Step) -> None:
        self._now = max(self._now, step.now)
        for event in step.events:
            match event:
                case ev.PodSeen(pod=pod):
                    self._see(pod)
                case ev.PodGone(uid=uid):
                    self._over.discard(uid)
                    self._end(uid, EVICTED if uid in self._victims else GONE, self._now)
                case ev.NodeMetricSeen(metric=metric):
                    self._measure(metric)
                case _:
                    self._learn(event)
        for decision in step.decisions:
            self._decided(decision, step.factors)

    def finish(self) -> Iterator[Run]:
        """The log is read: what has not ended."""
        self._confirm(self._now)
        yield from self.take()
        for run in self.open.values():
            self._add_reason(run, self._now)
            self._fill_in(run)
            yield run

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _learn(self, event: ev.AnyEvent) -> None:
        """Who is in which group, and where work goes that names no queue."""
        match event:
            case ev.UserSeen(user=user):
                self._groups[user.metadata.name] = user.spec.group
            case ev.QueueSeen(queue=queue) if queue.spec.is_default:
                self._defaults.add(queue.metadata.name)
            case ev.QueueSeen(queue=queue):
                self._defaults.discard(queue.metadata.name)
            case ev.QueueGone(name=name):
                self._defaults.discard(name)
            case _:
                pass

    def _fill_in(self, run: Run) -> None:
        """What the pod left unsaid, as it was when the run ended. Users who are gone are still known by their last group."""
        run.group = run.group or self._groups.get(run.user, "")
        run.queue = run.queue or min(self._defaults, default="")

    def _confirm(self, at: float) -> None:
        """What a new leader never showed had ended before it came."""
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        for uid in unconfirmed or ():
            self._end(uid, UNKNOWN, at)

    def _see(self, pod: PodFacts) -> None:
        meta = pod.metadata
        run = self.open.get(meta.uid)
        if self._unconfirmed is not None:
            self._unconfirmed.discard(meta.uid)
        if run is None:
            if meta.uid in self._over or (pod.is_finished and not pod.spec.node_name):
                return
            run = self._meet(pod)
        elif run.outcome == WAITING:
            run.queue = work_of(pod).queue  # it may have been moved
        node = pod.spec.node_name
        if node and not pod.is_finished:
            if run.outcome == WAITING:
                # Somebody else bound it, or it ran before the log began.
                run.placed = _instant(pod.status.start_time) if run.placed is None else run.placed
                self._add_reason(run, self._now)
            run.node, run.outcome = node, RUNNING
        if run.started is None:
            run.started = _instant(pod.status.start_time)
        if pod.is_finished:
            run.node = run.node or node
            outcome = EVICTED if meta.uid in self._victims and pod.status.phase == "Failed" else pod.status.phase
            self._end(meta.uid, outcome, self._now if pod.ended is None else min(pod.ended, self._now))
            self._over.add(meta.uid)

    def _meet(self, pod: PodFacts) -> Run:
        meta, work = pod.metadata, work_of(pod)
        run = Run(
            namespace=meta.namespace,
            pod=meta.name,
            uid=meta.uid,
            job=work.job,
            user=work.user,
            group=work.group,
            queue=work.queue,
            type=work.type,
            attributes=work.attributes,
            name=work.name or meta.name,
            submitted=work.submitted or _instant(meta.creation_timestamp) or self._now,
            requests=dict(requests_of(pod).amounts),
        )
        self.open[meta.uid] = run
        self._by_key[meta.namespace, meta.name] = run
        return run

    def _decided(self, decision: AnyDecision, factors: Mapping[str, Mapping[str, float]] | None) -> None:
        match decision:
            case Place(unit=unit, pods=pods):
                for placed in pods:
                    if (run := self.open.get(placed.uid)) is not None:
                        run.unit, run.job = unit, run.job or unit
                        run.node, run.placed, run.outcome = placed.node, self._now, RUNNING
                        run.score = (factors or {}).get(unit, {}).get("score")
                        self._add_reason(run, self._now)
            case Park(unit=unit, verdict=verdict, pods=uids):
                self._wait(unit, uids, str(verdict.reason))
            case Hold(unit=unit, pods=pods):
                self._wait(unit, [placed.uid for placed in pods], "Reserved")
            case Release(pods=uids, is_asked=False):
                for uid in uids:
                    if (run := self.open.get(uid)) is not None and run.started is None:
                        run.node, run.placed, run.outcome = "", None, WAITING
            case Evict(victims=victims):
                self._victims.update(victim.uid for victim in victims)
            case _:
                pass

    def _wait(self, unit: str, uids: Sequence[str], reason: str) -> None:
        for uid in uids:
            run = self.open.get(uid)
            if run is not None and run.outcome == WAITING:
                run.unit, run.job = unit, run.job or unit
                self._add_reason(run, self._now)
                self._reason[uid] = (reason, self._now)

    def _add_reason(self, run: Run, until: float) -> None:
        known = self._reason.pop(run.uid, None)
        if known is not None:
            run.reasons_s[known[0]] = run.reasons_s.get(known[0], 0.0) + max(until - known[1], 0.0)

    def _measure(self, metric: NodeMetricFacts) -> None:
        for one in metric.status.pods_metric:
            run = self._by_key.get((one.namespace, one.name))
            if run is None or run.outcome != RUNNING or run.node != metric.metadata.name:
                continue
            run.samples += 1
            for name, value in one.pod_usage.resources.items():
                with contextlib.suppress(ValueError):
                    amount = float(amount_of(name, value))
                    mean = run.used_mean.get(name, 0.0)
                    run.used_mean[name] = mean + (amount - mean) / run.samples
                    run.used_max[name] = max(run.used_max.get(name, 0.0), amount)

    def _end(self, uid: str, outcome: str, at: float) -> None:
        run = self.open.pop(uid, None)
        self._victims.discard(uid)
        if run is None:
            return
        if self._by_key.get((run.namespace, run.pod)) is run:
            del self._by_key[run.namespace, run.pod]
        self._add_reason(run, at)
        self._fill_in(run)
        run.ended, run.outcome = at, outcome
        self._ended.append(run)


def _instant(text: str) -> float | None:
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None
