"""Room for several pods together, or none at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine import making_room
from muster.engine.blocks import PodBlock
from muster.engine.making_room import UnitRoom, make_room
from muster.engine.pods import PodRecord
from muster.engine.state import State
from muster.engine.victims import Ask
from tests.engine.building import node, pod, state_of

HIGH = 100


def waiting(state: State, *cpus: str) -> list[PodRecord]:
    return [state.see_pod(pod(f"w{i}", uid=f"w{i}", cpu=cpu, priority=HIGH)) for i, cpu in enumerate(cpus)]


def room_for(state: State, members: list[PodRecord], **more: Any) -> UnitRoom | None:
    whole = more.pop("whole_units", False)
    ask = Ask(eligible=state.placed.priority < HIGH, cost=state.placed.priority, whole_units=whole)
    return make_room(state, members, ask, **more)


def names(room: UnitRoom | None) -> tuple[dict[str, str], list[str]] | None:
    return None if room is None else (dict(room.places), [victim.name for victim in room.victims])


@pytest.fixture
def state() -> State:
    """a: 4 cores, of which a low one has 2 and another 2; b: 4 cores, half free; c: full of what must stay."""
    return state_of(
        [node("a", cpu="4"), node("b", cpu="4"), node("c", cpu="4")],
        [
            pod("a1", cpu="2", node="a", priority=1),
            pod("a2", cpu="2", node="a", priority=2),
            pod("b1", cpu="2", node="b", priority=5),
            pod("c1", cpu="4", node="c", priority=HIGH),
        ],
    )


def test_what_fits_needs_no_victim(state: State) -> None:
    assert names(room_for(state, waiting(state, "2"))) == ({"w0": "b"}, [])


def test_cheapest_victims_for_the_rest(state: State) -> None:
    assert names(room_for(state, waiting(state, "2", "2"))) == ({"w0": "b", "w1": "a"}, ["a1"])
    assert names(room_for(state, waiting(state, "2", "2", "2"))) == ({"w0": "b", "w1": "a", "w2": "a"}, ["a2", "a1"])


def test_all_or_nothing(state: State) -> None:
    assert names(room_for(state, waiting(state, "2", "2", "2", "2"))) is not None
    assert room_for(state, waiting(state, "2", "2", "2", "2", "2")) is None


def test_large_ones_first(state: State) -> None:
    found = names(room_for(state, waiting(state, "2", "4")))
    assert found == ({"w1": "a", "w0": "b"}, ["a2", "a1"])


def test_whoever_is_not_needed_in_the_end_stays() -> None:
    """The first member asks the small one to go; the second needs the large one, whose room is enough for both."""
    state = state_of(
        [node("a", cpu="3")], [pod("small", cpu="1", node="a", priority=1), pod("large", cpu="2", node="a", priority=2)]
    )
    assert names(room_for(state, waiting(state, "1", "1"))) == ({"w0": "a", "w1": "a"}, ["large"])


def test_units_go_whole(state: State) -> None:
    for name in ("a1", "b1"):
        state.pods[f"uid-default-{name}"].unit = "PodGroup/default/g"
    found = room_for(state, waiting(state, "2", "2", "2"), whole_units=True)
    assert found is not None
    assert {victim.name for victim in found.victims} in ({"a2", "a1", "b1"}, {"a1", "b1"})
    assert len({v.name for v in found.victims} & {"a1", "b1"}) in (0, 2)


def test_rules_between_pods_are_asked(state: State) -> None:
    def feasible(block: PodBlock, slot: int, gone: Sequence[PodRecord]) -> bool:
        return slot == 0 and len({p.uid for p in gone}) == len(gone)

    assert names(room_for(state, waiting(state, "2", "2"), feasible=feasible)) == ({"w0": "a", "w1": "a"}, ["a2", "a1"])


def test_only_where_they_may_be(state: State) -> None:
    found = room_for(state, waiting(state, "2"), where=lambda block: np.array([True, False, False]))
    assert names(found) == ({"w0": "a"}, ["a1"])


def test_bounded(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making_room, "SELECTIONS_MAX", 1)
    assert room_for(state, waiting(state, "2", "2")) is not None
    assert room_for(state, waiting(state, "2", "2", "2")) is None


@given(
    placed=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 3)), max_size=9),
    wants=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    is_whole=st.booleans(),
)
def test_everybody_fits_and_nobody_goes_for_nothing(placed: list[Any], wants: list[int], is_whole: bool) -> None:
    state = state_of(node(f"n{i}", cpu="5") for i in range(3))
    for number, (on, cpu, priority) in enumerate(placed):
        if state.nodes.free[0, on] >= cpu * 1000:
            record = state.see_pod(pod(f"p{number}", cpu=str(cpu), node=f"n{on}", priority=priority * 40))
            record.unit = f"PodGroup/default/g{number % 4}" if number % 2 else f"Pod/default/p{number}"
    members = waiting(state, *map(str, wants))
    before = state.nodes.free.copy()
    room = room_for(state, members, whole_units=is_whole)
    assert np.array_equal(state.nodes.free, before)
    if room is None:
        if len(set(wants)) == 1 and not is_whole:
            eligible = [p for p in state.pods.values() if p.node and p.priority < HIGH]
            assert not _fits(state, members, eligible)
        return
    assert set(dict(room.places)) == {m.uid for m in members}
    victims = list(room.victims)
    assert len({v.uid for v in victims}) == len(victims)
    assert all(v.priority < HIGH for v in victims)
    free = _free(state, victims)
    for uid, on_node in room.places:
        free[:, state.nodes.slots[on_node]] -= state.pods[uid].request
    assert (free[0] >= 0).all()
    if not is_whole:
        for victim in victims:
            assert free[0, state.nodes.slots[victim.node]] < victim.request[0], f"{victim.name} could stay"


def _free(state: State, gone: Sequence[PodRecord]) -> Any:
    free = state.nodes.free.copy()
    for victim in gone:
        free[:, state.nodes.slots[victim.node]] += victim.request
    return free


def _fits(state: State, members: Sequence[PodRecord], gone: Sequence[PodRecord]) -> bool:
    free = _free(state, gone)
    return int((free[0] // members[0].request[0]).sum()) >= len(members)
