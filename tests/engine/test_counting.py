"""Counting copies: tables, and a pod-by-pod count as the measure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.blocks import NodeBlock
from muster.engine.counting import Group, capacity_for, copies, copies_in_all, groups_of, largest_fitting, place_groups
from muster.engine.shapes import Shape
from muster.engine.state import State
from tests.engine.building import node, pod, state_of


def shape_of(state: State, **asks: Any) -> Shape:
    return state.shapes.shape_of(pod("x", **asks))


@pytest.mark.parametrize(
    ("nodes", "asks", "expected"),
    [
        pytest.param([node("a", cpu="8"), node("b", cpu="3")], {"cpu": "2"}, 5, id="whole copies only"),
        pytest.param([node("a", cpu="8", memory="4Gi")], {"cpu": "1", "memory": "1Gi"}, 4, id="the scarcest resource counts"),
        pytest.param([node("a", cpu="8", pods=2)], {"cpu": "1"}, 2, id="places for pods are a resource"),
        pytest.param([node("a", cpu="1")], {"cpu": "2"}, 0, id="none"),
        pytest.param([], {"cpu": "2"}, 0, id="no nodes"),
        pytest.param([node("a")], {"resources": {"example.com/new": 1}}, 0, id="nobody has such a resource"),
    ],
)
def test_capacity(nodes: list[Any], asks: dict[str, Any], expected: int) -> None:
    state = state_of(nodes)
    assert capacity_for(shape_of(state, **asks), NodeBlock(state.nodes)) == expected


def test_capacity_of_some_nodes() -> None:
    state = state_of([node("a", cpu="8"), node("b", cpu="4")])
    shape = shape_of(state, cpu="2")
    assert capacity_for(shape, NodeBlock(state.nodes), np.array([False, True])) == 2
    assert capacity_for(shape, NodeBlock(state.nodes, 0)) == 4
    assert capacity_for(shape, NodeBlock(state.nodes, np.array([0, 1]))) == 6


def test_an_overdrawn_node_counts_for_nothing() -> None:
    state = state_of([node("a", cpu="1"), node("b", cpu="2")], [pod("big", cpu="4", node="a")])
    assert copies(shape_of(state, cpu="1"), state.nodes.free).tolist() == [0, 2]


@given(
    free=st.lists(st.tuples(st.integers(-3, 9), st.integers(-3, 9)), min_size=1, max_size=3),
    asks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    mask=st.none() | st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_in_all_is_the_sum(free: list[tuple[int, int]], asks: tuple[int, int], mask: list[bool] | None) -> None:
    """One node is counted in a way of its own."""
    state = state_of(node(f"n{i}") for i in range(len(free)))
    shape = shape_of(state, cpu=str(asks[0]), memory=str(asks[1]))
    column = state.nodes.free.copy()
    for slot, (cpu, memory) in enumerate(free):
        column[:2, slot] = cpu * 1000, memory
    allowed = None if mask is None else np.array(mask[: len(free)])
    assert copies_in_all(shape, column, allowed) == copies(shape, column, allowed).sum()


@pytest.mark.parametrize(
    ("asks", "mask", "expected"),
    [
        pytest.param({"cpu": "9", "memory": "2Gi"}, None, {"cpu": 4000, "memory": 0, "pods": 0}, id="cpu alone is too much"),
        pytest.param(
            {"cpu": "3", "memory": "1Gi"}, None, {"cpu": 8000, "memory": 4 * 2**30, "pods": 110}, id="what fits can be exceeded"
        ),
        pytest.param(
            {"cpu": "9", "memory": "2Gi"}, [True, False], {"cpu": 0, "memory": 0, "pods": 0}, id="two at once are too much"
        ),
    ],
)
def test_largest(asks: dict[str, Any], mask: list[bool] | None, expected: dict[str, int]) -> None:
    state = state_of([node("a", cpu="8", memory="1Gi"), node("b", cpu="4", memory="4Gi")])
    found = largest_fitting(shape_of(state, **asks), NodeBlock(state.nodes), None if mask is None else np.array(mask))
    assert found == expected


def test_largest_of_a_resource_that_no_node_has() -> None:
    state = state_of([node("a")])
    found = largest_fitting(shape_of(state, cpu="1", resources={"example.com/new": 1}), NodeBlock(state.nodes))
    assert found["example.com/new"] == 0


@given(
    cpus=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    memories=st.lists(st.integers(0, 9), min_size=5, max_size=5),
    asks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    mask=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_what_is_said_to_be_largest_fits_and_more_does_not(
    cpus: list[int], memories: list[int], asks: tuple[int, int], mask: list[bool]
) -> None:
    nodes = [node(f"n{i}", cpu=str(c), memory=str(m)) for i, (c, m) in enumerate(zip(cpus, memories, strict=False))]
    state = state_of(nodes)
    allowed = np.array(mask[: len(nodes)])
    found = largest_fitting(shape_of(state, cpu=str(asks[0]), memory=str(asks[1])), NodeBlock(state.nodes), allowed)
    for extra, is_possible in ((0, True), (1, False)):
        milli = found["cpu"] + extra
        if milli:
            larger = shape_of(state, cpu=f"{milli}m", memory=str(asks[1]))
            assert (capacity_for(larger, NodeBlock(state.nodes), allowed) > 0) is is_possible


@given(
    cpus=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    wants=st.lists(st.integers(1, 4), min_size=1, max_size=6),
)
def test_placing_groups(cpus: list[int], wants: list[int]) -> None:
    """Never more than there is; all or nothing; and with one shape, whenever it is possible at all."""
    state = state_of(node(f"n{i}", cpu=str(c)) for i, c in enumerate(cpus))
    shapes = [shape_of(state, cpu=str(cpu)) for cpu in wants]
    free = state.nodes.free.copy()
    taken = place_groups(free, groups_of(shapes), state.nodes.capacity)
    assert (free >= 0).all()
    if taken is None:
        assert np.array_equal(free, state.nodes.free)
        if len(set(wants)) == 1:
            assert sum(c // wants[0] for c in cpus) < len(wants)
    else:
        assert sum(int(took.counts.sum()) for took in taken) == len(wants)
        used = sum(int((took.counts * took.group.shape.request[0]).sum()) for took in taken)
        assert used == int((state.nodes.free[0] - free[0]).sum()) == sum(wants) * 1000


def test_a_group_of_none() -> None:
    state = state_of([node("a")])
    free = state.nodes.free.copy()
    taken = place_groups(free, [Group(shape_of(state, cpu="1"), 0)], state.nodes.capacity)
    assert taken is not None
    assert np.array_equal(free, state.nodes.free)
