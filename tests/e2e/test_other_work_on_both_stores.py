"""Jobs of one owner, gangs of plain pods and services, on the embedded store and on a real API server.

As in `test_jobs_on_both_stores`: all controllers and the scheduler in real time, pods carried by simulated agents.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.objects.labels import KoordinatorPod, KusciaLabel
from muster.objects.meta import annotations_of, labels_of, name_of, namespace_of, uid_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import Raw
from muster.sim.agent import is_ready
from muster.sim.workloads import GROUP
from tests.controllers.deployments import app_image, deployment, party
from tests.controllers.scheduling import pod, pod_group
from tests.e2e.job_world import World

pytestmark = pytest.mark.slow

SIGS = "scheduling.sigs.k8s.io"


# -- Jobs of one owner ---------------------------------------------------------------------------------------------------------


def role(name: str, at: str, replicas: int = 1, **more: Any) -> Raw:
    return {
        "name": name,
        "replicas": replicas,
        "command": ["x"],
        "resources": {"requests": {"cpu": "1"}},
        "nodeSelector": {KusciaLabel.NODE_NAMESPACE: at},
        **more,
    }


async def own_job(world: World, at: str, *roles: Raw, **spec: Any) -> None:
    metadata = {"name": "train", "namespace": at}
    spec = {"roles": list(roles), **spec}
    await world.create({"apiVersion": "muster.dev/v1alpha1", "kind": "Job", "metadata": metadata, "spec": spec})


async def say(world: World, at: str, state: str) -> None:
    jobs = await world.store.resource("muster.dev", "Job")
    await world.store.patch(jobs, "train", {"spec": {"state": state}}, at)


async def test_two_roles_start_with_fewer_than_all(world: World) -> None:
    """Room for three: the server and two of three workers, which are enough. The third follows when there is room."""
    [home] = await world.add_parties("home", cpus=3)
    workers = role("w", home, 3, minReplicas=2)
    await own_job(world, home, role("ps", home, completion="Service", ports=[{"name": "rpc"}]), workers, priority=7)
    await world.until_status("muster.dev", "Job", "train", home, phase="Running")
    await world.running("train-w", 2)
    await world.running("train-ps", 1)
    pods = await world.pods("train")
    assert len(pods) == 4
    assert {one["spec"]["priority"] for one in pods} == {7}
    [waiting] = [one for one in pods if not one["spec"].get("nodeName")]
    assert labels_of(waiting)["muster.dev/role"] == "w"
    groups = {name_of(one): one["spec"]["minMember"] for one in await world.objects(SIGS, "PodGroup", [home])}
    assert groups == {"train-ps": 1, "train-w": 2}
    assert await world.find("", "Service", "train", home) is not None

    await world.add_node(home, 1)
    await world.finish(await world.running("train-w", 3))
    done = await world.until_status("muster.dev", "Job", "train", home, phase="Succeeded")
    assert (done["attempts"], done.get("failures", 0)) == (1, 0)

    async def server_ended() -> bool:
        return not world.processes()

    await world.until(server_ended, "the end of the server, which nobody needs any more")
    assert set(world.starts()) == {1}


async def test_suspended_and_resumed(world: World) -> None:
    [home] = await world.add_parties("home")
    await own_job(world, home, role("w", home, 2))
    before = await world.running("train", 2)
    await say(world, home, "Suspended")
    await world.until_status("muster.dev", "Job", "train", home, phase="Suspended")

    async def nothing_runs() -> bool:
        return not world.processes() and not [one for one in await world.pods("train") if one["spec"].get("nodeName")]

    await world.until(nothing_runs, "the end of what ran")
    await say(world, home, "Running")
    again = await world.running("train", 2)
    assert {name_of(one) for one in again} == {name_of(one) for one in before}
    assert {uid_of(one) for one in again}.isdisjoint({uid_of(one) for one in before})
    assert {annotations_of(one)["muster.dev/attempt"] for one in again} == {"2"}
    await world.finish(again)
    done = await world.until_status("muster.dev", "Job", "train", home, phase="Succeeded")
    assert (done["attempts"], done.get("failures", 0), done.get("preemptions", 0)) == (2, 0, 0)
    assert set(world.starts()) == {1}

    jobs = await world.store.resource("muster.dev", "Job")
    await world.store.delete(jobs, "train", home)

    async def is_clean() -> bool:
        left = [*await world.pods("train"), *await world.objects(SIGS, "PodGroup", [home])]
        return not left and await world.find("", "Service", "train", home) is None

    await world.until(is_clean, "nothing left of the job")


# -- gangs ---------------------------------------------------------------------------------------------------------------------


def member(name: str, at: str, gang: str, cpu: str = "2") -> Raw:
    return pod(name, cpu, namespace=at, gang=gang, nodeSelector={KusciaLabel.NODE_NAMESPACE: at})


async def is_waiting(world: World, prefix: str, count: int) -> bool:
    """All of them were tried, say why they wait, and have no place."""
    found = await world.pods(prefix)
    said = [one for one in found for c in (one["status"].get("conditions") or ()) if c["type"] == "muster.dev/Waiting"]
    return len(said) == count and not any(one["spec"].get("nodeName") for one in found)


async def test_a_gang_of_plain_pods(world: World) -> None:
    [home] = await world.add_parties("home", cpus=3)
    await world.create(pod_group("ring", 2, home))
    await world.create(member("ring-0", home, "ring"))
    await world.until_status(SIGS, "PodGroup", "ring", home, phase="Pending")
    await world.create(member("ring-1", home, "ring"))
    await world.until_status(SIGS, "PodGroup", "ring", home, phase="PreScheduling")
    await world.until(lambda: is_waiting(world, "ring", 2), "one alone would have room, and waits for the other")
    await world.add_node(home, 2)
    pods = await world.running("ring", 2)
    running = await world.until_status(SIGS, "PodGroup", "ring", home, phase="Running")
    assert (running["scheduled"], running["running"]) == (2, 2)
    await world.finish(pods)
    done = await world.until_status(SIGS, "PodGroup", "ring", home, phase="Finished")
    assert done["succeeded"] == 2


async def test_two_gangs_that_belong_together(world: World) -> None:
    [home] = await world.add_parties("home", cpus=2)
    for name in ("left", "right"):
        group = pod_group(name, 1, home)
        joined = msgspec.json.encode([f"{home}/left", f"{home}/right"]).decode()
        group["metadata"]["annotations"] = {KoordinatorPod.GANG_GROUPS: joined}
        await world.create(group)
    await world.create(member("left-0", home, "left"))
    await world.until(lambda: is_waiting(world, "left", 1), "the other gang is not there yet")
    await world.create(member("right-0", home, "right"))
    await world.until(lambda: is_waiting(world, "right", 1), "there is room for one of the two")
    assert await is_waiting(world, "left", 1)
    await world.add_node(home, 2)
    pods = [*await world.running("left", 1), *await world.running("right", 1)]
    await world.finish(pods)
    for name in ("left", "right"):
        await world.until_status(SIGS, "PodGroup", name, home, phase="Finished")


# -- services ------------------------------------------------------------------------------------------------------------------


async def test_a_service_comes_up_scales_rolls_and_goes(world: World) -> None:
    alice, bob = await world.add_parties("alice", "bob")
    image, name = f"serving-{world.tag}", f"credit-{world.tag}"
    await world.create(app_image(image))
    kds = await world.store.resource(GROUP, "KusciaDeployment")
    strategy = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

    def parties(replicas: int) -> list[Raw]:
        return [party(one, replicas, image=image, strategy=strategy) for one in (alice, bob)]

    async def pods() -> list[Raw]:
        return [one for one in await world.pods() if labels_of(one).get(KusciaLabel.DEPLOYMENT_NAME) == name]

    async def until_up(replicas: int, tag: str) -> list[Raw]:
        async def check() -> bool:
            found = await pods()
            images = {one["spec"]["containers"][0]["image"] for one in found}
            is_up = all(is_ready(one) for one in found)
            return len(found) == 2 * replicas and is_up and images == {f"{image}:{tag}"}

        await world.until(check, f"{replicas} pods of version {tag} at each party")
        await world.until_status(GROUP, "KusciaDeployment", name, NAMESPACE_CROSS_DOMAIN, phase="Available")
        return await pods()

    await world.create(deployment(*parties(1), name=name))
    first = await until_up(1, "1")
    services = [one for one in await world.objects("", "Service", [alice, bob]) if name in name_of(one)]
    assert sorted((namespace_of(one), name_of(one)) for one in services) == [
        (at, f"{name}-{port}") for at in (alice, bob) for port in ("admin", "api")
    ]
    await world.store.patch(kds, name, {"spec": {"parties": parties(2)}}, NAMESPACE_CROSS_DOMAIN)
    second = await until_up(2, "1")
    assert {uid_of(one) for one in first} < {uid_of(one) for one in second}, "those that stay are not touched"
    images = await world.store.resource(GROUP, "AppImage")
    await world.store.patch(images, image, {"spec": {"image": {"tag": "2"}}})
    third = await until_up(2, "2")
    assert {uid_of(one) for one in second}.isdisjoint({uid_of(one) for one in third})
    assert set(world.starts()) == {1}

    await world.store.delete(kds, name, NAMESPACE_CROSS_DOMAIN)

    async def is_clean() -> bool:
        kinds = ("Pod", "Service", "ConfigMap")
        left = [one for kind in kinds for one in await world.objects("", kind, [alice, bob]) if name in name_of(one)]
        return not left and await world.find(GROUP, "KusciaDeployment", name, NAMESPACE_CROSS_DOMAIN) is None

    await world.until(is_clean, "nothing left of the service")
    assert not world.processes()
