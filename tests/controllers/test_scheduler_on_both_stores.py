"""The scheduler in real time: on the embedded store with its file, and on a real API server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.controllers.scheduling import create, node, pod, pod_group
from tests.waiting import until

from muster.controllers.manager import Manager
from muster.controllers.scheduler import Scheduler
from muster.engine.machine import Engine
from muster.engine.plugins.default_preemption import DefaultPreemption
from muster.engine.plugins.fit import Fit
from muster.engine.plugins.node_affinity import NodeAffinity
from muster.engine.profile import Profile
from muster.objects.conditions import find_condition
from muster.objects.status import NotFound, Raw
from muster.objects.time import wall_clock
from muster.store.contract import Store


@asynccontextmanager
async def scheduling(store: Store, profile: str) -> AsyncIterator[None]:
    def engine() -> Engine:
        return Engine([Profile(profile, [Fit(), NodeAffinity(), DefaultPreemption()])])

    manager = Manager(store, [Scheduler(engine=engine)], clock=wall_clock)
    manager.start()
    try:
        yield
    finally:
        await manager.stop()


@pytest.fixture
async def pool(real_store: Store) -> AsyncIterator[str]:
    """Two nodes of two CPUs that only pods of this test ask for."""
    name = f"pool-{uuid.uuid4().hex[:10]}"
    nodes = await real_store.resource("", "Node")
    for n in range(2):
        made = node(f"{name}-{n}", "2")
        made["metadata"]["labels"]["pool"] = name
        await create(real_store, made)
        await real_store.patch(nodes, f"{name}-{n}", {"status": made["status"]}, subresource="status")
    yield name
    for n in range(2):
        await real_store.delete(nodes, f"{name}-{n}")


async def test_pods_are_placed_and_those_that_wait_say_why(real_store: Store, namespace: str, pool: str) -> None:
    profile = f"muster-{pool}"

    def ours(name: str, cpu: str = "1", **more: object) -> Raw:
        return pod(name, cpu, namespace=namespace, scheduler=profile, nodeSelector={"pool": pool}, **more)  # type: ignore[arg-type]

    pods = await real_store.resource("", "Pod")
    stranger = pod("stranger", namespace=namespace, scheduler="somebody-else")
    await create(real_store, ours("a"), ours("b"), ours("big", "3"), stranger)

    async def live(name: str) -> Raw:
        return await real_store.get(pods, name, namespace)

    async with scheduling(real_store, profile):

        async def two_placed() -> bool:
            return all([(await live(name))["spec"].get("nodeName", "").startswith(pool) for name in "ab"])

        async def says_why() -> bool:
            conditions = ((await live("big")).get("status") or {}).get("conditions")
            scheduled, waiting = find_condition(conditions, "PodScheduled"), find_condition(conditions, "muster.dev/Waiting")
            return bool(
                scheduled
                and waiting
                and (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
                and scheduled["message"].startswith(f"{waiting['reason']}: ")
            )

        await until(two_placed)
        await until(says_why)

        # A gang, where the cluster knows gangs.
        group: dict[str, str] = {}
        try:
            await real_store.resource("scheduling.sigs.k8s.io", "PodGroup")
            await create(real_store, pod_group("g", 2, namespace))
            group = {"gang": "g"}
        except NotFound:
            pass
        await create(real_store, ours("g0", **group), ours("g1", **group))

        async def gang_placed() -> bool:
            return all([(await live(name))["spec"].get("nodeName", "").startswith(pool) for name in ("g0", "g1")])

        await until(gang_placed)

        events = await real_store.resource("", "Event")

        async def told() -> bool:
            items = (await real_store.list(events, namespace)).items
            return {e["involvedObject"]["name"] for e in items if e["reason"] == "Scheduled"} == {"a", "b", "g0", "g1"}

        await until(told)
    assert "nodeName" not in (await live("stranger"))["spec"]
    assert not find_condition(((await live("stranger")).get("status") or {}).get("conditions"), "PodScheduled")


async def test_room_is_made(real_store: Store, namespace: str, pool: str) -> None:
    profile = f"muster-{pool}"
    pods = await real_store.resource("", "Pod")
    classes = await real_store.resource("scheduling.k8s.io", "PriorityClass")
    important = f"important-{pool}"
    await real_store.create(
        classes, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": important}, "value": 1000}
    )
    try:
        async with scheduling(real_store, profile):
            low = [
                pod(f"low-{n}", "2", namespace=namespace, scheduler=profile, terminationGracePeriodSeconds=0) for n in range(2)
            ]
            for one in low:
                one["spec"]["nodeSelector"] = {"pool": pool}
            await create(real_store, *low)

            async def low_placed() -> bool:
                found = [await real_store.get(pods, f"low-{n}", namespace) for n in range(2)]
                return all(one["spec"].get("nodeName") for one in found)

            await until(low_placed)
            high = pod("high", "2", namespace=namespace, scheduler=profile, nodeSelector={"pool": pool})
            high["spec"] |= {"priorityClassName": important, "priority": 1000}
            await create(real_store, high)

            async def high_placed() -> bool:
                return bool((await real_store.get(pods, "high", namespace))["spec"].get("nodeName"))

            await until(high_placed)
            left = [one["metadata"]["name"] for one in (await real_store.list(pods, namespace)).items]
            assert len([name for name in left if name.startswith("low")]) == 1
    finally:
        await real_store.delete(classes, important)


async def test_who_waits_for_a_grace_period_is_nominated(real_store: Store, namespace: str, pool: str) -> None:
    """And the victim is marked where the server knows the mark."""
    profile = f"muster-{pool}"
    pods = await real_store.resource("", "Pod")
    classes = await real_store.resource("scheduling.k8s.io", "PriorityClass")
    important = f"important-{pool}"
    made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": important}, "value": 1000}
    await real_store.create(classes, made)

    def ours(name: str, at: int, **more: object) -> Raw:
        selector = {"kubernetes.io/hostname": f"{pool}-{at}"}
        return pod(name, "2", namespace=namespace, scheduler=profile, nodeSelector=selector, **more)  # type: ignore[arg-type]

    async def live(name: str) -> Raw:
        return await real_store.get(pods, name, namespace)

    async def is_placed(name: str) -> bool:
        return bool((await live(name))["spec"].get("nodeName"))

    try:
        async with scheduling(real_store, profile):
            await create(real_store, ours("low", 0, terminationGracePeriodSeconds=300))
            await until(lambda: is_placed("low"))
            await create(real_store, ours("high", 0, priorityClassName=important, priority=1000))

            async def is_nominated() -> bool:
                return str((await live("high"))["status"].get("nominatedNodeName")) == f"{pool}-0"

            await until(is_nominated)
            waiting = find_condition((await live("high"))["status"].get("conditions"), "muster.dev/Waiting")
            assert waiting is not None, "it came with the nomination"
            assert (waiting["status"], waiting["reason"]) == ("True", "WaitingForVictims")
            low = await live("low")
            assert low["metadata"]["deletionGracePeriodSeconds"] == 300
            mark = find_condition(low["status"].get("conditions"), "DisruptionTarget")
            assert (mark is not None) == (await real_store.minor_version() >= 26)
            await real_store.delete(pods, "low", namespace, grace_period_s=0)
            await until(lambda: is_placed("high"))
    finally:
        await real_store.delete(classes, important)
