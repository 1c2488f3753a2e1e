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
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from muster.engine import events as ev
from muster.engine.configuration import ConfigurationInvalid, read
from muster.engine.facts import Meta, PodSpecFacts
from muster.engine.gangs import POD_GROUP_LABELS
from muster.engine.registry import discover
from muster.engine.resources import requests_of
from muster.engine.work import Work, work_of
from muster.history.reader import Log, Segment
from muster.history.segments import SegmentDamaged
from muster.objects.amounts import amount_of
from muster.objects.labels import Koordinator, KoordinatorPod, KusciaAnnotation, Muster
from muster.objects.time import parse_time
from muster.sim.log_reading import Reading, SeenPod, SeenUnit
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


class Recorded(msgspec.Struct, frozen=True):
    jobs: tuple[SimJob, ...]
    world: tuple[tuple[float, ev.AnyEvent], ...]
    outcome: Outcome
    """As it was: of the jobs whose end is in the log; the others have none."""
    configuration: dict[str, object] | None
    notes: tuple[str, ...]


def read_log(log: Log, restart_cost_s: float = 300.0) -> Recorded:
    """Everything in the log that another decision could not have changed. What stands behind damage in a segment is left out,
    and `notes` say so; SegmentDamaged when nothing is left."""
    reading = Reading()
    notes = [f"{finding.segment}: {finding.text}" for finding in log.gaps()]
    damage: SegmentDamaged | None = None
    terms: set[str] = set()
    for name in log.names:
        try:
            with log.open(name) as segment:
                _read_segment(segment, reading, terms)
                # The log of a scheduler that runs has no end yet: nothing is lost.
                losses = [one for one in segment.findings if one.is_loss and not (one.is_open and name == log.names[-1])]
                notes += [f"{finding.segment}: {finding.text}" for finding in losses]
        except SegmentDamaged as error:
            damage = error
            notes.append(f"{error}; the rest of this segment is left out")
    if damage is not None and not reading.units:
        raise damage
    return recorded_of(reading, reading.configuration, notes, restart_cost_s)


def _read_segment(segment: Segment, reading: Reading, terms: set[str]) -> None:
    if not segment.is_usable:
        return
    if reading.configuration is None and segment.header.configuration is not None:
        reading.configuration = dict(segment.header.configuration)
        reading.served = _served(reading.configuration)
    if segment.header.term not in terms and (kept := segment.checkpoint()) is not None:
        reading.take(kept.now, kept.events)
    terms.add(segment.header.term)
    for step in segment.steps():
        reading.take(step.now, step.events)
        reading.decide(step)


def _served(configuration: Mapping[str, object]) -> frozenset[str] | None:
    registry = discover()
    try:
        profiles = read(configuration, registry).build(registry)
    except ConfigurationInvalid:
        return None  # whoever runs the jobs again says so
    return frozenset(name for profile in profiles for name in profile.names)


# -- jobs ----------------------------------------------------------------------------------------------------------------------


class _Job:
    """A job over its attempts."""

    def __init__(self, unit: SeenUnit, work: Work) -> None:
        self.attempts, self.work = [unit], work

    @property
    def pods(self) -> Sequence[SeenPod]:
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


def _joined(units: Sequence[SeenUnit]) -> list[_Job]:
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
    names: dict[str, int] = {}
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
        notes.append(f"{background} pods had a node when they were first seen, or another scheduler: they stay as they were")
    size = capacity_of(reading.world, unit)
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


def capacity_of(world: Iterable[tuple[float, ev.AnyEvent]], unit: str) -> float:
    """The most GPUs or cores that there ever were."""
    resource = ("cpu",) if unit == CORE else GPU_NAMES
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


def _sim_job(
    job: _Job, run_s: float, resource: tuple[str, ...], specs: dict[bytes, PodSpecFacts], names: dict[str, int]
) -> SimJob:
    first = job.pods[0].facts
    meta = first.metadata
    pods = []
    for pod in job.pods:
        spec = msgspec.structs.replace(pod.facts.spec, node_name="", scheduling_gates=[])
        pods.append(specs.setdefault(msgspec.json.encode(spec), spec))
    work = job.work if job.work.submitted else msgspec.structs.replace(job.work, submitted=_created(meta, job.arrival))
    name = job.work.job or job.attempts[0].id
    names[name] = names.get(name, 0) + 1
    if names[name] > 1:
        name = f"{name} ({names[name]})"
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
