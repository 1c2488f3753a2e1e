"""`GET /muster/v1/backup`, and what a server says of itself while its disk is full."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from muster.server.config import ServerLimits
from muster.store.embedded.archive import KEYS, Contents, read
from muster.store.embedded.database import Row
from tests.server.running import RunningServer, running
from tests.waiting import blocked_until

PATH = "/muster/v1/backup"


def fetch(server: RunningServer) -> tuple[Contents, dict[tuple[str, str, str], Any]]:
    reply = server.request("GET", PATH)
    assert reply.code == 200, reply.body
    assert reply.headers["content-type"] == "application/x-tar"
    assert reply.headers["cache-control"] == "no-store"
    rows: list[Row] = []
    contents = read(io.BytesIO(reply.body), rows.extend)
    return contents, {(row.resource, row.namespace, row.name): json.loads(row.value) for row in rows}


def metric(server: RunningServer, name: str) -> float:
    for line in server.request("GET", "/metrics").body.decode().splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[-1])
    raise AssertionError(f"no metric {name}")


def test_everything_at_one_version_and_no_keys(server: RunningServer, namespace: str) -> None:
    secret = server.create(f"/api/v1/namespaces/{namespace}/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    before = metric(server, 'muster_backups_total{result="success"}')
    contents, objects = fetch(server)
    assert objects["secrets", namespace, "s"] == secret
    assert contents.keys == {}
    assert not contents.manifest.keys
    assert contents.manifest.resource_version >= int(secret["metadata"]["resourceVersion"])
    for kind in ("namespaces", "secrets", "clusterroles"):
        listed = server.request(
            "GET", f"/{'apis/rbac.authorization.k8s.io' if kind == 'clusterroles' else 'api'}/v1/{kind}"
        ).json["items"]
        assert {name for resource, _, name in objects if resource.split(".")[0] == kind} == {
            item["metadata"]["name"] for item in listed
        }
    assert metric(server, 'muster_backups_total{result="success"}') == before + 1
    assert metric(server, "muster_backup_last_success_timestamp_seconds") > 0


def _page(server: RunningServer) -> str:
    return server.request("GET", "/metrics").body.decode()


def test_private_keys_never_leave_over_the_network(server: RunningServer) -> None:
    body = server.request("GET", PATH).body
    for name in KEYS:
        assert f"keys/{name}".encode() not in body


def test_only_who_may(server: RunningServer) -> None:
    token = server.user("backup-nobody")
    reply = server.request("GET", PATH, token=token)
    assert (reply.code, reply.reason) == (403, "Forbidden")
    assert server.request("GET", PATH, token="").code == 401
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = {"metadata": {"name": "backup"}, "rules": [{"nonResourceURLs": [PATH], "verbs": ["get"]}]}
    server.create(f"{rbac}/clusterroles", role)
    binding = {
        "metadata": {"name": "backup"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "backup"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "backup-nobody"}],
    }
    server.create(f"{rbac}/clusterrolebindings", binding)
    assert server.request("GET", PATH, token=token).code == 200
    assert server.request("GET", "/api/v1/secrets", token=token).code == 403


@pytest.mark.parametrize("role", ["admin", "edit", "view"])
def test_no_lesser_role_has_it(server: RunningServer, role: str) -> None:
    rules = server.request("GET", f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}").json["rules"]
    urls = [url for rule in rules for url in rule.get("nonResourceURLs", ())]
    assert not [url for url in urls if url in ("*", PATH) or (url.endswith("*") and PATH.startswith(url[:-1]))]


def test_head_tells_without_taking_one(server: RunningServer) -> None:
    reply = server.request("HEAD", PATH)
    assert reply.code == 200
    assert reply.body == b""
    assert int(reply.headers["muster-backup-objects"]) > 0
    assert int(reply.headers["muster-backup-resource-version"]) > 0
    assert server.request("POST", PATH, {}).code == 405


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With more to send than fits into the buffers of a connection."""
    with running(tmp_path_factory.mktemp("large"), limits=ServerLimits()) as made:
        for number in range(60):
            text = _noise(number)
            made.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": f"n{number}"}, "data": {"text": text}})
        yield made


def _noise(number: int) -> str:
    return random.Random(number).randbytes(300_000).hex()


@contextlib.contextmanager
def not_reading(server: RunningServer) -> Iterator[None]:
    """A client that asks for a backup and reads nothing of it."""
    with server.raw_socket() as connection:
        connection.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n".encode())
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        yield


@contextlib.contextmanager
def impatient(server: RunningServer) -> Iterator[None]:
    """A short limit for what is sent meanwhile. Not for all of the tests: on a busy machine anybody may read slowly."""
    limits = server.server.config.limits
    usual_s = limits.send_timeout_s
    msgspec.structs.force_setattr(limits, "send_timeout_s", 2.0)
    try:
        yield
    finally:
        msgspec.structs.force_setattr(limits, "send_timeout_s", usual_s)


def until_free(server: RunningServer) -> None:
    blocked_until(lambda: server.request("HEAD", PATH).code == 200)


def test_one_at_a_time(large: RunningServer) -> None:
    until_free(large)
    with not_reading(large):
        reply = large.request("GET", PATH)
        assert (reply.code, reply.reason) == (429, "TooManyRequests")
        assert "one at a time" in reply.message
        assert large.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "meanwhile"}})
    until_free(large)
    contents, objects = fetch(large)
    assert ("configmaps", "default", "meanwhile") in objects
    assert contents.manifest.objects == len(objects)


def test_who_does_not_read_is_cut_off(large: RunningServer) -> None:
    until_free(large)
    failures = metric(large, 'muster_backups_total{result="failure"}')
    with impatient(large), not_reading(large):
        blocked_until(lambda: metric(large, 'muster_backups_total{result="failure"}') == failures + 1)
    fetch(large)


def test_who_goes_away_frees_the_place(large: RunningServer) -> None:
    until_free(large)
    with not_reading(large):
        pass
    blocked_until(lambda: large.request("GET", PATH).code == 200)


def test_a_full_disk_shows_and_heals(tmp_path: Path) -> None:
    """By SQLite's own bound on the file's pages, which gives the same answer as a full disk."""
    with running(tmp_path) as server:
        path = "/api/v1/namespaces/default/configmaps"
        assert server.request("GET", "/readyz").code == 200
        server.call(_bound_pages(server, "page_count"))
        number = 0
        while (
            reply := server.request("POST", path, {"metadata": {"name": f"c{number}"}, "data": {"t": "x" * 5000}})
        ).code == 201:
            number += 1
            assert number < 1000
        assert (reply.code, reply.reason) == (507, "InsufficientStorage")
        assert "make room, then send it again" in reply.message
        ready = server.request("GET", "/readyz")
        assert ready.code == 503
        assert b"[-]store failed: storage can't be written" in ready.body
        assert server.request("GET", "/livez").code == 200, "a restart would not help"
        assert len(server.request("GET", path).json["items"]) >= number, "reads go on"
        assert metric(server, "muster_store_writable") == 0
        server.call(_bound_pages(server, "1000000"))
        blocked_until(lambda: server.request("GET", "/readyz").code == 200)
        assert metric(server, "muster_store_writable") == 1
        assert server.request("POST", path, {"metadata": {"name": "after"}}).code == 201


async def _bound_pages(server: RunningServer, bound: str) -> None:
    database = server.server.store._database
    assert database is not None
    connection = database._connection
    while True:
        try:
            if bound == "page_count":
                bound = str(connection.execute("PRAGMA page_count").fetchall()[0][0])
            connection.execute(f"PRAGMA max_page_count={bound}").fetchall()
            return
        except apsw.ThreadingViolationError:
            continue  # the committer's thread uses it just now
