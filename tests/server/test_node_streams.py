"""`pods/exec` and `pods/portforward` over a real server and a real TLS endpoint of a joined node: who may, and what passes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote

import pytest

from muster.objects.status import BadRequest, ServiceUnavailable
from muster.server import node_agents, tunnel
from muster.server.answering import Answering
from muster.server.certificates import key_pem
from muster.server.config import ServerLimits
from muster.server.exchange import Query
from muster.server.metrics import Metrics
from muster.server.node_streams import check_place, read_exec, read_ports
from muster.server.tunnel import Far, Tunnel
from tests.server.joining_nodes import MERGE, Machine, bound_pod
from tests.server.node_endpoints import (
    AGREED,
    STRANGERS,
    RawEndpoint,
    announce,
    endpoint_tls,
    refused_to_answer,
    stranger,
)
from tests.server.running import Reply, RunningServer, read_all, running
from tests.waiting import WAIT_S, blocked_until, comes_to_rest

LIMITS = ServerLimits(
    join_per_minute_max=10_000, join_per_address_minute_max=10_000, node_streams_max=3, node_streams_per_user_max=2
)
_NUMBERS = itertools.count()
EXEC = "/api/v1/namespaces/streams/pods/p/exec?command=cat&command=-&stdin=true&stdout=1&container=main"
FORWARD = "/api/v1/namespaces/streams/pods/p/portforward"
UPGRADE = (
    "Connection: keep-alive, Upgrade",
    "Upgrade: WebSocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("streams"), limits=LIMITS) as made:
        yield made


@pytest.fixture
def machine(server: RunningServer) -> Iterator[Machine]:
    found = _joined(server)
    yield found
    server.request("DELETE", "/api/v1/namespaces/streams/pods/p?gracePeriodSeconds=0")
    server.request("DELETE", "/api/v1/nodes/streams-n")


@pytest.fixture
def endpoint(server: RunningServer, machine: Machine, tmp_path: Path) -> Iterator[RawEndpoint]:
    with _endpoint(server, machine, tmp_path) as made:
        yield made


def _joined(server: RunningServer) -> Machine:
    found = Machine(server, "streams-n").join()
    if server.request("GET", "/api/v1/namespaces/streams").code == 404:
        server.namespace("streams")
    bound_pod(server, "streams", "p", "streams-n")
    return found


@contextlib.contextmanager
def _endpoint(server: RunningServer, machine: Machine, tmp_path: Path) -> Iterator[RawEndpoint]:
    made = RawEndpoint(endpoint_tls(server, machine.certificate.encode(), key_pem(machine.key), tmp_path))
    announce(server, machine.name, made.port)
    try:
        yield made
    finally:
        made.stop()


def _head(server: RunningServer, path: str = EXEC, *more: str, token: str = "", method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token or server.token}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _read_head(connection: ssl.SSLSocket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            break
        head += byte
    return head


@contextlib.contextmanager
def _tunnel(server: RunningServer, path: str = EXEC, token: str = "") -> Iterator[ssl.SSLSocket]:
    with server.raw_socket() as connection:
        connection.sendall(_head(server, path, *UPGRADE, token=token))
        head = _read_head(connection)
        assert head.startswith(b"HTTP/1.1 101 "), head + connection.recv(1000)
        yield connection


async def _connect(server: RunningServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.server.port, ssl=server.tls, server_hostname="localhost")


def _read(connection: ssl.SSLSocket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (chunk := connection.recv(size - len(data))):
        data += chunk
    return bytes(data)


def _ask(server: RunningServer, path: str = EXEC, *more: str, token: str = "", method: str = "GET") -> tuple[int, str]:
    """Code and message of a request that asks for a WebSocket and is refused; no message when it is not."""
    with server.raw_socket() as connection:
        connection.sendall(_head(server, path, *(more or UPGRADE), token=token, method=method))
        head = _read_head(connection)
        code = int(head.split(b" ")[1])
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        return code, "" if code == 101 else str(json.loads(_read(connection, length))["message"])


def _streams(server: RunningServer) -> float:
    for line in server.request("GET", "/metrics").body.decode().splitlines():
        if line.startswith("muster_server_node_streams "):
            return float(line.split()[1])
    return 0.0


# -- what passes --------------------------------------------------------------------------------------------------------------


def test_the_agent_is_asked_as_a_kubelet_is(server: RunningServer, endpoint: RawEndpoint) -> None:
    offered = "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c2VjcmV0, v5.channel.k8s.io"
    second = "Sec-WebSocket-Protocol: v4.channel.k8s.io"
    with server.raw_socket() as connection:
        connection.sendall(_head(server, f"{EXEC}&tty=true&stderr=true", *UPGRADE, offered, second, "Cookie: mine"))
        head = _read_head(connection)
        assert head == (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: yes\r\n\r\n"
        )
        connection.sendall(b"hello")
        assert _read(connection, 5) == b"hello"
        assert _streams(server) == 1
    uid = server.request("GET", "/api/v1/namespaces/streams/pods/p").json["metadata"]["uid"]
    lines = endpoint.heads[0].decode().split("\r\n")
    wanted = f"command=cat&command=-&input=1&output=1&error=1&tty=1&uid={uid}"
    assert lines[0] == f"GET /exec/streams/p/main?{wanted} HTTP/1.1"
    assert lines[1] == f"Host: 127.0.0.1:{endpoint.port}"
    assert "sec-websocket-protocol: v5.channel.k8s.io" in lines
    assert "sec-websocket-protocol: v4.channel.k8s.io" in lines
    assert "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==" in lines
    assert not [line for line in lines if "uthorization" in line or "ookie" in line]
    blocked_until(lambda: _streams(server) == 0)
    with _tunnel(server, f"{FORWARD}?ports=80&ports=81,82"):
        assert endpoint.heads[1].startswith(f"GET /portForward/streams/p?ports=80&ports=81&ports=82&uid={uid} ".encode())
    with _tunnel(server, FORWARD):
        assert endpoint.heads[2].startswith(f"GET /portForward/streams/p?uid={uid} ".encode())


@pytest.mark.parametrize("word", ["a b&c=d;#%/+", "ä\n\t\\", "'\"$(x)", "*" * 4000], ids=["url", "lines", "shell", "long"])
def test_words_of_a_command_arrive_as_they_are(server: RunningServer, endpoint: RawEndpoint, word: str) -> None:
    with _tunnel(server, f"{EXEC}&command={quote(word)}"):
        asked = endpoint.heads[0].split(b" ")[1].decode()
        assert parse_qs(asked.partition("?")[2])["command"] == ["cat", "-", word]


async def test_what_is_sent_ahead_is_not_lost(server: RunningServer, endpoint: RawEndpoint) -> None:
    early = os.urandom(300_000)
    reader, writer = await _connect(server)
    writer.write(_head(server, EXEC, *UPGRADE) + early)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    assert await reader.readexactly(len(early)) == early
    writer.close()
    assert len(endpoint.heads) == 1


def test_an_upgrade_behind_another_request(server: RunningServer, endpoint: RawEndpoint) -> None:
    with server.raw_socket() as connection:
        connection.sendall(_head(server, "/version") + _head(server, EXEC, *UPGRADE) + b"and more")
        first = _read_head(connection)
        assert first.startswith(b"HTTP/1.1 200 ")
        length = int(first.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        _read(connection, length)
        assert _read_head(connection).startswith(b"HTTP/1.1 101 ")
        assert _read(connection, 8) == b"and more"


async def test_megabytes_both_ways_and_no_faster_than_they_are_read(server: RunningServer, endpoint: RawEndpoint) -> None:
    total, piece = 48 * 2**20, os.urandom(2**16)
    sent, found = hashlib.sha256(), hashlib.sha256()
    reader, writer = await _connect(server)

    async def send() -> None:
        for _ in range(total // len(piece)):
            writer.write(piece)
            sent.update(piece)
            await writer.drain()

    writer.write(_head(server, EXEC, *UPGRADE))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    sending = asyncio.create_task(send())
    assert await asyncio.to_thread(comes_to_rest, lambda: endpoint.received_bytes)
    assert endpoint.received_bytes < total / 2, "what is not read is not taken"
    left = total
    while left and (chunk := await reader.read(left)):
        found.update(chunk)
        left -= len(chunk)
    await sending
    assert (left, found.digest()) == (0, sent.digest())
    writer.close()
    await asyncio.to_thread(blocked_until, lambda: endpoint.ended == endpoint.opened)


# -- how it ends --------------------------------------------------------------------------------------------------------------


def test_the_agent_ends_it_and_nothing_of_what_it_said_is_lost(server: RunningServer, endpoint: RawEndpoint) -> None:
    said = os.urandom(3_000_000)

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(AGREED + said)
        await writer.drain()

    endpoint.behaviour = say
    with _tunnel(server) as connection:
        assert read_all(connection) == said
    blocked_until(lambda: _streams(server) == 0)


def test_the_agent_breaks_off(server: RunningServer, endpoint: RawEndpoint) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(AGREED)
        await reader.read(1)
        writer.transport.abort()

    endpoint.behaviour = break_off
    with _tunnel(server) as connection:
        connection.sendall(b"x")
        assert read_all(connection) == b""
    blocked_until(lambda: _streams(server) == 0)


@pytest.mark.parametrize("is_abrupt", [False, True], ids=["closes", "vanishes"])
def test_the_client_goes(server: RunningServer, endpoint: RawEndpoint, is_abrupt: bool) -> None:
    got = bytearray()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(AGREED)
        while data := await reader.read(65536):
            got.extend(data)

    endpoint.behaviour = take
    with _tunnel(server) as connection:
        connection.sendall(b"last words")
        if is_abrupt:
            blocked_until(lambda: got)
        else:
            with contextlib.suppress(OSError):
                connection.unwrap()
    blocked_until(lambda: endpoint.ended == 1 and _streams(server) == 0)
    assert got == b"last words"


def test_the_client_goes_before_the_agent_has_answered(server: RunningServer, endpoint: RawEndpoint) -> None:
    endpoint.behaviour = refused_to_answer
    with server.raw_socket() as connection:
        connection.sendall(_head(server, EXEC, *UPGRADE))
        blocked_until(lambda: endpoint.heads)
    blocked_until(lambda: endpoint.ended == 1 and _streams(server) == 0)


async def test_the_client_goes_while_the_agent_takes_nothing(
    server: RunningServer, endpoint: RawEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "_LOOK_S", 0.2)
    before = _open_files()
    sent = 0

    async def take_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(AGREED)
        await asyncio.Event().wait()

    async def send() -> None:
        nonlocal sent
        while True:
            writer.write(b"x" * 2**16)
            await writer.drain()
            sent += 2**16

    endpoint.behaviour = take_nothing
    reader, writer = await _connect(server)
    writer.write(_head(server, EXEC, *UPGRADE))
    await reader.readuntil(b"\r\n\r\n")
    sending = asyncio.create_task(send())
    assert await asyncio.to_thread(comes_to_rest, lambda: sent)
    assert _streams(server) == 1, "who waits is not cut"
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    # Otherwise its end would wait behind what the server does not read.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await asyncio.to_thread(blocked_until, lambda: _streams(server) == 0)
    # One is the agent's, which reads no further and has not seen it.
    await asyncio.to_thread(blocked_until, lambda: _open_files() <= before + 1)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_of_many_that_were_cut(server: RunningServer, endpoint: RawEndpoint) -> None:
    _ask(server)
    blocked_until(lambda: endpoint.ended == endpoint.opened)
    before = _open_files()
    for number in range(12):
        with _tunnel(server) as connection:
            connection.sendall(b"x" * 100_000 * (number % 3))
        blocked_until(lambda: _streams(server) < 3)
    blocked_until(lambda: endpoint.ended == endpoint.opened and _streams(server) == 0)
    blocked_until(lambda: _open_files() <= before)


def test_a_connection_in_which_nothing_passes_ends(tmp_path: Path) -> None:
    limits = ServerLimits(node_silence_timeout_s=0.5)
    with running(tmp_path / "data", limits=limits) as server, _endpoint(server, _joined(server), tmp_path) as endpoint:
        with _tunnel(server) as connection:
            connection.sendall(b"word")
            assert read_all(connection) == b"word"
        blocked_until(lambda: endpoint.ended == 1)


def test_stopping_the_server_ends_tunnels_and_those_who_wait_for_one(tmp_path: Path) -> None:
    with running(tmp_path / "data") as server, _endpoint(server, _joined(server), tmp_path) as endpoint:
        with _tunnel(server) as connection, server.raw_socket() as waiting:
            endpoint.behaviour = refused_to_answer
            waiting.sendall(_head(server, EXEC, *UPGRADE))
            blocked_until(lambda: len(endpoint.heads) == 2)
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            assert read_all(connection) == b""
            assert read_all(waiting).startswith(b"HTTP/1.1 503 ")
            stopping.join(60)
            assert not stopping.is_alive()
        blocked_until(lambda: endpoint.ended == 2)


async def test_a_server_that_stops_asks_no_agent_any_more() -> None:
    """It would wait for the answer, and whoever stops it for that."""

    async def dial(_: object) -> Far:
        raise AssertionError("it was asked")

    limits = ServerLimits()
    answering = Answering(SimpleNamespace(), SimpleNamespace(), Metrics(limits), limits)  # type: ignore[arg-type]
    answering.close_streams()
    scope: Any = {"muster.connection": SimpleNamespace(is_upgrade=lambda _: True), "muster.cycle": None, "headers": []}
    with pytest.raises(ServiceUnavailable, match="stopping"):
        await answering.tunnel(SimpleNamespace(user="ann"), scope, asyncio.Event().wait, Tunnel(dial, silence_s=1.0))  # type: ignore[arg-type]


async def test_a_fault_in_either_direction_is_heard() -> None:
    """Otherwise what the client sends would be read no more, for as long as it stays."""

    class Writer:
        def write(self, data: bytes) -> None:
            raise RuntimeError("a fault")

        def close(self) -> None:
            pass

    async def dial(_: object) -> Far:
        return Far(asyncio.StreamReader(), Writer(), [])  # type: ignore[arg-type]

    made = Tunnel(dial, silence_s=3600.0)
    await made.dial([])
    incoming = asyncio.StreamReader()
    incoming.feed_data(b"word")
    with pytest.raises(RuntimeError, match="a fault"):
        async with asyncio.timeout(WAIT_S):
            await made.splice(SimpleNamespace(), incoming, asyncio.Event().wait)  # type: ignore[arg-type]
    made.end()


# -- who is believed, and what agents say -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_are_not_believed(server: RunningServer, machine: Machine, tmp_path: Path, kind: str) -> None:
    endpoint = RawEndpoint(endpoint_tls(server, *stranger(kind, server, machine), tmp_path))
    try:
        announce(server, machine.name, endpoint.port)
        code, message = _ask(server)
        assert code == 500
        assert "no certificate of this server's for that node" in message
        assert endpoint.heads == [], "nothing was asked of it"
    finally:
        endpoint.stop()


def _answers(answer: bytes) -> Any:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    return behave


def _http(code: int, said: str) -> bytes:
    return f"HTTP/1.1 {code} Whatever\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode()


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        pytest.param(_http(404, "no such container"), 404, "no such container", id="not found"),
        pytest.param(_http(400, "it is not running"), 400, "it is not running", id="bad request"),
        pytest.param(_http(429, "too many"), 429, "too many", id="busy"),
        pytest.param(_http(403, "who are you"), 500, "answered 403: who are you", id="refused"),
        pytest.param(_http(501, '{"message": "not here"}'), 500, "answered 501: not here", id="as JSON"),
        pytest.param(_http(200, "welcome"), 500, "answered 200: welcome", id="no upgrade"),
        pytest.param(_http(500, "x" * 100_000), 500, "answered 500: xxxx", id="long"),
        pytest.param(b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\noh\r\n0\r\n\r\n", 500, "500: oh", id="chunks"),
        pytest.param(b"HTTP/1.1 500 X\r\n\r\nuntil the end", 500, "until the end", id="without a length"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", 500, "answered 100", id="continue"),
        pytest.param(b"", 503, "it closed the connection", id="nothing"),
        pytest.param(b"HTTP/1.1 101 Sw", 503, "it closed the connection", id="cut"),
        pytest.param(b"HTTP/1.1 101 Switching\r\n\r\n", 503, "does not answer", id="101 without headers"),
        pytest.param(b"220 mail.example ESMTP\r\n\r\n", 503, "does not answer", id="not HTTP"),
        pytest.param(b"HTTP/1.1 101 X\r\n" + b"a: b\r\n" * 200 + b"\r\n", 503, "more than 100 headers", id="headers"),
        pytest.param(b"HTTP/1.1 101 X\r\na: " + b"b" * 200_000, 503, "longer than", id="endless head"),
        pytest.param(b"HTTP/1.1 101 X\r\nUpgrade: a\r\nConnection: Upgrade\r\nb: \x00\r\n\r\n", 503, "not answer", id="NUL"),
    ],
)
def test_what_the_agent_says(server: RunningServer, endpoint: RawEndpoint, answer: bytes, code: int, said: str) -> None:
    endpoint.behaviour = _answers(answer)
    found, message = _ask(server)
    assert (found, said in message) == (code, True), message
    blocked_until(lambda: _streams(server) == 0)


def test_an_agent_that_says_nothing(server: RunningServer, endpoint: RawEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_agents, "ANSWER_TIMEOUT_S", 0.3)
    endpoint.behaviour = refused_to_answer
    code, message = _ask(server)
    assert (code, "(no answer in time); the node is not ready" in message) == (503, True), message
    blocked_until(lambda: endpoint.ended == 1)


def test_a_node_that_is_not_there(server: RunningServer, machine: Machine) -> None:
    code, message = _ask(server)
    assert (code, message) == (503, 'pod "p" is on node "streams-n", and no agent of that node is connected to this server')
    for address in ("not an address/..", "..", "x" * 300, "127.1", "\r\nx: y"):
        announce(server, machine.name, 1, address)
        assert _ask(server)[0] == 503, address


def _bound(server: RunningServer, role: str | dict[str, Any]) -> tuple[str, str]:
    """Name and token of a user with a ClusterRole, or with one rule, in the pod's namespace."""
    name = f"who-{next(_NUMBERS)}"
    token = server.user(name)
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/streams"
    ref = {"kind": "ClusterRole", "name": role}
    if isinstance(role, dict):
        server.create(f"{path}/roles", {"metadata": {"name": name}, "rules": [role]})
        ref = {"kind": "Role", "name": name}
    ref["apiGroup"] = "rbac.authorization.k8s.io"
    subject = {"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    server.create(f"{path}/rolebindings", {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]})
    return name, token


def test_no_more_at_once_than_allowed(server: RunningServer, endpoint: RawEndpoint) -> None:
    (_, first), (_, second) = _bound(server, "edit"), _bound(server, "edit")
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(_tunnel(server, token=first))
        code, message = _ask(server, token=first)
        assert (code, "has 2 connections into pods open, the most one user may" in message) == (429, True), message
        stack.enter_context(_tunnel(server, token=second))
        code, message = _ask(server, token=second)
        assert (code, message) == (429, "3 connections into pods are open, the most this server serves; try later")
        assert _ask(server)[0] == 101, "there is a reserve for administrators"
    blocked_until(lambda: _ask(server, token=first)[0] == 101 and _ask(server, token=second)[0] == 101)
    blocked_until(lambda: _streams(server) == 0)


# -- what the user can mend ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "said"),
    [
        pytest.param("exec?stdout=1", "you must specify at least one command for the container", id="no command"),
        pytest.param("exec?command=&stdout=1", "you must specify at least one command for the container", id="empty command"),
        pytest.param("exec?command=a%00b&stdout=1", "command: a NUL character can't be part of a command", id="NUL"),
        pytest.param("exec?command=ls", "you must specify at least 1 of stdin, stdout, stderr", id="no stream"),
        pytest.param("exec?command=ls&stdout=maybe", "stdout='maybe' is not a boolean; use true or false", id="flag"),
        pytest.param("exec?command=ls&stdout=1&container=x", "container x is not valid for pod p", id="container"),
        pytest.param("portforward?ports=x", "ports: 'x' is no port; give numbers from 1 to 65535", id="port"),
    ],
)
def test_what_is_answered_without_asking(server: RunningServer, endpoint: RawEndpoint, path: str, said: str) -> None:
    for method in ("GET", "POST"):
        assert _ask(server, f"/api/v1/namespaces/streams/pods/p/{path}", method=method) == (400, said)
    assert endpoint.opened == 0


def test_pods_that_nobody_can_be_connected_to(server: RunningServer, endpoint: RawEndpoint) -> None:
    assert _ask(server, EXEC.replace("/p/", "/nobody/"))[0] == 404
    two = {"metadata": {"name": "two"}, "spec": {"containers": [{"name": n, "image": "none"} for n in ("a", "b")]}}
    server.create("/api/v1/namespaces/streams/pods", two)
    path = "/api/v1/namespaces/streams/pods/two/exec?command=ls&stdout=1"
    assert _ask(server, path) == (400, "a container name must be specified for pod two, choose one of: [a b]")
    assert _ask(server, f"{path}&container=a") == (400, "pod two does not have a host assigned")
    status = {"status": {"phase": "Succeeded"}}
    assert server.request("PATCH", "/api/v1/namespaces/streams/pods/p/status", status, headers=MERGE).code == 200
    assert _ask(server) == (400, "cannot exec into a container in a completed pod; current phase is Succeeded")
    assert _ask(server, FORWARD) == (400, "unable to forward port because pod is not running. Current status=Succeeded")
    assert endpoint.opened == 0
    server.request("DELETE", "/api/v1/namespaces/streams/pods/two?gracePeriodSeconds=0")


@pytest.mark.parametrize(
    ("method", "headers", "code", "said"),
    [
        pytest.param("GET", (), 400, "Upgrade request required", id="no upgrade"),
        pytest.param("POST", (), 400, "Upgrade request required", id="no upgrade, posted"),
        pytest.param("GET", ("Upgrade: websocket",), 400, "Upgrade request required", id="Upgrade alone"),
        pytest.param("GET", ("Connection: Upgrade",), 400, "Upgrade request required", id="Connection alone"),
        pytest.param("POST", UPGRADE, 400, "a WebSocket is opened with GET", id="posted WebSocket"),
        pytest.param("GET", ("Connection: Upgrade", "Upgrade: h2c"), 400, "unable to upgrade to 'h2c'", id="another protocol"),
        pytest.param("POST", ("Connection: Upgrade", "Upgrade: SPDY/3.1"), 400, "not SPDY/3.1", id="SPDY"),
        pytest.param("DELETE", UPGRADE, 405, "the server does not allow delete on pods/exec", id="method"),
        pytest.param("PUT", UPGRADE, 405, "the server does not allow update on pods/exec", id="put"),
        pytest.param("GET", (*UPGRADE, "X: a\x00b"), 400, "malformed HTTP request", id="NUL"),
        pytest.param("GET", (*UPGRADE, "Sec-WebSocket-Key : a"), 400, "malformed HTTP request", id="blank in a name"),
        pytest.param("GET", (*UPGRADE, "Sec-WebSocket-Protocol: a\rX: b"), 400, "malformed HTTP request", id="bare CR"),
        pytest.param("GET", (*UPGRADE, "X: " + "y" * 70_000), 431, "larger than", id="too large"),
        pytest.param("GET", (*UPGRADE, *(f"X{n}: y" for n in range(200))), 431, "more than 128 headers", id="too many"),
    ],
)
def test_heads_that_open_nothing(
    server: RunningServer, endpoint: RawEndpoint, method: str, headers: tuple[str, ...], code: int, said: str
) -> None:
    found, message = _ask(server, EXEC, "X-Plain: too", *headers, method=method)
    assert (found, said in message) == (code, True), message
    assert endpoint.opened == 0


def test_http_1_0_opens_nothing(server: RunningServer, endpoint: RawEndpoint) -> None:
    head = _head(server, EXEC, *UPGRADE).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    assert b"Upgrade request required" in server.exchange_raw(head)
    assert endpoint.opened == 0


def test_upgrades_elsewhere_are_ordinary_requests_and_the_last_of_their_connection(server: RunningServer) -> None:
    for path in ("/api/v1/namespaces", "/version", "/api/v1/namespaces/none", "/no/such/path"):
        plain = server.request("GET", path)
        answer = server.exchange_raw(_head(server, path, *UPGRADE) + _head(server, "/version"))
        assert answer.count(b"HTTP/1.1 ") == 1
        assert int(answer.split(b" ")[1]) == plain.code, path
        assert answer.lower().count(b"connection: close") == 1


async def test_many_bytes_behind_an_upgrade_elsewhere_are_not_taken(server: RunningServer) -> None:
    reader, writer = await _connect(server)
    writer.write(_head(server, "/api/v1/namespaces?watch=1", *UPGRADE))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    sent = 0

    async def send() -> None:
        nonlocal sent
        while sent < 64 * 2**20:
            writer.write(b"x" * 2**16)
            await writer.drain()
            sent += 2**16

    sending = asyncio.create_task(send())
    assert await asyncio.to_thread(comes_to_rest, lambda: sent)
    assert sent < 32 * 2**20
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    writer.transport.abort()


# -- clients that ask twice ---------------------------------------------------------------------------------------------------

SPDY = ("Connection: Upgrade", "Upgrade: SPDY/3.1")


def test_who_asks_again_with_spdy_is_told_why_it_was_refused(server: RunningServer, endpoint: RawEndpoint) -> None:
    endpoint.behaviour = _answers(_http(400, "container main is not running"))
    assert _ask(server) == (400, "container main is not running")
    assert "not SPDY/3.1" in _ask(server, f"{EXEC}&tty=1", *SPDY, method="POST")[1], "something else"
    assert _ask(server, EXEC, *SPDY, method="POST") == (400, "container main is not running")
    assert "not SPDY/3.1" in _ask(server, EXEC, *SPDY, method="POST")[1], "once"
    assert endpoint.opened == 1


def test_kubectl_shows_why(server: RunningServer, endpoint: RawEndpoint) -> None:
    endpoint.behaviour = _answers(_http(400, "container main is not running"))
    said = server.kubectl("exec", "-n", "streams", "p", "--", "ls", code=1)
    assert "container main is not running" in said
    endpoint.stop = lambda: None  # type: ignore[method-assign]
    RawEndpoint.stop(endpoint)
    said = server.kubectl("exec", "-n", "streams", "p", "--", "ls", code=1)
    assert "does not answer" in said


def _frame(code: int, payload: bytes) -> bytes:
    return bytes([0x80 | code, len(payload)]) + payload


def test_kubectl_gets_through(server: RunningServer, endpoint: RawEndpoint) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = dict(line.split(": ", 1) for line in endpoint.heads[0].decode().split("\r\n")[1:-2])
        key = asked["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key).digest())
        chosen = b"Sec-WebSocket-Accept: " + accept + b"\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
        writer.write(b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + chosen)
        writer.write(_frame(2, b"\x01hello\n") + _frame(2, b'\x03{"status":"Success"}') + _frame(8, b"\x03\xe8"))
        await reader.read()

    endpoint.behaviour = say
    assert server.kubectl("exec", "-n", "streams", "p", "--", "echo", "hello") == "hello\n"
    assert endpoint.heads[0].startswith(b"GET /exec/streams/p/main?command=echo&command=hello&output=1&error=1&uid=")


# -- who may ------------------------------------------------------------------------------------------------------------------


def _rule(verbs: list[str], *resources: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": list(resources), "verbs": verbs}


@pytest.mark.parametrize(
    ("role", "exec_code", "forward_code", "posted_code"),
    [
        pytest.param("view", 403, 403, 403, id="view"),
        pytest.param("edit", 101, 101, 400, id="edit"),
        pytest.param("admin", 101, 101, 400, id="admin"),
        pytest.param("muster:node", 403, 403, 403, id="agents"),
        pytest.param("muster:submitter", 403, 403, 403, id="submitters"),
        pytest.param(_rule(["get", "list", "watch"], "pods", "pods/*"), 403, 403, 403, id="reads all"),
        pytest.param(_rule(["get", "list", "watch"], "*"), 403, 403, 403, id="reads all, and what is below"),
        pytest.param(_rule(["create"], "pods/exec"), 403, 403, 400, id="create alone"),
        pytest.param(_rule(["create", "get"], "pods/exec"), 101, 403, 400, id="exec"),
        pytest.param(_rule(["create", "get"], "pods/portforward"), 403, 101, 403, id="forward"),
        pytest.param(_rule(["create", "get"], "pods"), 403, 403, 403, id="pods alone"),
    ],
)
def test_roles(
    server: RunningServer, endpoint: RawEndpoint, role: Any, exec_code: int, forward_code: int, posted_code: int
) -> None:
    _, token = _bound(server, role)
    for where, code in ((EXEC, exec_code), (FORWARD, forward_code)):
        found, message = _ask(server, where, token=token)
        assert found == code, message
    assert _ask(server, EXEC, *SPDY, token=token, method="POST")[0] == posted_code
    assert endpoint.opened == (exec_code, forward_code).count(101), "the agent hears nothing of who may not"


@pytest.mark.parametrize("path", [f"{EXEC}&watch=true", EXEC.replace("/api/v1/", "/api/v1/watch/"), f"{FORWARD}?watch=1"])
def test_a_connection_is_nothing_to_watch(server: RunningServer, endpoint: RawEndpoint, path: str) -> None:
    """The right to watch is one to read: by it nobody gets a shell, and who may have one asks for it by its name."""
    _, token = _bound(server, _rule(["get", "list", "watch"], "*"))
    assert _ask(server, path, token=token)[0] == 403
    assert _ask(server, path)[0] == 405
    assert endpoint.heads == []


def test_who_may_only_read_is_told_what_is_missing(server: RunningServer, endpoint: RawEndpoint) -> None:
    name, token = _bound(server, _rule(["get"], "pods/exec"))
    assert _ask(server, token=token) == (
        403,
        f'pods "p" is forbidden: User "{name}" cannot create resource "pods/exec" in API group "" in the namespace "streams"',
    )
    blocked_until(lambda: _told(server, name))
    assert _told(server, name)[-1]["annotations"]["authorization.k8s.io/decision"] == "forbid"


def test_a_node_opens_no_connection_into_its_own_pods(server: RunningServer, machine: Machine, endpoint: RawEndpoint) -> None:
    for path in (EXEC, FORWARD):
        reply: Reply = machine.request("GET", path)
        assert reply.code == 403
    assert endpoint.opened == 0


def test_strangers_learn_nothing(server: RunningServer, endpoint: RawEndpoint) -> None:
    assert _ask(server, token="no-such-token")[0] == 401
    assert endpoint.opened == 0


def _told(server: RunningServer, user: str) -> list[Any]:
    path = server.server.config.audit_path
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [one for one in events if one["user"].get("username") == user and one.get("objectRef", {}).get("subresource")]


def test_the_audit_log_tells_when_it_began_and_when_it_ended(server: RunningServer, endpoint: RawEndpoint) -> None:
    token = server.user("ann", ("system:masters",))
    with server.raw_socket() as connection:
        connection.sendall(_head(server, EXEC, *UPGRADE, token=token))
        _read_head(connection)
        blocked_until(lambda: _told(server, "ann"))
        (begun,) = _told(server, "ann")
        assert (begun["stage"], begun["verb"], begun["responseStatus"]["code"]) == ("ResponseStarted", "get", 101)
        assert begun["requestURI"] == EXEC
    blocked_until(lambda: len(_told(server, "ann")) == 2)
    ended = _told(server, "ann")[1]
    assert (ended["stage"], ended["auditID"]) == ("ResponseComplete", begun["auditID"])
    counted = b'apiserver_request_total{code="101",group="",resource="pods",subresource="exec",verb="get"}'
    assert counted in server.request("GET", "/metrics").body


def test_discovery_lists_them(server: RunningServer) -> None:
    listed = {one["name"]: one for one in server.request("GET", "/api/v1").json["resources"]}
    for name, kind in (("pods/exec", "PodExecOptions"), ("pods/portforward", "PodPortForwardOptions")):
        assert listed[name] == {
            "name": name,
            "singularName": "",
            "namespaced": True,
            "kind": kind,
            "verbs": ["create", "get"],
        }
    refused = server.request("POST", "/api/v1/namespaces/streams/pods/p/attach")
    assert (refused.code, "kubectl exec" in refused.message) == (405, True)


# -- the pure parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        pytest.param(b"command=ls&stdout=1", "command=ls output=1", id="output"),
        pytest.param(b"command=ls&command=&command=a+b&stderr", "command=ls command= command=a b error=1", id="words"),
        pytest.param(b"tty=true&stdin=1&stdout=t&stderr=0&command=sh", "command=sh input=1 output=1 tty=1", id="terminal"),
        pytest.param(
            b"&".join(b"command=%d" % n for n in range(400)) + b"&stdin=1",
            " ".join(f"command={n}" for n in range(400)) + " input=1",
            id="many",
        ),
    ],
)
def test_read_exec(query: bytes, asked: str) -> None:
    assert " ".join(f"{name}={value}" for name, value in read_exec(Query(query))) == asked


@pytest.mark.parametrize("given", ["0", "65536", "-1", "", "1,", "80:80", "٣", "1" * 9, ",".join(["1"] * 33), "http"])
def test_ports_that_are_none(given: str) -> None:
    with pytest.raises(BadRequest, match=r"^ports: "):
        read_ports(Query(f"ports={given}".encode()))


def test_a_pod_that_does_not_say_how_it_is_may_be_asked_for() -> None:
    check_place({"spec": {"nodeName": "n"}}, "{}")
    check_place({"spec": {"nodeName": "n"}, "status": {"phase": "Pending"}}, "{}")
