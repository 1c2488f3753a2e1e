"""The ledger with real jobs, scheduler and agents, and crashes at any write: what was noted is what ran, to the second.

The truth is what the agents said about each pod, seen in every version that the store ever held. In the end the pages of the
ledger, and nothing else, must come to the same. At no moment is more bound than a user and a group may have at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.controllers.scheduling import PROFILE

from muster.cli.usage_view import books_from, recorded_runs
from muster.controllers.job import JobController
from muster.controllers.ledger import LedgerKeeper
from muster.controllers.ledger_pages import Pages
from muster.controllers.pod_gc import PodGarbage
from muster.controllers.pod_groups import PodGroups
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.engine.machine import Engine
from muster.engine.plugins.default_preemption import DefaultPreemption
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.history.queries import runs
from muster.history.reader import Log
from muster.history.recorder import Recorder
from muster.history.stores import DirectoryStore
from muster.objects.kinds.muster_usage import UsageRecord
from muster.objects.meta import annotations_of, finalizers_of, labels_of, name_of, uid_of
from muster.objects.status import Raw
from muster.objects.time import parse_time
from muster.objects.view import view_of
from muster.policy.order import PolicyOrder
from muster.quota.ledger import Ledger, Run
from muster.server.accounting import AccountedPods
from muster.sim.clock import current_loop
from muster.sim.faults import CALM, STORMY, Faults, Moment
from muster.sim.machine import PodScript
from muster.sim.world import Chaos, World, simulate
from muster.store.embedded import EmbeddedStore

SOAK = bool(os.environ.get("MUSTER_SOAK"))
SEEDS = range(30 if SOAK else 2)
CHAOS = Chaos(kill_every_s=30, partition_every_s=60, partition_s=(1, 20), lease_loss_every_s=200)
FINAL = ("Succeeded", "Failed")


ANN_CPUS, ALL_CPUS = 3, 4
"""What may be in use at once: by ann, and by everybody in the group."""


def ordered() -> Engine:
    """With the order of queues and users, which keeps to their limits."""
    return Engine([Profile(PROFILE, [Fit(), DefaultPreemption()])], order=PolicyOrder())


def controllers() -> list[Runnable]:
    return [Scheduler(engine=ordered), JobController(), PodGroups(), PodGarbage(), LedgerKeeper()]


def job(name: str, user: str, replicas: int, cpu: int, **spec: Any) -> Raw:
    role = {"name": "w", "replicas": replicas, "command": ["x"], "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"roles": [role], "user": user, "queue": "q", **spec},
    }


def named(kind: str, name: str, **spec: Any) -> Raw:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def script(pod: Raw) -> PodScript:
    attempt = annotations_of(pod).get("muster.dev/attempt")
    fails = name_of(pod).startswith("flaky") and attempt == "1"
    return PodScript(run_s=7.0 + len(name_of(pod)) % 5, exit_code=3 if fails else 0)


async def remember(world: World) -> None:
    """What the agents say of each pod, at every write."""
    said: dict[str, Run] = world.memory.setdefault("said", {})
    for pod in await world.objects("", "Pod"):
        status = pod.get("status") or {}
        if status.get("phase") not in FINAL or not status.get("startTime"):
            continue
        ends = [
            parse_time(one["state"]["terminated"]["finishedAt"])
            for one in status.get("containerStatuses") or ()
            if "terminated" in one["state"]
        ]
        said[uid_of(pod)] = Run(
            key=uid_of(pod),
            user=labels_of(pod)["muster.dev/user"],
            queue="q",
            group="g",
            amounts={"cpu": 1000 * int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]), "pods": 1},
            start_ms=round(parse_time(status["startTime"]) * 1000),
            end_ms=round(max(ends) * 1000),
        )


async def never_over_a_limit(world: World) -> None:
    """At every write: what is bound and has not ended is within what its user and group may have at once."""
    used = {"ann": 0, "bob": 0}
    for pod in await world.objects("", "Pod"):
        if pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in FINAL:
            used[labels_of(pod)["muster.dev/user"]] += int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    assert used["ann"] <= ANN_CPUS, used
    assert sum(used.values()) <= ALL_CPUS, used


async def noted(world: World) -> Ledger:
    pages = Pages()
    for page in await world.objects("muster.dev", "UsageRecord"):
        pages.put(name_of(page), view_of(UsageRecord, page))
    return pages.ledger()


async def is_done(world: World, jobs: set[str]) -> bool:
    """All jobs are over, no pod waits to be noted, and none is kept by the ledger."""
    ended = {
        name_of(one) for one in await world.objects("muster.dev", "Job") if (one.get("status") or {}).get("phase") in FINAL
    }
    pods = await world.objects("", "Pod")
    return ended == jobs and not any(
        (pod.get("status") or {}).get("phase") not in FINAL or "muster.dev/ledger" in finalizers_of(pod) for pod in pods
    )


async def prepare(world: World) -> None:
    assert isinstance(world.store, EmbeddedStore)
    world.store.admission = AccountedPods()
    world.invariant("remember", remember)
    world.invariant("never over a limit", never_over_a_limit)
    await world.create(named("UserGroup", "g", limits={"concurrent": {"cpu": ALL_CPUS}}))
    await world.create(named("User", "ann", group="g", limits={"concurrent": {"cpu": ANN_CPUS}}))
    await world.create(named("User", "bob", group="g"))
    await world.create(named("Queue", "q"))
    world.add_machines(2, capacity={"cpu": "4", "memory": "8Gi", "pods": "50"}, script_for=script)
    await world.run_for(5)


async def submit(world: World) -> set[str]:
    await world.create(job("one", "ann", 2, 1))
    await world.create(job("flaky", "bob", 2, 2, retry={"limit": 1, "backoffSeconds": 5}))
    await world.run_for(6)
    await world.create(job("later", "ann", 1, 3))
    return {"one", "flaky", "later"}


async def check(world: World) -> None:
    said: dict[str, Run] = world.memory["said"]
    assert len(said) >= 5, "every pod ran"
    assert await noted(world) == Ledger(said.values())


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", range(1, 60, 1 if SOAK else 12))
def test_a_crash_between_any_two_writes_loses_no_second(write: int, moment: Moment) -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        world.faults = Faults(latency_s=CALM.latency_s, crash_at=(write, moment))
        world.add_manager("controllers", controllers)
        jobs = await submit(world)
        await world.run_until(lambda: is_done(world, jobs), timeout_s=900, what="all noted")
        await check(world)

    simulate(scenario, seed=write)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_storms_and_two_leaders_lose_no_second(seed: int) -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        world.faults = STORMY
        world.add_manager("controllers", controllers, replicas=2)
        jobs = await submit(world)
        await world.run_for(120)
        world.calm_down()
        await world.run_until(lambda: is_done(world, jobs), timeout_s=1800, what="all noted")
        await check(world)

    simulate(scenario, seed=seed, faults=STORMY, chaos=CHAOS)


def test_users_groups_and_queues_show_it_and_pods_that_are_deleted_are_noted() -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        world.add_manager("controllers", controllers)
        jobs = await submit(world)
        pods = await world.store.resource("", "Pod")
        await world.run_for(4)
        await world.store.delete(pods, "later-w-0", "default", grace_period_s=0)
        await world.run_until(lambda: is_done(world, jobs), timeout_s=900, what="all noted")
        await world.run_for(90)
        ledger = await noted(world)
        for kind, name in (("User", "ann"), ("User", "bob"), ("UserGroup", "g"), ("Queue", "q")):
            (found,) = [one for one in await world.objects("muster.dev", kind) if name_of(one) == name]
            consumed = {one["resource"]: one["amount"] for one in found["status"]["usage"]["consumed"]}
            want = ledger.used(kind, [name], 0, 10**15, now_ms=10**15)["cpu"] / 3_600_000_000  # type: ignore[arg-type]
            assert float(consumed["cpu"]) == pytest.approx(want, abs=0.001), (kind, name)
            assert "jobsRunning" not in found["status"]["usage"], "nothing runs any more"
        (user,) = [one for one in await world.objects("muster.dev", "User") if name_of(one) == "ann"]
        assert user["status"]["standing"]["faded"][0]["used"]["cpu"] > 0
        writes = int(user["metadata"]["resourceVersion"])
        await world.run_for(300, every_s=10)
        (again,) = [one for one in await world.objects("muster.dev", "User") if name_of(one) == "ann"]
        assert int(again["metadata"]["resourceVersion"]) == writes, "who uses nothing is not written"

    simulate(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True], ids=["one leader", "a leader is killed"])
def test_the_ledger_made_anew_from_the_decision_log_is_the_same(tmp_path: Path, is_killed: bool) -> None:
    """Whoever leads writes a log of its own; a pod that changes after its end, or is seen by two, is one run."""
    recorders: list[Recorder] = []

    def recorded() -> list[Runnable]:
        recorder = Recorder(DirectoryStore(tmp_path), clock=current_loop().clock)
        recorders.append(recorder)
        return [Scheduler(engine=ordered, history=recorder), *controllers()[1:]]

    async def scenario(world: World) -> tuple[Ledger, list[tuple[Any, Raw]], float]:
        await prepare(world)
        world.add_manager("controllers", recorded)
        jobs = await submit(world)
        if is_killed:
            await world.run_for(3)
            world.components["controllers"].kill()
        await world.run_until(lambda: is_done(world, jobs), timeout_s=900, what="all noted")
        pods = await world.store.resource("", "Pod")
        for pod in await world.objects("", "Pod"):  # it is seen again after its end
            await world.store.patch(pods, name_of(pod), {"metadata": {"labels": {"again": "true"}}}, "default")
        await world.run_for(30)
        accounts = [(kind, raw) for kind in ("UserGroup", "User", "Queue") for raw in await world.objects("muster.dev", kind)]
        await check(world)
        return await noted(world), accounts, world.clock()

    (ledger, accounts, now), _ = simulate(scenario)
    for recorder in recorders:
        recorder.close()
    found = list(recorded_runs(runs(Log(DirectoryStore(tmp_path)))))
    books, _, problems = books_from(found, accounts, now_ms=round(now * 1000))
    assert not problems
    assert books.ledger == ledger
