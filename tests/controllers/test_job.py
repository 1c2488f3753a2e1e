"""The Job controller (muster.dev) on a real store, with the real scheduler: what it writes, and what servers refuse it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from tests.controllers.scheduling import create, engine_of, node, objects
from tests.store.stores import memory_store

from muster.controllers.job import JobController
from muster.controllers.manager import Manager
from muster.controllers.pod_groups import PodGroups
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.objects.meta import name_of
from muster.objects.status import ApiError, BadRequest, Forbidden, Invalid, Raw
from muster.server.quotas import Quotas
from muster.sim.clock import current_loop, virtual
from muster.store.contract import Store
from muster.store.guarded import GuardedStore

T = TypeVar("T")


def job(name: str = "train", *, replicas: int = 2, cpu: int = 1, **spec: Any) -> Raw:
    role: Raw = {"name": "w", "replicas": replicas, "command": ["x"], "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"roles": [role], **spec},
    }


@asynccontextmanager
async def controlling(store: Store) -> AsyncIterator[None]:
    controllers: list[Runnable] = [Scheduler(engine=engine_of), JobController(), PodGroups()]
    manager = Manager(store, controllers, clock=current_loop().clock)
    manager.start()
    try:
        yield
    finally:
        await manager.stop()


async def status(store: Store, name: str = "train") -> Raw:
    found = await store.get(await store.resource("muster.dev", "Job"), name, "default")
    answer: Raw = found.get("status") or {}
    return answer


async def say(store: Store, state: str, name: str = "train") -> None:
    await store.patch(await store.resource("muster.dev", "Job"), name, {"spec": {"state": state}}, "default")


async def report(store: Store, names: Sequence[str], phase: str) -> None:
    pods = await store.resource("", "Pod")
    for name in names:
        await store.patch(pods, name, {"status": {"phase": phase}}, "default", subresource="status")


@virtual
async def test_from_submission_to_success() -> None:
    async with memory_store() as store, controlling(store):
        await create(store, node("n1"), job(priority=5))
        await asyncio.sleep(5)
        assert (await status(store))["phase"] == "Starting"
        names = ["train-w-0", "train-w-1"]
        pods = {name_of(pod): pod for pod in await objects(store, "Pod")}
        assert sorted(pods) == names
        assert {pod["spec"]["priority"] for pod in pods.values()} == {5}
        assert [name_of(one) for one in await objects(store, "PriorityClass", "scheduling.k8s.io")] == ["muster-priority-5"]
        await report(store, names, "Running")
        await asyncio.sleep(5)
        assert (await status(store))["phase"] == "Running"
        [group] = await objects(store, "PodGroup", "scheduling.sigs.k8s.io")
        assert group["status"]["phase"] == "Running"
        await report(store, names, "Succeeded")
        await asyncio.sleep(5)
        done = await status(store)
        assert (done["phase"], done["progress"], done["roles"]) == ("Succeeded", 1, [{"name": "w", "succeeded": 2}])
        assert {c["type"]: c["status"] for c in done["conditions"]} == {"Scheduled": "True", "Complete": "True"}
        assert len(await objects(store, "Pod")) == 2, "finished pods stay for their logs"


@virtual
async def test_it_waits_with_a_reason_and_starts_when_there_is_room() -> None:
    async with memory_store() as store, controlling(store):
        await create(store, node("n1", "3"), job(cpu=2))
        await asyncio.sleep(5)
        waiting = await status(store)
        assert (waiting["phase"], waiting["reason"]) == ("Queued", "GangInsufficient")
        await create(store, node("n2", "3"))
        await asyncio.sleep(5)
        assert (await status(store))["phase"] == "Starting"


@virtual
async def test_suspend_and_resume() -> None:
    async with memory_store() as store, controlling(store):
        await create(store, node("n1"), job())
        await asyncio.sleep(5)
        await report(store, ["train-w-0"], "Running")
        await say(store, "Suspended")
        await asyncio.sleep(5)
        assert (await status(store))["phase"] == "Suspended"
        pods = await store.resource("", "Pod")
        left = await objects(store, "Pod")
        assert all(pod["metadata"].get("deletionTimestamp") for pod in left)
        await say(store, "Running")
        await asyncio.sleep(35)
        waiting = await status(store)
        assert (waiting["phase"], waiting["attempts"]) == ("Queued", 2)
        assert "waits for 2 pods of the attempt before" in waiting["message"]
        for pod in left:
            await store.delete(pods, name_of(pod), "default", grace_period_s=0)
        await asyncio.sleep(5)
        assert (await status(store))["phase"] == "Starting"
        assert {pod["metadata"]["annotations"]["muster.dev/attempt"] for pod in await objects(store, "Pod")} == {"2"}


@virtual
async def test_deleting_the_job_takes_everything() -> None:
    async with memory_store() as store, controlling(store):
        await create(store, node("n1"), job(cpu=9))
        await asyncio.sleep(5)
        assert await objects(store, "Service")
        await store.delete(await store.resource("muster.dev", "Job"), "train", "default")
        await asyncio.sleep(60)
        for kind, group in (("Pod", ""), ("Service", ""), ("PodGroup", "scheduling.sigs.k8s.io")):
            assert not await objects(store, kind, group), kind


@virtual
async def test_a_group_that_somebody_deleted_is_made_again() -> None:
    async with memory_store() as store, controlling(store):
        await create(store, node("n1"), job(cpu=9))
        await asyncio.sleep(5)
        groups = await store.resource("scheduling.sigs.k8s.io", "PodGroup")
        await store.delete(groups, "train-w", "default")
        await asyncio.sleep(5)
        assert [name_of(one) for one in await objects(store, "PodGroup", "scheduling.sigs.k8s.io")] == ["train-w"]


@virtual
async def test_a_name_that_is_taken_is_told_and_waited_for() -> None:
    async with memory_store() as store, controlling(store):
        mine: Raw = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "train", "namespace": "default"}}
        await create(store, node("n1"), {**mine, "spec": {"clusterIP": "None", "selector": {"a": "b"}}}, job())
        await asyncio.sleep(30)
        refused = await status(store)
        assert (refused["phase"], refused["reason"]) == ("Queued", "CreationRefused")
        assert "Service default/train" in refused["message"]
        assert not await objects(store, "Pod")
        await store.delete(await store.resource("", "Service"), "train", "default")
        await asyncio.sleep(300)
        assert (await status(store))["phase"] == "Starting"


class Refusing(GuardedStore):
    """A server whose admission refuses pods, for good or for now."""

    error: ApiError | None = None

    async def write(self, verb: str, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        if verb == "create" and what.startswith("pods ") and self.error is not None:
            raise self.error
        return await operation()


@virtual
async def test_what_admission_refuses_is_told() -> None:
    async with memory_store() as inner:
        store = Refusing(inner)
        store.error = Forbidden('pods "train-w-0" is forbidden: exceeded quota: q', kind="pods", name="train-w-0")
        async with controlling(store):
            await create(inner, node("n1"), job())
            await asyncio.sleep(10)
            refused = await status(inner)
            assert (refused["phase"], refused["reason"]) == ("Queued", "CreationRefused")
            assert "exceeded quota" in refused["message"]
            store.error = None
            await asyncio.sleep(300)
            assert (await status(inner))["phase"] == "Starting"


@virtual
async def test_a_quota_is_told_and_waited_for() -> None:
    async with memory_store() as store:
        quotas = Quotas(store)
        quotas.start()
        resource = await store.resource("", "ResourceQuota")
        limit: Raw = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"pods": 1}}}
        await store.create(resource, limit, "default")
        async with controlling(store):
            await create(store, node("n1"), job())
            await asyncio.sleep(10)
            refused = await status(store)
            assert (refused["phase"], refused["reason"]) == ("Queued", "CreationRefused")
            assert "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1" in refused["message"]
            await store.patch(resource, "q", {"spec": {"hard": {"pods": 2}}}, "default")
            await asyncio.sleep(300)
            assert (await status(store))["phase"] == "Starting"
        await quotas.stop()


@pytest.mark.parametrize(
    "error",
    [
        Invalid('Pod "train-w-0" is invalid: spec.x: wrong', kind="Pod", name="train-w-0"),
        BadRequest('Pod in version "v1" cannot be handled as a Pod: spec.x: wrong'),
    ],
    ids=["invalid", "not to be read"],
)
@virtual
async def test_pods_that_no_server_takes_fail_the_job(error: ApiError) -> None:
    async with memory_store() as inner:
        store = Refusing(inner)
        store.error = error
        async with controlling(store):
            await create(inner, node("n1"), job())
            await asyncio.sleep(10)
            failed = await status(inner)
            assert (failed["phase"], failed["reason"]) == ("Failed", "ManifestInvalid")
            assert "spec.x: wrong" in failed["message"]
