"""HTTP itself: bytes that are no request, too much of everything, too slowly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from muster.server.answering import Answering
from muster.server.config import ServerLimits
from muster.server.metrics import Metrics
from muster.server.protocol import BoundedProtocol
from tests.server.running import RunningServer, read_all, running
from tests.waiting import blocked_until

_LIMITS = ServerLimits(
    head_bytes_max=8192,
    headers_max=40,
    pipelined_max=4,
    connections_max=20,
    watches_max=4,
    watches_per_user_max=2,
    send_timeout_s=2.0,
)


_REFUSED = b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\nauthorization: Bearer none\r\n"
"""Before its body is there."""


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with small limits, and time for whoever talks: a busy machine makes any client slow."""
    with running(tmp_path_factory.mktemp("tight"), limits=_LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that does not wait long for a body or for another request, but for the first as long as any."""
    with running(
        tmp_path_factory.mktemp("impatient"), limits=ServerLimits(body_timeout_s=0.4, keep_alive_timeout_s=1.0)
    ) as made:
        yield made


def _status(answer: bytes) -> int:
    head = answer.split(b"\r\n", 1)[0].split(b" ")
    return int(head[1]) if len(head) > 1 else 0


def _get(server: RunningServer, path: str = "/api/v1/namespaces", *more: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {server.token}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00\x01\x02\x03\r\n\r\n", id="binary"),
        pytest.param(b"hello\r\n\r\n", id="a word"),
        pytest.param(b"GET\r\n\r\n", id="method alone"),
        pytest.param(b"GET /api HTTP/9.9\r\n\r\n", id="version from the future"),
        pytest.param(b"GET /api HTTP/1.1\r\nno colon here\r\n\r\n", id="header without colon"),
        pytest.param(b"GET /api HTTP/1.1\r\nbad header: x\r\n\r\n", id="blank in a header's name"),
        pytest.param(b"GET /api HTTP/1.1\r\nx: a\x00b\r\n\r\n", id="NUL in a header"),
        pytest.param(b"GET /a b c HTTP/1.1\r\n\r\n", id="blanks in the path"),
        pytest.param("GET /ä HTTP/1.1\r\n\r\n".encode(), id="bare UTF-8 in the path"),
        pytest.param(b"POST /api HTTP/1.1\r\ncontent-length: -5\r\n\r\n", id="negative length"),
        pytest.param(b"POST /api HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello", id="two lengths"),
        pytest.param(
            b"POST /api HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", id="length and chunks"
        ),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="TLS inside TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2 preface"),
    ],
)
def test_malformed(server: RunningServer, data: bytes) -> None:
    answer = server.exchange_raw(data)
    assert _status(answer) == 400, answer[:300]
    body = json.loads(answer.split(b"\r\n\r\n", 1)[1])
    assert (body["kind"], body["code"]) == ("Status", 400)
    assert server.request("GET", "/healthz").body == b"ok"


def test_broken_chunks_are_refused_and_change_nothing(server: RunningServer) -> None:
    before = server.server.store.resource_version
    head = _get(server, "/api/v1/namespaces/default/configmaps", "transfer-encoding: chunked").replace(b"GET", b"POST", 1)
    answer = server.exchange_raw(head + b"5\r\n{}\r\nzz\r\n")
    assert _status(answer) == 400, answer[:300]
    assert server.server.store.resource_version == before


def test_garbage_after_a_request_does_not_spoil_its_answer(server: RunningServer) -> None:
    answer = server.exchange_raw(_get(server) + b"garbage garbage\r\n\r\n")
    assert _status(answer) == 200
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["kind"] == "NamespaceList"


def test_a_body_that_is_cut_off(server: RunningServer) -> None:
    before = server.server.store.resource_version
    head = _get(server, "/api/v1/namespaces/default/configmaps", "content-length: 100").replace(b"GET", b"POST", 1)
    with server.raw_socket() as connection:
        connection.sendall(head + b'{"metadata":{"name":"cut"}}')
    assert server.request("GET", "/api/v1/namespaces/default/configmaps/cut").code == 404
    assert server.server.store.resource_version == before


def test_headers_too_large(tight: RunningServer) -> None:
    assert _status(tight.exchange_raw(_get(tight, "/api", "x: " + "y" * 9000))) == 431
    assert _status(tight.exchange_raw(_get(tight, "/api?" + "y" * 9000))) == 431
    many = [f"x{n}: y" for n in range(60)]
    assert _status(tight.exchange_raw(_get(tight, "/api", *many))) == 431
    # One endless header: refused while it still arrives.
    with tight.raw_socket() as connection, contextlib.suppress(OSError):
        connection.sendall(b"GET /api HTTP/1.1\r\nx: ")
        for _ in range(100):
            connection.sendall(b"y" * 1000)
        assert _status(read_all(connection)) == 431


def test_pipelining(tight: RunningServer) -> None:
    three = tight.exchange_raw(_get(tight) * 2 + _get(tight, "/api", "connection: close"))
    assert three.count(b"HTTP/1.1 200 OK") == 3
    many = tight.exchange_raw(_get(tight) * 50)
    assert 1 <= many.count(b"HTTP/1.1 200 OK") <= 10


def test_heads_that_do_not_come_are_not_waited_for(tmp_path: Path) -> None:
    limits = ServerLimits(head_timeout_s=1.5)
    with running(tmp_path, limits=limits) as server, server.raw_socket() as begins, server.raw_socket() as is_silent:
        begins.sendall(b"GET /api HT")
        for connection in (begins, is_silent):
            answer = read_all(connection)
            assert _status(answer) == 400
            assert b"did not arrive within" in answer


def test_a_body_that_does_not_come_is_not_waited_for(impatient: RunningServer) -> None:
    head = _get(impatient, "/api/v1/namespaces/default/configmaps", "content-length: 100").replace(b"GET", b"POST", 1)
    with impatient.raw_socket() as connection:
        connection.sendall(head + b"{")
        assert _status(connection.recv(65536)) == 504


def test_idle_connections_are_closed(impatient: RunningServer) -> None:
    with impatient.raw_socket() as connection:
        connection.sendall(_get(impatient, "/healthz"))
        assert _status(connection.recv(65536)) == 200
        assert read_all(connection) in (b"", b"ok")  # the body may have come by itself; then the end


@pytest.mark.parametrize("rest", [b"x", b"x" * 99], ids=["cut off", "whole"])
def test_a_body_behind_its_refusal_keeps_no_connection_open(impatient: RunningServer, rest: bytes) -> None:
    """Without credentials, one byte more would hold a place for ever."""
    head = (
        b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\nauthorization: Bearer none\r\ncontent-length: 100"
    )
    with impatient.raw_socket() as connection:
        connection.sendall(head + b"\r\n\r\n{")
        assert _status(connection.recv(65536)) == 401
        connection.sendall(rest)
        assert b"HTTP/1.1" not in read_all(connection)  # the body of the refusal may have come by itself; then the end


def test_a_request_behind_such_a_body_is_served_for_as_long_as_it_takes(impatient: RunningServer) -> None:
    """It came in one piece with the end of that body: nothing had ended the wait for another request before it was there."""
    with impatient.raw_socket() as connection:
        connection.sendall(_REFUSED + b"content-length: 2\r\n\r\n{")
        assert _status(connection.recv(65536)) == 401
        connection.sendall(b"}" + _get(impatient, "/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=3"))
        assert read_all(connection).endswith(b"0\r\n\r\n"), "the watch ended by itself"


def test_too_many_connections(tight: RunningServer) -> None:
    with contextlib.ExitStack() as stack:
        answers = []
        for _ in range(_LIMITS.connections_max + 5):
            connection = stack.enter_context(tight.raw_socket())
            connection.sendall(_get(tight, "/healthz"))
            answers.append(_status(connection.recv(65536)))
        assert answers.count(503) >= 4
        assert answers.count(200) >= _LIMITS.connections_max - 2
    blocked_until(lambda: tight.request("GET", "/healthz").code == 200)  # when it has seen them go


def test_plain_http_and_foreign_tls(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server.port), timeout=10) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"200" not in plain.recv(1000)
    stranger = ssl.create_default_context()  # trusts other authorities than ours
    with pytest.raises(ssl.SSLCertVerificationError):
        server.request("GET", "/healthz", tls=stranger)
    assert server.request("GET", "/healthz").code == 200


def test_watch_limits(tight: RunningServer) -> None:
    path = "/api/v1/namespaces/default/configmaps?watch=true"
    with contextlib.ExitStack() as stack:
        for _ in range(_LIMITS.watches_per_user_max):
            stack.enter_context(tight.watch("/api/v1/namespaces/default/configmaps"))
        refused = tight.request("GET", path)
        assert (refused.code, refused.reason) == (429, "TooManyRequests")
    blocked_until(lambda: tight.request("GET", path + "&timeoutSeconds=1").code == 200)  # slots come back when watchers go


def test_a_reader_that_does_not_read_is_cut(tight: RunningServer) -> None:
    path = "/api/v1/namespaces/kube-public/configmaps"
    for n in range(40):
        tight.create(path, {"metadata": {"name": f"big-{n}"}, "data": {"x": "y" * 200_000}})
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    plain.settimeout(30)
    plain.connect(("127.0.0.1", tight.server.port))
    with tight.tls.wrap_socket(plain, server_hostname="localhost") as connection:
        connection.sendall(_get(tight, path))
        given_up = b'muster_server_refused_total{limit="send_timeout_s"} 1.0'
        blocked_until(lambda: given_up in tight.request("GET", "/metrics").body)
        assert len(read_all(connection)) < 8_000_000


def test_requests_leave_nothing_to_the_collector_of_cycles(tight: RunningServer) -> None:
    """What it has to look for and free, it looks for and frees while everybody waits."""
    paths = ["/api/v1/namespaces", "/api/v1/namespaces/default", "/api/v1/namespaces/none", "/no/such/path", "/version"]
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            for path in paths:
                tight.request("GET", path)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [found for found in gc.garbage if isinstance(found, RequestResponseCycle)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_the_data_directory_is_private(tight: RunningServer) -> None:
    data: Path = tight.server.config.data_dir
    for name in ("kubeconfig", "audit/audit.jsonl"):
        assert (data / name).stat().st_mode & 0o077 == 0


def test_a_broken_request_behind_another_does_not_spoil_its_answer(server: RunningServer) -> None:
    """Whether the one before it has begun to answer or not."""
    post = _get(server, "/api/v1/namespaces/default/configmaps", "transfer-encoding: chunked").replace(b"GET", b"POST", 1)
    answer = server.exchange_raw(_get(server) + post + b"zz\r\n")
    assert _status(answer) == 200, answer[:300]
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["kind"] == "NamespaceList"
    with server.raw_socket() as connection:
        connection.sendall(_get(server, "/api/v1/namespaces?watch=1&timeoutSeconds=1"))
        answer = connection.recv(65536)
        connection.sendall(post + b"zz\r\n")
        answer += read_all(connection)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(b"\r\n0\r\n\r\n")


def test_a_watch_ends_with_its_client_whatever_was_sent_behind_it(server: RunningServer) -> None:
    def watches() -> int:
        return server.server.store.usage().watchers_len

    before = watches()
    with server.raw_socket() as connection:
        connection.sendall(_get(server, "/api/v1/namespaces?watch=1"))
        assert _status(connection.recv(65536)) == 200
        assert watches() == before + 1
        connection.sendall(_get(server))
    labels = itertools.count()

    def is_over() -> bool:
        """A server that reads no further notices who has gone when it writes."""
        body = {"metadata": {"labels": {"n": str(next(labels))}}}
        server.request("PATCH", "/api/v1/namespaces/default", body, headers={"content-type": "application/merge-patch+json"})
        return watches() == before

    blocked_until(is_over)


@pytest.mark.parametrize(
    ("chunk", "is_leaving", "written"),
    [(b"line\n", False, [b"5\r\nline\n\r\n"]), (b"", False, []), (b"line\n", True, [])],
    ids=["something", "nothing: that would end the stream", "to one who leaves"],
)
async def test_what_of_a_stream_is_written(chunk: bytes, is_leaving: bool, written: list[bytes]) -> None:
    transport = _Transport()
    connection = _connection(transport)
    transport.is_left = is_leaving
    cycle = SimpleNamespace(chunked_encoding=True, disconnected=False)
    assert connection.push(cycle, chunk) is bool(chunk)  # type: ignore[arg-type]
    assert transport.written == written


class _Transport(asyncio.Transport):
    """Knows only whether it reads, whether its peer leaves, and what was written."""

    def __init__(self) -> None:
        super().__init__()
        self._reads = True
        self.is_left = False
        self.written: list[object] = []

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def is_reading(self) -> bool:
        return self._reads

    def is_closing(self) -> bool:
        return self.is_left

    def write(self, data: object) -> None:
        self.written.append(data)


def _connection(transport: asyncio.Transport) -> BoundedProtocol:
    """Of a server that never answers."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    settings = Config(never, ws="none", loop="none", lifespan="off", interface="asgi3", log_config=None, proxy_headers=False)
    settings.load()
    limits = ServerLimits(head_timeout_s=3600.0)
    made = BoundedProtocol(settings, ServerState(), {}, asyncio.get_running_loop(), limits=limits, metrics=Metrics(limits))
    made.connection_made(transport)
    return made


async def test_what_is_sent_behind_an_upgrade_waits_in_the_kernel_whatever_was_before_it() -> None:
    """Reading pauses for the requests ahead of it, too: when these have been answered, it must not go on for that reason."""
    transport = _Transport()
    connection = _connection(transport)
    upgrade = b"GET /b HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    connection.data_received(b"GET /a HTTP/1.1\r\n\r\n" + upgrade + bytes(100_000))
    assert connection._served is not None
    connection._served.response_complete = True
    connection.on_response_complete()
    assert connection._served.scope["path"] == "/b"
    assert not transport.is_reading()
    incoming = connection.take_over(connection._served, b"")
    assert await incoming.readexactly(100_000) == bytes(100_000)
    assert transport.is_reading()
    for task in connection.tasks:
        task.cancel()


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
async def test_no_more_of_a_long_answer_is_made_for_a_client_that_has_gone(is_packed: bool) -> None:
    made = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal made
        for made in range(1, 1001):
            cycle.disconnected = made > 10
            yield os.urandom(100_000)

    async def nothing(*_: object) -> None:
        return

    cycle = SimpleNamespace(disconnected=False)
    answering = Answering.__new__(Answering)
    answering._flow = SimpleNamespace(turn=nothing)  # type: ignore[assignment]
    answering._limits = ServerLimits()
    exchange = SimpleNamespace(method="GET", whose=None)
    await answering._send_pieces(exchange, {"muster.cycle": cycle}, nothing, pieces(), 1.0, is_packed=is_packed)  # type: ignore[arg-type]
    assert made < 20
