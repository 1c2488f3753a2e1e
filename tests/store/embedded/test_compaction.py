"""Compaction in slices: whoever writes meanwhile is served between them, and what is left is done when nobody writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.store.embedded import EmbeddedStore, Limits
from muster.store.embedded import committer as committing
from muster.store.embedded.database import Database, Row
from tests.store.embedded.support import CONFIG_MAPS, ManualClock, config_map, open_store
from tests.waiting import until

SLICE = 50
VERSIONS = 3000
KEPT = Limits(compact_len_max=SLICE, history_len_max=10**6, history_bytes_max=10**12, history_age_s=1e12)
"""History goes only when a test says so, and then in small slices."""


async def with_history(path: Path) -> None:
    """A store with one object of many versions."""
    database = Database.open(path, identity=b"i" * 16)
    rows = []
    for rv in range(2, VERSIONS + 2):
        meta = b'{"name":"c","namespace":"default","uid":"u","resourceVersion":"%d"}' % rv
        value = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":%b,"data":{"t":"%b"}}' % (meta, b"x" * 500)
        rows.append(Row(rv, "configmaps", "default", "c", 1 if rv == 2 else 2, rv - 1 if rv > 2 else None, value))
    for start in range(0, len(rows), 1000):
        database.commit(rows[start : start + 1000])
    database.close()
    store = await open_store(path, limits=KEPT)
    await store.close()


async def test_writes_are_acknowledged_between_slices(tmp_path: Path) -> None:
    await with_history(tmp_path)
    clock = ManualClock()
    store = await EmbeddedStore.open(tmp_path, clock=clock, limits=KEPT)
    assert store.usage().history_len >= VERSIONS
    store.compact()
    between = 0
    number = 0
    while True:
        await store.create(CONFIG_MAPS, config_map(f"w{number}"), "default")
        number += 1
        usage = store.usage()
        if number > 1 and not usage.compaction_backlog_len:
            break
        between += 1
        assert number < 10 * VERSIONS
    assert between >= 3, "the whole of it was removed before the first write was answered"
    usage = store.usage()
    assert usage.compaction_slices >= VERSIONS // SLICE
    assert usage.compacted_at == clock.now
    await store.close()
    database = Database.open_to_read(tmp_path)
    assert len(list(database.load())) == number + 2, "the namespace, the object and what was written"
    database.abandon()


async def test_what_is_left_is_done_when_nobody_writes(tmp_path: Path) -> None:
    await with_history(tmp_path)
    store = await EmbeddedStore.open(tmp_path, clock=ManualClock(), limits=KEPT)
    store.compact()
    await store.create(CONFIG_MAPS, config_map("last"), "default")

    async def is_done() -> bool:
        return store.usage().compaction_backlog_len == 0

    await until(is_done)
    assert store.usage().compaction_slices >= VERSIONS // SLICE
    await store.close()


async def test_the_log_is_emptied_when_nobody_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "REST_AFTER_S", 0.05)
    store = await open_store(tmp_path)
    for number in range(20):
        await store.create(CONFIG_MAPS, config_map(f"c{number}", {"t": "x" * 5000}), "default")
    assert store.usage().file_bytes > 0

    async def is_empty() -> bool:
        return store.usage().wal_bytes == 0

    await until(is_empty)
    await store.create(CONFIG_MAPS, config_map("after"), "default")
    await store.close()


def test_the_log_stays_bounded_under_writes(tmp_path: Path) -> None:
    database = Database.open(tmp_path, identity=b"", wal_pages_max=64)
    largest = 0
    for rv in range(2, 600):
        database.commit([Row(rv, "pods", "default", f"p{rv}", 1, None, b"x" * 8000)])
        database.maintain(100)
        largest = max(largest, database.wal_bytes())
    assert database.checkpoints > 5
    assert largest < 2 * 64 * 4200 + 100_000
    database.close()
