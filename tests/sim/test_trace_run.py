"""Jobs through the engine in virtual time: outcomes worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from muster.engine import events as ev
from muster.engine.configuration import default_configuration
from muster.engine.machine import Engine
from muster.engine.registry import Registry
from muster.engine.work import Work
from muster.sim.trace_cluster import Placement, Shaping, parse_cluster
from muster.sim.trace_formats import TraceJob
from muster.sim.trace_run import JobOutcome, Outcome, SimJob, TraceRun

BEGIN = 1_000_000.0


def run(
    jobs: Sequence[tuple[str, float, float, int]],
    cluster: str,
    *,
    placement: Placement = "counts",
    priorities: dict[str, int] | None = None,
    restart_cost_s: float = 0.0,
    checkpoint_s: float = 1.0,
    explains: bool = False,
) -> Outcome:
    """Jobs are (name, submitted, length, GPUs). Without a policy the engine goes by priority, then age, and skips ahead."""
    machines = parse_cluster(cluster, placement)
    traced = [TraceJob(id=name, submit_s=at, run_s=length, gpu_milli=1000 * gpus) for name, at, length, gpus in jobs]
    shaping = Shaping(machines, traced)
    registry = Registry()
    engine = Engine(default_configuration(registry).build(registry), explains=explains)
    made = []
    for job in traced:
        specs = tuple(msgspec.structs.replace(spec, priority=(priorities or {}).get(job.id, 0)) for spec in shaping.pods(job))
        work = Work(job=f"Job/trace/{job.id}", submitted=BEGIN + job.submit_s, checkpoint_s=checkpoint_s)
        made.append(SimJob(id=job.id, run_s=job.run_s, pods=specs, work=work, gpus=job.gpus))
    world = [(BEGIN, ev.NodeSeen(node)) for node in shaping.nodes()]
    outcome = TraceRun(engine, made, gpus=machines.gpus, restart_cost_s=restart_cost_s, world=world).run()
    assert not outcome.faults
    return outcome


def times(outcome: Outcome) -> dict[str, tuple[float, float]]:
    """Start and end of each, from the beginning."""
    return {job.id: (job.started - BEGIN, job.ended - BEGIN) for job in outcome.jobs}


def by_id(outcome: Outcome) -> dict[str, JobOutcome]:
    return {job.id: job for job in outcome.jobs}


def test_a_job_starts_when_there_is_room_and_ends_after_its_length() -> None:
    outcome = run([("a", 0, 100, 4), ("b", 10, 50, 4), ("c", 20, 30, 4)], "1x8")
    assert times(outcome) == {"a": (0, 100), "b": (10, 60), "c": (60, 90)}
    assert [job.wait_s for job in outcome.jobs] == [0, 0, 40]
    assert outcome.use == ((BEGIN, 4), (BEGIN + 10, 8), (BEGIN + 90, 4), (BEGIN + 100, 0))


def test_without_a_policy_the_small_go_before_the_wide() -> None:
    outcome = run([("a", 0, 100, 6), ("wide", 1, 10, 8), ("small", 2, 10, 2)], "1x8")
    assert times(outcome) == {"a": (0, 100), "wide": (100, 110), "small": (2, 12)}


def test_on_nodes_fragments_count() -> None:
    jobs = [("a", 0, 100, 3), ("b", 0, 100, 3), ("c", 1, 10, 2)]
    assert times(run(jobs, "2x4", placement="counts"))["c"] == (1, 11)
    assert times(run(jobs, "2x4", placement="nodes"))["c"] == (100, 110)


def test_a_job_wider_than_a_node_takes_whole_nodes_at_once() -> None:
    jobs = [("a", 0, 100, 1), ("wide", 1, 10, 8)]
    assert times(run(jobs, "2x4", placement="nodes"))["wide"] == (100, 110)
    assert times(run(jobs, "3x4", placement="nodes"))["wide"] == (1, 11)


@pytest.mark.parametrize(
    ("restart_cost_s", "checkpoint_s", "end", "held_s"),
    [
        # It runs 0-40, waits for 40-60, and goes on with 60 of its 100 seconds.
        pytest.param(0, 1, 120, 100, id="nothing lost"),
        pytest.param(25, 1, 145, 125, id="a restart costs"),
        pytest.param(0, 30, 130, 110, id="ten seconds since the last checkpoint are lost"),
        pytest.param(25, 30, 155, 135, id="both"),
    ],
)
def test_who_is_evicted_comes_back(restart_cost_s: float, checkpoint_s: float, end: float, held_s: float) -> None:
    outcome = run(
        [("low", 0, 100, 8), ("high", 40, 20, 8)],
        "1x8",
        priorities={"high": 10},
        restart_cost_s=restart_cost_s,
        checkpoint_s=checkpoint_s,
    )
    jobs = by_id(outcome)
    assert times(outcome) == {"low": (0, end), "high": (40, 60)}
    assert (jobs["low"].preemptions, jobs["low"].held_s, jobs["low"].wait_s) == (1, held_s, 20)
    assert jobs["high"].preemptions == 0


def test_a_restart_that_is_stopped_again_is_paid_again() -> None:
    """low: 0-40 runs; 60-70 restarts and is stopped before it got anywhere; 90-115 restarts, then 60 s of work."""
    outcome = run(
        [("low", 0, 100, 8), ("h1", 40, 20, 8), ("h2", 70, 20, 8)],
        "1x8",
        priorities={"h1": 10, "h2": 10},
        restart_cost_s=25,
    )
    assert times(outcome)["low"] == (0, 175)
    assert by_id(outcome)["low"].preemptions == 2


def test_a_gang_is_evicted_whole() -> None:
    outcome = run([("wide", 0, 100, 8), ("high", 40, 20, 4)], "2x4", placement="nodes", priorities={"high": 10})
    assert times(outcome) == {"wide": (0, 120), "high": (40, 60)}
    assert outcome.use[-1][1] == 0


def test_what_never_fits_is_left_and_the_rest_ends() -> None:
    outcome = run([("huge", 0, 10, 99), ("a", 5, 10, 8)], "1x8")
    jobs = by_id(outcome)
    assert math.isnan(jobs["huge"].started)
    assert math.isnan(jobs["huge"].ended)
    assert times(outcome)["a"] == (5, 15)


def test_a_job_without_length_and_jobs_of_the_same_instant() -> None:
    outcome = run([("none", 5, 0, 8), ("a", 5, 10, 8), ("b", 5, 10, 8)], "1x8")
    assert times(outcome) == {"none": (5, 5), "a": (5, 15), "b": (15, 25)}


@pytest.mark.parametrize("placement", ["counts", "nodes"])
def test_not_to_explain_changes_no_decision(placement: Placement) -> None:
    jobs = [(f"j{n}", float(n % 7 * 5), 20.0 + n * 3 % 11, (1, 2, 4, 8)[n % 4]) for n in range(24)]
    priorities = {f"j{n}": n % 3 for n in range(24)}
    quiet, told = (
        run(jobs, "2x4", placement=placement, priorities=priorities, explains=explains) for explains in (False, True)
    )
    assert quiet == told
    assert sum(job.preemptions for job in quiet.jobs)
