"""Figures of a run, worked out by hand."""

from __future__ import annotations

import math

import pytest

from muster.sim.trace_figures import by, difference, fairness, figures, jain, nearest_rank, owner_of, size_of
from muster.sim.trace_run import JobOutcome, Outcome

H = 3600.0


def job(name: str, submitted: float, ended: float, held: float, gpus: float = 1, **more: object) -> JobOutcome:
    return JobOutcome(
        id=name,
        submitted=submitted * H,
        started=(ended - held) * H,
        ended=ended * H,
        held_s=held * H,
        gpus=gpus,
        **more,  # type: ignore[arg-type]
    )


def outcome(*jobs: JobOutcome, gpus: float = 32) -> Outcome:
    return Outcome(jobs, gpus, (), 0, {})


def test_the_line() -> None:
    found = figures(
        outcome(
            job("a", 0, 10, 10, gpus=16),
            job("b", 0, 30, 20, gpus=16, preemptions=1),
            job("c", 10, 12, 1),
            job("never", 0, math.nan, 0),
        ),
        wall_s=1.23456,
    )
    assert (found.jobs, found.unstarted) == (4, 1)
    assert found.jct_mean_h == pytest.approx((10 + 30 + 2) / 3, abs=1e-4)
    assert (found.jct_p99_h, found.jct_max_h) == (30, 30)
    assert found.wait_mean_h == pytest.approx((0 + 10 + 1) / 3, abs=1e-4)
    assert found.wait_wide_mean_h == 5
    assert found.preemptions_per_job == 0.25
    assert found.gpu_use == pytest.approx((160 + 320 + 1) / (32 * 30), abs=1e-4)
    assert found.makespan_d == pytest.approx(30 / 24, abs=1e-4)
    assert found.wall_s == 1.235


def test_nothing_gives_zeros() -> None:
    found = figures(outcome(gpus=0), 0)
    assert (found.jobs, found.jct_mean_h, found.jct_p99_h, found.gpu_use) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [(1, 99, 1), (99, 99, 99), (100, 99, 99), (101, 99, 100), (200, 99, 198), (200, 100, 200), (3, 50, 2), (5755, 99, 5698)],
)
def test_nearest_rank(count: int, percent: float, expected: int) -> None:
    assert nearest_rank([float(n) for n in range(1, count + 1)], percent) == expected


@pytest.mark.parametrize(
    ("gpus", "name"),
    [(0, "none"), (0.5, "under 1"), (1, "1"), (3, "4"), (16, "16"), (17, "32"), (256, "256"), (300, "over 256")],
)
def test_sizes(gpus: float, name: str) -> None:
    assert size_of(job("a", 0, 1, 1, gpus=gpus)) == name


def test_groups_by_size_grow() -> None:
    jobs = [job("a", 0, 4, 2, gpus=16), job("b", 0, 2, 2, gpus=2), job("c", 0, 6, 2, gpus=2)]
    assert [(group.name, group.jobs, group.jct_mean_h, group.wait_mean_h) for group in by(jobs, size_of)] == [
        ("2", 2, 4, 2),
        ("16", 1, 4, 2),
    ]


@pytest.mark.parametrize(
    ("job_type", "user", "group", "owner"), [("", "", "", "all"), ("t", "", "", "t"), ("t", "u", "", "u"), ("t", "u", "g", "g")]
)
def test_owners(job_type: str, user: str, group: str, owner: str) -> None:
    assert owner_of(job("a", 0, 1, 1, type=job_type, user=user, group=group)) == owner


def test_fairness_is_one_when_all_are_slowed_alike() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)
    assert fairness(outcome(job("a", 0, 4, 2), job("b", 0, 20, 10))) == pytest.approx(1)
    assert fairness(outcome(job("a", 0, 10, 10), job("b", 0, 10, 1))) < 0.7


def test_who_gains_and_who_loses() -> None:
    before = outcome(job("a", 0, 10, 1), job("b", 0, 10, 1), job("c", 0, 10, 1), job("d", 0, math.nan, 0))
    after = outcome(job("a", 0, 4, 1), job("b", 0, 12, 1), job("c", 0, 10, 1), job("d", 0, 5, 1))
    found = difference(before, after)
    assert (found.gained, found.lost, found.same) == (1, 1, 1)
    assert (found.gained_mean_h, found.lost_mean_h) == (6, 2)
    assert found.changes == (("b", -2), ("c", 0), ("a", 6))
