"""A trace through the real engine, under a virtual clock: what would have happened.

The driver is the world around the engine, and decides nothing: it lets jobs arrive, starts what the engine places, ends runs
when their time is over, stops what the engine evicts and lets it wait again with the work that it had saved. Time jumps from
event to event, and to the engine's own deadlines.

Single-threaded, no I/O, no clock: equal jobs, cluster and order give equal outcomes, whenever and wherever it runs.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from muster.engine import events as ev
from muster.engine.decisions import AnyDecision, Evict, Place, Release
from muster.engine.facts import Meta, PodFacts, PodSpecFacts, PodStatusFacts
from muster.engine.machine import Engine
from muster.engine.work import Work, encode_work
from muster.objects.labels import KoordinatorPod, Muster
from muster.objects.time import format_time
from muster.sim.clock import SimulationError

NAMESPACE = "trace"
LOOK_S_MIN = 1.0
STEPS_AT_ONCE_MAX = 10_000
IDLE_LOOKS_MAX = 100
"""When nothing runs and nothing will come, the engine's deadlines are served so often before what waits counts as stuck."""
_SUCCEEDED = PodStatusFacts(phase="Succeeded")
_SAYS_EVERY = 256

Progress = Callable[[int, int, float], None]
"""Jobs that ended, jobs in all, and the virtual instant."""


class SimJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job as the world knows it. The engine sees `pods` and `work`; `run_s` is known to the world alone."""

    id: str
    run_s: float
    pods: tuple[PodSpecFacts, ...]
    work: Work
    gpus: float = 0
    arrives: float | None = None
    """When it comes; None: when its work says that it was submitted."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    namespace: str = NAMESPACE

    @property
    def arrival(self) -> float:
        return self.work.submitted if self.arrives is None else self.arrives


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job. Times are instants; `started` and `ended` are NaN where it never did."""

    id: str
    submitted: float
    started: float
    ended: float
    held_s: float
    """How long it had its resources, over all attempts: its run, restarts, and work that a stop lost."""
    gpus: float
    preemptions: int = 0
    type: str = ""
    user: str = ""
    group: str = ""
    queue: str = ""

    @property
    def jct_s(self) -> float:
        return self.ended - self.submitted

    @property
    def wait_s(self) -> float:
        """All the time that it was there and did not run, after stops too."""
        return self.ended - self.submitted - self.held_s


class Outcome(msgspec.Struct, frozen=True):
    jobs: tuple[JobOutcome, ...]
    """In the order of `jobs` as they were given."""
    gpus: float
    """That the cluster has: GPUs, or whatever else `unit` says is counted."""
    use: tuple[tuple[float, float], ...]
    """GPUs in use from each instant on."""
    steps: int
    faults: Mapping[str, str]
    """What failed inside the engine, by plugin or object: such a run says nothing about the policy."""
    unit: str = "GPU"


class _Run:
    """One job on its way."""

    __slots__ = (
        "attained_s",
        "attempt",
        "cost_s",
        "end_s",
        "ended",
        "held_s",
        "job",
        "pods",
        "preemptions",
        "since",
        "started",
    )

    def __init__(self, job: SimJob) -> None:
        self.job = job
        self.attempt = 0
        self.pods: tuple[PodFacts, ...] = ()
        """Of this attempt."""
        self.attained_s = job.work.attained_s
        self.preemptions = job.work.preemptions
        self.cost_s = 0.0
        """Of this attempt: how long it takes until it goes on where it was."""
        self.since = math.nan
        """When this attempt got its resources."""
        self.end_s = math.nan
        self.started = self.ended = math.nan
        self.held_s = 0.0

    @property
    def is_running(self) -> bool:
        return not math.isnan(self.since)

    def stop(self, now: float) -> None:
        """What it saved is kept; the rest of this attempt is lost."""
        held_s = now - self.since
        every_s = self.job.work.checkpoint_s
        worked_s = max(held_s - self.cost_s, 0.0)
        self.attained_s += math.floor(worked_s / every_s) * every_s if every_s else 0.0
        self.held_s += held_s
        self.preemptions += 1
        self.since = self.end_s = math.nan


def look_s_for(jobs: Sequence[SimJob]) -> float:
    """The mean time between two jobs that come."""
    arrivals = [job.arrival for job in jobs] or [0.0]
    span_s = max(arrivals) - min(arrivals) + max((job.run_s for job in jobs), default=0.0)
    return max(span_s / len(arrivals), LOOK_S_MIN)


class TraceRun:
    """Call `run` once. `engine` is new, or knows nodes, queues and policies already."""

    def __init__(
        self,
        engine: Engine,
        jobs: Sequence[SimJob],
        *,
        gpus: float,
        restart_cost_s: float = 0.0,
        look_s: float | None = None,
        world: Sequence[tuple[float, ev.AnyEvent]] = (),
        step: Callable[[Sequence[ev.AnyEvent], float], list[AnyDecision]] | None = None,
    ) -> None:
        """`step`: the engine's own, or one that does something besides, such as recording. `world`: what else happens, and
        when: nodes, queues, policies, users. What time alone changes is looked at `look_s` after the last event, at the
        earliest; None for the mean time between two arrivals. A policy that wants to rank anew every five seconds would
        otherwise do so a million times in a quarter of a year in which nothing happens."""
        self._engine, self._step = engine, step if step is not None else engine.step
        self._runs = [_Run(job) for job in jobs]
        self._gpus, self._restart_cost_s, self._look_s = (
            gpus,
            restart_cost_s,
            look_s if look_s is not None else look_s_for(jobs),
        )
        self._heap: list[tuple[float, int, int, _Run | ev.AnyEvent]] = []
        self._number = itertools.count()
        self._by_uid: dict[str, _Run] = {}
        self._noted: list[ev.AnyEvent] = []
        """What goes into the next step, whenever that is."""
        self._at_once: list[ev.AnyEvent] = []
        self._places = {id(run): place for place, run in enumerate(self._runs)}
        self._width = len(str(len(jobs)))
        self._used = 0.0
        self._use: list[tuple[float, float]] = []
        self._open = len(jobs)
        self._steps = 0
        for instant, event in world:
            self._push(instant, 0, event)
        for run in self._runs:
            self._push(run.job.arrival, 2, run)

    def run(self, progress: Progress | None = None) -> Outcome:
        now = -math.inf
        idle = 0
        while self._open:
            due = self._heap[0][0] if self._heap else math.inf
            # Nobody has to say when to look again where something happens before that could count.
            look = self._next_look(now) if due > now + self._look_s else math.inf
            if look < due:
                idle = idle + 1 if not self._heap else 0
                if idle > IDLE_LOOKS_MAX:
                    break
                due = look
            elif due == math.inf:
                break
            else:
                idle = 0
            now = due
            self._live(now)
            if progress is not None and self._steps % _SAYS_EVERY == 0:
                progress(len(self._runs) - self._open, len(self._runs), now)
        return self._outcome()

    # -- time --------------------------------------------------------------------------------------------------------------

    def _push(self, instant: float, kind: int, what: _Run | ev.AnyEvent) -> None:
        heapq.heappush(self._heap, (instant, kind, next(self._number), what))

    def _next_look(self, now: float) -> float:
        if not len(self._engine.waiting):
            return math.inf
        deadline = self._engine.next_deadline
        return math.inf if deadline is None else max(deadline, now + self._look_s)

    def _live(self, now: float) -> None:
        """One instant, until nothing follows from it any more."""
        heap = self._heap
        events, self._noted = self._noted, []
        while heap and heap[0][0] <= now:
            _, kind, _, what = heapq.heappop(heap)
            if not isinstance(what, _Run):
                events.append(what)
            elif kind == 2:
                events += self._arrive(what, now)
            elif what.end_s <= now:
                events += self._end(what, now)
        for _ in range(STEPS_AT_ONCE_MAX):
            self._steps += 1
            self._take(self._step(events, now), now)
            if not self._at_once and not self._engine.has_work:
                break
            events, self._noted, self._at_once = [*self._noted, *self._at_once], [], []
        else:
            raise SimulationError(
                f"the engine does not come to rest at {format_time(now)}: {STEPS_AT_ONCE_MAX} steps, and it still has work; "
                "this is a loop of evictions or of the order"
            )
        if not self._use or self._use[-1][1] != self._used:
            self._use.append((now, self._used))

    # -- what happens to jobs ------------------------------------------------------------------------------------------------

    def _arrive(self, run: _Run, now: float) -> list[ev.AnyEvent]:
        """A new attempt: new pods, as a job's controller would make them."""
        run.attempt += 1
        job = run.job
        name = f"j{self._places[id(run)]:0{self._width}}a{run.attempt}"
        work = msgspec.structs.replace(job.work, attained_s=run.attained_s, preemptions=run.preemptions)
        annotations = {**job.annotations, Muster.WORK: encode_work(work)}
        count = len(job.pods)
        if count > 1:
            # A gang of its own per attempt: one that has started once is not waited for as a whole again.
            annotations |= {KoordinatorPod.GANG_NAME: name, KoordinatorPod.GANG_MIN_AVAILABLE: str(count)}
        created = format_time(now)
        pods = []
        for place, spec in enumerate(job.pods):
            pod_name = name if count == 1 else f"{name}-{place}"
            meta = Meta(
                name=pod_name,
                namespace=job.namespace,
                uid=f"{job.namespace}/{pod_name}",
                labels=dict(job.labels),
                annotations=annotations,
                creation_timestamp=created,
            )
            pods.append(PodFacts(metadata=meta, spec=spec))
            self._by_uid[meta.uid] = run
        run.pods = tuple(pods)
        return [ev.PodSeen(pod) for pod in pods]

    def _start(self, run: _Run, now: float) -> None:
        if run.is_running:
            raise SimulationError(f"job {run.job.id} was placed twice in the same attempt")
        run.since = now
        if math.isnan(run.started):
            run.started = now
        run.cost_s = self._restart_cost_s if run.attempt > 1 else 0.0
        run.end_s = now + run.cost_s + max(run.job.run_s - run.attained_s, 0.0)
        self._used += run.job.gpus
        self._push(run.end_s, 1, run)
        self._noted += [ev.Bound(pod.metadata.uid) for pod in run.pods]

    def _end(self, run: _Run, now: float) -> list[ev.AnyEvent]:
        run.held_s += now - run.since
        run.ended, run.since, run.end_s = now, math.nan, math.nan
        self._open -= 1
        self._used -= run.job.gpus
        seen = [ev.PodSeen(PodFacts(metadata=pod.metadata, spec=pod.spec, status=_SUCCEEDED)) for pod in run.pods]
        return [*seen, *self._gone(run)]

    def _stop(self, run: _Run, now: float) -> None:
        run.stop(now)
        self._used -= run.job.gpus
        self._at_once += self._gone(run)
        self._at_once += self._arrive(run, now)

    def _gone(self, run: _Run) -> list[ev.AnyEvent]:
        for pod in run.pods:
            del self._by_uid[pod.metadata.uid]
        return [ev.PodGone(pod.metadata.uid) for pod in run.pods]

    def _take(self, decisions: Sequence[AnyDecision], now: float) -> None:
        for decision in decisions:
            match decision:
                case Place(pods=pods):
                    run = self._by_uid[pods[0].uid]
                    if len(pods) != len(run.pods):
                        raise SimulationError(f"job {run.job.id}: {len(pods)} of its {len(run.pods)} pods were placed")
                    self._start(run, now)
                case Evict(victims=victims):
                    for victim in victims:
                        stopped = self._by_uid.get(victim.uid)
                        if stopped is not None and stopped.is_running:  # several victims may be of one job
                            self._stop(stopped, now)
                case Release():
                    raise SimulationError(f"unit {decision.unit} was taken back, and nothing had failed: {decision.message}")

    def _outcome(self) -> Outcome:
        done = []
        for run in self._runs:
            job = run.job
            work = job.work
            done.append(
                JobOutcome(
                    id=job.id,
                    submitted=job.arrival,
                    started=run.started,
                    ended=run.ended,
                    held_s=run.held_s,
                    gpus=job.gpus,
                    preemptions=run.preemptions - work.preemptions,
                    type=work.type,
                    user=work.user,
                    group=work.group,
                    queue=work.queue,
                )
            )
        return Outcome(tuple(done), self._gpus, tuple(self._use), self._steps, dict(self._engine.state.faults))
