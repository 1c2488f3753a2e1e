"""The kubelet's endpoint, as far as an agent has it: logs of containers, health and metrics, over TLS.

    GET /containerLogs/{namespace}/{pod}/{container}    what `kubectl logs` asks the API server for, which asks here
    GET /healthz, /metrics
    exec, attach, portForward, run                      501, with a sentence that says what to do instead

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
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, Protocol

from aiohttp import web
from prometheus_client import REGISTRY, generate_latest

from muster.agent.contracts import AgentError, LogQuery
from muster.agent.serving_door import Door
from muster.objects.time import Clock, parse_time

log = logging.getLogger(__name__)

STREAMS_MAX: Final = 200
STOP_S: Final = 2.0
IDLE_S: Final = 30.0
"""So long a connection is kept for a further request."""
_NOT_SERVED: Final = ("exec", "attach", "portForward", "run", "cri")


class Access(Protocol):
    async def refusal(self, request: web.Request) -> tuple[int, str] | None:
        """None when the request may be answered; otherwise the code and why not."""
        ...


class BadQuery(Exception):
    pass


def read_query(path: Mapping[str, str], query: Mapping[str, str], now: float) -> LogQuery:
    """BadQuery names the parameter and its value. Pure."""
    if query.get("sinceTime") and query.get("sinceSeconds"):
        raise BadQuery("sinceTime and sinceSeconds: give one of them")
    since = None
    if text := query.get("sinceTime", ""):
        try:
            since = parse_time(text)
        except ValueError as error:
            raise BadQuery(f"sinceTime: {error}") from error
    if (seconds := _number(query, "sinceSeconds", 1)) is not None:
        since = now - seconds
    return LogQuery(
        namespace=path["namespace"],
        pod=path["pod"],
        container=path["container"],
        uid=query.get("uid", ""),
        previous=_flag(query, "previous"),
        follow=_flag(query, "follow"),
        tail_lines=_number(query, "tailLines", 0),
        since=since,
        timestamps=_flag(query, "timestamps"),
        limit_bytes=_number(query, "limitBytes", 1),
    )


def _flag(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "false")
    if text.lower() in ("true", "1", "t"):
        return True
    if text.lower() in ("false", "0", "f", ""):
        return False
    raise BadQuery(f"{name}: {text[:40]!r} is neither true nor false")


def _number(query: Mapping[str, str], name: str, least: int) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        raise BadQuery(f"{name}: {text[:40]!r} is no whole number from {least} on")
    return int(text)


class Endpoint:
    """`start`, then `port` says where it listens, then `stop`."""

    def __init__(
        self,
        *,
        logs: Callable[[LogQuery], AsyncIterator[bytes]],
        access: Access,
        tls: ssl.SSLContext | None,
        clock: Clock,
        is_healthy: Callable[[], str] = lambda: "",
    ) -> None:
        self._logs = logs
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
        for word in _NOT_SERVED:
            app.router.add_route("*", f"/{word}/{{rest:.*}}", self._not_served)
        # Without cancellation a follower of a silent container would be kept for ever after its reader has gone.
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=STOP_S, keepalive_timeout=IDLE_S
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
            await runner.server.shutdown(STOP_S)
            await runner.cleanup()
            await self.door.drop()

    async def _health(self, _request: web.Request) -> web.Response:
        problem = self._is_healthy()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if (refused := await self._access.refusal(request)) is not None:
            return _text(*refused)
        return web.Response(
            body=generate_latest(REGISTRY), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _not_served(self, request: web.Request) -> web.StreamResponse:
        if (refused := await self._access.refusal(request)) is not None:
            return _text(*refused)
        what = request.path.split("/")[1]
        return _text(
            501, f"{what} is not supported by Muster's agent; use `kubectl logs`, or start a task that does what you need"
        )

    async def _container_logs(self, request: web.Request) -> web.StreamResponse:
        if (refused := await self._access.refusal(request)) is not None:
            return _text(*refused)
        try:
            query = read_query(request.match_info, request.query, self._clock())
        except BadQuery as error:
            return _text(400, str(error))
        if self._streams >= STREAMS_MAX:
            return _text(429, f"{STREAMS_MAX} logs are being read on this node; try again when one of them has ended")
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
                return _text({"NotFound": 404, "BadRequest": 400, "Unavailable": 503}.get(error.reason, 500), error.message)
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


def _text(code: int, text: str) -> web.Response:
    return web.Response(status=code, text=text + "\n")
