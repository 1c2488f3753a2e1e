"""Jobs (muster.dev) with the real scheduler and simulated agents: crashes at any write, storms, preemption, lost machines.

What must hold at every moment: no replica runs twice at once, no node is over its capacity, an end stays an end. What must hold
in the end: every job is where its spec wants it, and nothing of it waits or runs that should not.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest
from tests.controllers.scheduling import engine_of

from muster.controllers.job import JobController
from muster.controllers.pod_gc import PodGarbage
from muster.controllers.pod_groups import PodGroups
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.objects.meta import annotations_of, labels_of, name_of, uid_of
from muster.objects.status import Raw
from muster.sim.faults import CALM, STORMY, Faults, Moment
from muster.sim.machine import PodScript
from muster.sim.world import Chaos, World, simulate

SOAK = bool(os.environ.get("MUSTER_SOAK"))
SEEDS = range(40 if SOAK else 3)
CHAOS = Chaos(kill_every_s=40, partition_every_s=60, partition_s=(1, 20), lease_loss_every_s=300)
CAPACITY = {"cpu": "4", "memory": "8Gi", "pods": "50"}
RUN_S = 15.0


def controllers() -> list[Runnable]:
    return [Scheduler(engine=engine_of), JobController(), PodGroups(), PodGarbage()]


def role(name: str, replicas: int = 1, cpu: int = 1, **more: Any) -> Raw:
    return {"name": name, "replicas": replicas, "command": ["x"], "resources": {"requests": {"cpu": cpu}}, **more}


def job(name: str, *roles: Raw, **spec: Any) -> Raw:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"roles": list(roles), **spec},
    }


def script(pod: Raw) -> PodScript:
    """Services run until they are stopped. What is called `flaky` fails in its first attempt, `broken` always."""
    name, attempt = name_of(pod), annotations_of(pod).get("muster.dev/attempt")
    if labels_of(pod).get("muster.dev/role") == "ps":
        return PodScript(run_s=None)
    fails = name.startswith("broken") or (name.startswith("flaky") and attempt == "1")
    return PodScript(run_s=RUN_S, exit_code=3 if fails else 0)


# -- what must hold at every write -------------------------------------------------------------------------------------------


async def one_of_each(world: World) -> None:
    """Of each replica at most one process runs, wherever, and no pod is started twice."""
    now_s = world.loop.time()
    names: dict[str, str] = world.memory.setdefault("names", {})
    for pod in await world.objects("", "Pod"):
        names[uid_of(pod)] = name_of(pod)
    running: dict[str, str] = {}
    for machine in world.machines.values():
        for uid in machine.running(now_s):
            name = names.get(uid, uid)
            assert name not in running, f"{name} runs on {machine.name} and {running[name]}"
            running[name] = machine.name
        twice = {names.get(uid, uid): count for uid, count in machine.starts.items() if count > 1}
        assert not twice, f"started more than once: {twice}"


async def never_oversubscribed(world: World) -> None:
    used: dict[str, int] = {}
    for pod in await world.objects("", "Pod"):
        if pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            amount = int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
            used[pod["spec"]["nodeName"]] = used.get(pod["spec"]["nodeName"], 0) + amount
    over = {where: cpus for where, cpus in used.items() if cpus > int(world.machines[where].capacity["cpu"])}
    assert not over, f"over capacity: {over}"


async def an_end_is_an_end(world: World) -> None:
    ended: dict[str, str] = world.memory.setdefault("ended", {})
    for one in await world.objects("muster.dev", "Job"):
        status = one.get("status") or {}
        before = ended.get(name_of(one))
        assert before in (None, status.get("phase")), f"{name_of(one)} was {before} and is {status.get('phase')}"
        if status.get("phase") in ("Succeeded", "Cancelled") or (
            status.get("phase") == "Failed" and status["reason"] != "Stopped"
        ):
            ended[name_of(one)] = status["phase"]


def guard(world: World) -> None:
    world.invariant("one of each", one_of_each)
    world.invariant("never oversubscribed", never_oversubscribed)
    world.invariant("an end is an end", an_end_is_an_end)


async def phases(world: World) -> dict[str, str]:
    return {name_of(one): str((one.get("status") or {}).get("phase")) for one in await world.objects("muster.dev", "Job")}


async def status(world: World, name: str) -> Raw:
    found = await world.store.get(await world.store.resource("muster.dev", "Job"), name, "default")
    answer: Raw = found.get("status") or {}
    return answer


async def is_settled(world: World, wanted: dict[str, str]) -> bool:
    """Every job is in its phase, nothing of it waits or runs, and no plan is left."""
    pods = [
        pod for pod in await world.objects("", "Pod") if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    ]
    return await phases(world) == wanted and not pods and not await world.objects("muster.dev", "Placement")


# -- scenarios ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", range(1, 60 if SOAK else 28, 1 if SOAK else 3))
def test_a_crash_between_any_two_writes(write: int, moment: Moment) -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_machines(2, capacity=CAPACITY, script_for=script)
        await world.run_for(5)
        world.faults = Faults(latency_s=CALM.latency_s, crash_at=(write, moment))
        world.add_manager("controllers", controllers)
        await world.create(job("train", role("w", 2), role("ps", completion="Service"), priority=3))
        await world.create(job("flaky", role("w", 2), retry={"limit": 1, "backoffSeconds": 5}))
        wanted = {"train": "Succeeded", "flaky": "Succeeded"}
        await world.run_until(lambda: is_settled(world, wanted), timeout_s=900, what="both succeed")
        assert (await status(world, "flaky"))["attempts"] == 2
        assert (await status(world, "flaky"))["failures"] == 1
        train = await status(world, "train")
        assert (train["attempts"], train.get("preemptions", 0)) == (1, 0), "a crash of a controller costs no attempt"

    _, trace = simulate(scenario, seed=write)
    assert any("controllers" in line and f"crashed {moment}" in line for line in trace), "it never came to that write"


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_storms(seed: int) -> None:
    """Two replicas, every fault there is, owners who change their minds, machines that go and come."""

    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers, replicas=2)
        world.add_machines(3, capacity=CAPACITY, script_for=script)
        chance = world.loop.entropy.stream("owners")
        jobs = await world.store.resource("muster.dev", "Job")
        wanted: dict[str, str] = {}
        for n in range(8):
            kind = chance.choice(["plain", "flaky", "broken", "held", "stopped"])
            name = f"{kind}-{n}"
            roles = [role("w", chance.choice([1, 2, 3]), chance.choice([1, 2]))]
            if chance.random() < 0.4:
                roles.append(role("ps", completion="Service"))
            limit = 1 if kind == "broken" else 20  # a storm may cost attempts that nobody meant
            await world.create(job(name, *roles, retry={"limit": limit, "backoffSeconds": 3, "backoffSecondsMax": 5}))
            wanted[name] = {"broken": "Failed", "stopped": "Failed", "held": "Suspended"}.get(kind, "Succeeded")
            await world.run_for(chance.uniform(1, 15))
            if kind in ("held", "stopped"):
                state = "Suspended" if kind == "held" else "Stopped"
                if (await phases(world))[name] != "Succeeded":
                    await world.store.patch(jobs, name, {"spec": {"state": state}}, "default")
            if chance.random() < 0.3:
                machine = chance.choice(list(world.machines.values()))
                world.switch_off(machine)
                await world.run_for(chance.uniform(1, 20))
                world.switch_on(machine)
        await world.run_for(60)
        world.calm_down()
        await world.run_for(30)
        final = await phases(world)
        for name in wanted:
            if name.startswith(("held", "stopped")) and final[name] == "Succeeded":
                wanted[name] = "Succeeded"  # it was quicker than its owner
        await world.run_until(lambda: is_settled(world, wanted), timeout_s=3_600, what=f"{wanted}, not {final}")

    simulate(scenario, seed=seed, faults=STORMY, chaos=CHAOS)


def test_a_preempted_job_comes_back_whole_and_in_its_place() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_machines(1, capacity=CAPACITY, script_for=script)
        world.add_manager("controllers", controllers)
        await world.create(job("low", role("w", 2, 2), preemptible=True))
        await world.run_until(lambda: _is(world, "low", "Running"), timeout_s=60)
        await world.create(job("later", role("w", 2, 2)))
        await world.run_for(3)
        await world.create(job("high", role("w", 1, 2), priority=100))
        await world.run_until(lambda: _is(world, "high", "Running"), timeout_s=60)
        low = await status(world, "low")
        assert (low["phase"], low["attempts"], low["preemptions"]) == ("Queued", 2, 1)
        assert low.get("failures", 0) == 0
        waiting = [pod for pod in await world.objects("", "Pod") if name_of(pod).startswith("low")]
        assert len(waiting) == 2, "the other replica gave way too"
        assert not any(pod["spec"].get("nodeName") for pod in waiting)
        await world.run_until(lambda: _is(world, "low", "Running"), timeout_s=120, what="it is first again")
        assert (await status(world, "later"))["phase"] == "Queued"
        wanted = dict.fromkeys(("low", "later", "high"), "Succeeded")
        await world.run_until(lambda: is_settled(world, wanted), timeout_s=300)

    simulate(scenario)


async def _is(world: World, name: str, phase: str) -> bool:
    return (await phases(world)).get(name) == phase


def test_a_silent_node_is_not_replaced_until_an_admin_says_so() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        first, _ = world.add_machines(2, capacity=CAPACITY, script_for=lambda _pod: PodScript(run_s=None))
        world.add_manager("controllers", controllers)
        await world.create(job("train", role("w", 2, 4)))
        await world.run_until(lambda: _is(world, "train", "Running"), timeout_s=60)
        world.switch_off(first)
        await world.run_for(600)
        assert (await status(world, "train"))["attempts"] == 1, "nobody knows that it has ended"
        world.add_machines(1, prefix="spare", capacity=CAPACITY, script_for=script)
        await world.store.delete(await world.store.resource("", "Node"), first.name)
        await world.run_until(lambda: _again(world), timeout_s=600, what="the second attempt runs")
        assert (await status(world, "train"))["preemptions"] == 1

    async def _again(world: World) -> bool:
        found = await status(world, "train")
        return (found["phase"], found["attempts"]) == ("Running", 2)

    simulate(scenario)


def test_commands_at_every_moment() -> None:
    """Suspended, resumed, stopped, run again, cancelled: each at an awkward moment."""

    async def scenario(world: World) -> None:
        guard(world)
        world.add_machines(1, capacity=CAPACITY, script_for=lambda _pod: PodScript(run_s=None, stop_s=2))
        world.add_manager("controllers", controllers)
        jobs = await world.store.resource("muster.dev", "Job")
        await world.create(job("train", role("w", 2)))
        expected = {"Suspended": "Suspended", "Stopped": "Failed", "Running": "Running", "Cancelled": "Cancelled"}
        for wait_s, state in ((0.05, "Suspended"), (0.2, "Running"), (0.4, "Stopped"), (0.1, "Running"), (3.0, "Suspended")):
            await world.run_for(wait_s)
            await world.store.patch(jobs, "train", {"spec": {"state": state}}, "default")
        for state in ("Running", "Cancelled"):
            await world.run_for(20)
            await world.store.patch(jobs, "train", {"spec": {"state": state}}, "default")
            await world.run_until(functools.partial(_is, world, "train", expected[state]), timeout_s=60, what=state)
        await world.run_until(lambda: is_settled(world, {"train": "Cancelled"}), timeout_s=60)

    simulate(scenario)
