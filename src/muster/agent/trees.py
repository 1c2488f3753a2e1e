"""Directories that tasks have written: taken away and counted, however they were made.

A task may nest directories deeper than Python's stack, than the number of files that a process may open, and than the longest
path. So nothing here recurses over them, keeps one descriptor for each, or names them by a path from the top.

Concurrency: blocking; for threads. Whatever ran there has ended before something is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Final

ENTRIES_MAX: Final = 1_000_000
"""Of one walk: it takes seconds, and other pods wait for theirs."""
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Uncountable(Exception):
    """More files, or further down, than can be counted."""


def held_bytes(top: Path, entries_max: int = ENTRIES_MAX) -> int:
    """Blocks of everything below, of this file system alone; a file with several names counts once. `Uncountable` rather than
    a figure that is too small."""
    try:
        device = os.stat(top, follow_symlinks=False).st_dev
    except OSError:
        return 0
    total, entries = 0, 0
    seen: set[int] = set()
    stack = [str(top)]
    while stack:
        path = stack.pop()
        try:
            fd = os.open(path, _FLAGS)
        except OSError as e:
            if e.errno == errno.ENAMETOOLONG:
                raise Uncountable("directories in it are nested too deeply") from e
            continue  # gone meanwhile, or not a directory any more
        try:
            with os.scandir(fd) as found:
                for entry in found:
                    entries += 1
                    if entries > entries_max:
                        raise Uncountable(f"it holds more than {entries_max} files and directories")
                    total += _entry_bytes(entry, device, seen, stack, path)
        except OSError:
            continue
        finally:
            os.close(fd)
    return total


def _entry_bytes(entry: os.DirEntry[str], device: int, seen: set[int], stack: list[str], parent: str) -> int:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return 0
    if status.st_dev != device:
        return 0
    if stat.S_ISDIR(status.st_mode):
        stack.append(f"{parent}/{entry.name}")
    elif status.st_nlink > 1:
        if status.st_ino in seen:
            return 0
        seen.add(status.st_ino)
    return status.st_blocks * 512


def remove(top: Path) -> None:
    """Nothing of `top` is left. OSError otherwise, and then what could be removed is gone. No link is followed."""
    try:
        if not stat.S_ISDIR(os.lstat(top).st_mode):
            os.unlink(top)  # first: to open a pipe is to wait for its other end
            return
    except FileNotFoundError:
        return
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(top)
    if not os.path.lexists(top):
        return
    _flatten(top)
    os.rmdir(top)


def _flatten(top: Path) -> None:
    """Each directory is emptied where it is; directories in it are moved up to `top` first, and have their turn there."""
    top_fd = os.open(top, _FLAGS)
    try:
        number = 0
        todo = _empty(top_fd)
        while todo:
            name = todo.pop()
            fd = os.open(name, _FLAGS, dir_fd=top_fd)
            try:
                for inner in _empty(fd):
                    number += 1
                    moved = f".removed-{number}"
                    while _exists(moved, top_fd):
                        number += 1
                        moved = f".removed-{number}"
                    os.rename(inner, moved, src_dir_fd=fd, dst_dir_fd=top_fd)
                    todo.append(moved)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=top_fd)
    finally:
        os.close(top_fd)


def _empty(fd: int) -> list[str]:
    """Unlink all but directories; their names are returned."""
    with contextlib.suppress(PermissionError):
        os.fchmod(fd, 0o700)
    found: list[str] = []
    with os.scandir(fd) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=fd)
    return found


def _exists(name: str, dir_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
