"""Where segments lie: a directory, or any object store that fsspec reaches (`s3://...`, `gs://...`; extra `history`).

Many leaders may write into one store: names tell them apart (`SegmentName`), a segment has one writer, and nobody writes into a
segment that is there already. What has another name than a segment is left alone.

In an object store a segment is a folder of parts, as objects can't be appended to: what was written since the last `sync` is
one part. A directory has one file per segment, readable by its owner only.

Blocking; safe to use from several threads, a `Sink` from one. OSError for whatever the outside refuses.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from muster.history.records import SegmentName
from muster.history.segments import Sink

PART_BYTES_MAX = 8 * 1024 * 1024
_PARTS_MAX = 1_000_000


class StoreUnusable(ValueError):
    """The place that was named can't be a store; the message says why and what to do."""


class Stored(msgspec.Struct, frozen=True, order=True):
    name: SegmentName
    size_bytes: int


class SegmentStore(Protocol):
    @property
    def where(self) -> str:
        """For people."""

    @property
    def sync_s(self) -> float:
        """How often what was written is made durable."""

    def segments(self) -> list[Stored]:
        """In the order of their beginnings."""

    def create(self, name: SegmentName) -> Sink:
        """FileExistsError when it is there."""

    def open(self, name: SegmentName) -> BinaryIO: ...
    def remove(self, name: SegmentName) -> None: ...


def open_store(place: str | Path) -> SegmentStore:
    """The store at a path or URL. StoreUnusable for a URL of which nobody knows how to reach it."""
    text = str(place)
    return (
        ObjectStore(text) if "://" in text and not text.startswith("file://") else DirectoryStore(text.removeprefix("file://"))
    )


# -- a directory -------------------------------------------------------------------------------------------------------------


class DirectoryStore:
    sync_s = 5.0

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def where(self) -> str:
        return str(self.path)

    def segments(self) -> list[Stored]:
        found = []
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    name = SegmentName.parse(entry.name)
                    # One that another leader removes meanwhile is not there.
                    with contextlib.suppress(FileNotFoundError):
                        if name is not None and entry.is_file():
                            found.append(Stored(name, entry.stat().st_size))
        except FileNotFoundError:
            return []
        return sorted(found)

    def create(self, name: SegmentName) -> Sink:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _FileSink(self.path / str(name))

    def open(self, name: SegmentName) -> BinaryIO:
        return (self.path / str(name)).open("rb")

    def remove(self, name: SegmentName) -> None:
        (self.path / str(name)).unlink(missing_ok=True)


class _FileSink:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)  # the name is to outlive a power cut too
            finally:
                os.close(folder)
        except BaseException:
            self.close()
            raise

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


# -- an object store -----------------------------------------------------------------------------------------------------------


class ObjectStore:
    sync_s = 30.0

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise StoreUnusable(
                f"history at {url}: needs the package fsspec; install muster[history], or name a directory"
            ) from None
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise StoreUnusable(f"history at {url}: {error}") from error
        self._root = self._root.rstrip("/")
        self._url = url

    @property
    def where(self) -> str:
        return self._url

    def segments(self) -> list[Stored]:
        self._fs.invalidate_cache()
        found: dict[SegmentName, int] = {}
        try:
            with _as_os_error(self._root):
                parts: dict[str, Any] = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return []
        for path, about in parts.items():
            folder, _, part = path.lstrip("/").removeprefix(f"{self._root}/".lstrip("/")).partition("/")
            name = SegmentName.parse(folder)
            if name is not None and part and "/" not in part:
                found[name] = found.get(name, 0) + int(about.get("size") or 0)
        return sorted(Stored(name, size) for name, size in found.items())

    def create(self, name: SegmentName) -> Sink:
        folder = f"{self._root}/{name}"
        with _as_os_error(folder):
            is_there = self._fs.exists(f"{folder}/{0:06}")
        if is_there:
            raise FileExistsError(f"{folder}: there is a segment of that name already")
        return _PartsSink(self._fs, folder)

    def open(self, name: SegmentName) -> BinaryIO:
        with _as_os_error(f"{self._root}/{name}"):
            parts = sorted(self._fs.find(f"{self._root}/{name}"))
        if not parts:
            raise FileNotFoundError(f"{self._url}/{name}: there is no such segment")
        return io.BufferedReader(_Parts(self._fs, parts))

    def remove(self, name: SegmentName) -> None:
        with _as_os_error(f"{self._root}/{name}"), contextlib.suppress(FileNotFoundError):
            self._fs.rm(f"{self._root}/{name}", recursive=True)


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Each store has errors of its own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{path}: {type(error).__name__}: {error}") from error


class _PartsSink:
    def __init__(self, fs: Any, folder: str) -> None:
        self._fs, self._folder = fs, folder
        self._waiting: list[bytes] = []
        self._size = 0
        self._number = 0

    def write(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= PART_BYTES_MAX:
            self.sync()

    def sync(self) -> None:
        if not self._waiting:
            return
        if self._number >= _PARTS_MAX:
            raise OSError(f"{self._folder}: more than {_PARTS_MAX:,} parts")
        path = f"{self._folder}/{self._number:06}"
        with _as_os_error(path):
            self._fs.makedirs(self._folder, exist_ok=True)
            self._fs.pipe_file(path, b"".join(self._waiting))
        self._number += 1
        self._waiting, self._size = [], 0

    def close(self) -> None:
        self.sync()


class _Parts(io.RawIOBase):
    """The parts of a segment as one stream; a missing part ends it with an error, never with a gap."""

    def __init__(self, fs: Any, parts: list[str]) -> None:
        self._fs, self._parts = fs, parts
        self._number = 0
        self._data = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._data and self._number < len(self._parts):
            path = self._parts[self._number]
            if not path.endswith(f"/{self._number:06}"):
                raise OSError(f"{path}: part {self._number} of the segment is missing")
            with _as_os_error(path):
                self._data = memoryview(self._fs.cat_file(path))
            self._number += 1
        count = min(len(buffer), len(self._data))
        buffer[:count] = self._data[:count]
        self._data = self._data[count:]
        return count
