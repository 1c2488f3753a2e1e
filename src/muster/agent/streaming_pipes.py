"""Reading what a command prints and writing what it reads, on descriptors that do not block.

Concurrency: each is used by one task. They never close their descriptor, and watch it only while they wait; so once that task
has ended, it may be closed.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from muster.agent.streaming_line import CHUNK_BYTES

LATE_BYTES_MAX: Final = 2**20
"""More than a pipe holds: so what comes after it was printed after the command's end."""


class Source:
    """A pipe's or a terminal's output."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting: asyncio.Future[None] | None = None
        self._is_late = False
        self._late_bytes = 0

    async def read(self) -> bytes:
        """b"" at the end: nobody has it open any more, or it is late and there is nothing more in it."""
        while True:
            try:
                data = os.read(self._fd, CHUNK_BYTES)
            except BlockingIOError:
                if self._is_late:
                    return b""
                await self._readable()
                continue
            except OSError:  # a terminal that nobody has open
                return b""
            if self._is_late:
                self._late_bytes += len(data)
                if self._late_bytes > LATE_BYTES_MAX:
                    return b""
            return data

    def end_in(self, seconds: float) -> None:
        """From then on it is late: what is in it is still read, but not waited for."""
        asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        self._is_late = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            _set(self._waiting)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        loop.add_reader(self._fd, self._wake)
        try:
            await self._waiting
        finally:
            loop.remove_reader(self._fd)
            self._waiting = None


async def write_all(fd: int, data: bytes) -> bool:
    """False: nobody reads it any more."""
    left = memoryview(data)
    while left:
        try:
            written = os.write(fd, left)
        except BlockingIOError:
            await _writable(fd)
        except OSError:
            return False
        else:
            left = left[written:]
    return True


def _set(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, _set, waiting)
    try:
        await waiting
    finally:
        loop.remove_writer(fd)
