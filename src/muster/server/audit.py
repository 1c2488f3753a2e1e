"""The audit log: one JSON line per event, saying who asked for what and how it ended.

What is written about which request is the policy's decision (`audit_policy`), how it is told that of `audit_events`.

Concurrency: `write` is called on the event loop and only appends to a list; the list goes to disk a moment later in one
write on a worker thread, and when `close` is called; bodies are decoded there, too. The file rotates by size, `audit.jsonl` to
`audit.jsonl.1` and so on.

Invariants: at most `audit_buffer_lines_max` lines and `audit_buffer_bytes_max` bytes wait in memory; a line that can't be
written (full disk, buffer overrun) is counted in `dropped` and reported in the log, and never fails a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

import msgspec

from muster.objects.status import Raw
from muster.server.audit_events import Bodies, add_bodies, mark_truncated
from muster.server.config import ServerLimits
from muster.server.logs import logger

_FLUSH_DELAY_S = 0.1
log = logger(__name__)


NOTES_MAX = 64
"""Notes of one request, at most."""
NOTES: ContextVar[dict[str, str] | None] = ContextVar("audit_notes", default=None)
"""What the line of the request says beside the rest, in the task that serves it; None for writes of Muster itself."""


def add_note(key: str, value: str) -> None:
    notes = NOTES.get()
    if notes is not None and (len(notes) < NOTES_MAX or key in notes):
        notes[key] = value


class AuditLog:
    def __init__(self, path: Path, limits: ServerLimits) -> None:
        self._path = path
        self._file_bytes_max = limits.audit_file_bytes_max
        self._files_max = limits.audit_files_max
        self._lines_max = limits.audit_buffer_lines_max
        self._bytes_max = limits.audit_buffer_bytes_max
        self._event_bytes_max = limits.audit_event_bytes_max
        self._lines: list[bytes | tuple[Raw, Bodies]] = []
        self._bytes = 0
        self._fd = -1
        self._size = 0
        self._task: asyncio.Task[None] | None = None
        self._encode = msgspec.json.Encoder().encode
        self._closing = asyncio.Event()
        self.dropped = 0
        self.listener: Callable[[Raw], None] | None = None
        """Is handed an entry about every request that has ended, whatever the policy says."""

    def open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def write(self, event: Raw, bodies: Bodies | None = None) -> None:
        """Queue one event; the event loop must be running."""
        if bodies is not None and bodies.size > self._event_bytes_max:
            mark_truncated(event)
            bodies = None
        line = self._encode(event) if bodies is None else (event, bodies)
        size = len(line) if isinstance(line, bytes) else bodies.size if bodies is not None else 0
        if len(self._lines) >= self._lines_max or self._bytes + size > self._bytes_max:
            self.dropped += 1
            return
        self._lines.append(line)
        self._bytes += size
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._flush_soon())

    async def close(self) -> None:
        """Write what waits, then close the file."""
        self._closing.set()
        if self._task is not None:
            await self._task
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def _flush_soon(self) -> None:
        while self._lines:
            # Each time: under load there are always lines, and a thread for every few would take more time than their requests.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _FLUSH_DELAY_S)
            lines, self._lines = self._lines, []
            self._bytes = 0
            await asyncio.to_thread(self._flush, lines)
        self._task = None

    def _flush(self, lines: list[bytes | tuple[Raw, Bodies]]) -> None:
        if not lines:
            return
        data = b"".join(self._line(line) + b"\n" for line in lines)
        try:
            if self._fd < 0:
                self.open()  # it could not be after a rotation: to rotate again would lose the oldest file for nothing
            elif self._size and self._size + len(data) > self._file_bytes_max:
                self._rotate()
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            self._size += len(data)
        except OSError as error:
            self.dropped += len(lines)
            log.error("audit lines lost", lines=len(lines), path=str(self._path), error=str(error))

    def _line(self, line: bytes | tuple[Raw, Bodies]) -> bytes:
        if isinstance(line, bytes):
            return line
        event, bodies = line
        told = dict(event)
        try:
            add_bodies(told, bodies)
            return self._encode(told)
        except Exception:  # noqa: BLE001 - a body of half a character, of endless depth: nothing that a client sends may stop the log
            mark_truncated(event)
            return self._encode(event)

    def _rotate(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        for index in range(self._files_max - 1, 0, -1):
            older = self._numbered(index)
            newer = self._numbered(index - 1)
            if newer.exists():
                newer.replace(older)
        if self._files_max == 1:
            self._path.unlink(missing_ok=True)
        self.open()

    def _numbered(self, index: int) -> Path:
        return self._path if index == 0 else self._path.with_name(f"{self._path.name}.{index}")
