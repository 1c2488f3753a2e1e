"""The way of every request: who, how many, may they, what; then the answer, the audit line and the counters.

    1. read the URL                        400 when it makes no sense
    2. authenticate, then impersonate      401, 403
    3. take a slot                         429 when the server is full
    4. authorize                           403
    5. handle: resources by `handlers`, everything else by the Starlette application in `routes`
    6. send, audit, count

An ASGI application without a framework around it: reads pass the store's bytes straight on.

Concurrency: one task per request, on one event loop. Invariants: exactly one answer per request; nothing but `ApiError` text
reaches a client, other failures become a 500 with the request's id, and the traceback goes to the log under that id.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import os
from collections.abc import Callable
from typing import Any

from muster.objects.status import ApiError, BadRequest, InternalError, ServiceUnavailable, Timeout, Unauthorized
from muster.objects.time import Clock, format_micro_time
from muster.server.audit import AuditLog
from muster.server.authentication import ANONYMOUS, JOIN_PATHS, OPEN_PATHS, Authenticator, impersonated
from muster.server.authorization import MASTERS, Authorizer
from muster.server.config import ServerLimits
from muster.server.exchange import Query, Receive, Request, Response, Scope, Send, Stream
from muster.server.flow import Flow
from muster.server.handlers import ResourceHandlers
from muster.server.logs import logger
from muster.server.metrics import Metrics
from muster.server.negotiation import PLAIN, Form, encode, negotiate
from muster.server.paths import RequestInfo, request_info
from muster.store.embedded.admission import Actor

log = logger(__name__)
_CHUNK_BYTES = 256 * 1024
_GZIP_LEVEL = 1
_NOWHERE = RequestInfo(verb="", path="")
Asgi = Callable[[Any, Any, Any], Any]


class Exchange:
    """What is known so far about one request, for the audit line and the counters."""

    __slots__ = (
        "actor",
        "code",
        "headers",
        "id",
        "impersonator",
        "info",
        "is_long",
        "method",
        "notes",
        "query",
        "reason",
        "started_s",
        "target",
    )

    def __init__(self, id_: str, scope: Scope, started_s: float) -> None:
        self.id = id_
        self.method: str = scope["method"]
        self.started_s = started_s
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        self.target: str = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            self.target += "?" + scope["query_string"].decode("latin-1")
        self.info = _NOWHERE
        self.query = Query(b"")
        self.actor: Actor | None = None
        self.impersonator: Actor | None = None
        self.code = 0
        self.reason = ""
        self.is_long = False
        self.notes: dict[str, str] = {}
        """What a route adds to the audit line."""

    @property
    def is_joining(self) -> bool:
        return JOIN_PATHS.get(self.info.path) == self.method


class App:
    def __init__(
        self,
        *,
        handlers: ResourceHandlers,
        routes: Asgi,
        authenticator: Authenticator,
        authorizer: Authorizer,
        flow: Flow,
        audit: AuditLog | None,
        metrics: Metrics,
        limits: ServerLimits,
        clock: Clock,
    ) -> None:
        self._handlers = handlers
        self._routes = routes
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._flow = flow
        self._audit = audit
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        start = os.urandom(4).hex()
        self._ids = (f"{start}-{number:x}" for number in itertools.count(1))
        self._streams: dict[Stream, str] = {}
        """Answers without an end of their own, with whose they are."""
        self._logins = {result: metrics.authentication.labels(result).inc for result in ("success", "failure", "none")}
        self.is_stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        loop = asyncio.get_running_loop()
        exchange = Exchange(next(self._ids), scope, loop.time())
        try:
            await self._serve(exchange, scope, receive, send)
        except Exception as error:  # the root of a request
            if not isinstance(error, ApiError):
                log.error(
                    "request failed", request_id=exchange.id, method=exchange.method, path=exchange.info.path, exc_info=error
                )
                error = InternalError(f"internal error; the server's log has the details under request id {exchange.id}")
            if exchange.code:  # the answer had begun: it can't be taken back, so the connection ends
                scope["muster.abort"]()
            else:
                await self._send(exchange, scope, send, self._failure(exchange, error), [])
        finally:
            self._finish(exchange, loop.time() - exchange.started_s)

    def close_streams(self) -> None:
        """End all watches, as when the server stops; clients come back and resume."""
        self.is_stopping = True
        for stream in list(self._streams):
            stream.close()

    def close_streams_of(self, user: str) -> None:
        """End the watches of one user, whose credentials are not good any more."""
        for stream, whose in list(self._streams.items()):
            if whose == user:
                stream.close()

    # --- the steps

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        self._read_url(exchange, scope)
        actor = await self._identify(exchange, scope)
        info = exchange.info
        if info.verb == "watch" or (info.subresource == "log" and exchange.query.flag("follow")):
            with self._flow.watch(actor.user):
                self._authorizer.require(actor.user, actor.groups, info)
                await self._handle(exchange, scope, receive, send, actor)
            return
        is_privileged = MASTERS in actor.groups or info.path in OPEN_PATHS
        with self._flow.request(is_write=info.is_write, is_privileged=is_privileged):
            if info.path not in OPEN_PATHS and not exchange.is_joining:
                self._authorizer.require(actor.user, actor.groups, info)
            if info.is_resource:
                await self._handle(exchange, scope, receive, send, actor)
            else:
                await self._route(exchange, scope, receive, send)

    def _read_url(self, exchange: Exchange, scope: Scope) -> None:
        if len(scope["query_string"]) > self._limits.query_bytes_max:
            raise BadRequest(f"the query string is longer than {self._limits.query_bytes_max} bytes")
        query = exchange.query = Query(scope["query_string"])
        is_watch = query.flag("watch") if "watch" in query else False
        selector = query.text("fieldSelector")
        exchange.info = request_info(
            exchange.method,
            scope["raw_path"],
            is_watch=is_watch,
            only_name=_only_name(selector),
            field_selector=selector,
            label_selector=query.text("labelSelector"),
        )

    async def _identify(self, exchange: Exchange, scope: Scope) -> Actor:
        if exchange.is_joining:
            exchange.actor = ANONYMOUS
            return ANONYMOUS
        try:
            actor = await self._authenticator.authenticate(exchange.headers.get("authorization", ""), scope.get("muster.peer"))
        except Unauthorized:
            self._logins["failure"]()
            raise
        if actor is None:
            self._logins["none"]()
            if exchange.info.path not in OPEN_PATHS or exchange.method not in ("GET", "HEAD"):
                raise Unauthorized("Unauthorized")
            exchange.actor = ANONYMOUS
            return ANONYMOUS
        self._logins["success"]()
        exchange.actor = actor
        if any(name.startswith(b"impersonate-") for name, _ in scope["headers"]):
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
            exchange.impersonator = actor
            actor = exchange.actor = impersonated(actor, headers, self._authorizer)
        return actor

    async def _handle(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send, actor: Actor) -> None:
        client = scope.get("client")
        request = Request(
            method=exchange.method,
            info=exchange.info,
            query=exchange.query,
            headers=exchange.headers,
            actor=actor,
            request_id=exchange.id,
            receive=receive,
            limits=self._limits,
            client=client[0] if client else "",
        )
        answer = await self._within_time(request) if exchange.info.is_write else await self._handlers.handle(request)
        exchange.notes.update(request.notes)
        if isinstance(answer, Stream):
            await self._stream(exchange, scope, receive, send, answer)
        else:
            await self._send(exchange, scope, send, answer, request.warnings)

    async def _within_time(self, request: Request) -> Response | Stream:
        """Reads come from memory and never wait; a write waits for its body, for hooks and for the disk."""
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                return await self._handlers.handle(request)
        except TimeoutError:
            raise Timeout(
                f"the request was not done within {self._limits.request_timeout_s:g} s; a write may or may not have happened"
            ) from None

    async def _route(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything that is no resource. Starlette answers; what passes by is noted and stamped."""
        scope["muster.actor"] = exchange.actor
        scope["muster.authorizer"] = self._authorizer
        scope["muster.notes"] = exchange.notes

        async def stamped(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                exchange.code = message["status"]
                message["headers"] = [*message.get("headers", []), (b"audit-id", exchange.id.encode())]
            await send(message)

        await self._routes(scope, receive, stamped)

    # --- answers

    def _failure(self, exchange: Exchange, error: ApiError) -> Response:
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

    async def _send(self, exchange: Exchange, scope: Scope, send: Send, response: Response, warnings: list[str]) -> None:
        body = response.body
        headers = [
            (b"audit-id", exchange.id.encode()),
            (b"cache-control", b"no-cache, private"),
            (b"content-type", response.content_type.encode()),
            *((name.encode(), value.encode()) for name, value in response.headers),
            *((b"warning", warning) for warning in self._warnings(warnings)),
        ]
        if len(body) >= self._limits.gzip_bytes_min and "gzip" in exchange.headers.get("accept-encoding", ""):
            body = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL)
            headers += [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
        headers.append((b"content-length", str(len(body)).encode()))
        if len(body) <= _CHUNK_BYTES:
            exchange.code, exchange.reason = response.code, response.reason
            if not scope["muster.respond"](response.code, headers, body):
                await self._send_parts(scope, send, response.code, headers, body)
            return
        with self._flow.sending(len(body), may_refuse=not exchange.info.is_write):
            exchange.code, exchange.reason = response.code, response.reason
            await self._send_parts(scope, send, response.code, headers, body)

    async def _send_parts(self, scope: Scope, send: Send, code: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        await send({"type": "http.response.start", "status": code, "headers": headers})
        for start in range(0, len(body) or 1, _CHUNK_BYTES):
            part = body[start : start + _CHUNK_BYTES]
            if not await self._pass_on(scope, send, part, more=start + _CHUNK_BYTES < len(body)):
                return

    async def _pass_on(self, scope: Scope, send: Send, body: bytes, *, more: bool) -> bool:
        """Send one piece; cut the connection of a client that does not take it in time."""
        try:
            async with asyncio.timeout(self._limits.send_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            self._metrics.refused.labels("send_timeout_s").inc()
            scope["muster.abort"]()
            return False
        return True

    async def _stream(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send, stream: Stream) -> None:
        if self.is_stopping:
            stream.close()
            raise ServiceUnavailable("the server is stopping; connect again", retry_after_s=1)
        self._streams[stream] = exchange.actor.user if exchange.actor else ""
        watchdog = asyncio.get_running_loop().create_task(_close_on_disconnect(receive, stream))
        try:
            exchange.code, exchange.is_long = stream.code, True
            self._write_audit(exchange, "started", 0.0)
            headers = [
                (b"audit-id", exchange.id.encode()),
                (b"cache-control", b"no-cache, private"),
                (b"content-type", stream.content_type.encode()),
            ]
            await send({"type": "http.response.start", "status": stream.code, "headers": headers})
            async for chunk in stream.chunks:
                if not await self._pass_on(scope, send, chunk, more=True):
                    return
            await self._pass_on(scope, send, b"", more=False)
        finally:
            self._streams.pop(stream, None)
            stream.close()
            watchdog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watchdog

    def _warnings(self, warnings: list[str]) -> list[bytes]:
        """Warning headers, in Kubernetes' form: code 299, no agent, quoted text."""
        shown = []
        for text in list(dict.fromkeys(warnings))[: self._limits.warnings_max]:
            clean = "".join(c if c.isprintable() else " " for c in text)[: self._limits.warning_chars_max]
            quoted = clean.replace("\\", "\\\\").replace('"', '\\"')
            shown.append(f'299 - "{quoted}"'.encode())
        return shown

    # --- what remains

    def _finish(self, exchange: Exchange, seconds: float) -> None:
        info = exchange.info
        is_known = info.is_resource and self._handlers.find(info) is not None
        self._metrics.request_done(
            verb=info.verb,
            group=info.group if is_known else "",
            resource=info.resource if is_known else "",
            subresource=info.subresource if is_known and exchange.code < 400 else "",
            code=exchange.code,
            seconds=None if exchange.is_long else seconds,
        )
        self._write_audit(exchange, "complete", seconds)

    def _write_audit(self, exchange: Exchange, stage: str, seconds: float) -> None:
        if self._audit is None:
            return
        info = exchange.info
        entry: dict[str, Any] = {
            "time": format_micro_time(self._clock()),
            "id": exchange.id,
            "stage": stage,
            "user": exchange.actor.user if exchange.actor else "",
            "groups": exchange.actor.groups if exchange.actor else (),
            "method": exchange.method,
            "verb": info.verb,
            "uri": exchange.target[:2048],
            "agent": exchange.headers.get("user-agent", "")[:256],
            "code": exchange.code,
            "ms": round(seconds * 1000, 3),
        }
        if exchange.impersonator is not None:
            entry["impersonator"] = exchange.impersonator.user
        if exchange.reason:
            entry["reason"] = exchange.reason
        if exchange.notes:
            entry["notes"] = exchange.notes
        if info.is_resource:
            entry["object"] = {
                "group": info.group,
                "version": info.version,
                "resource": info.resource,
                "subresource": info.subresource,
                "namespace": info.namespace,
                "name": info.name,
            }
        self._audit.write(entry)


async def _close_on_disconnect(receive: Receive, stream: Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.close()


def _only_name(selector: str) -> str:
    """The name in `metadata.name=x`, when the selector asks for exactly one: RBAC may allow just that object."""
    for term in selector.split(","):
        key, _, value = term.partition("=")
        if key.strip() == "metadata.name" and value:
            return value.lstrip("=").strip()
    return ""
