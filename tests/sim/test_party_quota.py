"""Quotas of parties in the simulator: jobs of several parties wait as a whole, and no moment is beyond any quota. By seed."""

from __future__ import annotations

import os

import pytest

from muster.controllers import cluster_controllers
from muster.controllers.pod_gc import PodGarbage
from muster.controllers.runtime import Runnable
from muster.objects.labels import KusciaLabel
from muster.objects.meta import name_of, namespace_of
from muster.objects.names import KUBERNETES_NAMESPACES, NAMESPACE_CROSS_DOMAIN
from muster.objects.status import Raw
from muster.sim.faults import CALM, STORMY
from muster.sim.machine import PodScript
from muster.sim.workloads import GROUP, app_image, domain, job_task, kuscia_job
from muster.sim.world import NO_CHAOS, Chaos, World, simulate

SOAK = bool(os.environ.get("MUSTER_SOAK"))
SEEDS = range(40 if SOAK else 2)
NAMESPACES = (*KUBERNETES_NAMESPACES, NAMESPACE_CROSS_DOMAIN)
QUOTAS = {"alice": (3, 4), "bob": (2, 8)}
"""CPUs and pods that each may use at once; their machines have far more."""
CHAOS = Chaos(kill_every_s=40, lease_loss_every_s=300)


def controllers() -> list[Runnable]:
    return [*cluster_controllers(), PodGarbage()]


def limited(name: str) -> Raw:
    cpus, pods = QUOTAS[name]
    return {**domain(name), "spec": {"resourceQuota": {"podMaxCount": pods, "hard": {"cpu": cpus}}}}


def cpus_of(pod: Raw) -> int:
    return sum(int(((c.get("resources") or {}).get("requests") or {}).get("cpu", 0)) for c in pod["spec"]["containers"])


async def within_quota(world: World) -> None:
    used = {name: [0, 0] for name in QUOTAS}
    for pod in await world.objects("", "Pod"):
        is_over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if pod["spec"].get("nodeName") and not is_over and namespace_of(pod) in used:
            used[namespace_of(pod)][0] += cpus_of(pod)
            used[namespace_of(pod)][1] += 1
    for name, (cpus, pods) in used.items():
        assert cpus <= QUOTAS[name][0], f"{name} uses {cpus} of {QUOTAS[name][0]} CPUs"
        assert pods <= QUOTAS[name][1], f"{name} has {pods} of {QUOTAS[name][1]} pods"


async def build(world: World) -> None:
    await world.create(app_image())
    for name in QUOTAS:
        await world.create(limited(name))
        labels = {KusciaLabel.NODE_NAMESPACE: name}
        world.add_machines(2, prefix=name, labels=labels, script_for=lambda _pod: PodScript(run_s=8.0, stop_s=0.5))
    world.invariant("within quota", within_quota)


async def phases(world: World) -> dict[str, str]:
    return {name_of(job): (job.get("status") or {}).get("phase", "") for job in await world.objects(GROUP, "KusciaJob")}


@pytest.mark.slow
def test_a_task_waits_whole_and_says_what_for() -> None:
    async def scenario(world: World) -> None:
        await build(world)
        world.add_manager("controllers", controllers)
        await world.create(kuscia_job("first", [job_task("t", ["alice", "bob"], cpu="2")]))
        await world.run_for(4)
        await world.create(kuscia_job("second", [job_task("t", ["alice", "bob"], cpu="1")]))
        await world.run_for(3)
        [waiting] = [t for t in await world.objects(GROUP, "KusciaTask") if name_of(t).startswith("second")]
        assert waiting["status"]["reason"] == "QuotaExceeded"
        assert "the quota of Domain bob is exceeded: cpu: limit 2, in use 2, requested 1" in waiting["status"]["message"]
        held = [p for p in await world.objects("", "Pod") if name_of(p).startswith("second") and p["spec"].get("nodeName")]
        assert not held, "alice has room, and holds nothing of it meanwhile"

        async def both_done() -> bool:
            return set((await phases(world)).values()) == {"Succeeded"}

        await world.run_until(both_done, timeout_s=120)

    simulate(scenario, namespaces=NAMESPACES)


@pytest.mark.slow
@pytest.mark.parametrize("is_stormy", [False, True], ids=["calm", "stormy"])
@pytest.mark.parametrize("seed", SEEDS)
def test_never_beyond_and_never_stuck(seed: int, is_stormy: bool) -> None:
    async def scenario(world: World) -> None:
        await build(world)
        world.add_manager("controllers", controllers, replicas=2 if is_stormy else 1)
        chance = world.loop.entropy.stream("user")
        for number in range(8):
            parties = chance.choice([["alice"], ["bob"], ["alice", "bob"], ["bob", "alice"]])
            await world.create(kuscia_job(f"j{number}", [job_task("t", parties, cpu=str(chance.randrange(1, 3)))]))
            await world.run_for(chance.uniform(0, 4))
        await world.run_for(60)
        world.calm_down()

        async def all_done() -> bool:
            return set((await phases(world)).values()) == {"Succeeded"}

        await world.run_until(all_done, timeout_s=900, every_s=2)

    faults, chaos = (STORMY, CHAOS) if is_stormy else (CALM, NO_CHAOS)
    simulate(scenario, seed=seed, namespaces=NAMESPACES, faults=faults, chaos=chaos)
