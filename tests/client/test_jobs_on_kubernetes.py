"""Jobs through the client on a real API server with Muster's kinds: the same calls, the same answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from muster.bench.kubernetes import ControlPlane
from muster.client import ApiClient, JobFilter, Jobs
from muster.objects.status import AlreadyExists, ApiError, Conflict, NotFound
from muster.store.kubernetes import KubernetesStore
from tests.client.job_objects import task
from tests.client.test_jobs import manifest, own_manifest, report
from tests.controllers.kinds import serve_kinds

pytestmark = pytest.mark.kubernetes


@pytest.fixture
async def client(kubernetes: ControlPlane) -> AsyncIterator[ApiClient]:
    async with await ApiClient.from_kubeconfig(kubernetes.kubeconfig_path) as client:
        await serve_kinds(KubernetesStore(client), "KusciaJob", "KusciaTask", "Job")
        namespaces = await client.resource("", "Namespace")
        with contextlib.suppress(AlreadyExists):
            await client.create(namespaces, {"metadata": {"name": "cross-domain"}})
        client.discovery.invalidate()
        yield client
        for group, kind in (("kuscia.secretflow", "KusciaJob"), ("kuscia.secretflow", "KusciaTask")):
            with contextlib.suppress(ApiError):
                await client.delete_collection(await client.resource(group, kind), "cross-domain")
        with contextlib.suppress(ApiError):
            await client.delete_collection(await client.resource("muster.dev", "Job"), "default")


async def test_life_of_a_job(client: ApiClient) -> None:
    jobs = Jobs(client, namespace="default")
    [tree, own] = await jobs.submit([manifest("real"), own_manifest("own-real")])
    assert (tree.namespace, own.namespace) == ("cross-domain", "default")
    with pytest.raises(AlreadyExists, match="muster job rerun real"):
        await jobs.submit([manifest("real")])
    await report(client, tree, phase="AwaitingApproval")
    assert (await jobs.approve("real", "bob")).approvals == {"bob": "JobAccepted"}
    await report(client, tree, phase="Running")
    async with asyncio.timeout(60):
        waiting = asyncio.create_task(jobs.wait("real"))
        tasks = await client.resource("kuscia.secretflow", "KusciaTask")
        made = task("first", job_uid=tree.uid, name="real-first")
        made["metadata"].pop("uid")
        await client.create(tasks, made)
        await jobs.stop("real")
        assert (await jobs.tree("real")).tasks[0].task_id == "real-first"
        await report(client, tree, phase="Failed", reason="Stopped")
        assert (await waiting).outcome == "Stopped"
    with pytest.raises(Conflict, match="only a suspended job"):
        await jobs.resume("real")
    again = await jobs.rerun("real")
    assert again.name == "real-rerun-1"
    assert [one.name for one in (await jobs.list(JobFilter(phases=["stopped"]))).items] == ["real"]
    assert (await jobs.diff("real", "real-rerun-1")).spec == []
    await jobs.suspend("own-real")
    assert (await jobs.get("own-real"))["spec"]["state"] == "Suspended"
    await jobs.delete("real")
    with pytest.raises(NotFound):
        await jobs.get("real")


async def test_pages(client: ApiClient) -> None:
    jobs = Jobs(client, namespace="default")
    await jobs.submit([*(manifest(f"p{n}") for n in range(3)), own_manifest("p-own")])
    names: list[str] = []
    token = ""
    while True:
        page = await jobs.list(limit=2, continue_token=token)
        names += [tree.name for tree in page.items if tree.name.startswith("p")]
        token = page.continue_token
        if not token:
            break
    assert names == ["p0", "p1", "p2", "p-own"]
