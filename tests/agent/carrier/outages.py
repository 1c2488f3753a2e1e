"""A store that can go away: every call fails, and watches that run end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from muster.objects.resources import Resource
from muster.objects.status import Raw, ServiceUnavailable
from muster.store.contract import Page, Store, WatchEvent
from muster.store.guarded import GuardedStore

T = TypeVar("T")


class OutageStore(GuardedStore):
    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._away = asyncio.Event()
        self.refused = 0

    def go(self) -> None:
        self._away.set()

    def come_back(self) -> None:
        self._away.clear()

    def _check(self) -> None:
        if self._away.is_set():
            self.refused += 1
            raise ServiceUnavailable("the store is away")

    async def write(self, verb: str, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        self._check()
        return await operation()

    async def resource(self, group: str, kind: str) -> Resource:
        self._check()
        return await self.inner.resource(group, kind)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Raw:
        self._check()
        return await self.inner.get(resource, name, namespace)

    async def list(self, resource: Resource, namespace: str | None = None, **options: Any) -> Page:
        self._check()
        return await self.inner.list(resource, namespace, **options)

    async def watch(self, resource: Resource, namespace: str | None = None, **options: Any) -> AsyncIterator[WatchEvent]:
        self._check()
        stream = self.inner.watch(resource, namespace, **options).__aiter__()
        ending = asyncio.ensure_future(self._away.wait())
        coming: asyncio.Future[WatchEvent] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(anext(stream))
                await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    raise ServiceUnavailable("the store is away")
                try:
                    event = coming.result()
                except StopAsyncIteration:
                    return
                yield event
        finally:
            ending.cancel()
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
