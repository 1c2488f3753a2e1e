"""The file: a log of object versions in SQLite, written in batches, compacted bit by bit, checked when it is opened.

Every version is stored once, under its resourceVersion; `prev` points at the version it replaced. The newest version of a
key that is no deletion is the object. Compaction to horizon H removes what a version at or before H replaced, and deletions
at or before H; so everything after H is there, and the object as it was before the first change after H is there too.
That is what a watcher needs to resume, selectors included, across any number of restarts.

Concurrency: opened and loaded by one thread, then used by the committer alone (its thread, or the loop in inline mode).
One connection writes and checkpoints, and it holds SQLite's own lock, so no other program can come between.

Invariants:
- `commit` returns after the rows are on disk (WAL, synchronous=FULL), or raises and none of them is;
- nothing is written before the file has been recognised and checked: a refused open leaves every byte as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from muster.store.embedded.errors import (
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreNotADirectory,
    StoreTooNew,
    StoreUnwritable,
)
from muster.store.embedded.lock import DirectoryLock

FILE_NAME = "store.sqlite"
APPLICATION_ID = 0x4D535452  # "MSTR"
FORMAT = 1

_SCHEMA = """
CREATE TABLE log(
  rv INTEGER PRIMARY KEY,
  resource TEXT NOT NULL,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  type INTEGER NOT NULL,
  prev INTEGER,
  crc INTEGER NOT NULL,
  value BLOB NOT NULL
) STRICT;
CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE VIEW objects AS
  SELECT rv, resource, namespace, name, CAST(value AS TEXT) AS value FROM log AS l
  WHERE type <> 3 AND NOT EXISTS (SELECT 1 FROM log AS n WHERE n.prev = l.rv);
"""
_ROW = "(?,?,?,?,?,?,?,?)"
_INSERT_LEN = 32
"""Rows per INSERT: one call into SQLite is one release of the interpreter's lock, which a busy loop gives back slowly."""

_VACUUM_PAGES = 256
_FREE_PAGES_KEPT = 1024
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Row(NamedTuple):
    """A version of an object as the log keeps it. `type` is a code of `records.TYPE_CODES`."""

    rv: int
    resource: str
    namespace: str
    name: str
    type: int
    prev: int | None
    value: bytes


class CommitFailed(Exception):
    """A batch is not on disk. `full` tells a full disk, which room cures, from a failing one."""

    def __init__(self, message: str, *, full: bool) -> None:
        super().__init__(message)
        self.message = message
        self.full = full


class Database:
    """An open file. See the module for who may call what."""

    def __init__(self, directory: Path, connection: apsw.Connection, lock: DirectoryLock, *, wal_pages_max: int) -> None:
        self.path = directory / FILE_NAME
        self._connection = connection
        self._lock = lock
        self._wal_pages_max = wal_pages_max
        self._wal_pages = 0
        self._doomed: deque[int] = deque()
        self._horizon = 0
        self._horizon_written = 0
        self._may_shrink = False
        self.checkpoints = 0
        connection.set_wal_hook(self._on_wal)

    # --- opening -------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, directory: Path, *, identity: bytes, wal_pages_max: int = 4096) -> Database:
        """Open or create. `identity` is what a new store will be known by; an old one keeps its own."""
        _make_directory(directory)
        lock = DirectoryLock(directory)
        connection: apsw.Connection | None = None
        try:
            with _faults(directory / FILE_NAME):
                connection = _connect(directory / FILE_NAME)
                _recognise(connection, directory / FILE_NAME, identity)
            _sync_directory(directory)
            return cls(directory, connection, lock, wal_pages_max=wal_pages_max)
        except BaseException:
            if connection is not None:
                connection.close()
            lock.release()
            raise

    def load(self) -> Iterator[Row]:
        """Every row in order of rv, each checked against its checksum. Raises StoreCorrupt."""
        with _faults(self.path):
            cursor = self._connection.execute(
                "SELECT rv, resource, namespace, name, type, prev, value, crc FROM log ORDER BY rv"
            )
            for rv, resource, namespace, name, type_, prev, value, crc in cursor:
                if zlib.crc32(value) != crc:
                    what = (
                        f"version {rv} of {resource} {namespace + '/' if namespace else ''}{name} does not match its checksum"
                    )
                    raise StoreCorrupt(self.path, what)
                yield Row(rv, resource, namespace, name, type_, prev, value)

    def read_meta(self, key: str) -> bytes | None:
        row = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    @property
    def identity(self) -> bytes:
        return self.read_meta("identity") or b""

    @property
    def horizon(self) -> int:
        """The last compacted version, as the file has it."""
        return int(self.read_meta("horizon") or b"0")

    # --- writing (the committer) ---------------------------------------------------------------------------------

    def commit(self, rows: Sequence[Row]) -> None:
        """Put `rows` on disk, all or none. Raises CommitFailed."""
        try:
            self._insert(rows)
        except (apsw.FullError, apsw.IOError) as error:
            self._roll_back()
            if not _is_full(self._connection, error):
                raise CommitFailed(f"I/O error on {self.path}: {error}", full=False) from error
            self._insert_in_reclaimed_room(rows)
        except apsw.Error as error:
            self._roll_back()
            raise CommitFailed(f"SQLite refused the write to {self.path}: {error}", full=False) from error

    def _insert(self, rows: Sequence[Row]) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for start in range(0, len(rows), _INSERT_LEN):
            part = rows[start : start + _INSERT_LEN]
            bindings: list[Any] = []
            for row in part:
                bindings += row[:6]
                bindings.append(zlib.crc32(row.value))
                bindings.append(row.value)
            execute("INSERT INTO log VALUES " + ",".join([_ROW] * len(part)), bindings)  # noqa: S608 - only question marks
        execute("COMMIT")

    def _insert_in_reclaimed_room(self, rows: Sequence[Row]) -> None:
        """A full disk often still has room inside the log: copy it into the file, and the log starts over in place."""
        try:
            self._checkpoint()
            self._insert(rows)
        except apsw.Error as error:
            self._roll_back()
            message = f"no room left for {self.path}: {error}"
            raise CommitFailed(message, full=_is_full(self._connection, error)) from error

    def _roll_back(self) -> None:
        # Where SQLite has rolled back by itself there is nothing to do; where even that fails, the next BEGIN says so.
        with contextlib.suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def doom(self, versions: Sequence[int], horizon: int) -> None:
        """Note rows that compaction to `horizon` made superfluous; `maintain` removes them a few at a time."""
        self._doomed.extend(versions)
        self._horizon = max(self._horizon, horizon)

    def maintain(self, rows_max: int) -> None:
        """A bounded piece of housekeeping between two batches: remove doomed rows, give pages back, checkpoint.

        Its failures lose nothing and are not reported: the work is still there the next time.
        """
        try:
            if self._doomed or self._horizon > self._horizon_written or self._may_shrink:
                # Nobody waits for this, so it need not reach the disk before the next batch does: NORMAL spares a flush.
                self._connection.execute("PRAGMA synchronous=NORMAL")
                try:
                    self._shed(rows_max)
                finally:
                    self._roll_back()
                    self._connection.execute("PRAGMA synchronous=FULL")
            if self._wal_pages > self._wal_pages_max:
                self._checkpoint()
        except apsw.Error:
            self._roll_back()

    def _shed(self, rows_max: int) -> None:
        """Remove doomed rows; when there are none, shrink the file."""
        if not self._doomed and self._horizon == self._horizon_written:
            self._shrink()
            return
        execute = self._connection.execute
        part = [self._doomed[i] for i in range(min(rows_max, len(self._doomed)))]
        horizon = self._horizon
        execute("BEGIN IMMEDIATE")
        self._connection.executemany("DELETE FROM log WHERE rv = ?", ((version,) for version in part))
        execute("INSERT OR REPLACE INTO meta VALUES('horizon', ?)", (str(horizon).encode(),))
        execute("COMMIT")
        for _ in part:
            self._doomed.popleft()
        self._horizon_written = horizon
        self._may_shrink = True

    def _shrink(self) -> None:
        """Give free pages back to the file system, but for some that the next writes will want."""
        free = self._connection.execute("PRAGMA freelist_count").fetchone()
        if free is None or free[0] <= _FREE_PAGES_KEPT:
            self._may_shrink = False
            return
        # The pragma does its work only as its cursor is drained, a page for each row.
        for _ in self._connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})"):
            pass

    def _checkpoint(self) -> None:
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._wal_pages = 0
        self.checkpoints += 1

    def _on_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    @property
    def doomed_len(self) -> int:
        return len(self._doomed)

    def size_bytes(self) -> int:
        """The file and its log together. Any thread."""
        total = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(OSError):
                total += os.stat(f"{self.path}{suffix}").st_size
        return total

    def abandon(self) -> None:
        """Let go of a file that could not be loaded, without touching it."""
        try:
            self._connection.close()
        finally:
            self._lock.release()

    def close(self, *, rows_max: int = 0) -> None:
        """A clean stop leaves one file without a log. `rows_max` bounds the compaction that is still to do."""
        try:
            if rows_max:
                self.maintain(rows_max)
            with contextlib.suppress(apsw.Error):
                self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            self._connection.close()
        finally:
            self._lock.release()


# --- helpers -----------------------------------------------------------------------------------------------------


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise StoreNotADirectory(directory) from None
    except OSError as error:
        raise StoreUnwritable(directory, error.strerror or str(error)) from error


def _sync_directory(directory: Path) -> None:
    """Make the new names in the directory, and the directory's own name, as durable as what is in the files."""
    for path in (directory, directory.parent):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def _connect(path: Path) -> apsw.Connection:
    fresh = not path.exists()
    if fresh:
        # SQLite would create it with the process' umask; an object may be a Secret.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    # Until the file is known to be sound, closing must not copy the log into it.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def _recognise(connection: apsw.Connection, path: Path, identity: bytes) -> None:
    """Tell an empty file, our own, a newer one and somebody else's apart; check ours; create in an empty one."""
    was_killed = _non_empty(Path(f"{path}-wal"))
    is_new = not was_killed and not _non_empty(path)
    execute = connection.execute
    execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
    if not is_new:
        found = execute("PRAGMA application_id").fetchone()
        version = execute("PRAGMA user_version").fetchone()
        assert found is not None
        assert version is not None
        tables = execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if found[0] != APPLICATION_ID and tables != (0,):
            raise StoreForeign(path)
        if version[0] > FORMAT:
            raise StoreTooNew(path, version[0], FORMAT)
        if was_killed:
            problems = [str(row[0]) for row in execute("PRAGMA quick_check(5)")]
            if problems != ["ok"]:
                raise StoreCorrupt(path, "; ".join(problems))
        # A process killed while it created the file leaves it without tables: begin again in it.
        is_new = tables == (0,)
    if is_new:
        execute("PRAGMA auto_vacuum=INCREMENTAL").fetchall()
    execute("PRAGMA journal_mode=WAL").fetchall()
    execute("PRAGMA synchronous=FULL").fetchall()
    execute("PRAGMA wal_autocheckpoint=0").fetchall()
    execute("PRAGMA journal_size_limit=67108864").fetchall()
    execute("PRAGMA cache_size=-16384").fetchall()
    # What can't be written must be found out now, not at the first request; so every opening writes.
    execute("BEGIN IMMEDIATE")
    if is_new:
        for _ in execute(_SCHEMA):
            pass
        execute(f"PRAGMA application_id={APPLICATION_ID}").fetchall()
        execute(f"PRAGMA user_version={FORMAT}").fetchall()
        execute("INSERT INTO meta VALUES('identity', ?)", (identity,))
    execute("UPDATE meta SET value = value WHERE key = 'identity'")
    execute("COMMIT")


def _non_empty(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _is_full(connection: apsw.Connection, error: apsw.Error) -> bool:
    return isinstance(error, apsw.FullError) or connection.system_errno in _NO_ROOM


@contextlib.contextmanager
def _faults(path: Path) -> Iterator[None]:
    """SQLite's and the system's refusals while opening, as the store's own errors."""
    try:
        yield
    except StoreError:
        raise
    except (apsw.NotADBError, apsw.CorruptError, UnicodeDecodeError) as error:
        raise StoreCorrupt(path, str(error)) from error
    except (apsw.ReadOnlyError, apsw.PermissionsError, apsw.CantOpenError, apsw.FullError, apsw.AuthError) as error:
        raise StoreUnwritable(path.parent, str(error)) from error
    except apsw.Error as error:
        raise StoreUnwritable(path.parent, f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise StoreUnwritable(path.parent, error.strerror or str(error)) from error
