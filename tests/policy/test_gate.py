"""What turns a unit away, and that it goes when that is over."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.engine import checkpoint
from muster.engine import events as ev
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.policy.order import PolicyOrder
from tests.engine.building import PROFILE
from tests.policy.building import FIFO, GPU, SHORTEST, World, group_facts, pod_of, policy_facts, queue_facts, user_facts


def limited(**limits: Any) -> World:
    world = World(1, 8)
    world.step(ev.UserSeen(user_facts("ann", limits=limits)))
    return world


def test_a_users_limit_holds_and_lets_go() -> None:
    world = limited(concurrent={"nvidia.com/gpu": 2})
    for number in range(4):
        world.submit(f"a{number}", 1, user="ann", at=float(number))
    world.submit("b", 1, user="bob", at=9)
    assert sorted(world.running) == ["a0", "a1", "b"]
    assert world.parked["a2"] == "UserLimitReached"
    verdict = world.engine.verdicts["Pod/default/a2"]
    assert verdict.message == (
        "spec.limits.concurrent[nvidia.com/gpu] of User ann: limit 2, in use 2, requested 1 (nvidia.com/gpu)"
    )
    world.end("a0", at=10)
    assert "a2" in world.running
    assert "a3" not in world.running
    world.step(ev.UserSeen(user_facts("ann", limits={"concurrent": {"nvidia.com/gpu": 3}})))
    assert "a3" in world.running


def test_a_limit_on_jobs_counts_a_job_once() -> None:
    world = limited(jobsRunning=1)
    world.submit("a-0", 1, user="ann", job="Job/x/a")
    world.submit("a-1", 1, user="ann", job="Job/x/a")
    world.submit("b", 1, user="ann", job="Job/x/b")
    assert sorted(world.running) == ["a-0", "a-1"]
    world.end("a-0", at=1)
    assert "b" not in world.running
    world.end("a-1", at=2)
    assert "b" in world.running


def test_limits_of_groups_and_queues_hold_for_all_below() -> None:
    world = World(1, 8)
    world.step(
        ev.UserGroupSeen(group_facts("lab", limits={"concurrent": {"nvidia.com/gpu": 3}})),
        ev.UserSeen(user_facts("ann", group="lab")),
        ev.UserSeen(user_facts("bob", group="lab")),
        ev.QueueSeen(queue_facts("top", policy="p", limits={"concurrent": {"nvidia.com/gpu": 2}})),
        ev.QueueSeen(queue_facts("sub", policy="p", parent="top")),
    )
    world.submit("a", 2, user="ann")
    world.submit("b", 2, user="bob", at=1)
    assert world.parked["b"] == "GroupLimitReached"
    world.submit("c", 2, queue="sub", at=2)
    world.submit("d", 1, queue="sub", at=3)
    assert world.parked["d"] == "QueueLimitReached"
    world.end("c", at=4)
    assert "d" in world.running


def test_who_is_at_a_limit_keeps_nobody_else_waiting() -> None:
    world = limited(concurrent={"nvidia.com/gpu": 1})
    world.submit("a0", 1, user="ann", seconds=1_000)
    world.submit("a1", 8, user="ann", seconds=10, at=1)
    world.submit("b", 7, user="bob", at=2)
    assert "b" in world.running


def test_a_spent_budget_stops_and_a_new_period_lets_go() -> None:
    world = World(1, 8)
    stopped = {"standing": {"stopped": "BudgetSpent: the budget of May is spent"}}
    world.step(ev.UserSeen(user_facts("ann", status=stopped)))
    world.submit("a", 1, user="ann")
    assert world.parked["a"] == "BudgetSpent"
    world.step(ev.UserSeen(user_facts("ann")))
    assert "a" in world.running


def test_limits_of_a_spent_budget_hold_beside_its_own() -> None:
    world = World(1, 8)
    own = {"limits": {"concurrent": {GPU: 4}, "jobsRunning": 2}}
    spent = {"standing": {"limits": {"concurrent": {GPU: 2}}}}
    world.step(ev.UserSeen(user_facts("ann", status=spent, **own)))
    for name in ("a", "b", "c"):
        world.submit(name, 1, user="ann", at=world.now + 1)
    world.submit("d", 2, user="ann", at=world.now + 1)
    assert sorted(world.running) == ["a", "b"]
    refused = {place.unit.rpartition("/")[2]: place.refused for place in world.order.places("q", world.now)}
    assert refused["d"] is not None
    assert "spec.budget.limits.concurrent[nvidia.com/gpu] of User ann: limit 2, as the budget is spent" in refused["d"].message
    world.step(ev.UserSeen(user_facts("ann", **own)))
    world.end("a")
    assert sorted(world.running) == ["b", "c"], "its own limit on jobs held all the time"


@pytest.mark.parametrize("kind", ["user", "queue"])
def test_what_is_used_up_stops_who_asks_for_it_until_the_next_period(kind: str) -> None:
    world = World(1, 8)
    figures = f"spec.limits.consumption[0] of {kind}: limit 5, used 5"
    status = {"standing": {"exhausted": [{"resource": "nvidia.com/gpu", "message": figures}]}}

    def seen(status: dict[str, Any]) -> ev.AnyEvent:
        if kind == "user":
            return ev.UserSeen(user_facts("ann", status=status))
        queue = queue_facts("other", policy="p")
        return ev.QueueSeen(msgspec.structs.replace(queue, status=msgspec.convert(status, type(queue.status))))

    world.step(ev.QueueSeen(queue_facts("other", policy="p")), seen(status))
    world.submit("a", 1, user="ann", queue="other")
    world.submit("b", 1, user="bob", at=1)
    assert (world.parked["a"], sorted(world.running)) == ("ConsumptionLimitReached", ["b"])
    assert world.engine.verdicts["Pod/default/a"].message == f"{figures}; requested 1 (nvidia.com/gpu)"
    world.step(seen({}))
    assert "a" in world.running


def test_a_suspended_user_starts_nothing() -> None:
    world = World(1, 8)
    world.step(ev.UserSeen(user_facts("ann", suspended=True)))
    world.submit("a", 1, user="ann")
    assert world.parked["a"] == "Suspended"


@pytest.mark.parametrize("above", [False, True], ids=["the queue itself", "the one above"])
def test_a_stopped_queue(above: bool) -> None:
    world = World(1, 8)
    world.step(ev.QueueSeen(queue_facts("top", state="Stopped")), ev.QueueSeen(queue_facts("sub", parent="top", policy="p")))
    world.submit("a", 1, queue="sub" if above else "top")
    assert world.parked["a"] == "QueueStopped"
    world.step(ev.QueueSeen(queue_facts("top")))
    assert "a" in world.running


def test_a_queue_that_does_not_exist() -> None:
    world = World(1, 8)
    world.submit("a", 1, queue="nowhere")
    assert world.parked["a"] == "QueueNotFound"
    world.step(ev.QueueSeen(queue_facts("nowhere", policy="p")))
    assert "a" in world.running


def test_hold_release_pin_and_move() -> None:
    world = World(1, 1)
    world.submit("busy", 1)
    for number in range(3):
        world.submit(f"a{number}", 1, at=1.0 + number)

    def say(name: str, **changes: Any) -> None:
        work = msgspec.structs.replace(world.works[name][0], **changes)
        world.works[name] = (work, 1, 1)
        world.step(ev.PodSeen(pod_of(name, work, 1)))

    say("a0", hold="maintenance")
    assert world.parked["a0"] == "HeldByAdmin"
    say("a2", pin=0)
    assert world.line() == ["a2", "a0", "a1"]
    world.end("busy", at=10)
    assert list(world.running) == ["a2"]
    world.end("a2", at=11)
    assert list(world.running) == ["a1"], "a0 is held"
    say("a0", hold="")
    world.end("a1", at=12)
    assert list(world.running) == ["a0"]
    world.step(ev.QueueSeen(queue_facts("r", policy="p", state="Stopped")))
    world.submit("b", 1, at=13)
    say("b", queue="r")
    assert world.line() == []
    assert world.line("r") == ["b"]
    assert world.parked["b"] == "QueueStopped"


def test_a_policy_takes_effect_at_once() -> None:
    world = World(1, 1)
    world.submit("busy", 1, seconds=10)
    world.submit("long", 1, seconds=100, at=1)
    world.submit("short", 1, seconds=1, at=2)
    assert world.line() == ["long", "short"]
    world.step(ev.PolicySeen(policy_facts("p", **SHORTEST)))
    assert world.line() == ["short", "long"]


def test_no_number_ranks_last_and_is_counted() -> None:
    world = World(1, 1, **{**FIFO, "formula": "log(age - 1.5)"})
    world.submit("busy", 1)
    world.submit("a", 1, at=1)
    world.submit("b", 1, at=2)
    world.tick(3)
    world.submit("c", 1, at=10)
    assert world.line() == ["a", "b", "c"]
    assert world.order.not_a_number == {"p": 1}


def test_a_policy_that_can_t_be_read_is_noted_and_stops_nobody() -> None:
    world = World(1, 1)
    world.submit("busy", 1)
    order = world.engine
    order.step([ev.PolicySeen(policy_facts("p", formula="nonsense("))], 1.0)
    assert "SchedulingPolicy p" in order.state.faults
    order.state.faults.clear()
    world.end("busy", at=2)
    world.submit("a", 1, at=3)
    assert "a" in world.running


def test_lines_and_places() -> None:
    world = World(1, 2)
    world.submit("busy", 2, seconds=100, user="ann", job="Job/x/busy")
    world.submit("a", 1, at=1, hold="later")
    world.submit("b", 2, at=2, job="Job/x/b", user="bob")
    line = world.order.lines()["q"]
    assert (line.waiting, line.running, line.held, line.head) == (2, 1, 1, "Pod/default/a")
    assert line.running_request["nvidia.com/gpu"] == 2
    place = world.order.place_of("Pod/default/b", 2)
    assert place is not None
    assert (place.position, place.of, place.user, place.policy) == (2, 2, "bob", "p")
    ahead = world.order.ahead_of("Pod/default/b", 2)
    assert ahead is not None
    assert ahead.unit == "Pod/default/a"
    assert world.order.ahead_of("Pod/default/a", 2) is None
    assert world.order.unit_of("Job/x/b") == "Pod/default/b"
    assert world.order.factors_of(["Pod/default/b", "Pod/x/unknown"])["Pod/default/b"].keys() == {"score", "age"}


def test_a_restored_engine_goes_on_alike() -> None:
    world = World(1, 4, factors=[{"name": "share", "source": "FairShare"}], formula="share")
    world.step(ev.UserSeen(user_facts("ann", limits={"concurrent": {"nvidia.com/gpu": 3}})))
    world.submit("a", 2, seconds=100, user="ann")
    world.submit("b", 2, seconds=50, user="bob", at=5)
    for number in range(3):
        world.submit(f"c{number}", 2, seconds=20, user=("ann", "bob")[number % 2], at=10.0 + number)
    order = PolicyOrder()
    twin = Engine([Profile(PROFILE, [Fit()])], order=order)
    checkpoint.restore(checkpoint.decode(checkpoint.encode(checkpoint.take(world.engine))), twin)
    assert order.book.table.started[order.book.table.row_of["Pod/default/a"]] == 0.0
    gone = [ev.PodGone("uid-default-b")]
    assert twin.step(gone, 60.0) == world.engine.step(gone, 60.0)
    assert list(order.ranked("q")) == list(world.order.ranked("q"))
