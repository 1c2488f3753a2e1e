"""A file system that fails on command: SQLite's own VFS layer, wrapped, with every write, sync and truncation counted.

`FaultyDisk` is installed as SQLite's default VFS for the length of a test. It holds real files; only the answers lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

NAME = "faulty"


class FaultyDisk(apsw.VFS):
    """Fails the operations whose number `fails_at` contains, as a disk that is full or broken does."""

    def __init__(self) -> None:
        self.operations = 0
        self.first_failure: int | None = None
        self.failures_len = 0
        self.full = False
        self.failed = 0
        super().__init__(NAME, "unix", True)

    def fail(self, first: int, length: int, *, full: bool) -> None:
        """Let `length` operations fail, counted from now, beginning with number `first`."""
        self.operations = 0
        self.failed = 0
        self.first_failure, self.failures_len, self.full = first, length, full

    def check(self) -> None:
        number = self.operations
        self.operations += 1
        if self.first_failure is not None and self.first_failure <= number < self.first_failure + self.failures_len:
            self.failed += 1
            raise apsw.FullError("injected") if self.full else apsw.IOError("injected")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> FaultyFile:
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.check()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.check()
        super().xSync(flags)

    def xTruncate(self, newsize: int) -> None:
        self._disk.check()
        super().xTruncate(newsize)


@contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    try:
        yield disk
    finally:
        disk.unregister()
