"""All or nothing under contention, in one control plane and in two: many short runs, each a seed of its own.

What `test_two_planes` and `test_jobs` put through storms, here on an ordinary day (with a crash now and then), cheap enough
for ten thousand runs. In each, tasks that do not fit beside each other come within seconds. At no moment is a pod of a task on
a node while a party that must take part has no place; and in the end all of them have run, since each fits on an empty cluster.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from tests.controllers.tasks import PARTY_LABEL, group, party, pods_of
from tests.sim.test_two_planes import NAMES, Task, all_or_nothing, all_ran, assemble, domain, start_everywhere
from tests.sim.watching import never_oversubscribed

from muster.controllers.scheduler import Scheduler
from muster.controllers.task_reservation import TaskReservation
from muster.objects.time import format_time
from muster.sim.machine import PodScript
from muster.sim.planes import Planes, simulate_planes

SOAK = bool(os.environ.get("MUSTER_SOAK"))
RUNS = 5_000 if SOAK else 20
RUNS_PER_TEST = 100 if SOAK else 5
PARTIES = ("alice", "bob", "carol")
CPUS = 3
RUN_S = 10.0


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, RUNS, RUNS_PER_TEST))
def test_one_control_plane(first: int) -> None:
    for seed in range(first, first + RUNS_PER_TEST):
        simulate_planes(one_plane, NAMES[:1], seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, RUNS, RUNS_PER_TEST))
def test_two_control_planes(first: int) -> None:
    for seed in range(first, first + RUNS_PER_TEST):
        simulate_planes(two_planes, NAMES, seed=seed)


def test_a_pod_that_joins_its_task_waits_for_the_plan_of_the_others() -> None:
    """Of two decisions about one task within a millisecond, the second, of one pod, was bound before the first was stored."""
    simulate_planes(one_plane, NAMES[:1], seed=1343)


async def one_plane(planes: Planes) -> None:
    """Three parties with a machine each."""
    [world] = planes.worlds.values()
    world.memory["tasks"] = tasks = {}
    for one in PARTIES:
        await world.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one}})
        await world.create(domain(one, is_partner=False))
        world.add_machines(
            1,
            prefix=one,
            capacity={"cpu": str(CPUS), "memory": "64Gi", "pods": "100"},
            labels={PARTY_LABEL: one},
            script_for=lambda _pod: PodScript(run_s=RUN_S, stop_s=0.5),
        )
    world.add_manager("manager", lambda: [Scheduler(), TaskReservation()])
    planes.invariant("all or nothing", lambda: all_or_nothing(planes))
    planes.invariant("never oversubscribed", lambda: never_oversubscribed(planes))
    chance = world.loop.entropy.stream("work")
    for n in range(chance.randint(3, 5)):
        sizes = {one: chance.randint(1, CPUS) for one in chance.sample(PARTIES, chance.choice((2, 3)))}
        task = Task(f"t{n}", next(iter(sizes)), sizes, _least(chance, len(sizes)), format_time(planes.clock()))
        tasks[task.name] = task
        parties = [party(name, task.name, pods=pods) for name, pods in sizes.items()]
        made = await world.create(group(task.name, parties, least=task.least, initiator=task.initiator, created=task.created))
        pods = pods_of(made)
        chance.shuffle(pods)
        for pod in pods:
            await world.create(pod)
            if chance.random() < 0.1:
                await planes.run_for(chance.uniform(0, 1))
        await _disturb(planes, chance)
    await planes.run_until(lambda: all_ran(planes), timeout_s=3_000, every_s=5, what="everything ran")


async def two_planes(planes: Planes) -> None:
    """Two parties of one plane share a machine; the third has its own, behind the other plane."""
    await assemble(planes, cpus=CPUS, run_s=RUN_S)
    chance = next(iter(planes.worlds.values())).loop.entropy.stream("work")
    for n in range(chance.randint(2, 3)):
        sizes = {name: chance.randint(1, CPUS) for name in NAMES}
        if chance.random() < 0.3 and sizes["alice"] < CPUS:
            sizes["carol"] = chance.randint(1, CPUS - sizes["alice"])
        task = Task(f"t{n}", chance.choice(NAMES), sizes, _least(chance, len(sizes)), format_time(planes.clock()))
        await start_everywhere(planes, task, (chance.uniform(0, 2), chance.uniform(0, 2)))
        await _disturb(planes, chance)
    await planes.run_until(lambda: all_ran(planes), timeout_s=3_000, every_s=5, what="everything ran")


def _least(chance: Random, parties: int) -> int:
    return parties if chance.random() < 0.75 else chance.randint(1, parties)


async def _disturb(planes: Planes, chance: Random) -> None:
    """Time passes; once in a while something dies or the planes lose each other."""
    await planes.run_for(chance.uniform(0, 4))
    if chance.random() < 0.1:
        world = chance.choice(list(planes.worlds.values()))
        chance.choice(list(world.components.values())).kill()
    if chance.random() < 0.1:
        planes.cut(chance.uniform(1, 20))
