"""From one format of the store's file to the next: what each step changes, and how all that are missing are taken at once.

A step is SQL for the tables, and a function for what SQL can't do to the rows. `migrate` runs on the thread that opens the
file, before anyone reads it: a copy of the old file is put beside it first, then every missing step and the new number go into
one transaction. So a crash, a full disk or a mistake in a step leaves the old file or the new one, never something between; and
the copy is the way back to the older release. A backup has rows and no tables: when one of an older format is restored,
`rewrite` does to its rows what the steps did.

To change the format: append a `Migration` here, change the schema of new files in `database.py` alike (a test compares the
two), and keep a dump of the format before in `tests/store/embedded/formats`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from muster.client.files import flush_directory
from muster.store.embedded.moved_events import move_events


class Migration(NamedTuple):
    """The step to format `to` from the one before it."""

    to: int
    statements: tuple[str, ...] = ()
    rewrite: Callable[[apsw.Connection, Path], None] | None = None
    """Changes rows, in the transaction that is open. It must do no harm to rows that are as it leaves them."""


MIGRATIONS: Final[tuple[Migration, ...]] = (Migration(2, rewrite=move_events),)
"""In order, without gaps, the first to format 2."""

FORMAT: Final = MIGRATIONS[-1].to if MIGRATIONS else 1
"""Of the files that this release writes."""


def copy_path(path: Path, version: int) -> Path:
    """Where the copy of a file of format `version` is kept."""
    return path.with_name(f"{path.name}.format-{version}")


def migrate(connection: apsw.Connection, path: Path, version: int, migrations: Sequence[Migration]) -> None:
    """Bring the file from `version` to the last of `migrations`. Raises apsw.Error or OSError, with nothing changed."""
    missing = [step for step in migrations if step.to > version]
    if not missing:
        return
    if [step.to for step in missing] != list(range(version + 1, missing[-1].to + 1)):
        raise ValueError(f"steps from format {version} must follow one another, not {[step.to for step in missing]}")
    _copy(connection, copy_path(path, version))
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in missing:
            for statement in step.statements:
                connection.execute(statement).fetchall()
            if step.rewrite is not None:
                step.rewrite(connection, path)
        connection.execute(f"PRAGMA user_version={missing[-1].to}").fetchall()
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise


def rewrite(connection: apsw.Connection, path: Path, version: int, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring rows of format `version` up to date in a file that has the newest tables. Raises as `migrate`, and StoreCorrupt."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in migrations:
            if step.to > version and step.rewrite is not None:
                step.rewrite(connection, path)
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise


def _roll_back(connection: apsw.Connection) -> None:
    with contextlib.suppress(apsw.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _copy(connection: apsw.Connection, target: Path) -> None:
    """The file as it is, log included. It replaces an earlier copy of that format, which an attempt that failed has left."""
    draft = target.with_name(f"{target.name}.partial")
    draft.unlink(missing_ok=True)
    # Made here so that it is never readable by others; SQLite writes into an empty file.
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    try:
        connection.execute("VACUUM INTO ?", (str(draft),)).fetchall()
        descriptor = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    flush_directory(target.parent)
