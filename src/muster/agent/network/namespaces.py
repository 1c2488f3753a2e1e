"""Network namespaces as files: made, entered, taken away. And the thread in which all of it happens.

A namespace belongs to a thread, so entering one is safe only in a thread of its own: `NamespaceThread`. Its home is the
namespace in which the node works: the process's own, or the one of a path.

Invariant: between two calls the thread is in its home.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_NEWNET: Final = 0x40000000
_BIND: Final = 0x1000
_DETACH: Final = 2
_OWN: Final = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def enter(fd: int) -> None:
    """This thread works in the namespace `fd` from now on."""
    _check(_libc.setns(fd, _NEWNET), "setns")


def _leave_for_new() -> None:
    _check(_libc.unshare(_NEWNET), "unshare(CLONE_NEWNET)")


def _mount(source: str, target: Path) -> None:
    _check(_libc.mount(source.encode(), os.fsencode(target), b"none", _BIND, None), f"mount {target}")


def is_namespace(path: Path) -> bool:
    """Whether a namespace is mounted at this file, and not merely a file left from before a reboot."""
    try:
        return path.stat().st_dev == os.stat(_OWN).st_dev
    except OSError:
        return False


@contextlib.contextmanager
def inside(fd: int, home_fd: int) -> Iterator[None]:
    enter(fd)
    try:
        yield
    finally:
        enter(home_fd)


def create(path: Path, home_fd: int, prepare: Callable[[], T]) -> T:
    """A new namespace, kept by a mount at `path`. `prepare` is called inside. Nothing is left when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
    path.touch(mode=0o444)
    try:
        _leave_for_new()
        try:
            _mount(_OWN, path)
            return prepare()
        finally:
            enter(home_fd)
    except BaseException:
        remove(path)
        raise


def remove(path: Path) -> None:
    """Let go of it; the kernel takes it away when its last process has ended."""
    # A file that holds no mount answers EINVAL; mounts may lie upon each other.
    while _libc.umount2(os.fsencode(path), _DETACH) == 0:
        pass
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOENT):
        raise OSError(code, f"umount {path}: {os.strerror(code)}")
    path.unlink(missing_ok=True)


def why_impossible() -> str:
    """Why this process can't make network namespaces; empty when it can."""
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(_leave_for_new).result()
    except OSError as error:
        return error.strerror or str(error)
    return ""


class NamespaceThread:
    """One thread with a home. Its calls run one after the other."""

    def __init__(self, home: str = "") -> None:
        self._home = home
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self.home_fd = -1

    @property
    def is_open(self) -> bool:
        return self._pool is not None

    def open(self) -> None:
        if self._pool is not None:
            return
        pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="network")
        try:
            self.home_fd = pool.submit(self._settle).result()
        except BaseException:
            pool.shutdown()
            raise
        self._pool = pool

    def _settle(self) -> int:
        fd = os.open(self._home or _OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._home:
                enter(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    async def call(self, function: Callable[[], T]) -> T:
        """Run it there. What was begun is finished, also when the caller is cancelled."""
        return await asyncio.shield(asyncio.wrap_future(self._submit(function)))

    def run(self, function: Callable[[], T]) -> T:
        """The same for callers without an event loop."""
        return self._submit(function).result()

    def _submit(self, function: Callable[[], T]) -> concurrent.futures.Future[T]:
        if self._pool is None:
            raise RuntimeError("the thread of the network is not open")
        return self._pool.submit(function)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
            os.close(self.home_fd)
            self.home_fd = -1
