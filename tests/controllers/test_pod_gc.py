"""Pods whose node was deleted, and too many finished ones."""

from __future__ import annotations

import asyncio

import pytest
from tests.store.stores import memory_store, pod

from muster.controllers.actions import Delete, Target
from muster.controllers.manager import Manager
from muster.controllers.pod_gc import FinishedPod, PodGarbage, plan_finished, plan_orphans
from muster.objects.status import Raw
from muster.sim.clock import current_loop, virtual
from muster.sim.machine import PodScript
from muster.sim.world import World, simulate
from muster.store.embedded import EmbeddedStore

TARGET = Target("", "Pod", "p", "default", "u1")


@pytest.mark.parametrize(
    ("pods", "missed_s", "deletes", "again_s"),
    [
        pytest.param([], 100.0, 0, None, id="nothing to do"),
        pytest.param([TARGET], 0.0, 0, 40.0, id="just missed"),
        pytest.param([TARGET], 39.0, 0, 1.0, id="still waiting"),
        pytest.param([TARGET, TARGET], 40.0, 2, None, id="long enough"),
    ],
)
def test_orphans(pods: list[Target], missed_s: float, deletes: int, again_s: float | None) -> None:
    actions, again = plan_orphans(pods, missed_s)
    assert actions == [Delete(TARGET, grace_period_s=0)] * deletes
    assert again == again_s


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param(3, [], id="within the limit"),
        pytest.param(2, ["b"], id="the oldest goes"),
        pytest.param(1, ["b", "a"], id="same second: by name"),
        pytest.param(0, ["b", "a", "c"], id="all"),
    ],
)
def test_finished(limit: int, expected: list[str]) -> None:
    pods = [
        FinishedPod("2026-01-05T08:00:02Z", ("default", "c", "u3")),
        FinishedPod("2026-01-05T08:00:02Z", ("default", "a", "u1")),
        FinishedPod("2026-01-05T08:00:01Z", ("default", "b", "u2")),
    ]
    actions = plan_finished(pods, limit)
    assert [a.target.name for a in actions if isinstance(a, Delete)] == expected


async def names(store: EmbeddedStore) -> list[str]:
    return [p["metadata"]["name"] for p in (await store.list(await store.resource("", "Pod"), "default")).items]


@virtual
async def test_only_the_newest_finished_pods_are_kept() -> None:
    async with memory_store() as store:
        pods = await store.resource("", "Pod")
        manager = Manager(store, [PodGarbage(finished_max=2)], clock=current_loop().clock)
        manager.start()
        for n in range(5):
            await store.create(pods, pod(f"p{n}"), "default")
            await asyncio.sleep(2)
            if n != 1:
                await store.patch(pods, f"p{n}", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
            await asyncio.sleep(2)
        assert await names(store) == ["p1", "p3", "p4"], "p1 has not finished"
        await manager.stop()


def test_pods_of_a_deleted_node_go_but_those_of_a_silent_one_stay() -> None:
    async def scenario(world: World) -> None:
        world.add_manager("controllers", lambda: [PodGarbage()])
        machines = world.add_machines(2, script_for=lambda _pod: PodScript(run_s=None))
        for n in (1, 2):
            await world.create(pod(f"p{n}"))
            await world.store.bind(f"p{n}", "default", f"node-{n}")
        await world.run_for(10)
        for machine in machines:
            world.switch_off(machine)
        await world.run_for(600)
        assert sorted(await _names(world)) == ["p1", "p2"]
        await world.store.delete(await world.store.resource("", "Node"), "node-1")
        await world.run_for(35)
        assert sorted(await _names(world)) == ["p1", "p2"]
        await world.run_for(10)
        assert await _names(world) == ["p2"]

    simulate(scenario)


def test_a_node_that_was_deleted_by_mistake_comes_back_and_keeps_its_pods() -> None:
    async def scenario(world: World) -> None:
        world.add_manager("controllers", lambda: [PodGarbage()])
        world.add_machines(1, script_for=lambda _pod: PodScript(run_s=None))
        await world.create(pod("p1"))
        await world.store.bind("p1", "default", "node-1")
        await world.run_for(10)
        await world.store.delete(await world.store.resource("", "Node"), "node-1")
        await world.run_for(300)
        assert await _names(world) == ["p1"]
        assert len(await world.objects("", "Node")) == 1

    simulate(scenario)


async def _names(world: World) -> list[str]:
    found: list[Raw] = await world.objects("", "Pod", "default")
    return [p["metadata"]["name"] for p in found]
