"""A Job (muster.dev) from submission to its end in real time: on the embedded store and on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.controllers.kinds import serve_kinds

from muster.controllers.job import JobController
from muster.controllers.manager import Manager
from muster.controllers.pod_groups import PodGroups
from muster.objects.kinds.muster_jobs import JOB
from muster.objects.meta import annotations_of, name_of
from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.store.contract import Store

WAIT_S = 60.0


def job(namespace: str, **spec: Any) -> Raw:
    role = {"name": "w", "replicas": 2, "command": ["x"], "resources": {"requests": {"cpu": "10m", "bandwidth": "1Mbps"}}}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": namespace},
        "spec": {"roles": [role], "priority": 3, **spec},
    }


class Desk:
    """Stands in for scheduler and agents: binds pods and reports phases, as a person with kubectl could."""

    def __init__(self, store: Store, namespace: str) -> None:
        self.store, self.namespace = store, namespace

    async def status(self) -> Raw:
        found = await self.store.get(await self.store.resource("muster.dev", "Job"), "train", self.namespace)
        answer: Raw = found.get("status") or {}
        return answer

    async def until(self, check: Callable[[Raw], bool]) -> Raw:
        async with asyncio.timeout(WAIT_S):
            while not check(found := await self.status()):
                await asyncio.sleep(0.1)
        return found

    async def pods(self) -> list[Raw]:
        return (await self.store.list(await self.store.resource("", "Pod"), self.namespace)).items

    async def pods_of(self, attempt: int) -> list[Raw]:
        async with asyncio.timeout(WAIT_S):
            while True:
                found = [one for one in await self.pods() if annotations_of(one)["muster.dev/attempt"] == str(attempt)]
                if len(found) == 2:
                    return found
                await asyncio.sleep(0.1)

    async def place(self, attempt: int) -> None:
        for one in await self.pods_of(attempt):
            await self.store.bind(name_of(one), self.namespace, "n1")

    async def report(self, attempt: int, phase: str) -> None:
        resource = await self.store.resource("", "Pod")
        for one in await self.pods_of(attempt):
            await self.store.patch(resource, name_of(one), {"status": {"phase": phase}}, self.namespace, subresource="status")

    async def say(self, state: str) -> None:
        await self.store.patch(
            await self.store.resource("muster.dev", "Job"), "train", {"spec": {"state": state}}, self.namespace
        )

    async def bury(self) -> None:
        """What an agent does when a pod that is being deleted has ended."""
        resource = await self.store.resource("", "Pod")
        for one in await self.pods():
            if one["metadata"].get("deletionTimestamp"):
                await self.store.delete(resource, name_of(one), self.namespace, grace_period_s=0)


@asynccontextmanager
async def controlling(store: Store) -> AsyncIterator[Manager]:
    manager = Manager(store, [JobController(), PodGroups()], clock=wall_clock)
    manager.start()
    try:
        yield manager
    finally:
        await manager.stop()


@pytest.mark.slow
async def test_a_job_lives_alike(real_store: Store, namespace: str) -> None:
    await serve_kinds(real_store, "Job", "PodGroup")
    desk = Desk(real_store, namespace)
    async with controlling(real_store) as manager:
        await real_store.create(JOB, job(namespace), namespace)
        await desk.until(lambda status: status.get("phase") == "Queued")
        await desk.place(1)
        await desk.until(lambda status: status.get("phase") == "Starting")
        pod = (await desk.pods_of(1))[0]
        assert (pod["spec"]["priority"], pod["spec"]["priorityClassName"]) == (3, "muster-priority-3")
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (name_of(pod), "train")
        await desk.report(1, "Running")
        await desk.until(lambda status: status.get("phase") == "Running")

        await desk.say("Suspended")
        await desk.until(lambda status: status.get("phase") == "Suspended")
        await desk.say("Running")
        await desk.until(lambda status: status.get("attempts") == 2)
        async with asyncio.timeout(WAIT_S):
            while any(annotations_of(one)["muster.dev/attempt"] == "1" for one in await desk.pods()):
                await desk.bury()
                await asyncio.sleep(0.1)
        await desk.place(2)
        await desk.report(2, "Running")
        await desk.until(lambda status: status.get("phase") == "Running")
        await desk.report(2, "Succeeded")
        done = await desk.until(lambda status: status.get("phase") == "Succeeded")
        assert done["roles"] == [{"name": "w", "succeeded": 2}]
        groups = await real_store.resource("scheduling.sigs.k8s.io", "PodGroup")
        async with asyncio.timeout(WAIT_S):
            while True:
                group = await real_store.get(groups, "train-w", namespace)
                if (group.get("status") or {}).get("phase") == "Finished":
                    break
                await asyncio.sleep(0.1)

        jobs = await real_store.resource("muster.dev", "Job")
        version = (await real_store.get(jobs, "train", namespace))["metadata"]["resourceVersion"]
        await asyncio.sleep(1)
        async with asyncio.timeout(WAIT_S):
            while not all(runner.is_idle for runner in manager.runners):
                await asyncio.sleep(0.1)
        assert (await real_store.get(jobs, "train", namespace))["metadata"]["resourceVersion"] == version, "it came to rest"
