"""Holds that other control planes rely on: asked for, never taken."""

from __future__ import annotations

from typing import Any

import pytest

from muster.engine import events as ev
from muster.engine.configuration import default_configuration
from muster.engine.decisions import Evict, Hold, Park, Release
from muster.engine.facts import PodFacts
from muster.engine.machine import Engine
from muster.engine.profile import Profile
from muster.engine.registry import Registry
from muster.objects.reasons import Reason
from tests.engine.building import PROFILE, node, pod
from tests.engine.tasks_building import (
    engine,
    gone,
    held,
    is_free,
    member,
    parked,
    party,
    placed,
    released,
    seen,
    task_group,
    task_pod,
)

OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def joint(name: str, *pods: str, **more: Any) -> ev.TaskGroupSeen:
    """A task of alice, who is here, with bob, who is not."""
    more.setdefault("created", YOUNG)
    return task_group(name, party("alice", *pods), others=["bob"], **more)


def promised(made: Engine, name: str = "t", *, cpu: str = "1", at: float = 1.0, **more: Any) -> list[Any]:
    pods = [task_pod(f"{name}{i}", task=name, cpu=cpu) for i in range(2)]
    return made.step([joint(name, f"{name}0", f"{name}1", **more), *seen(*pods)], at)


def test_what_is_placed_is_promised_first() -> None:
    made = engine()
    (decision,) = promised(made)
    assert isinstance(decision, Hold)
    assert (decision.unit, decision.is_promised, decision.until, decision.waiting_for) == ("Task/t", True, 31.0, ("bob",))
    assert sorted(p.name for p in decision.pods) == ["t0", "t1"]
    assert made.next_deadline == 31.0


@pytest.mark.parametrize("by", ["", "bob"], ids=["enough have reserved", "the last party has"])
def test_permitted(by: str) -> None:
    made = engine()
    promised(made)
    assert set(placed(made.step([ev.Permitted("Task/t", by)], 2.0))) == {"t0", "t1"}
    assert not made.holds
    assert made.step([ev.Permitted("Task/t")], 3.0) == []


def test_a_pod_that_could_not_be_bound_after_the_permit_is_placed_without_another_promise() -> None:
    made = engine()
    promised(made)
    made.step([ev.Permitted("Task/t")], 2.0)
    assert set(placed(made.step([ev.BindFailed("uid-alice-t0", "refused")], 3.0))) == {"t0"}


def test_a_task_that_was_committed_without_us_is_placed_without_a_promise() -> None:
    assert set(placed(promised(engine(), phase="Reserved"))) == {"t0", "t1"}


# -- giving back ---------------------------------------------------------------------------------------------------------------


def test_time_asks_once_and_keeps() -> None:
    made = engine()
    promised(made)
    assert released(made.step([], 31.0), asked=True) == [("Task/t", Reason.RESERVATION_EXPIRED)]
    assert made.step([], 32.0) == []
    assert made.next_deadline is None
    assert not is_free(made)
    assert set(placed(made.step([ev.Permitted("Task/t")], 33.0))) == {"t0", "t1"}


def test_denied_gives_back_and_waits_for_the_next_attempt() -> None:
    made = engine()
    promised(made)
    decisions = made.step([ev.Denied("Task/t", "bob gave up")], 2.0)
    assert released(decisions) == [("Task/t", Reason.PARTY_NOT_RESERVED)]
    assert parked(decisions) == {"Task/t": Reason.BACKING_OFF}
    assert is_free(made)
    assert made.step([ev.NodeSeen(node("n9")), joint("t", "t0", "t1")], 3.0) == [], "the same attempt is over"


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([joint("t", "t0", "t1", retries=1)], id="counted"),
        pytest.param([joint("t", "t0", "t1", phase="ReserveFailed"), joint("t", "t0", "t1")], id="seen to fail between"),
    ],
)
def test_the_next_attempt_is_tried_at_once(events: list[ev.AnyEvent]) -> None:
    made = engine()
    promised(made)
    made.step([ev.Denied("Task/t")], 2.0)
    assert list(held(made.step(events, 3.0))) == ["Task/t"]


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        pytest.param([gone("t1", "alice")], Reason.GANG_INCOMPLETE, id="a pod is gone"),
        pytest.param([ev.PodSeen(task_pod("t1", phase="Failed"))], Reason.GANG_INCOMPLETE, id="a pod has failed"),
        pytest.param([ev.NodeGone("n0")], Reason.RESERVATION_EXPIRED, id="a node is gone"),
        pytest.param([ev.TaskGroupGone("t")], Reason.PARTY_NOT_RESERVED, id="the group is gone"),
        pytest.param([joint("t", "t0", "t1", phase="ReserveFailed")], Reason.PARTY_NOT_RESERVED, id="the attempt failed"),
        pytest.param([joint("t", "t0", "t1", phase="Failed")], Reason.PARTY_NOT_RESERVED, id="the task failed"),
    ],
)
def test_what_can_not_be_kept_is_given_back_at_once(events: list[ev.AnyEvent], reason: Reason) -> None:
    made = engine()
    promised(made)
    assert released(made.step(events, 2.0)) == [("Task/t", reason)]
    assert not made.holds
    assert is_free(made)


# -- the older and the younger -------------------------------------------------------------------------------------------------


def old_pod(cpu: str = "3") -> PodFacts:
    return pod("old", cpu=cpu, created=OLD)


def test_the_older_asks_once_and_waits() -> None:
    made = engine()
    promised(made)
    decisions = made.step([ev.PodSeen(old_pod())], 2.0)
    assert [type(d) for d in decisions] == [Release, Park]
    assert released(decisions, asked=True) == [("Task/t", Reason.YIELDED_TO_OLDER)]
    assert parked(decisions) == {"Pod/default/old": Reason.WAITING_FOR_YOUNGER}
    assert made.verdicts["Pod/default/old"].subject == "Task/t"
    assert "Task/t" not in made.verdicts["Pod/default/old"].message
    assert made.step([ev.Retry()], 3.0) == []
    assert made.step([], 40.0) == [], "time does not ask a second time"


def test_the_older_has_it_when_it_is_denied() -> None:
    made = engine()
    promised(made)
    made.step([ev.PodSeen(old_pod())], 2.0)
    decisions = made.step([ev.Denied("Task/t")], 3.0)
    assert released(decisions) == [("Task/t", Reason.PARTY_NOT_RESERVED)]
    assert placed(decisions) == {"old": "n0"}


def test_the_older_says_why_it_waits_when_it_was_too_late() -> None:
    made = engine()
    promised(made)
    made.step([ev.PodSeen(old_pod())], 2.0)
    decisions = made.step([ev.Permitted("Task/t")], 3.0)
    assert set(placed(decisions)) == {"t0", "t1"}
    assert parked(decisions) == {"Pod/default/old": Reason.CPU_INSUFFICIENT}


def test_the_younger_asks_nothing_of_the_older() -> None:
    made = engine()
    promised(made, created=OLD)
    decisions = made.step([ev.PodSeen(pod("young", cpu="3", created=YOUNG, priority=9))], 2.0)
    assert parked(decisions) == {"Pod/default/young": Reason.CPU_INSUFFICIENT}
    assert not released(decisions, asked=True)


def test_age_is_the_initiators_not_the_one_of_the_objects_here() -> None:
    made = engine(cpu="2")
    promised(made, created=OLD, origin=(YOUNG, "a"))
    other = joint("o", "o0", created="2027-01-01T00:00:00Z", origin=(YOUNG, "A"))
    decisions = made.step([other, ev.PodSeen(task_pod("o0", task="o"))], 2.0)
    assert released(decisions, asked=True) == [("Task/t", Reason.YIELDED_TO_OLDER)]


def test_only_those_are_asked_whose_room_it_is() -> None:
    made = Engine(default_configuration().build(Registry()))
    made.step([ev.NodeSeen(node(name, cpu="2", labels={"zone": name})) for name in ("n0", "n1")], 0.0)
    for number, name in enumerate("tu"):
        made.step([joint(name, f"{name}0"), ev.PodSeen(task_pod(f"{name}0", task=name, cpu="2"))], 1.0 + number)
    on = {one.pod.node: unit_id for unit_id, held in made.holds.items() for one in held.placed}
    assert set(on) == {"n0", "n1"}
    decisions = made.step([ev.PodSeen(pod("old", cpu="2", created=OLD, nodeSelector={"zone": "n0"}))], 4.0)
    assert released(decisions, asked=True) == [(on["n0"], Reason.YIELDED_TO_OLDER)]


def test_nobody_is_asked_when_it_would_not_help() -> None:
    made = engine()
    promised(made)
    assert not released(made.step([ev.PodSeen(old_pod("5"))], 2.0), asked=True)
    assert not made.holds["Task/t"].is_asked


def important() -> ev.PodSeen:
    return ev.PodSeen(pod("important", cpu="1", priority=1000, created="2026-03-03T00:00:00Z"))


@pytest.mark.parametrize("kind", ["promised", "kept by a NonStrict gang"])
def test_nobody_evicts_what_is_held(kind: str) -> None:
    made = Engine(default_configuration().build(Registry()))
    made.step([ev.NodeSeen(node("n0", cpu="2"))], 0.0)
    if kind == "promised":
        promised(made)
    else:
        made.step(seen(*(member("g", f"g{i}", 3, settings={"mode": "NonStrict"}) for i in range(3))), 1.0)
    assert len(made.holds) == 1
    decisions = made.step([important()], 2.0)
    assert parked(decisions) == {"Pod/default/important": Reason.CPU_INSUFFICIENT}
    assert [type(d) for d in decisions] == [Park]


def test_what_was_held_can_be_evicted_once_it_runs() -> None:
    made = Engine(default_configuration().build(Registry()))
    made.step([ev.NodeSeen(node("n0", cpu="2"))], 0.0)
    promised(made)
    made.step([ev.Permitted("Task/t")], 2.0)
    made.step(seen(*(task_pod(f"t{i}", node="n0") for i in range(2))), 3.0)
    assert Evict in {type(d) for d in made.step([important()], 4.0)}


# -- restarts ------------------------------------------------------------------------------------------------------------------


def restarted(*events: ev.AnyEvent) -> tuple[Engine, list[Any]]:
    made = engine(cpu="2")
    pods = [task_pod(f"t{i}") for i in range(2)]
    plan = ev.Planned("Task/t", tuple((one.metadata.uid, "n0") for one in pods), held_until=31.0)
    return made, made.step([*seen(*pods), *events, plan], 20.0)


@pytest.mark.parametrize(
    "events", [pytest.param([joint("t", "t0", "t1")], id="with its group"), pytest.param([], id="before its group is known")]
)
def test_a_promise_from_before_a_restart_is_held_again(events: list[ev.AnyEvent]) -> None:
    made, decisions = restarted(*events)
    assert decisions == []
    assert made.next_deadline == 31.0
    made.step([joint("t", "t0", "t1")], 21.0)
    assert released(made.step([ev.PodSeen(old_pod("2"))], 22.0), asked=True) == [("Task/t", Reason.YIELDED_TO_OLDER)]
    assert set(placed(made.step([ev.Permitted("Task/t")], 23.0))) == {"t0", "t1"}


def test_a_promise_that_does_not_fit_any_more_is_given_back_whole() -> None:
    made, decisions = restarted(joint("t", "t0", "t1"), ev.PodSeen(pod("there", cpu="1", node="n0")))
    assert [(d.unit, set(d.pods)) for d in decisions if isinstance(d, Release)] == [
        ("Task/t", {"uid-alice-t0", "uid-alice-t1"})
    ]
    assert not made.holds
    assert made.state.nodes.free[0, 0] == 1000


def test_a_promise_whose_attempt_is_over_is_dropped() -> None:
    made, _ = restarted()
    decisions = made.step([joint("t", "t0", "t1", phase="ReserveFailed")], 21.0)
    assert released(decisions) == [("Task/t", Reason.PARTY_NOT_RESERVED)]
    assert is_free(made)


# -- configuration -------------------------------------------------------------------------------------------------------------


def test_a_promise_outlives_its_profile() -> None:
    made = Engine(
        [Profile(PROFILE, engine().profiles[PROFILE].plugins)],
        configure=lambda _: [Profile("other", engine().profiles[PROFILE].plugins)],
    )
    made.step([ev.NodeSeen(node("n0"))], 0.0)
    promised(made)
    assert released(made.step([ev.Configured({})], 2.0), asked=True) == [("Task/t", Reason.RESERVATION_EXPIRED)]
    assert set(placed(made.step([ev.Permitted("Task/t")], 3.0))) == {"t0", "t1"}


# -- who is not part of it -----------------------------------------------------------------------------------------------------


def test_members_that_are_not_held_are_told_why_they_wait_and_come_after_the_permit() -> None:
    made = engine(cpu="2")
    group = task_group("t", party("alice", "t0", "t1", "t2", least=2), others=["bob"])
    decisions = made.step([group, *seen(*(task_pod(f"t{i}") for i in range(3)))], 1.0)
    assert held(decisions) == {"Task/t": ["t0", "t1"]}
    assert [(d.pods, d.verdict.reason) for d in decisions if isinstance(d, Park)] == [
        (("uid-alice-t2",), Reason.PARTY_NOT_RESERVED)
    ]
    assert made.step([ev.NodeSeen(node("n1"))], 2.0) == []
    assert placed(made.step([ev.Permitted("Task/t")], 3.0)) == {"t0": "n0", "t1": "n0", "t2": "n1"}
