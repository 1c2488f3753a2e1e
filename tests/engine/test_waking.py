"""Who wakes when room appears: as few as there is room for, and nobody sleeps on who would fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.blocks import PodBlock
from muster.engine.decisions import AnyDecision, Place
from muster.engine.facts import PodFacts
from muster.engine.machine import Engine
from muster.engine.plugin import Plugin, Scope
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.engine.units import Unit
from muster.objects.labels import KoordinatorPod
from tests.engine.building import PROFILE, node, pod


class Counting(Plugin):
    """Notes every attempt, once per pod that is asked about."""

    name = "Counting"
    scope = Scope.NODE

    def __init__(self, args: Any = None) -> None:
        super().__init__(args)
        self.tried: list[str] = []

    def prefilter(self, unit: Unit, pods: PodBlock, now: float) -> None:
        if unit.id not in self.tried[-1:]:
            self.tried.append(unit.id)


def cluster(nodes: int, cpu: str = "8") -> tuple[Engine, Counting]:
    counting = Counting()
    made = Engine([Profile(PROFILE, [counting, Fit()])])
    made.step([ev.NodeSeen(node(f"n{i}", cpu=cpu)) for i in range(nodes)], 0.0)
    return made, counting


def gang(name: str, count: int, cpu: str = "8", minimum: int | None = None) -> list[PodFacts]:
    least = str(minimum if minimum is not None else count)
    annotations = {KoordinatorPod.GANG_NAME: name, KoordinatorPod.GANG_MIN_AVAILABLE: least}
    return [
        pod(f"{name}-{i}", cpu=cpu, annotations=annotations, created=f"2026-01-01T00:00:{int(name[1:]):02}Z")
        for i in range(count)
    ]


def placed(decisions: list[AnyDecision]) -> list[str]:
    return [decision.unit for decision in decisions if isinstance(decision, Place)]


def seen(*pods: PodFacts) -> list[ev.AnyEvent]:
    return [ev.PodSeen(one) for one in pods]


def full(nodes: int) -> list[PodFacts]:
    return [pod(f"full-{i}", cpu="8", node=f"n{i}") for i in range(nodes)]


def test_equal_gangs_wake_when_there_is_room_for_one_and_only_as_many_as_there_is_room_for() -> None:
    made, counting = cluster(6)
    made.step(seen(*full(6)), 1.0)
    assert placed(made.step(seen(*(one for i in range(20) for one in gang(f"g{i}", 2))), 2.0)) == []
    counting.tried.clear()
    assert placed(made.step([ev.PodGone("uid-default-full-0")], 3.0)) == []
    assert counting.tried == [], "one node is of no use to a gang of two"
    assert placed(made.step([ev.PodGone("uid-default-full-1")], 4.0)) == ["PodGroup/default/g0"]
    assert counting.tried == ["PodGroup/default/g0"]
    counting.tried.clear()
    gone: list[ev.AnyEvent] = [ev.PodGone(f"uid-default-full-{i}") for i in range(2, 6)]
    assert placed(made.step(gone, 5.0)) == ["PodGroup/default/g1", "PodGroup/default/g2"]
    assert counting.tried == ["PodGroup/default/g1", "PodGroup/default/g2"]


def test_a_gang_that_goes_before_it_is_tried_passes_its_room_on() -> None:
    made, _ = cluster(2)
    made.step(seen(*full(2)), 1.0)
    made.step(seen(*gang("g0", 2), *gang("g1", 2)), 2.0)
    # Woken, and gone before its turn: nothing may be tried in this step.
    made.step([ev.PodGone("uid-default-full-0"), ev.PodGone("uid-default-full-1")], 3.0, units_max=0)
    assert placed(made.step([ev.PodGone("uid-default-g0-0"), ev.PodGone("uid-default-g0-1")], 4.0)) == ["PodGroup/default/g1"]


@pytest.mark.parametrize(
    ("size", "minimum", "freed", "starts"),
    [
        pytest.param(4, 2, 1, 0, id="less than the minimum"),
        pytest.param(4, 2, 2, 1, id="the minimum is enough"),
        pytest.param(3, 3, 2, 0, id="all or nothing"),
    ],
)
def test_a_gang_wakes_for_its_minimum(size: int, minimum: int, freed: int, starts: int) -> None:
    made, _ = cluster(4)
    made.step(seen(*full(4)), 1.0)
    made.step(seen(*gang("g0", size, minimum=minimum)), 2.0)
    assert len(placed(made.step([ev.PodGone(f"uid-default-full-{i}") for i in range(freed)], 3.0))) == starts


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("come"), st.integers(1, 3), st.sampled_from(["4", "8"])),
            st.tuples(st.just("end"), st.integers(0, 30), st.just("")),
            st.tuples(st.just("leave"), st.integers(0, 30), st.just("")),
        ),
        min_size=10,
        max_size=40,
    )
)
def test_nobody_sleeps_who_would_fit(acts: list[tuple[str, int, str]]) -> None:
    """Singles and gangs come, end and give up in any order: at rest, waking everybody places nobody."""
    made, _ = cluster(3)
    running: dict[str, list[str]] = {}
    waiting: dict[str, list[str]] = {}
    for number, (act, value, cpu) in enumerate(acts):
        events: list[ev.AnyEvent] = []
        if act == "come":
            pods = gang(f"g{number}", value, cpu) if value > 1 else [pod(f"s{number}", cpu=cpu)]
            waiting[f"PodGroup/default/g{number}" if value > 1 else f"Pod/default/s{number}"] = [
                one.metadata.uid for one in pods
            ]
            events = seen(*pods)
        else:
            some = running if act == "end" else waiting
            for unit in sorted(some)[value % len(some) :][:1] if some else ():
                events = [ev.PodGone(uid) for uid in some.pop(unit)]
        for unit in placed(made.step(events, float(number))):
            running[unit] = waiting.pop(unit)
    assert set(made.waiting.parked) == set(waiting)
    made.waiting.wake_all()
    assert placed(made.step([], float(len(acts)))) == []
