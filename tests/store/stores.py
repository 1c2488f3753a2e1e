"""Stores for tests: the embedded one in memory, and a wrapper that breaks watches on command."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from muster.objects.resources import Resource
from muster.objects.status import ApiError, Raw
from muster.sim.clock import current_loop
from muster.store.contract import Page, WatchEvent
from muster.store.embedded import EmbeddedStore
from muster.store.guarded import GuardedStore

T = TypeVar("T")


@contextlib.asynccontextmanager
async def memory_store(*namespaces: str) -> AsyncIterator[EmbeddedStore]:
    """An embedded store in memory, on the virtual loop, with some namespaces (at least `default`)."""
    loop = current_loop()
    store = await EmbeddedStore.open(None, clock=loop.clock, writer="inline", entropy=loop.entropy.fork("store").bytes)
    try:
        kind = await store.resource("", "Namespace")
        for name in dict.fromkeys(("default", *namespaces)):
            await store.create(kind, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield store
    finally:
        await store.close()


def config_map(name: str, namespace: str = "default", *, labels: dict[str, str] | None = None, **data: str) -> Raw:
    metadata: Raw = {"name": name, "namespace": namespace}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pod(name: str, namespace: str = "default", *, labels: dict[str, str] | None = None, owners: list[Raw] | None = None) -> Raw:
    metadata: Raw = {"name": name, "namespace": namespace}
    if labels:
        metadata["labels"] = labels
    if owners:
        metadata["ownerReferences"] = owners
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class BreakableStore(GuardedStore):
    """Reads and watches fail while `outage` is set; running watches then end too. `rewind` makes watches start further back."""

    def __init__(self, inner: EmbeddedStore) -> None:
        super().__init__(inner)
        self.embedded = inner
        self.outage: ApiError | None = None
        self.rewind_to: str = ""
        self.lists: list[Page] = []
        self.watches: list[str] = []
        self.on_page: Callable[[Page], Page] = lambda page: page
        self._running: list[asyncio.Queue[WatchEvent | ApiError | None]] = []

    async def write(self, verb: str, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        return await operation()

    async def break_watches(self) -> None:
        for events in self._running:
            events.put_nowait(None)
        await asyncio.sleep(0.01)

    async def list(self, resource: Resource, namespace: str | None = None, **options: Any) -> Page:
        if self.outage is not None:
            raise self.outage
        page = self.on_page(await self.inner.list(resource, namespace, **options))
        self.lists.append(page)
        return page

    async def watch(self, resource: Resource, namespace: str | None = None, **options: Any) -> AsyncIterator[WatchEvent]:
        if self.outage is not None:
            raise self.outage
        version = self.rewind_to or options["resource_version"]
        self.watches.append(version)
        events: asyncio.Queue[WatchEvent | ApiError | None] = asyncio.Queue()

        async def pump() -> None:
            stream = self.embedded.watch(resource, namespace, **{**options, "resource_version": version})
            try:
                async for event in stream:
                    events.put_nowait(event)
                events.put_nowait(None)
            except ApiError as error:
                events.put_nowait(error)

        pumping = asyncio.create_task(pump())
        self._running.append(events)
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, ApiError):
                    raise event
                yield event
        finally:
            self._running.remove(events)
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)
