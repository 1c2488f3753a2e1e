"""Volumes on disk: written, brought up to date, and taken away again.

A volume from the API is a directory of links into `..data`, which is itself a link to the newest version; an update makes a
new version beside it and moves that one link, so that readers see all of the old or all of the new. A container that mounts
one key (subPath) keeps what it has seen.

Concurrency: blocking; `pods` calls these in a thread, for one pod at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.agent import trees
from muster.agent.contracts import AgentError
from muster.agent.volumes import VOLUME_BYTES_MAX, File, failed_mount, is_below
from muster.objects.kinds.volume_sources import HostPathVolumeSource

_DATA = "..data"
_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_DETACH = 2


def write_files(top: Path, files: Mapping[str, File], owner: int) -> bool:
    """Make the volume hold exactly these; False when it does already. `owner` is the pod's user, where we may say so."""
    top.mkdir(parents=True, exist_ok=True)
    if _current(top) == files:
        return False
    version = top / f"..{uuid.uuid4().hex}"
    version.mkdir(mode=0o755)
    for path, file in files.items():
        target = version / path
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(file.data)
            _own(out.fileno(), owner)
            os.fchmod(out.fileno(), file.mode & 0o7777 & ~(stat.S_ISUID | stat.S_ISGID))
    old = os.readlink(top / _DATA) if (top / _DATA).is_symlink() else ""
    fresh = top / f"..link-{uuid.uuid4().hex}"
    fresh.symlink_to(version.name)
    fresh.rename(top / _DATA)
    _link_names(top, {path.split("/")[0] for path in files})
    if old and "/" not in old and old.startswith(".."):
        shutil.rmtree(top / old, ignore_errors=True)
    return True


def is_written(top: Path) -> bool:
    """Whether it holds some version already."""
    return (top / _DATA).is_symlink()


def _current(top: Path) -> dict[str, File] | None:
    data = top / _DATA
    if not data.is_symlink():
        return None
    found: dict[str, File] = {}
    root = os.path.realpath(data)
    for where, _, names in os.walk(root):
        for name in names:
            path = os.path.join(where, name)
            try:
                found[os.path.relpath(path, root)] = _read(path)
            except OSError:
                return None
    return found


def _read(path: str) -> File:
    """Never waits: the file is the task's, who may hold a lease on it, and the kernel would have us wait until that ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return File(file.read(VOLUME_BYTES_MAX + 1), stat.S_IMODE(os.fstat(descriptor).st_mode))


def _link_names(top: Path, names: set[str]) -> None:
    for entry in os.scandir(top):
        if entry.name.startswith(".."):
            continue
        if entry.name not in names:
            os.unlink(entry.path)
    for name in names:
        with contextlib.suppress(FileExistsError):
            (top / name).symlink_to(f"{_DATA}/{name}")


def make_empty(top: Path, owner: int, mode: int = 0o777) -> None:
    """A directory that the pod's containers write into. What is there stays: a new agent finds the old one's."""
    if top.is_dir():
        return
    top.mkdir(parents=True, mode=0o700)
    _own(top, owner)
    top.chmod(mode)


def make_tmpfs(top: Path, owner: int, size_bytes: int | None, mode: int = 0o777) -> bool:
    """The same in memory. False where mounting is not allowed: then it is on the disk."""
    make_empty(top, owner, mode)
    if os.path.ismount(top):
        return True
    options = f"mode={mode:o},uid={owner},gid={owner}" if os.geteuid() == 0 else f"mode={mode:o}"
    if size_bytes:
        options += f",size={size_bytes}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"muster", os.fsencode(top), b"tmpfs", _MS_NOSUID | _MS_NODEV, options.encode()) == 0:
        return True
    if ctypes.get_errno() in (errno.EPERM, errno.EACCES):
        return False
    raise failed_mount(f"volume {top.name!r}: no tmpfs can be mounted: {os.strerror(ctypes.get_errno())}")


def host_path(name: str, source: HostPathVolumeSource, allowed: Sequence[str]) -> str:
    """The resolved path, checked against its type and against where it may lead. AgentError `FailedMount`."""
    where = f"volume {name!r}: hostPath {source.path!r}"
    real = os.path.realpath(source.path)
    if not any(is_below(real, os.path.realpath(root)) for root in allowed):
        raise failed_mount(f"{where}: it leads to {real!r}, which is not below a directory in allowedHostPaths")
    kind = source.type or ""
    try:
        if kind in ("DirectoryOrCreate", "FileOrCreate"):
            _make_host_path(real, is_file=kind == "FileOrCreate")
        mode = os.lstat(real).st_mode
    except OSError as e:
        raise failed_mount(f"{where}: {e.strerror}") from e
    checks = {
        "Directory": stat.S_ISDIR,
        "DirectoryOrCreate": stat.S_ISDIR,
        "File": stat.S_ISREG,
        "FileOrCreate": stat.S_ISREG,
        "Socket": stat.S_ISSOCK,
        "CharDevice": stat.S_ISCHR,
        "BlockDevice": stat.S_ISBLK,
    }
    if kind and (kind not in checks or not checks[kind](mode)):
        raise failed_mount(f"{where}: it is no {kind}")
    return real


_PLAIN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _open_plain(parts: Sequence[str], *, make: bool) -> int:
    """A directory, from the root on, over no link: one that a pod has put there since the path was resolved is an error."""
    parent = os.open("/", _PLAIN)
    for part in parts:
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=parent)
            inside = os.open(part, _PLAIN, dir_fd=parent)
        finally:
            os.close(parent)
        parent = inside
    return parent


def _make_host_path(real: str, *, is_file: bool) -> None:
    """`real` has no links. Nothing is made anywhere else."""
    parts = [part for part in real.split("/") if part]
    parent = _open_plain(parts[:-1] if is_file else parts, make=True)
    try:
        if is_file and parts:
            with contextlib.suppress(FileExistsError):
                made = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(parts[-1], made, 0o644, dir_fd=parent))
    finally:
        os.close(parent)


def make_sub_path(top: Path, inner: str, owner: int, *, is_of_host: bool = False) -> None:
    """Have `inner` in a volume that containers write to; a directory where there is nothing. No link is followed.

    is_of_host: `top` is a resolved path of the host, above which containers may write too."""
    try:
        parent = _open_plain(top.parts[1:], make=False) if is_of_host else os.open(top, os.O_PATH | os.O_DIRECTORY)
    except OSError as e:
        raise failed_mount(f"subPath {inner!r} of {top}: it is no plain path any more: {e.strerror}") from e
    try:
        for part in inner.split("/"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=parent)
                os.chown(part, owner, owner, dir_fd=parent, follow_symlinks=False) if os.geteuid() == 0 else None
            found = os.stat(part, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                raise failed_mount(f"subPath {inner!r} of volume {top.name!r}: {part!r} is a link; links are not followed")
            if not stat.S_ISDIR(found.st_mode):
                return
            inside = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            os.close(parent)
            parent = inside
    except OSError as e:
        raise failed_mount(f"subPath {inner!r} of volume {top.name!r}: {e.strerror}") from e
    finally:
        os.close(parent)


def unmount_below(top: Path) -> None:
    """Every mount below `top`, the inner ones first."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        points = [_unescaped(line.split(" ")[1]) for line in file]
    libc = ctypes.CDLL(None, use_errno=True)
    for point in sorted((p for p in points if is_below(p, str(top.absolute()))), key=len, reverse=True):
        if libc.umount2(os.fsencode(point), _MNT_DETACH) != 0 and ctypes.get_errno() not in (errno.EINVAL, errno.ENOENT):
            raise AgentError("FailedUnmount", f"{point} can't be unmounted: {os.strerror(ctypes.get_errno())}")


def remove_tree(top: Path) -> None:
    """Unmount what is mounted below, then take everything away. What a task made unreadable for itself goes too."""
    if not top.exists():
        return
    unmount_below(top)
    try:
        trees.remove(top)
    except OSError as e:
        raise AgentError("FailedCleanup", f"{top} can't be removed; it is tried again: {e.strerror}") from e


def _own(target: int | Path, owner: int) -> None:
    if os.geteuid() == 0:
        os.chown(target, owner, owner)


def _unescaped(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("unicode_escape", "surrogateescape") if "\\" in text else text
