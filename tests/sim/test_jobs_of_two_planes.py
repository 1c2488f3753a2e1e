"""KusciaJobs of two parties that have a control plane each: all controllers of both, joined by the links alone."""

from __future__ import annotations

import os

import pytest
from tests.sim.watching import never_oversubscribed, snapshot

from muster.controllers import cluster_controllers
from muster.controllers.interconn import Interconn
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import annotations_of, name_of, namespace_of, uid_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import Raw
from muster.sim.faults import CALM, STORMY
from muster.sim.machine import PodScript
from muster.sim.planes import Planes, simulate_planes
from muster.sim.workloads import GROUP, app_image, domain, job_task, kuscia_job
from muster.sim.world import NO_CHAOS, Chaos, World

pytestmark = pytest.mark.slow
SOAK = bool(os.environ.get("MUSTER_SOAK"))
NAMES = ("alice", "bob")
CHAOS = Chaos(kill_every_s=60, partition_every_s=60, partition_s=(1, 30))


class Script:
    """A party's pods fail so many times before they succeed."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self._seen: dict[str, list[str]] = {}

    def __call__(self, pod: Raw) -> PodScript:
        uids = self._seen.setdefault(name_of(pod), [])
        if uid_of(pod) not in uids:
            uids.append(uid_of(pod))
        return PodScript(run_s=8, exit_code=int(uids.index(uid_of(pod)) < self._failures), stop_s=0.5)


async def assemble(planes: Planes, *, failures: int = 0, failing: str = "bob") -> None:
    """Pods of one party fail so many times."""
    for name, world in planes.worlds.items():
        await world.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE_CROSS_DOMAIN}})
        await world.create(app_image())
        for one in NAMES:
            made = domain(one)
            made["spec"] = {"role": "partner", "interConnProtocols": ["kuscia"]} if one != name else {}
            await world.create(made)
        world.add_machines(
            1,
            prefix=name,
            capacity={"cpu": "4", "memory": "64Gi", "pods": "100"},
            labels={KusciaLabel.NODE_NAMESPACE: name},
            script_for=Script(failures if name == failing else 0),
        )
        world.add_manager(f"{name}-manager", cluster_controllers)
        other = NAMES[1 - NAMES.index(name)]
        planes.link(name, "interconn", other, lambda host, name=name: [Interconn(host, name)])  # type: ignore[misc]
    planes.invariant("never oversubscribed", lambda: never_oversubscribed(planes))


async def all_or_nothing(planes: Planes) -> None:
    """While tasks are tried once only: who has begun has a counterpart that has a place."""
    now = [await snapshot(world) for world in planes.worlds.values()]
    for task in {task for plane in now for task in plane.begun}:
        ready = [name for name in NAMES if sum(plane.places[task, name] for plane in now)]
        assert len(ready) == len(NAMES), f"{task} has begun, and only {ready} have a place"


async def job_of(world: World, name: str = "j", namespace: str = NAMESPACE_CROSS_DOMAIN) -> Raw:
    found = [one for one in await world.objects(GROUP, "KusciaJob", namespace) if name_of(one) == name]
    return found[0] if found else {}


async def phase_of(world: World, name: str = "j") -> str:
    return str(((await job_of(world, name)).get("status") or {}).get("phase", ""))


def two_tasks(initiator: str = "alice") -> Raw:
    other = "bob" if initiator == "alice" else "alice"
    first = job_task("first", [initiator, other], cpu="2")
    return kuscia_job("j", [first, job_task("second", [initiator, other], cpu="4", dependencies=["first"])])


@pytest.mark.parametrize("initiator", NAMES)
def test_a_job_runs_at_both(initiator: str) -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        host = planes.worlds[initiator]
        [member] = [world for name, world in planes.worlds.items() if name != initiator]
        await host.create(two_tasks(initiator))

        async def has_ended() -> bool:
            return await phase_of(host) in ("Succeeded", "Failed")

        await planes.run_until(has_ended, timeout_s=300, what="the job ended")
        job = await job_of(host)
        assert job["status"]["phase"] == "Succeeded", job["status"]
        assert set(job["status"]["approveStatus"].values()) == {"JobAccepted"}
        copy = await job_of(member)
        assert annotations_of(copy)[Muster.ORIGIN_UID] == job["metadata"]["uid"]
        ran = {
            (namespace_of(pod), pod["status"]["phase"]) for w in planes.worlds.values() for pod in await w.objects("", "Pod")
        }
        assert ran == {("alice", "Succeeded"), ("bob", "Succeeded")}
        ages = [
            {annotations_of(one)[Muster.ORIGIN_UID] for one in await world.objects(GROUP, "TaskResourceGroup")}
            for world in planes.worlds.values()
        ]
        assert ages[0] == ages[1], "a task has the same age at both"
        await host.store.delete(await host.store.resource(GROUP, "KusciaJob"), "j", NAMESPACE_CROSS_DOMAIN)
        await planes.run_for(60)
        for world in planes.worlds.values():
            for kind in ("KusciaJob", "KusciaTask", "TaskResourceGroup", "KusciaTaskSummary", "KusciaJobSummary"):
                assert not await world.objects(GROUP, kind), kind
            assert not await world.objects("", "Pod")

    simulate_planes(scenario, NAMES)


def test_a_party_that_fails_fails_the_job() -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes, failures=9)
        alice, bob = planes.worlds.values()
        await alice.create(two_tasks())

        async def has_ended() -> bool:
            return await phase_of(alice) == "Failed"

        await planes.run_until(has_ended, timeout_s=300, what="the job failed")
        await planes.run_for(30)
        for world in (alice, bob):
            tasks = await world.objects(GROUP, "KusciaTask")
            assert [task["status"]["phase"] for task in tasks] == ["Failed"]

    simulate_planes(scenario, NAMES)


def test_another_attempt_is_made_at_both() -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes, failures=1, failing="alice")
        alice, bob = planes.worlds.values()
        made = two_tasks()
        for one in made["spec"]["tasks"]:
            one["retry"] = {"limit": 1, "backoffSeconds": 5}
        await alice.create(made)

        async def has_ended() -> bool:
            return await phase_of(alice) in ("Succeeded", "Failed")

        await planes.run_until(has_ended, timeout_s=600, what="the job ended")
        assert await phase_of(alice) == "Succeeded"
        assert {task["status"]["attempts"] for task in await alice.objects(GROUP, "KusciaTask")} == {2}
        assert {pod["status"]["phase"] for pod in await bob.objects("", "Pod")} == {"Succeeded"}

    _, trace = simulate_planes(scenario, NAMES)
    assert sum("bob-manager" in line and "bind pods bob/" in line for line in trace) == 4, "two attempts at two tasks"


def test_what_the_member_lacks_is_said_at_the_host() -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        alice, bob = planes.worlds.values()
        await bob.store.delete(await bob.store.resource(GROUP, "AppImage"), "app")
        await alice.create(two_tasks())
        await planes.run_for(30)
        [summary] = await alice.objects(GROUP, "KusciaTaskSummary")
        assert "AppImage app" in summary["status"]["partyTaskStatus"][0]["message"]
        await bob.create(app_image())

        async def has_ended() -> bool:
            return await phase_of(alice) == "Succeeded"

        await planes.run_until(has_ended, timeout_s=300, what="the job ended")

    simulate_planes(scenario, NAMES)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(60 if SOAK else 2))
def test_storms(seed: int) -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        planes.invariant("all or nothing", lambda: all_or_nothing(planes))
        for number, (name, world) in enumerate(planes.worlds.items()):
            made = two_tasks(name)
            made["metadata"]["name"] = f"j{number}"
            await world.create(made)
            await planes.run_for(5)
        if seed % 3 == 0:
            planes.cut(40)
        await planes.run_for(60)
        planes.calm_down()

        async def have_ended() -> bool:
            phases = [await phase_of(world, f"j{number}") for number, world in enumerate(planes.worlds.values())]
            return all(phase == "Succeeded" for phase in phases)

        await planes.run_until(have_ended, timeout_s=2_000, every_s=5, what="both jobs succeeded")

    faults, chaos = (STORMY, CHAOS) if seed % 2 else (CALM, NO_CHAOS)
    simulate_planes(scenario, NAMES, seed=seed, faults=faults, chaos=chaos)
