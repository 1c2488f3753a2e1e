"""Every operation on the disk fails once, by its number: no answered write is lost, no failed one shows, nothing gets stuck.

The points of failure are counted over writes, syncs and truncations of the file and its log; MUSTER_SOAK=1 tries more of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

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
