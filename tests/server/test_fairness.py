"""One user does what it can to keep the server busy; another is served all the same, and memory stays bounded.

Real sockets, TLS and disk. What is asserted is order and numbers, never a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.objects.steps import done_in_turns
from muster.server.admission import Hook
from muster.server.config import ServerLimits
from muster.server.listing import list_answer
from muster.server.negotiation import Form
from muster.server.run import Server
from muster.store.embedded.admission import AdmissionRequest
from tests.server.running import RunningServer, read_all, running
from tests.store.embedded.support import CONFIG_MAPS, open_store
from tests.waiting import blocked_until

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
_LIMITS = ServerLimits(
    in_flight_write_max=2,
    in_flight_reserved=2,
    in_flight_per_user_max=1,
    queue_per_user_len_max=30,
    bodies_per_user_max=40,
    body_held_per_user_bytes_max=2_000_000,
    watch_unread_bytes_max=3_000_000,
    watch_unread_per_user_bytes_max=1_000_000,
    sending_per_user_bytes_max=4_000_000,
    handshakes_per_address_max=60,
)


class Gate(Hook):
    """Writes of objects labelled `gated` wait in the server until they are let through."""

    def __init__(self) -> None:
        self.inside = 0
        self.is_open = threading.Event()

    async def validate(self, request: AdmissionRequest) -> None:
        labels = ((request.object or {}).get("metadata") or {}).get("labels") or {}
        if "gated" not in labels:
            return
        self.inside += 1
        while not self.is_open.is_set():
            await asyncio.sleep(0.005)
        self.inside -= 1


class Stage:
    """A server with a user who floods, one who does not, and a record of what was answered to whom in which order."""

    def __init__(self, server: RunningServer, gate: Gate, audit: list[Raw]) -> None:
        self.server = server
        self.gate = gate
        self.audit = audit
        self.ann, self.ben = (server.user(name) for name in ("ann", "ben"))
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        subjects = [{"kind": "User", "name": name} for name in ("ann", "ben")]
        binding = {"metadata": {"name": "both"}, "roleRef": ref, "subjects": subjects}
        server.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)

    @property
    def flow(self) -> Any:
        return self.server.server._listener._app._flow

    def created(self) -> list[str]:
        """Which of the two users created something, in the order in which they were told. A client may hear of its answer
        before it stands here."""
        made = [line for line in self.audit if line["verb"] == "create" and line["stage"] == "complete" and line["code"] == 201]
        return [line["user"] for line in made if line["user"] in {"ann", "ben"}]

    def refused(self, limit: str) -> float:
        found = self.server.server.metrics.registry.get_sample_value("muster_server_refused_total", {"limit": limit})
        return found or 0.0

    def open(self, request: bytes, *, buffer_bytes: int = 0) -> ssl.SSLSocket:
        plain = socket.socket()
        if buffer_bytes:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        plain.settimeout(60)
        plain.connect(("127.0.0.1", self.server.server.port))
        connection = self.server.tls.wrap_socket(plain, server_hostname="localhost")
        connection.sendall(request)
        return connection


def _head(method: str, path: str, token: str, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"authorization: Bearer {token}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    gate, audit = Gate(), list[Raw]()

    def prepare(server: Server) -> None:
        server.extra_hooks.append(gate)
        server.audit_listener = audit.append

    with running(tmp_path, prepare=prepare, limits=_LIMITS) as server:
        try:
            yield Stage(server, gate, audit)
        finally:
            gate.is_open.set()


# --- a flood


def test_a_flood_of_writes_is_passed_by_another_users_one(stage: Stage) -> None:
    def write(token: str, name: str, labels: Raw) -> int:
        body = {"metadata": {"name": name, "labels": labels}}
        return stage.server.request("POST", MAPS, body, token=token).code

    with ThreadPoolExecutor(40) as pool:
        first = pool.submit(write, stage.ann, "first", {"gated": "yes"})
        also = pool.submit(write, stage.ben, "also", {"gated": "yes"})
        blocked_until(lambda: stage.gate.inside == 2)  # all seats are taken
        flood = [pool.submit(write, stage.ann, f"flood-{n}", {}) for n in range(30)]
        blocked_until(lambda: stage.flow.waiting == 30)
        assert write(stage.ann, "one-more", {}) == 429
        assert stage.server.request("GET", MAPS, token=stage.ben).code == 200, "reads have seats of their own"
        assert stage.server.request("POST", MAPS, {"metadata": {"name": "admin"}}).code == 201, "administrators have a reserve"
        quiet = pool.submit(write, stage.ben, "quiet", {})
        blocked_until(lambda: stage.flow.waiting == 31)
        stage.gate.is_open.set()
        assert {job.result() for job in (first, also, quiet, *flood)} == {201}
    blocked_until(lambda: len(stage.created()) == 33)
    order = stage.created()
    # The two that held the seats end; then at most one of the flood comes before the quiet one.
    assert [at for at, user in enumerate(order) if user == "ben"][1] <= 3
    assert stage.flow.in_flight == stage.flow.waiting == 0


def test_bodies_that_do_not_come_keep_no_seat(stage: Stage) -> None:
    more = ("expect: 100-continue", "content-type: application/json", "content-length: 50")
    with contextlib.ExitStack() as stack:
        for _ in range(_LIMITS.bodies_per_user_max):
            slow = stack.enter_context(stage.open(_head("POST", MAPS, stage.ann, *more)))
            assert slow.recv(100).startswith(b"HTTP/1.1 100")  # the server waits for the body
        refused = stack.enter_context(stage.open(_head("POST", MAPS, stage.ann, *more)))
        assert refused.recv(100).startswith(b"HTTP/1.1 429")
        for number in range(5):
            assert stage.server.request("POST", MAPS, {"metadata": {"name": f"m{number}"}}, token=stage.ben).code == 201
        assert stage.flow.in_flight == 0
        body = json.dumps({"metadata": {"name": "late"}}).encode()
        slow.sendall(body + b" " * (50 - len(body)))
        assert slow.recv(100).startswith(b"HTTP/1.1 201")
    assert stage.refused("bodies_per_user_max") == 1


def test_bytes_of_bodies_are_bounded_for_each_user(stage: Stage) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            head = _head("POST", MAPS, stage.ann, "content-type: application/json", "content-length: 1500000")
            stack.enter_context(stage.open(head)).sendall(b" " * 900_000)
        blocked_until(lambda: stage.flow.bodies.of("ann") == 1_800_000)
        third = stack.enter_context(stage.open(head))
        third.sendall(b" " * 900_000)
        assert third.recv(100).startswith(b"HTTP/1.1 429")
        assert stage.flow.bodies.total <= _LIMITS.body_held_per_user_bytes_max
        big = {"metadata": {"name": "big"}, "data": {"k": "v" * 900_000}}
        assert stage.server.request("POST", MAPS, big, token=stage.ben).code == 201
    blocked_until(lambda: stage.flow.bodies.total == 0)
    assert stage.refused("body_held_per_user_bytes_max") == 1


# --- many watchers


def test_writes_are_acknowledged_before_hundreds_of_watchers_have_their_events(stage: Stage) -> None:
    count, writes = 240, 5
    events = {"group": "", "resource": "configmaps"}
    seen_at_ack: list[float] = []

    def sent() -> float:
        return stage.server.server.metrics.registry.get_sample_value("apiserver_watch_events_total", events) or 0.0

    def on_audit(line: Raw) -> None:
        stage.audit.append(line)
        if line["verb"] == "create" and line["user"] == "ben":
            seen_at_ack.append(sent())

    head = _head("GET", f"{MAPS}?watch=true&resourceVersion={stage.server.server.store.resource_version}", stage.ann)
    with contextlib.ExitStack() as stack:
        watchers = []
        for _ in range(count):
            watchers.append(stack.enter_context(stage.open(head)))
            assert watchers[-1].recv(12) == b"HTTP/1.1 200"
        assert stage.flow.watches == count
        stage.server.server._listener._app.trail.log.listener = on_audit
        for number in range(writes):
            before = sent()
            assert stage.server.request("POST", MAPS, {"metadata": {"name": f"w{number}"}}, token=stage.ben).code == 201
            blocked_until(lambda: len(seen_at_ack) == number + 1)  # noqa: B023
            assert seen_at_ack[-1] - before < count / 2, "the writer waited for those who watch"
            blocked_until(lambda: sent() == (number + 1) * count)  # noqa: B023
        for watcher in watchers:
            text = b""
            while text.count(b'"type":"ADDED"') < writes:
                text += watcher.recv(65536)
            assert [text.index(b'"name":"w%d"' % number) for number in range(writes)] == sorted(
                text.index(b'"name":"w%d"' % number) for number in range(writes)
            )


@pytest.mark.slow
def test_a_thousand_watchers_get_every_event_in_order_and_others_are_served(stage: Stage) -> None:
    people, each, count = [f"watcher-{n}" for n in range(5)], 200, 6
    assert each <= _LIMITS.watches_per_user_max
    _allow_open_files(2 * len(people) * each + 500)
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    binding = {
        "metadata": {"name": "watchers"},
        "roleRef": ref,
        "subjects": [{"kind": "User", "name": name} for name in people],
    }
    stage.server.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    path = f"{PODS}?resourceVersion={stage.server.server.store.resource_version}"
    with contextlib.ExitStack() as stack:
        watches = [
            stack.enter_context(stage.server.watch(path, token=token))
            for token in map(stage.server.user, people)
            for _ in range(each)
        ]
        assert stage.flow.watches == len(watches) == 1000
        expected: list[tuple[str, str, str]] = []

        def write(type_: str, method: str, name: str, body: Raw | None = None) -> None:
            at = PODS if method == "POST" else f"{PODS}/{name}"
            headers = {"content-type": "application/merge-patch+json"} if method == "PATCH" else None
            reply = stage.server.request(method, at, body, token=stage.ben, headers=headers)
            assert reply.code in (200, 201), reply.body
            expected.append((type_, name, reply.json["metadata"]["resourceVersion"] if type_ != "DELETED" else ""))
            # Whoever asks for something else is answered while a thousand are being told.
            assert stage.server.request("GET", MAPS, token=stage.ben).code == 200
            assert stage.server.request("GET", f"{PODS}/none", token=stage.ann).code == 404

        for number in range(count):
            name = f"p{number}"
            spec = {"containers": [{"name": "c", "image": "i"}]}
            write("ADDED", "POST", name, {"metadata": {"name": name}, "spec": spec})
            write("MODIFIED", "PATCH", name, {"metadata": {"labels": {"n": str(number)}}})
        write("DELETED", "DELETE", "p0")
        for watch in watches:
            got: list[tuple[str, str, str]] = []
            versions: list[int] = []
            while len(got) < len(expected):
                event = watch.next()
                meta = event["object"]["metadata"]
                versions.append(int(meta["resourceVersion"]))
                if event["type"] != "BOOKMARK":
                    got.append((event["type"], meta["name"], meta["resourceVersion"] if event["type"] != "DELETED" else ""))
            assert got == expected
            assert versions == sorted(versions)
        assert stage.flow.watches == 1000, "none was cut"
    blocked_until(lambda: stage.flow.watches == 0)
    blocked_until(lambda: stage.flow.unread.total == 0)
    assert stage.server.request("GET", "/healthz", token="").code == 200


def _allow_open_files(count: int) -> None:
    """Both ends of each connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"needs {count} open files; {hard} are allowed here")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def test_watchers_that_read_nothing_are_cut_and_cost_a_bounded_number_of_bytes(stage: Stage) -> None:
    version = stage.server.server.store.resource_version
    head = _head("GET", f"{MAPS}?watch=true&resourceVersion={version}", stage.ann)
    most: list[int] = []
    with contextlib.ExitStack() as stack:
        deaf = [stack.enter_context(stage.open(head, buffer_bytes=4096)) for _ in range(30)]
        blocked_until(lambda: stage.flow.watches == 30)
        with stage.server.watch(MAPS + f"?resourceVersion={version}", token=stage.ben) as watch:
            for number in range(60):
                big = {"metadata": {"name": f"b{number}"}, "data": {"k": "v" * 100_000}}
                assert stage.server.request("POST", MAPS, big, token=stage.ben).code == 201
                assert watch.next()["object"]["metadata"]["name"] == f"b{number}"
                most.append(stage.flow.unread.total)
        assert stage.refused("watch_unread_per_user_bytes_max") >= 10
        # One may pass its bound by what it holds itself: a batch, and what its connection keeps.
        assert max(most) <= _LIMITS.watch_unread_per_user_bytes_max + 300_000
        blocked_until(lambda: stage.flow.watches < 20)
        assert len(deaf) == 30
    blocked_until(lambda: stage.flow.unread.total == 0)
    assert stage.server.request("GET", "/healthz", token="").code == 200


# --- lists of everything


def _fill(server: RunningServer, count: int) -> None:
    async def fill() -> None:
        store = server.server.store
        kind = store.catalog.by_kind("", "ConfigMap")
        for start in range(0, count, 200):
            await asyncio.gather(
                *(store.create_record(kind, _map(n), "default") for n in range(start, min(count, start + 200)))
            )

    server.call(fill())


def _map(number: int) -> Raw:
    labels = {"n": str(number % 10)}
    return {"metadata": {"name": f"m{number:05}", "labels": labels}, "data": {"k": "v" * 1000}}


@pytest.mark.parametrize(
    ("accept", "pieces_min"),
    [
        pytest.param("", 20, id="plain"),
        pytest.param("application/json;as=Table;v=v1;g=meta.k8s.io", 100, id="table"),
        pytest.param("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", 100, id="metadata"),
    ],
)
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_long_list_takes_a_turn_for_each_piece(stage: Stage, accept: str, pieces_min: int, encoding: str) -> None:
    """And others are served between two of them: `test_flow` shows that of turns."""
    _fill(stage.server, 2000)
    turns: list[int] = []
    flow = stage.flow
    turn = flow.turn

    async def counted(whose: Any, cost: float) -> None:
        turns.append(1)
        await turn(whose, cost)

    flow.turn = counted
    reply = stage.server.request("GET", MAPS, token=stage.ann, headers={"accept": accept, "accept-encoding": encoding})
    assert reply.code == 200
    body = gzip.decompress(reply.body) if encoding == "gzip" else reply.body
    shown = json.loads(body)
    names = [(one.get("object") or one)["metadata"]["name"] for one in shown.get("rows") or shown["items"]]
    assert [name for name in names if name.startswith("m")] == [f"m{n:05}" for n in range(2000)]
    assert len(turns) >= pieces_min
    assert flow.in_flight == 0
    blocked_until(lambda: flow.answers.total == 0)


async def test_pieces_are_small_whatever_the_form() -> None:
    store = await open_store()
    resource: Resource = CONFIG_MAPS
    for start in range(0, 300, 100):
        await asyncio.gather(
            *(
                store.create(resource, {**_map(n), "kind": "ConfigMap", "apiVersion": "v1"}, "default")
                for n in range(start, start + 100)
            )
        )

    async def turn() -> None: ...

    for form in (Form(), Form("yaml"), Form("json", "Table"), Form("json", "PartialObjectMetadataList")):
        page = await done_in_turns(store.list_record_steps(resource, "default"), turn)
        answer = await list_answer(resource, page, form, include="Object", now=0.0, turn=turn)
        assert answer.pieces is not None
        pieces = list(answer.pieces)
        assert max(map(len, pieces)) < 200_000
        if answer.is_exact:
            assert sum(map(len, pieces)) == answer.size_bytes
        text = b"".join(pieces)
        for n in range(300):
            assert b"m%05d" % n in text
    await store.close()


def test_lists_that_are_not_read_are_refused_to_whose_they_are(stage: Stage) -> None:
    _fill(stage.server, 3000)
    with contextlib.ExitStack() as stack:
        ask = _head("GET", MAPS, stage.ann, "connection: close")
        unread = [stack.enter_context(stage.open(ask, buffer_bytes=4096)) for _ in range(3)]
        codes = sorted(int(one.recv(12).split()[1]) for one in unread)
        assert codes == [200, 429, 429]
        assert stage.flow.in_flight == 0, "who reads slowly keeps no seat"
        assert stage.server.request("GET", f"{MAPS}/m00001", token=stage.ann).code == 200
        whole = stage.server.request("GET", MAPS, token=stage.ben)
        assert whole.code == 200
        assert len([1 for item in whole.json["items"] if item["metadata"]["name"].startswith("m0")]) == 3000
    blocked_until(lambda: stage.flow.answers.total == 0)


# --- new connections


def test_connections_that_say_nothing_keep_only_their_own_address_out(stage: Stage) -> None:
    with contextlib.closing(stage.server.connect()) as established:

        def get() -> int:
            established.request("GET", MAPS, headers={"authorization": f"Bearer {stage.ben}"})
            answer = established.getresponse()
            answer.read()
            return answer.status

        assert get() == 200
        with contextlib.ExitStack() as stack:
            port, most = stage.server.server.port, _LIMITS.handshakes_per_address_max
            said = stack.enter_context(capture_logs())
            silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(most + 5)]
            blocked_until(lambda: stage.refused("handshakes_per_address_max") == 5)
            closed = silent[-5:]
            with contextlib.suppress(ConnectionError):
                assert [one.recv(1) for one in closed] == [b""] * 5
            told = [(line["address"], line["handshakes_per_address_max"]) for line in said if "too many" in line["event"]]
            assert told == [("127.0.0.1", most)], "told once, not for each"
            for _ in range(20):
                assert get() == 200
            count = stage.server.server.metrics.registry.get_sample_value("muster_server_handshakes")
            assert count == most
        blocked_until(lambda: stage.server.server.metrics.registry.get_sample_value("muster_server_handshakes") == 0)
        assert stage.server.request("GET", "/healthz", token="").code == 200


def test_a_flood_of_wrong_logins_waits_for_its_turns(stage: Stage) -> None:
    """Refusals are turns of the address: they are counted as such, and the answer is the usual one."""
    turns: list[str] = []
    turn = stage.flow.turn

    async def counted(whose: Any, cost: float) -> None:
        turns.append(f"{whose.level} {whose.flow}")
        await turn(whose, cost)

    stage.flow.turn = counted
    for _ in range(3):
        assert stage.server.request("GET", MAPS, token="wrong").code == 401
    assert turns == ["strangers 127.0.0.1"] * 3
    with stage.open(_head("GET", MAPS, stage.ben, "connection: close")) as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 200")
