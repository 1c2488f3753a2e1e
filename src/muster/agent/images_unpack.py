"""Puts the layers of an image into a directory, and never a byte outside of it.

Every path is walked from the directory's own descriptor, part by part, without following links by the kernel: a link in the
middle is read and resolved as if the directory were `/`, as it will be for the container. Whiteouts take away what layers
below have put there. Device nodes are refused, unless allowed. Blocking; one thread for one `Unpacker`.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from muster.agent.images_tar import Entry, LayerError, LayerReader, Limits, Readable, checked_parts

WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
LINKS_MAX: Final = 40
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpacker:
    """For one image. `bytes` and `entries` count what was written over all layers."""

    def __init__(self, root: Path, limits: Limits, *, may_make_devices: bool = False) -> None:
        self._root = os.open(root, _DIRECTORY)
        self._limits = limits
        self._may_make_devices = may_make_devices
        self._is_root = os.geteuid() == 0
        self.bytes = 0
        self.entries = 0

    def __enter__(self) -> Unpacker:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    def apply(self, layer: Readable) -> None:
        """One layer, on top of those before. LayerError (or OSError of a full disk) leaves the directory to be thrown away."""
        reader = LayerReader(layer, self._limits)
        own: set[tuple[str, ...]] = set()
        for entry in reader:
            self.entries += 1
            if self.entries > self._limits.entries_max:
                raise LayerError(f"more than {self._limits.entries_max} entries")
            try:
                self._entry(entry, reader, own)
            except OSError as e:
                if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE):
                    raise
                raise LayerError(f"{'/'.join(entry.parts)[:120]!r}: {e.strerror}") from e
        reader.drain()

    def _entry(self, entry: Entry, reader: LayerReader, own: set[tuple[str, ...]]) -> None:
        if not entry.parts:
            if entry.kind != "directory":
                raise LayerError(f"the root is a {entry.kind}")
            self._attributes(self._root, entry)
            return
        *above, last = entry.parts
        if last.startswith(WHITEOUT):
            self._whiteout(tuple(above), last, own)
            return
        # All parents count as this layer's own: an opaque mark that comes after them must not take them away.
        for n in range(len(entry.parts), 0, -1):
            if entry.parts[:n] in own:
                break
            own.add(entry.parts[:n])
        with self.directory(tuple(above), make=True) as parent:
            assert parent is not None
            self._put(parent, last, entry, reader)

    def _put(self, parent: int, last: str, entry: Entry, reader: LayerReader) -> None:
        if entry.kind == "directory":
            self._put_directory(parent, last, entry)
            return
        _take_away(parent, last)
        if entry.kind == "file":
            self.bytes += entry.size
            if self.bytes > self._limits.bytes_max:
                raise LayerError(f"more than {self._limits.bytes_max} bytes unpacked, at {'/'.join(entry.parts)[:120]!r}")
            fd = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
            try:
                for chunk in reader.chunks():
                    _write(fd, chunk)
                self._attributes(fd, entry)
            finally:
                os.close(fd)
        elif entry.kind == "symlink":
            self._put_symlink(parent, last, entry)
        elif entry.kind == "hardlink":
            self._put_hardlink(parent, last, entry)
        else:
            self._put_special(parent, last, entry)

    def _put_directory(self, parent: int, last: str, entry: Entry) -> None:
        try:
            os.mkdir(last, 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(last, dir_fd=parent).st_mode):
                _take_away(parent, last)
                os.mkdir(last, 0o700, dir_fd=parent)
        fd = os.open(last, _DIRECTORY, dir_fd=parent)
        try:
            self._attributes(fd, entry)
        finally:
            os.close(fd)

    def _put_symlink(self, parent: int, last: str, entry: Entry) -> None:
        """An absolute target is from the container's root, as in every image. One that climbs beyond it is refused."""
        target = entry.target
        if not target or "\0" in target or len(target.encode(errors="surrogateescape")) > self._limits.name_bytes_max:
            raise LayerError(f"{'/'.join(entry.parts)[:120]!r}: a link to {target[:80]!r}")
        depth = 0 if target.startswith("/") else len(entry.parts) - 1
        for part in target.split("/"):
            depth += -1 if part == ".." else 1 if part not in ("", ".") else 0
            if depth < 0 and not target.startswith("/"):
                raise LayerError(f"{'/'.join(entry.parts)[:120]!r}: its target {target[:80]!r} climbs out of the image")
        os.symlink(target, last, dir_fd=parent)
        if self._is_root:
            os.chown(last, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)

    def _put_hardlink(self, parent: int, last: str, entry: Entry) -> None:
        parts = checked_parts(entry.target, self._limits, "hard link target")
        if not parts:
            raise LayerError(f"{'/'.join(entry.parts)[:120]!r}: a hard link to nothing")
        with self.directory(parts[:-1], make=False) as source:
            if source is None or not _is_linkable(source, parts[-1]):
                raise LayerError(f"{'/'.join(entry.parts)[:120]!r}: no file {entry.target[:120]!r} to link to")
            os.link(parts[-1], last, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)

    def _put_special(self, parent: int, last: str, entry: Entry) -> None:
        if entry.kind == "fifo":
            os.mkfifo(last, 0o600, dir_fd=parent)
        elif not self._may_make_devices:
            raise LayerError(f"{'/'.join(entry.parts)[:120]!r}: a device node; images must not bring any")
        else:
            kind = stat.S_IFCHR if entry.kind == "char" else stat.S_IFBLK
            os.mknod(last, kind | 0o600, os.makedev(*entry.device), dir_fd=parent)
        if self._is_root:
            os.chown(last, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        os.chmod(last, entry.mode, dir_fd=parent)  # just made by us, and nobody else writes here: it is no link

    def _attributes(self, fd: int, entry: Entry) -> None:
        if self._is_root:
            os.fchown(fd, entry.uid, entry.gid)
        os.fchmod(fd, entry.mode)
        os.utime(fd, (entry.mtime, entry.mtime))

    # -- paths ---------------------------------------------------------------------------------------------------------------

    @contextmanager
    def directory(self, parts: tuple[str, ...], *, make: bool) -> Iterator[int | None]:
        """A descriptor of the directory, links on the way resolved inside the root; None where there is none."""
        stack, todo, hops = [os.dup(self._root)], deque(parts), 0
        try:
            while todo:
                part = todo.popleft()
                if part == "..":
                    if len(stack) > 1:
                        os.close(stack.pop())
                    continue
                try:
                    stack.append(os.open(part, _DIRECTORY, dir_fd=stack[-1]))
                    continue
                except FileNotFoundError:
                    if not make:
                        yield None
                        return
                    os.mkdir(part, 0o755, dir_fd=stack[-1])
                    todo.appendleft(part)
                    continue
                except OSError as e:
                    if e.errno not in (errno.ENOTDIR, errno.ELOOP):
                        raise
                target = _link(stack[-1], part)
                hops += 1
                if target is None or hops > LINKS_MAX or len(todo) > self._limits.depth_max * 2:
                    raise LayerError(f"{'/'.join(parts)[:120]!r}: {part[:80]!r} is no directory, or too many links lead there")
                if target.startswith("/"):
                    while len(stack) > 1:
                        os.close(stack.pop())
                todo.extendleft(p for p in reversed(target.split("/")) if p not in ("", "."))
            yield stack[-1]
        finally:
            for fd in stack:
                os.close(fd)

    def _whiteout(self, above: tuple[str, ...], last: str, own: set[tuple[str, ...]]) -> None:
        name = last.removeprefix(WHITEOUT)
        with self.directory(above, make=False) as parent:
            if parent is None:
                return
            if last == OPAQUE:
                for found in os.listdir(parent):
                    if (*above, found) not in own:
                        _take_away(parent, found)
            elif not name or name in (".", "..") or name.startswith(WHITEOUT):
                raise LayerError(f"{'/'.join((*above, last))[:120]!r}: a whiteout of nothing")
            elif (*above, name) not in own:
                _take_away(parent, name)


def _link(parent: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError:
        return None


def _is_linkable(parent: int, name: str) -> bool:
    with suppress(OSError):
        return not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
    return False


def _take_away(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(name, dir_fd=parent)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_inside(root: Path, path: str, bytes_max: int) -> bytes:
    """A file of the image, links resolved inside it; empty where there is none. Never more than `bytes_max`."""
    parts = tuple(p for p in path.split("/") if p not in ("", "."))
    with Unpacker(root, Limits()) as at, suppress(LayerError):
        for _ in range(LINKS_MAX):
            with at.directory(parts[:-1], make=False) as parent:
                if parent is None or not parts:
                    return b""
                target = _link(parent, parts[-1])
                if target is None:
                    return _read(parent, parts[-1], bytes_max)
            found = tuple(p for p in target.split("/") if p not in ("", "."))
            parts = found if target.startswith("/") else (*parts[:-1], *found)
    return b""


def _read(parent: int, name: str, bytes_max: int) -> bytes:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return b""
    try:
        return os.read(fd, bytes_max) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
