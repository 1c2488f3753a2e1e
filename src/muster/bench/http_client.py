"""A lean HTTP/1.1 client over TLS for load: requests as bytes, answers parsed by httptools, nothing decoded.

Its own cost is taken from the same cores as the server's, so it does no more than a load needs: one request at a time on each
connection, no redirects, no retries; an answer of 300 or more is an error.

Concurrency: one event loop; a `Connection` belongs to one worker.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

import httptools


class LoadError(Exception):
    """The server refused a request, with `code`, or went away: 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Connection(asyncio.Protocol):
    """`await Connection.open(...)`, then `call` any number of times, or `stream` once."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self._answer: asyncio.Future[bytes] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._on_chunk: Callable[[bytes], None] | None = None

    @classmethod
    async def open(cls, host: str, port: int, tls: ssl.SSLContext) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(f"{host}:{port}"), host, port, ssl=tls)
        return connection

    def close(self) -> None:
        """Nobody is told of what comes then, or of the connection's end: whoever reads a stream may have another already."""
        self._on_chunk = None
        if self._transport is not None:
            self._transport.close()

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    async def call(
        self, method: str, target: str, body: bytes = b"", content_type: str = "application/json", *, headers: str = ""
    ) -> bytes:
        """The body of a good answer. LoadError otherwise. `headers`: further ones, as lines."""
        self._answer = asyncio.get_running_loop().create_future()
        self._send(method, target, body, content_type, headers)
        return await self._answer

    async def stream(self, target: str, on_chunk: Callable[[bytes], None], *, headers: str = "") -> None:
        """Until the headers of a good answer are there; then each piece of its body goes to `on_chunk`, and in the end an empty
        one."""
        self._on_chunk = on_chunk
        self._opened = asyncio.get_running_loop().create_future()
        self._send("GET", target, b"", "", headers)
        await self._opened

    def _send(self, method: str, target: str, body: bytes, content_type: str, headers: str) -> None:
        assert self._transport is not None
        head = f"{method} {target} HTTP/1.1\r\nhost: {self._host}\r\naccept: application/json\r\nuser-agent: muster-bench/1\r\n"
        head += headers
        if body:
            head += f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
        self._transport.write(head.encode() + b"\r\n" + body)

    # --- callbacks of the loop and of the parser

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(LoadError(f"the connection ended: {exc}"))

    def on_headers_complete(self) -> None:
        if self._opened is not None and not self._opened.done() and self._parser.get_status_code() < 300:
            self._opened.set_result(None)

    def on_body(self, body: bytes) -> None:
        if self._on_chunk is not None and self._parser.get_status_code() < 300:
            self._on_chunk(body)
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        code = self._parser.get_status_code()
        content, self._chunks = b"".join(self._chunks), []
        self._parser = httptools.HttpResponseParser(self)
        if code >= 300:
            self._fail(LoadError(f"HTTP {code}: {content[:300]!r}", code))
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(content)
        elif self._on_chunk is not None:
            self._on_chunk(b"")

    def _fail(self, error: LoadError) -> None:
        for waiting in (self._answer, self._opened):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
        if self._on_chunk is not None:
            self._on_chunk(b"")
