"""The question when work will start, as the server answers it; `tests/cli/test_queue.py` asks a real one."""

from __future__ import annotations

import pytest

from muster.engine import events as ev
from muster.engine.facts import RunFacts
from muster.engine.hypothetical import works_of
from muster.engine.work import Work
from muster.objects.status import BadRequest
from muster.server.forecasting import SIZES_MAX, _sizes, about_manifest, about_unit, scaled
from tests.policy.building import GPU, World, user_facts

POD = {
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {GPU: 8, "cpu": "4"}}}]},
}


@pytest.mark.parametrize(
    ("request_", "gpus", "other"),
    [
        pytest.param({GPU: 8, "cpu": 4000, "pods": 2}, 4, {GPU: 4, "cpu": 2000, "pods": 2}, id="half"),
        pytest.param({GPU: 8, "cpu": 3}, 1, {GPU: 1, "cpu": 1}, id="never nothing"),
        pytest.param({"cpu": 3}, 1, None, id="no GPUs"),
    ],
)
def test_scaled(request_: dict[str, int], gpus: int, other: dict[str, int] | None) -> None:
    assert scaled(request_, gpus) == other


@pytest.mark.parametrize("given", [["0"], ["x"], [True], ["1000000"], [-1], [1] * (SIZES_MAX + 1), ["\u0664"]])
def test_sizes_that_are_none(given: list[object]) -> None:
    with pytest.raises(BadRequest, match="gpus"):
        _sizes(given)


@pytest.fixture
def world() -> World:
    world = World(gpus=8)
    world.step(ev.RunsSeen([RunFacts(user="ann", type="x", seconds=1_000.0 + n) for n in range(20)]))
    world.submit("runs", 6, user="ann", type="x")
    world.submit("waits", 8, at=10.0, user="ann", type="x")
    return world


def test_a_unit_and_another_size(world: World) -> None:
    [unit] = world.order.ranked("q")
    answer = about_unit(world.engine, world.order, unit, [2])
    assert (answer["state"], answer["position"], answer["of"], answer["queue"]) == ("waiting", 1, 1, "q")
    assert [item["gpus"] for item in answer["items"]] == [8, 2]
    as_it_is, smaller = (item["start"]["likely"] for item in answer["items"])
    assert smaller == 10.0 < as_it_is
    assert answer["grounds"] == "20 runs of user ann, type x"


def test_what_has_started(world: World) -> None:
    unit = next(one for one in world.order.book.table.row_of if one.endswith("runs"))
    assert about_unit(world.engine, world.order, unit, [])["state"] == "running"


def test_a_manifest_changes_nothing(world: World) -> None:
    before = decided_by(world)
    # Short enough to pass the one that waits, where it fits beside what runs.
    work = Work(queue="q", user="ann", type="x", submitted=10.0, estimate_s=100.0)
    answer = about_manifest(world.engine, world.order, works_of(POD)[0], work, [1])
    assert [item["gpus"] for item in answer["items"]] == [8, 1]
    assert answer["items"][0]["start"]["likely"] > answer["items"][1]["start"]["likely"]
    assert decided_by(world) == before


def test_what_a_limit_never_allows_is_not_forecast(world: World) -> None:
    """As work that waits: the limit is told instead. A smaller size may do."""
    limits = {"concurrent": {"nvidia.com/gpu": "7"}}
    world.step(ev.UserSeen(user_facts("ann", group="lab", limits=limits)))
    work = Work(queue="q", user="ann", type="x", submitted=10.0)
    answer = about_manifest(world.engine, world.order, works_of(POD)[0], work, [1])
    assert [item["start"] is None for item in answer["items"]] == [True, False]
    assert "spec.limits.concurrent[nvidia.com/gpu] of User ann: limit 7" in answer["refused"]


def decided_by(world: World) -> dict[str, object]:
    """All that the order keeps but what forecasts themselves learn from being asked."""
    kept = {name: value for name, value in world.order.checkpoint().items() if name != "forecasts"}
    return {**kept, "rows": dict(world.order.book.table.row_of), "line": list(world.order.ranked("q"))}
