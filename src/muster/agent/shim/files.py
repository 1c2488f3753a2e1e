"""Files written whole or not at all, locks that end with their holder, and who a process is. Standard library only."""

from __future__ import annotations

import fcntl
import os
import struct

from muster.agent.shim import light

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FLOCK = "hhqqi4x"
_FS_GETFLAGS, _FS_SETFLAGS, _FS_TOPDIR = 0x8008_6601, 0x4008_6602, 0x0002_0000
"""Of 64-bit machines. Others say no."""
_WRITE_LOCK = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def write_json(dir_fd: int, name: str, value: object, *, is_durable: bool = True) -> None:
    """Under this name, whole, when it returns; is_durable: also after the machine has lost its power."""
    fd = os.open(f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        os.write(fd, light.encode(value))
        if is_durable:
            os.fdatasync(fd)
    finally:
        os.close(fd)
    os.rename(f"{name}.new", name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def write_new(dir_fd: int, name: str, data: bytes) -> None:
    """Without a rename, so that it stays the same file. A crash on the way may leave it broken, which reads as absent."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=dir_fd)
    try:
        os.write(fd, data)
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
        value = light.decode(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def spread(directory: str) -> None:
    """Where the file system can, directories inside are put into different regions of the disk. Ext4 gives out an inode again
    only a minute or more after it was freed, and looks at each of them in vain until then: with many short runs in one region
    that becomes the largest part of a start. Asked for by a flag (`chattr +T`); without it all works the same."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags = struct.unpack("i", fcntl.ioctl(fd, _FS_GETFLAGS, bytes(4)))[0]
            if not flags & _FS_TOPDIR:
                fcntl.ioctl(fd, _FS_SETFLAGS, struct.pack("i", flags | _FS_TOPDIR))
        finally:
            os.close(fd)
    except OSError:
        pass


def exists(dir_fd: int, name: str) -> bool:
    return os.access(name, os.F_OK, dir_fd=dir_fd, follow_symlinks=False)


def open_lock(dir_fd: int, name: str) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=dir_fd)


def take_lock(fd: int, *, is_waiting: bool = False) -> bool:
    """The lock belongs to the open file: it ends when every copy of `fd` is closed, however that came about."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if is_waiting else fcntl.F_OFD_SETLK, _WRITE_LOCK)
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
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WRITE_LOCK)
    finally:
        os.close(fd)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def read_small(path: str) -> bytes:
    """A file of the kernel's, in one read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 8192)
    finally:
        os.close(fd)


def number_after(text: bytes, key: bytes) -> int:
    """In the line that begins with `key`; 0 when there is none."""
    _, found, after = (b"\n" + text).partition(b"\n" + key)
    return int(after.split(None, 1)[0]) if found else 0


_boot_ids: list[str] = []


def boot_id() -> str:
    """Asked once."""
    if not _boot_ids:
        _boot_ids.append(read_small("/proc/sys/kernel/random/boot_id").decode().strip())
    return _boot_ids[0]


def start_ticks(pid: int) -> int:
    """When this process began, in ticks since boot: with the pid, and the boot, it names the process. ProcessLookupError."""
    try:
        text = read_small(f"/proc/{pid}/stat")
    except FileNotFoundError as e:
        raise ProcessLookupError(3, f"no process {pid}") from e
    return int(text[text.rindex(b")") + 2 :].split()[19])


def pid_of(pid_fd: int) -> int:
    """The pid, in the namespace that /proc shows. ProcessLookupError when the process is gone."""
    pid = number_after(read_small(f"/proc/self/fdinfo/{pid_fd}"), b"Pid:")
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
