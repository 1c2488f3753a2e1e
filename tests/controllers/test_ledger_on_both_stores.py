"""A pod's run noted in real time, force-deleted or ended, on the embedded store and on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.controllers.kinds import serve_kinds

from muster.controllers.ledger import LedgerKeeper
from muster.controllers.ledger_pages import Pages
from muster.controllers.manager import Manager
from muster.objects.kinds.muster_usage import UsageRecord
from muster.objects.meta import annotations_of, finalizers_of, name_of
from muster.objects.status import NotFound, Raw
from muster.objects.time import wall_clock
from muster.objects.view import view_of
from muster.quota.periods import END_MS
from muster.store.contract import Store

WAIT_S = 60.0


def pod(name: str, user: str) -> Raw:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m", "memory": "1Ti"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"muster.dev/user": user}},
        "spec": {"containers": [container], "schedulerName": "nobody", "restartPolicy": "Never"},
    }


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await check():
            await asyncio.sleep(0.1)


@asynccontextmanager
async def keeping(store: Store) -> AsyncIterator[None]:
    manager = Manager(store, [LedgerKeeper()], clock=wall_clock)
    manager.start()
    try:
        yield
    finally:
        await manager.stop()


@pytest.mark.slow
async def test_runs_are_noted_alike(real_store: Store, namespace: str) -> None:
    await serve_kinds(real_store, "User", "UserGroup", "Queue", "UsageRecord", "Job")
    pods = await real_store.resource("", "Pod")
    users = await real_store.resource("muster.dev", "User")
    me = f"user-{namespace}"[:60].strip("-")
    await real_store.create(users, {"metadata": {"name": me}, "spec": {"group": "nowhere"}, **_head("User")})

    async def live(name: str) -> Raw | None:
        try:
            return await real_store.get(pods, name, namespace)
        except NotFound:
            return None

    async def is_kept(name: str) -> bool:
        found = await live(name)
        return found is not None and "muster.dev/ledger" in finalizers_of(found)

    async def is_noted(name: str) -> bool:
        found = await live(name)
        return found is None or annotations_of(found).get("muster.dev/accounted") == "true"

    async def used() -> dict[str, int]:
        pages = Pages()
        for page in (await real_store.list(await real_store.resource("muster.dev", "UsageRecord"))).items:
            pages.put(name_of(page), view_of(UsageRecord, page))
        return pages.ledger().used("User", [me], 0, END_MS, END_MS)

    async with keeping(real_store):
        for name in ("ends", "forced"):
            await real_store.create(pods, pod(name, me), namespace)
            await until(lambda name=name: is_kept(name))  # type: ignore[misc]
            await real_store.bind(name, namespace, "n1")
            running = {"phase": "Running", "startTime": "2026-11-16T08:00:00Z"}
            await real_store.patch(pods, name, {"status": running}, namespace, subresource="status")
        ended = {"exitCode": 0, "startedAt": "2026-11-16T08:00:00Z", "finishedAt": "2026-11-16T09:00:00Z"}
        container = {
            "name": "c",
            "image": "i",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": ended},
        }
        done = {"phase": "Succeeded", "containerStatuses": [container]}
        await real_store.patch(pods, "ends", {"status": done}, namespace, subresource="status")
        await until(lambda: is_noted("ends"))
        assert await used() == {"cpu": 500 * 3_600_000, "memory": (1 << 40) * 3_600_000, "pods": 3_600_000}

    # While nobody keeps the ledger, a pod that is deleted by force waits for it.
    await real_store.delete(pods, "forced", namespace, grace_period_s=0)
    assert await is_kept("forced")
    async with keeping(real_store):
        await until(lambda: _gone(live, "forced"))
        assert (await used())["cpu"] > 500 * 3_600_000

        async def is_shown() -> bool:
            status = (await real_store.get(users, me)).get("status") or {}
            shown = {one["resource"]: one["amount"] for one in (status.get("usage") or {}).get("consumed") or ()}
            conditions: list[dict[str, Any]] = status.get("conditions") or []
            return float(shown.get("memory", 0)) >= 1024 and any("UserGroup 'nowhere'" in one["message"] for one in conditions)

        await until(is_shown)


async def _gone(live: Callable[[str], Awaitable[Raw | None]], name: str) -> bool:
    return await live(name) is None


def _head(kind: str) -> Raw:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind}
