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
import functools
import itertools
import os
from collections.abc import Callable
from typing import Any, Final

import msgspec

from muster.objects.status import ApiError, BadRequest, InternalError, Timeout, Unauthorized
from muster.objects.time import Clock
from muster.server.answering import Answering, failure
from muster.server.audit import NOTES, AuditLog
from muster.server.audit_policy import DEFAULT, Level, Policy, Stage
from muster.server.audit_trail import AuditTrail
from muster.server.authentication import ANONYMOUS, OPEN_PATHS, Authenticator, CredentialsRefused, impersonated
from muster.server.authorization import Authorizer
from muster.server.bodies import Bodies
from muster.server.config import ServerLimits
from muster.server.exchange import Answer, Query, Receive, Request, Response, Scope, Send, Stream
from muster.server.flow import Flow
from muster.server.handlers import ResourceHandlers
from muster.server.logs import logger
from muster.server.metrics import Metrics
from muster.server.one_request import Exchange
from muster.server.paths import RequestInfo, request_info
from muster.server.priority import PIECE_COST, READ_COST, RULES_PER_COST, TURN_COST_MAX, whose
from muster.server.protocol import release
from muster.store.embedded.admission import Actor

log = logger(__name__)
CONNECTIONS: Final = frozenset({"exec", "portforward"})
_LONG: Final = CONNECTIONS | {"log"}
"""Subresources whose answers have no end of their own: like watches, they hold a slot and no seat."""
Asgi = Callable[[Any, Any, Any], Any]


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
        self._handlers = handlers
        self._routes = routes
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._flow = flow
        self._bodies = Bodies(limits, metrics, flow.bodies)
        self.trail = AuditTrail(audit, audit_policy, clock)
        self.answering = Answering(flow, self.trail, metrics, limits)
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        start = os.urandom(4).hex()
        self._ids = (f"{start}-{number:x}" for number in itertools.count(1))
        self._logins = {result: metrics.authentication.labels(result).inc for result in ("success", "failure", "none")}

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
                await self.answering.send(exchange, scope, send, failure(exchange, error), [])
        finally:
            release(scope)
            self._finish(exchange, loop.time() - exchange.started_s)

    # --- the steps

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        self._read_url(exchange, scope)
        actor = await self._identify(exchange, scope)
        info = exchange.info
        exchange.whose = whose(actor, info, exchange.address)
        if info.path not in OPEN_PATHS and not exchange.is_joining:
            cost = self._authorizer.rules_len(actor.user, actor.groups, info.namespace) / RULES_PER_COST
            if cost > TURN_COST_MAX:
                await self._flow.begin(exchange.whose, cost)
            self._authorize(exchange, actor, info)
        if info.verb == "watch" or info.subresource in _LONG:
            if info.subresource in CONNECTIONS and info.verb != "create":
                # A WebSocket is opened with GET, and yet is no reading: who may only read opens no shell, as in Kubernetes.
                self._authorize(exchange, actor, msgspec.structs.replace(info, verb="create"))
            with self._flow.watch(actor.user):
                await self._flow.begin(exchange.whose, READ_COST)
                await self._handle(exchange, scope, receive, send)
            return
        with self._bodies.hold(actor.user) as held:
            body = b""
            if info.is_write and not exchange.is_joining:  # joining has bounds of its own, which are narrower
                body = await self._bodies.read(receive, exchange.headers, actor.user, held)
            ticket = exchange.ticket = await self._flow.start(exchange.whose, is_write=info.is_write, body_bytes=len(body))
            try:
                if info.is_resource:
                    await self._handle(exchange, scope, receive, send, body=body)
                else:
                    await self._route(exchange, scope, receive if exchange.is_joining else _replayed(body, receive), send)
            finally:
                self._flow.give_back(ticket)

    def _authorize(self, exchange: Exchange, actor: Actor, info: RequestInfo) -> None:
        told = exchange.annotations
        told["authorization.k8s.io/decision"], told["authorization.k8s.io/reason"] = "forbid", ""
        decision = self._authorizer.require(actor.user, actor.groups, info)
        told["authorization.k8s.io/decision"], told["authorization.k8s.io/reason"] = "allow", decision.reason
        exchange.only = decision.only

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
            self.trail.received(exchange)
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
            self.trail.received(exchange)
            return ANONYMOUS
        self._logins["success"]()
        exchange.actor = actor
        self.trail.received(exchange)
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
            pace=functools.partial(self.answering.pace, exchange, scope),
            client=exchange.address,
            only=exchange.only,
        )
        request.notes = exchange.notes  # also of requests that are refused
        NOTES.set(exchange.notes)
        if exchange.telling is not None and exchange.telling.level >= Level.REQUEST:
            exchange.request_body = body
        if exchange.info.is_write:
            answer = await self._within_time(request, exchange.started_s + self._limits.request_timeout_s)
        else:
            answer = await self._handlers.handle(request)
        if isinstance(answer, Response):
            await self.answering.send(exchange, scope, send, answer, request.warnings)
        elif isinstance(answer, Stream):
            await self.answering.stream(exchange, scope, receive, send, answer)
        else:
            await self.answering.tunnel(exchange, scope, receive, answer)

    async def _within_time(self, request: Request, until_s: float) -> Answer:
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
            if message["type"] != "http.response.start":
                await send(message)
                return
            exchange.code = message["status"]
            if scope["muster.connection"].is_paused:
                self.answering.give_way(exchange)
            headers = [*message.get("headers", []), (b"audit-id", exchange.id.encode())]
            await self.answering.begin(scope, send, exchange.code, headers)

        await self._routes(scope, receive, stamped)

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
        self.trail.reached(exchange, Stage.PANIC if exchange.is_fault else Stage.COMPLETE, seconds)


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


def _only_name(selector: str) -> str:
    """The name in `metadata.name=x`, when the selector asks for exactly one: RBAC may allow just that object."""
    for term in selector.split(","):
        key, _, value = term.partition("=")
        if key.strip() == "metadata.name" and value:
            return value.lstrip("=").strip()
    return ""
