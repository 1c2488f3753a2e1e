"""The HTTPS client that asks admission webhooks: one POST, one answer, within time, size and number.

No redirect is followed, no proxy of the environment is used, no compressed answer is unpacked. The certificate must be for the
host of the URL or for `<service>.<namespace>.svc`, and vouched for by the webhook's `caBundle`; without one, by the system's
roots. Whatever certificate is in the bundle is trusted, one between a root and the webhook's own too, and what is in it besides
certificates is skipped, as Kubernetes does. Any address may be called, loopback and private ones too: whoever may write webhook
configurations is trusted that far.

A call that is given up drops its connection at once: to close it in TLS's orderly way is to wait until the other side agrees,
which one that goes on sending never does.

Concurrency: on the event loop, one task per call. Calls of one webhook wait for each other beyond `webhook_calls_at_once_max`;
who would wait behind too many others is refused (`TooManyRequests`), so a webhook that hangs never takes all slots.
Whatever else goes wrong is `CallFailed`, in the words that Kubernetes' users know.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import math
import ssl
from collections.abc import AsyncIterator, Hashable
from typing import Any, Final, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.connector import Connection
from yarl import URL

from muster.objects.status import BadRequest, TooManyRequests
from muster.server.certificates import certificates_in
from muster.server.config import ServerLimits
from muster.server.decoding import decode_json
from muster.server.metrics import Metrics
from muster.server.webhook_matching import CallFailed, Hook
from muster.server.webhook_services import Address, Resolve, Unresolved

_TRIED_MAX: Final = 3
"""Addresses of one service that a call tries, as long as nobody took the connection."""
_SHOWN_CHARS_MAX: Final = 200
_SLACK_S: Final = 1.0
"""All webhooks of a write have as long as a single one may take: so much of that may be gone before the first is asked."""
_IDLE_S: Final = 30.0
_DNS_CACHE_S: Final = 10
_CONTEXTS_MAX: Final = 256
_SAID: Final = {
    401: "the server has asked for the client to provide credentials",
    403: "the server does not allow this request",
    404: "the server could not find the requested resource",
    405: "the server does not allow this method on the requested resource",
    413: "the request is too large for the server",
    429: "the server has received too many requests and has asked us to try again later",
}


class _Lane:
    """The calls of one webhook."""

    __slots__ = ("calls", "slots")

    def __init__(self, at_once_max: int) -> None:
        self.calls = 0
        self.slots = asyncio.Semaphore(at_once_max)


class _Response(aiohttp.ClientResponse):
    """One whose connection is dropped when its head never comes, or not as it should."""

    async def start(self, connection: Connection) -> Self:
        transport = connection.transport
        try:
            return await super().start(connection)  # type: ignore[return-value]  # itself
        except BaseException:
            _drop(transport)
            raise


class Caller:
    def __init__(self, resolve: Resolve, *, limits: ServerLimits, metrics: Metrics) -> None:
        self._resolve = resolve
        self._limits = limits
        self._metrics = metrics
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._lanes: dict[Hashable, _Lane] = {}

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(self, hook: Hook, body: bytes, deadline: float) -> Any:
        """The JSON that the webhook answers with. Raises CallFailed; TooManyRequests when too many calls are under way; and
        TimeoutError when the webhook had no more time than until `deadline`, which is less than its own.

        Its time begins when it has a slot: that this server is busy is no failure of the webhook, and opens none that fails
        open.
        """
        async with self._lane(hook, deadline):
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s < hook.timeout_s - _SLACK_S:
                async with asyncio.timeout_at(deadline):
                    return await self._call(hook, body, left_s)
            return await self._call(hook, body, hook.timeout_s)

    async def _call(self, hook: Hook, body: bytes, timeout_s: float) -> Any:
        url, server_name = address_of(hook)
        url = url.with_query(timeout=f"{max(1, math.ceil(timeout_s))}s")
        post = f'failed to call webhook: Post "{_shown(hook, url)}"'
        try:
            async with asyncio.timeout(hook.timeout_s):
                context = await self._context(hook.ca_bundle)
                try:
                    return await self._post(hook, url, server_name, body, context)
                except Unresolved as error:
                    raise CallFailed(f"{post}: {error}") from error
                except (aiohttp.ClientError, OSError, ValueError) as error:
                    raise CallFailed(f"{post}: {_why(error)}") from error
        except TimeoutError:
            raise CallFailed(f"{post}: context deadline exceeded") from None

    @contextlib.asynccontextmanager
    async def _lane(self, hook: Hook, deadline: float) -> AsyncIterator[None]:
        limits = self._limits
        lane = self._lanes.get(hook.key)
        if lane is None:
            lane = self._lanes[hook.key] = _Lane(limits.webhook_calls_at_once_max)
        if lane.calls >= limits.webhook_calls_per_hook_max:
            raise self._too_many(hook, lane, "the most this server takes")
        lane.calls += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await lane.slots.acquire()
            except TimeoutError:
                raise self._too_many(hook, lane, "and the turn of this one did not come in time") from None
            try:
                yield
            finally:
                lane.slots.release()
        finally:
            lane.calls -= 1
            if lane.calls == 0:
                self._lanes.pop(hook.key, None)

    def _too_many(self, hook: Hook, lane: _Lane, what: str) -> TooManyRequests:
        self._metrics.refused.labels("webhook_calls_per_hook_max").inc()
        return TooManyRequests(
            f'{lane.calls} requests wait for the admission webhook "{hook.name}", {what} '
            "(webhook_calls_per_hook_max); try again later",
            retry_after_s=1,
        )

    # --- TLS

    async def _context(self, ca_bundle: str) -> ssl.SSLContext:
        found = self._contexts.get(ca_bundle)
        if found is None:
            try:
                # The system's roots are a hundred files and more.
                found = await asyncio.to_thread(_new_context, ca_bundle) if not ca_bundle else _new_context(ca_bundle)
            except (ssl.SSLError, ValueError, binascii.Error, OSError) as error:
                why = str(error) or "unable to parse bytes as PEM block"
                raise CallFailed(f"could not get REST client: unable to load root certificates: {why}") from error
            if len(self._contexts) >= _CONTEXTS_MAX:
                self._contexts.clear()
            self._contexts[ca_bundle] = found
        return found

    # --- HTTP

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,  # the lanes bound them: here the calls of one webhook would wait for another that hangs
                keepalive_timeout=_IDLE_S,
                ttl_dns_cache=_DNS_CACHE_S,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                response_class=_Response,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    async def _post(self, hook: Hook, url: URL, server_name: str, body: bytes, context: ssl.SSLContext) -> Any:
        if hook.service is None:
            return await self._answer(url, url, server_name, body, context)
        last: aiohttp.ClientConnectorError | None = None
        for host, port in self._resolve(hook.service)[:_TRIED_MAX]:
            try:
                return await self._answer(url, _at(url, (host, port)), server_name, body, context)
            except aiohttp.ClientConnectorCertificateError:
                raise
            except aiohttp.ClientConnectorError as error:  # nothing was sent, so another may be asked
                last = error
        assert last is not None
        raise last

    async def _answer(self, url: URL, at: URL, server_name: str, body: bytes, context: ssl.SSLContext) -> Any:
        headers = {
            "Host": _authority(url),
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "muster-admission",
        }

        async def post() -> tuple[int, bytes]:
            async with self._opened().post(
                at, data=body, headers=headers, ssl=context, server_hostname=server_name, allow_redirects=False
            ) as response:
                transport = response.connection and response.connection.transport
                try:
                    return response.status, await self._read(response)
                except BaseException:
                    _drop(transport)
                    raise

        try:
            status, answer = await post()
        except aiohttp.ServerDisconnectedError:
            # It had closed a connection that was kept for later. Webhooks must expect to be asked twice.
            status, answer = await post()
        if not 200 <= status <= 206:
            raise CallFailed(f"failed to call webhook: {_refused(status, answer)}")
        try:
            return decode_json(answer, depth_max=self._limits.json_depth_max)
        except BadRequest as error:
            raise CallFailed(f"failed to call webhook: couldn't get version/kind; json parse error: {error.message}") from error

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        bound = self._limits.webhook_answer_bytes_max
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > bound:
                raise CallFailed(f"failed to call webhook: the answer is larger than {bound} bytes")
            parts.append(part)
        return b"".join(parts)


def address_of(hook: Hook) -> tuple[URL, str]:
    """The URL as it is shown and sent, and the name that the certificate must be for. CallFailed when there is none."""
    if hook.service is not None:
        service = hook.service
        host = f"{service.name}.{service.namespace}.svc"
        return URL(f"https://{host}:{service.port}/{service.path.lstrip('/')}", encoded=True), host
    try:
        parts = urlsplit(hook.url)
        url = URL(hook.url, encoded=True)
        if parts.scheme != "https" or not url.host or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("it must be https://host[:port][/path]")
    except ValueError as error:
        raise CallFailed(f"could not get REST client: url {hook.url[:_SHOWN_CHARS_MAX]!r}: {error}") from error
    return url, url.host


def _shown(hook: Hook, url: URL) -> str:
    if hook.service is None:
        return str(url)
    return f"https://{url.host}:{hook.service.port}{url.raw_path_qs}"  # with the port also where it goes without saying


def _at(url: URL, address: Address) -> URL:
    host, port = address
    return url.with_host(host).with_port(port)


def _authority(url: URL) -> str:
    host = url.host or ""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).version == 6:
            host = f"[{host}]"
    return host if url.port in (None, 443) else f"{host}:{url.port}"


def _new_context(ca_bundle: str) -> ssl.SSLContext:
    if not ca_bundle:
        context = ssl.create_default_context()
    else:
        context = ssl.create_default_context(cadata=_certificates(base64.b64decode(ca_bundle, validate=True)))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The same with every Python: since 3.13 the first is on by itself, and also the second, which refuses certificates without
    # extensions that Kubernetes does not ask for.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    return context


def _certificates(pem: bytes) -> bytes:
    """Those in a bundle, in DER. ValueError when there is none."""
    found = certificates_in(pem)
    if not found:
        raise ValueError("unable to parse bytes as PEM block: there is no certificate in caBundle")
    return b"".join(found)


def _drop(transport: asyncio.Transport | None) -> None:
    if transport is not None:
        transport.abort()


def _refused(status: int, answer: bytes) -> str:
    said = answer[:_SHOWN_CHARS_MAX].decode(errors="replace").strip()
    if 300 <= status < 400:
        return f"the webhook answered with a redirect (HTTP {status}), which is not followed"
    if status in _SAID:
        return _SAID[status]
    if status >= 500:
        quoted = msgspec.json.encode(said or "unknown").decode()
        return f"an error on the server ({quoted}) has prevented the request from succeeding"
    return f"the server rejected our request for an unknown reason (HTTP {status})"


def _why(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"dial tcp: lookup {error.host}: no such host"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        found = error.certificate_error
        return f"tls: failed to verify certificate: x509: {getattr(found, 'verify_message', '') or found}"
    if isinstance(error, aiohttp.ClientConnectorError):
        if isinstance(error.os_error, ConnectionRefusedError):
            return f"dial tcp {error.host}:{error.port}: connect: connection refused"
        why = error.os_error.strerror or str(error.os_error)
        return f"dial tcp {error.host}:{error.port}: {why}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "unexpected EOF"
    return (str(error) or type(error).__name__)[:_SHOWN_CHARS_MAX]
