"""One simulation, put together: a trace, a cluster, a policy, and what is known of run times. `simulate` runs it.

No I/O, no clock, no chance but the seed: it gives the order in which jobs arrive that came in the same instant.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from muster.engine import events as ev
from muster.engine.configuration import default_document, profiles_from, read
from muster.engine.decisions import AnyDecision
from muster.engine.machine import Engine
from muster.engine.registry import discover
from muster.engine.work import Work
from muster.objects.job_pods import DEFAULT_SCHEDULER
from muster.policy.order import PolicyOrder, UnlearnedOrder
from muster.sim.clock import START_S, SimulationError
from muster.sim.entropy import Entropy
from muster.sim.trace_cluster import Shaping, TraceCluster
from muster.sim.trace_formats import TraceJob
from muster.sim.trace_policy import PolicySet
from muster.sim.trace_run import NAMESPACE, Outcome, Progress, SimJob, TraceRun

if TYPE_CHECKING:
    from muster.history.recorder import Recorder
    from muster.history.recording import Recorded

Estimates = Literal["none", "history", "oracle"]
Step = Callable[[Sequence[ev.AnyEvent], float], list[AnyDecision]]
FLUSH_STEPS = 256


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    cluster: TraceCluster
    policy: PolicySet
    estimates: Estimates = "history"
    """`none`: nothing is known of run times. `history`: what jobs say themselves, and what runs of the same kind taught.
    `oracle`: the truth."""
    restart_cost_s: float = 300.0
    seed: int = 0
    look_s: float | None = None
    configuration: Mapping[str, Any] | None = None
    """Of the scheduler: profiles and plugins; None for the default."""


def simulate(
    jobs: Sequence[TraceJob],
    setup: Setup,
    *,
    progress: Progress | None = None,
    recorder: Recorder | None = None,
) -> Outcome:
    """What would become of the jobs. SimulationError when the policy or a plugin failed on the way. With `recorder`, all
    decisions are recorded as a scheduler's are."""
    is_told = recorder is not None
    engine = new_engine(setup.configuration, setup.estimates, explains=is_told, forecasts=is_told)
    recorded = _recorded(engine, recorder) if recorder is not None else None
    names = tuple(engine.profiles)
    shaping = Shaping(setup.cluster, jobs, DEFAULT_SCHEDULER if DEFAULT_SCHEDULER in names else names[0])
    begin = START_S + min((job.submit_s for job in jobs), default=0.0)
    queues = sorted({job.queue for job in jobs})
    world: list[ev.AnyEvent] = [*(ev.NodeSeen(node) for node in shaping.nodes()), *setup.policy.events(queues)]
    run = TraceRun(
        engine,
        [sim_job(job, shaping, setup.estimates) for job in shuffled(jobs, setup.seed)],
        gpus=setup.cluster.gpus,
        restart_cost_s=setup.restart_cost_s,
        look_s=setup.look_s,
        world=[(begin, event) for event in world],
        step=_flushing(recorded.step, recorder) if recorded is not None and recorder is not None else None,
    )
    outcome = checked(run.run(progress))
    if recorded is not None:
        recorded.finish()
    return outcome


def _recorded(engine: Engine, recorder: Recorder) -> Recorded:
    from muster.history.recording import Recorded

    return Recorded(engine, recorder, lambda _: engine, holder="simulation")


def _flushing(step: Step, recorder: Recorder) -> Step:
    """A recorder never waits, and leaves out what it can't keep up with; a simulation has time."""
    count = itertools.count(1)

    def flushed(events: Sequence[ev.AnyEvent], now: float) -> list[AnyDecision]:
        decisions = step(events, now)
        if next(count) % FLUSH_STEPS == 0:
            recorder.flush()
        return decisions

    return flushed


def new_engine(
    configuration: Mapping[str, Any] | None, estimates: Estimates, *, explains: bool = False, forecasts: bool = False
) -> Engine:
    """The scheduler's own engine; predictions come from history, so it has them with `history` only. What decides nothing is
    left out unless it is asked for: why work waits, and when it will start."""
    registry = discover()
    document = configuration if configuration is not None else default_document()
    profiles = read(document, registry).build(registry)
    order = PolicyOrder(forecasts=forecasts) if estimates == "history" else UnlearnedOrder(forecasts=forecasts)
    engine = Engine(profiles, configure=profiles_from(registry), order=order, explains=explains)
    engine.configuration = document
    return engine


def checked(outcome: Outcome) -> Outcome:
    """The engine goes on without a policy or plugin that fails; the figures would then be those of something else."""
    if outcome.faults:
        what, why = next(iter(outcome.faults.items()))
        raise SimulationError(f"{what} {why}; the figures would not be those of the policy")
    return outcome


def shuffled(jobs: Iterable[TraceJob], seed: int) -> list[TraceJob]:
    """By submission; those of the same instant in an order that the seed gives, with 0 in that of the file."""
    ordered = sorted(jobs, key=lambda job: (job.submit_s, job.line))
    if not seed:
        return ordered
    chance = Entropy(seed).stream("arrivals")
    drawn = {job.id: chance.random() for job in ordered}
    return sorted(ordered, key=lambda job: (job.submit_s, drawn[job.id]))


def sim_job(job: TraceJob, shaping: Shaping, estimates: Estimates) -> SimJob:
    estimate_s = {"none": None, "history": job.estimate_s, "oracle": max(job.run_s, 1e-3)}[estimates]
    work = Work(
        job=f"Job/{NAMESPACE}/{job.id}",
        queue=job.queue,
        user=job.user,
        group=job.group,
        type=job.type,
        name=job.name or job.type,
        level=job.level,
        estimate_s=estimate_s,
        deadline=START_S + job.deadline_s if job.deadline_s is not None else None,
        preemptible=job.preemptible,
        checkpoint_s=job.checkpoint_s,
        submitted=START_S + job.submit_s,
    )
    return SimJob(id=job.id, run_s=job.run_s, pods=shaping.pods(job), work=work, gpus=job.gpus)
