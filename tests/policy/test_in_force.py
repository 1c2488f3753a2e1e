"""A policy that can't be used leaves the last that could in force, also in an engine that was restored; and is told of."""

from __future__ import annotations

from muster.engine import checkpoint
from muster.engine import events as ev
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.policy.order import PolicyOrder
from tests.engine.building import PROFILE
from tests.policy.building import FIFO, SHORTEST, World, policy_facts

BAD = {**SHORTEST, "formula": "-left +"}


def crowded() -> World:
    """The shortest goes first, and that is the last that came."""
    world = World(gpus=8, **SHORTEST)
    world.submit("runs", 8, seconds=100.0)
    for place, seconds in enumerate((300.0, 200.0, 100.0)):
        world.submit(f"w{place}", 8, seconds=seconds, at=1.0 + place)
    assert world.line() == ["w2", "w1", "w0"]
    return world


def test_the_one_before_stays_in_force() -> None:
    world = crowded()
    world.engine.step([ev.PolicySeen(policy_facts("p", **BAD))], 10.0)
    assert world.line() == ["w2", "w1", "w0"]
    fault = world.engine.state.faults.pop("SchedulingPolicy p")
    assert "the one before stays in force" in fault
    assert "character 8" in fault
    world.step(ev.PolicySeen(policy_facts("p", **FIFO)), at=11.0)
    assert world.line() == ["w0", "w1", "w2"]


def test_one_that_never_was_good_leaves_its_queues_by_age() -> None:
    world = World(gpus=8, **FIFO)
    world.engine.step([ev.PolicyGone("p"), ev.PolicySeen(policy_facts("p", **BAD))], 1.0)
    assert "its queues go by age" in world.engine.state.faults.pop("SchedulingPolicy p")
    world.submit("runs", 8, seconds=100.0, at=2.0)
    world.submit("old", 8, seconds=300.0, at=3.0)
    world.submit("new", 8, seconds=1.0, at=4.0)
    assert world.line() == ["old", "new"]


def test_a_restored_engine_has_it_in_force_too() -> None:
    world = crowded()
    world.engine.step([ev.PolicySeen(policy_facts("p", **BAD))], 10.0)
    twin = Engine([Profile(PROFILE, [Fit()])], order=PolicyOrder())
    checkpoint.restore(checkpoint.decode(checkpoint.encode(checkpoint.take(world.engine))), twin)
    order = twin.order.inner  # type: ignore[union-attr]
    assert isinstance(order, PolicyOrder)
    for engine in (world.engine, twin):
        engine.step([ev.Tick()], 20.0)
    assert [unit.rpartition("/")[2] for unit in order.ranked("q")] == world.line() == ["w2", "w1", "w0"]
