"""Nodes that go silent, with the real controllers: what is marked, what is replaced, and that nothing ever runs twice.

The machines of these worlds have a guard that outlives their agent, when they have a fence at all: so a fence holds whether the
agent, the machine or the network between it and the control plane is what failed.
"""

from __future__ import annotations

import asyncio
import functools
import os
from typing import Any

import pytest
from tests.controllers.scheduling import engine_of
from tests.sim.test_own_jobs import CAPACITY, guard, is_settled, job, phases, role, status

from muster.controllers.job import JobController
from muster.controllers.node_lifecycle import MARGIN_S, NodeLifecycle
from muster.controllers.pod_gc import PodGarbage
from muster.controllers.pod_groups import PodGroups
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.engine.machine import Engine
from muster.engine.plugins.node_ready import NodeReady
from muster.engine.plugins.taint_toleration import TaintToleration
from muster.objects.status import Raw
from muster.sim.agent import AgentTiming
from muster.sim.faults import STORMY
from muster.sim.machine import Machine, PodScript
from muster.sim.world import Chaos, World, simulate

SOAK = bool(os.environ.get("MUSTER_SOAK"))
SEEDS = range(100 if SOAK else 2)
FENCE_S = 60
PLAIN = AgentTiming()
FENCED = AgentTiming(fence_s=FENCE_S)
SILENT_S = PLAIN.lease_s + 5.0
CHAOS = Chaos(kill_every_s=120, partition_every_s=120, partition_s=(1, 20), restart_s=(0.1, 5))
STORM_FENCE = AgentTiming(fence_s=150)
"""Much longer than the lease: whoever takes silence alone for an end is found out."""


def engine() -> Engine:
    return engine_of(NodeReady(), TaintToleration())


def controllers() -> list[Runnable]:
    return [Scheduler(engine=engine), JobController(), PodGroups(), PodGarbage(), NodeLifecycle()]


async def node(world: World, name: str) -> Raw:
    return await world.store.get(await world.store.resource("", "Node"), name)


async def ready(world: World, name: str) -> tuple[str, str]:
    conditions = (await node(world, name))["status"]["conditions"]
    (found,) = (c for c in conditions if c["type"] == "Ready")
    return found["status"], found["reason"]


async def taints(world: World, name: str) -> list[str]:
    return [taint["key"] for taint in (await node(world, name))["spec"].get("taints") or ()]


async def _no_taints(world: World) -> bool:
    return not any([await taints(world, name) for name in world.machines])


def endless(_pod: Raw) -> PodScript:
    return PodScript(run_s=None)


async def _is(world: World, name: str, phase: str, attempts: int) -> bool:
    found = await status(world, name)
    return (found.get("phase"), found.get("attempts")) == (phase, attempts)


def _partition(world: World, machine: Machine, seconds: float) -> None:
    store = world.components[f"agent-{machine.name}"].store
    assert store is not None
    store.partition(seconds)


@pytest.mark.slow
def test_without_a_fence_nothing_is_replaced() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        first, _ = world.add_machines(2, capacity=CAPACITY, script_for=endless)
        world.add_manager("controllers", controllers)
        await world.create(job("train", role("w", 2, 4)))
        await world.run_until(functools.partial(_is, world, "train", "Running", 1), timeout_s=60)
        await world.run_for(15)  # every node has a lease by now
        _partition(world, first, 3_000)
        world.add_machines(1, prefix="spare", capacity=CAPACITY, script_for=endless)
        await world.run_for(SILENT_S + 5)
        assert await ready(world, first.name) == ("Unknown", "NodeStatusUnknown")
        assert await taints(world, first.name) == ["node.kubernetes.io/unreachable"]
        await world.run_for(2_000)
        assert await _is(world, "train", "Running", 1), "it may still run there"
        assert len(first.running(world.loop.time())) == 1
        await world.run_for(1_200)
        assert await ready(world, first.name) == ("True", "KubeletReady"), "it is back"
        assert await taints(world, first.name) == []
        assert await _is(world, "train", "Running", 1)

    simulate(scenario)


def test_an_administrator_gives_a_node_up() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        first, _ = world.add_machines(2, capacity=CAPACITY, script_for=endless)
        world.add_manager("controllers", controllers)
        await world.create(job("train", role("w", 2, 4)))
        await world.run_until(functools.partial(_is, world, "train", "Running", 1), timeout_s=60)
        await world.run_for(15)  # every node has a lease by now
        world.switch_off(first)
        world.add_machines(1, prefix="spare", capacity=CAPACITY, script_for=endless)
        await world.run_for(600)
        assert await _is(world, "train", "Running", 1)
        await world.store.delete(await world.store.resource("", "Node"), first.name)
        await world.run_until(functools.partial(_is, world, "train", "Running", 2), timeout_s=300)

    simulate(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["switched off", "cut off", "agent dead"])
def test_after_its_fence_work_starts_elsewhere(how: str) -> None:
    async def scenario(world: World) -> None:
        guard(world)
        first, _ = world.add_machines(2, capacity=CAPACITY, script_for=endless, timing=FENCED)
        world.add_manager("controllers", controllers)
        await world.create(job("train", role("w", 2, 4)))
        await world.run_until(functools.partial(_is, world, "train", "Running", 1), timeout_s=60)
        await world.run_for(15)  # every node has a lease by now
        if how == "switched off":
            world.switch_off(first)
        elif how == "cut off":
            _partition(world, first, 400)
        else:
            component = world.components[f"agent-{first.name}"]
            component.is_wanted = False
            component.kill("the agent alone")
        world.add_machines(1, prefix="spare", capacity=CAPACITY, script_for=endless, timing=FENCED)
        await world.run_for(FENCED.lease_s + FENCE_S + MARGIN_S - 15)
        assert await _is(world, "train", "Running", 1), "not before it is certain"
        await world.run_until(functools.partial(_is, world, "train", "Running", 2), timeout_s=120)
        assert first.running(world.loop.time()) == []
        assert (await status(world, "train"))["preemptions"] == 1, "its node ended it, not its own fault"
        events = await world.objects("", "Event")
        assert {"NodeNotReady", "NodeLost"} <= {event["reason"] for event in events}
        await world.run_for(600)
        assert await _is(world, "train", "Running", 2), "what comes back disturbs nothing"
        if how == "cut off":
            assert await ready(world, first.name) == ("True", "KubeletReady")

    simulate(scenario)


def test_nodes_without_a_lease_are_left_alone() -> None:
    async def scenario(world: World) -> None:
        condition = {"type": "Ready", "status": "False", "reason": "ByHand"}
        taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}
        made: Any = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "by-hand"}}
        await world.create({**made, "spec": {"taints": [taint]}, "status": {"conditions": [condition]}})
        before = await node(world, "by-hand")
        world.add_manager("controllers", lambda: [NodeLifecycle()])
        await world.run_for(600)
        assert await node(world, "by-hand") == before

    simulate(scenario)


def test_a_controller_that_was_away_judges_nobody_at_once() -> None:
    """The leases are all old when it starts: that says nothing about the agents."""

    async def scenario(world: World) -> None:
        guard(world)
        (machine,) = world.add_machines(1, capacity=CAPACITY, script_for=endless, timing=FENCED)
        (component,) = world.add_manager("controllers", controllers)
        await world.create(job("train", role("w", 1, 4)))
        await world.run_until(functools.partial(_is, world, "train", "Running", 1), timeout_s=60)
        await world.run_for(15)  # every node has a lease by now
        component.is_wanted = False
        component.kill("for a while")
        _partition(world, machine, 50)  # shorter than its fence
        await world.run_for(45)
        component.is_wanted = True
        component.start()
        await world.run_for(400)
        assert await _is(world, "train", "Running", 1)
        assert not any("NodeLost" in line for line in world.trace)

    simulate(scenario)


def _revive(world: World, machine: Machine) -> None:
    component = world.components[f"agent-{machine.name}"]
    component.is_wanted = True
    if not component.is_up:
        component.start()


async def _harm_machines(world: World, rounds: int) -> None:
    """Silences that are shorter and longer than the lease, the fence, and both together; of each kind that there is."""
    chance = world.loop.entropy.stream("harm")
    for _ in range(rounds):
        await world.run_for(chance.uniform(20, 120))
        machine = chance.choice(list(world.machines.values()))
        component, silence_s = world.components[f"agent-{machine.name}"], chance.uniform(1, 400)
        if not component.is_up or not machine.is_on:
            continue
        how = chance.choice(["off", "cut", "dead"])
        if how == "cut" and component.store is not None:
            component.store.partition(silence_s)
        elif how == "off":
            world.switch_off(machine)
            await world.run_for(silence_s)
            world.switch_on(machine)
        elif how == "dead":
            component.is_wanted = False
            component.kill("for a while")
            await world.run_for(silence_s)
            _revive(world, machine)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_storms(seed: int) -> None:
    """Every fault there is, silences of any length, with a fence: nothing runs twice, and all succeed in the end."""

    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers, replicas=2)
        world.add_machines(4, capacity=CAPACITY, script_for=lambda _pod: PodScript(run_s=250.0), timing=STORM_FENCE)
        chance = world.loop.entropy.stream("owners")
        wanted: dict[str, str] = {}
        harm = [asyncio.create_task(_harm_machines(world, 1_000)) for _ in range(2)]
        try:
            for n in range(6):
                roles = [role("w", chance.choice([1, 2, 3]), chance.choice([1, 2]))]
                retry = {"limit": 50, "backoffSeconds": 3, "backoffSecondsMax": 5}
                await world.create(job(f"job-{n}", *roles, retry=retry))
                wanted[f"job-{n}"] = "Succeeded"
                await world.run_for(chance.uniform(50, 250))
        finally:
            for task in harm:
                task.cancel()
            await asyncio.gather(*harm, return_exceptions=True)
        for machine in world.machines.values():
            if not machine.is_on:
                world.switch_on(machine)
            _revive(world, machine)
        world.calm_down()
        await world.run_for(30)
        what = f"{wanted}, not {await phases(world)}"
        await world.run_until(lambda: is_settled(world, wanted), timeout_s=7_200, what=what)
        await world.run_until(lambda: _no_taints(world), timeout_s=900, what="all nodes are open again")

    simulate(scenario, seed=seed, faults=STORMY, chaos=CHAOS)
