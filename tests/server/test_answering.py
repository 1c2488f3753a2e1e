"""How answers go out to clients that do not read: without a seat, not for ever, and counted for as long as they are here."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.server.answering import Answering, _beside
from muster.server.config import ServerLimits
from muster.server.exchange import Response
from muster.server.fair_queue import Kind
from muster.server.flow import Flow
from muster.server.metrics import Metrics
from muster.server.priority import Whose


class _Connection:
    """One whose client has not read what it was sent until `is_read` is set."""

    def __init__(self) -> None:
        self.is_read = asyncio.Event()

    @property
    def is_paused(self) -> bool:
        return not self.is_read.is_set()

    async def drained(self) -> None:
        await self.is_read.wait()

    def respond(self, *_: object) -> bool:
        return False

    def buffer(self, _: int) -> None:
        pass


def _answering(limits: ServerLimits) -> tuple[Answering, Flow]:
    flow = Flow(limits, Metrics(limits))
    return Answering(flow, cast(Any, None), Metrics(limits), limits), flow


def _exchange() -> Any:
    return SimpleNamespace(
        id="i",
        method="GET",
        telling=None,
        headers={},
        user="ann",
        whose=Whose("users", "ann"),
        info=SimpleNamespace(is_write=False),
        ticket=None,
        code=0,
        reason="",
    )


async def test_who_does_not_read_gets_no_head_for_ever_and_holds_no_seat() -> None:
    answering, flow = _answering(ServerLimits(send_timeout_s=0.05, in_flight_read_max=10))
    exchange = _exchange()
    exchange.ticket = await flow.start(exchange.whose, is_write=False, body_bytes=0)
    seats = flow._queue.held(Kind.READ)
    cut: list[int] = []

    async def unread(_: object) -> None:
        assert flow._queue.held(Kind.READ) == seats - 1, "somebody else has the seat"
        await asyncio.Event().wait()

    scope = {"muster.connection": _Connection(), "muster.cycle": SimpleNamespace(disconnected=False), "muster.abort": None}
    scope["muster.abort"] = lambda: cut.append(1)
    await answering.send(exchange, scope, unread, Response(code=200, body=b"small"), [])
    assert cut == [1]


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
async def test_an_answer_counts_until_it_is_read(is_packed: bool) -> None:
    """It is written long before that, and lies in this process until then."""
    answering, flow = _answering(ServerLimits(gzip_bytes_min=100_000))
    exchange, connection, sent = _exchange(), _Connection(), asyncio.Event()
    exchange.headers = {"accept-encoding": "gzip"} if is_packed else {}

    async def take(message: Any) -> None:
        if message["type"] == "http.response.body" and not message["more_body"]:
            sent.set()

    scope = {"muster.connection": connection, "muster.cycle": SimpleNamespace(disconnected=False)}
    body = os.urandom(300_000)
    answer = asyncio.create_task(answering.send(exchange, scope, take, Response(code=200, body=body), []))
    await sent.wait()
    assert flow.answers.total == len(body)
    connection.is_read.set()
    await answer
    assert flow.answers.total == 0


async def test_few_pieces_are_made_on_threads_at_once() -> None:
    """They compete with the loop for one interpreter, however many ask."""
    threads, at_once, most = asyncio.Semaphore(2), 0, 0
    lock, full = threading.Lock(), threading.Barrier(2)

    def pieces() -> Iterator[bytes]:
        nonlocal at_once, most
        for _ in range(3):
            with lock:
                at_once += 1
                most = max(most, at_once)
            full.wait(60)  # both threads are used
            with lock:
                at_once -= 1
            yield b"x"

    async def read() -> bytes:
        return b"".join([piece async for piece in _beside(pieces(), threads)])

    assert await asyncio.gather(*(read() for _ in range(4))) == [b"xxx"] * 4
    assert most == 2
