"""One agent per data directory: a lock that the kernel drops with the process, however that died, and who holds it.

The lock (flock) belongs to the open file, which no child inherits. The file says the holder's process id; that is believed only
while the lock is held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path


class Taken(Exception):
    """Another agent works on the directory."""

    def __init__(self, path: Path, pid: int) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"data directory {path.parent}: {who} runs an agent on it; stop that, or choose another with --data-dir"
        )
        self.pid = pid


class Claim:
    """Held from construction until `release` or the end of the process. Raises Taken or OSError."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(self._fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise Taken(path, _written(path)) from error
            raise

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.ftruncate(fd, 0)
            os.close(fd)


def holder_of(path: Path) -> int | None:
    """The process that holds the lock; None when nobody does, 0 when it has not said yet who it is."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return _written(path)
        raise
    finally:
        os.close(fd)
    return None


def _written(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text("ascii").strip() or "0")
    return 0
