"""Events of `events.k8s.io` in stores and backups of format 1, which kept them apart: all are there afterwards."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import apsw
import pytest

from muster.objects.catalog import CATALOG
from muster.objects.status import Raw
from muster.store.contract import EventType
from muster.store.embedded import EmbeddedStore, StoreCorrupt, archive
from muster.store.embedded.database import Row
from muster.store.embedded.migrations import copy_path
from muster.store.embedded.records import encode
from muster.store.embedded.restoring import restore
from muster.store.embedded.snapshot import snapshot_of_rows
from tests.store.embedded.support import START, ManualClock
from tests.store.embedded.test_migrations import FORMATS, made_from

OLD, NEW = CATALOG.by_kind("", "Event"), CATALOG.by_kind("events.k8s.io", "Event")
_LONG = "x" * 250


def event(group: str, name: str, uid: str, text: str, rv: int) -> bytes:
    meta = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(rv)}
    raw: Raw = {"apiVersion": "v1", "kind": "Event", "metadata": meta, "message": text, "involvedObject": {"name": "p"}}
    if group:
        raw = {"apiVersion": f"{group}/v1", "kind": "Event", "metadata": meta, "note": text, "regarding": {"name": "p"}}
    return encode(raw)


def rows(first: int) -> list[Row]:
    """Of both groups: with names of their own, with one name in both, changed and deleted ones."""
    made: list[Row] = []

    def add(group: str, name: str, uid: str, text: str, type_: int, prev: int | None = None) -> int:
        rv = first + len(made)
        made.append(
            Row(rv, f"events.{group}" if group else "events", "default", name, type_, prev, event(group, name, uid, text, rv))
        )
        return rv

    new = "events.k8s.io"
    add("", "old", "u1", "of the old group", 1)
    was = add(new, "new", "u2", "of the new group", 1)
    add(new, "new", "u2", "changed", 2, was)
    add("", "both", "u3", "old", 1)
    was = add(new, "both", "u4", "new", 1)
    add(new, "both", "u4", "new, changed", 2, was)
    was = add(new, "gone", "u5", "gone", 1)
    add(new, "gone", "u5", "gone", 3, was)
    add("", _LONG, "u6", "old", 1)
    add(new, _LONG, "u7", "new", 1)
    return made


EXPECTED = {
    "old": ("u1", "of the old group"),
    "new": ("u2", "changed"),
    "both": ("u3", "old"),
    "both.events.k8s.io": ("u4", "new, changed"),
    _LONG: ("u6", "old"),
    _LONG[:239] + ".events.k8s.io": ("u7", "new"),
}


def old_store(directory: Path, extra: list[Row] | None = None) -> Path:
    path = made_from(FORMATS / "format-1.sql", directory)
    connection = apsw.Connection(str(path))
    found = connection.execute("SELECT max(rv) FROM log").fetchall()[0][0]
    assert isinstance(found, int)
    for row in [*rows(found + 1), *(extra or [])]:
        connection.execute("INSERT INTO log VALUES(?,?,?,?,?,?,?,?)", (*row[:6], zlib.crc32(row.value), row.value))
    connection.close()
    return path


async def check(store: EmbeddedStore) -> None:
    found = {r.name: r.raw() for r in store.list_records(OLD, "default").records}
    assert {name: (raw["metadata"]["uid"], raw["message"]) for name, raw in found.items()} == EXPECTED
    assert all(raw["metadata"]["name"] == name and raw["involvedObject"] == {"name": "p"} for name, raw in found.items())
    assert {raw["apiVersion"] for raw in found.values()} == {"v1"}
    assert {r.name: r.raw()["note"] for r in store.list_records(NEW, "default").records} == {
        name: text for name, (_, text) in EXPECTED.items()
    }


async def test_a_store_that_holds_both_is_opened_and_loses_nothing(tmp_path: Path) -> None:
    path = old_store(tmp_path / "store")
    for _ in range(2):
        store = await EmbeddedStore.open(tmp_path / "store", clock=ManualClock(START))
        await check(store)
        await store.close()
    assert copy_path(path, 1).exists(), "the way back"


async def test_history_and_changes_go_on(tmp_path: Path) -> None:
    old_store(tmp_path / "store")
    store = await EmbeddedStore.open(tmp_path / "store", clock=ManualClock(START))
    first = next(int(r.rv) for r in store.list_records(OLD, "default").records if r.name == "old")
    watcher = store.watch_records(NEW, "default", resource_version=str(first), bookmarks=False)
    seen: list[tuple[str, str, Any]] = []
    while len(seen) < 9:
        seen += [(e.type.value, e.record.name, e.record.raw()["note"]) for e in await anext(watcher)]
    assert seen[:2] == [("ADDED", "new", "of the new group"), ("MODIFIED", "new", "changed")]
    assert ("DELETED", "gone", "gone") in seen
    changed = await store.patch(OLD, "both.events.k8s.io", {"message": "again"}, "default")
    assert changed["metadata"]["uid"] == "u4"
    (event_,) = await anext(watcher)
    assert (event_.type, event_.record.raw()["note"]) == (EventType.MODIFIED, "again")
    await store.close()


async def test_a_backup_of_the_old_format_is_restored_whole(tmp_path: Path) -> None:
    heads = {(row.resource, row.name): row for row in rows(10) if row.type != 3 and row.name != "gone"}
    snapshot = snapshot_of_rows(b"i" * 16, 30, heads.values())
    (tmp_path / "backup.tar").write_bytes(b"".join(archive.write(snapshot, START, store_format=1)))
    restore(tmp_path / "backup.tar", tmp_path / "data", now=START + 60)
    store = await EmbeddedStore.open(tmp_path / "data" / "store", clock=ManualClock(START))
    await check(store)
    await store.close()


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"metadata":1}'])
async def test_a_damaged_row_stops_it_and_nothing_changes(tmp_path: Path, value: bytes) -> None:
    path = old_store(tmp_path / "store", [Row(1000, "events.events.k8s.io", "default", "bad", 1, None, value)])
    with pytest.raises(StoreCorrupt, match=r"version 1000 of events\.events\.k8s\.io default/bad can't be read"):
        await EmbeddedStore.open(tmp_path / "store", clock=ManualClock(START))
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA user_version").fetchall() == [(1,)]
    assert connection.execute("SELECT count(*) FROM log WHERE resource = 'events.events.k8s.io'").fetchall() == [(8,)]
    connection.close()
