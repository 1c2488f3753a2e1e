"""What is written of places in queues: what matters, in front first, and never a storm."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.building import World, pod_of

from muster.controllers.actions import PatchStatus, Together
from muster.controllers.places import (
    JOBS,
    PASS_S,
    TOP,
    WRITES_MAX,
    Due,
    JobView,
    PlaceKeeper,
    Told,
    due,
    status_of,
    step_of,
    steps,
)
from muster.controllers.runtime import Caches
from muster.engine import events as ev
from muster.engine.work import Work
from muster.objects.status import Raw
from muster.policy.places import Line, Place, PlaceFactor
from muster.store.cache import Cache, Cached, ObjectKey
from muster.store.informer import Informer

NOW = 1_800_000_000.0


class Lines:
    """Queues with units in order: as much of an order as `due` asks for."""

    def __init__(self, queues: dict[str, list[str]]) -> None:
        self.queues = queues
        self.ranking_version = 1

    def lines(self) -> dict[str, Line]:
        return {name: Line(queue=name, waiting=len(units)) for name, units in self.queues.items()}

    def ranked(self, queue: str) -> list[str]:
        return self.queues[queue]

    def job_of(self, unit_id: str) -> str:
        return f"Job/default/{unit_id}"

    def places(self, queue: str, now: float, first: int = 100) -> list[Place]:
        return []

    def place_of(self, unit_id: str, now: float, *, with_start: bool = True) -> Place | None:
        return None

    def ahead_of(self, unit_id: str, now: float) -> Place | None:
        return None

    def unit_of(self, job: str) -> str | None:
        return None


@pytest.mark.parametrize(
    ("position", "step"),
    [
        pytest.param(1, 1, id="next"),
        pytest.param(10, 10, id="last of the top"),
        pytest.param(11, 11, id="behind it"),
        pytest.param(20, 11, id="twice as far"),
        pytest.param(21, 12, id="more than twice"),
        pytest.param(50_000, 23, id="far away"),
    ],
)
def test_step(position: int, step: int) -> None:
    assert step_of(position) == step


@given(st.integers(1, 10_000_000))
def test_a_step_never_goes_back_and_there_are_few(position: int) -> None:
    assert step_of(position) <= step_of(position + 1) <= step_of(position) + 1
    assert step_of(position) <= TOP + math.log2(position) + 1


@given(st.integers(0, 3_000))
def test_steps_of_a_whole_line(count: int) -> None:
    assert steps(count) == [step_of(position) for position in range(1, count + 1)]


def test_only_what_changed_is_due_and_the_front_comes_first() -> None:
    found, kept = due(Lines({"a": ["x", "y"], "b": ["z"]}), {"x": Told("a", 1), "gone": Told("a", 7)})
    assert found == [Due(1, "z", Told("b", 1)), Due(2, "y", Told("a", 2))]
    assert kept == {"x": Told("a", 1)}


def test_a_long_line_that_moves_up_by_one_is_a_handful_of_writes() -> None:
    units = [f"u{n}" for n in range(5_000)]
    told = {unit: Told("q", step_of(position)) for position, unit in enumerate(units, 1)}
    found, _ = due(Lines({"q": units[1:]}), told)
    assert len(found) == TOP + 8  # the top, and one at each doubling behind it: 20, 40, ... 2560


def test_another_queue_is_another_place() -> None:
    found, _ = due(Lines({"b": ["x"]}), {"x": Told("a", 1)})
    assert [one.unit for one in found] == ["x"]


def test_status() -> None:
    place = Place(
        unit="u",
        queue="q",
        position=3,
        of=9,
        score=math.nan,
        factors=(PlaceFactor("age", 10.0, 2.0, 20.0), PlaceFactor("odd", math.inf, 1.0, math.nan)),
        predicted_s=61.26,
        predicted_high_s=120.0,
        predicted_use={"cpu": 1499.7, "memory": 2.0**30, "odd": math.nan},
        affinity={"gpu": "h100"},
        affinity_grounds="ran 30% shorter on gpu=h100 than elsewhere (9 runs, 8 elsewhere)",
        grounds="4 runs",
        earliest_start=NOW + 60,
        latest_start=NOW + 120,
        confidence=0.9,
    )
    assert status_of(place, NOW) == {
        "place": {
            "name": "q",
            "position": 3,
            "score": 0.0,
            "factors": [
                {"name": "age", "value": 10.0, "weight": 2.0, "contribution": 20.0},
                {"name": "odd", "value": 0.0, "weight": 1.0, "contribution": 0.0},
            ],
            "since": "2027-01-15T08:00:00Z",
        },
        "startEstimate": {
            "earliest": "2027-01-15T08:01:00Z",
            "latest": "2027-01-15T08:02:00Z",
            "confidence": 0.9,
            "updated": "2027-01-15T08:00:00Z",
        },
        "prediction": {
            "runSeconds": 61.3,
            "runSecondsHigh": 120.0,
            "resources": {"cpu": "1500m", "memory": "1Gi"},
            "affinity": {"gpu": "h100"},
            "grounds": "4 runs; ran 30% shorter on gpu=h100 than elsewhere (9 runs, 8 elsewhere)",
        },
    }


def test_nothing_is_said_of_what_is_not_known() -> None:
    status = status_of(Place(unit="u", queue="q", position=1, of=1, score=1.0), NOW)
    assert status["startEstimate"] is None
    assert status["prediction"] is None


# -- the controller -----------------------------------------------------------------------------------------------------------


class Watched:
    """Jobs as the controller's cache has them, and what it writes: applied at once, and counted."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.keeper = PlaceKeeper(lambda: world.engine)
        self.cache = Cache()
        self._caches = Caches({JOBS: cast(Informer, SimpleNamespace(cache=self.cache))})
        self.version = 0
        self.now = NOW

    def put(self, name: str, status: Raw) -> None:
        self.version += 1
        raw = {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "status": status}
        self.cache.put(Cached("Job", raw, str(self.version), "bytes", [JobView]))

    def passed(self) -> int:
        """One pass; how many were written."""
        plan = self.keeper.reconcile(ObjectKey("", "places"), self._caches, self.now)
        self.now += PASS_S
        written = [one for action in plan.actions if isinstance(action, Together) for one in action.actions]
        for one in written:
            assert isinstance(one, PatchStatus)
            self.put(one.target.name, {"phase": "Queued", **one.status})
        return len(written)

    def place(self, name: str) -> int:
        found = self.cache.get(ObjectKey("default", name))
        assert found is not None
        place = found.view(JobView).status.place
        return place.position if place is not None else 0


@pytest.mark.slow
def test_thousands_of_waiting_jobs_are_no_storm_of_writes() -> None:
    count = 5_000
    world = World(nodes=1, gpus=8)
    watched = Watched(world)
    names = [f"j{number:04d}" for number in range(count + 1)]
    for number, name in enumerate(names):
        watched.put(name, {"phase": "Queued"})
        world.works[name] = (Work(job=f"Job/default/{name}", queue="q", submitted=1.0 + number), 8, 1)
    world.step(*(ev.PodSeen(pod_of(name, *world.works[name][:2])) for name in names))
    writes = [watched.passed() for _ in range(count // WRITES_MAX + 2)]
    assert max(writes) == WRITES_MAX, "however many are new"
    assert sum(writes) == count, "each is told once; the one that runs has no place"
    assert [watched.place(name) for name in (names[1], names[2], names[count])] == [1, 2, count]
    assert watched.passed() == 0, "nothing has changed"
    world.end(names[0])
    world.step()
    assert watched.passed() == TOP + 8, "one went: the front moves up, and a few far behind pass a mark"
    assert watched.passed() == 0
    assert [watched.place(name) for name in (names[2], names[3], names[500])] == [1, 2, 500]
