"""The file: a log of object versions in SQLite, written in batches, compacted bit by bit, checked when it is opened.

Every version is stored once, under its resourceVersion; `prev` points at the version it replaced. The newest version of a
key that is no deletion is the object. Compaction to horizon H removes what a version at or before H replaced, and deletions
at or before H; so everything after H is there, and the object as it was before the first change after H is there too.
That is what a watcher needs to resume, selectors included, across any number of restarts.

Concurrency: opened and loaded by one thread, then used by the committer alone (its thread, or the loop in inline mode).
One connection writes and checkpoints, and it holds SQLite's own lock, so no other program can come between.

Invariants:
- `commit` returns after the rows are on disk (WAL, synchronous=FULL), or raises and none of them is;
- after an I/O error nothing is put behind what may be missing from the disk by now: the log is copied and begun anew first;
- nothing is written before the file has been recognised and checked: a refused open leaves every byte as it was;
- a new file is made beside its place and renamed into it, so one without tables is damaged, not new.
"""

from __future__ import annotations

import contextlib
import errno
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
from msgspec import json

from muster.store.embedded.errors import StoreCorrupt, StoreTooOld
from muster.store.embedded.lock import DirectoryLock
from muster.store.embedded.migrations import FORMAT, MIGRATIONS, Migration, migrate, rewrite
from muster.store.embedded.recognising import (
    FILE_NAME,
    connect,
    create,
    faults,
    is_absent,
    is_full,
    make_directory,
    recognise,
    set_up,
    size_of,
    sync_directory,
    tighten,
)

_ROW = "(?,?,?,?,?,?,?,?)"
_INSERT_LEN = 64
"""Rows per INSERT: one call into SQLite is one release of the interpreter's lock, which a busy loop gives back slowly. So rows
are deleted by one statement, too, however many they are."""

_PIECES = 4
"""Pieces in which the log is copied where there are pauses between batches."""
_VACUUM_PAGES = 256
_FREE_PAGES_KEPT = 1024
_PROBE_BYTES = 64 << 10
"""What must fit before a disk that was full counts as having room again."""


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
        self._is_lax = False
        """Whether what is written may not be on disk when it is said to be, as far as is known."""
        self._is_doubtful = False
        """Whether the log may have a gap on the disk: a system that fails to flush may forget what it was to flush, and say of
        the next flush that all is well. Housekeeping leaves its pages to the next flush: what follows them would be lost."""
        self.checkpoints = 0
        self.compactions = 0
        """Slices of compaction that are on disk."""
        self.free_pages = 0
        """Pages of the file that hold nothing, as last counted."""
        connection.set_wal_hook(self._on_wal)

    # --- opening -------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        identity: bytes,
        wal_pages_max: int = 4096,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> Database:
        """Open or create; bring an older format up to date. `identity` is what a new store will be known by; an old one keeps
        its own."""
        make_directory(directory)
        lock = DirectoryLock(directory)
        connection: apsw.Connection | None = None
        path = directory / FILE_NAME
        try:
            with faults(path):
                if is_absent(path):
                    create(path, identity)
                connection = connect(path)
                version = recognise(connection, path, migrations)
                tighten(directory)
                set_up(connection)
                migrate(connection, path, version, migrations)
                # What can't be written must be found out now, not at the first request; so every opening writes.
                for statement in ("BEGIN IMMEDIATE", "UPDATE meta SET value = value WHERE key = 'identity'", "COMMIT"):
                    connection.execute(statement)
            sync_directory(directory)
            return cls(directory, connection, lock, wal_pages_max=wal_pages_max)
        except BaseException:
            if connection is not None:
                connection.close()
            lock.release()
            raise

    @classmethod
    def open_to_read(cls, directory: Path) -> Database:
        """Open what is there and write nothing: `load`, `read_meta`, then `abandon`. Raises StoreError, and FileNotFoundError
        when there is no store."""
        path = directory / FILE_NAME
        if is_absent(path):
            raise FileNotFoundError(errno.ENOENT, "no store here", str(path))
        lock = DirectoryLock(directory)
        connection: apsw.Connection | None = None
        try:
            with faults(path):
                connection = connect(path)
                version = recognise(connection, path, MIGRATIONS)
            if version < FORMAT:
                raise StoreTooOld(path, version, FORMAT)
            return cls(directory, connection, lock, wal_pages_max=0)
        except BaseException:
            if connection is not None:
                connection.close()
            lock.release()
            raise

    def load(self) -> Iterator[Row]:
        """Every row in order of rv, each checked against its checksum. Raises StoreCorrupt."""
        with faults(self.path):
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
        """Raises StoreError, as all that reads does."""
        with faults(self.path):
            row = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    @property
    def identity(self) -> bytes:
        return self.read_meta("identity") or b""

    @property
    def horizon(self) -> int:
        """The last compacted version, as the file has it."""
        found = self.read_meta("horizon") or b"0"
        if not found.isdigit():
            raise StoreCorrupt(self.path, f"the last compacted version is {found!r:.100}, which is no number")
        return int(found)

    def last_version(self) -> int:
        """The last version that this store has given out."""
        with faults(self.path):
            found = self._connection.execute("SELECT max(rv) FROM log").fetchone()
        return max(self.horizon, int(found[0] or 0) if found is not None else 0, 1)

    def check(self) -> None:
        """Read every page of the file. Raises StoreCorrupt."""
        with faults(self.path):
            problems = [str(row[0]) for row in self._connection.execute("PRAGMA integrity_check(5)")]
        if problems != ["ok"]:
            raise StoreCorrupt(self.path, "; ".join(problems))

    def upgrade_rows(self, version: int) -> None:
        """The rows, which are those of a store of format `version`, as this release has them. Raises StoreError."""
        with faults(self.path):
            rewrite(self._connection, self.path, version)

    # --- writing (the committer) ---------------------------------------------------------------------------------

    def commit(self, rows: Sequence[Row]) -> None:
        """Put `rows` on disk, all or none. Raises CommitFailed."""
        try:
            self._insert(rows)
        except (apsw.FullError, apsw.IOError) as error:
            is_for_want_of_room = is_full(self._connection, error)
            self._roll_back(error)
            if not is_for_want_of_room:
                self.probe()  # what has failed may be whole in the log, and would come back after a crash: write over it
                raise CommitFailed(f"I/O error on {self.path}: {error}", full=False) from error
            self._insert_in_reclaimed_room(rows)
        except apsw.Error as error:
            self._roll_back(error)
            raise CommitFailed(f"SQLite refused the write to {self.path}: {error}", full=False) from error

    def _be_strict(self) -> None:
        """Leave nothing of a failure that would keep the next batch off the disk: a transaction that could not be undone, of
        which it would become a part, the way to write that housekeeping has, or a gap in the log before it."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        if self._is_lax:
            self._connection.execute("PRAGMA synchronous=FULL")
            self._is_lax = False
        if self._is_doubtful:
            self._empty_log()

    def _insert(self, rows: Sequence[Row]) -> None:
        self._be_strict()
        if len(rows) <= _INSERT_LEN:
            self._insert_part(rows)  # one statement is a transaction of its own
            return
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for start in range(0, len(rows), _INSERT_LEN):
            self._insert_part(rows[start : start + _INSERT_LEN])
        execute("COMMIT")

    def _insert_part(self, rows: Sequence[Row]) -> None:
        bindings: list[Any] = []
        for row in rows:
            bindings += row[:6]
            bindings.append(zlib.crc32(row.value))
            bindings.append(row.value)
        self._connection.execute(
            "INSERT INTO log VALUES " + ",".join([_ROW] * len(rows)),  # noqa: S608 - only question marks
            bindings,
        )

    def _insert_in_reclaimed_room(self, rows: Sequence[Row]) -> None:
        """A full disk often still has room inside the log: copy it into the file, and the log starts over in place."""
        try:
            self._checkpoint()
            self._insert(rows)
        except apsw.Error as error:
            self._roll_back(error)
            message = f"no room left for {self.path}: {error}"
            raise CommitFailed(message, full=is_full(self._connection, error)) from error

    def _roll_back(self, error: Exception) -> None:
        self._is_doubtful |= isinstance(error, apsw.IOError)
        # Where SQLite has rolled back by itself there is nothing to do; where even that fails, the next batch says so.
        with contextlib.suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def doom(self, versions: Sequence[int], horizon: int) -> None:
        """Note rows that compaction to `horizon` made superfluous; `maintain` removes them a few at a time."""
        self._doomed.extend(versions)
        self._horizon = max(self._horizon, horizon)

    def maintain(self, rows_max: int) -> bool:
        """A bounded piece of housekeeping between two batches: remove doomed rows, give pages back, checkpoint.

        Its failures lose nothing: the work is still there the next time. False then.
        """
        return self._keep_house(rows_max if self.has_housekeeping else None, copies_log=self._wal_pages > self._wal_pages_max)

    def maintain_a_little(self, rows_max: int) -> bool:
        """What fits into a moment in which nobody waits: doomed rows or the log, not both, and only what is worth it."""
        copies_log = self._wal_pages > self._wal_pages_max // _PIECES
        is_worth_it = not copies_log and len(self._doomed) >= rows_max
        return self._keep_house(rows_max if is_worth_it else None, copies_log=copies_log)

    def _keep_house(self, rows_max: int | None, *, copies_log: bool) -> bool:
        try:
            if rows_max is not None:
                # Nobody waits for this, so it need not reach the disk before the next batch does: NORMAL spares a flush.
                self._is_lax = True
                self._connection.execute("PRAGMA synchronous=NORMAL")
                try:
                    self._shed(rows_max)
                finally:
                    self._be_strict()
            if copies_log:
                self._checkpoint()
        except (apsw.Error, MemoryError) as error:
            self._roll_back(error)
            return False
        return True

    def _shed(self, rows_max: int) -> None:
        """Remove doomed rows; when there are none, shrink the file."""
        if not self._doomed and self._horizon == self._horizon_written:
            self._shrink()
            return
        execute = self._connection.execute
        part = [self._doomed[i] for i in range(min(rows_max, len(self._doomed)))]
        horizon = self._horizon
        execute("BEGIN IMMEDIATE")
        execute("DELETE FROM log WHERE rv IN (SELECT value FROM json_each(?))", (json.encode(part).decode(),))
        execute("INSERT OR REPLACE INTO meta VALUES('horizon', ?)", (str(horizon).encode(),))
        execute("COMMIT")
        for _ in part:
            self._doomed.popleft()
        self._horizon_written = horizon
        self._may_shrink = True
        self.compactions += 1

    def _shrink(self) -> None:
        """Give free pages back to the file system, but for some that the next writes will want."""
        free = self._connection.execute("PRAGMA freelist_count").fetchone()
        self.free_pages = int(free[0]) if free is not None else 0
        if self.free_pages <= _FREE_PAGES_KEPT:
            self._may_shrink = False
            return
        # The pragma does its work only as its cursor is drained, a page for each row.
        for _ in self._connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})"):
            pass

    def _checkpoint(self) -> None:
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._wal_pages = 0
        self.checkpoints += 1

    def _empty_log(self) -> None:
        """Everything in it goes into the file, and is flushed there; then it begins anew."""
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._wal_pages = 0
        self._is_doubtful = False
        self.checkpoints += 1

    def _on_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    @property
    def doomed_len(self) -> int:
        return len(self._doomed)

    def is_due(self, rows: int) -> bool:
        """Whether `maintain` has so many rows to remove, or the log to copy: not to be put off until nobody writes."""
        return len(self._doomed) >= rows or self._wal_pages > self._wal_pages_max

    @property
    def has_housekeeping(self) -> bool:
        """Whether `maintain` has more to do."""
        return bool(self._doomed) or self._horizon > self._horizon_written or self._may_shrink

    def rest(self) -> None:
        """Nobody writes: copy what is left of the log into the file, and give the log's room back."""
        if not self._wal_pages:
            return
        try:
            self._empty_log()
        except (apsw.Error, MemoryError) as error:
            self._roll_back(error)

    def probe(self) -> bool:
        """Whether there is room to write again."""
        try:
            self._be_strict()
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES('probe', zeroblob(?))", (_PROBE_BYTES,))
            self._connection.execute("DELETE FROM meta WHERE key = 'probe'")
        except (apsw.Error, MemoryError) as error:
            self._roll_back(error)
            return False
        return True

    def size_bytes(self) -> int:
        """The file and its log together. Any thread."""
        return size_of(self.path) + self.wal_bytes()

    def wal_bytes(self) -> int:
        """The log alone. Any thread."""
        return size_of(Path(f"{self.path}-wal"))

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
