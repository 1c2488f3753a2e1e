"""The store's file before anyone uses it: made, told apart from others, checked, set up.

Called by `database.py`, on the thread that opens. `recognise` and `connect` write nothing; a new file is made beside its place
and renamed into it, so one that is empty or has no tables is damaged, not new.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw

from muster.client.files import flush_directory
from muster.store.embedded.errors import (
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreNotADirectory,
    StoreTooNew,
    StoreUnwritable,
)
from muster.store.embedded.migrations import FORMAT, Migration

FILE_NAME = "store.sqlite"
APPLICATION_ID = 0x4D535452  # "MSTR"

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
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise StoreNotADirectory(directory) from None
    except OSError as error:
        raise StoreUnwritable(directory, error.strerror or str(error)) from error


def sync_directory(directory: Path) -> None:
    """Make the new names in the directory, and the directory's own name, as durable as what is in the files."""
    for path in (directory, directory.parent):
        with contextlib.suppress(OSError):
            flush_directory(path)


def is_absent(path: Path) -> bool:
    """Whether there is no store yet. A log without its file is half of one, which `recognise` refuses."""
    return not path.exists() and not non_empty(Path(f"{path}-wal"))


def create(path: Path, identity: bytes) -> None:
    """Make an empty store beside `path`, durably, and put it there in one step."""
    draft = path.with_name(f"{path.name}.new")
    for suffix in ("", "-wal", "-journal"):
        Path(f"{draft}{suffix}").unlink(missing_ok=True)
    # SQLite would create it with the process' umask; an object may be a Secret.
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    connection = apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        execute = connection.execute
        execute("PRAGMA auto_vacuum=INCREMENTAL").fetchall()
        execute("PRAGMA synchronous=FULL").fetchall()
        execute("BEGIN IMMEDIATE")
        for _ in execute(_SCHEMA):
            pass
        execute(f"PRAGMA application_id={APPLICATION_ID}").fetchall()
        execute(f"PRAGMA user_version={FORMAT}").fetchall()
        execute("INSERT INTO meta VALUES('identity', ?)", (identity,))
        execute("COMMIT")
    finally:
        connection.close()
    draft.replace(path)
    sync_directory(path.parent)


def tighten(directory: Path) -> None:
    """An object may be a Secret: whatever modes a copy or an older umask left, only the owner reads."""
    directory.chmod(0o700)
    for entry in os.scandir(directory):
        if entry.is_file(follow_symlinks=False) and entry.stat().st_mode & 0o077:
            os.chmod(entry.path, 0o600)


def connect(path: Path) -> apsw.Connection:
    if not non_empty(path):
        raise StoreCorrupt(path, "it is empty, and a store never is" if path.exists() else "its log is there without it")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    # Until the file is known to be sound, closing must not copy the log into it.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def recognise(connection: apsw.Connection, path: Path, migrations: Sequence[Migration]) -> int:
    """Tell our own file, a newer one and somebody else's apart, check ours, and write nothing. Returns its format."""
    was_killed = non_empty(Path(f"{path}-wal"))
    execute = connection.execute
    execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
    found = execute("PRAGMA application_id").fetchone()
    version = execute("PRAGMA user_version").fetchone()
    tables = execute("SELECT count(*) FROM sqlite_schema").fetchone()
    assert found is not None
    assert version is not None
    if found[0] != APPLICATION_ID:
        if tables == (0,):
            raise StoreCorrupt(path, "it has no tables, and a store always has")
        raise StoreForeign(path)
    known = migrations[-1].to if migrations else FORMAT
    if version[0] > known:
        raise StoreTooNew(path, version[0], known)
    if was_killed:
        problems = [str(row[0]) for row in execute("PRAGMA quick_check(5)")]
        if problems != ["ok"]:
            raise StoreCorrupt(path, "; ".join(problems))
    return int(version[0])


def set_up(connection: apsw.Connection) -> None:
    for setting in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "wal_autocheckpoint=0",
        "journal_size_limit=67108864",
        "cache_size=-16384",
    ):
        connection.execute(f"PRAGMA {setting}").fetchall()


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def non_empty(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def is_full(connection: apsw.Connection, error: apsw.Error) -> bool:
    return isinstance(error, apsw.FullError) or connection.system_errno in _NO_ROOM


@contextlib.contextmanager
def faults(path: Path) -> Iterator[None]:
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
