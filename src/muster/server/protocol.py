"""HTTP/1.1 on one connection: uvicorn's httptools protocol with the bounds that a public port needs.

Added to uvicorn's: the verified client certificate in the scope, an `abort`, the connection and its cycle for answers in one
write; bounds on the size and number of headers (431), on pipelined requests, on open connections (503); a time limit for the
headers of each request, so that a client that drips bytes can't hold a connection; malformed HTTP answered with 400 and a
`Status` body. A request to upgrade is the last one on its connection: who answers it may take the connection over (`tunnel`);
otherwise it is answered like any other, and the connection closes.

Concurrency: callbacks of the event loop, one instance per connection. Relies on names inside uvicorn's class; the versions are
pinned, and `tests/server/test_protocol.py` drives every path through a real socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

import httptools
import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from muster.objects.status import ApiError, BadRequest, ServiceUnavailable
from muster.server import tcp
from muster.server.config import ServerLimits
from muster.server.metrics import Metrics

_IGNORED_BODIES_MAX = 16
"""How many times the largest body a client may go on sending after it was refused."""


_AHEAD_BYTES = 32 * 1024
"""Of what a client sends behind a request to upgrade; at twice as much, reading pauses until somebody takes it."""


class _HeadTooLarge(ApiError):
    code = 431
    reason = "RequestHeaderFieldsTooLarge"


class BoundedProtocol(HttpToolsProtocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ServerLimits,
        metrics: Metrics,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._metrics = metrics
        self._head_bytes = 0
        """Bytes that came in while headers were read, whether the parser has reported them yet or not."""
        self._head_size = 0
        """Bytes of the request line and headers as parsed."""
        self._ignored_bytes = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._peer: dict[str, Any] | None = None
        self._served: RequestResponseCycle | None = None
        """The request that is answered now, or was last: `cycle` is the one that came last, and may be waiting behind it."""
        self._refused: ApiError | None = None
        """Set while the headers are refused: the request is answered with it and the connection ends."""
        self._after_http: asyncio.StreamReader | None = None
        """From the end of a request to upgrade on: HTTP is over on this connection, and what came since waits here."""
        self.on_lost: Callable[[], None] = lambda: None

    # --- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._metrics.connections.set(len(self.connections))
        if len(self.connections) > self._limits.connections_max:
            self._metrics.refused.labels("connections_max").inc()
            most = self._limits.connections_max
            self._answer_and_close(ServiceUnavailable(f"{most} connections are open, the most this server takes; try later"))
            return
        self._peer = transport.get_extra_info("peercert") or None
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)
        if self._served is not None and not self._served.response_complete:
            # uvicorn tells the request that came last, and a watch with another behind it would never hear of it.
            self._served.disconnected = True
            self._served.message_event.set()
        if self._after_http is not None:
            self._after_http.feed_eof()
        self.on_lost()
        self._metrics.connections.set(len(self.connections))

    def shutdown(self) -> None:
        self._stop_head_timer()
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self.parser is None or self.transport.is_closing():
            if self._after_http is not None and not self.transport.is_closing():
                self._after_http.feed_data(data)
            return
        if self._in_head or self.cycle is None or not self.cycle.response_complete:
            # The rest of a body that was answered before it was here does not keep the connection open.
            self._unset_keepalive_if_required()
        if self._in_head:
            self._head_bytes += len(data)
            self._start_head_timer()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._end_http(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            refused = self._refused or BadRequest(f"malformed HTTP request: {_cause(error)}")
            self._answer_and_close(refused)
            return
        if self._in_head and self._head_bytes > self._limits.head_bytes_max:
            self._answer_and_close(self._head_too_large())

    def _end_http(self, rest: bytes) -> None:
        """There are no further requests behind one to upgrade: somebody takes over, or it is answered and all is over."""
        self.parser = None  # type: ignore[assignment]  # as when the connection is lost
        self._after_http = asyncio.StreamReader(limit=_AHEAD_BYTES, loop=self.loop)
        self._after_http.set_transport(self.transport)
        # From here on the reader alone pauses: whoever went on for the sake of requests would undo that, and it not know.
        self.flow.resume_reading()
        self._after_http.feed_data(rest)

    # --- the parser's callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_size = self._ignored_bytes = 0
        self.scope["muster.peer"] = self._peer  # type: ignore[typeddict-unknown-key]
        self.scope["muster.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        self.scope["muster.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._count_head(len(name) + len(value) + 4)
            return  # a trailer: who asks, and for whom, was said in the head
        super().on_header(name, value)
        if len(self.headers) > self._limits.headers_max:
            self._refuse(_HeadTooLarge(f"the request has more than {self._limits.headers_max} headers"))
        self._count_head(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        self._unset_keepalive_if_required()  # it may have come together with the end of such a body
        if len(self.pipeline) >= self._limits.pipelined_max:
            self._refuse(BadRequest(f"more than {self._limits.pipelined_max} requests were sent ahead on one connection"))
        super().on_headers_complete()
        self.scope["muster.cycle"] = self.cycle  # type: ignore[typeddict-unknown-key]
        self._in_head = False
        self._head_bytes = 0
        self._stop_head_timer()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            # The answer came before the body was read, because it is refused. Read on for a while, so that the client sees
            # the answer rather than a reset; not for ever.
            self._ignored_bytes += len(body)
            if self._ignored_bytes > _IGNORED_BODIES_MAX * self._limits.body_bytes_max:
                self.transport.abort()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._limits.head_bytes_max:
            self._refuse(self._head_too_large())

    def _refuse(self, error: ApiError) -> None:
        """Stop the parser from inside one of its callbacks; `data_received` then sends `error`."""
        self._refused = error
        raise ValueError(error.message)

    def _head_too_large(self) -> ApiError:
        return _HeadTooLarge(f"the request line and headers are larger than {self._limits.head_bytes_max} bytes")

    # --- answering

    def respond(self, cycle: RequestResponseCycle, code: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """A whole answer in one write: half the system calls and TLS records of the ASGI way. False: use that one instead."""
        if cycle.response_started or self.flow.write_paused:
            return False
        if cycle.disconnected:
            return True
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        content = [STATUS_LINE[code]]
        for name, value in (*cycle.default_headers, *headers):
            content += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            content.append(b"connection: close\r\n")
        content.append(b"\r\n")
        if cycle.scope["method"] != "HEAD":
            content.append(body)
        self.transport.write(b"".join(content))
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def push(self, cycle: RequestResponseCycle, chunk: bytes) -> bool:
        """The next chunk of an answer that has begun and has no length. False when it is to go the ASGI way, which waits until
        the client has read enough."""
        if self.flow.write_paused or not cycle.chunked_encoding or not chunk:  # an empty one would end the answer
            return False
        if not cycle.disconnected:
            self.hand_on(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        return True

    @property
    def is_paused(self) -> bool:
        """Whether the client has not read enough of what it was sent."""
        return bool(self.flow.write_paused)

    @property
    def unread_bytes(self) -> int:
        return int(self.transport.get_write_buffer_size())

    async def drained(self) -> None:
        await self.flow.drain()

    def buffer(self, size_bytes: int) -> None:
        """How much may be unread before `is_paused` says so."""
        self.transport.set_write_buffer_limits(high=size_bytes)

    # --- what is no HTTP any more

    def is_upgrade(self, cycle: RequestResponseCycle) -> bool:
        """Whether the connection can be taken over when this request is answered so."""
        return self._after_http is not None and cycle is self.cycle and cycle.scope["http_version"] == "1.1"

    def take_over(self, cycle: RequestResponseCycle, head: bytes) -> asyncio.StreamReader:
        """Answer with `head`, and leave the connection to the one who asks: what the client sends, from behind its request on,
        is in the reader. Until `end` it counts as being answered."""
        assert self._after_http is not None
        cycle.response_started = True
        tcp.keep_alive(self.transport)
        self.hand_on(head)
        return self._after_http

    def hand_on(self, data: bytes) -> None:
        """What is written to one who is leaving, which is known before the connection is lost, is a warning in the log each."""
        if not self.transport.is_closing():
            self.transport.write(data)

    async def flushed(self) -> None:
        """Until nothing waits to be sent, or the client has gone."""
        if not self.transport.is_closing():
            self.buffer(1)  # of 0, uvloop thinks that it is always too much
            await self.drained()

    def has_left(self) -> bool:
        """Whether the client sends no more, though what it sent may not have been read."""
        return tcp.has_left(self.transport)

    def end(self, cycle: RequestResponseCycle) -> None:
        """What was handed on goes out, then the connection closes."""
        cycle.response_complete = True
        self.transport.close()

    # --- refusing

    def _answer_and_close(self, error: ApiError) -> None:
        """Answer outside of ASGI. If an answer is under way already, its bytes must not be mixed with others: cut instead."""
        self._stop_head_timer()
        if self.transport.is_closing():
            return
        if self.pipeline and self.cycle.more_body and self._served is not None:
            # What is broken waits behind others: those are answered, and it is as if it had not been sent.
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._served
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete and self.cycle.more_body:
            self.transport.abort()
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if not self.cycle.more_body:
                # What is malformed comes after a whole request that is being served: answer that one, then close.
                self.cycle.keep_alive = False
                self.flow.pause_reading()
                return
            # The body of the present request is broken: its handler gets a disconnect, the client the reason.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = msgspec.json.encode(error.to_status())
        self.transport.write(
            b"".join(
                (
                    STATUS_LINE[error.code],
                    b"content-type: application/json\r\ncontent-length: ",
                    str(len(body)).encode(),
                    b"\r\nconnection: close\r\n\r\n",
                    body,
                )
            )
        )
        self.transport.close()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.head_timeout_s, self._head_timed_out)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            return  # the bytes of a pipelined request may wait while the one before it is served
        self._answer_and_close(BadRequest(f"the headers did not arrive within {self._limits.head_timeout_s:g} s"))


def release(scope: MutableMapping[str, Any]) -> None:
    """Let go of the connection, when the request has been answered. It holds the scope, too: each request would be left for the
    collector of cycles, which looks for them while everybody waits."""
    for name in ("muster.abort", "muster.connection", "muster.cycle"):
        scope.pop(name, None)


def _cause(error: Exception) -> str:
    if isinstance(error, httptools.HttpParserCallbackError):
        return "the request target or a header can't be read"  # what failed is code, not a text for users
    text = str(error.__context__ or error)
    return " ".join(text.split())[:200]
