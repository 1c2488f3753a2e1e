"""A decision log read as a trace: which jobs came when, how long each ran, and what else happened around them.

A job is a unit of the engine: a pod, or the pods of a gang or task. It came when its pods could first be tried, and ran from
its placement to the end of its last pod. An attempt that was evicted and the one that followed are one job: it ran as long as
the last attempt, less what a restart costs, and what had been saved before. Of a job that still ran when the log ends, or never
started, the length is not known: it is taken to be what it had run, what its owner estimated, or the median of all, whichever
is longest; `notes` says of how many.

Pods that had a node when they were first seen stay as they were: they are part of the world. So are nodes, queues, policies,
users and all other objects, at the instants at which they were seen.

Reads the log, otherwise pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from muster.engine import events as ev
from muster.engine.decisions import Evict, Place
from muster.engine.facts import Meta, PodFacts, PodSpecFacts
from muster.engine.gangs import POD_GROUP_LABELS, gang_key_of
from muster.engine.resources import requests_of
from muster.engine.units import gang_id, single_unit_id, task_id, task_name_of
from muster.engine.work import Work, work_of
from muster.history.reader import Log
from muster.history.records import Step
from muster.objects.amounts import amount_of
from muster.objects.labels import Koordinator, KoordinatorPod, KusciaAnnotation, Muster
from muster.objects.time import parse_time
from muster.sim.trace_run import JobOutcome, Outcome, SimJob

GPU_NAMES = (Koordinator.RESOURCE_NVIDIA_GPU, Koordinator.RESOURCE_AMD_GPU, Koordinator.RESOURCE_GPU)
CORE = "core"
"""Counted where nobody asks for a GPU."""
_OWN_ANNOTATIONS = frozenset(
    {
        Muster.WORK,
        KusciaAnnotation.TASK_RESOURCE_GROUP,
        KoordinatorPod.GANG_NAME,
        KoordinatorPod.GANG_MIN_AVAILABLE,
        KoordinatorPod.GANG_TOTAL_NUMBER,
    }
)
"""What makes a pod a member of a recorded unit: the simulation makes its units itself."""
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


class Recorded(msgspec.Struct, frozen=True):
    jobs: tuple[SimJob, ...]
    world: tuple[tuple[float, ev.AnyEvent], ...]
    outcome: Outcome
    """As it was: of the jobs whose end is in the log; the others have none."""
    configuration: dict[str, object] | None
    notes: tuple[str, ...]


class _Pod:
    __slots__ = ("ended", "facts", "is_background", "seen", "started", "unit")

    def __init__(self, facts: PodFacts, unit: str, now: float) -> None:
        self.facts, self.unit, self.seen = facts, unit, now
        self.started = self.ended = math.nan
        self.is_background = bool(facts.spec.node_name) or facts.is_finished


class _Unit:
    """The pods of one attempt, in the order in which they came."""

    def __init__(self, unit_id: str) -> None:
        self.id = unit_id
        self.pods: list[_Pod] = []
        self.is_evicted = False


class Reading:
    """Takes events and decisions in, in their order; `recorded_of` makes jobs of them."""

    def __init__(self) -> None:
        self.world: list[tuple[float, ev.AnyEvent]] = []
        self.pods: dict[str, _Pod] = {}
        self.units: list[_Unit] = []
        self._open: dict[str, _Unit] = {}
        self.begin, self.end = math.inf, -math.inf

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
            pod = self.pods[uid] = _Pod(facts, _unit_of(facts.metadata), now)
            if not pod.is_background:
                self._join(pod)
        if pod.is_background:
            self.world.append((now, ev.PodSeen(facts)))
            return
        if facts.spec.node_name:
            self._start(uid, now)
        if facts.is_finished:
            self._end(pod, now)

    def _join(self, pod: _Pod) -> None:
        unit = self._open.get(pod.unit)
        if unit is None or all(not math.isnan(one.ended) for one in unit.pods) or unit.is_evicted:
            unit = self._open[pod.unit] = _Unit(pod.unit)
            self.units.append(unit)
        unit.pods.append(pod)

    def _start(self, uid: str, now: float) -> None:
        pod = self.pods.get(uid)
        if pod is not None and math.isnan(pod.started):
            pod.started = now

    def _end(self, pod: _Pod, now: float) -> None:
        if math.isnan(pod.ended):
            pod.ended = now

    def _gone(self, uid: str, now: float) -> None:
        pod = self.pods.get(uid)
        if pod is None:
            return
        if pod.is_background:
            self.world.append((now, ev.PodGone(uid)))
        self._end(pod, now)


def read_log(log: Log, restart_cost_s: float = 300.0) -> Recorded:
    """Everything in the log that another decision could not have changed. SegmentDamaged when it can't be read."""
    reading = Reading()
    notes = [f"{finding.segment}: {finding.text}" for finding in log.gaps()]
    configuration: dict[str, object] | None = None
    terms: set[str] = set()
    for name in log.names:
        with log.open(name) as segment:
            if not segment.is_usable:
                continue
            if configuration is None and segment.header.configuration is not None:
                configuration = dict(segment.header.configuration)
            if segment.header.term not in terms and (kept := segment.checkpoint()) is not None:
                reading.take(kept.now, kept.events)
            terms.add(segment.header.term)
            for step in segment.steps():
                reading.take(step.now, step.events)
                reading.decide(step)
            notes += [f"{finding.segment}: {finding.text}" for finding in segment.findings if finding.is_loss]
    return recorded_of(reading, configuration, notes, restart_cost_s)


def _unit_of(meta: Meta) -> str:
    if task := task_name_of(meta):
        return task_id(task)
    key = gang_key_of(meta)
    return gang_id(key) if key else single_unit_id(meta.namespace, meta.name)


# -- jobs ----------------------------------------------------------------------------------------------------------------------


class _Job:
    """A job over its attempts."""

    def __init__(self, unit: _Unit, work: Work) -> None:
        self.attempts, self.work = [unit], work

    @property
    def pods(self) -> Sequence[_Pod]:
        return self.attempts[-1].pods

    @property
    def arrival(self) -> float:
        return min(pod.seen for pod in self.attempts[0].pods)

    @property
    def started(self) -> float:
        return _least(pod.started for unit in self.attempts for pod in unit.pods)

    @property
    def last_started(self) -> float:
        return _least(pod.started for pod in self.pods)

    @property
    def ended(self) -> float:
        """NaN while any of its pods goes on, or before any has started."""
        ends = [pod.ended for pod in self.pods]
        return math.nan if any(map(math.isnan, ends)) or math.isnan(self.last_started) else max(ends)


def _least(values: Iterable[float]) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def _joined(units: Sequence[_Unit]) -> list[_Job]:
    """Jobs, in the order in which they came; an attempt after an eviction goes to its job."""
    jobs: list[_Job] = []
    evicted: dict[str, _Job] = {}
    for unit in units:
        work = work_of(unit.pods[0].facts)
        before = evicted.pop(work.job, None) if work.job else None
        if before is not None:
            before.attempts.append(unit)
            before.work = work
            job = before
        else:
            job = _Job(unit, work)
            jobs.append(job)
        if unit.is_evicted and work.job:
            evicted[work.job] = job
    return jobs


def recorded_of(
    reading: Reading, configuration: dict[str, object] | None = None, notes: Iterable[str] = (), restart_cost_s: float = 300.0
) -> Recorded:
    notes = list(notes)
    jobs = _joined(reading.units)
    cancelled = [job for job in jobs if math.isnan(job.last_started) and not any(math.isnan(pod.ended) for pod in job.pods)]
    out = {id(job) for job in cancelled}
    kept = [job for job in jobs if id(job) not in out]
    lengths = [job.ended - job.last_started for job in kept if not math.isnan(job.ended)]
    usual_s = statistics.median(lengths) if lengths else 3600.0
    specs: dict[bytes, PodSpecFacts] = {}
    resource, unit = _counted(kept)
    sim_jobs, outcomes, unknown = [], [], 0
    names: set[str] = set()
    for job in kept:
        restart_s = restart_cost_s if len(job.attempts) > 1 else 0.0
        run_s = max(job.ended - job.last_started - restart_s, 0.0) + job.work.attained_s
        if math.isnan(job.ended):
            unknown += 1
            so_far_s = 0.0 if math.isnan(job.last_started) else reading.end - job.last_started
            run_s = max(so_far_s + job.work.attained_s, job.work.estimate_s or 0.0, usual_s)
        sim = _sim_job(job, run_s, resource, specs, names)
        sim_jobs.append(sim)
        outcomes.append(_as_it_was(job, sim))
    if unknown:
        notes.append(f"{unknown} jobs had not ended when the log ends: their length is an estimate")
    if cancelled:
        notes.append(f"{len(cancelled)} jobs went before they had started: they are left out")
    background = sum(pod.is_background for pod in reading.pods.values())
    if background:
        notes.append(f"{background} pods had a node when they were first seen: they stay there as long as they did")
    size = _capacity(reading.world, resource)
    return Recorded(
        tuple(sim_jobs),
        tuple(reading.world),
        Outcome(tuple(outcomes), size, _use_of(outcomes), 0, {}, unit),
        configuration,
        tuple(notes),
    )


def _counted(jobs: Sequence[_Job]) -> tuple[tuple[str, ...], str]:
    """What the size of jobs is counted in: GPUs if any asks for one, otherwise processor cores."""
    has_gpu = any(name in GPU_NAMES for job in jobs for pod in job.pods for name in requests_of(pod.facts).amounts)
    return (GPU_NAMES, "GPU") if has_gpu else (("cpu",), CORE)


def _size(amounts: Iterable[tuple[str, int]], resource: tuple[str, ...]) -> float:
    total = sum(amount for name, amount in amounts if name in resource)
    return total / 1000 if resource == ("cpu",) else float(total)


def _capacity(world: Iterable[tuple[float, ev.AnyEvent]], resource: tuple[str, ...]) -> float:
    """The most that there ever was."""
    nodes: dict[str, float] = {}
    most = 0.0
    for _, event in world:
        if isinstance(event, ev.NodeSeen):
            allocatable = event.node.status.allocatable.items()
            nodes[event.node.metadata.name] = _size(
                ((name, amount_of(name, text) or 0) for name, text in allocatable), resource
            )
        elif isinstance(event, ev.NodeGone):
            nodes.pop(event.name, None)
        most = max(most, sum(nodes.values())) if isinstance(event, ev.NodeSeen | ev.NodeGone) else most
    return most


def _sim_job(job: _Job, run_s: float, resource: tuple[str, ...], specs: dict[bytes, PodSpecFacts], names: set[str]) -> SimJob:
    first = job.pods[0].facts
    meta = first.metadata
    pods = []
    for pod in job.pods:
        spec = msgspec.structs.replace(pod.facts.spec, node_name="", scheduling_gates=[])
        pods.append(specs.setdefault(msgspec.json.encode(spec), spec))
    work = job.work if job.work.submitted else msgspec.structs.replace(job.work, submitted=_created(meta, job.arrival))
    name = job.attempts[0].id
    if name in names:
        name = f"{name} ({sum(one.split(' (')[0] == name for one in names) + 1})"
    names.add(name)
    return SimJob(
        id=name,
        run_s=run_s,
        pods=tuple(pods),
        work=msgspec.structs.replace(work, attained_s=0.0, preemptions=0),
        gpus=_size((item for pod in job.pods for item in requests_of(pod.facts).amounts.items()), resource),
        arrives=job.arrival,
        labels={key: value for key, value in meta.labels.items() if key not in POD_GROUP_LABELS},
        annotations={key: value for key, value in meta.annotations.items() if key not in _OWN_ANNOTATIONS},
        namespace=meta.namespace,
    )


def _created(meta: Meta, otherwise: float) -> float:
    try:
        return parse_time(meta.creation_timestamp)
    except ValueError:
        return otherwise


def _as_it_was(job: _Job, sim: SimJob) -> JobOutcome:
    held_s = 0.0
    for unit in job.attempts:
        started, ends = _least(pod.started for pod in unit.pods), [pod.ended for pod in unit.pods]
        if not math.isnan(started) and not any(map(math.isnan, ends)):
            held_s += max(ends) - started
    return JobOutcome(
        id=sim.id,
        submitted=job.arrival,
        started=job.started,
        ended=job.ended,
        held_s=held_s,
        gpus=sim.gpus,
        preemptions=len(job.attempts) - 1,
        type=sim.work.type,
        user=sim.work.user,
        group=sim.work.group,
        queue=sim.work.queue,
    )


def _use_of(jobs: Iterable[JobOutcome]) -> tuple[tuple[float, float], ...]:
    """In use from each instant on, as far as the ends are known."""
    changes: dict[float, float] = {}
    for job in jobs:
        if not math.isnan(job.ended):
            changes[job.ended - job.held_s] = changes.get(job.ended - job.held_s, 0.0) + job.gpus
            changes[job.ended] = changes.get(job.ended, 0.0) - job.gpus
    used, points = 0.0, []
    for instant in sorted(changes):
        used += changes[instant]
        points.append((instant, used))
    return tuple(points)
