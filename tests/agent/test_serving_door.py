"""Strangers at the log endpoint's port: they get a few connections, for a short time, and take nothing from anybody else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
import uvloop
from aiohttp import web

from muster.agent import serving, serving_access, serving_door
from muster.agent.contracts import LogQuery
from muster.agent.serving import Endpoint
from muster.agent.serving_access import ASKING_MAX, AskedAccess, ensure_self_signed, tls_context
from muster.objects.time import wall_clock
from tests.agent.streaming_rig import no_streams
from tests.waiting import until as until_async


async def until(check: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return check()

    await until_async(holds)


class Everybody:
    async def refusal(self, request: web.Request, verb: str = "get") -> tuple[int, str] | None:
        return None


async def some_lines(_query: LogQuery) -> AsyncIterator[bytes]:
    yield b"one\n"


@pytest.fixture
async def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Endpoint]:
    monkeypatch.setattr(serving_door, "CONNECTIONS_MAX", 20)
    monkeypatch.setattr(serving_door, "PER_ADDRESS_MAX", 10)
    monkeypatch.setattr(serving, "IDLE_S", 1000.0)  # which would close them too, in the end
    pair = ensure_self_signed(tmp_path / "credentials", "n1", ("127.0.0.1",), wall_clock())
    made = Endpoint(logs=some_lines, **no_streams(), access=Everybody(), tls=tls_context(*pair, None), clock=wall_clock)
    await made.start("127.0.0.1", 0)
    assert made.door is not None
    yield made
    await made.stop()
    assert made.door.connections == 0


@pytest.fixture
def hurry(endpoint: Endpoint) -> Iterator[pytest.MonkeyPatch]:
    """Connections get half a second, until it is undone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_door, "HANDSHAKE_S", 0.5)
        patch.setattr(endpoint.door, "_request_s", 0.5)
        yield patch


async def asks(endpoint: Endpoint) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{endpoint.port}/containerLogs/n/p/c", ssl=False) as answer,
    ):
        return await answer.text()


async def opened(endpoint: Endpoint, count: int, *, address: str = "127.0.0.1", tls: bool) -> list[asyncio.StreamWriter]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls else None
    if context is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    # All at once: one after another, on a busy machine the first would be closed before the last comes.
    trials = [asyncio.open_connection("127.0.0.1", endpoint.port, ssl=context, local_addr=(address, 0)) for _ in range(count)]
    tried = await asyncio.gather(*trials, return_exceptions=True)
    assert all(isinstance(one, tuple | OSError) for one in tried), tried
    return [one[1] for one in tried if isinstance(one, tuple)]


async def closed(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


@pytest.mark.parametrize("tls", [False, True], ids=["before TLS", "after TLS"])
async def test_connections_on_which_nothing_comes(endpoint: Endpoint, hurry: pytest.MonkeyPatch, tls: bool) -> None:
    door = endpoint.door
    assert door is not None
    writers = await opened(endpoint, 40, tls=tls)
    await until(lambda: door.refused > 0)
    assert door.connections <= 10
    others = await opened(endpoint, 40, address="127.0.0.2", tls=tls)
    await until(lambda: door.connections <= 20)
    await until(lambda: door.connections == 0)  # nobody asked anything
    hurry.undo()
    assert await asks(endpoint) == "one\n"
    await closed([*writers, *others])


@pytest.mark.parametrize(
    "head",
    [b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"G", b"\r\n" * 3, b"\x00" * 100],
    ids=["half", "a letter", "empty lines", "no text"],
)
async def test_a_request_that_never_ends(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    door = endpoint.door
    assert door is not None
    monkeypatch.setattr(door, "_request_s", 0.5)
    (writer,) = await opened(endpoint, 1, tls=True)
    writer.write(head)
    await until(lambda: door.connections == 0)
    await closed([writer])


async def test_a_reader_of_logs_may_take_its_time(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on the request, not on the answer."""
    monkeypatch.setattr(endpoint.door, "_request_s", 0.5)
    go_on = asyncio.Event()

    async def slow(_query: LogQuery) -> AsyncIterator[bytes]:
        yield b"first\n"
        await go_on.wait()
        yield b"last\n"

    endpoint._logs = slow
    reading = asyncio.create_task(asks(endpoint))
    await asyncio.sleep(1.0)
    assert not reading.done()
    go_on.set()
    assert await reading == "first\nlast\n"


async def test_guessed_tokens_are_no_flood_on_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    access = AskedAccess(None, "n1", wall_clock)  # type: ignore[arg-type]
    asked, answer = 0, asyncio.Event()

    async def ask(_verb: str, _user: object, _token: str) -> tuple[int, str]:
        nonlocal asked
        asked += 1
        await answer.wait()
        return 401, "no"

    monkeypatch.setattr(access, "_ask", ask)
    guesses = [asyncio.create_task(access._remembering("get", f"k{n}", None, f"t{n}")) for n in range(ASKING_MAX * 4)]
    await asyncio.sleep(0)
    assert asked == ASKING_MAX
    answer.set()
    codes = [refused[0] for refused in await asyncio.gather(*guesses) if refused is not None]
    assert (codes.count(401), codes.count(429)) == (ASKING_MAX, ASKING_MAX * 3)
    assert await access._remembering("get", "later", None, "t") == (401, "no")
    assert len(access._remembered) <= serving_access.REMEMBERED_MAX


def test_it_serves_on_the_loop_that_agents_run_on(tmp_path: Path) -> None:
    async def ask() -> str:
        pair = ensure_self_signed(tmp_path / "credentials", "n1", ("127.0.0.1",), wall_clock())
        made = Endpoint(logs=some_lines, **no_streams(), access=Everybody(), tls=tls_context(*pair, None), clock=wall_clock)
        await made.start("127.0.0.1", 0)
        try:
            return await asks(made)
        finally:
            await made.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == "one\n"
