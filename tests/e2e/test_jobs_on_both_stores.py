"""Jobs of several parties from submission to end, on the embedded store and on a real API server.

All controllers and the scheduler run in real time, with the permissions that they have in a cluster; simulated agents carry
the pods. Other work (Jobs of one owner, gangs, services) is in `test_other_work_on_both_stores`.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from muster.objects.labels import Muster
from muster.objects.meta import name_of, namespace_of, uid_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN, NAMESPACE_SYSTEM
from muster.objects.status import NotFound, Raw
from muster.sim.workloads import GROUP
from tests.e2e.job_world import FAILING, FOREVER, SHORT, World

pytestmark = pytest.mark.slow


def phases(status: Raw) -> dict[str, str]:
    return {record["alias"]: record["phase"] for record in status["tasks"]}


async def test_two_parties_start_together_and_find_each_other(world: World) -> None:
    alice, bob = await world.add_parties("alice", "bob")
    task = world.task_id("psi", "join")
    await world.submit("psi", world.task("psi", "join", [alice, bob]))
    pods = await world.running(task, 2)
    assert sorted(namespace_of(pod) for pod in pods) == [alice, bob]

    status = await world.task_status("psi", "join", "Running")
    ports = {given["domainID"]: given["namedPort"] for given in status["allocatedPorts"]}
    assert set(ports) == {alice, bob}
    services = {namespace_of(one): one for one in await world.objects("", "Service", [alice, bob])}
    maps = await world.objects("", "ConfigMap", [alice, bob])
    files = {namespace_of(one): one for one in maps if "app.conf" in (one.get("data") or {})}
    for pod in pods:
        party = namespace_of(pod)
        [number] = ports[party].values()
        assert pod["spec"]["containers"][0]["ports"] == [{"name": "peer", "containerPort": number, "protocol": "TCP"}]
        [port] = services[party]["spec"]["ports"]
        assert (services[party]["spec"]["clusterIP"], port["port"]) == ("None", number)
        config = msgspec.json.decode(files[party]["data"]["app.conf"])
        assert config["task"] == task
        names = {one["name"] for one in msgspec.json.decode(config["cluster"])["parties"]}
        assert names == {alice, bob}
        assert pod["spec"]["volumes"][0]["configMap"]["name"] == name_of(files[party])
    await world.until_status(GROUP, "TaskResourceGroup", task, None, phase="Reserved")

    await world.finish(pods)
    done = await world.job("psi", "Succeeded")
    assert phases(done) == {"join": "Succeeded"}
    await world.until(lambda: _only_pods(world, task), "the release of services and files")
    assert [pod["status"]["phase"] for pod in await world.pods(task)] == ["Succeeded"] * 2, "kept for their logs"


async def _only_pods(world: World, task: str) -> bool:
    kinds = {line.partition(" ")[0] for line in await world.leftovers(task)}
    return kinds == {"Pod", "TaskResource", "TaskResourceGroup", "KusciaTask"}


async def test_a_graph_with_a_retry_and_a_branch_that_may_fail(world: World) -> None:
    parties = await world.add_parties("alice", "bob")
    for alias in ("split", "right", "end"):
        world.scripts[world.task_id("dag", alias)] = (SHORT,)
    world.scripts[world.task_id("dag", "flaky")] = (FAILING, SHORT)
    world.scripts[world.task_id("dag", "doomed")] = (FAILING,)
    retry = {"limit": 1, "backoffSeconds": 1}
    await world.submit(
        "dag",
        world.task("dag", "split", parties),
        world.task("dag", "flaky", parties, dependencies=["split"], retry=retry),
        world.task("dag", "doomed", parties[:1], dependencies=["split"], tolerable=True),
        world.task("dag", "after", parties, dependencies=["doomed"], tolerable=True),
        world.task("dag", "end", parties, dependencies=["flaky"]),
        maxParallelism=2,
    )
    done = await world.job("dag", "Succeeded")
    ends = {"split": "Succeeded", "flaky": "Succeeded", "doomed": "Failed", "after": "Skipped", "end": "Succeeded"}
    assert phases(done) == ends
    assert (await world.task_status("dag", "flaky", "Succeeded"))["attempts"] == 2
    assert set(world.starts()) == {1}


async def test_one_failure_stops_a_strict_job(world: World) -> None:
    [alice] = await world.add_parties("alice")
    bad, good = world.task_id("strict", "bad"), world.task_id("strict", "good")
    await world.submit(
        "strict",
        world.task("strict", "bad", [alice]),
        world.task("strict", "good", [alice]),
        world.task("strict", "later", [alice], dependencies=["good"]),
        maxParallelism=2,
        scheduleMode="Strict",
    )
    await world.running(good, 1)
    await world.finish(await world.running(bad, 1), exit_code=3)
    failed = await world.job("strict", "Failed")
    assert "task bad failed" in failed["message"]
    await world.task_status("strict", "good", "Failed")
    await world.until(lambda: _none(world, good), "the end of what ran")
    assert not world.processes()

    async def is_settled() -> bool:
        return phases(await world.job("strict", "Failed")) == {"bad": "Failed", "good": "Failed", "later": "Skipped"}

    await world.until(is_settled, "the job tells of all its tasks")


async def _none(world: World, prefix: str) -> bool:
    return not await world.pods(prefix)


@pytest.mark.parametrize(
    ("stage", "phase", "reason"),
    [
        pytest.param("Stop", "Failed", "KusciaJobStopped", id="stop"),
        pytest.param("Suspend", "Suspended", "Suspended", id="suspend"),
    ],
)
async def test_what_was_ended_goes_on_with_what_is_left(world: World, stage: str, phase: str, reason: str) -> None:
    parties = await world.add_parties("alice", "bob")
    first, second = world.task_id("job", "first"), world.task_id("job", "second")
    world.scripts |= {first: (SHORT,), second: (FOREVER, SHORT)}
    await world.submit("job", world.task("job", "first", parties), world.task("job", "second", parties, dependencies=["first"]))
    before = await world.running(second, 2)
    kept = {uid_of(pod) for pod in await world.pods(first)}

    await world.command("job", stage)
    status = await world.job("job", phase)
    assert phases(status)["first"] == "Succeeded"
    await world.task_status("job", "second", "Failed", reason=reason)
    await world.until(lambda: _none(world, second), "the end of what ran")
    assert not world.processes()

    await world.command("job", "Restart")
    done = await world.job("job", "Succeeded")
    assert done["run"] == 1
    assert {uid_of(pod) for pod in await world.pods(first)} == kept, "what had succeeded was not run again"
    assert {uid_of(pod) for pod in before}.isdisjoint({uid_of(pod) for pod in await world.pods(second)})
    assert set(world.starts()) == {1}


async def test_cancelled_for_good(world: World) -> None:
    parties = await world.add_parties("alice", "bob")
    task = world.task_id("job", "t")
    await world.submit("job", world.task("job", "t", parties))
    await world.running(task, 2)
    await world.command("job", "Cancel")
    await world.job("job", "Cancelled")
    await world.task_status("job", "t", "Failed", reason="Cancelled")
    await world.until(lambda: _none(world, task), "the end of what ran")
    await world.command("job", "Restart")
    refused = await world.job("job", "Cancelled", stage="Restart")
    [answer] = [one for one in refused["conditions"] if one["type"] == "JobStageAccepted"]
    assert (answer["status"], answer["reason"]) == ("False", "StageNotAllowed")
    assert not await world.pods(task)


async def test_a_task_waits_for_room_and_says_so(world: World) -> None:
    """At one of its parties there is not enough: it holds nothing at the other either. It runs when a node joins."""
    alice, bob = await world.add_parties("alice", "bob", cpus=2)
    big = world.task("job", "big", [alice, bob], cpu="2")
    big["parties"][1]["resources"] = {"requests": {"cpu": "3"}}
    await world.submit("job", big)

    async def says_why() -> bool:
        found = await world.find(GROUP, "KusciaJob", f"job-{world.tag}", NAMESPACE_CROSS_DOMAIN)
        records = ((found or {}).get("status") or {}).get("tasks") or ()
        said = [one.get("message", "") for one in records if one["phase"] == "Pending" and one["reason"] == "Impossible"]
        return any(f"wants 3, {bob}-0 has 2" in message for message in said)

    await world.until(says_why, "the job says which party is short of what")
    await world.task_status("job", "big", "Pending", reason="Impossible")
    assert not any(pod["spec"].get("nodeName") for pod in await world.pods()), "nothing is held meanwhile"
    await world.add_node(bob, cpus=4)
    await world.finish(await world.running(world.task_id("job", "big"), 2))
    await world.job("job", "Succeeded")


async def test_a_whole_task_gives_way_and_comes_back(world: World) -> None:
    alice, bob = await world.add_parties("alice", "bob", cpus=2)
    urgent = f"urgent-{world.tag}"
    await world.create(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": urgent}, "value": 1000}
    )
    low, high = world.task_id("low", "t"), world.task_id("high", "t")
    await world.submit("low", world.task("low", "t", [alice, bob], cpu="2"), annotations={Muster.PREEMPTIBLE: "true"})
    before = await world.running(low, 2)
    await world.submit("high", world.task("high", "t", [alice], cpu="2"), annotations={Muster.PRIORITY_CLASS: urgent})
    above = await world.running(high, 1)
    assert above[0]["spec"]["priority"] == 1000
    await world.task_status("low", "t", "Pending", preemptions=1)

    async def waits_whole() -> bool:
        found = await world.pods(low)
        return len(found) == 2 and not any(pod["spec"].get("nodeName") for pod in found)

    await world.until(waits_whole, "the second attempt waits at both parties")
    await world.finish(above)
    await world.job("high", "Succeeded")
    again = await world.running(low, 2)
    assert {uid_of(pod) for pod in before}.isdisjoint({uid_of(pod) for pod in again})
    await world.finish(again)
    await world.job("low", "Succeeded")
    status = await world.task_status("low", "t", "Succeeded")
    assert (status["attempts"], status["preemptions"]) == (2, 1)
    assert set(world.starts()) == {1}


async def test_the_quota_of_a_party_makes_a_task_wait(world: World) -> None:
    [alice] = await world.add_parties("alice", cpus=8)
    [bob] = await world.add_parties("bob", cpus=8, quota={"hard": {"cpu": 2}, "podMaxCount": 10})
    first, second = world.task_id("first", "t"), world.task_id("second", "t")
    await world.submit("first", world.task("first", "t", [alice, bob], cpu="2"))
    running = await world.running(first, 2)
    await world.submit("second", world.task("second", "t", [alice, bob]))
    status = await world.task_status("second", "t", "Pending", reason="QuotaExceeded")
    assert f"Domain {bob}" in status["message"]
    assert not any(pod["spec"].get("nodeName") for pod in await world.pods(second))
    await world.finish(running)
    await world.finish(await world.running(second, 2))
    await world.job("second", "Succeeded")


async def test_controllers_that_are_killed_start_nothing_twice(world: World) -> None:
    """At every stage of a job that can be seen from outside, and at some moments in between."""
    parties = await world.add_parties("alice", "bob")
    one, two = world.task_id("job", "one"), world.task_id("job", "two")
    await world.kill()
    await world.submit("job", world.task("job", "one", parties), world.task("job", "two", parties, dependencies=["one"]))

    async def is_begun() -> bool:
        return await world.find(GROUP, "KusciaTask", one, NAMESPACE_CROSS_DOMAIN) is not None

    async def has_group() -> bool:
        return await world.find(GROUP, "TaskResourceGroup", one) is not None

    async def has_pods() -> bool:
        return len(await world.pods(one)) > 0

    for moment in (is_begun, has_group, has_pods):
        world.start()
        await world.until(moment, moment.__name__)
        await world.kill()
    world.start()
    first = await world.running(one, 2)
    await world.kill()
    await world.finish(first)
    for pause_s in (0.05, 0.15, 0.3):
        world.start()
        await asyncio.sleep(pause_s)
        await world.kill()
    world.start()
    await world.finish(await world.running(two, 2))
    await world.kill()
    world.start()
    await world.job("job", "Succeeded")
    assert world.starts() == [1] * 4, "two tasks, each with one pod at each of two parties"
    for alias in ("one", "two"):
        status = await world.task_status("job", alias, "Succeeded")
        assert (status["attempts"], status.get("preemptions", 0)) == (1, 0)


async def test_a_deleted_job_leaves_nothing(world: World) -> None:
    """While one of its tasks has ended, one runs and one waits."""
    parties = await world.add_parties("alice", "bob", cpus=2)
    world.scripts[world.task_id("job", "done")] = (SHORT,)
    await world.submit(
        "job",
        world.task("job", "done", parties),
        world.task("job", "runs", parties, dependencies=["done"]),
        world.task("job", "waits", parties, cpu="3", dependencies=["done"]),
        maxParallelism=2,
    )
    await world.running(world.task_id("job", "runs"), 2)

    async def three_tasks() -> bool:
        return len(await world.pods(f"job-{world.tag}")) == 6

    await world.until(three_tasks, "pods of all tasks")
    jobs = await world.store.resource(GROUP, "KusciaJob")
    await world.store.delete(jobs, f"job-{world.tag}", NAMESPACE_CROSS_DOMAIN)

    async def is_clean() -> bool:
        return not await world.leftovers(f"job-{world.tag}")

    await world.until(is_clean, "nothing left of the job")
    assert not world.processes()
    with pytest.raises(NotFound):
        await world.store.get(jobs, f"job-{world.tag}", NAMESPACE_CROSS_DOMAIN)


async def test_finished_jobs_go_by_their_number(world: World) -> None:
    [alice] = await world.add_parties("alice")
    names = ("a", "b", "c")
    for name in names:
        world.scripts[world.task_id(name, "t")] = (SHORT,)
        await world.submit(name, world.task(name, "t", [alice]), annotations={Muster.KEEP: "true"} if name == "a" else None)
        await world.job(name, "Succeeded")
    await world.submit("d", world.task("d", "t", [alice]))
    await world.running(world.task_id("d", "t"), 1)
    config = {"name": "muster-jobs", "namespace": NAMESPACE_SYSTEM}
    await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": config, "data": {"finishedMax": "1"}})
    try:

        async def is_clean() -> bool:
            return not await world.leftovers(f"b-{world.tag}")

        await world.until(is_clean, "the older one is gone with all that it had")
    finally:
        with contextlib.suppress(NotFound):
            await world.store.delete(await world.store.resource("", "ConfigMap"), "muster-jobs", NAMESPACE_SYSTEM)
    left = [
        name_of(one) for one in await world.objects(GROUP, "KusciaJob", [NAMESPACE_CROSS_DOMAIN]) if world.tag in name_of(one)
    ]
    assert sorted(left) == [f"{name}-{world.tag}" for name in ("a", "c", "d")], "one is kept, one is the newest, one runs"
