"""KusciaJobs in real time, on the embedded store and on a real API server: a graph, a restart, an invalid job, the clean-up."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.controllers.kinds import serve_kinds
from tests.controllers.kuscia_jobs import VERSION, image, job, stage, task

from muster.controllers.job_cleanup import JobCleanup
from muster.controllers.kuscia_job import KusciaJobs
from muster.controllers.manager import Manager
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import AlreadyExists, NotFound, Raw
from muster.objects.time import wall_clock
from muster.store.contract import Store

WAIT_S = 60.0
GROUP = "kuscia.secretflow"


class Desk:
    """Stands in for the task controller."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tag = uuid.uuid4().hex[:8]

    async def create(self, raw: Raw) -> None:
        kind = await self.store.resource(raw["apiVersion"].rpartition("/")[0], raw["kind"])
        await self.store.create(kind, raw, raw["metadata"].get("namespace"))

    def job(self, *tasks: Raw, name: str = "job", initiator: str = "") -> Raw:
        mine = [
            {
                **raw,
                "appImage": f"app-{self.tag}",
                "parties": [{"domainID": f"alice-{self.tag}", "resources": {"requests": {"cpu": 1}}}],
            }
            for raw in tasks
        ]
        return job(*mine, name=f"{name}-{self.tag}", initiator=initiator or f"alice-{self.tag}")

    async def status(self, name: str = "job") -> Raw:
        kind = await self.store.resource(GROUP, "KusciaJob")
        found: Raw = (await self.store.get(kind, f"{name}-{self.tag}", NAMESPACE_CROSS_DOMAIN)).get("status") or {}
        return found

    async def until_phases(self, **phases: str) -> None:
        async def check() -> bool:
            return {r["alias"]: r["phase"] for r in (await self.status()).get("tasks", ())} == phases

        await self.until(check)

    async def until_phase(self, phase: str, name: str = "job") -> Raw:
        async def check() -> bool:
            return (await self.status(name)).get("phase") == phase

        await self.until(check)
        return await self.status(name)

    async def until(self, check: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not await check():
                await asyncio.sleep(0.1)

    async def end(self, alias: str, phase: str = "Succeeded") -> None:
        name = next(r["taskID"] for r in (await self.status())["tasks"] if r["alias"] == alias)
        kind = await self.store.resource(GROUP, "KusciaTask")
        status = {"status": {"phase": phase}}
        await self.store.patch(kind, name, status, NAMESPACE_CROSS_DOMAIN, subresource="status")

    async def command(self, word: str, version: int) -> None:
        kind = await self.store.resource(GROUP, "KusciaJob")
        patch = {"metadata": {"labels": stage(word, version)}}
        await self.store.patch(kind, f"job-{self.tag}", patch, NAMESPACE_CROSS_DOMAIN)


@pytest.fixture
async def desk(real_store: Store) -> AsyncIterator[Desk]:
    await serve_kinds(real_store, "Domain", "AppImage", "KusciaJob", "KusciaTask", "Job")
    with contextlib.suppress(AlreadyExists):
        raw = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE_CROSS_DOMAIN}}
        await real_store.create(await real_store.resource("", "Namespace"), raw)
    made = Desk(real_store)
    await made.create({"apiVersion": VERSION, "kind": "Domain", "metadata": {"name": f"alice-{made.tag}"}, "spec": {}})
    await made.create(image(f"app-{made.tag}"))
    manager = Manager(real_store, [KusciaJobs(), JobCleanup()], clock=wall_clock)
    manager.start()
    yield made
    await manager.stop()


async def test_a_graph_with_a_restart(desk: Desk) -> None:
    await desk.create(desk.job(task("a"), task("b", "a"), task("c", "b")))
    await desk.until_phases(a="Pending", b="Waiting", c="Waiting")
    await desk.end("a")
    await desk.until_phases(a="Succeeded", b="Pending", c="Waiting")
    await desk.end("b", "Failed")
    await desk.until_phase("Failed")
    await desk.command("Restart", 1)
    await desk.until_phases(a="Succeeded", b="Pending", c="Waiting")
    await desk.end("b")
    await desk.until_phases(a="Succeeded", b="Succeeded", c="Pending")
    await desk.end("c")
    status = await desk.until_phase("Succeeded")
    assert status["run"] == 1
    kinds = {c["type"]: c["status"] for c in status["conditions"]}
    assert kinds["JobValidated"] == kinds["JobStageAccepted"] == "True"


async def test_a_job_that_waits_says_so_and_is_cancelled(desk: Desk) -> None:
    await desk.create(desk.job(task("a"), name="job", initiator=f"nobody-{desk.tag}"))
    status = await desk.until_phase("initialized")
    assert status["reason"] == "PartyUnknown"
    await desk.command("Cancel", 1)
    await desk.until_phase("Cancelled")


async def test_a_finished_job_goes_when_the_limit_says_so(desk: Desk) -> None:
    await desk.create(desk.job(task("a")))
    await desk.until_phases(a="Pending")
    await desk.end("a")
    await desk.until_phase("Succeeded")
    maps = await desk.store.resource("", "ConfigMap")
    raw = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "muster-jobs", "namespace": "kube-system"}}
    with contextlib.suppress(AlreadyExists):
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
        await desk.store.create(await desk.store.resource("", "Namespace"), space)
    await desk.store.create(maps, {**raw, "data": {"finishedMax": "0"}}, "kube-system")

    async def is_gone() -> bool:
        try:
            await desk.status()
        except NotFound:
            return True
        return False

    try:
        await desk.until(is_gone)
    finally:
        await desk.store.delete(maps, "muster-jobs", "kube-system")
