"""The stores that the conformance suite runs on, and a namespace of its own for every test.

A shared real cluster has other tenants, controllers at work and slow cleaning: so every test names its own namespace and
objects, looks only at those, and where something happens in its own time waits for the event that says so.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from muster.bench.kubernetes import ControlPlane
from muster.client import ApiClient
from muster.objects.status import ApiError
from muster.objects.time import wall_clock
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from muster.store.kubernetes import KubernetesStore


@pytest.fixture(params=["embedded", "in-memory", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "kubernetes":
        plane: ControlPlane = request.getfixturevalue("kubernetes")
        opened = KubernetesStore(await ApiClient.from_kubeconfig(plane.kubeconfig_path))
    elif request.param == "embedded":
        opened = await EmbeddedStore.open(tmp_path / "store", clock=wall_clock)
    else:
        opened = await EmbeddedStore.open(None, clock=wall_clock, writer="inline")
    yield opened
    await opened.close()


@pytest.fixture
async def namespace(store: Store) -> AsyncIterator[str]:
    """A fresh namespace. It is deleted afterwards, but nobody waits for that."""
    name = f"conformance-{uuid.uuid4().hex[:10]}"
    resource = await store.resource("", "Namespace")
    await store.create(resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    with contextlib.suppress(ApiError):
        await store.delete(resource, name)


@pytest.fixture
def forget_history(request: pytest.FixtureRequest, store: Store) -> Callable[[str], Awaitable[None]]:
    """Compact the store up to a resourceVersion: what happens by itself after five minutes."""

    async def forget(version: str) -> None:
        if isinstance(store, EmbeddedStore):
            store.compact(version)
            return
        plane: ControlPlane = request.getfixturevalue("kubernetes")
        url = f"http://127.0.0.1:{plane.etcd_port}/v3/kv/compaction"
        async with aiohttp.ClientSession() as session, session.post(url, json={"revision": version}) as answer:
            assert answer.status == 200, await answer.text()

    return forget
