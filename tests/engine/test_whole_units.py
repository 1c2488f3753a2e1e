"""Which units are evicted whole, whether they may be, and what that costs."""

from __future__ import annotations

import msgspec
import pytest

from muster.engine.facts import PodFacts
from muster.engine.reprieve import COST_SHIFT, NOT_STARTED, started
from muster.engine.state import State
from muster.engine.whole_units import is_shared, whole_units
from tests.engine.building import node, pod, state_of

GANG = "PodGroup/default/g"


@pytest.fixture
def state() -> State:
    """Three members of a gang with priorities 1, 5, 5; a pod by itself; a gang of which only one pod is placed."""
    state = state_of([node("a"), node("b")])
    for name, on, priority, unit in (
        ("g1", "a", 1, GANG),
        ("g2", "b", 5, GANG),
        ("g3", "b", 5, GANG),
        ("single", "a", 0, "Pod/default/single"),
        ("last", "a", 0, "PodGroup/default/last"),
        ("waits", "", 0, "PodGroup/default/last"),
    ):
        state.see_pod(_started(pod(name, cpu="1", node=on, priority=priority), name)).unit = unit
    return state


def _started(facts: PodFacts, name: str) -> PodFacts:
    times = {"g1": "2026-01-01T00:00:00Z", "g2": "2026-01-03T00:00:00Z", "g3": "2026-01-02T00:00:00Z"}
    return msgspec.structs.replace(facts, status=msgspec.structs.replace(facts.status, start_time=times.get(name, "")))


def test_what_it_costs(state: State) -> None:
    found = whole_units(state, state.placed.priority < 9, state.placed.priority)
    assert list(found) == [GANG]
    unit = found[GANG]
    assert [member.name for member in unit.members] == ["g1", "g2", "g3"]
    assert (unit.cost, unit.weight, unit.can_go) == (5, 11 + 3 * COST_SHIFT, True)
    assert unit.start == 20260102000000, "the earliest of the most important members, not of all"


def test_one_that_must_stay_keeps_all(state: State) -> None:
    assert not whole_units(state, state.placed.priority < 5, state.placed.priority)[GANG].can_go


def test_who_is_going_anyway_is_not_asked(state: State) -> None:
    for name in ("g2", "g3"):
        state.mark_victim(state.pods[f"uid-default-{name}"])
    assert whole_units(state, state.placed.priority < 5, state.placed.priority) == {}


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        pytest.param("PodGroup/default/g", True, id="a gang"),
        pytest.param("Pod/default/p", False, id="a pod by itself"),
        pytest.param("", False, id="not known"),
    ],
)
def test_is_shared(unit: str, expected: bool) -> None:
    assert is_shared(unit) is expected


def test_a_start_that_nobody_can_read() -> None:
    state = state_of([node("a")])
    facts = pod("p", node="a")
    record = state.see_pod(msgspec.structs.replace(facts, status=msgspec.structs.replace(facts.status, start_time="soon")))
    assert started(record) == NOT_STARTED
