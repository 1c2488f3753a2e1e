"""Why a store can't be opened. Each fault has its own class; each message says which file, what is wrong and what to do.

These are for whoever starts a server. A request that an open store refuses is an `ApiError`, as the contract says.
Invariant: when one of these is raised, nothing on disk was changed or removed.
"""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """A store directory can't be used."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


class StoreLocked(StoreError):
    """Another process has this directory open."""

    def __init__(self, path: Path, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            path,
            f"the store in {path} is in use by {who}; stop that process, or give this one another data directory "
            "(two writers on one store would destroy it, so this one did not start)",
        )
        self.pid = pid


class StoreNotADirectory(StoreError):
    def __init__(self, path: Path) -> None:
        super().__init__(path, f"the store needs a directory, but {path} is something else; choose another data directory")


class StoreUnwritable(StoreError):
    """Read-only file system, missing permission, or no room even to open."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            path,
            f"the store can't write in {path}: {why}; check the owner and mode of the directory, the mount options "
            "and the free space",
        )


class StoreCorrupt(StoreError):
    """The file is damaged. It is left as it is: a copy of it may still be of use to whoever repairs it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            path,
            f"the store's file {path} is damaged: {what}; nothing was changed. Keep a copy of the whole directory, "
            "then restore it from your last backup (muster restore), or move it away to start empty",
        )


class StoreForeign(StoreError):
    """A SQLite file, but not one of ours."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, f"{path} was written by another program; nothing was changed. Choose another data directory")


class StoreTooNew(StoreError):
    """Written by a later release."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            path,
            f"the store's file {path} has format {found}, and this release knows formats up to {known}; nothing was changed. "
            f"Start the newer release again; or go back to the copy {path.name}.format-{known} that its upgrade left beside "
            "it, or to a backup made before (muster restore)",
        )
        self.found = found
        self.known = known


class StoreTooOld(StoreError):
    """Written by an earlier release, and opened only to be read."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            path,
            f"the store's file {path} has format {found}, and this release reads format {known}; nothing was changed. "
            "Start the server once, which brings it up to date, or use the release that wrote it",
        )
        self.found = found
        self.known = known
