"""Putting many objects into a Kubernetes-style API and taking them out again, as fast as it takes them.

All on one event loop, with a bounded number of requests in flight. What a server refuses is an error that names the object.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from muster.client.api import ApiClient
from muster.client.transport import TransportLimits
from muster.objects.catalog import CATALOG
from muster.objects.resources import Resource
from muster.objects.status import AlreadyExists, ApiError, NotFound, Raw

IN_FLIGHT = 48
"""Enough to keep two cores of kube-apiserver busy; more only queue there."""
CLEAR_TIMEOUT_S = 600.0

T = TypeVar("T")

PODS = CATALOG.by_kind("", "Pod")
NODES = CATALOG.by_kind("", "Node")


@contextlib.asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[ApiClient]:
    limits = TransportLimits(in_flight_max=4 * IN_FLIGHT, timeout_s=300.0)
    async with await ApiClient.from_kubeconfig(kubeconfig, limits=limits) as client:
        yield client


async def in_parallel(items: Iterable[T], do: Callable[[T], Awaitable[object]]) -> None:
    """`do` for each, `IN_FLIGHT` at once; the first failure ends it."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await do(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(worker())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


def resource_of(raw: Raw) -> Resource:
    return CATALOG.by_kind(raw["apiVersion"].rpartition("/")[0], raw["kind"])


async def create_all(client: ApiClient, objects: Sequence[Raw]) -> None:
    """Create each. One that is there already is left alone if it is cluster-wide furniture, else an error."""

    async def create(raw: Raw) -> None:
        metadata = raw["metadata"]
        resource = resource_of(raw)
        try:
            await client.request("POST", collection_path(resource, metadata.get("namespace")), body=msgspec.json.encode(raw))
        except AlreadyExists:
            if resource.kind not in ("Namespace", "PriorityClass", "RuntimeClass"):
                raise
        except ApiError as error:
            where = f"{resource.kind} {metadata.get('namespace', '')}/{metadata['name']}"
            raise RuntimeError(f"{where} was refused: {error}") from error

    await in_parallel(objects, create)


async def delete_all(client: ApiClient, resource: Resource, keys: Iterable[tuple[str | None, str]]) -> None:
    """Delete at once, without a grace period; what is gone already is fine."""

    async def delete(key: tuple[str | None, str]) -> None:
        with contextlib.suppress(NotFound):
            await client.delete(resource, key[1], key[0], grace_period_s=0)

    await in_parallel(keys, delete)


async def clear(client: ApiClient, resource: Resource) -> int:
    """Delete every object of a kind, in all namespaces; how many there were."""
    page = await client.list(resource)
    keys = [(item["metadata"].get("namespace"), item["metadata"]["name"]) for item in page.items]
    await delete_all(client, resource, keys)
    return len(keys)


def collection_path(resource: Resource, namespace: str | None) -> str:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    return f"{root}/namespaces/{namespace}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"
