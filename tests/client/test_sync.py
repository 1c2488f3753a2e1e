from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from muster.client.api import ApiClient
from muster.client.config import ClientConfig
from muster.client.kubeconfig import KubeconfigError
from muster.client.sync import AHEAD_MAX, SyncClient
from muster.objects.resources import Resource
from muster.objects.status import Expired, NotFound
from tests.client.scripted import QUICK, Handler, Received, ScriptedServer, scripted, status
from tests.client.test_stream import event

PODS = Resource(group="", version="v1", kind="Pod", plural="pods")


@contextlib.contextmanager
def served(handler: Handler) -> Iterator[ScriptedServer]:
    """A scripted server on a thread of its own: the test itself has no event loop."""
    ready: list[ScriptedServer] = []
    started, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with scripted(handler) as server:
            ready.append(server)
            started.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield ready[0]
    finally:
        ended.set()
        thread.join()


async def object_or_404(request: Received) -> None:
    if request.path.endswith("/gone"):
        await request.answer(404, status(404, "NotFound", "it is gone"))
    else:
        await request.answer(200, {"metadata": {"name": request.path.rpartition("/")[2]}})


def test_every_method_of_the_client_is_there() -> None:
    for name, method in inspect.getmembers(ApiClient, inspect.isfunction):
        if name.startswith("_"):
            continue
        blocking = getattr(SyncClient, name, None)
        assert blocking is not None, f"SyncClient lacks {name}"
        assert blocking.__doc__ == method.__doc__ or name in ("close",), f"SyncClient.{name} has another docstring"


def test_calls_block_and_raise() -> None:
    with served(object_or_404) as server, SyncClient(server.config(), limits=QUICK) as client:
        assert client.get(PODS, "p", "n")["metadata"]["name"] == "p"
        with pytest.raises(NotFound, match="it is gone"):
            client.get(PODS, "gone", "n")


def test_many_threads_may_call() -> None:
    with served(object_or_404) as server, SyncClient(server.config(), limits=QUICK) as client, ThreadPoolExecutor(8) as pool:
        names = [f"p{n}" for n in range(64)]
        found = list(pool.map(lambda name: client.get(PODS, name, "n")["metadata"]["name"], names))
    assert found == names


def test_close_leaves_nothing_and_is_final() -> None:
    before = threading.active_count()
    with served(object_or_404) as server:
        client = SyncClient(server.config(), limits=QUICK)
        client.get(PODS, "p", "n")
        client.close()
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.get(PODS, "p", "n")
    assert threading.active_count() == before


def test_a_client_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    monkeypatch.setenv("HTTPS_PROXY", "socks5://p:1")
    with pytest.raises(KubeconfigError, match="socks5"):
        SyncClient(ClientConfig(server="https://api.invalid"))
    assert threading.active_count() == before


def test_watch_is_an_iterator() -> None:
    async def handler(request: Received) -> None:
        await request.begin_chunks()
        for number in range(1, 1001):
            await request.chunk(event("ADDED", number))
        await request.chunk(b"")

    with served(handler) as server, SyncClient(server.config(), limits=QUICK) as client:
        assert [int(e.resource_version) for e in client.watch(PODS)] == list(range(1, 1001))


def test_what_a_watch_raises_comes_after_its_events() -> None:
    async def handler(request: Received) -> None:
        await request.begin_chunks()
        await request.chunk(event("ADDED", 1) + b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n')

    with served(handler) as server, SyncClient(server.config(), limits=QUICK) as client:
        events = client.watch(PODS)
        assert next(events).resource_version == "1"
        with pytest.raises(Expired):
            next(events)
        assert client.stats.streams == 0


def test_leaving_a_watch_early() -> None:
    sent: list[int] = []

    async def handler(request: Received) -> None:
        await request.begin_chunks()
        number = 0
        while True:
            number += 1
            await request.chunk(event("ADDED", number) + b" " * 10_000)
            sent.append(number)

    with served(handler) as server, SyncClient(server.config(), limits=QUICK) as client:
        events = client.watch(PODS)
        assert next(events).resource_version == "1"
        assert client.stats.streams == 1
        events.close()
        assert client.stats.streams == 0
        assert len(sent) < AHEAD_MAX * 100, "a reader that does not read holds the server back"


def test_closing_ends_a_watch_in_another_thread() -> None:
    reached = threading.Event()

    async def handler(request: Received) -> None:
        await request.begin_chunks()
        await request.chunk(event("ADDED", 1))
        await asyncio.Event().wait()

    with served(handler) as server:
        client = SyncClient(server.config(), limits=QUICK)
        seen: list[str] = []

        def read() -> None:
            with contextlib.suppress(RuntimeError):
                for one in client.watch(PODS):
                    seen.append(one.resource_version)
                    reached.set()

        reader = threading.Thread(target=read)
        reader.start()
        reached.wait()
        client.close()
        reader.join(30)
        assert not reader.is_alive()
        assert seen == ["1"]
