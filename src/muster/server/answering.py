"""How answers go out: whole, in pieces, or as streams without an end; compressed where that pays; no faster than they are read.

A small answer is one write. A large one gives its seat back first, is counted against the budget of its user until all but
a little of it has been read, and takes a turn for each piece. Who has not read earlier answers waits without a seat. A client
that does not read in time is cut off, before an answer begins too.

Concurrency: on the event loop, in the task of the request. Compression, too: a piece takes some tens of microseconds, while a
worker thread would wait for the interpreter's lock for milliseconds, each way. Invariant: once an answer has begun,
`exchange.code` is set, and it ends or its connection does.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Final

from isal import isal_zlib

from muster.objects.status import ApiError, BadRequest, ServiceUnavailable, Timeout
from muster.server.audit_policy import Level, Stage
from muster.server.audit_trail import AuditTrail
from muster.server.budgets import Held
from muster.server.config import ServerLimits
from muster.server.exchange import Receive, Response, Scope, Send, Stream
from muster.server.flow import Flow
from muster.server.metrics import Metrics
from muster.server.negotiation import PLAIN, Form, encode, negotiate
from muster.server.one_request import Exchange
from muster.server.priority import EVENTS_COST
from muster.server.tunnel import Far, Tunnel
from muster.server.upgrade import agreement

_SMALL_BYTES: Final = 64 * 1024
"""An answer up to this goes out in one write and is not counted: what one connection may leave unread."""
_CHUNK_BYTES: Final = 256 * 1024
_PART_BYTES: Final = 128 * 1024
"""Pieces of a long answer are gathered up to this before they are sent."""
_STREAM_BUFFER_BYTES: Final = 16 * 1024
_BUFFER_BYTES: Final = 64 * 1024
_PIECES_BUFFER_BYTES: Final = 1024 * 1024
"""Of a long answer, whose bytes are counted whole: what may be unread before the next piece waits. So the pieces of all but the
longest go out one after the other, and do not wait for the client between two."""
_THREADS_AT_ONCE: Final = 2
"""Pieces that are made beside the loop compete for its interpreter, however many ask for some."""
_GZIP_LEVEL: Final = 1
_GZIP_WBITS: Final = 31
"""zlib's word, and ISA-L's, for the gzip format with the largest window."""


class Answering:
    def __init__(self, flow: Flow, trail: AuditTrail, metrics: Metrics, limits: ServerLimits) -> None:
        self._flow = flow
        self._trail = trail
        self._metrics = metrics
        self._limits = limits
        self._threads = asyncio.Semaphore(_THREADS_AT_ONCE)
        self._streams: dict[Stream | Tunnel, str] = {}
        """Answers without an end of their own, with whose they are."""
        self.is_stopping = False

    def close_streams(self) -> None:
        """End all watches, as when the server stops; clients come back and resume."""
        self.is_stopping = True
        for stream in list(self._streams):
            stream.close()

    def close_streams_of(self, user: str) -> None:
        """End the watches of one user, whose credentials are not good any more."""
        for stream, owner in list(self._streams.items()):
            if owner == user:
                stream.close()

    async def send(self, exchange: Exchange, scope: Scope, send: Send, response: Response, warnings: list[str]) -> None:
        body = response.body
        if exchange.telling is not None and exchange.telling.level is Level.REQUEST_RESPONSE and _is_object(response):
            exchange.response_body = body
        headers = [
            (b"audit-id", exchange.id.encode()),
            (b"cache-control", b"no-cache, private"),
            (b"content-type", response.content_type.encode()),
            *((name.encode(), value.encode()) for name, value in response.headers),
            *((b"warning", warning) for warning in _warnings(warnings, self._limits)),
        ]
        if response.pieces is None and len(body) <= _SMALL_BYTES:
            exchange.code, exchange.reason = response.code, response.reason
            headers.append((b"content-length", str(len(body)).encode()))
            if not scope["muster.connection"].respond(scope["muster.cycle"], response.code, headers, body):
                self.give_way(exchange)
                await self._send_parts(scope, send, response.code, headers, body)
            return
        self.give_way(exchange)
        size = response.size_bytes if response.pieces is not None else len(body)
        is_packed = size >= self._limits.gzip_bytes_min and "gzip" in exchange.headers.get("accept-encoding", "")
        if is_packed:
            headers += [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
        with self._flow.sending(exchange.user, size, may_refuse=not exchange.info.is_write):
            if response.pieces is not None or is_packed:
                if response.is_exact and not is_packed:
                    headers.append((b"content-length", str(size).encode()))
                exchange.code, exchange.reason = response.code, response.reason
                if not await self.begin(scope, send, response.code, headers):
                    return
                made = _slices(body) if response.pieces is None else response.pieces
                pieces = _beside(made, self._threads) if response.is_slow else _on_loop(made)
                connection = scope["muster.connection"]
                connection.buffer(_PIECES_BUFFER_BYTES)
                try:
                    await self._send_pieces(exchange, scope, send, pieces, response.piece_cost, is_packed=is_packed)
                finally:
                    connection.buffer(_BUFFER_BYTES)
                await self._until_read(scope)
                return
            headers.append((b"content-length", str(len(body)).encode()))
            exchange.code, exchange.reason = response.code, response.reason
            await self._send_parts(scope, send, response.code, headers, body)
            await self._until_read(scope)

    def give_way(self, exchange: Exchange) -> None:
        """What is left is up to the client; its bytes are bounded, so it needs no seat for that."""
        if exchange.ticket is not None:
            self._flow.give_back(exchange.ticket)

    async def _send_pieces(
        self, exchange: Exchange, scope: Scope, send: Send, pieces: AsyncIterator[bytes], cost: float, *, is_packed: bool
    ) -> None:
        """Each piece is made, and compressed, in a turn of its own."""
        pack = isal_zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WBITS) if is_packed else None
        gathered: list[bytes] = []
        size = 0
        if exchange.method != "HEAD":
            async for piece in pieces:
                part = pack.compress(piece) if pack is not None else piece
                gathered.append(part)
                size += len(part)
                if size >= _PART_BYTES:
                    part = b"".join(gathered)
                    gathered, size = [], 0
                    if not await self._pass_on(scope, send, part, more=True):
                        return
                await self._flow.turn(exchange.whose, cost)
        if pack is not None:
            gathered.append(pack.flush())
        await self._pass_on(scope, send, b"".join(gathered), more=False)

    async def _send_parts(self, scope: Scope, send: Send, code: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        if not await self.begin(scope, send, code, headers):
            return
        for start in range(0, len(body) or 1, _CHUNK_BYTES):
            part = body[start : start + _CHUNK_BYTES]
            if not await self._pass_on(scope, send, part, more=start + _CHUNK_BYTES < len(body)):
                return

    async def begin(self, scope: Scope, send: Send, code: int, headers: list[tuple[bytes, bytes]]) -> bool:
        """The head of an answer, as `_pass_on`: earlier ones on this connection may not have been read yet."""
        return await self._taken(scope, send({"type": "http.response.start", "status": code, "headers": headers}))

    async def _pass_on(self, scope: Scope, send: Send, body: bytes, *, more: bool) -> bool:
        """Send one piece; cut the connection of a client that does not take it in time. False when nobody is there any more."""
        if scope["muster.cycle"].disconnected:
            return False
        return await self._taken(scope, send({"type": "http.response.body", "body": body, "more_body": more}))

    async def _until_read(self, scope: Scope) -> None:
        """Until the client has read all but a little of what it was sent."""
        if scope["muster.connection"].is_paused:
            await self._taken(scope, scope["muster.connection"].drained())

    async def _taken(self, scope: Scope, passing: Awaitable[None]) -> bool:
        try:
            async with asyncio.timeout(self._limits.send_timeout_s):
                await passing
        except TimeoutError:
            self._metrics.refused.labels("send_timeout_s").inc()
            scope["muster.abort"]()
            return False
        return True

    async def stream(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send, stream: Stream) -> None:
        if self.is_stopping:
            stream.close()
            raise ServiceUnavailable("the server is stopping; connect again", retry_after_s=1)
        self._streams[stream] = exchange.user
        connection, cycle = scope["muster.connection"], scope["muster.cycle"]
        connection.buffer(_STREAM_BUFFER_BYTES)
        watchdog = asyncio.get_running_loop().create_task(_close_on_disconnect(receive, stream))
        try:
            exchange.code, exchange.is_long = stream.code, True
            self._trail.reached(exchange, Stage.STARTED, 0.0)
            headers = [
                (b"audit-id", exchange.id.encode()),
                (b"cache-control", b"no-cache, private"),
                (b"content-type", stream.content_type.encode()),
            ]
            if not await self.begin(scope, send, stream.code, headers):
                return
            async for chunk in stream.chunks:
                if not connection.push(cycle, chunk) and not await self._pass_on(scope, send, chunk, more=True):
                    return
            await self._pass_on(scope, send, b"", more=False)
        finally:
            self._streams.pop(stream, None)
            stream.close()
            connection.buffer(_BUFFER_BYTES)
            watchdog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watchdog

    async def tunnel(self, exchange: Exchange, scope: Scope, receive: Receive, tunnel: Tunnel) -> None:
        """The agent first: what it refuses is answered in HTTP. Then the connection is the tunnel's, and ends with it."""
        connection, cycle = scope["muster.connection"], scope["muster.cycle"]
        if not connection.is_upgrade(cycle):
            raise BadRequest("Upgrade request required")
        if self.is_stopping:  # nobody would close it any more while it waits for the agent
            raise ServiceUnavailable("the server is stopping; connect again", retry_after_s=1)
        self._streams[tunnel] = exchange.user
        try:
            far = await self._dial(scope, receive, tunnel)
            if far is None or self.is_stopping:
                raise ServiceUnavailable("the server is stopping, or the client has gone; connect again", retry_after_s=1)
            exchange.code, exchange.is_long = 101, True
            self._trail.reached(exchange, Stage.STARTED, 0.0)
            incoming = connection.take_over(cycle, agreement(far.headers))
            try:
                await tunnel.splice(connection, incoming, functools.partial(self._flow.turn, exchange.whose, EVENTS_COST))
            finally:
                connection.end(cycle)
        finally:
            self._streams.pop(tunnel, None)
            tunnel.end()

    async def _dial(self, scope: Scope, receive: Receive, tunnel: Tunnel) -> Far | None:
        watchdog = asyncio.get_running_loop().create_task(_close_on_disconnect(receive, tunnel))
        try:
            return await tunnel.dial(scope["headers"])
        finally:
            watchdog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watchdog

    async def pace(self, exchange: Exchange, scope: Scope) -> None:
        """Before the next events of a stream. A client that does not read gets no more; one that reads nothing for too long,
        or while too much is unread already, is cut."""
        connection = scope["muster.connection"]
        if connection.is_paused:
            user = exchange.user
            unread = connection.unread_bytes
            excess = self._flow.unread.excess(user, unread)
            limit = {"total": "watch_unread_bytes_max", "user": "watch_unread_per_user_bytes_max"}.get(excess, "")
            if not limit:
                with Held(self._flow.unread, user) as held, contextlib.suppress(TimeoutError):
                    held.grow(unread)
                    async with asyncio.timeout(self._limits.send_timeout_s):
                        await connection.drained()
                if connection.is_paused:
                    limit = "send_timeout_s"
            if limit:
                self._metrics.refused.labels(limit).inc()
                scope["muster.abort"]()
                raise Timeout(f"{unread} bytes of this stream were not read; it ends because of {limit}")
        await self._flow.turn(exchange.whose, EVENTS_COST)


def failure(exchange: Exchange, error: ApiError) -> Response:
    try:
        form = Form(negotiate(exchange.headers.get("accept", ""), transforms=False).media)
    except ApiError:
        form = PLAIN
    headers = []
    # A disruption budget refuses with a cause and says nothing of when to come back, as in Kubernetes: clients that see
    # Retry-After would wait and try again by themselves, and `kubectl drain` would seem to hang.
    if error.retry_after_s or (error.code == 429 and not error.causes):
        headers.append(("retry-after", str(error.retry_after_s or 1)))
    if error.code == 401:
        headers.append(("www-authenticate", "Bearer"))
    return Response(
        code=error.code,
        body=encode(error.to_status(), form),
        content_type=form.content_type,
        headers=headers,
        reason=error.reason,
    )


def _warnings(warnings: list[str], limits: ServerLimits) -> list[bytes]:
    """Warning headers, in Kubernetes' form: code 299, no agent, quoted text."""
    shown = []
    for text in list(dict.fromkeys(warnings))[: limits.warnings_max]:
        clean = "".join(c if c.isprintable() else " " for c in text)[: limits.warning_chars_max]
        quoted = clean.replace("\\", "\\\\").replace('"', '\\"')
        shown.append(f'299 - "{quoted}"'.encode())
    return shown


def _is_object(response: Response) -> bool:
    """Rather than the text of a log."""
    return response.content_type.startswith(("application/json", "application/yaml"))


def _slices(body: bytes) -> Iterator[bytes]:
    return (body[start : start + _PART_BYTES] for start in range(0, len(body), _PART_BYTES))


async def _on_loop(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _beside(pieces: Iterator[bytes], threads: asyncio.Semaphore) -> AsyncIterator[bytes]:
    while True:
        async with threads:
            piece = await asyncio.to_thread(next, pieces, None)
        if piece is None:
            return
        yield piece


async def _close_on_disconnect(receive: Receive, stream: Stream | Tunnel) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.close()
