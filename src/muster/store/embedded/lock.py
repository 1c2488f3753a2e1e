"""One process per store directory: an advisory lock that the kernel drops when its holder dies, however it dies.

The lock is on the file `lock` inside the directory, which also names its holder for the error message. The file is never
removed: removing it would let two processes lock two different files of that name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from muster.store.embedded.errors import StoreLocked, StoreNotADirectory, StoreUnwritable

FILE_NAME = "lock"


class DirectoryLock:
    """Held from construction to `release`. Not re-entrant: a second one in the same process is refused as well."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = self._acquire(directory)

    @staticmethod
    def _acquire(directory: Path) -> int:
        path = directory / FILE_NAME
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except NotADirectoryError:
            raise StoreNotADirectory(directory) from None
        except OSError as error:
            raise StoreUnwritable(directory, error.strerror or str(error)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = _read_pid(fd)
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise StoreLocked(directory, pid) from None
            raise StoreUnwritable(directory, f"locking failed: {error.strerror}") from error
        # Only a hint for the message above, so a full disk here does not matter: the lock itself is held.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read_pid(fd: int) -> int | None:
    try:
        return int(os.pread(fd, 32, 0).strip() or b"0") or None
    except (OSError, ValueError):
        return None
