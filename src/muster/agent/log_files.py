"""Reads what `shim.log_writer` writes: the whole of a run's log, its tail, since when, and on while it grows.

On the agent's event loop: reads are of 64 KiB from local files, with a breath between them. Any number of readers; none of them
disturbs the writer. A file is known by its inode, so a rotation while reading loses nothing and repeats nothing, as long as the
reader is less than `files_max` files behind.

Lines come out as they were printed: pieces (`P`) are joined, and a line of one stream is not broken up by the other.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from muster.agent.contracts import LogQuery
from muster.agent.shim.launching import LOG
from muster.agent.shim.log_writer import CURRENT
from muster.objects.time import format_micro_time

_BLOCK_BYTES: Final = 64 * 1024
_HELD_BYTES_MAX: Final = 256 * 1024
_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 0.25


async def read_log(
    run_dir: Path, query: LogQuery, is_over: Callable[[], bool], pause: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> AsyncIterator[bytes]:
    """Chunks of text. With `follow` it goes on until `is_over` says that the run has ended and everything was read."""
    lines = _Lines(query)
    limit = query.limit_bytes
    async for block in _blocks(run_dir / LOG, query, is_over, pause):
        text = lines.feed(block)
        if limit is not None:
            text, limit = text[:limit], limit - len(text)
        if text:
            yield text
        if limit is not None and limit <= 0:
            return
    text = lines.end()
    if limit is not None:
        text = text[:limit]
    if text:
        yield text


# -- files ---------------------------------------------------------------------------------------------------------------------


class _File:
    """An open file of the log. Its number orders it: rotated files count up, the current one comes last."""

    def __init__(self, fd: int, number: float) -> None:
        self.fd, self.number = fd, number
        self.inode = os.fstat(fd).st_ino

    def close(self) -> None:
        os.close(self.fd)


def _list(directory: Path) -> list[tuple[float, str, int]]:
    """(number, name, inode) of every file, oldest first. Looked at until two looks agree: a rotation moves two names."""
    before: list[tuple[float, str, int]] | None = None
    for _ in range(100):
        found = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    tail = entry.name.removeprefix(CURRENT + ".")
                    if entry.name == CURRENT or tail.isdecimal():
                        found.append((float("inf") if entry.name == CURRENT else float(tail), entry.name, entry.inode()))
        except FileNotFoundError:
            return []
        found.sort()
        if found == before:
            break
        before = found
    return before or []


def _open_after(directory: Path, last: _File | None) -> _File | None:
    """The file that follows `last` (the oldest, without one); None when there is none yet."""
    for _ in range(100):
        entries = _list(directory)
        if last is not None:
            place = next((i for i, (_, _, inode) in enumerate(entries) if inode == last.inode), None)
            # Gone from the list: rotation was faster than the reader. Whatever is left is newer.
            entries = entries if place is None else entries[place + 1 :]
        if not entries:
            return None
        number, name, inode = entries[0]
        try:
            fd = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        found = _File(fd, number)
        if found.inode == inode:
            return found
        found.close()  # renamed between the look and the open
    return None


async def _blocks(
    directory: Path, query: LogQuery, is_over: Callable[[], bool], pause: Callable[[float], Awaitable[object]]
) -> AsyncIterator[bytes]:
    """The log from where the query begins, file after file, in blocks."""
    file, offset = _begin(directory, query)
    wait_s = _PAUSE_S_MIN
    try:
        while True:
            is_last_look = not query.follow or is_over()
            while file is not None and (block := os.pread(file.fd, _BLOCK_BYTES, offset)):
                offset += len(block)
                wait_s = _PAUSE_S_MIN
                yield block
                await asyncio.sleep(0)
            following = _open_after(directory, file)
            if following is not None:
                # Renamed means finished, but perhaps only after the last read above.
                while file is not None and (block := os.pread(file.fd, _BLOCK_BYTES, offset)):
                    offset += len(block)
                    yield block
                if file is not None:
                    file.close()
                file, offset = following, 0
                continue
            if is_last_look:
                return
            await pause(wait_s)
            wait_s = min(wait_s * 2, _PAUSE_S_MAX)
    finally:
        if file is not None:
            file.close()


def _begin(directory: Path, query: LogQuery) -> tuple[_File | None, int]:
    if query.tail_lines is not None:
        return _tail(directory, query.tail_lines)
    return _open_after(directory, None), 0


def _tail(directory: Path, count: int) -> tuple[_File | None, int]:
    """Where the last `count` lines begin. Reads backwards, and no more than it has to."""
    left = count
    begin: tuple[_File | None, int] = (None, 0)
    is_newest = True
    for number, name, _ in reversed(_list(directory)):
        try:
            file = _File(os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), number)
        except FileNotFoundError:
            break  # the oldest went meanwhile
        if begin[0] is not None:
            begin[0].close()
        offset, left = _tail_of(file.fd, left, is_newest)
        begin, is_newest = (file, offset), False
        if left < 0:
            break
    return begin


def _tail_of(fd: int, count: int, is_newest: bool) -> tuple[int, int]:
    """The offset after the (count+1)th line from the end, and how many are still wanted; -1: found here."""
    end = os.fstat(fd).st_size
    rest = b""
    is_at_end = is_newest
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        data = os.pread(fd, end - start, start) + rest
        # Only whole entries can be judged; the first may go on in the block before.
        first = 0 if start == 0 else data.find(b"\n") + 1
        position = len(data)
        while position > first:
            newline = data.rfind(b"\n", first, position - 1)
            entry_start = newline + 1 if newline >= 0 else first
            # A line ends with its `F`, and what was printed last is a line even without.
            if _is_whole(data[entry_start:position]) or is_at_end:
                count -= 1
                if count < 0:
                    return start + position, -1
            is_at_end = False
            position = entry_start
        rest = data[:first]
        end = start
    return 0, count


def _is_whole(entry: bytes) -> bool:
    fields = entry[:64].split(b" ", 3)
    return len(fields) < 3 or fields[2] != b"P"


# -- lines ---------------------------------------------------------------------------------------------------------------------


class _Lines:
    """Entries in, text out. Holds back one stream while a line of the other is open."""

    def __init__(self, query: LogQuery) -> None:
        self._has_stamps = query.timestamps
        self._since = _stamp(query.since)
        self._rest = b""
        self._open = b""
        self._held: deque[tuple[bytes, bytes, bytes, bytes]] = deque()
        self._held_bytes = 0

    def feed(self, block: bytes) -> bytes:
        data = self._rest + block
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        out: list[bytes] = []
        for entry in data[:end].split(b"\n")[:-1]:
            fields = entry.split(b" ", 3)
            if len(fields) < 4:
                continue
            stamp, stream, flag, text = fields
            if stamp >= self._since:
                out += self._add(stamp, stream, flag, text)
        return b"".join(out)

    def end(self) -> bytes:
        return b"".join(self._release())

    def _add(self, stamp: bytes, stream: bytes, flag: bytes, text: bytes) -> Iterator[bytes]:
        if self._open and stream != self._open:
            self._held.append((stamp, stream, flag, text))
            self._held_bytes += len(text)
            if self._held_bytes > _HELD_BYTES_MAX:
                yield from self._release()
            return
        yield from self._print(stamp, stream, flag, text)
        if not self._open and self._held:
            yield from self._release()

    def _print(self, stamp: bytes, stream: bytes, flag: bytes, text: bytes) -> Iterator[bytes]:
        if self._has_stamps and not self._open:
            yield stamp + b" "
        yield text
        if flag == b"P":
            self._open = stream
        else:
            self._open = b""
            yield b"\n"

    def _release(self) -> Iterator[bytes]:
        """The other stream's turn; a line that is open is broken off only if there is something to say."""
        held, self._held, self._held_bytes = self._held, deque(), 0
        if held and self._open:
            self._open = b""
            yield b"\n"
        for entry in held:
            yield from self._add(*entry)


def _stamp(since: float | None) -> bytes:
    """As the log writes it, so that they compare as text."""
    if since is None:
        return b""
    return (format_micro_time(max(since, 0.0))[:-1] + "000Z").encode()
