"""The audit log: one line per request, rotation, and what never appears in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from muster.server.audit import AuditLog
from muster.server.config import ServerLimits
from tests.server.running import running


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_who_did_what_and_how_it_ended(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        secret = {"metadata": {"name": "s"}, "stringData": {"password": "hunter2hunter2"}}
        server.create("/api/v1/namespaces/default/secrets", secret)
        server.request("GET", "/api/v1/namespaces/default/pods/nobody", headers={"user-agent": "probe/1"})
        server.request("GET", "/api/v1/nodes", headers={"Impersonate-User": "bob"})
        server.request("GET", "/api", token="wrong-token-value")
        server.request("GET", "/api/v1/namespaces?watch=true&timeoutSeconds=1")
        token = server.token
    text = (tmp_path / "audit" / "audit.jsonl").read_text()
    for hidden in ("hunter2hunter2", token, "wrong-token-value"):
        assert hidden not in text
    lines = _lines(tmp_path / "audit" / "audit.jsonl")
    created, missing, refused, unknown, started, ended = lines
    assert (created["user"], created["verb"], created["code"], created["stage"]) == ("admin", "create", 201, "complete")
    assert created["object"]["resource"] == "secrets"
    assert created["ms"] > 0
    assert (missing["code"], missing["reason"], missing["agent"]) == (404, "NotFound", "probe/1")
    assert (refused["user"], refused["impersonator"], refused["code"]) == ("bob", "admin", 403)
    assert (unknown["user"], unknown["code"]) == ("", 401)
    assert (started["stage"], ended["stage"], started["id"]) == ("started", "complete", ended["id"])
    assert len({line["id"] for line in lines}) == 5


async def test_rotation(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl", ServerLimits(audit_file_bytes_max=1000, audit_files_max=3))
    log.open()
    for n in range(40):
        log._flush([json.dumps({"n": n, "pad": "x" * 80}).encode()])
    await log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["a.jsonl", "a.jsonl.1", "a.jsonl.2"]
    numbers = [line["n"] for name in reversed(files) for line in _lines(tmp_path / name)]
    assert numbers == list(range(numbers[0], 40)), "the newest lines, in order, none twice"
    assert all((tmp_path / name).stat().st_size <= 1000 for name in files)


async def test_nothing_is_lost_at_close_and_the_buffer_is_bounded(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl", ServerLimits(audit_buffer_lines_max=10))
    log.open()
    for n in range(15):
        log.write({"n": n})
    await log.close()
    assert [line["n"] for line in _lines(tmp_path / "a.jsonl")] == list(range(10))
    assert log.dropped == 5


async def test_a_file_that_can_not_be_written_fails_nobody(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl", ServerLimits())
    log.open()
    os.close(log._fd)
    log._fd = os.open("/dev/full", os.O_WRONLY)  # every write says that the disk is full
    log.write({"n": 1})
    await log.close()
    assert log.dropped == 1
