"""The kubelet's endpoint, as far as an agent has it: logs of containers, connections into pods, health and metrics, over TLS.

    GET /containerLogs/{namespace}/{pod}/{container}    what `kubectl logs` asks the API server for, which asks here
    GET /exec/{namespace}/{pod}/{container}             `kubectl exec` and `cp`: see `streaming`
    GET /portForward/{namespace}/{pod}                  `kubectl port-forward`: see `streaming`
    GET /healthz, /metrics
    attach, run, cri                                    501, with a sentence that says what to do instead

Who may ask is decided by `serving_access`. Everybody may ask for /healthz.

Concurrency: an aiohttp server on the agent's event loop; one task per request, at most `STREAMS_MAX` logs at once. A reader
that goes away ends its task. Connections are bounded by `serving_door`. Bad input is answered with 400 and a sentence, and
never reaches the carrier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from aiohttp import web
from prometheus_client import REGISTRY, generate_latest

from muster.agent.contracts import AgentError, LogQuery
from muster.agent.serving_answers import error_code, text
from muster.agent.serving_door import Door
from muster.agent.serving_query import BadQuery, read_query
from muster.agent.streaming import Handler, OpenExec, Streaming
from muster.agent.streaming_forward import Dial
from muster.agent.streaming_line import Pace
from muster.objects.time import Clock

log = logging.getLogger(__name__)

STREAMS_MAX: Final = 200
STOP_S: Final = 2.0
IDLE_S: Final = 30.0
"""So long a connection is kept for a further request."""
REQUEST_LINE_BYTES_MAX: Final = 64 * 1024
"""A command stands in it, and the API server takes queries of 16 KiB, in which it may write a byte of a client as three."""
_NOT_SERVED: Final = ("attach", "run", "cri")


class Access(Protocol):
    async def refusal(self, request: web.Request, verb: str = "get") -> tuple[int, str] | None:
        """None when the request may be answered; otherwise the code and why not. `verb`: what it comes to."""
        ...


class Endpoint:
    """`start`, then `port` says where it listens, then `stop`."""

    def __init__(
        self,
        *,
        logs: Callable[[LogQuery], AsyncIterator[bytes]],
        open_exec: OpenExec,
        dial: Dial,
        access: Access,
        tls: ssl.SSLContext | None,
        clock: Clock,
        is_healthy: Callable[[], str] = lambda: "",
        pace: Pace = Pace(),  # noqa: B008
    ) -> None:
        self._logs = logs
        self._streaming = Streaming(open_exec, dial, pace)
        self._access = access
        self._tls = tls
        self._clock = clock
        self._is_healthy = is_healthy
        self._streams = 0
        self._followers: set[asyncio.Task[object]] = set()
        self._runner: web.AppRunner | None = None
        self.door: Door | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """OSError when the address can't be had."""
        app = web.Application(client_max_size=64 * 1024)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._container_logs)
        app.router.add_route("*", "/exec/{namespace}/{pod}/{container}", self._stream_of(self._streaming.exec))
        app.router.add_route("*", "/portForward/{namespace}/{pod}", self._stream_of(self._streaming.port_forward))
        for word in _NOT_SERVED:
            app.router.add_route("*", f"/{word}/{{rest:.*}}", self._not_served)
        # Without cancellation a follower of a silent container would be kept for ever after its reader has gone.
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=STOP_S,
            keepalive_timeout=IDLE_S,
            max_line_size=REQUEST_LINE_BYTES_MAX,
        )
        await runner.setup()
        assert runner.server is not None
        door = Door(runner.server, self._tls)
        try:
            await door.open(host, port)
        except BaseException:
            await runner.cleanup()
            raise
        self._runner, self.door = runner, door
        self.port = door.port

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            assert self.door is not None
            assert runner.server is not None
            await self.door.close()
            for follower in self._followers:
                follower.cancel()  # it would go on as long as the container does, and STOP_S would pass for nothing
            await self._streaming.stop()
            await runner.server.shutdown(STOP_S)
            await runner.cleanup()
            await self.door.drop()

    async def _health(self, _request: web.Request) -> web.Response:
        problem = self._is_healthy()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if (refused := await self._access.refusal(request)) is not None:
            return text(*refused)
        return web.Response(
            body=generate_latest(REGISTRY), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _not_served(self, request: web.Request) -> web.StreamResponse:
        if (refused := await self._access.refusal(request)) is not None:
            return text(*refused)
        what = request.path.split("/")[1]
        return text(
            501, f"{what} is not supported by Muster's agent; use `kubectl logs`, or start a task that does what you need"
        )

    def _stream_of(self, serve: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            if (refused := await self._access.refusal(request, "create")) is not None:
                return text(*refused)
            answer = await serve(request)
            answer.force_close()  # after an upgrade that was refused, nobody can be sure what comes next
            return answer

        return handle

    async def _container_logs(self, request: web.Request) -> web.StreamResponse:
        if (refused := await self._access.refusal(request)) is not None:
            return text(*refused)
        try:
            query = read_query(request.match_info, request.query, self._clock())
        except BadQuery as error:
            return text(400, str(error))
        if self._streams >= STREAMS_MAX:
            return text(429, f"{STREAMS_MAX} logs are being read on this node; try again when one of them has ended")
        self._streams += 1
        task = asyncio.current_task()
        assert task is not None
        if query.follow:
            self._followers.add(task)
        try:
            return await self._stream(request, query)
        finally:
            self._streams -= 1
            self._followers.discard(task)

    async def _stream(self, request: web.Request, query: LogQuery) -> web.StreamResponse:
        async with _closed(self._logs(query)) as chunks:
            try:
                # A follower of a container that has said nothing yet must see that the request was taken.
                first = asyncio.ensure_future(anext(chunks, None))
                done, _ = await asyncio.wait((first,), timeout=1.0 if query.follow else None)
                chunk = first.result() if done else b""
            except AgentError as error:
                return text(error_code(error), error.message)
            response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
            response.enable_chunked_encoding()
            try:
                await response.prepare(request)
                if not done:
                    chunk = await first
                while chunk is not None:
                    await response.write(chunk)
                    chunk = await anext(chunks, None)
                await response.write_eof()
            except (ConnectionResetError, ConnectionAbortedError):
                pass
            except AgentError as error:
                log.warning("log of %s/%s %s ended early: %s", query.namespace, query.pod, query.container, error.message)
                if request.transport is not None:
                    request.transport.abort()  # so that the reader sees that it is not the end
            finally:
                if not first.done():
                    first.cancel()
                    await asyncio.gather(first, return_exceptions=True)
            return response


@contextlib.asynccontextmanager
async def _closed(chunks: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    try:
        yield chunks
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
