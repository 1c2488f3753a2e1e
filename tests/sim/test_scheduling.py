"""The scheduler in the simulator: crashes between any two writes, storms, lost leases, machines that die. By seed.

What must hold at every moment: no node over its capacity, no pod on two nodes, nothing bound that names another scheduler. What
must hold in the end: everything that fits is placed, gangs are whole or wait, no Placement is left.
"""

from __future__ import annotations

import os

import pytest
from tests.controllers.scheduling import engine_of, pod, pod_group, used

from muster.controllers.pod_gc import PodGarbage
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.objects.meta import is_deleting, labels_of, name_of, uid_of
from muster.objects.status import Raw
from muster.sim.faults import CALM, STORMY, Faults, Moment
from muster.sim.machine import PodScript
from muster.sim.world import Chaos, World, simulate

SOAK = bool(os.environ.get("MUSTER_SOAK"))
SEEDS = range(60 if SOAK else 4)
CHAOS = Chaos(kill_every_s=40, partition_every_s=60, partition_s=(1, 20), lease_loss_every_s=300)
FOREVER = PodScript(run_s=None, stop_s=0.5)
GANG = "pod-group.scheduling.sigs.k8s.io"


def controllers() -> list[Runnable]:
    return [Scheduler(engine=engine_of), PodGarbage()]


async def never_oversubscribed(world: World) -> None:
    pods = await world.objects("", "Pod", "default")
    for where, cpus in used(pods).items():
        capacity = int(world.machines[where].capacity["cpu"])
        assert cpus <= capacity, f"{where} has {cpus} of {capacity} CPUs in use"


async def bound_once(world: World) -> None:
    seen: dict[str, str] = world.memory.setdefault("bound", {})
    for one in await world.objects("", "Pod", "default"):
        node = one["spec"].get("nodeName", "")
        assert node or not seen.get(uid_of(one)), f"{name_of(one)} lost its node"
        if node:
            assert seen.setdefault(uid_of(one), node) == node, f"{name_of(one)} moved"
            assert one["spec"]["schedulerName"] == "muster-scheduler", f"{name_of(one)} is not ours"


def guard(world: World) -> None:
    world.invariant("never oversubscribed", never_oversubscribed)
    world.invariant("bound once", bound_once)


def gangs_of(pods: list[Raw]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in pods:
        if (gang := labels_of(one).get(GANG)) and not is_deleting(one):
            found.setdefault(gang, []).append(one["spec"].get("nodeName", ""))
    return found


async def is_settled(world: World, placed: int) -> bool:
    """Gangs are whole or wait whole, `placed` pods have nodes, and no plan is left."""
    pods = await world.objects("", "Pod", "default")
    if await world.objects("muster.dev", "Placement"):
        return False
    whole = all(all(nodes) or not any(nodes) for nodes in gangs_of(pods).values())
    return whole and sum(bool(one["spec"].get("nodeName")) for one in pods) == placed


async def workload(world: World) -> None:
    """8 CPUs on two machines: three single pods, a gang of four that fits, one of six that never does, and a stranger."""
    for name, least in (("four", 4), ("six", 6)):
        await world.create(pod_group(name, least))
        for n in range(least):
            await world.create(pod(f"{name}-{n}", gang=name))
    for n in range(3):
        await world.create(pod(f"single-{n}"))
    await world.create(pod("stranger", scheduler="default-scheduler"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", range(1, 24 if SOAK else 13))
def test_a_crash_between_any_two_writes(write: int, moment: Moment) -> None:
    async def scenario(world: World) -> None:
        guard(world)
        await workload(world)
        world.add_machines(2, capacity={"cpu": "4", "memory": "8Gi", "pods": "50"}, script_for=lambda _pod: FOREVER)
        await world.run_for(5)
        world.faults = Faults(latency_s=CALM.latency_s, crash_at=(write, moment))
        world.add_manager("scheduler", controllers)
        await world.run_until(lambda: is_settled(world, 7), timeout_s=600, what="seven pods placed")
        await world.run_for(20)
        assert await is_settled(world, 7)

    _, trace = simulate(scenario, seed=write)
    assert any("scheduler" in line and f"crashed {moment}" in line for line in trace), "it never came to that write"


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_storms(seed: int) -> None:
    """Two replicas, every fault there is, and work that comes and ends all the time."""

    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("scheduler", controllers, replicas=2)
        world.add_machines(3, capacity={"cpu": "4", "memory": "8Gi", "pods": "50"}, script_for=lambda _pod: PodScript(run_s=20))
        chance = world.loop.entropy.stream("work")
        for n in range(12):
            if chance.random() < 0.4:
                size = chance.choice([2, 3, 5])
                await world.create(pod_group(f"g{n}", size))
                for member in range(size):
                    await world.create(pod(f"g{n}-{member}", str(chance.choice([1, 2])), gang=f"g{n}"))
            else:
                await world.create(pod(f"p{n}", str(chance.choice([1, 2, 3]))))
            await world.run_for(chance.uniform(1, 10))
        await world.run_for(60)
        world.calm_down()

        async def all_ran() -> bool:
            pods = await world.objects("", "Pod", "default")
            return all((one.get("status") or {}).get("phase") in ("Succeeded", "Failed") for one in pods) and not (
                await world.objects("muster.dev", "Placement")
            )

        await world.run_until(all_ran, timeout_s=1_800, what="everything ran")

    simulate(scenario, seed=seed, faults=STORMY, chaos=CHAOS)


def test_a_machine_that_dies_silently_is_not_given_away() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("scheduler", controllers)
        [machine] = world.add_machines(1, capacity={"cpu": "2", "memory": "8Gi", "pods": "50"}, script_for=lambda _pod: FOREVER)
        await world.create(pod("a", "2"))
        await world.run_until(lambda: is_settled(world, 1), timeout_s=60)
        world.switch_off(machine)
        await world.create(pod("b", "2"))
        await world.run_for(300)
        assert await is_settled(world, 1)

    simulate(scenario)


def test_the_same_seed_gives_the_same_trace() -> None:
    async def scenario(world: World) -> None:
        world.add_manager("scheduler", controllers)
        world.add_machines(2, capacity={"cpu": "4", "memory": "8Gi", "pods": "50"})
        await workload(world)
        await world.run_for(30)

    first, second = simulate(scenario, seed=5)[1], simulate(scenario, seed=5)[1]
    assert first == second


@pytest.mark.parametrize("seed", range(4))
def test_a_late_view_of_a_pod_does_not_free_its_place(seed: int) -> None:
    """The answer to a binding may be quicker than the watch, which then still shows the pod without a node."""

    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("scheduler", controllers)
        world.add_machines(1, capacity={"cpu": "3", "memory": "8Gi", "pods": "50"}, script_for=lambda _pod: FOREVER)
        pods = await world.store.resource("", "Pod")
        await world.create(pod("filler"))
        await world.run_until(lambda: is_settled(world, 1), timeout_s=60)
        await world.create(pod("older", "3"))
        await world.run_for(5)
        await world.create(pod("newer", "2"))
        for step in range(4):
            await world.store.patch(pods, "newer", {"metadata": {"labels": {"step": str(step)}}}, "default")
            await world.run_for(0.2)
        await world.store.delete(pods, "filler", "default", grace_period_s=0)
        await world.store.patch(pods, "newer", {"metadata": {"labels": {"step": "last"}}}, "default")
        await world.run_for(30)
        assert await is_settled(world, 1)

    simulate(scenario, seed=seed, faults=Faults(latency_s=(0.0, 0.01), watch_lag_s=(1.0, 2.0)))
