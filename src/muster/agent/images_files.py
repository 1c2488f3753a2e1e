"""Files of an image on this machine, by name: a directory, or an archive whose members can be opened in any order.

Blocking; used in a thread. Nothing of an archive is unpacked: members are read where they lie.
"""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from muster.agent.images_tar import CHUNK_BYTES, LayerError, LayerReader, Limits, Readable


class Directory:
    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, name: str) -> Readable:
        # The name is `index.json` or was made from a checked digest.
        return (self._root / name).open("rb")


class _Window:
    """A part of a file."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self._fd, self._at, self._left = fd, offset, size

    def read(self, size: int, /) -> bytes:
        data = os.pread(self._fd, min(size, self._left, CHUNK_BYTES), self._at)
        self._at += len(data)
        self._left -= len(data)
        return data

    def skip(self, size: int) -> None:
        if size > self._left:
            raise LayerError(f"the archive ends in the middle of the entry at byte {self._at}")
        self._at += size
        self._left -= size


class Archive:
    """A tar whose members can be opened in any order. One that is compressed as a whole is uncompressed into `scratch`."""

    def __init__(self, path: Path, scratch: Path, limits: Limits, *, index_only: bool = False) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.members: dict[str, tuple[int, int] | str] = {}
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise LayerError(f"{path}: not a file")
            if os.pread(self._fd, 2, 0) == b"\x1f\x8b":
                if index_only:
                    raise LayerError(
                        f"{path}: compressed as a whole; say what it is: oci-archive:{path} or docker-archive:{path}"
                    )
                self._uncompress(path, scratch, limits)
            self._index(limits)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _uncompress(self, path: Path, scratch: Path, limits: Limits) -> None:
        out = scratch / "archive.tar"
        written = 0
        try:
            with gzip.open(path) as source, out.open("wb") as target:
                while data := source.read(CHUNK_BYTES):
                    written += len(data)
                    if written > limits.bytes_max:
                        raise LayerError(f"{path}: more than {limits.bytes_max} bytes when uncompressed")
                    target.write(data)
        except (gzip.BadGzipFile, EOFError, zlib.error) as e:
            raise LayerError(f"{path}: can't be uncompressed: {e}") from e
        os.close(self._fd)
        self._fd = os.open(out, os.O_RDONLY | os.O_CLOEXEC)

    def _index(self, limits: Limits) -> None:
        reader = _SeekingReader(self._fd, limits)
        for entry in reader:
            name = "/".join(entry.parts)
            if len(self.members) >= 10_000:
                raise LayerError("more than 10000 members in the archive")
            if entry.kind == "file":
                self.members[name] = (reader.offset, entry.size)
            elif entry.kind in ("symlink", "hardlink"):
                # Older `docker save` writes a layer once and links to it. Followed only to a member of the archive.
                base = "" if entry.kind == "hardlink" else "/".join(entry.parts[:-1])
                self.members[name] = os.path.normpath(os.path.join(base, entry.target))

    def open(self, name: str) -> Readable:
        found = self.members.get(os.path.normpath(name))
        if isinstance(found, str):
            found = self.members.get(found)
        if not isinstance(found, tuple):
            raise LayerError(f"{name[:120]!r} is not in the archive")
        return _Window(self._fd, *found)


class _SeekingReader(LayerReader):
    """Skips what is not wanted without reading it."""

    def __init__(self, fd: int, limits: Limits) -> None:
        size = os.fstat(fd).st_size
        self._window = _Window(fd, 0, size)
        super().__init__(self._window, limits)

    def chunks(self) -> Iterator[bytes]:
        self._window.skip(self._left)
        self.offset += self._left
        self._left = 0
        return iter(())
