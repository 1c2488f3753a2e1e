"""Every operation on the disk fails once, by its number: no answered write is lost, no failed one shows, nothing gets stuck.

The points of failure are counted over writes, syncs and truncations of the file and its log; MUSTER_SOAK=1 tries more of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from muster.objects.status import ApiError, InternalError, StorageFull
from muster.store.embedded import EmbeddedStore, Limits
from muster.store.embedded.database import CommitFailed, Database, Row
from tests.store.embedded.faulty import FaultyDisk, faulty_disk
from tests.store.embedded.support import CONFIG_MAPS, ManualClock, config_map, open_store

POINTS = 400 if os.environ.get("MUSTER_SOAK") else 24
TINY = Limits(history_len_max=10, compact_len_max=5, wal_pages_max=4)


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with faulty_disk() as made:
        yield made


def value(version: int) -> bytes:
    return b'{"v":%d,"x":"%b"}' % (version, b"y" * (version * 997 % 9000))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("full", [True, False], ids=["full", "broken"])
@pytest.mark.parametrize("length", [1, 3, 1000], ids=["once", "thrice", "for good"])
def test_rows_at_every_operation(tmp_path: Path, disk: FaultyDisk, full: bool, length: int) -> None:
    for point in range(POINTS):
        directory = tmp_path / str(point)
        database = Database.open(directory, identity=b"0123456789abcdef", wal_pages_max=4)
        accepted: list[Row] = []
        failures: list[CommitFailed] = []
        disk.fail(point, length, full=full)
        for version in range(2, 22):
            rows = [Row(version * 10 + n, "pods", "default", "a", 1, None, value(version)) for n in range(version % 3 + 1)]
            try:
                database.commit(rows)
            except CommitFailed as failure:
                failures.append(failure)
            else:
                accepted += rows
            database.maintain(10)
        disk.fail(0, 0, full=False)
        assert all(failure.full is full for failure in failures)
        assert list(database.load()) == accepted, f"failing from operation {point} on"
        database.commit([Row(9999, "pods", "default", "a", 1, None, b"{}")])
        database.abandon()
        again = Database.open(directory, identity=b"")
        assert list(again.load())[:-1] == accepted, f"after a restart; failing from operation {point} on"
        again.close()


async def write(store: EmbeddedStore, name: str, text: str, accepted: dict[str, str], refused: list[ApiError]) -> None:
    try:
        if name in accepted:
            await store.patch(CONFIG_MAPS, name, {"data": {"v": text}}, "default")
        else:
            await store.create(CONFIG_MAPS, config_map(name, {"v": text}), "default")
    except ApiError as error:
        refused.append(error)
    else:
        accepted[name] = text


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("full", [True, False], ids=["full", "broken"])
async def test_the_store_at_every_operation(tmp_path: Path, disk: FaultyDisk, full: bool) -> None:
    for point in range(0, POINTS, 3):
        directory = tmp_path / str(point)
        store = await open_store(directory, limits=TINY)
        disk.fail(point, 4, full=full)
        accepted: dict[str, str] = {}
        refused: list[ApiError] = []
        for round_ in range(8):
            texts = {f"m{n}": f"{round_}-{'x' * n * 500}" for n in range(4)}
            await asyncio.gather(*(write(store, name, text, accepted, refused) for name, text in texts.items()))
            found = {r.name: r.raw()["data"]["v"] for r in store.list_records(CONFIG_MAPS).records}
            assert found == accepted, f"failing from operation {point} on"
        disk.fail(0, 0, full=False)
        assert all(isinstance(error, StorageFull if full else InternalError) for error in refused), refused
        await write(store, "last", "one", accepted, refused)
        assert "last" in accepted
        await store.close()
        again = await EmbeddedStore.open(directory, clock=ManualClock())
        found = {r.name: r.raw()["data"]["v"] for r in again.list_records(CONFIG_MAPS).records}
        assert found == accepted
        await again.close()


def test_faults_are_really_injected(tmp_path: Path, disk: FaultyDisk) -> None:
    database = Database.open(tmp_path, identity=b"")
    disk.fail(0, 1, full=False)
    with pytest.raises(CommitFailed, match="I/O error"):
        database.commit([Row(2, "pods", "default", "a", 1, None, b"{}")])
    assert disk.failed == 1
    database.close()


# --- the power fails afterwards --------------------------------------------------------------------------------------


def small(version: int) -> Row:
    return Row(version, "pods", "default", "a", 1, None, b"x" * 100)


def test_nothing_answered_stands_behind_a_gap(tmp_path: Path, disk: FaultyDisk) -> None:
    """Housekeeping leaves what it wrote to the flush of the next batch. That flush fails and forgets it; the one after that
    batch succeeds, and is worth nothing if what was forgotten comes first in the log."""
    database = Database.open(tmp_path / "store", identity=b"0123456789abcdef")
    database.commit([small(version) for version in range(2, 20)])
    database.doom(range(2, 10), 9)
    assert database.maintain(50)
    disk.fail(2, 1, full=False)  # two pages of the log, and then the flush
    with pytest.raises(CommitFailed):
        database.commit([small(30)])
    database.commit([small(31)])
    disk.after_power_cut(tmp_path / "store", tmp_path / "copy")
    database.abandon()
    again = Database.open(tmp_path / "copy", identity=b"")
    assert [row.rv for row in again.load()] == [*range(10, 20), 31]
    again.close()


@pytest.mark.parametrize("seed", range(POINTS))
def test_what_was_answered_is_there_after_a_power_cut_and_what_failed_is_not(
    tmp_path: Path, disk: FaultyDisk, seed: int
) -> None:
    draw = random.Random(seed)
    database = Database.open(tmp_path / "store", identity=b"0123456789abcdef", wal_pages_max=8)
    answered: set[int] = set()
    failed: set[int] = set()
    last = 1
    for _ in range(draw.randrange(5, 50)):
        if draw.random() < 0.2:
            disk.fail(draw.randrange(12), draw.choice([1, 1, 3]), full=False)
        act = draw.choice(["commit", "commit", "commit", "commit", "maintain", "a little", "rest", "probe", "doom"])
        if act == "commit":
            rows = [small(last + n) for n in range(1, draw.choice([1, 1, 2, 5, 64, 65, 130]) + 1)]
            last += len(rows)
            try:
                database.commit(rows)
            except CommitFailed:
                failed |= {row.rv for row in rows}
            else:
                answered |= {row.rv for row in rows}
        elif act == "maintain":
            database.maintain(draw.randrange(1, 50))
        elif act == "a little":
            database.maintain_a_little(draw.randrange(1, 10))
        elif act == "rest":
            database.rest()
        elif act == "probe":
            database.probe()
        elif answered:
            doomed = draw.sample(sorted(answered), min(len(answered), 20))
            answered -= set(doomed)
            database.doom(doomed, max(doomed))
    disk.fail(0, 0, full=False)
    database.commit([small(last + 1)])
    disk.after_power_cut(tmp_path / "store", tmp_path / "copy")
    database.abandon()
    again = Database.open(tmp_path / "copy", identity=b"")
    found = {row.rv for row in again.load()}
    assert answered | {last + 1} <= found
    assert not failed & found
    again.close()


class Balky:
    """A connection of which one call fails, before it has done anything or after it has done all."""

    def __init__(self, connection: apsw.Connection, number: int, *, is_done: bool) -> None:
        self._connection = connection
        self._left = number
        self._is_done = is_done

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)
        if name not in ("execute", "wal_checkpoint"):
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._is_done:
                raise apsw.IOError("injected")
            result = found(*args, **options)
            if self._left == 0:
                raise apsw.IOError("injected")
            return result

        return call


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 16))
@pytest.mark.parametrize("count", [1, 100], ids=["one statement", "several"])
def test_every_call_into_sqlite_may_fail(tmp_path: Path, number: int, count: int, is_done: bool) -> None:
    """Whatever is left of it, the next batch is on disk when it is said to be, and is no part of anything else."""
    database = Database.open(tmp_path, identity=b"0123456789abcdef", wal_pages_max=1)
    connection = database._connection
    database.commit([small(version) for version in range(2, 20)])
    database.doom(range(2, 10), 9)
    database._connection = Balky(connection, number, is_done=is_done)  # type: ignore[assignment]
    answered = list(range(10, 20))
    for version in (100, 300):
        database.maintain(50)
        with contextlib.suppress(CommitFailed):
            database.commit([small(version + n) for n in range(count)])
            assert list(connection.execute("PRAGMA synchronous")) == [(2,)]  # FULL
            assert not connection.in_transaction
            answered += range(version, version + count)
    database._connection = connection
    found = [row.rv for row in database.load()]
    if not is_done:
        assert [version for version in found if version >= 10] == answered
    assert set(answered) <= set(found)
    database.close()
