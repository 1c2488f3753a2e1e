from __future__ import annotations

import asyncio
import itertools
from typing import Any
from unittest import mock

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.api import ApiClient
from muster.client.errors import BadResponse, OutcomeUnknown, ResponseTooLarge
from muster.client.messages import Request
from muster.client.stream import LineStream
from muster.client.transport import Transport, TransportLimits
from muster.objects.resources import Resource
from muster.objects.status import ApiError, Expired, TooManyRequests
from tests.client.scripted import QUICK, Received, scripted, status

PODS = Resource(group="", version="v1", kind="Pod", plural="pods")


def unnamed(error: BaseException) -> ApiError:
    raise error


def stream_of(chunks: list[bytes], line_bytes_max: int = 1000) -> LineStream:
    """A stream over a real aiohttp reader that holds `chunks`."""
    loop = asyncio.get_running_loop()
    reader = aiohttp.StreamReader(mock.Mock(_reading_paused=False), 2**16, loop=loop)

    async def feed() -> None:
        for chunk in chunks:
            reader.feed_data(chunk)
            await asyncio.sleep(0)
        reader.feed_eof()

    feeding = asyncio.ensure_future(feed())
    stream = LineStream(reader, unnamed, "GET /x", line_bytes_max, None)
    stream.feeding = feeding  # type: ignore[attr-defined]  # keeps the task alive
    return stream


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=20), st.data())
def test_lines_do_not_depend_on_how_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    content = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=10)))
    edges = [0, *cuts, len(content)]
    chunks = [content[a:b] for a, b in itertools.pairwise(edges) if a != b]

    async def read() -> list[bytes]:
        return [line async for batch in stream_of(chunks).lines() for line in batch]

    assert asyncio.run(read()) == [line for line in lines if line.strip()]


async def test_a_torn_last_line() -> None:
    with pytest.raises(OutcomeUnknown, match="middle of a line"):
        _ = [batch async for batch in stream_of([b"one\n", b"tw"]).lines()]
    kept = [line async for batch in stream_of([b"one\ntwo"]).lines(needs_last_newline=False) for line in batch]
    assert kept == [b"one", b"two"]


@pytest.mark.parametrize("chunks", [[b"x" * 11], [b"x" * 6, b"x" * 6], [b"x" * 11 + b"\n"]], ids=["one", "two", "whole"])
async def test_lines_are_bounded(chunks: list[bytes]) -> None:
    with pytest.raises(ResponseTooLarge, match="larger than 10 bytes"):
        _ = [batch async for batch in stream_of(chunks, 10).lines()]


def event(kind: str, version: int, **more: Any) -> bytes:
    obj = {"metadata": {"name": f"p{version}", "resourceVersion": str(version)}, **more}
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"


async def watch_all(handler: Any, limits: TransportLimits = QUICK, **options: Any) -> tuple[list[str], BaseException | None]:
    """The versions seen, and how it ended."""
    seen: list[str] = []
    async with scripted(handler) as server, ApiClient(server.config(), limits=limits) as client:
        try:
            async for one in client.watch(PODS, **options):
                seen.append(f"{one.type} {one.resource_version}")  # noqa: PERF401 - kept when it raises
        except Exception as error:
            return seen, error
    return seen, None


async def test_a_watch_that_the_server_ends() -> None:
    async def handler(request: Received) -> None:
        await request.begin_chunks()
        await request.chunk(event("ADDED", 1) + event("MODIFIED", 2)[:20])
        await request.chunk(event("MODIFIED", 2)[20:])
        await request.chunk(event("BOOKMARK", 9))
        await request.chunk(b"")

    assert await watch_all(handler) == (["ADDED 1", "MODIFIED 2", "BOOKMARK 9"], None)


@pytest.mark.parametrize(
    ("tail", "error"),
    [
        pytest.param(event("ADDED", 2)[:30], OutcomeUnknown, id="torn line, dropped"),
        pytest.param(b"{nonsense}\n", BadResponse, id="no JSON"),
        pytest.param(b'{"type":"ADDED","object":[]}\n', BadResponse, id="no object"),
        pytest.param(b'{"type":"ADDED","object":{"metadata":{}}}\n', BadResponse, id="no version"),
        pytest.param(b'{"type":"EXPLODED","object":{"metadata":{"resourceVersion":"3"}}}\n', BadResponse, id="unknown type"),
        pytest.param(
            b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Gone","message":"too old"}}\n', Expired, id="gone"
        ),
        pytest.param(
            b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n',
            Expired,
            id="expired",
        ),
    ],
)
async def test_a_watch_that_goes_wrong(tail: bytes, error: type[Exception]) -> None:
    async def handler(request: Received) -> None:
        await request.begin_chunks()
        await request.chunk(event("ADDED", 1))
        await request.chunk(tail)
        request.drop()

    seen, how = await watch_all(handler)
    assert seen == ["ADDED 1"]
    assert type(how) is error


@pytest.mark.parametrize("reason", ["Gone", "Expired"])
async def test_410_as_an_answer(reason: str) -> None:
    async def handler(request: Received) -> None:
        await request.answer(410, status(410, reason, "too old"))

    assert type((await watch_all(handler, resource_version="1"))[1]) is Expired
    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK) as client:
        with pytest.raises(Expired, match="too old"):
            await client.list(PODS, continue_token="old")


async def test_a_watch_ends_quietly_at_its_timeout() -> None:
    async def handler(request: Received) -> None:
        await request.begin_chunks()
        await request.chunk(event("ADDED", 1) + event("ADDED", 2)[:9])
        await asyncio.Event().wait()

    for timeout_s in (0.1, 1.0, 10.0):  # a busy machine may need more for the first event
        seen, how = await watch_all(handler, timeout_s=timeout_s)
        assert how is None
        if seen:
            break
    assert seen == ["ADDED 1"]


async def test_what_a_watch_asks_for() -> None:
    async def handler(request: Received) -> None:
        await request.begin_chunks()
        await request.chunk(b"")

    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK) as client:
        selection = {"label_selector": "a=b", "field_selector": "spec.nodeName=n"}
        _ = [e async for e in client.watch(PODS, "ns", resource_version="7", timeout_s=10, **selection)]  # type: ignore[arg-type]
        _ = [e async for e in client.watch(PODS, bookmarks=False)]
    assert server.requests[0].path == "/api/v1/namespaces/ns/pods"
    assert server.requests[0].params == {
        "watch": "true",
        "labelSelector": "a=b",
        "fieldSelector": "spec.nodeName=n",
        "resourceVersion": "7",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "12",
    }
    assert (server.requests[1].path, server.requests[1].params) == ("/api/v1/pods", {"watch": "true"})


async def test_streams_are_bounded_and_given_back() -> None:
    async def handler(request: Received) -> None:
        await request.begin_chunks()
        await request.chunk(event("ADDED", 1))
        await asyncio.Event().wait()

    async with scripted(handler) as server:
        transport = Transport(server.config(), limits=TransportLimits(streams_max=1))
        request = Request(method="GET", path="/x")
        async with transport.stream(request) as one:
            assert await anext(one.lines()) == [event("ADDED", 1).strip()]
            with pytest.raises(TooManyRequests, match="1 streams are open"):
                async with transport.stream(request):
                    pass
        assert transport.stats.streams == 0
        async with transport.stream(request):
            assert transport.stats.streams == 1
        await transport.close()


async def test_leaving_a_watch_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def handler(request: Received) -> None:
        await request.begin_chunks()
        try:
            while True:
                await request.chunk(event("ADDED", 1))
                await asyncio.sleep(0)
        except ConnectionError:
            closed.set()
            raise

    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK) as client:
        events = client.watch(PODS)
        await anext(events)
        assert client.stats.streams == 1
        await events.aclose()
        assert client.stats.streams == 0
        await closed.wait()
