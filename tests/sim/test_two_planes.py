"""Two control planes that share tasks: contention, faults, crashes and partitions, by seed.

What must hold at every moment: no pod of a task is on a node while a party that must take part has neither promised a place nor
pods on nodes; no node is over its capacity. What must hold in the end: every task that an empty cluster would take has run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from tests.controllers.scheduling import engine_of
from tests.controllers.tasks import group, party, pods_of
from tests.sim.watching import begun, never_oversubscribed, snapshot

from muster.controllers.interconn import Interconn
from muster.controllers.interconn_host import InterconnHost
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.controllers.task_reservation import TaskReservation
from muster.objects.meta import name_of, namespace_of
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.sim.faults import CALM, STORMY, Faults, Moment
from muster.sim.machine import PodScript
from muster.sim.planes import Planes, simulate_planes
from muster.sim.world import NO_CHAOS, Chaos, World

SOAK = bool(os.environ.get("MUSTER_SOAK"))
SEEDS = 300 if SOAK else 6
SEEDS_PER_TEST = 10 if SOAK else 1
NAMES = ("alice", "bob")
PLANE_OF = {"alice": "alice", "carol": "alice", "bob": "bob"}
"""Whose control plane a party belongs to."""
KUSCIA = "kuscia.secretflow"
CHAOS = Chaos(kill_every_s=60, partition_every_s=60, partition_s=(1, 30), lease_loss_every_s=200)


class Task(NamedTuple):
    name: str
    initiator: str
    pods: dict[str, int]
    """By party."""
    least: int = 2
    created: str = "2026-01-01T00:00:00Z"


def controllers() -> list[Runnable]:
    return [Scheduler(engine=engine_of), TaskReservation(), InterconnHost()]


def domain(name: str, *, is_partner: bool) -> Raw:
    spec = {"role": "partner", "interConnProtocols": ["kuscia"], "master": PLANE_OF[name]} if is_partner else {}
    return {"apiVersion": f"{KUSCIA}/v1alpha1", "kind": "Domain", "metadata": {"name": name}, "spec": spec}


async def assemble(planes: Planes, *, cpus: int = 4, run_s: float | None = 20, replicas: int = 1) -> None:
    """Both planes know each other; each has one machine, and what a control plane runs."""
    for name, world in planes.worlds.items():
        for one, plane in PLANE_OF.items():
            await world.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one}})
            await world.create(domain(one, is_partner=plane != name))
        script = PodScript(run_s=run_s, stop_s=0.5)
        capacity = {"cpu": str(cpus), "memory": "64Gi", "pods": "100"}
        world.add_machines(1, prefix=name, capacity=capacity, script_for=lambda _pod, script=script: script)  # type: ignore[misc]
        world.add_manager(f"{name}-manager", controllers, replicas=replicas)
        other = NAMES[1 - NAMES.index(name)]
        planes.link(name, "interconn", other, lambda host, name=name: [Interconn(host, name)])  # type: ignore[misc]
    planes.invariant("all or nothing", lambda: all_or_nothing(planes))
    planes.invariant("never oversubscribed", lambda: never_oversubscribed(planes))


async def start(world: World, plane: str, task: Task) -> None:
    """What the task controller of one plane makes."""
    parties = [party(name, task.name, pods=pods) for name, pods in task.pods.items()]
    own = [one for one in parties if PLANE_OF[one["domainID"]] == plane]
    others = [{**one, "pods": []} for one in parties if PLANE_OF[one["domainID"]] != plane]
    made = await world.create(
        group(
            task.name,
            own,
            others,
            least=task.least,
            initiator=task.initiator,
            is_member=plane != task.initiator,
            created=task.created,
        )
    )
    for pod in pods_of(made):
        await world.create(pod)


async def start_everywhere(planes: Planes, task: Task, delays_s: Sequence[float] = (0.0, 0.0)) -> None:
    for (plane, world), delay_s in zip(planes.worlds.items(), delays_s, strict=True):
        world.memory.setdefault("tasks", {})[task.name] = task
        await planes.run_for(delay_s)
        await start(world, plane, task)


# -- what must always hold -----------------------------------------------------------------------------------------------------


async def all_or_nothing(planes: Planes) -> None:
    tasks: dict[str, Task] = next(iter(planes.worlds.values())).memory.get("tasks", {})
    planes_now = [await snapshot(world) for world in planes.worlds.values()]
    for name in {task for plane in planes_now for task in plane.begun} & tasks.keys():
        task = tasks[name]
        ready = [who for who, pods in task.pods.items() if sum(plane.places[name, who] for plane in planes_now) >= pods]
        assert len(ready) >= task.least, f"{name} has begun, and only {ready} of {list(task.pods)} have a place"


async def all_ran(planes: Planes) -> bool:
    for world in planes.worlds.values():
        pods = await world.objects("", "Pod")
        if any((pod.get("status") or {}).get("phase") != "Succeeded" for pod in pods):
            return False
        if await world.objects("muster.dev", "Placement"):
            return False
    return True


async def phases(world: World) -> dict[str, str]:
    return {name_of(one): one["status"].get("phase", "") for one in await world.objects(KUSCIA, "TaskResourceGroup")}


# -- scenarios -----------------------------------------------------------------------------------------------------------------


def test_a_task_of_two_planes_starts_at_both() -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        await start_everywhere(planes, Task("t", "alice", {"alice": 2, "bob": 1}))
        await planes.run_until(lambda: all_ran(planes), timeout_s=60, what="the task ran")
        for world in planes.worlds.values():
            assert await phases(world) == {"t": "Reserved"}
            assert {one["status"]["phase"] for one in await world.objects(KUSCIA, "TaskResource")} == {"Schedulable"}

    _, trace = simulate_planes(scenario, NAMES)
    plans = [line for line in trace if "create placements" in line]
    assert len(plans) == 2, "what was promised is what was carried out"


def test_a_plane_with_two_parties_votes_for_both() -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        await start_everywhere(planes, Task("t", "bob", {"alice": 1, "carol": 2, "bob": 1}, 3))
        await planes.run_until(lambda: all_ran(planes), timeout_s=60, what="the task ran")
        bob = planes.worlds["bob"]
        [summary] = await bob.objects(KUSCIA, "KusciaTaskSummary")
        assert namespace_of(summary) == "alice"
        assert sorted(summary["status"]["resourceStatus"]) == ["alice", "carol"]

    simulate_planes(scenario, NAMES)


def test_an_initiator_may_have_no_part_of_its_own() -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        await start_everywhere(planes, Task("t", "alice", {"bob": 3}, 1))
        await planes.run_until(lambda: all_ran(planes), timeout_s=60, what="the task ran")
        for world in planes.worlds.values():
            assert await phases(world) == {"t": "Reserved"}

    simulate_planes(scenario, NAMES)


@pytest.mark.parametrize("who", ["pod", "node"])
def test_a_promise_that_is_lost_while_the_scheduler_is_down_is_asked_back(who: str) -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        task = Task("t", "alice", {"alice": 1, "bob": 2})
        for world in planes.worlds.values():
            world.memory["tasks"] = {"t": task}
        alice, bob = planes.worlds["alice"], planes.worlds["bob"]
        await start(bob, "bob", task)
        made = await alice.create(group("t", [party("alice", "t")], [{**party("bob", "t"), "pods": []}], created=task.created))
        await planes.run_until(lambda: _voted(bob), timeout_s=60, what="bob's vote")
        bob.components["bob-manager"].is_wanted = False
        bob.components["bob-manager"].kill()
        if who == "pod":
            pods = await bob.store.resource("", "Pod")
            [lost] = [one for one in await bob.objects("", "Pod") if name_of(one) == "t-0"]
            await bob.store.delete(pods, "t-0", "bob", grace_period_s=0)
            for key in ("uid", "resourceVersion", "creationTimestamp"):
                del lost["metadata"][key]
        else:
            bob.switch_off(bob.machines["bob-1"])
            await bob.store.delete(await bob.store.resource("", "Node"), "bob-1")
        bob.components["bob-manager"].is_wanted = True
        bob.components["bob-manager"].start()
        await planes.run_for(10)
        assert not await bob.objects("muster.dev", "Placement")
        if who == "pod":
            await bob.create(lost)
        else:
            bob.switch_on(bob.machines["bob-1"])
        for pod in pods_of(made):
            await alice.create(pod)
        await planes.run_until(lambda: all_ran(planes), timeout_s=600, what="the task ran")
        [found] = await alice.objects(KUSCIA, "TaskResourceGroup")
        assert found["status"]["retryCount"] >= 1, "the try in which it was promised was given up"

    simulate_planes(scenario, NAMES)


def test_nothing_starts_while_the_partner_has_no_room() -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        await start_everywhere(planes, Task("t", "alice", {"alice": 1, "bob": 5}))
        alice = planes.worlds["alice"]
        tries = 0
        for _ in range(20):
            await planes.run_for(20)
            [found] = await alice.objects(KUSCIA, "TaskResourceGroup")
            tries = found["status"].get("retryCount", 0)
        assert tries >= 4, "the initiator gives up a try that does not succeed, and begins another"
        assert not await begun(planes)

    simulate_planes(scenario, NAMES)


def test_tasks_that_hold_a_party_each_do_not_block_each_other() -> None:
    """Each fills both parties, and each is first at its own."""

    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        one, other = Task("a", "alice", {"alice": 4, "bob": 4}), Task("b", "bob", {"bob": 4, "alice": 4})
        alice, bob = planes.worlds["alice"], planes.worlds["bob"]
        for world in (alice, bob):
            world.memory["tasks"] = {"a": one, "b": other}
        await start(alice, "alice", one)
        await start(bob, "bob", other)
        await planes.run_for(5)
        await start(bob, "bob", one)
        await start(alice, "alice", other)
        await planes.run_until(lambda: all_ran(planes), timeout_s=900, what="both ran")

    simulate_planes(scenario, NAMES)


def test_a_partner_that_is_cut_off_holds_until_the_initiator_has_decided() -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        task = Task("t", "alice", {"alice": 1, "bob": 1})
        for world in planes.worlds.values():
            world.memory["tasks"] = {"t": task}
        await start(planes.worlds["bob"], "bob", task)
        await start(planes.worlds["alice"], "alice", task)
        await planes.run_until(lambda: _voted(planes.worlds["bob"]), timeout_s=60, every_s=0.001, what="bob's vote")
        planes.cut(200)
        await planes.run_for(150)
        assert not await begun(planes), "nobody began"
        [kept] = await planes.worlds["bob"].objects("muster.dev", "Placement")
        assert kept["spec"]["heldUntil"]
        await planes.run_until(lambda: all_ran(planes), timeout_s=600, what="the task ran")

    simulate_planes(scenario, NAMES)


async def _voted(world: World) -> bool:
    return any(one["status"]["phase"] == "Reserved" for one in await world.objects(KUSCIA, "TaskResource", "bob"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", range(1, 24) if SOAK else range(1, 14, 4))
@pytest.mark.parametrize("who", ["alice-manager", "bob-manager", "bob-interconn"])
def test_a_crash_between_any_two_writes(who: str, write: int, moment: Moment) -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        for world in planes.worlds.values():
            for component in world.components.values():
                if component.name == who and component.store is not None:
                    component.store.faults = Faults(latency_s=CALM.latency_s, crash_at=(write, moment))
        await start_everywhere(planes, Task("t", "alice", {"alice": 2, "bob": 1}))
        await planes.run_until(lambda: all_ran(planes), timeout_s=600, what="the task ran")

    simulate_planes(scenario, NAMES, seed=write)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_storms(first: int) -> None:
    """Contended tasks of both parties from both sides: on an ordinary day, with every fault, and with every fault and chaos."""
    for seed in range(first, first + SEEDS_PER_TEST):
        faults, chaos, replicas = ((CALM, NO_CHAOS, 1), (STORMY, NO_CHAOS, 1), (STORMY, CHAOS, 2))[seed % 3]
        storm(seed, faults, chaos, replicas)


def storm(seed: int, faults: Faults, chaos: Chaos, replicas: int) -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes, replicas=replicas)
        chance = next(iter(planes.worlds.values())).loop.entropy.stream("work")
        for n in range(chance.randint(2, 5)):
            sizes = {name: chance.randint(1, 4) for name in NAMES}
            if chance.random() < 0.3 and sizes["alice"] < 4:
                sizes["carol"] = chance.randint(1, 4 - sizes["alice"])
            least = len(sizes) if chance.random() < 0.75 else chance.randint(1, len(sizes))
            task = Task(f"t{n}", chance.choice(NAMES), sizes, least, format_time(planes.clock()))
            await start_everywhere(planes, task, (chance.uniform(0, 5), chance.uniform(0, 5)))
            if chance.random() < 0.3:
                planes.cut(chance.uniform(1, 60))
            await planes.run_for(chance.uniform(0, 20))
        await planes.run_for(chance.uniform(0, 120))
        planes.calm_down()
        await planes.run_until(lambda: all_ran(planes), timeout_s=3_000, every_s=5, what="everything ran")

    simulate_planes(scenario, NAMES, seed=seed, faults=faults, chaos=chaos)


def test_the_same_seed_gives_the_same_trace() -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        await start_everywhere(planes, Task("t", "alice", {"alice": 2, "bob": 1}))
        await planes.run_for(30)

    first, second = (simulate_planes(scenario, NAMES, seed=5, faults=STORMY)[1] for _ in range(2))
    assert first == second
