"""`pods/log` over a real server and a real TLS endpoint of a joined node: what is passed on, and who is believed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from muster.objects.status import BadRequest
from muster.server.certificates import key_pem
from muster.server.config import ServerLimits
from muster.server.exchange import Query
from muster.server.kubelet_proxy import read_query, waiting_reason
from muster.server.node_agents import choose_container, endpoint_of
from tests.server.joining_nodes import MERGE, Machine, bound_pod
from tests.server.node_endpoints import STRANGERS, announce, endpoint_tls, stranger
from tests.server.running import Reply, RunningServer, running
from tests.waiting import blocked_until, comes_to_rest

LIMITS = ServerLimits(join_per_minute_max=10_000, join_per_address_minute_max=10_000, node_logs_max=3)


class Endpoint:
    """Stands where an agent would listen: TLS with the node's certificate, asks for the client's, answers as `answer` says."""

    def __init__(self, server: RunningServer, certificate: bytes, key: bytes, tmp_path: Any) -> None:
        self.asked: list[tuple[str, dict[str, str], str]] = []
        self.ended = threading.Event()
        self.sent_bytes = 0
        self.answer: Callable[[web.Request], Any] = self._plain
        self._context = endpoint_tls(server, certificate, key, tmp_path)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    async def _start(self) -> int:
        app = web.Application()
        app.router.add_get("/{rest:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._context).start()
        return int(self._runner.addresses[0][1])

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        self.asked.append((request.path, dict(request.query), str(subject)))
        try:
            answer: web.StreamResponse = await self.answer(request)
            return answer
        finally:
            self.ended.set()

    async def _plain(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="one\ntwo\n")

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("logs"), limits=LIMITS) as made:
        yield made


@pytest.fixture
def machine(server: RunningServer) -> Iterator[Machine]:
    found = Machine(server, "logs-n").join()
    if server.request("GET", "/api/v1/namespaces/logs").code == 404:
        server.namespace("logs")
    bound_pod(server, "logs", "p", "logs-n")
    yield found
    server.request("DELETE", "/api/v1/namespaces/logs/pods/p?gracePeriodSeconds=0")
    server.request("DELETE", "/api/v1/nodes/logs-n")


@pytest.fixture
def endpoint(server: RunningServer, machine: Machine, tmp_path: Any) -> Iterator[Endpoint]:
    made = Endpoint(server, machine.certificate.encode(), key_pem(machine.key), tmp_path)
    _announce(server, made.port)
    yield made
    made.stop()


def _announce(server: RunningServer, port: int, address: str = "127.0.0.1") -> None:
    announce(server, "logs-n", port, address)


def _log(server: RunningServer, query: str = "", **more: Any) -> Reply:
    return server.request("GET", f"/api/v1/namespaces/logs/pods/p/log{query}", **more)


def test_a_log_comes_through(server: RunningServer, endpoint: Endpoint) -> None:
    reply = _log(server, "?tailLines=5&timestamps=true&sinceSeconds=60&limitBytes=100&previous=true&pretty=1")
    assert (reply.code, reply.body) == (200, b"one\ntwo\n")
    assert reply.headers["content-type"].startswith("text/plain")
    ((path, query, subject),) = endpoint.asked
    assert path == "/containerLogs/logs/p/main"
    uid = server.request("GET", "/api/v1/namespaces/logs/pods/p").json["metadata"]["uid"]
    sent = {"tailLines": "5", "timestamps": "true", "sinceSeconds": "60", "limitBytes": "100", "previous": "true"}
    assert query == {**sent, "uid": uid}
    assert "system:apiserver" in subject
    assert server.kubectl("logs", "-n", "logs", "p") == "one\ntwo\n"


def test_an_empty_log(server: RunningServer, endpoint: Endpoint) -> None:
    async def nothing(request: web.Request) -> web.StreamResponse:
        return web.Response(text="")

    endpoint.answer = nothing
    assert (_log(server).code, _log(server).body) == (200, b"")


@pytest.mark.parametrize(
    ("code", "said", "answered"),
    [
        pytest.param(404, "no such container here", 404, id="not found"),
        pytest.param(400, 'previous terminated container "main" in pod "p" not found', 400, id="bad request"),
        pytest.param(429, "too many", 429, id="busy"),
        pytest.param(403, "who are you", 500, id="refused"),
        pytest.param(500, "oh", 500, id="failed"),
        pytest.param(302, "elsewhere", 500, id="redirected"),
    ],
)
def test_what_the_agent_says(server: RunningServer, endpoint: Endpoint, code: int, said: str, answered: int) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(text=said, status=code, headers={"location": "https://example.invalid/"} if code == 302 else {})

    endpoint.answer = refuse
    reply = _log(server)
    assert reply.code == answered
    assert said in reply.message


def test_following_ends_on_both_sides(server: RunningServer, endpoint: Endpoint) -> None:
    """The reader goes: the agent sees it. The agent goes in the middle: the reader sees that it is not the end."""

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"line\n")
            await asyncio.sleep(0.01)

    endpoint.answer = endless
    with contextlib.closing(server.connect()) as connection:
        headers = {"authorization": f"Bearer {server.token}"}
        connection.request("GET", "/api/v1/namespaces/logs/pods/p/log?follow=true", headers=headers)
        answer = connection.getresponse()
        assert answer.readline() == b"line\n"
    assert endpoint.ended.wait(30)
    assert endpoint.asked[0][1]["follow"] == "true"

    async def broken(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-length": "1000"})
        await answer.prepare(request)
        await answer.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return answer

    endpoint.answer = broken
    with pytest.raises(Exception, match=r"IncompleteRead|closed|EOF|reset"):
        _log(server)


def test_a_slow_reader_slows_the_agent(server: RunningServer, endpoint: Endpoint) -> None:
    total = 200 * 2**20
    chunk = b"x" * 65536

    async def much(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while endpoint.sent_bytes < total:
            await answer.write(chunk)
            endpoint.sent_bytes += len(chunk)
        return answer

    endpoint.answer = much
    with contextlib.closing(server.connect()) as connection:
        connection.request("GET", "/api/v1/namespaces/logs/pods/p/log", headers={"authorization": f"Bearer {server.token}"})
        assert connection.getresponse().read(10) == b"x" * 10
        assert comes_to_rest(lambda: endpoint.sent_bytes)
        assert endpoint.sent_bytes < total / 4, "what is not read is not fetched"
    assert endpoint.ended.wait(30)


def test_no_more_at_once_than_allowed(server: RunningServer, endpoint: Endpoint) -> None:
    release = threading.Event()

    async def held(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"x")
        while not release.is_set():
            await asyncio.sleep(0.01)
        return answer

    endpoint.answer = held
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(contextlib.closing(server.connect()))
            headers = {"authorization": f"Bearer {server.token}"}
            connection.request("GET", "/api/v1/namespaces/logs/pods/p/log?follow=true", headers=headers)
            assert connection.getresponse().read(1) == b"x"
        assert _log(server).code == 429
        release.set()
    endpoint.answer = endpoint._plain
    blocked_until(lambda: _log(server).code == 200)


# -- who is believed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_are_not_believed(server: RunningServer, machine: Machine, tmp_path: Any, kind: str) -> None:
    endpoint = Endpoint(server, *stranger(kind, server, machine), tmp_path)
    try:
        _announce(server, endpoint.port)
        reply = _log(server)
        assert reply.code == 500
        assert "no certificate of this server's for that node" in reply.message
        assert endpoint.asked == [], "nothing was asked of it"
    finally:
        endpoint.stop()


def test_a_node_that_is_not_there(server: RunningServer, machine: Machine) -> None:
    nobody = _log(server)
    assert nobody.code == 503
    assert "no agent of that node is connected" in nobody.message
    with contextlib.closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        _announce(server, closed.getsockname()[1])
        silent = _log(server)
    assert silent.code == 503
    assert "does not answer" in silent.message
    assert "SSLContext" not in silent.message
    assert "the node is not ready: NodeStatusNeverUpdated" in silent.message
    for address in ("not an address/..", "..", "x" * 300, "x" * 64 + ".example", "127.1", "\r\nx: y"):
        _announce(server, 1, address)
        assert _log(server).code == 503, address
    server.request("DELETE", "/api/v1/nodes/logs-n")
    gone = _log(server)
    assert (gone.code, gone.message) == (503, 'the logs of pod "p" are on node "logs-n", which is gone: its Node was deleted')


def test_what_is_answered_without_asking(server: RunningServer, endpoint: Endpoint) -> None:
    waiting = {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ErrImagePull"}}, "restartCount": 0}]}
    path = "/api/v1/namespaces/logs/pods/p/status"
    assert server.request("PATCH", path, {"status": waiting}, headers=MERGE).code == 200
    reply = _log(server)
    assert (reply.code, reply.message) == (400, 'container "main" in pod "p" is waiting to start: ErrImagePull')
    assert "is not valid for pod p" in _log(server, "?container=nobody").message
    for query in ("sinceTime=yesterday", "follow=maybe", "tailLines=x", "tailLines="):
        assert _log(server, f"?{query}").code == 400, query
    for query in ("tailLines=-1", "limitBytes=0", "sinceSeconds=0"):
        assert _log(server, f"?{query}").code == 422, query
    assert _log(server, "?sinceSeconds=1&sinceTime=2024-01-01T00:00:00Z").code == 422
    assert server.request("GET", "/api/v1/namespaces/logs/pods/nobody/log").code == 404
    assert server.request("POST", "/api/v1/namespaces/logs/pods/p/log", {}).code == 405
    assert endpoint.asked == []


# -- the pure parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "why"),
    [
        pytest.param({"state": {"waiting": {"reason": "ContainerCreating"}}}, "ContainerCreating", id="being made"),
        pytest.param({"state": {"waiting": {}}}, "", id="no reason, so not known"),
        pytest.param({"state": {"waiting": {"message": "m"}}}, "ContainerCreating", id="without a reason"),
        pytest.param({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}, "", id="has run before"),
        pytest.param(
            {"state": {"waiting": {"reason": "x"}}, "lastState": {"terminated": {"exitCode": 1}}}, "", id="ran and ended"
        ),
        pytest.param({"state": {"running": {}}}, "", id="running"),
        pytest.param({"state": {"terminated": {}}}, "", id="ended"),
        pytest.param({"state": None}, "", id="nonsense"),
    ],
)
def test_waiting(status: dict[str, Any], why: str) -> None:
    for key in ("containerStatuses", "initContainerStatuses"):
        assert waiting_reason({"status": {key: [{"name": "other"}, {"name": "c", **status}]}}, "c") == why
    assert waiting_reason({"status": {"containerStatuses": "x"}}, "c") == ""


def test_choosing_a_container() -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}}
    assert choose_container(pod, "b") == "b"
    assert choose_container(pod, "i") == "i"
    with pytest.raises(BadRequest, match=r"choose one of: \[a b\] or one of the init containers: \[i\]"):
        choose_container(pod, "")


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ({}, ("", 0)),
        ({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}, ("10.0.0.1", 0)),
        ({"addresses": [{"type": "Hostname", "address": "h"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}, ("h", 1)),
        ({"addresses": ["x"], "daemonEndpoints": {"kubeletEndpoint": {"Port": 99999}}}, ("", 0)),
    ],
)
def test_where_an_agent_listens(status: dict[str, Any], found: tuple[str, int]) -> None:
    assert endpoint_of({"status": status}) == found


def test_options() -> None:
    assert read_query(Query(b"follow=true&previous=false&tailLines=0&insecureSkipTLSVerifyBackend=true")) == {
        "follow": "true",
        "tailLines": "0",
    }
