"""Whatever is printed, in whatever pieces: the log gives back exactly that, and is never larger than it may be."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.contracts import LogQuery
from muster.agent.log_files import read_log
from muster.agent.shim.log_writer import LINE_BYTES_MAX, LogWriter

ENTRY = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) [PF] [^\n]*\n")
PRINTED = st.lists(
    st.tuples(
        st.sampled_from(["stdout", "stderr", "flush"]),
        st.one_of(
            st.binary(max_size=300), st.sampled_from([b"\n", b"a\n", b"\n\n\n", b"x" * 3000, b"y" * 5000 + b"\nz", b"\r"])
        ),
    ),
    max_size=30,
)


def write(directory: Path, printed: list[tuple[str, bytes]], bytes_max: int = 10**9, files_max: int = 2) -> None:
    writer = LogWriter(str(directory), bytes_max, files_max)
    for stream, data in printed:
        if stream == "flush":
            writer.flush()
        else:
            writer.write(stream, data)
    writer.close()


def read(run_dir: Path, **query: object) -> bytes:
    asked = LogQuery(namespace="", pod="", container="", **query)  # type: ignore[arg-type]

    async def collect() -> bytes:
        return b"".join([chunk async for chunk in read_log(run_dir, asked, lambda: True)])

    return asyncio.run(collect())


@given(PRINTED, st.integers(1, 4000))
def test_one_stream_comes_back_as_it_was_printed(printed: list[tuple[str, bytes]], line_max: int) -> None:
    printed = [("stdout" if stream == "stderr" else stream, data) for stream, data in printed]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "log"
        directory.mkdir()
        writer = LogWriter(str(directory), 10**9, 2)
        writer._line_max = line_max
        for stream, data in printed:
            if stream == "flush":
                writer.flush()
            else:
                writer.write(stream, data)
        writer.close()

        assert read(Path(name)) == b"".join(data for stream, data in printed if stream == "stdout")


@given(PRINTED)
def test_two_streams_keep_their_lines_whole(printed: list[tuple[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "log"
        directory.mkdir()
        write(directory, printed)

        text = read(Path(name))

    lines = text.split(b"\n")
    for stream in ("stdout", "stderr"):
        said = b"".join(data for where, data in printed if where == stream).split(b"\n")
        for line in said[:-1]:
            assert line in lines
    assert len(text.replace(b"\n", b"")) == sum(len(data.replace(b"\n", b"")) for where, data in printed if where != "flush")


@given(PRINTED, st.integers(1024, 8000), st.integers(1, 4))
def test_never_larger_than_allowed_and_every_entry_whole(
    printed: list[tuple[str, bytes]], bytes_max: int, files_max: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "log"
        directory.mkdir()
        write(directory, printed * 5, bytes_max, files_max)

        files = list(directory.iterdir())
        assert len(files) <= files_max
        for path in files:
            data = path.read_bytes()
            assert len(data) <= bytes_max
            assert b"".join(found[0] for found in ENTRY.finditer(data)) == data


def test_a_line_of_any_length_is_written_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    write(tmp_path / "log", [("stdout", b"a" * LINE_BYTES_MAX)] * 3 + [("stdout", b"\nend")])

    entries = (tmp_path / "log" / "0.log").read_bytes().splitlines()

    assert [entry.split(b" ")[2] for entry in entries] == [b"P", b"P", b"F", b"P"]
    assert read(tmp_path) == b"a" * LINE_BYTES_MAX * 3 + b"\nend"


def test_it_goes_on_where_another_stopped(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    for number in range(200):
        write(tmp_path / "log", [("stdout", f"line {number} {'-' * 40}\n".encode())], bytes_max=1024, files_max=3)

    names = sorted(path.name for path in (tmp_path / "log").iterdir())
    lines = read(tmp_path).splitlines()

    assert len(names) == 3
    assert lines[-1].startswith(b"line 199 ")
    assert [int(line.split()[1]) for line in lines] == list(range(200 - len(lines), 200))


def test_a_full_disk_loses_text_and_nothing_else(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("/dev/full: not on this machine")
    (tmp_path / "log").mkdir()
    writer = LogWriter(str(tmp_path / "log"), 4096, 2)
    kept = writer._fd
    with full.open("wb") as f:
        writer._fd = f.fileno()
        writer.write("stdout", b"lost\n")
    writer._fd = kept
    writer.write("stdout", b"kept\n")
    writer.close()

    assert writer.lost_bytes > 0
    assert read(tmp_path) == b"kept\n"


def test_what_prints_nothing_has_no_file(tmp_path: Path) -> None:
    write(tmp_path / "log", [("stdout", b""), ("flush", b"")])
    assert list(tmp_path.iterdir()) == []
    assert read(tmp_path) == b""
    write(tmp_path / "log", [("stdout", b"x")])
    assert read(tmp_path) == b"x"


def test_a_log_that_can_not_be_made_loses_text_and_nothing_else(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path / "none" / "log"), 4096, 2)
    writer.write("stdout", b"lost\n")
    assert writer.lost_bytes > 0
    (tmp_path / "none").mkdir()
    writer.write("stdout", b"kept\n")
    writer.close()
    assert read(tmp_path / "none") == b"kept\n"
