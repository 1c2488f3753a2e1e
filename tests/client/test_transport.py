"""The client against servers that misbehave."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import msgspec
import pytest

from muster.client.api import ApiClient
from muster.client.config import ClientConfig, Impersonation
from muster.client.errors import (
    BadResponse,
    NotAnApi,
    OutcomeUnknown,
    PathNotServed,
    ResponseTooLarge,
    Unreachable,
)
from muster.client.kubeconfig import KubeconfigError
from muster.client.messages import Request
from muster.client.retry import RetryPolicy
from muster.client.transport import Transport
from muster.objects import status as errors
from muster.objects.status import ApiError
from tests.client.scripted import QUICK, Handler, Received, ScriptedServer, scripted, status

GET = Request(method="GET", path="/x")
POST = Request(method="POST", path="/x", body=b"{}")


async def send(server: ScriptedServer, request: Request = GET, **limits: Any) -> bytes:
    transport = Transport(server.config(), limits=msgspec.structs.replace(QUICK, **limits))
    try:
        return (await transport.request(request)).body
    finally:
        await transport.close()


def first_then_ok(first: Handler) -> Handler:
    """`first` for the first request, then success."""
    seen: list[Received] = []

    async def handler(request: Received) -> None:
        seen.append(request)
        await (first(request) if len(seen) == 1 else request.answer(200, {"ok": True}))

    return handler


async def drop_at_once(request: Received) -> None:
    request.drop()


async def drop_in_the_body(request: Received) -> None:
    await request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    request.drop()


async def gibberish(request: Received) -> None:
    await request.send(b"\x16\x03 what is HTTP\r\n\r\n")
    request.drop()


def answers(code: int, body: Any = b"", **headers: str) -> Handler:
    async def handler(request: Received) -> None:
        await request.answer(code, body, **headers)

    return handler


@pytest.mark.parametrize(
    ("fault", "read_again", "write_again", "error"),
    [
        pytest.param(drop_at_once, True, False, OutcomeUnknown, id="connection dropped"),
        pytest.param(drop_in_the_body, True, False, OutcomeUnknown, id="body cut off"),
        pytest.param(gibberish, True, False, BadResponse, id="not HTTP"),
        pytest.param(answers(429, status(429, "TooManyRequests")), True, False, errors.TooManyRequests, id="429"),
        pytest.param(
            answers(429, status(429, "TooManyRequests", retryAfterSeconds=0), Retry_After="0"),
            True,
            False,
            errors.TooManyRequests,
            id="429 with Retry-After 0",
        ),
        pytest.param(answers(502, b"<h1>Bad gateway</h1>"), True, False, BadResponse, id="502 of a proxy"),
        pytest.param(answers(503, b"no backend"), True, False, errors.ServiceUnavailable, id="503 of a proxy"),
        pytest.param(answers(504, status(504, "Timeout")), True, False, errors.Timeout, id="504"),
        pytest.param(answers(500, status(500, "InternalError")), False, False, errors.InternalError, id="500"),
        pytest.param(answers(404, status(404, "NotFound", name="p")), False, False, errors.NotFound, id="404"),
        pytest.param(answers(409, status(409, "AlreadyExists")), False, False, errors.AlreadyExists, id="409"),
        pytest.param(answers(302, b"", Location="http://evil"), False, False, NotAnApi, id="redirect"),
    ],
)
async def test_faults(fault: Handler, read_again: bool, write_again: bool, error: type[ApiError]) -> None:
    for request, is_repeated in ((GET, read_again), (POST, write_again)):
        async with scripted(first_then_ok(fault)) as server:
            if is_repeated:
                assert await send(server, request) == b'{"ok":true}'
                assert len(server.requests) == 2
            else:
                with pytest.raises(error):
                    await send(server, request)
                assert len(server.requests) == 1


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
async def test_a_write_is_never_sent_twice_behind_our_back(method: str) -> None:
    """aiohttp would repeat PUT and DELETE by itself on a kept connection that breaks."""

    async def handler(request: Received) -> None:
        if request.method == "GET":
            await request.answer(200, {})
        else:
            request.drop()

    async with scripted(handler) as server:
        transport = Transport(server.config(), limits=QUICK)
        await transport.request(GET)
        with pytest.raises(OutcomeUnknown):
            await transport.request(Request(method=method, path="/x", body=b"{}"))
        await transport.close()
        assert [r.method for r in server.requests] == ["GET", method]
        assert server.connections == 1


async def test_retry_after_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(delay_s: float) -> None:
        waited.append(delay_s)

    fault = answers(429, status(429, "TooManyRequests"), Retry_After="7")
    async with scripted(first_then_ok(fault)) as server:
        monkeypatch.setattr("muster.client.transport.asyncio.sleep", sleep)
        assert await send(server, POST) == b'{"ok":true}'
    assert len(waited) == 1
    assert 7 <= waited[0] < 7.1


async def test_retry_after_beyond_the_deadline_is_not_waited_for() -> None:
    async with scripted(answers(503, status(503, "ServiceUnavailable", retryAfterSeconds=3600))) as server:
        with pytest.raises(errors.ServiceUnavailable) as caught:
            await send(server)
        assert caught.value.retry_after_s == 3600
        assert len(server.requests) == 1


async def test_nobody_listens() -> None:
    async with scripted(answers(200)) as server:
        config = server.config()
    transport = Transport(config, limits=QUICK)
    with pytest.raises(Unreachable, match=r"cannot connect.*is the server running"):
        await transport.request(POST)
    assert transport.stats.retries == QUICK.retry.attempts_max - 1
    await transport.close()


async def test_no_such_host() -> None:
    transport = Transport(ClientConfig(server="http://no-such-host.invalid"), limits=QUICK, environ={})
    with pytest.raises(Unreachable, match="no-such-host"):
        await transport.request(GET)
    await transport.close()


async def test_the_budget_stops_repetitions() -> None:
    async with scripted(answers(503, b"down")) as server:
        policy = RetryPolicy(attempts_max=10, backoff_first_s=0.0, budget_ratio=0.1, budget_burst=5.0)
        transport = Transport(server.config(), limits=msgspec.structs.replace(QUICK, retry=policy))
        for _ in range(20):
            with pytest.raises(errors.ServiceUnavailable):
                await transport.request(GET)
        await transport.close()
        assert transport.stats.requests == 20
        assert transport.stats.retries == 6, "the burst of 5 and a tenth of 20, less what was over the burst at the start"
        assert transport.stats.retries_refused == 20
        assert len(server.requests) == 26


async def test_a_slow_server_runs_into_the_timeout() -> None:
    async def never(request: Received) -> None:
        await asyncio.Event().wait()

    async with scripted(never) as server:
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            await send(server, POST, timeout_s=0.05)


async def test_a_slow_body_runs_into_the_timeout() -> None:
    async def slow(request: Received) -> None:
        await request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        await asyncio.Event().wait()

    async with scripted(slow) as server:
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            await send(server, GET, timeout_s=0.05)


async def test_in_flight_is_bounded_and_counted() -> None:
    release = asyncio.Event()

    async def handler(request: Received) -> None:
        await release.wait()
        await request.answer(200, {})

    async with scripted(handler) as server:
        transport = Transport(server.config(), limits=msgspec.structs.replace(QUICK, in_flight_max=4, waiting_max=6))
        tasks = [asyncio.create_task(transport.request(GET)) for _ in range(10)]
        while len(server.requests) < 4:
            await asyncio.sleep(0)
        assert (transport.stats.in_flight, transport.stats.waiting) == (4, 6)
        with pytest.raises(errors.TooManyRequests, match="6 requests wait"):
            await transport.request(GET)
        release.set()
        await asyncio.gather(*tasks)
        assert (transport.stats.in_flight, transport.stats.waiting) == (0, 0)
        assert server.connections == 4, "connections are kept and used again"
        await transport.close()


async def test_hundreds_in_flight() -> None:
    everyone = asyncio.Event()

    async def handler(request: Received) -> None:
        if len(server.requests) == 250:
            everyone.set()
        await everyone.wait()  # answers come only when all have arrived
        await request.answer(200, {})

    async with scripted(handler) as server:
        transport = Transport(server.config(), limits=QUICK)
        await asyncio.gather(*(transport.request(GET) for _ in range(250)))
        await transport.close()
        assert server.connections == 250


async def test_a_busy_server_gets_fewer_at_once_and_everything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes eight at a time and refuses the rest: no request is lost, and the budget is not used up."""
    busy = refused = 0

    async def handler(request: Received) -> None:
        nonlocal busy, refused
        if busy >= 8:
            refused += 1
            await request.answer(429, status(429, "TooManyRequests"), Retry_After="1")
            return
        busy += 1
        await asyncio.sleep(0.001)
        busy -= 1
        await request.answer(201, {})

    sleep = asyncio.sleep
    monkeypatch.setattr("muster.client.transport.asyncio.sleep", lambda delay_s: sleep(delay_s / 1000))
    async with scripted(handler) as server:
        policy = RetryPolicy(refusals_max=50, backoff_first_s=0.1, budget_ratio=0.0, budget_burst=0.0)
        transport = Transport(server.config(), limits=msgspec.structs.replace(QUICK, retry=policy))
        await asyncio.gather(*(transport.request(POST) for _ in range(200)))
        await transport.close()
    assert refused > 0
    assert transport.stats.retries == refused
    assert transport.stats.retries_refused == 0
    assert transport.stats.in_flight_limit < transport.stats.in_flight_max


async def test_no_slot_within_the_timeout() -> None:
    async def never(request: Received) -> None:
        await asyncio.Event().wait()

    async with scripted(never) as server:
        transport = Transport(server.config(), limits=msgspec.structs.replace(QUICK, in_flight_max=1))
        first = asyncio.create_task(transport.request(POST, timeout_s=30))
        while not server.requests:
            await asyncio.sleep(0)
        with pytest.raises(errors.Timeout, match="no free slot among 1"):
            await transport.request(POST, timeout_s=0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (transport.stats.in_flight, transport.stats.waiting) == (0, 0), "a cancelled request gives its slot back"
        await transport.close()


async def test_answers_are_bounded() -> None:
    async with scripted(answers(200, b"x" * 2000)) as server:
        with pytest.raises(ResponseTooLarge, match="over 1000 bytes"):
            await send(server, GET, response_bytes_max=1000)
        assert len(server.requests) == 1


async def test_a_compressed_answer_is_bounded_after_it_is_unpacked() -> None:
    bomb = gzip.compress(b"x" * 10_000_000)
    async with scripted(answers(200, bomb, Content_Encoding="gzip")) as server:
        with pytest.raises(ResponseTooLarge):
            await send(server, GET, response_bytes_max=1_000_000)
        assert await send(server, GET, response_bytes_max=10_000_000) == b"x" * 10_000_000


@pytest.mark.parametrize(
    ("code", "body", "error", "words"),
    [
        pytest.param(
            403, b"<html><style>p{}</style><p>Go\n away</p></html>", errors.Forbidden, "Go away", id="page of a proxy"
        ),
        pytest.param(400, b"", errors.BadRequest, "an empty body", id="empty"),
        pytest.param(404, b"404 page not found\n", PathNotServed, "does not serve this path", id="unknown path"),
        pytest.param(404, status(404, "NotFound", "no path"), PathNotServed, "no path", id="unknown path, politely"),
        pytest.param(404, status(404, "NotFound", "x", name="p", kind="pods"), errors.NotFound, "x", id="no object"),
        pytest.param(413, b"\xff\xfe\x00binary", errors.RequestEntityTooLarge, "binary", id="binary"),
        pytest.param(418, b"teapot", NotAnApi, "HTTP 418", id="unknown code"),
        pytest.param(409, b'{"kind":"Pod"}', errors.Conflict, "HTTP 409", id="JSON that is no Status"),
        pytest.param(
            422, status(422, "Invalid", "bad", causes=[{"field": "f", "message": "m"}]), errors.Invalid, "bad", id="Status"
        ),
        pytest.param(500, b"x" * 3_000_000, errors.InternalError, "xxx", id="huge"),
        pytest.param(410, status(410, "Gone", "old"), errors.Gone, "old", id="gone"),
    ],
)
async def test_failures_without_a_status(code: int, body: Any, error: type[ApiError], words: str) -> None:
    async with scripted(answers(code, body)) as server:
        with pytest.raises(error) as caught:
            await send(server, POST)
    assert type(caught.value) is error
    assert words in caught.value.message
    assert len(caught.value.message) < 1000


async def test_headers_impersonation_and_user_agent() -> None:
    async with scripted(answers(200, {})) as server:
        who = Impersonation(user="eve", uid="7", groups=("a", "b"), extra=(("Scopes/X", ("view", "edit")),))
        config = msgspec.structs.replace(server.config(), impersonate=who)
        transport = Transport(config, limits=QUICK)
        await transport.request(POST)
        await transport.close()
    headers = server.requests[0].headers
    assert headers["impersonate-user"] == "eve"
    assert headers["impersonate-uid"] == "7"
    assert headers["impersonate-group"] == "a|b"
    assert headers["impersonate-extra-scopes%2fx"] == "view|edit"
    assert headers["user-agent"].startswith("muster/")
    assert headers["content-type"] == "application/json"
    assert headers["accept-encoding"] == "identity"


async def test_warnings_are_handed_on() -> None:
    heard: list[str] = []
    async with scripted(answers(200, {}, Warning='299 - "old \\"kind\\"", 299 - "two"')) as server:
        transport = Transport(server.config(), limits=QUICK, on_warning=heard.append)
        await transport.request(GET)
        await transport.close()
    assert heard == ['old "kind"', "two"]


async def test_a_proxy_is_used() -> None:
    """Over plain HTTP a proxy gets the whole URL in the request line."""
    async with scripted(answers(200, {"ok": True})) as proxy:
        config = ClientConfig(server="http://api.invalid:8080", proxy_url=proxy.url)
        transport = Transport(config, limits=QUICK)
        assert (await transport.request(GET)).body == b'{"ok":true}'
        await transport.close()
        assert proxy.requests[0].target == "http://api.invalid:8080/x"
        transport = Transport(
            ClientConfig(server="http://api.invalid:8080"), limits=QUICK, environ={"HTTP_PROXY": proxy.url, "NO_PROXY": "other"}
        )
        await transport.request(GET)
        await transport.close()
        assert len(proxy.requests) == 2


async def test_a_proxy_that_refuses() -> None:
    async with scripted(answers(407, b"pay first")) as proxy:
        guarded = proxy.url.replace("http://", "http://ann:hunter2@")
        transport = Transport(ClientConfig(server="https://api.invalid", proxy_url=guarded), limits=QUICK)
        with pytest.raises(Unreachable, match="the proxy refused: HTTP 407") as refused:
            await transport.request(POST)
        assert "hunter2" not in str(refused.value)
        await transport.close()


async def test_a_refusal_of_a_stream_that_never_ends_is_not_waited_for() -> None:
    async def begin(request: Received) -> None:
        await request.send(b"HTTP/1.1 503 Word\r\nContent-Length: 100\r\n\r\nno")
        await asyncio.Event().wait()

    async with scripted(begin) as server:
        transport = Transport(server.config(), limits=msgspec.structs.replace(QUICK, timeout_s=0.2))
        with pytest.raises(ApiError, match="no answer in time"):
            async with transport.stream(GET):
                pass
        await transport.close()


async def test_a_path_prefix_and_odd_names_survive() -> None:
    async with scripted(answers(200, {})) as server:
        config = msgspec.structs.replace(server.config(), server=server.url + "/k8s/one")
        async with ApiClient(config, limits=QUICK) as client:
            await client.request("GET", "/apis/a/b%20c", params=[("labelSelector", "a in (x,y),b!=ü&c")])
    assert server.requests[0].path == "/k8s/one/apis/a/b%20c"
    assert server.requests[0].params == {"labelSelector": "a in (x,y),b!=ü&c"}


async def test_closed_clients_say_so() -> None:
    async with scripted(answers(200, {})) as server:
        transport = Transport(server.config(), limits=QUICK)
        await transport.close()
        with pytest.raises(Unreachable, match="closed"):
            await transport.request(GET)
        assert server.requests == []


@pytest.mark.parametrize("selector", ["\ud800", "a=\x00", "ü", "a in (b, c)"])
async def test_any_selector_arrives_or_is_refused(selector: str) -> None:
    async with scripted(answers(200, {})) as server, ApiClient(server.config(), limits=QUICK) as client:
        try:
            await client.request("GET", "/x", params=[("labelSelector", selector)])
        except errors.BadRequest:
            assert not selector.isprintable()
            assert server.requests == []
        else:
            assert server.requests[0].params == {"labelSelector": selector}


async def test_a_proxy_that_cannot_be_used_is_named() -> None:
    with pytest.raises(KubeconfigError, match=r"socks5://p:1.*NO_PROXY"):
        Transport(ClientConfig(server="https://api.invalid"), environ={"HTTPS_PROXY": "socks5://p:1"})
