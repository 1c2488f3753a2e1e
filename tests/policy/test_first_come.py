"""First come, first served on paper: beside a plain simulation of it, wrong run times, checkpoints."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.work import Work
from muster.policy import first_come as module
from muster.policy.first_come import FirstCome
from muster.policy.table import Lateness, Row, Table

CLUSTER = 8
NOBODY = np.zeros(0)


class World:
    """A table with a FirstCome beside it, as the order keeps them."""

    def __init__(self) -> None:
        self.table = Table(1)
        self.table.use_total(np.array([CLUSTER]))
        self.paper = FirstCome(self.table)

    def join(
        self, name: str, now: float, *, run_s: float | None, size: int = 1, job: str = "", submitted: float = math.nan
    ) -> None:
        came = now if math.isnan(submitted) else submitted
        row = self.table.put(name, Work(submitted=came, estimate_s=run_s, job=job), Row(request=np.array([size])))
        self.table.is_waiting[row] = True
        self.paper.joined(row, now)

    def start(self, name: str, now: float) -> None:
        row = self.table.row_of[name]
        self.table.is_waiting[row], self.table.is_running[row], self.table.started[row] = False, True, now

    def end(self, name: str, run_s: float, now: float) -> None:
        self.paper.ending(name)
        self.stop(name, run_s, now)

    def stop(self, name: str, run_s: float, now: float) -> None:
        self.paper.stopped(name, run_s, now)
        self.table.drop(name)

    def bound(self, now: float, percent: float = 100.0) -> float:
        return self.paper.lateness(percent, NOBODY, now).bound_s


def fcfs(jobs: Sequence[tuple[float, float, int]]) -> list[float]:
    """How long each of (arrival, run time, size) takes on the cluster if each waits for its turn; jobs by arrival."""
    running: list[tuple[float, int]] = []
    free, clock, found = CLUSTER, 0.0, []
    for came, run_s, size in jobs:
        clock = max(clock, came)
        while running and (running[0][0] <= clock or free < size):
            end, back = heapq.heappop(running)
            free, clock = free + back, max(clock, end)
        free -= size
        heapq.heappush(running, (clock + run_s, size))
        found.append(clock + run_s - came)
    return found


JOBS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40), st.integers(1, CLUSTER)), min_size=1, max_size=60)


@given(JOBS)
def test_the_paper_is_a_plain_simulation_whatever_really_happens(gaps: list[tuple[int, int, int]]) -> None:
    """Whoever really starts and ends when: with true estimates the paper says what first come, first served would do."""
    world, jobs, clock = World(), [], 0.0
    for gap, run_s, size in gaps:
        clock += gap
        jobs.append((clock, float(run_s), size))
        world.join(f"j{len(jobs)}", clock, run_s=float(run_s), size=size)
        if len(jobs) % 3 == 0:  # something ends long before its turn
            name = f"j{len(jobs) - 1}"
            world.end(name, jobs[-2][1], clock)
    expected = sorted(fcfs(jobs))
    late = clock + sum(run_s for _, run_s, _ in jobs) + 1
    assert world.bound(late) == pytest.approx(expected[-1])
    found = [world.paper._largest(above, late) for above in range(len(jobs))]
    assert sorted(found) == pytest.approx(expected)


@given(JOBS, st.integers(0, 59))
def test_a_checkpoint_carries_all_of_it(gaps: list[tuple[int, int, int]], at: int) -> None:
    """With and without a change of hands in the middle, all that comes after is the same; through JSON, as a log has it."""
    one, other = World(), World()
    clock = 0.0
    for number, (gap, run_s, size) in enumerate(gaps):
        clock += gap
        for world in (one, other):
            world.join(f"j{number}", clock, run_s=run_s if number % 4 else None, size=size)
            if number % 3 == 2:
                world.start(f"j{number - 1}", clock)
                world.end(f"j{number - 1}", float(run_s), clock)
        if number == at:
            kept = json.loads(json.dumps(other.paper.kept()))
            other.paper = FirstCome(other.table)
            other.paper.restore(kept)
        assert one.paper.kept() == other.paper.kept()
        for percent in (100.0, 90.0, 50.0):
            assert one.bound(clock, percent) == pytest.approx(other.bound(clock, percent), nan_ok=True)


def test_who_waits_on_paper_counts_with_what_it_takes_at_least() -> None:
    world = World()
    world.join("a", 0.0, run_s=100.0, size=CLUSTER)
    world.join("b", 10.0, run_s=50.0, size=CLUSTER)
    assert world.bound(10.0) == 100.0
    assert world.bound(70.0) == 60.0 + 50.0  # b waits since 10
    assert world.bound(500.0) == 90.0 + 50.0  # it began at 100


def test_what_has_really_ended_counts_with_its_true_time() -> None:
    world = World()
    world.join("a", 0.0, run_s=1_000.0, size=CLUSTER)
    world.join("b", 0.0, run_s=50.0, size=CLUSTER)
    world.end("a", 20.0, 20.0)
    assert world.bound(20.0) == 20.0 + 50.0
    assert world.bound(400.0) == 20.0 + 50.0


def test_of_what_nobody_knows_only_the_truth_counts() -> None:
    world = World()
    world.join("a", 0.0, run_s=None, size=CLUSTER)
    assert math.isnan(world.bound(1e6))
    world.end("a", 30.0, 1e6)
    assert world.bound(1e6) == 30.0


def test_being_stopped_makes_nobody_younger() -> None:
    world = World()
    world.join("a1", 0.0, run_s=100.0, size=CLUSTER, job="Job/ns/a")
    world.start("a1", 0.0)
    world.stop("a1", 40.0, 40.0)
    world.join("a2", 40.0, run_s=100.0, size=CLUSTER, job="Job/ns/a", submitted=0.0)
    assert len(world.paper) == 1
    assert world.bound(40.0) == 100.0


def test_what_comes_back_had_not_ended() -> None:
    world = World()
    world.join("a1", 0.0, run_s=100.0, job="Job/ns/a")
    world.end("a1", 10.0, 10.0)
    assert world.bound(10.0) == 10.0
    world.join("a2", 10.0, run_s=100.0, job="Job/ns/a", submitted=0.0)
    assert (len(world.paper), world.bound(10.0)) == (1, 100.0)


def test_two_units_of_a_job_are_two() -> None:
    world = World()
    world.join("x", 0.0, run_s=10.0, size=CLUSTER, job="Job/ns/a")
    world.join("y", 0.0, run_s=10.0, size=CLUSTER, job="Job/ns/a")
    assert (len(world.paper), world.bound(0.0)) == (2, 10.0)
    assert world.bound(15.0) == 20.0


def test_what_never_ran_is_as_if_it_had_not_come() -> None:
    world = World()
    world.join("a", 0.0, run_s=1_000.0, size=CLUSTER)
    world.join("b", 0.0, run_s=50.0, size=CLUSTER)
    world.paper.gone("a", 10.0)
    assert (len(world.paper), world.bound(500.0)) == (1, 60.0)


def test_what_is_found_running_holds_its_place() -> None:
    world = World()
    row = world.table.put("a", Work(submitted=0.0, estimate_s=100.0), Row(request=np.array([CLUSTER])))
    world.table.is_running[row], world.table.started[row] = True, 60.0
    world.paper.found(row, 80.0)
    world.join("b", 80.0, run_s=10.0, size=CLUSTER)
    assert world.bound(500.0) == 160.0
    assert world.bound(500.0, 50.0) == 90.0  # b began at 160


def test_as_many_as_would_be_late_may_be() -> None:
    """Of 100 that are there, one may take longer than the bound of 99 %: the one that takes longest of all."""
    world = World()
    for number in range(100):
        world.join(f"j{number}", 0.0, run_s=1.0 + number, size=0)
    takes = np.array([300.0, 250.0, 200.0])
    bounds = world.paper.lateness(99.0, takes, 0.0)
    assert bounds == Lateness(99.0, 250.0)
    assert bounds.of(takes) == pytest.approx([1.0, 250 / 99, 200 / 99])
    world.end("j99", 400.0, 400.0)  # it took that place
    assert world.paper.lateness(99.0, takes, 400.0).spared_s == 300.0
    assert world.paper.lateness(100.0, takes, 400.0).spared_s == math.inf


def test_what_is_over_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)
    world = World()
    for number in range(10):
        world.join(f"j{number}", number, run_s=1.0)
        world.end(f"j{number}", 1.0, number + 1)
    assert len(world.paper) == 3
    assert world.paper.kept()["over"] == [0, 1, 2]


def test_there_is_a_bound_on_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOBS_MAX", 5)
    world = World()
    for number in range(10):
        world.join(f"j{number}", 0.0, run_s=100.0 - number, size=CLUSTER)
    assert len(world.paper) == 5
    assert [values[0] for values in world.paper.kept()["jobs"]] == [f"j{number} 0.0" for number in range(5, 10)]


@pytest.mark.parametrize("size", [0, 3 * CLUSTER], ids=["nothing", "more than there is"])
def test_odd_sizes_stop_nobody(size: int) -> None:
    world = World()
    world.join("odd", 0.0, run_s=10.0, size=size)
    world.join("b", 0.0, run_s=10.0)
    assert world.bound(100.0) <= 20.0
