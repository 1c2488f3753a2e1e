"""`pods/log`: the log of a container, asked of the agent of the node that the pod is bound to, and passed on as it comes.

The agent is found by the Node's address and `daemonEndpoints.kubeletEndpoint.Port`. Both sides show a certificate of this
server's CA: ours is `system:apiserver`; the agent's must be for the node's name, and one that the Node lists as good
(`node_index`). Both are checked in the handshake, before anything is sent.

What the user can mend (no such container, not started yet) is answered as Kubernetes words it, without asking the agent.

Concurrency: on the event loop. A log is read from the agent only as fast as the client takes it; whichever side goes away, the
connection to the other is closed. Limits: `node_logs_max` at once, time to connect, time to answer, silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from muster.objects.conditions import find_condition
from muster.objects.rules.report import obj, text
from muster.objects.status import (
    ApiError,
    BadRequest,
    Cause,
    InternalError,
    Invalid,
    MethodNotAllowed,
    NotFound,
    Raw,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
)
from muster.objects.time import parse_time
from muster.server.config import ServerLimits
from muster.server.exchange import Query, Request, Response, Stream
from muster.server.metrics import Metrics
from muster.server.node_index import NodeIndex, serial_of_peer
from muster.server.pki import Pki
from muster.store.embedded import EmbeddedStore

ANSWER_TIMEOUT_S: Final = 30.0
"""From the request to the first byte of the answer."""
_ADDRESS_TYPES: Final = ("InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname")
_ERROR_BYTES_MAX: Final = 4096
_CONTENT_TYPE: Final = "text/plain"


class NodeLogs:
    """Handles `pods/NAME/log`. `close` ends what is under way."""

    def __init__(self, store: EmbeddedStore, pki: Pki, nodes: NodeIndex, *, limits: ServerLimits, metrics: Metrics) -> None:
        self._store = store
        self._pki = pki
        self._nodes = nodes
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
        pod = self._store.get_record(self._store.catalog.by_kind("", "Pod"), info.name, info.namespace).raw()
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
            url = self._url(pod, node, container, query)
            answer = await self._ask(node, url)
        except BaseException:
            self._under_way -= 1
            raise
        return self._passed_on(answer)

    # --- the node

    def _url(self, pod: Raw, node: str, container: str, query: Mapping[str, str]) -> URL:
        place = f'the logs of pod "{text(obj(pod, "metadata"), "name")}" are on node "{node:.253}"'
        try:
            raw = self._store.get_record(self._store.catalog.by_kind("", "Node"), node).raw()
        except NotFound:
            raise ServiceUnavailable(f"{place}, which is gone: its Node was deleted", kind="pods") from None
        address, port = endpoint_of(raw)
        if not address or not port:
            raise ServiceUnavailable(f"{place}, and no agent of that node is connected to this server", kind="pods")
        metadata = obj(pod, "metadata")
        path = "/".join(("/containerLogs", text(metadata, "namespace"), text(metadata, "name"), container))
        try:
            return URL.build(scheme="https", host=address, port=port, path=path, query={**query, "uid": text(metadata, "uid")})
        except ValueError:
            raise ServiceUnavailable(f"{place}, whose address {address!r:.80} makes no sense", kind="pods") from None

    async def _ask(self, node: str, url: URL) -> aiohttp.ClientResponse:
        at = f'the agent of node "{node}" at {url.host!s:.253}:{url.port}'
        session = self._opened()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await session.get(url, ssl=self._tls(node), server_hostname=node, allow_redirects=False)
        except aiohttp.ClientConnectorCertificateError as error:
            why = error.certificate_error
            raise InternalError(f"{at}: it has no certificate of this server's for that node ({why}); let it join") from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise InternalError(f"{at}: no secure connection: {error}") from error
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:  # ValueError: a host that no name can be
            raise ServiceUnavailable(f"{at} does not answer ({_why(error)}){self._state(node)}", retry_after_s=5) from error
        try:
            if answer.status != 200:
                raise await _refusal(at, answer)
        except BaseException:
            answer.close()
            raise
        return answer

    def _state(self, node: str) -> str:
        try:
            raw = self._store.get_record(self._store.catalog.by_kind("", "Node"), node).raw()
        except NotFound:
            return "; its Node was deleted meanwhile"
        ready = find_condition(obj(raw, "status").get("conditions"), "Ready") or {}
        return "" if ready.get("status") == "True" else f"; the node is not ready: {ready.get('reason') or 'Unknown'}"

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

    def _tls(self, node: str) -> ssl.SSLContext:
        """For one connection: besides the name, the certificate must be one of those that are good now."""
        nodes = self._nodes

        class Checked(ssl.SSLObject):
            def do_handshake(self) -> None:
                super().do_handshake()
                try:
                    nodes.check_certificate(node, serial_of_peer(self.getpeercert()))
                except Unauthorized as error:
                    raise ssl.SSLCertVerificationError(1, error.message) from error

        context = self._pki.client_context()
        context.sslobject_class = Checked
        return context

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


def _why(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error  # what is around it tells of objects of this process
    return str(error)[:200] or "no answer in time"


async def _refusal(at: str, answer: aiohttp.ClientResponse) -> ApiError:
    """What the agent said, as an error of ours."""
    said = b""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            said = await answer.content.read(_ERROR_BYTES_MAX)
    message = _message(said)
    if answer.status == 404:
        return NotFound(message)
    if answer.status == 400:
        return BadRequest(message)
    if answer.status == 429:
        return TooManyRequests(message, retry_after_s=5)
    return InternalError(f"{at} answered {answer.status}: {message}")


def _message(said: bytes) -> str:
    try:
        decoded = msgspec.json.decode(said)
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    found = decoded.get("message") if isinstance(decoded, dict) else None
    clean = found if isinstance(found, str) else said.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in clean).strip()[:1000] or "nothing more"


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


def choose_container(pod: Raw, name: str) -> str:
    spec, pod_name = obj(pod, "spec"), text(obj(pod, "metadata"), "name")
    own, initial = _names(spec, "containers"), _names(spec, "initContainers")
    if name:
        if name not in (*own, *initial, *_names(spec, "ephemeralContainers")):
            raise BadRequest(f"container {name[:80]} is not valid for pod {pod_name}")
        return name
    if len(own) == 1:
        return own[0]
    also = f" or one of the init containers: [{' '.join(initial)}]" if initial else ""
    raise BadRequest(f"a container name must be specified for pod {pod_name}, choose one of: [{' '.join(own)}]{also}")


def _names(spec: Raw, key: str) -> list[str]:
    found: Any = spec.get(key)
    return [text(one, "name") for one in found if isinstance(one, dict)] if isinstance(found, list) else []


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


def endpoint_of(node: Raw) -> tuple[str, int]:
    """Where the agent of a node listens: address and port; "" and 0 when it does not say."""
    status = obj(node, "status")
    found: Any = status.get("addresses")
    addresses = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    port: Any = obj(obj(status, "daemonEndpoints"), "kubeletEndpoint").get("Port")
    for type_ in _ADDRESS_TYPES:
        for one in addresses:
            if one.get("type") == type_ and text(one, "address"):
                return text(one, "address"), port if isinstance(port, int) and 0 < port < 65536 else 0
    return "", 0
