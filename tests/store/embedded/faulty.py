"""A file system that fails on command: SQLite's own VFS layer, wrapped, with every write, sync and truncation counted.

`FaultyDisk` is installed as SQLite's default VFS for the length of a test. It holds real files; only the answers lie. It also
knows what of them would be there after a power cut: what was flushed. A flush that fails forgets what it was to flush, as Linux
does, so that a later one says nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        self._flushed: dict[str, bytearray] = {}
        self._unflushed: dict[str, list[tuple[int, bytes | None]]] = {}
        """By file: writes, and truncations (None)."""
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

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._flushed.pop(filename, None)
        self._unflushed.pop(filename, None)

    def note(self, path: str, offset: int, data: bytes | None) -> None:
        self._unflushed.setdefault(path, []).append((offset, data))

    def flush(self, path: str) -> None:
        there = self._flushed.setdefault(path, bytearray())
        for offset, data in self._unflushed.pop(path, ()):
            if data is None:
                del there[offset:]
            else:
                there.extend(bytes(max(0, offset - len(there))))
                there[offset : offset + len(data)] = data

    def forget(self, path: str) -> None:
        self._unflushed.pop(path, None)

    def after_power_cut(self, directory: Path, copy: Path) -> None:
        """Make `copy` of what would be left of the store in `directory`."""
        copy.mkdir()
        for name in ("store.sqlite", "store.sqlite-wal"):
            path = str(directory / name)
            # A new file is made under another name, and renamed.
            there = self._flushed.get(path) or self._flushed.get(f"{path}.new") or bytearray()
            (copy / name).write_bytes(there)


class FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.check()
        super().xWrite(data, offset)
        self._disk.note(self._path, offset, bytes(data))

    def xSync(self, flags: int) -> None:
        try:
            self._disk.check()
        except apsw.Error:
            self._disk.forget(self._path)
            raise
        super().xSync(flags)
        self._disk.flush(self._path)

    def xTruncate(self, newsize: int) -> None:
        self._disk.check()
        super().xTruncate(newsize)
        self._disk.note(self._path, newsize, None)


@contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    try:
        yield disk
    finally:
        disk.unregister()
