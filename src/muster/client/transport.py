"""HTTP to one server: one aiohttp session, many requests in flight, bounded in every direction.

`request` sends, repeats within the budget (`retry`), and returns the whole answer or raises an `ApiError`. `stream` opens an
answer that goes on (a watch, a log) and is never repeated: its reader knows where to resume. Nothing here knows about kinds.

One `Transport` belongs to one event loop. Invariants: at most `in_flight_max` requests and `streams_max` streams are open; what
waits for a slot is counted and bounded; an attempt that may have reached the server is repeated only when the method is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from muster import __version__
from muster.client.config import ClientConfig, Impersonation
from muster.client.credentials import Credential, Credentials
from muster.client.errors import ClientBusy, CredentialError, ResponseTooLarge, Unreachable, error_from_answer
from muster.client.failures import HTTP_FAILURES, named, without_silent_repetition
from muster.client.kubeconfig_file import KubeconfigError
from muster.client.limiter import Limiter
from muster.client.messages import Request, Response
from muster.client.retry import RetryBudget, RetryPolicy, is_refusal, wait_before_retry_s
from muster.client.stats import TransportStats
from muster.client.stream import LineStream
from muster.client.tls import TlsSource
from muster.client.urls import UrlError, proxy_from_environment
from muster.objects.status import ApiError, BadRequest, Timeout, TooManyRequests, Unauthorized
from muster.objects.time import Clock, wall_clock

MIB = 1024 * 1024
_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')
"""`299 - "text"`, perhaps several with commas between."""


class TransportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Every bound of a client. Each shows in `TransportStats`."""

    in_flight_max: int = 256
    waiting_max: int = 20_000
    streams_max: int = 1024
    response_bytes_max: int = 512 * MIB
    error_bytes_max: int = MIB
    line_bytes_max: int = 16 * MIB
    """Of one watch event or log line."""
    timeout_s: float = 60.0
    """For a request with all its repetitions, unless the caller says otherwise."""
    connect_timeout_s: float = 10.0
    keep_alive_s: float = 60.0
    retry: RetryPolicy = RetryPolicy()


class Transport:
    """See the module. `on_warning` gets the text of each Warning header; `entropy` spreads repetitions."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        limits: TransportLimits | None = None,
        clock: Clock = wall_clock,
        entropy: Callable[[int], bytes] = os.urandom,
        environ: Mapping[str, str] = os.environ,
        on_warning: Callable[[str], None] | None = None,
        user_agent: str = f"muster/{__version__}",
    ) -> None:
        self.config = config
        self.limits = limits or TransportLimits()
        self.stats = TransportStats(
            in_flight_max=self.limits.in_flight_max,
            in_flight_limit=self.limits.in_flight_max,
            streams_max=self.limits.streams_max,
        )
        self.on_warning = on_warning
        self._credentials = Credentials(config, clock, environ=environ)
        self._tls = TlsSource(config.tls, clock) if config.server.startswith("https:") else None
        try:
            self._proxy = config.proxy_url or proxy_from_environment(config.server, environ)
        except UrlError as error:
            raise KubeconfigError(f"proxy of the environment: {error}; set NO_PROXY or proxy-url ({config.source})") from error
        self._entropy = entropy
        self._budget = RetryBudget(self.limits.retry)
        self._slots = Limiter(self.limits.in_flight_max)
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False
        self._headers = CIMultiDict([("User-Agent", user_agent), *_impersonation_headers(config.impersonate)])
        if not config.compression:
            self._headers["Accept-Encoding"] = "identity"

    async def close(self) -> None:
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def spread(self) -> float:
        """A number in [0, 1) that sets this client apart from others in the same trouble."""
        return int.from_bytes(self._entropy(4), "big") / 2**32

    async def request(self, request: Request, *, timeout_s: float | None = None) -> Response:
        """The answer, whole. Raises ApiError for everything else: refusals, timeouts, an unreachable server."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.limits.timeout_s if timeout_s is None else timeout_s)
        self._budget.deposit()
        self.stats.requests += 1
        is_renewed = False
        attempt = 1
        while True:
            try:
                credential = await self._credentials.current()
                return await self._attempt(request, credential, deadline - loop.time())
            except CredentialError:
                raise
            except Unauthorized as error:
                # Refused before anything was done, so even a write may go again, once, with a new credential.
                self.stats.failures += 1
                if is_renewed or not self._credentials.refused(credential):
                    raise
                is_renewed = True
                self._note_retry(error)
            except ApiError as error:
                self.stats.failures += 1
                wait_s = wait_before_retry_s(self.limits.retry, request.method, error, attempt, self.spread())
                if wait_s is None or (isinstance(error, TooManyRequests) and not request.retry_refusals):
                    raise
                if loop.time() + wait_s >= deadline:
                    raise  # the answer we have says more than the timeout that waiting would end in
                if not is_refusal(error) and not self._budget.withdraw():
                    self.stats.retries_refused += 1
                    raise
                attempt += 1
                self._note_retry(error)
                await asyncio.sleep(wait_s)

    @contextlib.asynccontextmanager
    async def stream(self, request: Request, *, timeout_s: float | None = None) -> AsyncIterator[LineStream]:
        """An answer that goes on, at most `timeout_s`. Raises as `request` does when it is refused.

        Its first byte must come within the time of an ordinary request; then it may be silent for as long as it likes.
        """
        if self.stats.streams >= self.limits.streams_max:
            raise ClientBusy(f"{request}: {self.limits.streams_max} streams are open already; close some, or raise streams_max")
        self.stats.streams += 1
        answer: aiohttp.ClientResponse | None = None
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        try:
            answer = await self._open_stream(request)
            self._note_warnings(answer.headers)
            failure = functools.partial(self._named, request)
            yield LineStream(answer.content, failure, self._label(request), self.limits.line_bytes_max, deadline)
        finally:
            self.stats.streams -= 1
            if answer is not None:
                answer.close()

    async def _open_stream(self, request: Request) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.limits.connect_timeout_s)
        is_renewed = False
        while True:
            credential = await self._credentials.current()
            try:
                async with asyncio.timeout(self.limits.timeout_s):
                    answer = await self._send(request, credential, timeout)
                    if answer.status < 300:
                        return answer
                    async with answer:  # what refuses is an ordinary answer, and must end like one
                        body = await _read_up_to(answer, self.limits.error_bytes_max)
            except HTTP_FAILURES as error:
                raise self._named(request, error) from error
            refusal = error_from_answer(answer.status, answer.headers, body, request=self._label(request))
            if is_renewed or not isinstance(refusal, Unauthorized) or not self._credentials.refused(credential):
                raise refusal
            is_renewed = True

    async def _attempt(self, request: Request, credential: Credential, remaining_s: float) -> Response:
        if self.stats.waiting >= self.limits.waiting_max:
            raise ClientBusy(f"{request}: {self.limits.waiting_max} requests wait for this client already; slow down")
        if self._slots.is_full:
            number, remaining_s = await self._wait_for_slot(request, remaining_s)
        else:
            number = await self._slots.acquire()
        self.stats.in_flight = self._slots.in_flight
        timeout = aiohttp.ClientTimeout(total=max(0.001, remaining_s), sock_connect=self.limits.connect_timeout_s)
        try:
            async with await self._send(request, credential, timeout) as answer:
                limit = self.limits.response_bytes_max if answer.status < 300 else self.limits.error_bytes_max
                body = await _read_up_to(answer, limit)
            if answer.status == TooManyRequests.code and request.retry_refusals:
                self._slots.refused(number)
            else:
                self._slots.succeeded()
        except HTTP_FAILURES as error:
            raise self._named(request, error) from error
        finally:
            self._slots.release()
            self.stats.in_flight, self.stats.in_flight_limit = self._slots.in_flight, int(self._slots.limit)
        self._note_warnings(answer.headers)
        if answer.status >= 300:
            raise error_from_answer(answer.status, answer.headers, body, request=self._label(request))
        return Response(answer.status, answer.headers, body)

    async def _wait_for_slot(self, request: Request, remaining_s: float) -> tuple[int, float]:
        """The number of the slot's request, and how much of `remaining_s` is left."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        self.stats.waiting += 1
        try:
            async with asyncio.timeout(max(0.0, remaining_s)):
                number = await self._slots.acquire()
        except TimeoutError:
            # Nothing was sent, yet more tries are pointless: the deadline is over.
            raise Timeout(f"{request}: no free slot among {self.limits.in_flight_max} within {remaining_s:g} s") from None
        finally:
            self.stats.waiting -= 1
        return number, remaining_s - (loop.time() - started)

    async def _send(self, request: Request, credential: Credential, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        headers = {"Accept": request.accept}
        if credential.authorization:
            headers["Authorization"] = credential.authorization
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        options: dict[str, Any] = {}
        if self._tls is not None:
            options["ssl"] = self._tls.context(credential.certificate)
            if self.config.tls.server_name:
                options["server_hostname"] = self.config.tls.server_name
        if self._proxy:
            options["proxy"] = self._proxy
        try:
            # Strict on purpose: yarl would drop what it cannot encode, and a selector that lost its text selects everything.
            query = urlencode(request.params, quote_via=quote)
        except (UnicodeError, TypeError, ValueError) as error:
            raise BadRequest(f"{request}: parameters cannot be written in a URL: {error}") from error
        url = URL(f"{self.config.server}{request.path}{'?' if query else ''}{query}", encoded=True)
        return await self._open_session().request(
            request.method, url, headers=headers, data=request.body, timeout=timeout, allow_redirects=False, **options
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise Unreachable("this client is closed; make a new one")
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,  # the slots are the limit; a second one inside would only hide who waits
                keepalive_timeout=self.limits.keep_alive_s,
                socket_factory=_socket_with_keepalive,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(without_silent_repetition,),
                read_bufsize=256 * 1024,
            )
        return self._session

    def _named(self, request: Request, error: BaseException) -> ApiError:
        return named(error, self._label(request), self.config.source)

    def _label(self, request: Request) -> str:
        return f"{request.method} {self.config.server}{request.path}"

    def _note_retry(self, error: ApiError) -> None:
        self.stats.retries += 1
        self.stats.last_error = error.message[:500]

    def _note_warnings(self, headers: Mapping[str, str]) -> None:
        if self.on_warning is None or "Warning" not in headers:
            return
        getall = getattr(headers, "getall", None)
        for value in getall("Warning") if getall else [headers["Warning"]]:
            for text in _WARNING.findall(value):
                self.on_warning(re.sub(r"\\(.)", r"\1", text))


def _impersonation_headers(who: Impersonation) -> list[tuple[str, str]]:
    headers = [("Impersonate-User", who.user)] if who.user else []
    if who.uid:
        headers.append(("Impersonate-Uid", who.uid))
    headers += [("Impersonate-Group", group) for group in who.groups]
    headers += [(f"Impersonate-Extra-{quote(key.lower(), safe='')}", value) for key, values in who.extra for value in values]
    return headers


async def _read_up_to(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := await answer.content.readany():
        size += len(chunk)
        if size > limit:
            answer.close()
            if answer.status >= 300:
                break  # enough to say what was wrong
            raise ResponseTooLarge(
                f"{answer.method} {answer.url}: the answer is over {limit} bytes; ask for less with `limit` or a selector"
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _socket_with_keepalive(address: Any) -> socket.socket:
    """A watch can be silent for minutes: let the kernel find out that the other side is gone."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
