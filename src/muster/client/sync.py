"""The client for code without an event loop: scripts, notebooks, tests.

`SyncClient` runs an `ApiClient` on a loop of its own in a thread of its own; each method hands its call over and waits.
Signatures and docstrings are those of `ApiClient`, taken from it by delegation. Any thread may call; calls from several threads
run at once. A watch is a blocking iterator whose events are fetched ahead, at most `AHEAD_MAX` of them.

Invariants: after `close()` no thread and no connection is left; an interrupted call (Ctrl-C) is cancelled on the loop too.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from muster.client.api import ApiClient
from muster.client.config import ClientConfig
from muster.client.kubeconfig import load
from muster.client.stats import TransportStats
from muster.client.transport import TransportLimits

if TYPE_CHECKING:
    from muster.client.sync_jobs import SyncJobs

AHEAD_MAX = 256
GOODBYE_S = 0.05
"""TLS connections end some turns of the loop after they were closed; a loop that stops before leaves them to the collector."""
CLOSE_TIMEOUT_S = 10.0

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[ApiClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    """`method`, called on the loop and waited for."""

    @functools.wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(method(self._client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[ApiClient, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[SyncClient, P], Generator[R, None, None]]:
    """`method`, as a generator that blocks for the next item. Closing it closes the stream."""

    @functools.wraps(method)
    def iterate(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        return self._iterate(method(self._client, *args, **kwargs))

    return iterate


class SyncClient:
    """`with SyncClient.from_kubeconfig() as client: ...`; every method of `ApiClient`, blocking."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        limits: TransportLimits | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        """`on_warning` is called on the client's own thread."""
        self.config = config
        self._loop = asyncio.new_event_loop()
        # Held while a call is handed to the loop and while closing begins: what was handed over before is ended by
        # `_shut_down`, and nothing is handed over after it, where it would wait for ever on a loop that has stopped.
        self._gate = threading.Lock()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="muster-client", daemon=True)
        self._thread.start()
        try:
            self._client: ApiClient = self._call(_make(config, limits, on_warning))
        except BaseException:
            self._end()
            raise
        # A script that forgets to close still ends without complaints about open connections.
        atexit.register(self.close)

    @classmethod
    def from_kubeconfig(
        cls,
        path: str | os.PathLike[str] | None = None,
        context: str | None = None,
        *,
        namespace: str = "",
        limits: TransportLimits | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> Self:
        """By kubectl's rules: the file named, or KUBECONFIG, or ~/.kube/config, or the pod's own service account."""
        return cls(load(path, context=context or "", namespace=namespace), limits=limits, on_warning=on_warning)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End open streams, close all connections, end the thread. Doing it twice is harmless."""
        with self._gate:
            if self._is_closing:
                return
            self._is_closing = True
            ended = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
        atexit.unregister(self.close)
        try:
            ended.result(CLOSE_TIMEOUT_S)
        finally:
            self._end()

    @property
    def stats(self) -> TransportStats:
        """What is in flight and what was repeated, now."""
        return self._client.stats

    request = _blocking(ApiClient.request)
    get = _blocking(ApiClient.get)
    list = _blocking(ApiClient.list)
    list_views = _blocking(ApiClient.list_views)
    table = _blocking(ApiClient.table)
    create = _blocking(ApiClient.create)
    update = _blocking(ApiClient.update)
    patch = _blocking(ApiClient.patch)
    apply = _blocking(ApiClient.apply)
    delete = _blocking(ApiClient.delete)
    delete_collection = _blocking(ApiClient.delete_collection)
    bind = _blocking(ApiClient.bind)
    evict = _blocking(ApiClient.evict)
    request_token = _blocking(ApiClient.request_token)
    get_scale = _blocking(ApiClient.get_scale)
    scale = _blocking(ApiClient.scale)
    version = _blocking(ApiClient.version)
    minor_version = _blocking(ApiClient.minor_version)
    is_ready = _blocking(ApiClient.is_ready)
    openapi = _blocking(ApiClient.openapi)
    join_ca = _blocking(ApiClient.join_ca)
    resources = _blocking(ApiClient.resources)
    resource = _blocking(ApiClient.resource)
    find = _blocking(ApiClient.find)

    items = _iterating(ApiClient.items)
    watch = _iterating(ApiClient.watch)
    watch_views = _iterating(ApiClient.watch_views)
    watch_tables = _iterating(ApiClient.watch_tables)
    logs = _iterating(ApiClient.logs)

    @functools.cached_property
    def jobs(self) -> SyncJobs:
        """Jobs in the client's namespace: see `muster.client.jobs`."""
        from muster.client.sync_jobs import SyncJobs

        return SyncJobs(self)

    # --- inside ---------------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        with self._gate:
            if self._is_closing or threading.current_thread() is self._thread:
                coroutine.close()
                problem = "is closed; make a new one" if self._is_closing else "cannot be called from its own callbacks"
                raise RuntimeError(f"this SyncClient {problem}")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError("this SyncClient was closed during the call") from None
        except BaseException:
            future.cancel()  # Ctrl-C in this thread: stop it over there as well
            raise

    def _iterate(self, source: AsyncGenerator[R, None]) -> Generator[R, None, None]:
        pump = _Pump(source)
        self._call(pump.start())
        try:
            while batch := self._call(pump.take()):
                while batch:
                    yield batch.popleft()
        finally:
            if threading.current_thread() is self._thread:
                pump.cancel()  # collected as garbage over there: nobody may wait
            elif not self._is_closing:
                with contextlib.suppress(RuntimeError):  # closed at this very moment: then the pump has been ended
                    self._call(pump.stop())

    async def _shut_down(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()
        await asyncio.sleep(GOODBYE_S)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


class _Pump(Generic[R]):
    """Reads `source` ahead in one task of the loop, so that a slow reader is not asked for every single item."""

    def __init__(self, source: AsyncGenerator[R, None]) -> None:
        self._source = source
        self._ready: deque[R] = deque()
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_over = False
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._fill())

    async def take(self) -> deque[R]:
        """All that is there, after waiting for the first; empty at the end. Raises what the source raised."""
        while not self._ready and not self._is_over:
            self._has_news.clear()
            await self._has_news.wait()
        batch, self._ready = self._ready, deque()
        self._has_room.set()
        if not batch and self._error is not None:
            raise self._error
        return batch

    def cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()

    async def stop(self) -> None:
        self.cancel()
        assert self._task is not None
        await asyncio.gather(self._task, return_exceptions=True)

    async def _fill(self) -> None:
        try:
            async with aclosing(self._source):
                async for item in self._source:
                    self._ready.append(item)
                    self._has_news.set()
                    while len(self._ready) >= AHEAD_MAX:
                        self._has_room.clear()
                        await self._has_room.wait()
        except Exception as error:  # noqa: BLE001 - the root of this task: the reader gets it
            self._error = error
        finally:
            self._is_over = True
            self._has_news.set()


async def _make(config: ClientConfig, limits: TransportLimits | None, on_warning: Callable[[str], None] | None) -> ApiClient:
    return ApiClient(config, limits=limits, on_warning=on_warning)
