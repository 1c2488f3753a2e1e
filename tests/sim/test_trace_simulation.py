"""Simulations with policies: known orders worked out by hand, and what must hold for every policy."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.sim.trace_building import CLUSTER, small_trace

from muster.policy.builtin import NAMES as BUILTIN
from muster.sim.trace_cluster import parse_cluster
from muster.sim.trace_figures import figures
from muster.sim.trace_formats import TraceJob, read_trace
from muster.sim.trace_policy import BASELINES, PolicyError, load_policy
from muster.sim.trace_run import Outcome
from muster.sim.trace_simulation import Estimates, Setup, shuffled, simulate

PHILLY = Path(__file__).parents[3] / "shared" / "data" / "philly"
FOUR = [
    TraceJob(id="long", submit_s=0, run_s=100, gpu_milli=6000, line=2),
    TraceJob(id="wide", submit_s=10, run_s=50, gpu_milli=8000, line=3),
    TraceJob(id="short", submit_s=20, run_s=60, gpu_milli=2000, line=4),
    TraceJob(id="late", submit_s=30, run_s=200, gpu_milli=2000, line=5),
]
"""On 8 GPUs. `short` can end before `wide` can start, `late` can't."""


def run(jobs: list[TraceJob], policy: str, cluster: str = "1x8", estimates: Estimates = "oracle") -> Outcome:
    return simulate(jobs, Setup(cluster=parse_cluster(cluster), policy=load_policy(policy), estimates=estimates))


def starts(outcome: Outcome) -> dict[str, float]:
    begin = min(job.submitted for job in outcome.jobs)
    return {job.id: job.started - begin for job in outcome.jobs}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param("fifo", {"long": 0, "wide": 100, "short": 150, "late": 150}, id="nothing passes"),
        pytest.param("skip-ahead", {"long": 0, "wide": 280, "short": 20, "late": 80}, id="whatever fits goes"),
        pytest.param("easy", {"long": 0, "wide": 100, "short": 20, "late": 150}, id="what does not delay goes"),
        pytest.param("sjf", {"long": 0, "wide": 280, "short": 20, "late": 80}, id="shortest first, whatever fits"),
    ],
)
def test_orders_by_hand(policy: str, expected: dict[str, float]) -> None:
    assert starts(run(FOUR, policy)) == expected


@pytest.mark.parametrize("policy", [*BUILTIN, *BASELINES])
def test_every_policy_ends_every_job_and_never_oversubscribes(policy: str) -> None:
    jobs = small_trace(25)
    outcome = run(jobs, policy, CLUSTER, "history")
    assert not [job.id for job in outcome.jobs if math.isnan(job.ended)]
    assert max(used for _, used in outcome.use) <= outcome.gpus
    lengths = {job.id: job.run_s for job in jobs}
    for job in outcome.jobs:
        assert job.held_s >= lengths[job.id] - 1e-6
        assert job.wait_s >= -1e-6


def test_the_same_again_is_the_same() -> None:
    first, second = (run(small_trace(25), "balanced", CLUSTER) for _ in range(2))
    assert first == second


def test_with_none_nobody_knows_how_long_work_runs() -> None:
    """Without estimates nothing may pass a blocked head: nobody can say that it would end in time."""
    assert starts(run(FOUR, "easy", estimates="none"))["wide"] == 100


def test_the_seed_orders_only_what_came_together() -> None:
    jobs = [TraceJob(id=str(n), submit_s=float(n // 5), run_s=1, line=n) for n in range(20)]
    assert [job.id for job in shuffled(jobs, 0)] == [str(n) for n in range(20)]
    drawn = shuffled(jobs, 7)
    assert [job.submit_s for job in drawn] == sorted(job.submit_s for job in jobs)
    assert drawn == shuffled(jobs, 7) != shuffled(jobs, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "holds no SchedulingPolicy", id="empty"),
        pytest.param("a: [", "document 1", id="not YAML"),
        pytest.param("kind: Pod", "kind: must be one of Queue, SchedulingPolicy,", id="another kind"),
        pytest.param("kind: SchedulingPolicy", "apiVersion: must be muster.dev/v1alpha1", id="no version"),
        pytest.param("@spec: {formla: age}", "spec.formla: there is no such field", id="typing error"),
        pytest.param("@spec: {formula: 1 +}", "spec.formula", id="wrong formula"),
        pytest.param("@spec: {factors: [{name: a, source: Age}]}", "source", id="unknown source"),
    ],
)
def test_wrong_policies_are_named(tmp_path: Path, text: str, says: str) -> None:
    head = "apiVersion: muster.dev/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: mine}\n"
    path = tmp_path / "mine.yaml"
    path.write_text(head + text[1:] if text.startswith("@") else text)
    with pytest.raises(PolicyError) as caught:
        load_policy(str(path))
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_policy_that_is_not_there_is_told_which_are() -> None:
    with pytest.raises(PolicyError, match=r"policy 'fife': there are balanced.*sjf; or give a file"):
        load_policy("fife")


# -- the Philly traces ---------------------------------------------------------------------------------------------------------

needs_philly = pytest.mark.skipif(not PHILLY.is_dir(), reason="the Philly traces are not in ../shared/data/philly")


OVERLOADED = ("trace1.csv", "16x8")
BUSY = ("trace2.csv", "48x8")


@needs_philly
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("trace", "policy", "jct_mean_h", "wait_mean_h", "jct_p99_h", "wait_wide_mean_h"),
    [
        (OVERLOADED, "fifo", 831.6, 762.1, 1270, 877.8),
        (OVERLOADED, "skip-ahead", 567.2, 497.6, 1356, 1052.7),
        (OVERLOADED, "easy", 614.6, 545.1, 1246, 818.9),
        (OVERLOADED, "sjf", 159.8, 90.2, 1454, 825.6),
        (BUSY, "fifo", 192.2, 164.5, 611, 199.8),
        (BUSY, "skip-ahead", 74.7, 46.9, 881, 337.2),
        (BUSY, "easy", 127.0, 99.2, 595, 179.2),
        (BUSY, "sjf", 41.3, 13.5, 874, 137.3),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_public_trace_is_within_5_percent_of_independent_figures(
    trace: tuple[str, str], policy: str, jct_mean_h: float, wait_mean_h: float, jct_p99_h: float, wait_wide_mean_h: float
) -> None:
    """Counts only, true lengths known: figures of a program that shares nothing with the engine."""
    name, cluster = trace
    found = figures(run(read_trace(PHILLY / name, "philly"), policy, cluster), 0)
    assert found.jct_mean_h == pytest.approx(jct_mean_h, rel=0.05)
    assert found.wait_mean_h == pytest.approx(wait_mean_h, rel=0.05)
    assert found.jct_p99_h == pytest.approx(jct_p99_h, rel=0.05)
    assert found.wait_wide_mean_h == pytest.approx(wait_wide_mean_h, rel=0.05)


@needs_philly
@pytest.mark.slow
@pytest.mark.soak
def test_balanced_has_the_mean_of_the_shortest_first_and_the_tail_of_easy() -> None:
    """Trace 2, against the independent figures above; the longest job under EASY takes 1,209 h there, 1,199 h by our own."""
    jobs = read_trace(PHILLY / "trace2.csv", "philly")
    found = figures(run(jobs, "balanced", "48x8"), 0)
    assert found.jct_mean_h <= 41.3
    assert found.jct_p99_h <= 595
    assert found.jct_max_h <= 1.1 * 1199
    assert found.wait_wide_mean_h <= 179.2 / 3
    assert found.preemptions_per_job <= 1.0


@needs_philly
@pytest.mark.slow
@pytest.mark.soak
def test_balanced_where_there_is_more_work_than_the_cluster_can_do() -> None:
    """Trace 1, against the same: the mean of the shortest first, a tail near that of EASY, half of its wait of wide jobs."""
    found = figures(run(read_trace(PHILLY / "trace1.csv", "philly"), "balanced", "16x8"), 0)
    assert found.jct_mean_h <= 159.8
    assert found.jct_p99_h <= 1.2 * 1246
    assert found.wait_wide_mean_h <= 818.9 / 2
