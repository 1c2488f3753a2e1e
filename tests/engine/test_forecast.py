"""When will it fit: against a walk through all the times, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine import forecast
from muster.engine.columns import Mask
from muster.engine.counting import groups_of, place_groups
from muster.engine.forecast import Forecast, Release, earliest_start, which_must_end
from muster.engine.shapes import Shape
from muster.engine.state import State
from tests.engine.building import node, pod, state_of

NOW = 100.0


def shape_of(state: State, cpu: str, **more: Any) -> Shape:
    return state.shapes.shape_of(pod("x", cpu=cpu, **more))


def full(*cpus: str) -> State:
    """Node n0, n1, ... each filled by one pod p0, p1, ... of the same size."""
    state = state_of(node(f"n{i}", cpu=cpu) for i, cpu in enumerate(cpus))
    for i, cpu in enumerate(cpus):
        state.see_pod(pod(f"p{i}", uid=f"p{i}", cpu=cpu, node=f"n{i}"))
    return state


@pytest.mark.parametrize(
    ("asks", "releases", "expected"),
    [
        pytest.param(["2"], [(200, "p0"), (300, "p1")], 300.0, id="the first end is of too small a pod"),
        pytest.param(["1"], [(200, "p0"), (300, "p1")], 200.0, id="the first end is enough"),
        pytest.param(["1", "2"], [(200, "p0"), (300, "p1")], 300.0, id="two shapes wait for both"),
        pytest.param(["1"] * 3, [(200, "p0"), (300, "p1")], 300.0, id="three alike wait for both"),
        pytest.param(["1"] * 4, [(200, "p0"), (300, "p1")], None, id="never enough"),
        pytest.param(["1"], [], None, id="nothing ends"),
        pytest.param(["1"], [(50, "p0")], NOW, id="should have ended: now"),
        pytest.param(["2"], [(200, "p0"), (200, "p1")], 200.0, id="two at the same time"),
        pytest.param(["1"], [(200, "nobody")], None, id="a pod that is not there"),
        pytest.param(["1"], [(300, "p0"), (200, "p0")], 200.0, id="of two for a pod the earlier counts"),
        pytest.param([], [], NOW, id="nothing is asked"),
    ],
)
def test_times(asks: list[str], releases: list[tuple[float, str]], expected: float | None) -> None:
    state = full("1", "2")
    members = [shape_of(state, cpu) for cpu in asks]
    assert earliest_start(state, members, [Release(t, uid) for t, uid in releases], NOW) == expected


def test_fits_now() -> None:
    state = state_of([node("a", cpu="2")])
    assert earliest_start(state, [shape_of(state, "2")], [], NOW) == NOW


def test_only_where_it_may_be() -> None:
    state = full("2", "2")
    releases = [Release(200, "p0"), Release(300, "p1")]
    mask: Mask = np.array([False, True])
    assert earliest_start(state, [shape_of(state, "1")], releases, NOW, lambda shape: mask) == 300


def test_a_resource_that_nobody_has() -> None:
    state = full("2")
    shape = shape_of(state, "1", resources={"example.com/new": 1})
    assert earliest_start(state, [shape], [Release(200, "p0")], NOW) is None


def test_the_state_is_left_alone() -> None:
    state = full("1", "2")
    before = state.nodes.free.copy()
    ahead = Forecast(state, [Release(200, "p0"), Release(300, "p1")], NOW)
    for _ in range(2):
        assert ahead.earliest_start([shape_of(state, "2")]) == 300
    assert np.array_equal(state.nodes.free, before)
    assert ahead.free_at(199)[0].tolist() == [0, 0]
    assert ahead.free_at(200)[0].tolist() == [1000, 0]


@pytest.mark.parametrize("wanted", range(1, 18))
def test_each_end_makes_room_for_one_more(wanted: int) -> None:
    state = full(*["1"] * 16)
    releases = [Release(200.0 + (i * 7) % 16, f"p{i}") for i in range(16)]
    expected = 199.0 + wanted if wanted <= 16 else None
    assert earliest_start(state, [shape_of(state, "1")] * wanted, releases, NOW) == expected


@pytest.mark.parametrize("scan_max", [256, 1])
@pytest.mark.parametrize("wanted", range(1, 9))
def test_two_shapes_wait_for_the_slower(wanted: int, scan_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the nodes are small, and the large pods that need the others wait longer."""
    monkeypatch.setattr(forecast, "SCAN_MAX", scan_max)
    state = full(*["1"] * 8, *["2"] * 8)
    releases = [Release(200.0 + i, f"p{i}") for i in range(16)]
    members = [shape_of(state, "1")] * 2 + [shape_of(state, "2")] * wanted
    assert earliest_start(state, members, releases, NOW) == 207.0 + wanted


@pytest.mark.parametrize("scan_max", [256, 1])
@pytest.mark.parametrize("wanted", range(1, 14))
def test_two_shapes_that_need_the_same_room(wanted: int, scan_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either alone would start much earlier than both together."""
    monkeypatch.setattr(forecast, "SCAN_MAX", scan_max)
    state = full(*["1"] * 16)
    releases = [Release(200.0 + i, f"p{i}") for i in range(16)]
    members = [shape_of(state, "1")] * 3 + [shape_of(state, "900m")] * wanted
    assert earliest_start(state, members, releases, NOW) == 202.0 + wanted


pods_placed = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(90, 110), st.booleans()), min_size=0, max_size=10
)


@pytest.mark.parametrize("scan_max", [256, 1])
@given(placed=pods_placed, asks=st.lists(st.integers(1, 4), min_size=1, max_size=5), nodes=st.sampled_from([1, 3]))
def test_as_a_walk_through_time(scan_max: int, placed: list[Any], asks: list[int], nodes: int) -> None:
    state = state_of(node(f"n{i}", cpu="6") for i in range(nodes))
    releases = []
    for number, (wanted, cpu, time, is_known) in enumerate(placed):
        on = wanted % nodes
        if state.nodes.free[0, on] >= cpu * 1000:
            state.see_pod(pod(f"p{number}", uid=f"p{number}", cpu=str(cpu), node=f"n{on}"))
            if is_known:
                releases.append(Release(float(time), f"p{number}"))
    members = [shape_of(state, str(cpu)) for cpu in asks]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "SCAN_MAX", scan_max)
        found = earliest_start(state, members, releases, NOW)
    expected = next((t for t in _times(releases) if _fits_at(state, members, releases, t)), None)
    if scan_max == 256 or len(set(asks)) == 1:
        assert found == expected
    elif found is not None:
        assert _fits_at(state, members, releases, found)
    if found is not None:
        assert found in _times(releases)


def _times(releases: list[Release]) -> list[float]:
    return sorted({NOW, *(max(r.time, NOW) for r in releases)})


def _fits_at(state: State, members: list[Shape], releases: list[Release], time: float) -> bool:
    free = state.nodes.free.copy()
    # A pod whose time has passed and that still runs holds its room until it is released, which counts as now.
    ended = [r for r in releases if max(r.time, NOW) <= time] if time > NOW or not _now_is_enough(state, members) else []
    for release in ended:
        record = state.pods[release.uid]
        free[:, state.nodes.slots[record.node]] += record.request
    return place_groups(free, groups_of(members), state.nodes.capacity) is not None


def _now_is_enough(state: State, members: list[Shape]) -> bool:
    return place_groups(state.nodes.free.copy(), groups_of(members), state.nodes.capacity) is not None


def test_which_must_end() -> None:
    state = state_of([node("a", cpu="4"), node("b", cpu="4")])
    for name, on, cpu, priority in (("x", "a", "4", 5), ("y", "b", "2", 1), ("z", "b", "2", 1)):
        state.see_pod(pod(name, cpu=cpu, node=on, priority=priority))
    found = which_must_end(state, shape_of(state, "4"))
    assert found is not None
    assert (found.node, {victim.name for victim in found.victims}) == ("b", {"y", "z"})
    assert which_must_end(state, shape_of(state, "5")) is None
    only_a = which_must_end(state, shape_of(state, "4"), np.array([True, False]))
    assert only_a is not None
    assert only_a.node == "a"
