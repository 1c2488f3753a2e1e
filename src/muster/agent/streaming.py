"""Connections into running pods, on the agent's endpoint: commands with their streams open, and forwarded ports.

    /exec/{namespace}/{pod}/{container}    WebSocket with one of `streaming_channels.PROTOCOLS`
    /portForward/{namespace}/{pod}         WebSocket with one of `PORT_PROTOCOLS`, or `streaming_spdy.PROTOCOL`

Whatever is wrong before the upgrade is an ordinary answer with one sentence; so a command is begun before it.

Concurrency: one task per request, which aiohttp cancels when its connection is lost, and `stop` when the agent ends. At most
`EXECS_MAX` commands and `FORWARDS_MAX` peers that forward ports at once.

Invariant: a session that was opened is closed, once, and forwarded connections are, even when the request's task is cancelled
while that is done; `stop` waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

from aiohttp import web

from muster.agent.contracts import AgentError, ExecSession, ExecWant, StreamTarget
from muster.agent.serving_answers import error_code, text
from muster.agent.serving_query import BadQuery, read_exec, read_ports
from muster.agent.streaming_channels import OLDEST, PORT_PROTOCOLS, PROTOCOLS, Codec, choose
from muster.agent.streaming_exec import ExecStream
from muster.agent.streaming_forward import Connections, Dial, Forwards
from muster.agent.streaming_line import Gone, Line, Pace
from muster.agent.streaming_ports import ChannelPorts
from muster.agent.streaming_spdy import PROTOCOL as SPDY
from muster.agent.streaming_spdy import SpdyPorts

log = logging.getLogger(__name__)

EXECS_MAX: Final = 100
FORWARDS_MAX: Final = 100
STOP_S: Final = 5.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OpenExec = Callable[[StreamTarget, ExecWant], Awaitable[ExecSession]]


class Streaming:
    """`exec` and `port_forward` answer requests of those who may ask; then `stop`."""

    def __init__(self, open_exec: OpenExec, dial: Dial, pace: Pace) -> None:
        self._open_exec = open_exec
        self._dial = dial
        self._pace = pace
        self._connections = Connections()
        self._serving: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """The commands that somebody follows are killed, and connections cut."""
        for task in self._tasks:
            task.cancel()
        for waiting in (self._tasks, self._closing):
            if waiting:
                await asyncio.wait(list(waiting), timeout=STOP_S)

    async def exec(self, request: web.Request) -> web.StreamResponse:
        try:
            protocol = _negotiate(request, PROTOCOLS)
            ask = read_exec(request.match_info, request.query)
        except BadQuery as error:
            return text(400, str(error))
        if self._serving["exec"] >= EXECS_MAX:
            return text(429, f"{EXECS_MAX} commands are being followed on this node; try again when one of them has ended")
        with self._counted("exec"):
            try:
                session = await self._open_exec(ask.target, ask.want)
            except AgentError as error:
                return text(error_code(error), error.message)
            codec = Codec(protocol)
            line = Line(self._pace, protocol, is_text=codec.is_text)
            stream = ExecStream(line, session, ask, codec, self._pace)
            return await self._serve(request, line, stream.run, session.close)

    async def port_forward(self, request: web.Request) -> web.StreamResponse:
        try:
            protocol = _negotiate(request, (*PORT_PROTOCOLS, SPDY))
            target, ports = read_ports(request.match_info, request.query)
        except BadQuery as error:
            return text(400, str(error))
        if protocol != SPDY and not ports:
            return text(400, "ports: name at least one")
        if self._serving["portForward"] >= FORWARDS_MAX:
            return text(
                429, f"ports of this node are forwarded for {FORWARDS_MAX} already; try again when one of them has left"
            )
        with self._counted("portForward"):
            linger_s = self._pace.linger_s if protocol == SPDY else 0.0
            forwards = Forwards(self._dial, target, self._connections, self._pace, linger_s=linger_s)
            if protocol == SPDY:
                line = Line(self._pace, protocol)
                return await self._serve(request, line, SpdyPorts(line, forwards, self._pace).run, forwards.close)
            codec = Codec(protocol)
            line = Line(self._pace, protocol, is_text=codec.is_text)
            return await self._serve(request, line, ChannelPorts(line, codec, ports, forwards).run, forwards.close)

    async def _serve(
        self,
        request: web.Request,
        line: Line,
        run: Callable[[], Awaitable[None]],
        release: Callable[[], Coroutine[Any, Any, None]],
    ) -> web.StreamResponse:
        """`release`, whatever happens, and at once: the peer may take its time with the rest of what was said."""
        try:
            try:
                await line.open(request)
                await run()
            finally:
                await self._surely(release())
            await line.close()
        except Gone as error:
            log.info("the peer of %s is gone: %s", request.path, error)
            line.abort()
        except ConnectionError:
            line.abort()
        return line.socket

    @contextlib.contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._serving[what] += 1
        self._tasks.add(task)
        try:
            yield
        finally:
            self._serving[what] -= 1
            self._tasks.discard(task)

    async def _surely(self, closing: Coroutine[Any, Any, None]) -> None:
        """To its end, whoever is cancelled."""
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closed)
        await asyncio.shield(task)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a stream could not be closed in order", exc_info=error)


def _negotiate(request: web.Request, known: tuple[str, ...]) -> str:
    """The protocol to speak. BadQuery when there is none, or it is no WebSocket that is asked for."""
    offered = request.headers.get("Sec-WebSocket-Protocol", "")
    chosen = choose(offered, known) if offered.strip() else OLDEST
    if chosen is None:
        raise BadQuery(f"Sec-WebSocket-Protocol: {offered[:100]!r}; spoken here: {', '.join(known)}")
    if request.method != "GET" or not web.WebSocketResponse(protocols=(chosen,)).can_prepare(request):
        raise BadQuery("this is spoken over WebSocket, version 13: GET with Connection: Upgrade and Upgrade: websocket")
    return chosen
