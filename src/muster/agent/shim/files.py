"""Files written whole or not at all, locks that end with their holder, and who a process is. Standard library only."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import struct
from typing import Any

_FLOCK = "hhqqi4x"


def write_json(dir_fd: int, name: str, value: object, *, is_durable: bool = True) -> None:
    """Under this name, whole, when it returns; is_durable: also after the machine has lost its power."""
    fd = os.open(f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        os.write(fd, json.dumps(value, separators=(",", ":")).encode())
        if is_durable:
            os.fdatasync(fd)
    finally:
        os.close(fd)
    os.rename(f"{name}.new", name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def write_new(dir_fd: int, name: str, value: object) -> None:
    """Durable when it returns, for one `sync` and no rename. A crash on the way may leave it broken, which reads as absent."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        os.write(fd, json.dumps(value, separators=(",", ":")).encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def sync(dir_fd: int, name: str) -> None:
    """What was written without waiting is on disk."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def read_json(dir_fd: int, name: str, bytes_max: int = 8 * 2**20) -> dict[str, Any] | None:
    """None where there is no such file, or one that a crash of the machine has left empty."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        data = b""
        while len(data) < min(size, bytes_max) and (chunk := os.read(fd, size - len(data))):
            data += chunk
    finally:
        os.close(fd)
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def exists(dir_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def open_lock(dir_fd: int, name: str) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=dir_fd)


def take_lock(fd: int, *, is_waiting: bool = False) -> bool:
    """The lock belongs to the open file: it ends when every copy of `fd` is closed, however that came about."""
    request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if is_waiting else fcntl.F_OFD_SETLK, request)
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_locked(dir_fd: int, name: str) -> bool:
    """Asks without taking it, so that nobody who wants it is ever disturbed."""
    try:
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(fd)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


@functools.cache
def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()


def start_ticks(pid: int) -> int:
    """When this process began, in ticks since boot: with the pid, and the boot, it names the process. ProcessLookupError."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            text = f.read()
    except FileNotFoundError as e:
        raise ProcessLookupError(3, f"no process {pid}") from e
    return int(text[text.rindex(b")") + 2 :].split()[19])


def pid_of(pid_fd: int) -> int:
    """The pid, in the namespace that /proc shows. ProcessLookupError when the process is gone."""
    with open(f"/proc/self/fdinfo/{pid_fd}", encoding="ascii") as f:
        for line in f:
            if line.startswith("Pid:"):
                pid = int(line.split()[1])
                if pid > 0:
                    return pid
    raise ProcessLookupError(3, "the process has ended")


def open_process(pid: int, ticks: int) -> int | None:
    """A pidfd of exactly this process; None when it is gone, also when the pid is another's now."""
    try:
        fd = os.pidfd_open(pid)
    except (ProcessLookupError, OSError):
        return None
    try:
        is_it = start_ticks(pid) == ticks
    except (ProcessLookupError, ValueError):
        is_it = False
    if not is_it:
        os.close(fd)
        return None
    return fd
