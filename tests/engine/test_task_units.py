"""Tasks: a TaskResourceGroup and its pods are one unit."""

from __future__ import annotations

from typing import Any

import pytest

from muster.engine import events as ev
from muster.engine.decisions import Park
from muster.engine.task_units import task_unit
from muster.objects.reasons import Reason
from tests.engine.building import node, pod, see, state_of
from tests.engine.tasks_building import engine, gone, is_free, parked, party, placed, seen, task_group, task_pod, verdict

ALICE, BOB = party("alice", "a0", "a1"), party("bob", "b0", "b1")
PODS = (task_pod("a0"), task_pod("a1"), task_pod("b0", "bob"), task_pod("b1", "bob"))


# -- the unit ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "mins", "least", "controlled"),
    [
        pytest.param(task_group("t", ALICE, BOB), [2, 2], 2, [True, True], id="all of all"),
        pytest.param(task_group("t", party("alice", "a0", "a1", least=1), BOB), [1, 2], 2, [True, True], id="fewer pods"),
        pytest.param(task_group("t", ALICE, BOB, least=1), [2, 2], 1, [True, True], id="fewer parties"),
        pytest.param(task_group("t", ALICE, BOB, least=9), [2, 2], 2, [True, True], id="more parties than there are"),
        pytest.param(
            task_group("t", party("alice", "a0", least=9), BOB), [1, 2], 2, [True, True], id="more pods than there are"
        ),
        pytest.param(task_group("t", ALICE, others=["bob"]), [2, 0], 2, [True, False], id="a party of another control plane"),
    ],
)
def test_groups(group: ev.TaskGroupSeen, mins: list[int], least: int, controlled: list[bool]) -> None:
    unit = task_unit("Task/t", "t", see(state_of(), *PODS), group.group)
    assert unit is not None
    assert [one.min for one in unit.groups] == mins
    assert unit.min_groups == least
    assert [one.controlled for one in unit.groups] == controlled
    assert (unit.promise is not None) is (False in controlled)
    assert unit.blocked is None


def test_two_roles_of_one_party_are_two_groups_and_a_pod_counts_once() -> None:
    group = task_group("t", party("alice", "a0", role="server"), party("alice", "a0", "a1", role="client")).group
    unit = task_unit("Task/t", "t", see(state_of(), *PODS[:2]), group)
    assert unit is not None
    assert [(one.role, len(one.pods)) for one in unit.groups] == [("server", 1), ("client", 1)]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        pytest.param(task_group(created="2026-02-02T00:00:00Z"), ("2026-02-02T00:00:00Z", "trg-t"), id="its own"),
        pytest.param(task_group(origin=("2025-05-05T00:00:00Z", "u1")), ("2025-05-05T00:00:00Z", "u1"), id="its initiator's"),
    ],
)
def test_age(group: ev.TaskGroupSeen, expected: tuple[str, str]) -> None:
    unit = task_unit("Task/t", "t", see(state_of(), *PODS), group.group)
    assert unit is not None
    assert unit.age == expected
    assert unit.order_key == (0, expected[0], "Task/t")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [pytest.param(0, 30.0, id="default"), pytest.param(7, 7.0, id="given"), pytest.param(-1, 30.0, id="bad")],
)
def test_how_long_a_promise_stands(seconds: int, expected: float) -> None:
    group = task_group("t", ALICE, others=["carol", "bob", "bob"], seconds=seconds).group
    unit = task_unit("Task/t", "t", see(state_of(), *PODS[:2]), group)
    assert unit is not None
    assert unit.promise is not None
    assert (unit.promise.seconds, unit.promise.parties) == (expected, ("bob", "carol"))


# -- in the machine ------------------------------------------------------------------------------------------------------------


def test_all_parties_or_none() -> None:
    made = engine(nodes=1, cpu="3")
    decisions = made.step([task_group("t", ALICE, BOB), *seen(*PODS)], 1.0)
    assert parked(decisions) == {"Task/t": Reason.GANG_INSUFFICIENT}
    assert is_free(made)
    assert len(placed(made.step([ev.NodeSeen(node("n1", cpu="1"))], 2.0))) == 4


def test_enough_parties_are_enough() -> None:
    made = engine(nodes=1, cpu="3")
    assert set(placed(made.step([task_group("t", ALICE, BOB, least=1), *seen(*PODS)], 1.0))) == {"a0", "a1"}


def test_the_least_of_each_party() -> None:
    parties = party("alice", "a0", "a1", least=1), party("bob", "b0", "b1", least=1)
    made = engine(nodes=1, cpu="3")
    assert set(placed(made.step([task_group("t", *parties), *seen(*PODS)], 1.0))) == {"a0", "a1", "b0"}


@pytest.mark.parametrize(
    ("events", "text"),
    [
        pytest.param(seen(*PODS), "TaskResourceGroup t is not there", id="no group"),
        pytest.param(
            [task_group("t", ALICE, BOB), *seen(*PODS[:3])],
            "1 pods of the task are missing, gated or ending: bob/b1",
            id="a pod",
        ),
        pytest.param(
            [task_group("t", ALICE, BOB), *seen(*PODS[:3], task_pod("b1", "bob", schedulingGates=[{"name": "g"}]))],
            "bob/b1",
            id="a gated pod",
        ),
    ],
)
def test_waits_until_everybody_is_there_and_says_who_is_missing(events: list[ev.AnyEvent], text: str) -> None:
    made = engine()
    decisions = made.step(events, 1.0)
    assert parked(decisions) == {"Task/t": Reason.GANG_INCOMPLETE}
    assert text in verdict(decisions).message
    assert len(placed(made.step([task_group("t", ALICE, BOB), ev.PodSeen(PODS[3])], 2.0))) == 4


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        pytest.param("", Reason.GANG_INCOMPLETE, id="none"),
        pytest.param("Pending", Reason.GANG_INCOMPLETE, id="pending"),
        pytest.param("Creating", Reason.GANG_INCOMPLETE, id="creating"),
        pytest.param("Nonsense", Reason.GANG_INCOMPLETE, id="nonsense"),
        pytest.param("ReserveFailed", Reason.BACKING_OFF, id="reserve failed"),
        pytest.param("Failed", Reason.PARTY_FAILED, id="failed"),
    ],
)
def test_only_a_group_that_is_reserving_is_tried(phase: str, reason: Reason) -> None:
    made = engine()
    assert parked(made.step([task_group("t", ALICE, BOB, phase=phase), *seen(*PODS)], 1.0)) == {"Task/t": reason}
    assert not made.has_work
    assert made.step([ev.NodeSeen(node("n9"))], 2.0) == []
    assert len(placed(made.step([task_group("t", ALICE, BOB)], 3.0))) == 4


def test_a_group_that_is_deleted_is_not_tried_any_more() -> None:
    made = engine(cpu="1")
    made.step([task_group("t", ALICE, BOB), *seen(*PODS)], 1.0)
    assert parked(made.step([ev.TaskGroupGone("t")], 2.0)) == {"Task/t": Reason.GANG_INCOMPLETE}
    assert made.step([ev.NodeSeen(node("n9"))], 3.0) == []


def test_every_waiting_pod_is_told() -> None:
    (park,) = [d for d in engine(cpu="3").step([task_group("t", ALICE, BOB), *seen(*PODS)], 1.0) if isinstance(d, Park)]
    assert len(park.pods) == 4


def test_a_stranger_neither_joins_nor_delays_the_task() -> None:
    made = engine()
    stranger = task_pod("x", "mallory")
    decisions = made.step([task_group("t", ALICE, BOB), *seen(*PODS, stranger)], 1.0)
    assert set(placed(decisions)) == {"a0", "a1", "b0", "b1"}
    assert parked(decisions) == {"Task/t/mallory/x": Reason.GANG_INCOMPLETE}
    assert "does not list pod mallory/x" in verdict(decisions).message
    made.step([gone("x", "mallory")], 2.0)
    assert not made.waiting.units
    assert not made.verdicts


def test_a_stranger_that_came_first_leaves_when_the_group_does_not_list_it_and_comes_when_it_does() -> None:
    made = engine()
    made.step(seen(*PODS[:2], task_pod("x", "alice")), 1.0)
    assert list(made.waiting.units) == ["Task/t"]
    assert set(placed(made.step([task_group("t", ALICE)], 2.0))) == {"a0", "a1"}
    assert list(made.waiting.units) == ["Task/t/alice/x"]
    assert placed(made.step([task_group("t", party("alice", "a0", "a1", "x"))], 3.0)) == {"x": "n0"}


def bound(name: str, domain: str = "alice", phase: str = "", **more: Any) -> ev.PodSeen:
    return ev.PodSeen(task_pod(name, domain, node="n0", phase=phase, **more))


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([gone("a1", "alice"), ev.PodSeen(task_pod("a1", uid="again"))], id="a replacement"),
        pytest.param(
            [bound("a0", phase="Succeeded"), gone("a1", "alice"), ev.PodSeen(task_pod("a1", uid="again"))], id="others ended"
        ),
    ],
)
def test_once_it_has_started_pods_are_placed_as_they_fit(events: list[ev.AnyEvent]) -> None:
    made = engine()
    parties = party("alice", "a0", "a1", least=1), party("bob", "b0")
    assert len(placed(made.step([task_group("t", *parties), *seen(*PODS[:3])], 1.0))) == 3
    made.step([bound("a0"), bound("a1"), bound("b0", "bob"), task_group("t", *parties, phase="Reserved")], 2.0)
    assert placed(made.step(events, 3.0)) == {"a1": "n0"}


def test_a_late_pod_of_a_task_that_runs_waits_for_room_only() -> None:
    made = engine(cpu="2")
    group = task_group("t", party("alice", "a0", "a1", "a2", least=2))
    made.step([group, *seen(*PODS[:2], task_pod("a2"))], 1.0)
    assert made.verdicts["Task/t"].reason is Reason.CPU_INSUFFICIENT
    assert "must start together" not in made.verdicts["Task/t"].message
    assert placed(made.step([ev.NodeSeen(node("n1"))], 2.0)) == {"a2": "n1"}


def test_ages_over_all_kinds_of_units() -> None:
    made = engine(cpu="1")
    group = task_group("t", party("alice", "a0"), origin=("2020-01-01T00:00:00Z", "x"), created="2026-05-05T00:00:00Z")
    decisions = made.step(
        [ev.PodSeen(pod("p", cpu="1")), group, ev.PodSeen(task_pod("a0", created="2026-05-06T00:00:00Z"))], 1.0
    )
    assert placed(decisions) == {"a0": "n0"}


def test_nothing_is_left_of_a_task_that_is_gone() -> None:
    made = engine()
    made.step([task_group("t", ALICE, BOB), *seen(*PODS)], 1.0)
    made.step([ev.PodGone(one.metadata.uid) for one in PODS] + [ev.TaskGroupGone("t")], 2.0)
    assert not made.members.tasks
    assert not made.state.task_groups
    assert not made.verdicts
    assert is_free(made)
