"""Tasks of several parties in the simulator: real store, reservation, scheduler and agents; crashes and storms by seed.

What must hold at every moment: no pod's work is started twice, no two unfinished tasks of a party have the same port, an
attempt's pods are never made while an earlier one's are there. What must hold in the end: every task has ended as its pods did.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from tests.controllers.kuscia_tasks import NAMESPACES, app_image, container, domain, task, template
from tests.controllers.scheduling import pod

from muster.controllers.kuscia_task import KusciaTasks
from muster.controllers.pod_gc import PodGarbage
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.controllers.task_reservation import TaskReservation
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import labels_of, name_of, uid_of
from muster.objects.status import NotFound, Raw
from muster.server.admission import PodPriority, PriorityClasses
from muster.sim.faults import CALM, STORMY, Faults, Moment
from muster.sim.machine import PodScript, ScriptFor
from muster.sim.world import Chaos, World, simulate
from muster.store.embedded import EmbeddedStore

SOAK = bool(os.environ.get("MUSTER_SOAK"))
CHAOS = Chaos(kill_every_s=40, partition_every_s=60, partition_s=(1, 20), lease_loss_every_s=300)
PORTS = [{"name": "spu", "scope": "Cluster", "port": 54_509}, {"name": "fed", "scope": "Domain"}, {"name": "x"}]
FILES = {"task.conf": "{{.TASK_ID}} {{{.TASK_CLUSTER_DEFINE.selfEndpointIdx}}}"}
MOUNT = [{"mountPath": "/etc/task.conf", "subPath": "task.conf"}]
IMAGE = app_image(
    "app",
    template(container(ports=PORTS, configVolumeMounts=MOUNT, resources={"requests": {"cpu": "1"}}), replicas=2),
    files=FILES,
)


def crashes(first: int, last: int, step: int = 1) -> list[tuple[int, Moment]]:
    """At which writes to crash. After one is as good as before the next, so both are tried in long runs only."""
    if SOAK:
        return [(write, moment) for write in range(first, last + 20) for moment in ("before", "after")]
    return [(write, "after") for write in range(first, last, step)]


def controllers() -> list[Runnable]:
    return [KusciaTasks(), TaskReservation(), Scheduler(), PodGarbage()]


async def ports_are_distinct(world: World) -> None:
    taken: Counter[tuple[str, int]] = Counter()
    for one in await world.objects("kuscia.secretflow", "KusciaTask"):
        status = one.get("status") or {}
        if status.get("phase") not in ("Succeeded", "Failed"):
            for given in status.get("allocatedPorts") or ():
                taken.update((given["domainID"], number) for number in given["namedPort"].values())
    assert not [key for key, count in taken.items() if count > 1], "two tasks have the same port"


async def one_attempt_at_a_time(world: World) -> None:
    groups: dict[str, set[str]] = {}
    for one in await world.objects("", "Pod"):
        if uid := labels_of(one).get(KusciaLabel.TASK_UID):
            groups.setdefault(uid, set()).add(labels_of(one)[KusciaLabel.TASK_RESOURCE_GROUP_UID])
    assert all(len(of) == 1 for of in groups.values()), "pods of two attempts are there"


def started_once(world: World) -> None:
    for machine in world.machines.values():
        assert all(starts <= 1 for starts in machine.starts.values()), "something was started twice"


def guard(world: World) -> None:
    world.invariant("ports are distinct", ports_are_distinct)
    world.invariant("one attempt at a time", one_attempt_at_a_time)
    world.invariant("started once", started_once)


async def parties(world: World, script_for: ScriptFor, *, cpu: str = "4", names: tuple[str, ...] = ("alice", "bob")) -> None:
    for name in names:
        world.add_machines(
            1,
            prefix=name,
            labels={KusciaLabel.NODE_NAMESPACE: name},
            capacity={"cpu": cpu, "memory": "8Gi", "pods": "50"},
            script_for=script_for,
        )
        await world.create(domain(name))


async def find(world: World, name: str = "t1") -> Raw:
    resource = await world.store.resource("kuscia.secretflow", "KusciaTask")
    return await world.store.get(resource, name, "cross-domain")


def has(world: World, phase: str, name: str = "t1", **status: object) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        found = (await find(world, name)).get("status") or {}
        return found.get("phase") == phase and all(found.get(key) == value for key, value in status.items())

    return check


def ends(seconds: float = 10.0, exit_code: int = 0) -> ScriptFor:
    return lambda _pod: PodScript(run_s=seconds, exit_code=exit_code)


async def leftovers(world: World) -> list[str]:
    found = []
    for kind in ("Service", "ConfigMap"):
        listed = await world.objects("", kind)
        found += [f"{kind} {name_of(one)}" for one in listed if KusciaLabel.TASK_UID in labels_of(one)]
    return found


def test_a_task_runs_to_its_end() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await parties(world, ends())
        await world.create(IMAGE)
        await world.create(task())
        await world.run_until(has(world, "Running"), timeout_s=60)
        services = {name_of(one) for one in await world.objects("", "Service")}
        assert services == {f"t1-{role}-{n}-{port}" for role in ("host", "guest") for n in (0, 1) for port in ("spu", "fed")}
        files = {name_of(one): one["data"]["task.conf"] for one in await world.objects("", "ConfigMap") if "data" in one}
        assert {files[f"t1-{role}-{n}-config"] for role in ("host", "guest") for n in (0, 1)} == {"t1 0", "t1 1"}
        await world.run_until(has(world, "Succeeded"), timeout_s=60)
        await world.run_for(5)
        found = await find(world)
        status = found["status"]
        assert [one["phase"] for one in status["partyTaskStatus"]] == ["Succeeded", "Succeeded"]
        assert status["progress"] == 1.0
        assert status["attempts"] == 1
        conditions = {one["type"]: one["status"] for one in status["conditions"]}
        assert conditions == {
            "PortsAllocated": "True", "ResourceCreated": "False", "Running": "False", "Success": "True", "StatusSynced": "True",
        }  # fmt: skip
        assert await leftovers(world) == []
        pods = await world.objects("", "Pod")
        assert [one["status"]["phase"] for one in pods] == ["Succeeded"] * 4, "pods that ended are kept"
        assert all(one["spec"]["nodeName"] for one in pods)

    simulate(scenario, namespaces=NAMESPACES)


@pytest.mark.slow
@pytest.mark.parametrize(("write", "moment"), crashes(1, 28))
def test_a_crash_between_any_two_writes(write: int, moment: Moment) -> None:
    async def scenario(world: World) -> None:
        guard(world)
        await world.create(IMAGE)
        await parties(world, ends())
        await world.run_for(5)
        await world.create(task())
        world.faults = Faults(latency_s=CALM.latency_s, crash_at=(write, moment))
        world.add_manager("tasks", lambda: [KusciaTasks()])
        world.faults = CALM
        world.add_manager("others", lambda: [TaskReservation(), Scheduler()])
        await world.run_until(has(world, "Succeeded", attempts=1), timeout_s=600)
        await world.run_for(20)
        assert await leftovers(world) == []
        assert len(await world.objects("", "Pod")) == 4

    _, trace = simulate(scenario, seed=write, namespaces=NAMESPACES)
    if write <= 24:
        assert any("tasks#1: crashed" in line for line in trace), "it never came to that write"


@pytest.mark.slow
@pytest.mark.parametrize(("write", "moment"), crashes(24, 48, step=4))
def test_a_crash_while_it_is_retried(write: int, moment: Moment) -> None:
    """The first attempt fails, the second one succeeds; nothing of the first is there when the second begins."""

    async def scenario(world: World) -> None:
        guard(world)
        await world.create(IMAGE)
        seen: dict[str, None] = {}

        def script_for(one: Raw) -> PodScript:
            seen.setdefault(uid_of(one))
            return PodScript(run_s=5, exit_code=1 if list(seen).index(uid_of(one)) < 4 else 0)

        await parties(world, script_for)
        await world.run_for(5)
        await world.create(task(retry={"limit": 1, "backoffSeconds": 7}))
        world.faults = Faults(latency_s=CALM.latency_s, crash_at=(write, moment))
        world.add_manager("tasks", lambda: [KusciaTasks()])
        world.faults = CALM
        world.add_manager("others", lambda: [TaskReservation(), Scheduler()])
        await world.run_until(has(world, "Succeeded", attempts=2), timeout_s=600)
        assert (await find(world))["status"].get("preemptions", 0) == 0

    simulate(scenario, seed=write, namespaces=NAMESPACES)


def test_retries_are_used_up() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await parties(world, ends(2, exit_code=3))
        await world.create(IMAGE)
        await world.create(task(retry={"limit": 2, "backoffSeconds": 10, "backoffSecondsMax": 15}))
        await world.run_until(has(world, "Pending", reason="BackingOff", attempts=1), timeout_s=60)
        began_s = world.loop.time()
        await world.run_until(has(world, "Failed"), timeout_s=300)
        status = (await find(world))["status"]
        assert status["attempts"] == 3
        assert status["reason"] == "RetriesExhausted"
        assert "exit code 3" in status["message"]
        assert world.loop.time() - began_s > 25, "pauses of 10 and 15 s"
        assert {one["phase"] for one in status["partyTaskStatus"]} == {"Failed"}

    simulate(scenario, namespaces=NAMESPACES)


def test_a_task_that_had_to_give_way_comes_back() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await parties(world, lambda _pod: PodScript(run_s=30, stop_s=2))
        await world.create(IMAGE)
        await world.create(task())
        await world.run_until(has(world, "Running"), timeout_s=60)
        before = {uid_of(one) for one in await world.objects("", "Pod")}
        await world.store.delete(await world.store.resource("", "Pod"), "t1-host-1", "alice")
        await world.run_until(has(world, "Pending", preemptions=1), timeout_s=60)
        await world.run_until(has(world, "Succeeded", attempts=2, preemptions=1), timeout_s=300)
        assert before.isdisjoint({uid_of(one) for one in await world.objects("", "Pod")})

    simulate(scenario, namespaces=NAMESPACES)


def test_a_preempted_task_returns_whole() -> None:
    """A pod of higher priority needs what one party's pods have: all parties of the task give way, and come back."""

    async def scenario(world: World) -> None:
        guard(world)
        classes = PriorityClasses()
        classes.apply({"metadata": {"name": "urgent"}, "value": 1_000})
        assert isinstance(world.store, EmbeddedStore)
        world.store.admission = PodPriority(classes)
        world.add_manager("controllers", controllers)
        await parties(world, lambda _pod: PodScript(run_s=30, stop_s=1), cpu="2")
        await world.create(IMAGE)
        await world.create(task("low", annotations={Muster.PREEMPTIBLE: "true"}))
        await world.run_until(has(world, "Running", "low"), timeout_s=60)
        urgent = pod("urgent", "2", namespace="alice", priorityClassName="urgent")
        await world.create(urgent)
        await world.run_until(has(world, "Pending", "low", preemptions=1, reason="Preempted"), timeout_s=60)
        await world.run_until(has(world, "Succeeded", "low", attempts=2, preemptions=1), timeout_s=300)
        nodes = {name_of(one): one["spec"]["nodeName"] for one in await world.objects("", "Pod")}
        assert nodes["urgent"] == nodes["low-host-0"], "one after the other"

    simulate(scenario, namespaces=NAMESPACES)


def test_work_on_a_silent_machine_is_not_started_again() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await parties(world, lambda _pod: PodScript(run_s=None))
        await world.create(IMAGE)
        await world.create(task())
        await world.run_until(has(world, "Running"), timeout_s=60)
        machine = world.machines["alice-1"]
        world.switch_off(machine)
        await world.store.delete(await world.store.resource("", "Pod"), "t1-guest-0", "bob")
        await world.run_until(has(world, "Pending", preemptions=1), timeout_s=60)
        await world.run_for(600)
        assert (await find(world))["status"]["attempts"] == 1, "pods on the silent machine may still run"
        assert "waits until alice/t1-host-0" in (await find(world))["status"]["message"]
        await world.store.delete(await world.store.resource("", "Node"), machine.name)
        world.switch_on(machine)
        await world.run_until(has(world, "Running", attempts=2), timeout_s=300)

    simulate(scenario, namespaces=NAMESPACES)


@pytest.mark.parametrize(
    ("stop", "reason"), [("Stopped", "KusciaJobStopped"), ("Cancelled", "Cancelled"), ("DependencyFailed", "DependencyFailed")]
)
def test_a_stopped_task_leaves_nothing_that_runs(stop: str, reason: str) -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await parties(world, lambda _pod: PodScript(run_s=None))
        await world.create(IMAGE)
        await world.create(task())
        await world.run_until(has(world, "Running"), timeout_s=60)
        resource = await world.store.resource("kuscia.secretflow", "KusciaTask")
        await world.store.patch(resource, "t1", {"metadata": {"annotations": {Muster.STOP: stop}}}, "cross-domain")
        await world.run_until(has(world, "Failed", reason=reason), timeout_s=60)
        await world.run_for(60)
        assert await world.objects("", "Pod") == []
        assert await leftovers(world) == []
        assert all(not machine.running(world.loop.time()) for machine in world.machines.values())

    simulate(scenario, namespaces=NAMESPACES)


def test_a_deleted_task_takes_everything_with_it_and_its_name_is_free() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await parties(world, lambda _pod: PodScript(run_s=20, stop_s=3))
        await world.create(IMAGE)
        await world.create(task())
        await world.run_until(has(world, "Running"), timeout_s=60)
        resource = await world.store.resource("kuscia.secretflow", "KusciaTask")
        await world.store.delete(resource, "t1", "cross-domain")

        async def is_gone() -> bool:
            try:
                await find(world)
            except NotFound:
                return True
            return False

        await world.run_until(is_gone, timeout_s=60)
        for kind in ("TaskResourceGroup", "TaskResource"):
            assert await world.objects("kuscia.secretflow", kind) == []
        assert await world.objects("", "Pod") == []
        assert await leftovers(world) == []
        await world.create(task())
        await world.run_until(has(world, "Succeeded", attempts=1), timeout_s=120)

    simulate(scenario, namespaces=NAMESPACES)


def test_a_task_waits_for_what_is_missing() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await world.create(task())
        await world.run_until(has(world, "Pending", reason="PartyUnknown"), timeout_s=30)
        await parties(world, ends(2))
        await world.run_until(has(world, "Pending", reason="AppImageNotFound"), timeout_s=30)
        await world.create(app_image("app", template(role="judge")))
        await world.run_until(has(world, "Pending", reason="DeployTemplateNotFound"), timeout_s=30)
        images = await world.store.resource("kuscia.secretflow", "AppImage")
        await world.store.patch(images, "app", {"spec": IMAGE["spec"]})
        await world.run_until(has(world, "Succeeded"), timeout_s=60)

    simulate(scenario, namespaces=NAMESPACES)


def test_a_task_that_does_not_fit_says_why_and_gives_up_only_when_told_to() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await parties(world, ends(2), cpu="1")
        await world.create(IMAGE)
        await world.create(task())
        await world.create(task("t2", scheduleConfig={"lifecycleSeconds": 60}))
        await world.run_for(30)
        status = (await find(world))["status"]
        assert status["phase"] == "Pending"
        assert status["reason"] in ("CPUInsufficient", "GangInsufficient", "Impossible"), status
        await world.run_until(has(world, "Failed", "t2", reason="SchedulingTimeout"), timeout_s=120)
        await world.run_for(600)
        assert (await find(world))["status"]["phase"] == "Pending"

    simulate(scenario, namespaces=NAMESPACES)


def test_a_run_that_takes_too_long_is_ended() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await parties(world, lambda _pod: PodScript(run_s=None))
        await world.create(IMAGE)
        await world.create(task(activeDeadlineSeconds=60, retry={"limit": 3}))
        await world.run_until(has(world, "Running"), timeout_s=30)
        await world.run_for(50)
        assert (await find(world))["status"]["phase"] == "Running"
        await world.run_until(has(world, "Failed", reason="RunTimeExceeded"), timeout_s=30)

    simulate(scenario, namespaces=NAMESPACES)


def test_an_image_that_does_not_come_fails_the_task_after_a_while() -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await parties(world, lambda _pod: PodScript(stuck="pull"))
        await world.create(IMAGE)
        await world.create(task())
        await world.run_for(300)
        assert (await find(world))["status"]["phase"] == "Pending"
        assert (await find(world))["status"]["reason"] == "ImageUnavailable"
        await world.run_until(has(world, "Failed", reason="ImageUnavailable"), timeout_s=400)

    simulate(scenario, namespaces=NAMESPACES)


@pytest.mark.slow
def test_tasks_planned_from_lagging_caches_do_not_share_ports() -> None:
    """All wish for the same number, the caches lag by seconds, and the leader is replaced; the invariant does the judging."""

    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers, replicas=2)
        await parties(world, ends(8), cpu="40")
        await world.create(IMAGE)
        await world.run_for(20)
        for n in range(12):
            await world.create(task(f"t{n}"))
            if n % 4 == 3:
                await world.run_for(1)
                for component in world.components.values():
                    if component.name.startswith("controllers") and component.is_up:
                        component.kill()
                        break

        async def all_done() -> bool:
            found = await world.objects("kuscia.secretflow", "KusciaTask")
            return all((one.get("status") or {}).get("phase") == "Succeeded" for one in found)

        await world.run_until(all_done, timeout_s=900)

    simulate(scenario, namespaces=NAMESPACES, faults=Faults(latency_s=CALM.latency_s, watch_lag_s=(0.0, 3.0)))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40 if SOAK else 3))
def test_storms(seed: int) -> None:
    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers, replicas=2)
        chance = world.loop.entropy.stream("work")
        await parties(world, lambda _pod: PodScript(run_s=15, exit_code=0), cpu="8")
        await world.create(IMAGE)
        for n in range(8):
            await world.create(task(f"t{n}", retry={"limit": 5, "backoffSeconds": 1}))
            await world.run_for(chance.uniform(1, 15))
        await world.run_for(60)
        world.calm_down()

        async def all_done() -> bool:
            found = await world.objects("kuscia.secretflow", "KusciaTask")
            return all((one.get("status") or {}).get("phase") == "Succeeded" for one in found) and not await leftovers(world)

        await world.run_until(all_done, timeout_s=3_600)

    simulate(scenario, seed=seed, faults=STORMY, chaos=CHAOS, namespaces=NAMESPACES)
