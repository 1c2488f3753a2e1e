"""Older formats of the file: brought up to date at once or not at all, with a copy of the old one beside."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from muster.store.embedded import StoreTooNew
from muster.store.embedded.database import Database, Row
from muster.store.embedded.errors import StoreUnwritable
from muster.store.embedded.migrations import FORMAT, MIGRATIONS, Migration, copy_path
from tests.store.embedded.faulty import faulty_disk
from tests.store.embedded.support import CONFIG_MAPS, NAMESPACES, config_map, open_store

FORMATS = Path(__file__).parent / "formats"
STEPS = (
    *MIGRATIONS,
    Migration(FORMAT + 1, ("ALTER TABLE log ADD COLUMN writer TEXT", "UPDATE log SET writer = 'nobody'")),
    Migration(FORMAT + 2, ("CREATE TABLE notes(text TEXT) STRICT", "INSERT INTO notes VALUES('moved')")),
)


def made_from(dump: Path, directory: Path) -> Path:
    """A store as the release of that format wrote it."""
    directory.mkdir(mode=0o700)
    path = directory / "store.sqlite"
    connection = apsw.Connection(str(path))
    for _ in connection.execute(dump.read_text()):
        pass
    connection.close()
    return path


def facts(path: Path) -> tuple[int, bool, bool, int]:
    """Format, which of the two steps it has, and how many rows."""
    connection = apsw.Connection(str(path))
    try:
        version = connection.execute("PRAGMA user_version").fetchall()[0][0]
        columns = {row[1] for row in connection.execute("PRAGMA table_info(log)")}
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
        rows = connection.execute("SELECT count(*) FROM log").fetchall()[0][0]
        assert isinstance(version, int)
        assert isinstance(rows, int)
        return version, "writer" in columns, "notes" in tables, rows
    finally:
        connection.close()


OLD = (FORMAT, False, False, 3)
NEW = (FORMAT + 2, True, True, 3)


@pytest.mark.parametrize("dump", sorted(FORMATS.glob("*.sql")), ids=lambda path: path.stem)
async def test_a_file_of_every_format_is_opened_and_used(tmp_path: Path, dump: Path) -> None:
    made_from(dump, tmp_path / "store")
    store = await open_store(tmp_path / "store")
    assert [record.name for record in store.list_records(NAMESPACES).records] == ["default"]
    assert (await store.get(CONFIG_MAPS, "kept", "default"))["data"] == {"text": "second"}
    await store.create(CONFIG_MAPS, config_map("new"), "default")
    await store.close()
    again = await open_store(tmp_path / "store")
    assert len(again.list_records(CONFIG_MAPS, "default").records) == 2
    await again.close()


def test_the_dumps_cover_every_format() -> None:
    assert {path.stem for path in FORMATS.glob("*.sql")} == {f"format-{n}" for n in range(1, FORMAT + 1)}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    database = Database.open(tmp_path / "store", identity=b"i" * 16)
    database.commit([Row(n, "pods", "default", f"p{n}", 1, None, b"{}") for n in (2, 3)])
    database.close()
    database = Database.open(tmp_path / "store", identity=b"i" * 16)
    database.commit([Row(4, "pods", "default", "p4", 1, None, b"{}")])
    database.abandon()  # as when killed: the last row is in the log only
    return tmp_path / "store" / "store.sqlite"


def test_all_missing_steps_are_taken_and_the_old_file_is_kept(old: Path) -> None:
    database = Database.open(old.parent, identity=b"", migrations=STEPS)
    assert [row.rv for row in database.load()] == [2, 3, 4]
    assert database.identity == b"i" * 16
    database.close()
    assert facts(old) == NEW
    copy = copy_path(old, FORMAT)
    assert facts(copy) == OLD
    assert copy.stat().st_mode & 0o777 == 0o600
    before = copy.read_bytes()
    Database.open(old.parent, identity=b"", migrations=STEPS).close()
    assert copy.read_bytes() == before, "a file that is up to date was copied again"


def test_the_copy_is_the_way_back(old: Path) -> None:
    Database.open(old.parent, identity=b"", migrations=STEPS).close()
    with pytest.raises(StoreTooNew, match=rf"format {FORMAT + 2}.*up to {FORMAT}.*store.sqlite.format-{FORMAT}"):
        Database.open(old.parent, identity=b"")
    copy_path(old, FORMAT).replace(old)
    database = Database.open(old.parent, identity=b"")
    assert [row.rv for row in database.load()] == [2, 3, 4]
    database.close()


@pytest.mark.parametrize("broken", range(4))
def test_a_mistake_in_a_step_leaves_the_old_file(old: Path, broken: int) -> None:
    statements = [statement for step in STEPS[-2:] for statement in step.statements]
    statements[broken] = "INSERT INTO nowhere VALUES(1)"
    steps = (Migration(FORMAT + 1, tuple(statements[:2])), Migration(FORMAT + 2, tuple(statements[2:])))
    with pytest.raises(StoreUnwritable, match="nowhere"):
        Database.open(old.parent, identity=b"", migrations=steps)
    assert facts(old) == OLD
    Database.open(old.parent, identity=b"", migrations=STEPS).close()
    assert facts(old) == NEW


def test_steps_must_follow_one_another(old: Path) -> None:
    with pytest.raises(ValueError, match="must follow one another"):
        Database.open(old.parent, identity=b"", migrations=(Migration(FORMAT + 2, ("SELECT 1",)),))
    assert facts(old) == OLD


def test_killed_at_every_statement(tmp_path: Path, old: Path) -> None:
    """A child process dies just before each statement that SQLite is given, and after the last."""
    content = {path.name: path.read_bytes() for path in old.parent.iterdir()}
    seen = set()
    number = 0
    while True:
        directory = tmp_path / f"round-{number}"
        directory.mkdir(mode=0o700)
        for name, data in content.items():
            (directory / name).write_bytes(data)
        died = _dies_at(directory, number)
        path = directory / "store.sqlite"
        database = Database.open(directory, identity=b"", migrations=STEPS)
        assert [row.rv for row in database.load()] == [2, 3, 4]
        database.close()
        seen.add(facts(path))
        if not died:
            break
        number += 1
    assert seen == {NEW}
    assert number > 10, "too few statements for a test of anything"


def _dies_at(directory: Path, number: int) -> bool:
    child = os.fork()
    if child == 0:
        count = 0

        def trace(*_: object) -> bool:
            nonlocal count
            if count == number:
                os._exit(9)
            count += 1
            return True

        apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", trace))
        try:
            database = Database.open(directory, identity=b"", migrations=STEPS)
            # Between the commit and the end there is nothing but old or new: seen from outside, before anyone repairs it.
            database.abandon()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    found = facts(directory / "store.sqlite")
    assert found in (OLD, NEW), found
    assert found == OLD or facts(copy_path(directory / "store.sqlite", FORMAT)) == OLD
    return code == 9


@pytest.mark.parametrize("full", [False, True], ids=["broken", "full"])
def test_a_disk_that_fails_at_every_operation(tmp_path: Path, old: Path, full: bool) -> None:
    content = {path.name: path.read_bytes() for path in old.parent.iterdir()}
    with faulty_disk() as disk:
        number = refused = 0
        while True:
            directory = tmp_path / f"round-{number}"
            directory.mkdir(mode=0o700)
            for name, data in content.items():
                (directory / name).write_bytes(data)
            disk.fail(number, 1_000_000, full=full)
            try:
                Database.open(directory, identity=b"", migrations=STEPS).abandon()
            except StoreUnwritable:
                refused += 1
            failed = disk.failed
            disk.fail(0, 0, full=full)
            assert facts(directory / "store.sqlite") in (OLD, NEW)
            if not failed:
                break
            number += 1
    assert refused > 3
