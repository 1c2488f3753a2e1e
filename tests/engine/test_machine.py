"""The engine's door: events in, decisions out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from muster.engine import events as ev
from muster.engine.decisions import AnyDecision, Hold, Park, Place, Release
from muster.engine.machine import Engine
from muster.engine.plugin import Permit, Plugin
from muster.engine.plugins.allocation import BalancedAllocation
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.engine.units import Unit
from muster.objects.reasons import Reason, Verdict
from tests.engine.building import PROFILE, node, pod


def engine(*plugins: Plugin, nodes: int = 2, cpu: str = "4") -> Engine:
    made = Engine([Profile(PROFILE, [Fit(), BalancedAllocation(), *plugins])])
    made.step([ev.NodeSeen(node(f"n{i}", cpu=cpu)) for i in range(nodes)], 0.0)
    return made


def placed(decisions: Sequence[AnyDecision]) -> dict[str, str]:
    return {p.name: p.node for d in decisions if isinstance(d, Place) for p in d.pods}


def parked(decisions: Sequence[AnyDecision]) -> dict[str, Reason]:
    return {d.unit: d.verdict.reason for d in decisions if isinstance(d, Park)}


def gang(name: str, size: int, *, minimum: int | None = None, cpu: str = "1", prefix: str = "w") -> list[ev.AnyEvent]:
    notes = {"gang.scheduling.koordinator.sh/name": name, "gang.scheduling.koordinator.sh/min-available": str(minimum or size)}
    return [ev.PodSeen(pod(f"{name}-{prefix}{i}", cpu=cpu, annotations=notes)) for i in range(size)]


def test_a_pod_goes_to_the_emptier_node() -> None:
    made = engine()
    made.step([ev.PodSeen(pod("there", cpu="2", node="n0"))], 1.0)
    assert placed(made.step([ev.PodSeen(pod("new", cpu="1"))], 2.0)) == {"new": "n1"}


def test_equal_nodes_are_taken_in_order_of_name() -> None:
    made = Engine([Profile(PROFILE, [Fit()])])
    made.step([ev.NodeSeen(node(name)) for name in ("b", "c", "a")], 0.0)
    assert placed(made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0)) == {"p": "a"}


def test_priority_then_age_then_name() -> None:
    made = engine(nodes=1, cpu="1")
    pods = [
        pod("young", cpu="1", created="2026-01-02T00:00:00Z"),
        pod("old", cpu="1", created="2026-01-01T00:00:00Z"),
        pod("high", cpu="1", created="2026-01-03T00:00:00Z", priority=10),
    ]
    assert placed(made.step([ev.PodSeen(p) for p in pods], 1.0)) == {"high": "n0"}
    assert placed(made.step([ev.PodGone("uid-default-high")], 2.0)) == {"old": "n0"}


def test_a_new_ranking_changes_the_order() -> None:
    made = engine(nodes=1, cpu="1")
    made.step([ev.PodSeen(pod("a", cpu="1")), ev.PodSeen(pod("b", cpu="1"))], 1.0, units_max=0)
    assert placed(made.step([ev.Ranked(["Pod/default/b"])], 2.0)) == {"b": "n0"}


def test_waiting_work_is_tried_again_the_moment_enough_is_freed_and_not_before() -> None:
    made = engine(nodes=1, cpu="4")
    made.step([ev.PodSeen(pod("big", cpu="3", node="n0")), ev.PodSeen(pod("small", cpu="1", node="n0"))], 1.0)
    assert parked(made.step([ev.PodSeen(pod("w", cpu="2"))], 2.0)) == {"Pod/default/w": Reason.CPU_INSUFFICIENT}
    assert made.step([ev.PodGone("uid-default-small")], 3.0) == []
    assert not made.has_work
    assert placed(made.step([ev.PodGone("uid-default-big")], 4.0)) == {"w": "n0"}


def test_a_park_is_repeated_only_when_it_says_something_else() -> None:
    made = engine(nodes=1, cpu="1")
    first = made.step([ev.PodSeen(pod("w", cpu="2"))], 1.0)
    assert parked(first) == {"Pod/default/w": Reason.IMPOSSIBLE}
    assert made.step([ev.Retry()], 2.0) == []
    again = made.step([ev.NodeSeen(node("n0", cpu="4", taints=[])), ev.PodSeen(pod("x", cpu="4", node="n0"))], 3.0)
    assert parked(again) in ({}, {"Pod/default/w": Reason.CPU_INSUFFICIENT})


def test_a_failed_binding_gives_back_and_is_tried_again() -> None:
    made = engine(nodes=1, cpu="1")
    assert placed(made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0)) == {"p": "n0"}
    decisions = made.step([ev.BindFailed("uid-default-p", "refused")], 2.0)
    assert [type(d) for d in decisions] == [Release, Place]
    assert made.state.nodes.free[0, 0] == 0


def test_a_vanished_node_holds_nothing() -> None:
    made = engine(nodes=2, cpu="1")
    where = placed(made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0))["p"]
    made.step([ev.NodeGone(where)], 2.0)
    decisions = made.step([ev.BindFailed("uid-default-p", "node is gone")], 3.0)
    assert placed(decisions) == {"p": "n1" if where == "n0" else "n0"}
    made.state.nodes.used.sum()


def test_pods_of_others_are_counted_and_left_alone() -> None:
    made = engine(nodes=1, cpu="4")
    assert made.step([ev.PodSeen(pod("other", cpu="1", scheduler="default-scheduler"))], 1.0) == []
    made.step([ev.PodSeen(pod("other", cpu="3", scheduler="default-scheduler", node="n0"))], 2.0)
    assert parked(made.step([ev.PodSeen(pod("p", cpu="2"))], 3.0)) == {"Pod/default/p": Reason.CPU_INSUFFICIENT}


@pytest.mark.parametrize(
    ("spec", "phase"),
    [
        pytest.param({"schedulingGates": [{"name": "wait"}]}, "", id="gated"),
        pytest.param({}, "Succeeded", id="finished"),
    ],
)
def test_pods_that_are_not_to_be_placed(spec: dict[str, Any], phase: str) -> None:
    assert engine().step([ev.PodSeen(pod("p", cpu="1", phase=phase, **spec))], 1.0) == []


class TestGangs:
    def test_all_or_nothing(self) -> None:
        made = engine(nodes=2, cpu="4")
        assert parked(made.step(gang("g", 9), 1.0)) == {"PodGroup/default/g": Reason.GANG_INSUFFICIENT}
        assert made.state.nodes.used[0].sum() == 0
        assert len(placed(made.step([ev.NodeSeen(node("n2", cpu="1"))], 2.0))) == 9

    def test_at_least_the_minimum(self) -> None:
        assert len(placed(engine(nodes=2, cpu="4").step(gang("g", 10, minimum=6), 1.0))) == 8

    def test_waits_for_its_members(self) -> None:
        made = engine()
        events = gang("g", 4)
        assert parked(made.step(events[:3], 1.0)) == {"PodGroup/default/g": Reason.GANG_INCOMPLETE}
        assert len(placed(made.step(events[3:], 2.0))) == 4

    def test_equals_placing_one_by_one(self) -> None:
        together = engine(nodes=7, cpu="8").step(gang("g", 40), 1.0)
        alone = engine(nodes=7, cpu="8")
        made = [alone.step([ev.PodSeen(pod(f"g-w{i}", cpu="1"))], 1.0) for i in range(40)]
        assert placed(together) == {name: where for one in made for name, where in placed(one).items()}

    def test_two_that_fit_only_alone_do_not_block_each_other(self) -> None:
        made = engine(nodes=1, cpu="4")
        decisions = made.step([*gang("a", 3), *gang("b", 3)], 1.0)
        assert {d.unit for d in decisions if isinstance(d, Place)} == {"PodGroup/default/a"}
        assert parked(decisions) == {"PodGroup/default/b": Reason.GANG_INSUFFICIENT}


def test_an_attempt_that_was_undone_wakes_nobody() -> None:
    made = engine(nodes=2, cpu="4")
    made.step(gang("g", 9), 1.0)
    assert not made.has_work
    assert made.step([ev.PodSeen(pod("small", cpu="1", node="n0"))], 2.0) == []
    assert not made.has_work


class _RefuseAll(Plugin):
    name = "RefuseAll"

    def reserve(self, pod: object, node: str) -> Verdict:
        return Verdict(reason=Reason.DEVICE_INSUFFICIENT, message="no")


def test_a_refused_reservation_is_undone_and_waits() -> None:
    made = engine(_RefuseAll())
    assert parked(made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0)) == {"Pod/default/p": Reason.DEVICE_INSUFFICIENT}
    assert not made.has_work
    assert made.state.nodes.used.sum() == 0
    assert made.next_deadline == 61.0


class _Hears(Plugin):
    name = "Hears"

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def event(self, event: ev.AnyEvent) -> None:
        self.heard.append(type(event).__name__)


class _Looks(_Hears):
    name = "Looks"

    def next_look(self) -> float | None:
        return None


def test_who_never_looks_at_the_time_does_not_hear_that_it_has_passed() -> None:
    hears, looks = _Hears(), _Looks()
    made = engine(hears, looks)
    made.step([ev.NamespaceGone("old")], 1.0)
    made.step([ev.Tick()], 2.0)
    assert hears.heard == ["NamespaceGone"]
    assert looks.heard == ["Tick", "NamespaceGone", "Tick", "Tick"]


class _AskFirst(Plugin):
    name = "AskFirst"

    def permit(self, unit: Unit, now: float) -> Permit:
        return Permit(wait_s=10.0, waiting_for=("bob",))


class TestHolds:
    def test_placed_when_permitted(self) -> None:
        made = engine(_AskFirst())
        decisions = made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0)
        assert isinstance(decisions[0], Hold)
        assert decisions[0].until == 11.0
        assert made.next_deadline == 11.0
        assert placed(made.step([ev.Permitted("Pod/default/p", "bob")], 2.0)) == {"p": "n0"}

    def test_released_when_it_expires_and_tried_again(self) -> None:
        made = engine(_AskFirst())
        made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0)
        decisions = made.step([ev.Tick()], 11.0)
        assert [type(d) for d in decisions] == [Release, Hold]
        assert decisions[0].reason is Reason.RESERVATION_EXPIRED  # type: ignore[union-attr]

    def test_the_older_takes_what_the_younger_holds(self) -> None:
        made = engine(_AskFirst(), nodes=1, cpu="1")
        made.step([ev.PodSeen(pod("young", cpu="1", created="2026-01-02T00:00:00Z"))], 1.0)
        decisions = made.step([ev.PodSeen(pod("old", cpu="1", created="2026-01-01T00:00:00Z"))], 2.0)
        assert [(type(d), d.unit) for d in decisions] == [
            (Release, "Pod/default/young"),
            (Hold, "Pod/default/old"),
            (Park, "Pod/default/young"),
        ]
        assert decisions[0].reason is Reason.YIELDED_TO_OLDER  # type: ignore[union-attr]

    def test_the_younger_does_not_take_what_the_older_holds(self) -> None:
        made = engine(_AskFirst(), nodes=1, cpu="1")
        made.step([ev.PodSeen(pod("old", cpu="1", created="2026-01-01T00:00:00Z"))], 1.0)
        decisions = made.step([ev.PodSeen(pod("young", cpu="1", created="2026-01-02T00:00:00Z", priority=9))], 2.0)
        assert [(type(d), d.unit) for d in decisions] == [(Park, "Pod/default/young")]

    def test_released_when_its_pod_goes(self) -> None:
        made = engine(_AskFirst())
        made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0)
        made.step([ev.PodGone("uid-default-p")], 2.0)
        assert not made.holds
        assert made.state.nodes.used.sum() == 0


class _Broken(Plugin):
    name = "Broken"

    def __init__(self, answer: object) -> None:
        super().__init__()
        self._answer = answer

    def filter(self, pods: object, nodes: object) -> object:  # type: ignore[override]
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize("answer", [RuntimeError("no"), [True], "yes", None], ids=["raises", "wrong length", "text", "nothing"])
def test_a_broken_plugin_fails_its_unit_and_is_named(answer: object) -> None:
    made = engine(_Broken(answer))
    decisions = made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0)
    assert parked(decisions) == {"Pod/default/p": Reason.PLUGIN_ERROR}
    assert isinstance(decisions[0], Park)
    assert "Broken" in decisions[0].verdict.message


def test_configuration_changes_while_running() -> None:
    made = Engine([Profile("other", [Fit()])], configure=lambda _: [Profile(PROFILE, [Fit()])])
    made.step([ev.NodeSeen(node("n0")), ev.PodSeen(pod("p", cpu="1"))], 1.0)
    assert placed(made.step([ev.Configured({})], 2.0)) == {"p": "n0"}


def test_events_and_decisions_are_values() -> None:
    one, two = engine(), engine()
    events = [ev.PodSeen(pod(f"p{i}", cpu="1")) for i in range(20)]
    again = [ev.decode(ev.encode(event)) for event in events]
    assert one.step(events, 1.0) == two.step(again, 1.0)
