"""Reading logs: tail, since, stamps, limits, and on while they grow and turn over."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.contracts import LogQuery
from muster.agent.log_files import read_log
from muster.agent.shim.log_writer import LogWriter
from muster.objects.time import parse_time


def ask(**query: object) -> LogQuery:
    return LogQuery(namespace="", pod="", container="", **query)  # type: ignore[arg-type]


async def read(run_dir: Path, **query: object) -> bytes:
    return b"".join([chunk async for chunk in read_log(run_dir, ask(**query), lambda: True)])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path


def lay(run_dir: Path, *entries: str, name: str = "0.log") -> None:
    (run_dir / "log" / name).write_text("".join(f"2026-11-16T00:00:{entry}\n" for entry in entries))


ENTRIES = (
    "01.000000000Z stdout F one",
    "02.000000000Z stderr P tw",
    "03.000000000Z stderr F o",
    "04.000000000Z stdout F three",
)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        pytest.param({}, b"one\ntwo\nthree\n", id="everything, pieces joined"),
        pytest.param({"tail_lines": 0}, b"", id="no line"),
        pytest.param({"tail_lines": 1}, b"three\n", id="the last line"),
        pytest.param({"tail_lines": 2}, b"two\nthree\n", id="a line in pieces is one line"),
        pytest.param({"tail_lines": 99}, b"one\ntwo\nthree\n", id="more than there are"),
        pytest.param({"since": parse_time("2026-11-16T00:00:04Z")}, b"three\n", id="since, itself included"),
        pytest.param({"since": parse_time("2026-11-16T00:00:04.5Z")}, b"", id="since later than all"),
        pytest.param({"limit_bytes": 5}, b"one\nt", id="so many bytes"),
        pytest.param({"limit_bytes": 0}, b"", id="no bytes"),
        pytest.param(
            {"timestamps": True, "tail_lines": 2},
            b"2026-11-16T00:00:02.000000000Z two\n2026-11-16T00:00:04.000000000Z three\n",
            id="stamps, one for each line",
        ),
    ],
)
async def test_what_is_asked_for(run_dir: Path, query: dict[str, object], text: bytes) -> None:
    lay(run_dir, *ENTRIES)

    assert await read(run_dir, **query) == text


async def test_rotated_files_come_first_in_their_order(run_dir: Path) -> None:
    lay(run_dir, "01.000000000Z stdout F a", name="0.log.9")
    lay(run_dir, "02.000000000Z stdout P b", name="0.log.10")
    lay(run_dir, "03.000000000Z stdout F c", "04.000000000Z stdout F d")
    (run_dir / "log" / "0.log.new").write_text("not ours")

    assert await read(run_dir) == b"a\nbc\nd\n"
    assert await read(run_dir, tail_lines=2) == b"bc\nd\n"
    assert await read(run_dir, tail_lines=3) == b"a\nbc\nd\n"


@pytest.mark.parametrize("name", ["log", "nothing"])
async def test_a_log_that_is_not_there(tmp_path: Path, name: str) -> None:
    if name == "log":
        (tmp_path / name).mkdir()

    assert await read(tmp_path) == b""
    assert await read(tmp_path, tail_lines=5) == b""


async def test_the_end_of_a_log_that_was_cut_off(run_dir: Path) -> None:
    """A shim that was killed while it wrote."""
    lay(run_dir, *ENTRIES)
    with (run_dir / "log" / "0.log").open("ab") as f:
        f.write(b"2026-11-16T00:00:05.00")

    assert await read(run_dir) == b"one\ntwo\nthree\n"


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=30), st.integers(0, 40))
def test_tail_is_the_end_of_everything(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], count: int) -> None:
    run_dir = tmp_path_factory.mktemp("tail")
    (run_dir / "log").mkdir()
    writer = LogWriter(str(run_dir / "log"), 200_000, 100)
    lines = [bytes([97 + number % 26]) * size + b"\n" for number, size in enumerate(sizes)]
    for line in lines:
        for start in range(0, len(line), 65536):
            writer.write("stdout", line[start : start + 65536])
    writer.close()

    assert asyncio.run(read(run_dir, tail_lines=count)) == b"".join(
        lines[len(lines) - count :] if count < len(lines) else lines
    )


@pytest.mark.parametrize("seed", range(5))
async def test_following_loses_nothing_and_repeats_nothing(run_dir: Path, seed: int) -> None:
    """A writer that turns its files over while several read, each at its own pace, from the beginning or the end."""
    dice = random.Random(seed)
    writer = LogWriter(str(run_dir / "log"), 4096, 50)
    is_over = False

    async def follow(**query: object) -> bytes:
        return b"".join([chunk async for chunk in read_log(run_dir, ask(follow=True, **query), lambda: is_over)])

    early = asyncio.create_task(follow())
    said: list[bytes] = []
    tails: list[tuple[int, asyncio.Task[bytes]]] = []
    for number in range(1500):
        line = f"line {number} {'.' * dice.randrange(100)}\n".encode()
        cut = dice.randrange(len(line))
        writer.write("stdout", line[:cut])
        writer.write("stdout", line[cut:])
        said.append(line)
        if dice.random() < 0.05:
            await asyncio.sleep(dice.random() * 0.01)
        if number % 500 == 250:
            tails.append((number, asyncio.create_task(follow(tail_lines=1))))
            await asyncio.sleep(0)
    writer.close()
    is_over = True

    assert await early == b"".join(said)
    for number, task in tails:
        assert (await task).startswith((said[number], said[number + 1]))
        assert (await task).endswith(said[-1])
        assert await task in b"".join(said)


async def test_following_ends_with_the_run(run_dir: Path) -> None:
    """Also for a run that has not printed yet, and with what was printed between the last look and the end."""
    is_over = False
    writer: list[LogWriter] = []

    async def pause(_: float) -> None:
        nonlocal is_over
        if not writer:
            writer.append(LogWriter(str(run_dir / "log"), 4096, 2))
            return
        writer[0].write("stdout", b"last words")
        writer[0].close()
        is_over = True

    text = b"".join([chunk async for chunk in read_log(run_dir, ask(follow=True), lambda: is_over, pause)])

    assert text == b"last words"


async def test_following_stops_at_its_limit(run_dir: Path) -> None:
    lay(run_dir, *ENTRIES)

    text = b"".join([chunk async for chunk in read_log(run_dir, ask(follow=True, limit_bytes=6), lambda: False)])

    assert text == b"one\ntw"
