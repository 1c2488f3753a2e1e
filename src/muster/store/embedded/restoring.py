"""Back from a backup: a data directory is made to hold what an archive holds, whole or not at all, whenever it is interrupted.

    DIR/restore.partial     being built; worth nothing, and removed by the next restore
    DIR/restore.ready       whole and durable: from the rename to this name on, the restore will happen
        new/                what goes to DIR: store, and with keys pki, kubeconfig, pod-range
        old/                what was there before
    DIR/replaced-TIME       what was there before, when all is done; never deleted

Each name in `new` is put in place by moving the old one to `old` and then itself to DIR. Whoever finds `restore.ready`, the
next restore or the next start of a server, carries on where the last one ended (`finish`); so no server starts between.

Versions do not go back. Whoever saw the state that is now gone saw versions that the archive does not know; were they given out
again, a watch could resume in a past that never was. So the restored store begins far beyond every version that can have been
given out (`first_version`), with all history before counted as compacted: older watches and lists get 410, and list anew.
Objects keep the versions, uids and generations that they had.

Concurrency: one process at a time, by a lock on the directory itself; blocking, any thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from muster.client.files import flush_directory, replace_file
from muster.store.embedded.archive import ArchiveError, Contents, Manifest, read
from muster.store.embedded.database import CommitFailed, Database, Row
from muster.store.embedded.errors import StoreError, StoreLocked
from muster.store.embedded.lock import DirectoryLock
from muster.store.embedded.migrations import FORMAT
from muster.store.embedded.recognising import sync_directory

PARTIAL: Final = "restore.partial"
READY: Final = "restore.ready"
STORE: Final = "store"
PLACES: Final = ("kubeconfig", "pod-range", "pki", STORE)
"""What a restore replaces, in this order."""
VERSION_STEP: Final = 1_000_000_000
"""What a restored store skips at least."""
WRITES_PER_S_MAX: Final = 100_000
"""More than any server can do: what it may have given out since the backup is at most this much for each second."""
MOUNTS: Final = Path("/proc/self/mountinfo")
_SPARE_BYTES: Final = 16 << 20
_BATCH_LEN: Final = 1000
_NOT_CONTENT: Final = frozenset({PARTIAL, "muster.pid", "server.json"})

Step = Callable[[str], None]
"""Called before each step that changes something, with its name: for tests, which stop there."""


class RestoreError(Exception):
    """The restore did not happen; the message says why, and what to do."""


class Restored(msgspec.Struct, frozen=True):
    manifest: Manifest
    first_version: int
    replaced: Path | None
    """Where that is which was there before."""


def first_version(manifest: Manifest, now: float, seen: int = 0) -> int:
    """The version that a restored store begins with. `seen` is the last one that is known to have been given out.

    It grows with the time since the backup, so restoring the same one twice does not give the same versions out twice.
    """
    elapsed_s = max(0, int(now - manifest.taken_at_s) + 1)
    return max(manifest.resource_version + elapsed_s * WRITES_PER_S_MAX, seen) + VERSION_STEP


def restore(
    archive: Path,
    data_dir: Path,
    *,
    now: float,
    force: bool = False,
    hold: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    step: Step = lambda name: None,
) -> Restored:
    """Make `data_dir` hold what `archive` holds. `hold` keeps others off the directory, beside the locks that are taken here.

    Raises ArchiveError, RestoreError, StoreError or OSError; before the last step of building, nothing that was there has
    changed.
    """
    with archive.open("rb") as file:
        if not file.seekable():
            raise RestoreError(f"{archive} is no file that can be read twice; put the backup into one first")
        sizes: list[int] = []
        contents = read(file, lambda rows: sizes.append(sum(len(row.value) + 256 for row in rows)))
        _check_format(contents.manifest)
        step("make the directory")
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(), _locked(data_dir):
            _finish(data_dir, now, step)
            _check_place(data_dir, force)
            _check_movable(data_dir, contents)
            with _store_locked(data_dir / STORE) as seen:
                _check_room(data_dir, sum(sizes))
                begin = first_version(contents.manifest, now, seen)
                _build(data_dir, file, contents, begin, step)
                replaced = _finish(data_dir, now, step)
    return Restored(contents.manifest, begin, replaced)


def finish(data_dir: Path, now: float) -> Path | None:
    """Carry on with a restore that was interrupted after it was ready, if there is one. Raises StoreLocked or OSError."""
    if not (data_dir / READY).exists():
        return None
    with _locked(data_dir):
        return _finish(data_dir, now, lambda name: None)


# --- before ------------------------------------------------------------------------------------------------------


def _check_format(manifest: Manifest) -> None:
    if manifest.store_format > FORMAT:
        raise ArchiveError(
            f"it was taken from a store of format {manifest.store_format} by Muster {manifest.muster_version[:40]}, and this "
            f"release knows formats up to {FORMAT}; restore it with that release or a later one"
        )


def _check_place(data_dir: Path, force: bool) -> None:
    found = sorted(entry.name for entry in os.scandir(data_dir) if entry.name not in _NOT_CONTENT)
    if found and not force:
        shown = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise RestoreError(
            f"data directory {data_dir} is not empty: it has {shown}; name an empty one with --data-dir, or replace what the "
            "backup holds with --force (what is replaced is moved aside, and nothing is deleted)"
        )


def _check_movable(data_dir: Path, contents: Contents) -> None:
    """A mount point can't be moved aside, which would only be found out when there is no way back."""
    for name in {STORE, *(place.partition("/")[0] for place in contents.keys)}:
        if _is_mount(data_dir / name):
            raise RestoreError(
                f"{data_dir / name} is a mount point, so it can't be moved aside; unmount it, or mount the whole data "
                "directory instead"
            )


def _is_mount(path: Path) -> bool:
    """Also where the same file system is mounted, as far as the system lists what is."""
    try:
        mounts = [line.split()[4] for line in MOUNTS.read_text().splitlines()]
    except (OSError, ValueError, IndexError):
        mounts = []
    return path.is_mount() or str(path.resolve()) in mounts


def _check_room(data_dir: Path, need: int) -> None:
    # Twice: the rows pass through the write-ahead log.
    need, free = 2 * need + _SPARE_BYTES, shutil.disk_usage(data_dir).free
    if free < need:
        raise RestoreError(
            f"data directory {data_dir}: the restore needs up to {need >> 20} MiB and {free >> 20} MiB are free; make room, or "
            "choose another with --data-dir"
        )


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    descriptor = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked(data_dir, None) from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _store_locked(store: Path) -> Iterator[int]:
    """Held against a server that runs on the store that is there; gives the last version that it has given out, 0 if that can't
    be read: a store may be replaced just because it is damaged."""
    if not store.is_dir():
        yield 0
        return
    seen = 0
    try:
        database = Database.open_to_read(store)
        try:
            seen = database.last_version()
        finally:
            database.abandon()
    except StoreLocked:
        raise
    except (StoreError, FileNotFoundError):
        pass
    lock = DirectoryLock(store)
    try:
        yield seen
    finally:
        lock.release()


# --- building ----------------------------------------------------------------------------------------------------


def _build(data_dir: Path, file: BinaryIO, contents: Contents, begin: int, step: Step) -> None:
    partial = data_dir / PARTIAL
    step("clear an earlier attempt")
    if partial.exists():
        shutil.rmtree(partial)
    step("begin")
    new = partial / "new"
    for directory in (partial, new, partial / "old"):
        directory.mkdir(mode=0o700)
    step("build the store")
    _build_store(new / STORE, file, contents, begin, step)
    for place, content in contents.keys.items():
        step(f"write {place}")
        target = new / place
        target.parent.mkdir(mode=0o700, exist_ok=True)
        replace_file(target, content, 0o644 if place.endswith(".crt") else 0o600)
    for directory in (new / STORE, new / "pki", partial / "old", new, partial):
        if directory.is_dir():
            sync_directory(directory)
    step("make it ready")
    partial.replace(data_dir / READY)
    sync_directory(data_dir)


def _build_store(directory: Path, file: BinaryIO, contents: Contents, begin: int, step: Step) -> None:
    file.seek(0)
    database = Database.open(directory, identity=contents.identity)
    try:

        def take(rows: list[Row]) -> None:
            step("write objects")
            for start in range(0, len(rows), _BATCH_LEN):
                database.commit(rows[start : start + _BATCH_LEN])
                database.maintain(0)

        again = read(file, take)
        if contents.manifest.store_format < FORMAT:
            step("bring the objects up to date")
            database.upgrade_rows(contents.manifest.store_format)
        database.doom((), begin)
        database.maintain(0)
    except CommitFailed as error:
        raise RestoreError(f"{error.message}; nothing was changed: make room, or choose another --data-dir") from error
    finally:
        database.close()
    # The file was read twice: what was verified must be what was written.
    if again.manifest != contents.manifest:
        raise RestoreError("the backup was changed while it was read; nothing was changed: give the command again")
    step("check the store")
    written = Database.open_to_read(directory)
    try:
        written.check()
        found = sum(1 for _ in written.load())
        if (found, written.last_version()) != (contents.manifest.objects, begin):
            raise RestoreError(f"the store in {directory} is not what was written; look at the disk and the system's log")
    finally:
        written.abandon()


# --- putting it in place -----------------------------------------------------------------------------------------


def _finish(data_dir: Path, now: float, step: Step) -> Path | None:
    ready = data_dir / READY
    if not ready.exists():
        return None
    new, old = ready / "new", ready / "old"
    if new.exists():
        for name in PLACES:
            if not (new / name).exists():
                continue
            if (data_dir / name).exists():
                step(f"move {name} aside")
                (data_dir / name).replace(old / name)
                flush_directory(old)
                flush_directory(data_dir)
            step(f"put {name} in place")
            (new / name).replace(data_dir / name)
            flush_directory(data_dir)
            flush_directory(new)
        step("tidy up")
        new.rmdir()
    if not old.exists() or not any(old.iterdir()):
        with contextlib.suppress(FileNotFoundError):
            old.rmdir()
        ready.rmdir()
        return None
    step("name what was replaced")
    aside = _free_name(data_dir, int(now))
    ready.replace(aside)
    sync_directory(data_dir)
    return aside


def _free_name(data_dir: Path, number: int) -> Path:
    while (data_dir / f"replaced-{number}").exists():
        number += 1
    return data_dir / f"replaced-{number}"
