"""A server that misbehaves on cue: the test's handler decides, byte by byte, what each request gets.

Runs on the test's own event loop. It understands just enough HTTP to hand requests over; everything that it answers is written
by the test, so that connections can be dropped, bodies truncated and lines torn at any point.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from muster.client.config import Auth, ClientConfig, Tls
from muster.client.retry import RetryPolicy
from muster.client.transport import TransportLimits

QUICK = TransportLimits(
    timeout_s=20.0,
    retry=RetryPolicy(attempts_max=4, backoff_first_s=0.001, backoff_max_s=0.002, budget_ratio=1.0, budget_burst=100.0),
)


@dataclass
class Received:
    """One request, and the connection on which to answer it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    writer: asyncio.StreamWriter = field(repr=False)

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def params(self) -> dict[str, str]:
        return {key: values[0] for key, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    async def answer(self, code: int = 200, body: Any = b"", **headers: str) -> None:
        """A whole answer; what is not bytes goes as JSON. Header names are written with underscores."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        kind = {} if "content_type" in headers else {"content_type": "application/json"}
        lines = [f"HTTP/1.1 {code} Word", f"Content-Length: {len(content)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in {**kind, **headers}.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode() + content)

    async def begin_chunks(self) -> None:
        await self.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        """Part of a body begun with `begin_chunks`; empty data ends it in order."""
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def drop(self) -> None:
        """Break the connection off."""
        self.writer.transport.abort()


Handler = Callable[[Received], Awaitable[None]]


@dataclass
class ScriptedServer:
    url: str
    requests: list[Received] = field(default_factory=list)
    connections: int = 0

    def config(self, *, auth: Auth | None = None, tls: Tls | None = None) -> ClientConfig:
        return ClientConfig(server=self.url, auth=auth or Auth(), tls=tls or Tls(), compression=False)


@contextlib.asynccontextmanager
async def scripted(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedServer]:
    tasks: set[asyncio.Task[None]] = set()
    state = ScriptedServer("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        state.connections += 1
        number = state.connections
        try:
            while (received := await _read_request(reader, writer, number)) is not None:
                state.requests.append(received)
                await handler(received)
        except (ConnectionError, ssl.SSLError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    state.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *rest = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers: dict[str, str] = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if colon:
            key = name.strip().lower()
            headers[key] = f"{headers[key]}|{value.strip()}" if key in headers else value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, target, headers, body, connection, writer)


def status(code: int, reason: str, message: str = "no", **details: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }
