"""The way of every request: who, how many, may they, what; then the answer, the audit line and the counters.

    1. read the URL                        400 when it makes no sense
    2. authenticate, then impersonate      401, 403
    3. authorize                           403
    4. read the body, then wait for a seat 413, 429 when too much is waiting already
    5. handle: resources by `handlers`, everything else by the Starlette application in `routes`
    6. send, audit, count

An ASGI application without a framework around it: reads pass the store's bytes straight on.

Concurrency: one task per request, on one event loop. Invariants: exactly one answer per request; nothing but `ApiError` text
reaches a client, other failures become a 500 with the request's id, and the traceback goes to the log under that id.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import itertools
import os
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from muster.objects.status import ApiError, BadRequest, InternalError, ServiceUnavailable, Timeout, Unauthorized
from muster.objects.time import Clock
from muster.server import audit_events
from muster.server.audit import NOTES, AuditLog
from muster.server.audit_policy import DEFAULT, Level, Policy, Stage, Telling
from muster.server.authentication import ANONYMOUS, JOIN_PATHS, OPEN_PATHS, Authenticator, CredentialsRefused, impersonated
from muster.server.authorization import Authorizer
from muster.server.bodies import Bodies
from muster.server.budgets import Held
from muster.server.config import ServerLimits
from muster.server.exchange import Query, Receive, Request, Response, Scope, Send, Stream
from muster.server.fair_queue import Ticket
from muster.server.flow import Flow
from muster.server.handlers import ResourceHandlers
from muster.server.logs import logger
from muster.server.metrics import Metrics
from muster.server.negotiation import PLAIN, Form, encode, negotiate
from muster.server.paths import RequestInfo, request_info
from muster.server.priority import EVENTS_COST, PIECE_COST, READ_COST, stranger, whose
from muster.store.embedded.admission import Actor

log = logger(__name__)
_SMALL_BYTES = 64 * 1024
"""An answer up to this goes out in one write and is not counted: what one connection may leave unread."""
_CHUNK_BYTES = 256 * 1024
_PART_BYTES = 128 * 1024
"""Pieces of a long answer are gathered up to this before they are sent."""
_STREAM_BUFFER_BYTES = 16 * 1024
_BUFFER_BYTES = 64 * 1024
_GZIP_LEVEL = 1
_AUDIT_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What a client may call its request; others are given an id."""
_GZIP_WBITS = 31
"""zlib's word for the gzip format with the largest window."""
_NOWHERE = RequestInfo(verb="", path="")
Asgi = Callable[[Any, Any, Any], Any]


class Exchange:
    """What is known so far about one request, for the audit line and the counters."""

    __slots__ = (
        "actor",
        "address",
        "annotations",
        "code",
        "headers",
        "id",
        "impersonator",
        "info",
        "is_fault",
        "is_long",
        "method",
        "notes",
        "query",
        "reason",
        "received_s",
        "request_body",
        "response_body",
        "started_s",
        "target",
        "telling",
        "ticket",
        "whose",
    )

    def __init__(self, id_: str, scope: Scope, started_s: float, received_s: float) -> None:
        self.id = id_
        self.method: str = scope["method"]
        self.started_s = started_s
        self.received_s = received_s
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
        client = scope.get("client")
        self.address: str = client[0] if client else ""
        self.whose = stranger(self.address)
        self.ticket: Ticket | None = None
        """The seat, from the moment at which it has one."""
        self.notes: dict[str, str] = {}
        """What a route adds to the audit line."""
        self.annotations: dict[str, str] = {}
        self.telling: Telling | None = None
        """How much the audit log tells about it, once that is known."""
        self.request_body = self.response_body = b""
        """Kept only where the audit log tells them."""
        self.is_fault = False
        given = self.headers.get("audit-id", "")
        if given and _AUDIT_ID.fullmatch(given):
            self.id = given

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
        audit_policy: Policy = DEFAULT,
    ) -> None:
        self._audit_policy = audit_policy
        self._handlers = handlers
        self._routes = routes
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._flow = flow
        self._bodies = Bodies(limits, metrics, flow.bodies)
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
        exchange = Exchange(next(self._ids), scope, loop.time(), self._clock())
        try:
            await self._serve(exchange, scope, receive, send)
        except Exception as error:  # the root of a request
            if not isinstance(error, ApiError):
                exchange.is_fault = True
                log.error(
                    "request failed", request_id=exchange.id, method=exchange.method, path=exchange.info.path, exc_info=error
                )
                error = InternalError(f"internal error; the server's log has the details under request id {exchange.id}")
            if exchange.code:  # the answer had begun: it can't be taken back, so the connection ends
                scope["muster.abort"]()
            else:
                if exchange.ticket is None:
                    # Refused before its turn came: to be told so is a turn too, or refusals would be served before others.
                    await self._flow.turn(exchange.whose, READ_COST)
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
        for stream, owner in list(self._streams.items()):
            if owner == user:
                stream.close()

    # --- the steps

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        self._read_url(exchange, scope)
        actor = await self._identify(exchange, scope)
        info = exchange.info
        exchange.whose = whose(actor, info, exchange.address)
        if info.path not in OPEN_PATHS and not exchange.is_joining:
            self._authorize(exchange, actor)
        if info.verb == "watch" or info.subresource == "log":
            with self._flow.watch(actor.user):
                await self._flow.begin(exchange.whose, READ_COST)
                await self._handle(exchange, scope, receive, send)
            return
        with self._bodies.hold(actor.user) as held:
            body = b""
            if info.is_write and not exchange.is_joining:  # joining has bounds of its own, which are narrower
                body = await self._bodies.read(receive, exchange.headers, actor.user, held)
            ticket = exchange.ticket = await self._flow.start(exchange.whose, is_write=info.is_write)
            try:
                if info.is_resource:
                    await self._handle(exchange, scope, receive, send, body=body)
                else:
                    await self._route(exchange, scope, receive if exchange.is_joining else _replayed(body, receive), send)
            finally:
                self._flow.give_back(ticket)

    def _authorize(self, exchange: Exchange, actor: Actor) -> None:
        told = exchange.annotations
        told["authorization.k8s.io/decision"], told["authorization.k8s.io/reason"] = "forbid", ""
        decision = self._authorizer.require(actor.user, actor.groups, exchange.info)
        told["authorization.k8s.io/decision"], told["authorization.k8s.io/reason"] = "allow", decision.reason

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
            self._audit_received(exchange)
            return ANONYMOUS
        try:
            actor = await self._authenticator.authenticate(exchange.headers.get("authorization", ""), scope.get("muster.peer"))
        except Unauthorized as error:
            if isinstance(error, CredentialsRefused):
                exchange.annotations["muster.dev/refused"] = error.why
            self._logins["failure"]()
            raise
        if actor is None:
            self._logins["none"]()
            if exchange.info.path not in OPEN_PATHS or exchange.method not in ("GET", "HEAD"):
                raise Unauthorized("Unauthorized")
            exchange.actor = ANONYMOUS
            self._audit_received(exchange)
            return ANONYMOUS
        self._logins["success"]()
        exchange.actor = actor
        self._audit_received(exchange)
        if any(name.startswith(b"impersonate-") for name, _ in scope["headers"]):
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
            exchange.impersonator = actor
            actor = exchange.actor = impersonated(actor, headers, self._authorizer)
        return actor

    async def _handle(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send, *, body: bytes = b"") -> None:
        assert exchange.actor is not None
        request = Request(
            method=exchange.method,
            info=exchange.info,
            query=exchange.query,
            headers=exchange.headers,
            actor=exchange.actor,
            request_id=exchange.id,
            limits=self._limits,
            body=body,
            turn=functools.partial(self._flow.turn, exchange.whose, PIECE_COST),
            pace=functools.partial(self._pace, exchange, scope),
            client=exchange.address,
        )
        request.notes = exchange.notes  # also of requests that are refused
        NOTES.set(exchange.notes)
        if exchange.telling is not None and exchange.telling.level >= Level.REQUEST:
            exchange.request_body = body
        if exchange.info.is_write:
            answer = await self._within_time(request, exchange.started_s + self._limits.request_timeout_s)
        else:
            answer = await self._handlers.handle(request)
        if isinstance(answer, Stream):
            await self._stream(exchange, scope, receive, send, answer)
        else:
            await self._send(exchange, scope, send, answer, request.warnings)

    async def _within_time(self, request: Request, until_s: float) -> Response | Stream:
        """Reads come from memory and wait for nothing but their turn; a write waits for hooks and for the disk."""
        try:
            async with asyncio.timeout_at(until_s):
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
        if exchange.telling is not None and exchange.telling.level is Level.REQUEST_RESPONSE and _is_object(response):
            exchange.response_body = body
        headers = [
            (b"audit-id", exchange.id.encode()),
            (b"cache-control", b"no-cache, private"),
            (b"content-type", response.content_type.encode()),
            *((name.encode(), value.encode()) for name, value in response.headers),
            *((b"warning", warning) for warning in self._warnings(warnings)),
        ]
        if response.pieces is None and len(body) <= _SMALL_BYTES:
            exchange.code, exchange.reason = response.code, response.reason
            headers.append((b"content-length", str(len(body)).encode()))
            if not scope["muster.respond"](response.code, headers, body):
                await self._send_parts(scope, send, response.code, headers, body)
            return
        # What is left is up to the client; its bytes are bounded, so it needs no seat for that.
        if exchange.ticket is not None:
            self._flow.give_back(exchange.ticket)
        size = response.size_bytes if response.pieces is not None else len(body)
        is_packed = size >= self._limits.gzip_bytes_min and "gzip" in exchange.headers.get("accept-encoding", "")
        if is_packed:
            headers += [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
        user = exchange.actor.user if exchange.actor else ""
        with self._flow.sending(user, size, may_refuse=not exchange.info.is_write):
            if response.pieces is not None:
                if response.is_exact and not is_packed:
                    headers.append((b"content-length", str(size).encode()))
                exchange.code, exchange.reason = response.code, response.reason
                await send({"type": "http.response.start", "status": response.code, "headers": headers})
                pieces = _beside(response.pieces) if response.is_slow else _on_loop(response.pieces)
                await self._send_pieces(exchange, scope, send, pieces, is_packed=is_packed)
                return
            if is_packed:
                body = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL)
            headers.append((b"content-length", str(len(body)).encode()))
            exchange.code, exchange.reason = response.code, response.reason
            await self._send_parts(scope, send, response.code, headers, body)

    async def _send_pieces(
        self, exchange: Exchange, scope: Scope, send: Send, pieces: AsyncIterator[bytes], *, is_packed: bool
    ) -> None:
        """Each piece is made in a turn of its own, and compressed beside the loop."""
        pack = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WBITS) if is_packed else None
        gathered: list[bytes] = []
        size = 0
        if exchange.method != "HEAD":
            async for piece in pieces:
                gathered.append(piece)
                size += len(piece)
                if size >= _PART_BYTES:
                    part = b"".join(gathered)
                    gathered, size = [], 0
                    if pack is not None:
                        part = await asyncio.to_thread(pack.compress, part)
                    if part and not await self._pass_on(scope, send, part, more=True):
                        return
                await self._flow.turn(exchange.whose, PIECE_COST)
        last = b"".join(gathered)
        if pack is not None:
            last = pack.compress(last) + pack.flush()
        await self._pass_on(scope, send, last, more=False)

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
        scope["muster.connection"].buffer(_STREAM_BUFFER_BYTES)
        watchdog = asyncio.get_running_loop().create_task(_close_on_disconnect(receive, stream))
        try:
            exchange.code, exchange.is_long = stream.code, True
            self._audit_stage(exchange, Stage.STARTED, 0.0)
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
            scope["muster.connection"].buffer(_BUFFER_BYTES)
            watchdog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watchdog

    async def _pace(self, exchange: Exchange, scope: Scope) -> None:
        """Before the next events of a stream. A client that does not read gets no more; one that reads nothing for too long,
        or while too much is unread already, is cut."""
        connection = scope["muster.connection"]
        if connection.is_paused:
            user = exchange.actor.user if exchange.actor else ""
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
        self._audit_stage(exchange, Stage.PANIC if exchange.is_fault else Stage.COMPLETE, seconds)

    # --- the audit log

    def _telling(self, exchange: Exchange) -> Telling:
        """What the policy says, asked once: about who authenticated, before they act as somebody else."""
        if exchange.telling is None:
            actor = exchange.actor
            user, groups = (actor.user, actor.groups) if actor is not None else ("", ())
            exchange.telling = self._audit_policy.telling(user, groups, exchange.info)
        return exchange.telling

    def _audit_received(self, exchange: Exchange) -> None:
        if self._audit is not None and self._telling(exchange).tells(Stage.RECEIVED):
            self._audit.write(audit_events.event(exchange, Stage.RECEIVED, self._telling(exchange), self._clock()))

    def _audit_stage(self, exchange: Exchange, stage: Stage, seconds: float) -> None:
        if self._audit is None:
            return
        now, telling = self._clock(), self._telling(exchange)
        if self._audit.listener is not None:
            self._audit.listener(audit_events.entry(exchange, stage, exchange.method, seconds, now))
        if telling.tells(stage):
            bodies = audit_events.bodies(exchange, telling) if stage is not Stage.STARTED else None
            self._audit.write(audit_events.event(exchange, stage, telling, now), bodies)


def _is_object(response: Response) -> bool:
    """Rather than the text of a log."""
    return response.content_type.startswith(("application/json", "application/yaml"))


async def _on_loop(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _beside(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


def _replayed(body: bytes, receive: Receive) -> Receive:
    """What gives a body that was read already to somebody who wants to read it."""
    is_first = True

    async def again() -> dict[str, Any]:
        nonlocal is_first
        if is_first:
            is_first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


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
