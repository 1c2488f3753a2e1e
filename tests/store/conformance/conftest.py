"""The stores that the conformance suite runs on, and a namespace of its own for every test.

- `embedded` and `in-memory`: the embedded store, on disk with its writer thread, and without either;
- `server`: the same behind Muster's own API server, through HTTP and the client;
- `kubernetes`: a real kube-apiserver, through the same client.

The server is shared by the tests of a file. A shared real cluster has other tenants, controllers at work and slow cleaning. So
every test names its own namespace and objects, looks only at those, and where something happens in its own time waits for the
event that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from muster.bench.kubernetes import ControlPlane
from muster.client import ApiClient
from muster.objects.status import ApiError
from muster.objects.time import wall_clock
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from muster.store.kubernetes import KubernetesStore
from tests.server.running import RunningServer, running


class Backend(NamedTuple):
    store: Store
    forget: Callable[[str], Awaitable[None]]
    """Compact the history up to a resourceVersion: what happens by itself after five minutes."""
    keeps_budgets: bool = False
    """Whether a controller counts the pods of disruption budgets into their status."""


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server") / "data") as made:
        yield made


@pytest.fixture(params=["embedded", "in-memory", "server", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "kubernetes":
            plane: ControlPlane = request.getfixturevalue("kubernetes")
            made = Backend(await _connected(plane.kubeconfig_path), _etcd_compaction(plane.etcd_port), keeps_budgets=True)
        elif request.param == "server":
            shared: RunningServer = request.getfixturevalue("shared_server")
            made = Backend(await _connected(shared.server.kubeconfig_path), _compaction_there(shared))
        else:
            in_memory = request.param == "in-memory"
            path = None if in_memory else tmp_path / "store"
            store = await EmbeddedStore.open(path, clock=wall_clock, writer="inline" if in_memory else "thread")
            made = Backend(store, _compaction(store))
        stack.push_async_callback(made.store.close)
        yield made


@pytest.fixture
def store(backend: Backend) -> Store:
    return backend.store


@pytest.fixture
async def namespace(store: Store) -> AsyncIterator[str]:
    """A fresh namespace. It is deleted afterwards, but nobody waits for that."""
    name = f"conformance-{uuid.uuid4().hex[:10]}"
    resource = await store.resource("", "Namespace")
    await store.create(resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    with contextlib.suppress(ApiError):
        await store.delete(resource, name)


async def _connected(kubeconfig: Path) -> KubernetesStore:
    return KubernetesStore(await ApiClient.from_kubeconfig(kubeconfig))


def _compaction(store: EmbeddedStore) -> Callable[[str], Coroutine[Any, Any, None]]:
    async def forget(version: str) -> None:
        store.compact(version)

    return forget


def _compaction_there(shared: RunningServer) -> Callable[[str], Awaitable[None]]:
    async def forget(version: str) -> None:
        await asyncio.to_thread(shared.call, _compaction(shared.server.store)(version))

    return forget


def _etcd_compaction(port: int) -> Callable[[str], Awaitable[None]]:
    async def forget(version: str) -> None:
        url = f"http://127.0.0.1:{port}/v3/kv/compaction"
        async with aiohttp.ClientSession() as session, session.post(url, json={"revision": version}) as answer:
            assert answer.status == 200, await answer.text()

    return forget
