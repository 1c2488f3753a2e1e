"""The file itself: what is committed is there after any end, and what can't be used is refused without being touched."""

from __future__ import annotations

import hashlib
import os
import resource as rlimits
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from muster.store.embedded.database import CommitFailed, Database, Row
from muster.store.embedded.errors import (
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreNotADirectory,
    StoreTooNew,
    StoreUnwritable,
)
from muster.store.embedded.migrations import FORMAT

IDENTITY = b"0123456789abcdef"
IS_ROOT = os.geteuid() == 0


def open_database(path: Path) -> Database:
    return Database.open(path, identity=IDENTITY)


def row(rv: int, name: str = "a", *, type_: int = 1, prev: int | None = None, value: bytes = b"{}") -> Row:
    return Row(rv, "pods", "default", name, type_, prev, value)


def kill(database: Database) -> None:
    """Let go of the file as a killed process would: nothing is copied from the log, the kernel drops the lock."""
    database.abandon()


def digest(directory: Path) -> dict[str, str]:
    """Every file that holds anything, but for the lock, by content."""
    files = [f for f in sorted(directory.iterdir()) if f.name != "lock" and f.stat().st_size]
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


# --- what is written is there ------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_rows_survive(tmp_path: Path, clean: bool) -> None:
    database = open_database(tmp_path)
    rows = [row(n, f"p{n}", value=b'{"n":%d}' % n) for n in range(2, 200)]
    database.commit(rows[:1])
    database.commit(rows[1:])
    database.close() if clean else kill(database)
    again = open_database(tmp_path)
    assert list(again.load()) == rows
    assert again.identity == IDENTITY
    again.close()


def test_a_clean_end_leaves_one_file(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    database.commit([row(2)])
    assert (tmp_path / "store.sqlite-wal").exists()
    database.close()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["lock", "store.sqlite"]


def test_files_are_private(tmp_path: Path) -> None:
    database = open_database(tmp_path / "store")
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "store" / "store.sqlite").stat().st_mode & 0o777 == 0o600
    database.close()


def test_loose_modes_are_tightened(tmp_path: Path) -> None:
    """As after a copy under a usual umask."""
    open_database(tmp_path).close()
    tmp_path.chmod(0o755)
    for file in tmp_path.iterdir():
        file.chmod(0o644)
    database = open_database(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    database.close()


def test_reading_changes_nothing(killed: Path) -> None:
    before = digest(killed)
    database = Database.open_to_read(killed)
    assert len(list(database.load())) == 68
    database.abandon()
    assert digest(killed) == before


def test_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Database.open_to_read(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_old_identity_is_kept(tmp_path: Path) -> None:
    open_database(tmp_path).close()
    again = Database.open(tmp_path, identity=b"another identity")
    assert again.identity == IDENTITY
    again.close()


def test_a_failed_batch_leaves_nothing(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    database.commit([row(2), row(3)])
    with pytest.raises(CommitFailed) as failed:
        database.commit([row(4), row(5), row(3)])  # version 3 is taken
    assert not failed.value.full
    database.commit([row(6)])
    assert [r.rv for r in database.load()] == [2, 3, 6]
    database.close()


@pytest.mark.parametrize("content", [b"", b"SQLite form", None], ids=["an empty draft", "half a draft", "nothing"])
def test_a_process_killed_while_it_created_the_file(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "store.sqlite.new").write_bytes(content)
        (tmp_path / "store.sqlite.new-journal").write_bytes(content)
    database = open_database(tmp_path)
    database.commit([row(2)])
    kill(database)
    again = open_database(tmp_path)
    assert [r.rv for r in again.load()] == [2]
    again.close()


@pytest.mark.parametrize("count", [1, 100], ids=["one statement", "several"])
def test_a_failure_that_could_not_be_undone_keeps_no_batch_off_the_disk(tmp_path: Path, count: int) -> None:
    database = open_database(tmp_path)
    connection = database._connection
    database._is_lax = True
    connection.execute("PRAGMA synchronous=NORMAL")
    for statement in ("BEGIN IMMEDIATE", "DELETE FROM meta WHERE key = 'identity'"):
        connection.execute(statement)
    database.commit([row(n) for n in range(2, 2 + count)])
    assert not connection.in_transaction
    assert list(connection.execute("PRAGMA synchronous")) == [(2,)]  # FULL
    kill(database)
    again = open_database(tmp_path)
    assert again.identity == IDENTITY
    assert len(list(again.load())) == count
    again.close()


# --- compaction --------------------------------------------------------------------------------------------------


def test_doomed_rows_go_bit_by_bit_and_the_horizon_is_remembered(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    database.commit([row(n, value=b"x" * 100) for n in range(2, 102)])
    database.doom(range(2, 101), 100)
    database.maintain(40)
    assert database.doomed_len == 59
    assert next(r.rv for r in database.load()) == 42
    kill(database)
    again = open_database(tmp_path)
    assert again.horizon == 100  # the rest is recognised as superfluous when the store loads
    again.close()


def test_space_is_given_back(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    for start in range(2, 4002, 500):
        database.commit([row(n, value=os.urandom(4000)) for n in range(start, start + 500)])
        database.maintain(0)
    database.doom(range(2, 4000), 4000)
    full = database.size_bytes()
    for version in range(5000, 5100):
        database.commit([row(version)])
        database.maintain(500)
    database.close()
    assert (tmp_path / "store.sqlite").stat().st_size < full / 2


def test_the_log_is_copied_into_the_file_when_it_has_grown(tmp_path: Path) -> None:
    database = Database.open(tmp_path, identity=IDENTITY, wal_pages_max=20)
    for version in range(2, 50):
        database.commit([row(version, value=b"x" * 3000)])
        database.maintain(0)
    assert database.checkpoints > 1
    assert (tmp_path / "store.sqlite-wal").stat().st_size < 60 * 4200
    database.close()


@pytest.mark.parametrize(
    ("doomed", "pages_max", "left", "checkpoints"),
    [
        pytest.param(9, 4000, 9, 0, id="neither is worth it"),
        pytest.param(15, 4000, 5, 0, id="rows"),
        pytest.param(15, 200, 15, 1, id="the log first"),
        pytest.param(0, 200, 0, 1, id="the log"),
    ],
)
def test_a_little_is_either_rows_or_the_log(tmp_path: Path, doomed: int, pages_max: int, left: int, checkpoints: int) -> None:
    database = Database.open(tmp_path, identity=IDENTITY, wal_pages_max=pages_max)
    database.commit([row(n, value=os.urandom(8000)) for n in range(2, 52)])  # about 150 pages
    database.doom(range(2, 2 + doomed), 2 + doomed)
    assert database.maintain_a_little(10)
    assert (database.doomed_len, database.checkpoints) == (left, checkpoints)
    database.close()


# --- what can't be used is refused, and left as it is ------------------------------------------------------------


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A directory as a killed process leaves it, with rows in the file and in its log."""
    database = open_database(tmp_path)
    database.commit([row(n, f"p{n}", value=b'{"text":"%s"}' % (b"abc" * 1000)) for n in range(2, 60)])
    database.close()
    database = open_database(tmp_path)
    database.commit([row(n, f"p{n}", value=b'{"text":"%s"}' % (b"abc" * 1000)) for n in range(60, 70)])
    kill(database)
    return tmp_path


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _flip_value(directory: Path) -> None:
    path = directory / "store.sqlite"
    content = path.read_bytes()
    _overwrite(path, content.index(b"abcabcabc", 4096 * 10), b"aXc")


def _noise(directory: Path) -> None:
    _overwrite(directory / "store.sqlite", 4096 * 3, os.urandom(4096 * 4))


def _newer(directory: Path) -> None:
    connection = apsw.Connection(str(directory / "store.sqlite"))
    connection.execute(f"PRAGMA user_version={FORMAT + 1}").fetchall()
    connection.close()


def _foreign(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()
    connection = apsw.Connection(str(directory / "store.sqlite"))
    connection.execute("CREATE TABLE notes(text)").fetchall()
    connection.close()


def _no_database(directory: Path) -> None:
    open_database(directory).close()  # so that no log holds a copy of the first page
    _overwrite(directory / "store.sqlite", 0, b"not a database!!" * 10)


def _truncate(directory: Path) -> None:
    os.truncate(directory / "store.sqlite", 4096 * 5 + 100)


def _empty(directory: Path) -> None:
    os.truncate(directory / "store.sqlite", 0)


def _empty_after_a_clean_end(directory: Path) -> None:
    open_database(directory).close()
    os.truncate(directory / "store.sqlite", 0)


def _only_the_log(directory: Path) -> None:
    (directory / "store.sqlite").unlink()


def _no_tables(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()
    connection = apsw.Connection(str(directory / "store.sqlite"))
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.close()


def open_and_load(directory: Path) -> None:
    database = open_database(directory)
    try:
        list(database.load())
    finally:
        database.abandon()


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        pytest.param(_no_database, StoreCorrupt, "file is not a database", id="no database"),
        pytest.param(_noise, StoreCorrupt, "damaged", id="pages of noise"),
        pytest.param(_truncate, StoreCorrupt, "damaged", id="cut short"),
        pytest.param(_empty, StoreCorrupt, "it is empty.*muster restore", id="emptied beside its log"),
        pytest.param(_empty_after_a_clean_end, StoreCorrupt, "it is empty.*muster restore", id="emptied"),
        pytest.param(_only_the_log, StoreCorrupt, "its log is there without it", id="only the log"),
        pytest.param(_no_tables, StoreCorrupt, "it has no tables", id="no tables"),
        pytest.param(_flip_value, StoreCorrupt, "does not match its checksum", id="one byte of one object"),
        pytest.param(_newer, StoreTooNew, f"format {FORMAT + 1}.*up to {FORMAT}", id="newer format"),
        pytest.param(_foreign, StoreForeign, "another program", id="somebody else's database"),
    ],
)
def test_refused_and_untouched(killed: Path, damage: object, error: type[StoreError], message: str) -> None:
    assert callable(damage)
    damage(killed)
    before = digest(killed)
    with pytest.raises(error, match=message) as refused:
        open_and_load(killed)
    assert str(killed) in str(refused.value)
    assert "nothing was changed" in str(refused.value)
    assert digest(killed) == before
    # Refusing lets go of the directory: after a repair the same process can open it.
    (killed / "store.sqlite").unlink(missing_ok=True)
    (killed / "store.sqlite-wal").unlink(missing_ok=True)
    open_database(killed).close()


def test_a_damaged_log_loses_only_what_was_never_acknowledged(killed: Path) -> None:
    """A torn end of the log is what a power cut leaves: the commit that was being written was not answered."""
    wal = killed / "store.sqlite-wal"
    os.truncate(wal, wal.stat().st_size - 2000)
    database = open_database(killed)
    assert [r.rv for r in database.load()] == list(range(2, 60))
    database.close()


def test_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("something")
    for path in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(StoreNotADirectory, match="choose another data directory"):
            open_database(path)
    assert (tmp_path / "file").read_text() == "something"


@pytest.fixture
def small_mount(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 1 MiB."""
    if not IS_ROOT:
        pytest.skip("mounting a small tmpfs needs root")
    mount = tmp_path / "mount"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mounting a small tmpfs is not allowed here: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_read_only_file_system(small_mount: Path) -> None:
    store = small_mount / "store"
    open_database(store).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_mount)], check=True)
    before = digest(store)
    with pytest.raises(StoreUnwritable, match=r"Read-only file system|readonly"):
        open_database(store)
    with pytest.raises(StoreUnwritable, match=r"Read-only file system|readonly"):
        open_database(small_mount / "new")
    assert digest(store) == before


@pytest.mark.skipif(IS_ROOT, reason="root may write where the mode says no; the mounted file system above covers it")
def test_directory_without_permission(tmp_path: Path) -> None:
    store = tmp_path / "store"
    open_database(store).close()
    store.chmod(0o500)
    try:
        with pytest.raises(StoreUnwritable, match="check the owner and mode"):
            open_database(store)
    finally:
        store.chmod(0o700)


# --- a full disk -------------------------------------------------------------------------------------------------


def fill(database: Database, start: int) -> int:
    """Commit until there is no room; the versions that were accepted end before the result."""
    version = start
    while version < start + 10_000:
        try:
            database.commit([row(version, value=os.urandom(8000))])
        except CommitFailed as failure:
            if not failure.full:
                raise
            return version
        version += 1
    raise AssertionError("the disk never filled up")


def test_full_file_system(small_mount: Path) -> None:
    ballast = small_mount / "ballast"
    ballast.write_bytes(b"x" * 300_000)
    database = open_database(small_mount / "store")
    first_refused = fill(database, 2)
    assert first_refused > 10
    assert [r.rv for r in database.load()] == list(range(2, first_refused)), "reads go on, nothing is lost"
    with pytest.raises(CommitFailed, match="no room left"):
        database.commit([row(first_refused, value=os.urandom(8000))])
    ballast.unlink()
    database.commit([row(first_refused, value=os.urandom(8000))])
    kill(database)
    again = open_database(small_mount / "store")
    assert [r.rv for r in again.load()] == list(range(2, first_refused + 1))
    again.close()


def test_full_by_sqlite_page_limit(tmp_path: Path) -> None:
    """`max_page_count` fails inside the transaction, where a full file system fails at its end."""
    database = open_database(tmp_path)
    database._connection.execute("PRAGMA max_page_count=100").fetchall()
    first_refused = fill(database, 2)
    database._connection.execute("PRAGMA max_page_count=1000000").fetchall()
    database.commit([row(first_refused)])
    assert [r.rv for r in database.load()] == list(range(2, first_refused + 1))
    database.close()


LIMITED = """
import os, resource, signal, sys
from pathlib import Path
from muster.store.embedded.database import CommitFailed, Database, Row
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
database = Database.open(Path(sys.argv[1]), identity=b"0123456789abcdef")
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
version = 2
while True:
    try:
        database.commit([Row(version, "pods", "default", "a", 1, None, os.urandom(8000))])
    except CommitFailed as failure:
        assert failure.full, failure.message
        break
    version += 1
assert [r.rv for r in database.load()] == list(range(2, version))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
database.commit([Row(version, "pods", "default", "a", 1, None, b"{}")])
assert [r.rv for r in database.load()] == list(range(2, version + 1))
print(version)
"""


def test_full_by_file_size_limit(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: writes fail with EFBIG in the middle of a commit."""
    assert rlimits.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = open_database(tmp_path)
    assert [r.rv for r in again.load()] == list(range(2, int(done.stdout) + 1))
    again.close()
