"""Trying things without touching the state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.shapes import Shape
from muster.engine.state import State
from tests.engine.building import node, pod, state_of


def shape_of(state: State, cpu: str, **more: Any) -> Shape:
    return state.shapes.shape_of(pod("x", cpu=cpu, **more))


@pytest.fixture
def state() -> State:
    return state_of(
        [node("a", cpu="4"), node("b", cpu="2")], [pod("p", uid="p", cpu="3", node="a"), pod("waits", uid="w", cpu="1")]
    )


def test_placing_and_releasing(state: State) -> None:
    trial = state.fork()
    two = shape_of(state, "2")
    assert trial.fits(two).tolist() == [False, True]
    assert trial.place(two, "b")
    assert not trial.place(two, "b")
    assert trial.fits(two).tolist() == [False, False]
    assert trial.release("p")
    assert trial.capacity_for(two) == 2
    assert trial.placed == ((two, "b"),)
    assert trial.released == {"p"}
    assert state.nodes.free[0].tolist() == [1000, 2000]


@pytest.mark.parametrize("uid", [pytest.param("w", id="a waiting pod"), pytest.param("nobody", id="no pod")])
def test_releasing_what_holds_nothing(state: State, uid: str) -> None:
    trial = state.fork()
    assert not trial.release(uid)
    assert np.array_equal(trial.free, state.nodes.free)


def test_releasing_twice(state: State) -> None:
    trial = state.fork()
    assert trial.release("p")
    assert not trial.release("p")
    assert trial.free[0].tolist() == [4000, 2000]


def test_a_trial_on_a_trial(state: State) -> None:
    outer = state.fork()
    outer.release("p")
    inner = outer.fork()
    assert inner.place_all([shape_of(state, "2")] * 3)
    assert not inner.place_all([shape_of(state, "1")])
    assert not inner.release("p")
    assert outer.capacity_for(shape_of(state, "2")) == 3
    assert outer.placed == ()


def test_a_resource_that_nobody_has(state: State) -> None:
    shape = shape_of(state, "1", resources={"example.com/new": 1})
    trial = state.fork()
    assert not trial.fits(shape).any()
    assert not trial.place(shape, "a")
    assert not trial.place_all([shape])


def test_a_node_that_is_not_there(state: State) -> None:
    with pytest.raises(KeyError):
        state.fork().place(shape_of(state, "1"), "nowhere")


def test_blocks_show_the_trial(state: State) -> None:
    trial = state.fork()
    trial.place(shape_of(state, "2"), "b")
    nodes = trial.nodes()
    assert nodes.free[0].tolist() == [1000, 0]
    assert np.array_equal(nodes.used + nodes.free, nodes.capacity)


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(0, 2)), max_size=12))
def test_as_the_state_would_be(steps: list[tuple[bool, int, int]]) -> None:
    """A trial says what the state says after the same was really done."""
    state = state_of(node(f"n{i}", cpu="6") for i in range(3))
    for i in range(6):
        state.see_pod(pod(f"p{i}", uid=f"p{i}", cpu="1", node=f"n{i % 3}"))
    trial, real = state.fork(), state.clone()
    for number, (is_release, cpu, on) in enumerate(steps):
        if is_release:
            assert trial.release(f"p{cpu}") == (real.remove_pod(f"p{cpu}") is not None)
        elif trial.place(shape_of(state, str(cpu)), f"n{on}"):
            real.see_pod(pod(f"new{number}", cpu=str(cpu), node=f"n{on}"))
        else:
            assert real.nodes.free[0, on] < cpu * 1000
    assert np.array_equal(trial.free, real.nodes.free)
