"""Knowing that something changed, over several watches at once.

Each stream is one background task that sets one event; what changed is read anew by whoever waits, so nothing is missed when
events come together, and nothing is wrong when a watch has to begin again. The tasks end with the `async with` block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from muster.client.api import ApiClient
from muster.client.job_reading import Stream
from muster.objects.requests import EventType
from muster.objects.status import ApiError, Forbidden, NotFound

RESYNC_S = 15.0
"""A look is due after this time, whether or not anything was said to have changed."""
PAUSE_S = 0.5
WATCH_S = 240.0


class Changes:
    def __init__(self, client: ApiClient, streams: Sequence[Stream]) -> None:
        self._client = client
        self._streams = streams
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        # Each watch begins before the first look, at the version of a list, so that nothing falls between.
        for stream in self._streams:
            for one in dict.fromkeys((stream, stream._replace(label_selector=stream.narrower or stream.label_selector))):
                try:
                    version = await self._version(one)
                except (Forbidden, NotFound):
                    continue  # what may not be read changes nothing in what is shown
                self._tasks.append(asyncio.create_task(self._follow(one, version)))
                break
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def clear(self) -> None:
        """Called before a look: changes from now on count as news."""
        self._news.clear()

    async def wait(self) -> None:
        """Until something has changed since `clear`, or for `RESYNC_S`."""
        try:
            async with asyncio.timeout(RESYNC_S):
                await self._news.wait()
        except TimeoutError:
            return

    async def _version(self, stream: Stream) -> str:
        page = await self._client.list(
            stream.resource,
            stream.namespace,
            label_selector=stream.label_selector,
            field_selector=stream.field_selector,
            limit=1,
        )
        return page.resource_version

    async def _follow(self, stream: Stream, version: str) -> None:
        while True:
            try:
                events = self._client.watch(
                    stream.resource,
                    stream.namespace,
                    label_selector=stream.label_selector,
                    field_selector=stream.field_selector,
                    resource_version=version,
                    timeout_s=WATCH_S,
                )
                async with aclosing(events):
                    async for event in events:
                        version = event.resource_version
                        if event.type is not EventType.BOOKMARK:
                            self._news.set()
            except ApiError:
                # Expired, or the connection broke: look, and begin anew from what is there then.
                await asyncio.sleep(PAUSE_S)
                try:
                    version = await self._version(stream)
                except ApiError:
                    continue
                finally:
                    self._news.set()
