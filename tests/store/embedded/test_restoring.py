"""Bringing a data directory back: nothing is lost, nothing is between, and versions never go back."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.objects.status import Expired
from muster.store.embedded import EmbeddedStore, StoreLocked
from muster.store.embedded.archive import ArchiveError, write
from muster.store.embedded.database import Database, Row
from muster.store.embedded.errors import StoreCorrupt, StoreError
from muster.store.embedded.restoring import (
    PARTIAL,
    READY,
    VERSION_STEP,
    WRITES_PER_S_MAX,
    Restored,
    RestoreError,
    finish,
    first_version,
    restore,
)
from muster.store.embedded.snapshot import snapshot_of_file, snapshot_of_rows
from muster.store.informer import Informer
from tests.store.embedded.support import CONFIG_MAPS, START, ManualClock, config_map, open_store
from tests.store.stores import BreakableStore
from tests.waiting import until

KEYS = {"pki/ca.key": b"new ca", "kubeconfig": b"new kubeconfig", "pod-range": b"10.64.0.0/18\n"}
Facts = dict[str, Any]


def write_archive(path: Path, store: Path, keys: dict[str, bytes] | None = None, now: float = START) -> Path:
    path.write_bytes(b"".join(write(snapshot_of_file(store), now, keys)))
    return path


def facts(store: Path) -> Facts:
    """Every object by name, as the file has it."""
    return {row.name: row.value for row in snapshot_of_file(store).rows()}


@pytest.fixture
async def archive(tmp_path: Path) -> Path:
    """Of a store in which things were made, changed and deleted."""
    store = await open_store(tmp_path / "source")
    for number in range(40):
        await store.create(CONFIG_MAPS, config_map(f"c{number}", {"text": "first"}), "default")
    for number in range(20):
        await store.patch(CONFIG_MAPS, f"c{number}", {"data": {"text": "second"}}, "default")
    for number in range(10, 15):
        await store.delete(CONFIG_MAPS, f"c{number}", "default")
    await store.close()
    return write_archive(tmp_path / "backup.tar", tmp_path / "source", KEYS)


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    """Of another, later state."""
    store = await open_store(tmp_path / "data" / "store")
    await store.create(CONFIG_MAPS, config_map("later"), "default")
    await store.close()
    (tmp_path / "data" / "pki").mkdir()
    (tmp_path / "data" / "pki" / "ca.key").write_bytes(b"old ca")
    (tmp_path / "data" / "kubeconfig").write_bytes(b"old kubeconfig")
    (tmp_path / "data" / "audit").mkdir()
    (tmp_path / "data" / "audit" / "audit.jsonl").write_bytes(b"{}\n")
    return tmp_path / "data"


async def opened(data_dir: Path) -> EmbeddedStore:
    return await EmbeddedStore.open(data_dir / "store", clock=ManualClock(START + 100))


async def test_into_a_new_directory(tmp_path: Path, archive: Path) -> None:
    done = restore(archive, tmp_path / "new", now=START + 60)
    assert done.replaced is None
    assert facts(tmp_path / "new" / "store") == facts(tmp_path / "source")
    assert sorted(os.listdir(tmp_path / "new")) == ["kubeconfig", "pki", "pod-range", "store"]
    assert (tmp_path / "new" / "kubeconfig").stat().st_mode & 0o777 == 0o600
    store = await opened(tmp_path / "new")
    found = store.list_records(CONFIG_MAPS, "default")
    assert len(found.records) == 35
    assert int(found.resource_version) == done.first_version
    changed = await store.patch(CONFIG_MAPS, "c1", {"data": {"text": "third"}}, "default")
    assert int(changed["metadata"]["resourceVersion"]) > done.first_version
    await store.close()


async def test_old_versions_are_gone_and_objects_keep_theirs(tmp_path: Path, archive: Path) -> None:
    before = snapshot_of_file(tmp_path / "source")
    done = restore(archive, tmp_path / "new", now=START)
    store = await opened(tmp_path / "new")
    for record in store.list_records(CONFIG_MAPS, "default").records:
        assert record.value in {row.value for row in before.rows()}
    lost = before.resource_version + 500  # given out after the backup, by the server that is no more
    for version in (1, before.resource_version, lost, done.first_version - 1):
        with pytest.raises(Expired):
            store.watch_records(CONFIG_MAPS, "default", resource_version=str(version))
    watcher = store.watch_records(CONFIG_MAPS, "default", resource_version=str(done.first_version))
    watcher.close()
    await store.close()


async def test_a_list_that_began_before_is_told_to_begin_again(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "source")
    for number in range(5):
        await store.create(CONFIG_MAPS, config_map(f"c{number}"), "default")
    token = store.list_records(CONFIG_MAPS, "default", limit=2).continue_token
    await store.close()
    restore(write_archive(tmp_path / "b.tar", tmp_path / "source"), tmp_path / "new", now=START)
    again = await opened(tmp_path / "new")
    with pytest.raises(Expired):
        again.list_records(CONFIG_MAPS, "default", limit=2, continue_token=token)
    await again.close()


def test_versions_are_never_given_out_twice(archive: Path, tmp_path: Path) -> None:
    """Not by restoring one backup twice, nor one that is older than what is there, nor with a clock that went back."""
    first = restore(archive, tmp_path / "a", now=START + 10)
    manifest = first.manifest
    later = first_version(manifest, START + 20)
    assert later - first.first_version == 10 * WRITES_PER_S_MAX
    assert first_version(manifest, START - 1e6) >= manifest.resource_version + VERSION_STEP
    second = restore(archive, tmp_path / "a", now=START - 1e6, force=True)
    assert second.first_version >= first.first_version + VERSION_STEP


def test_force_replaces_what_the_backup_holds_and_keeps_the_old(tmp_path: Path, archive: Path, data_dir: Path) -> None:
    old = facts(data_dir / "store")
    with pytest.raises(RestoreError, match=r"not empty: it has audit, kubeconfig, pki, store;.*--force"):
        restore(archive, data_dir, now=START)
    assert facts(data_dir / "store") == old
    done = restore(archive, data_dir, now=START, force=True)
    assert facts(data_dir / "store") == facts(tmp_path / "source")
    assert (data_dir / "pki" / "ca.key").read_bytes() == b"new ca"
    assert (data_dir / "audit" / "audit.jsonl").read_bytes() == b"{}\n"
    assert done.replaced is not None
    assert facts(done.replaced / "old" / "store") == old
    assert (done.replaced / "old" / "pki" / "ca.key").read_bytes() == b"old ca"
    assert (done.replaced / "old" / "kubeconfig").read_bytes() == b"old kubeconfig"


def test_without_keys_those_that_are_there_stay(tmp_path: Path, archive: Path, data_dir: Path) -> None:
    plain = write_archive(tmp_path / "plain.tar", tmp_path / "source")
    restore(plain, data_dir, now=START, force=True)
    assert (data_dir / "pki" / "ca.key").read_bytes() == b"old ca"
    assert (data_dir / "kubeconfig").read_bytes() == b"old kubeconfig"


async def test_a_store_in_use_is_refused(archive: Path, data_dir: Path) -> None:
    store = await opened(data_dir)
    with pytest.raises(StoreLocked):
        restore(archive, data_dir, now=START, force=True)
    await store.close()
    assert not (data_dir / PARTIAL).exists()


def test_what_can_not_be_moved_is_found_out_before(archive: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root can make a mount point, so the system is made to say that it is one."""
    monkeypatch.setattr(Path, "is_mount", lambda path: path == data_dir / "store")
    with pytest.raises(RestoreError, match=r"store is a mount point, so it can't be moved aside; unmount it, or"):
        restore(archive, data_dir, now=START + 60, force=True)
    assert "later" in facts(data_dir / "store")
    assert not list(data_dir.glob("restore.*"))


async def test_a_definition_that_is_none_is_said_to_be_damage(tmp_path: Path) -> None:
    name = "things.example.com"
    crd = {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"group": "example.com", "versions": 5}}
    row = Row(1, "customresourcedefinitions.apiextensions.k8s.io", "", name, 1, None, msgspec.json.encode(crd))
    (tmp_path / "b.tar").write_bytes(b"".join(write(snapshot_of_rows(b"i" * 16, 1, [row]), START)))
    restore(tmp_path / "b.tar", tmp_path / "new", now=START + 60)
    with pytest.raises(StoreCorrupt, match=r"version 1 of customresourcedefinitions.* things\.example\.com is no definition"):
        await opened(tmp_path / "new")


def _spoil_page_of(table: str, file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
        ((size,),) = connection.execute("PRAGMA page_size")
    with file.open("r+b") as pages:
        pages.seek((root - 1) * size)
        pages.write(b"\xff" * size)


def _spoil_horizon(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES('horizon', ?)", (b"soon",))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(functools.partial(os.truncate, length=0), id="empty"),
        pytest.param(functools.partial(_spoil_page_of, "meta"), id="a page of meta"),
        pytest.param(functools.partial(_spoil_page_of, "log"), id="a page of the log"),
        pytest.param(_spoil_horizon, id="a horizon that is no number"),
    ],
)
def test_a_damaged_store_can_be_replaced(archive: Path, data_dir: Path, tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(data_dir / "store" / "store.sqlite")
    with pytest.raises((StoreError, FileNotFoundError)):
        snapshot_of_file(data_dir / "store")  # a backup of it is refused, and not with a traceback
    restore(archive, data_dir, now=START, force=True)
    assert facts(data_dir / "store") == facts(tmp_path / "source")


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign"])
def test_a_bad_archive_touches_nothing(archive: Path, tmp_path: Path, damage: str) -> None:
    content = bytearray(archive.read_bytes())
    match damage:
        case "cut":
            content = content[:-2000]
        case "flipped":
            content[700] ^= 1
        case _:
            content = bytearray(b"x" * 4000)
    archive.write_bytes(content)
    with pytest.raises(ArchiveError):
        restore(archive, tmp_path / "new", now=START)
    assert not (tmp_path / "new").exists()


def _dies_at(number: int, archive: Path, data_dir: Path) -> bool:
    """A restore in a child process that dies before step `number`. False when there are fewer."""
    child = os.fork()
    if child == 0:
        count = 0

        def step(_name: str) -> None:
            nonlocal count
            if count == number:
                os._exit(9)
            count += 1

        code = 1
        try:
            restore(archive, data_dir, now=START, force=True, step=step)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9), code
    return code == 9


def test_killed_before_every_step(tmp_path: Path, archive: Path, data_dir: Path) -> None:
    """The next start of a server finds the old state or the new one, whole; and a second restore works from anywhere."""
    old, new = facts(data_dir / "store"), facts(tmp_path / "source")
    content = archive.read_bytes()
    seen: list[str] = []
    number = 0
    while True:
        place = tmp_path / f"round-{number}"
        shutil.copytree(data_dir, place)
        died = _dies_at(number, archive, place)
        again = tmp_path / f"again-{number}"
        shutil.copytree(place, again)
        finish(place, START)
        assert not (place / READY).exists()
        found = facts(place / "store")
        assert found in (old, new)
        is_new = found == new
        assert (place / "pki" / "ca.key").read_bytes() == (b"new ca" if is_new else b"old ca")
        assert (place / "kubeconfig").read_bytes() == (b"new kubeconfig" if is_new else b"old kubeconfig")
        if is_new:
            (aside,) = place.glob("replaced-*")
            assert facts(aside / "old" / "store") == old
        seen.append("new" if is_new else "old")
        _check_restored(restore(archive, again, now=START + 5, force=True), again, new)
        if not died:
            break
        number += 1
    assert seen == ["old"] * seen.count("old") + ["new"] * seen.count("new"), seen
    assert seen.count("old") >= 8
    assert seen.count("new") >= 8
    assert archive.read_bytes() == content


def _check_restored(done: Restored, place: Path, new: Facts) -> None:
    assert facts(place / "store") == new
    assert not (place / READY).exists()
    assert not (place / PARTIAL).exists()
    database = Database.open_to_read(place / "store")
    assert database.last_version() == done.first_version
    database.abandon()


async def test_an_informer_follows_across_a_restore(tmp_path: Path) -> None:
    """One that saw what is gone now: it lists anew, and its cache is what was restored."""
    store = await open_store(tmp_path / "source")
    await store.create(CONFIG_MAPS, config_map("a", {"text": "kept"}), "default")
    archive = tmp_path / "b.tar"
    archive.write_bytes(b"".join(write(store.snapshot(), START)))
    await store.patch(CONFIG_MAPS, "a", {"data": {"text": "lost"}}, "default")
    await store.create(CONFIG_MAPS, config_map("b"), "default")
    front = BreakableStore(store)
    informer = Informer(front, CONFIG_MAPS)
    informer.start()
    try:
        await informer.wait_synced()
        assert {obj.key.name for obj in informer.cache} == {"a", "b"}
        await store.close()
        restore(archive, tmp_path / "new", now=START)
        front.inner = front.embedded = await opened(tmp_path / "new")
        await front.break_watches()

        async def follows() -> bool:
            return [(obj.key.name, obj.raw["data"]) for obj in informer.cache] == [("a", {"text": "kept"})]

        await until(follows)
        await front.embedded.create(CONFIG_MAPS, config_map("c"), "default")

        async def goes_on() -> bool:
            return {obj.key.name for obj in informer.cache} == {"a", "c"}

        await until(goes_on)
    finally:
        await informer.stop()
    await front.embedded.close()
