"""`pods/log`: the log of a container, asked of the agent of the node that the pod is bound to, and passed on as it comes.

How that agent is found, and who it must be, is in `node_agents`. What the user can mend (no such container, not started yet) is
answered as Kubernetes words it, without asking the agent.

Concurrency: on the event loop. A log is read from the agent only as fast as the client takes it; whichever side goes away, the
connection to the other is closed. Limits: `node_logs_max` at once, time to connect, time to answer, silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
from yarl import URL

from muster.objects.rules.report import obj, text
from muster.objects.status import ApiError, BadRequest, Cause, Invalid, MethodNotAllowed, Raw, TooManyRequests
from muster.objects.time import parse_time
from muster.server import node_agents
from muster.server.config import ServerLimits
from muster.server.exchange import Query, Request, Response, Stream
from muster.server.metrics import Metrics
from muster.server.node_agents import NodeAgents, choose_container, place_of, refusal

_CONTENT_TYPE: Final = "text/plain"


class NodeLogs:
    """Handles `pods/NAME/log`. `close` ends what is under way."""

    def __init__(self, agents: NodeAgents, *, limits: ServerLimits, metrics: Metrics) -> None:
        self._agents = agents
        self._limits = limits
        self._metrics = metrics
        self._session: aiohttp.ClientSession | None = None
        self._under_way = 0

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __call__(self, request: Request) -> Response | Stream:
        info = request.info
        if info.verb != "get":
            raise MethodNotAllowed(
                f"the server does not allow {info.verb} on pods/log; allowed: get", kind="pods", name=info.name
            )
        pod = self._agents.pod(info.name, info.namespace)
        query = read_query(request.query)
        container = choose_container(pod, request.query.text("container"))
        node = text(obj(pod, "spec"), "nodeName")
        if not node:
            raise BadRequest(f'pod "{info.name}" has no node yet, so it has no logs; see `kubectl describe pod {info.name}`')
        if why := waiting_reason(pod, container):
            raise BadRequest(f'container "{container}" in pod "{info.name}" is waiting to start: {why}')
        if self._under_way >= self._limits.node_logs_max:
            self._metrics.refused.labels("node_logs_max").inc()
            raise TooManyRequests(
                f"{self._under_way} logs are being read, the most this server does; try later", retry_after_s=5
            )
        self._under_way += 1
        try:
            path = ("containerLogs", info.namespace, info.name, container)
            url = self._agents.url(pod, path, query.items(), f'the logs of pod "{info.name}" are')
            answer = await self._ask(node, url)
        except BaseException:
            self._under_way -= 1
            raise
        return self._passed_on(answer)

    # --- the node

    async def _ask(self, node: str, url: URL) -> aiohttp.ClientResponse:
        session = self._opened()
        try:
            async with asyncio.timeout(node_agents.ANSWER_TIMEOUT_S):
                answer = await session.get(url, ssl=self._agents.tls(node), server_hostname=node, allow_redirects=False)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:  # ValueError: a host that no name can be
            raise self._agents.failure(node, url, _cause(error)) from error
        try:
            if answer.status != 200:
                raise await _refusal(place_of(node, url), answer)
        except BaseException:
            answer.close()
            raise
        return answer

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # One connection for each log: none is used for another, so that each is checked by its own certificate.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            timeout = aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._limits.node_connect_timeout_s,
                sock_read=self._limits.node_silence_timeout_s,
            )
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    # --- the log

    def _passed_on(self, answer: aiohttp.ClientResponse) -> Stream:
        is_closed = False

        def close() -> None:
            nonlocal is_closed
            if not is_closed:
                is_closed = True
                self._under_way -= 1
                answer.close()

        async def chunks() -> AsyncIterator[bytes]:
            try:
                # What waits here is bounded by the reader's buffer: the agent is read no faster than the client takes it.
                async for chunk in answer.content.iter_any():
                    yield chunk
            except (aiohttp.ClientError, OSError, TimeoutError):
                if not is_closed:
                    raise  # the client must see that this is not the end of the log
            finally:
                close()

        return Stream(chunks=chunks(), close=close, content_type=_CONTENT_TYPE)


def _cause(error: Exception) -> Exception:
    """What is around it tells of objects of this process."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return error.certificate_error
    return error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error


async def _refusal(at: str, answer: aiohttp.ClientResponse) -> ApiError:
    said = b""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(node_agents.ANSWER_TIMEOUT_S):
            said = await answer.content.read(node_agents.ERROR_BYTES_MAX)
    return refusal(at, answer.status, said)


# -- what was asked, and of what ----------------------------------------------------------------------------------------------


def read_query(query: Query) -> dict[str, str]:
    """The options of a log, checked, as the agent takes them."""
    found: dict[str, str] = {}
    for name in ("follow", "previous", "timestamps"):
        if query.flag(name):
            found[name] = "true"
    for name, least in (("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)):
        number = query.integer(name)
        if number is None:
            continue
        if number < least:
            raise _bad_option(name, f"Invalid value: {number}: must be greater than or equal to {least}")
        found[name] = str(number)
    since = query.text("sinceTime")
    if since:
        if "sinceSeconds" in found:
            raise _bad_option("sinceSeconds", "at most one of `sinceTime` or `sinceSeconds` may be specified")
        try:
            parse_time(since)
        except ValueError:
            raise BadRequest(f"sinceTime={since[:80]!r} is no time; write it like 2006-01-02T15:04:05Z") from None
        found["sinceTime"] = since
    return found


def _bad_option(field: str, why: str) -> Invalid:
    return Invalid(f'PodLogOptions "" is invalid: {field}: {why}', kind="PodLogOptions", causes=[Cause(field, why)])


def waiting_reason(pod: Raw, container: str) -> str:
    """Why this container has never started yet, as its status says; "" when it has, or when that is not known."""
    status = obj(pod, "status")
    for key in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        found: Any = status.get(key)
        for one in found if isinstance(found, list) else ():
            if isinstance(one, dict) and one.get("name") == container:
                waiting = obj(obj(one, "state"), "waiting")
                has_run = bool(one.get("restartCount")) or bool(obj(one, "lastState"))
                return "" if has_run or not waiting else text(waiting, "reason") or "ContainerCreating"
    return ""
