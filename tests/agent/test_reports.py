"""What tasks say about themselves, whatever they write."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.contracts import Traffic
from muster.agent.reports import (
    ANNOTATION_BYTES_MAX,
    LINE_BYTES_MAX,
    LINES_MAX,
    NAME,
    RECORDS_MAX,
    Report,
    Tail,
    make_directory,
    traffic_annotation,
)


def said(*lines: str) -> Report:
    report = Report()
    report.feed("".join(f"{line}\n" for line in lines).encode())
    return report


@pytest.mark.parametrize(
    ("lines", "progress", "records"),
    [
        (['{"progress": 0.5}'], 0.5, {}),
        (['{"progress": 1}', '{"progress": 0.25}'], 0.25, {}),
        (['{"progress": 7}'], 1.0, {}),
        (['{"progress": -1}'], 0.0, {}),
        (['{"records": {"rows": 1}}', '{"records": {"rows": 2, "x": [1]}}'], None, {"rows": 2, "x": [1]}),
        (["nonsense", "[]", '{"progress": "half"}', '{"progress": true}', '{"records": 3}', "", '{"progress": 0.5}'], 0.5, {}),
        (['{"progress": 1e999}'], None, {}),
        ([json.dumps({"records": {str(n): n for n in range(RECORDS_MAX + 1)}})], None, {}),
        ([json.dumps({"records": {"k" * 200: 1}})], None, {}),
        (["x" * (LINE_BYTES_MAX + 1), '{"progress": 0.1}'], 0.1, {}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_lines(lines: list[str], progress: float | None, records: dict[str, object]) -> None:
    report = said(*lines)
    assert (report.progress, report.records) == (progress, records)


def test_a_line_that_comes_in_pieces() -> None:
    report = Report()
    for byte in b'{"progress": 0.125}':
        report.feed(bytes([byte]))
    assert report.progress is None
    report.feed(b"\n")
    assert report.annotations() == {"muster.dev/progress": "0.125"}


@given(st.lists(st.binary(max_size=40_000), max_size=6))
def test_anything_at_all_stays_within_bounds(pieces: list[bytes]) -> None:
    report = Report()
    for piece in pieces:
        report.feed(piece)
    assert sum(len(value) for value in report.annotations().values()) <= ANNOTATION_BYTES_MAX + 64


def test_a_file_that_is_truncated_replaced_or_worse(tmp_path: Path) -> None:
    make_directory(tmp_path / "r", os.getuid())
    path = tmp_path / "r" / NAME
    tail = Tail(path)
    assert not tail.poll()
    path.write_text('{"progress": 0.1}\n')
    assert tail.poll()
    assert not tail.poll()
    path.write_text('{"progress": 1}\n')
    assert tail.poll()
    path.unlink()
    assert not tail.poll()
    path.symlink_to("/etc/passwd")
    assert not tail.poll()
    path.unlink()
    os.mkfifo(path)
    assert not tail.poll()
    path.unlink()
    path.mkdir()
    assert not tail.poll()
    path.rmdir()
    path.write_text("x" * 3_000_000 + '\n{"progress": 0.75}\n')
    assert tail.poll()
    assert tail.report.progress == 0.75


def test_traffic() -> None:
    assert traffic_annotation(Traffic(1, 2)) == {"muster.dev/traffic": '{"sentBytes":1,"receivedBytes":2}'}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could be made to change what is not its own")
def test_a_link_that_the_task_puts_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that comes back makes the file again, while the task is running and owns the directory."""
    victim = tmp_path / "victim"
    victim.touch(mode=0o600)
    top = tmp_path / "r"
    make_directory(top, 12345)
    (top / NAME).unlink()
    real = os.open

    def open_and_swap(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd = real(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            (top / NAME).unlink()
            (top / NAME).symlink_to(victim)
        return fd

    monkeypatch.setattr(os, "open", open_and_swap)
    make_directory(top, 12345)
    assert (top / NAME).is_symlink()
    assert (victim.stat().st_mode & 0o777, victim.stat().st_uid) == (0o600, 0)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"progress": ' + b"9" * 400 + b"}", id="more than a float can hold"),
        pytest.param(b'{"progress": -' + b"9" * 400 + b"}", id="less"),
        *(pytest.param(b'{"records": {"a": ' + b"[" * n + b"]" * n + b"}}", id=f"nested {n}") for n in (950, 978, 990, 5000)),
    ],
)
def test_lines_that_no_reader_likes(line: bytes) -> None:
    report = Report()
    report.feed(line + b'\n{"records": {"b": 1}}\n')
    assert json.loads(report.annotations()["muster.dev/records"])["b"] == 1


def test_of_many_lines_the_last_count() -> None:
    report = Report()
    report.feed(b"".join(b'{"progress": 0.%d}\n' % (n % 10) for n in range(10 * LINES_MAX)) + b'{"progress": 0.25}\n')
    assert report.progress == 0.25
    assert report.refused == 9 * LINES_MAX + 1
