"""The scheduler among objects that make no sense, plugins that are out of order, and nodes that go at the wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest
from tests.controllers.scheduling import PROFILE, create, engine_of, node, objects, places, pod, pod_group, scheduling
from tests.store.stores import memory_store

from muster.controllers.scheduler import Scheduler
from muster.engine.plugin import Plugin
from muster.objects.labels import KoordinatorPod
from muster.objects.status import ApiError, Raw
from muster.sim.clock import virtual
from muster.store.cache import ObjectKey
from muster.store.contract import Binding
from muster.store.guarded import GuardedStore

T = TypeVar("T")


async def settle(seconds: float = 5.0) -> None:
    await asyncio.sleep(seconds)


def gang_of_5000_digits() -> Raw:
    poison = pod("poison")
    poison["metadata"]["annotations"] = {KoordinatorPod.GANG_NAME: "g", KoordinatorPod.GANG_MIN_AVAILABLE: "9" * 5_000}
    return poison


def resources_without_end() -> Raw:
    poison = pod("poison")
    amounts = {f"example.com/r{n}": "1" for n in range(600)}
    poison["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    return poison


@pytest.mark.parametrize("make", [gang_of_5000_digits, resources_without_end])
@pytest.mark.parametrize("is_there_before", [True, False])
@virtual
async def test_no_pod_stops_the_scheduling_of_others(make: Any, is_there_before: bool) -> None:
    """Nor does it after a restart, with which it would come back."""
    async with memory_store() as store:
        if is_there_before:
            await create(store, make())
        async with scheduling(store) as runner:
            await settle()
            await create(store, node("n1"), *([] if is_there_before else [make()]), pod("sane"))
            await settle()
            assert (await places(store))["sane"] == "n1"
            assert runner.state == "running"
            assert not runner.failing


class Confused(Plugin):
    """Raises whatever it is told, and names a time that has long passed."""

    name = "Confused"

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def event(self, event: Any) -> Sequence[int] | None:
        raise RuntimeError("out of order")

    def pod_added(self, pod: Any, slot: int) -> None:
        raise RuntimeError("out of order")

    def next_look(self) -> float | None:
        self.looks += 1
        return 0.0


@virtual
async def test_a_plugin_that_is_out_of_order_is_named_and_keeps_nobody_busy() -> None:
    confused = Confused()
    scheduler = Scheduler(engine=lambda: engine_of(confused))
    async with memory_store() as store, scheduling(store, scheduler) as runner:
        await create(store, node("n1"), pod("sane"))
        await settle()
        assert (await places(store))["sane"] == "n1"
        assert "out of order" in runner.failing[ObjectKey("", "plugin Confused")]
        confused.looks = 0
        await settle(1.0)
        assert 0 < confused.looks <= 200


class Unlucky(GuardedStore):
    """Nodes whose name begins with `short-lived` are gone by the time that a pod is to be bound to them; `is_broken` says which
    writes fail in a way that no store should."""

    is_broken = ""
    refused = 0

    async def write(self, verb: str, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        if self.is_broken and f"{verb} {what}".startswith(self.is_broken):
            self.refused += 1
            raise RuntimeError("no store should do this")
        return await operation()

    async def bind_many(self, bindings: Sequence[Binding]) -> Sequence[ApiError | None]:
        nodes = await self.inner.resource("", "Node")
        for name in sorted({binding.node for binding in bindings}):
            if name.startswith("short-lived"):
                await self.inner.delete(nodes, name)
        return await super().bind_many(bindings)


@virtual
async def test_nodes_that_go_while_a_gang_is_bound_leave_nothing_behind() -> None:
    async with memory_store() as inner, scheduling(Unlucky(inner)) as runner:
        members = [pod(f"m{n}", "3", gang="g") for n in range(3)]
        await create(inner, pod_group("g", 3), *(node(f"short-lived-{n}") for n in range(3)), *members)
        await settle(120.0)
        assert runner.state == "running"
        assert not await objects(inner, "Placement", "muster.dev")
        assert runner.term is not None
        state = runner.term.engine.state
        assert len(state.nodes) == 0
        assert {record.uid for record in state.pods.values()} == {p["metadata"]["uid"] for p in await objects(inner, "Pod")}


@virtual
async def test_a_plan_that_can_not_be_written_in_any_known_way_is_tried_again() -> None:
    async with memory_store() as inner:
        store = Unlucky(inner)
        store.is_broken = "create placements"
        async with scheduling(store) as runner:
            await create(inner, pod_group("g", 2), node("n1"), *(pod(f"m{n}", gang="g") for n in range(2)))
            await settle()
            assert set((await places(inner)).values()) == {""}
            store.is_broken = ""
            await settle(200.0)
            assert set((await places(inner)).values()) == {"n1"}
            assert runner.is_idle


@virtual
async def test_a_victim_that_can_never_be_evicted_keeps_nobody_busy() -> None:
    """The engine chooses it again and again; each time it takes longer to come back."""
    async with memory_store() as inner:
        store = Unlucky(inner)
        async with scheduling(store, Scheduler(engine=engine_of)):
            await create(inner, node("n1", "2"), pod("low", "2", priority=1))
            await settle()
            store.is_broken = "delete pods"
            await create(inner, pod("high", "2", priority=10))
            await settle(120.0)
            assert 1 < store.refused < 20
            await create(inner, node("n2", "2"))
            await settle(120.0)
            assert (await places(inner)) == {"low": "n1", "high": "n2"}


@virtual
async def test_gangs_whose_members_come_and_go_are_forgotten_with_them() -> None:
    async with memory_store() as store, scheduling(store) as runner:
        await create(store, node("n1", "4"))
        pods = await store.resource("", "Pod")
        for turn in range(20):
            await create(store, *(pod(f"m{turn}-{n}", "3", gang=f"g{turn}") for n in range(3)))
            await settle(0.1)
            for n in range(3):
                await store.delete(pods, f"m{turn}-{n}", "default", grace_period_s=0)
        await settle(60.0)
        assert runner.is_idle
        assert runner.term is not None
        engine = runner.term.engine
        assert not engine.state.pods
        assert not engine.verdicts
        assert not engine.members.gangs
        assert not engine.waiting.units
        assert engine.state.nodes.free[0].tolist() == [4_000]
        assert PROFILE in engine.profiles
