"""Talking to an open command as its caller does: descriptors that do not block, on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from muster.agent.contracts import ExecSession
from tests.waiting import WAIT_S, until


async def ready(fd: int, *, is_writing: bool = False) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    add, remove = (loop.add_writer, loop.remove_writer) if is_writing else (loop.add_reader, loop.remove_reader)
    add(fd, event.set)
    try:
        async with asyncio.timeout(WAIT_S):
            await event.wait()
    finally:
        remove(fd)


async def read(fd: int, bytes_max: int = 65536) -> bytes:
    """What there is, as soon as there is something; b"" at the end, also a terminal's."""
    while True:
        await ready(fd)
        try:
            return os.read(fd, bytes_max)
        except BlockingIOError:
            continue
        except OSError as e:
            if e.errno == errno.EIO:
                return b""
            raise


async def read_all(fd: int, bytes_max: int = 65536) -> bytes:
    found = bytearray()
    while data := await read(fd, bytes_max):
        found += data
    return bytes(found)


async def read_until(fd: int, text: bytes) -> bytes:
    found = b""
    while text not in found:
        data = await read(fd)
        assert data, f"it ended without {text!r}: {found!r}"
        found += data
    return found


async def write(fd: int, data: bytes) -> None:
    while data:
        await ready(fd, is_writing=True)
        with contextlib.suppress(BlockingIOError):
            data = data[os.write(fd, data) :]


async def finished(session: ExecSession) -> tuple[int, bytes, bytes]:
    """Code, output, errors; closed."""
    try:
        streams = [fd for fd in (session.stdout, session.stderr) if fd >= 0]
        out, *err = await asyncio.gather(*(read_all(fd) for fd in streams))
        async with asyncio.timeout(WAIT_S):
            return await session.wait(), out, b"".join(err)
    finally:
        await session.close()


def processes(text: str) -> list[int]:
    """Those that live with this in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (path / "cmdline").read_bytes().replace(b"\0", b" "):
                found.append(int(path.name))
    return found


def descriptors() -> set[str]:
    """What this process has open, and what that is."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(f"{path.name} {os.readlink(path)}")
    return found


async def gone(check: Callable[[], object]) -> None:
    async def is_gone() -> bool:
        return not check()

    await until(is_gone)
