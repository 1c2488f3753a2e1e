"""What tasks report about themselves: progress and records, one JSON object a line in a file that `MUSTER_REPORT` names.

    {"progress": 0.5, "records": {"rows": 12}}

Either member may be missing; later values win. `Report` (pure) reads the text; `Tail` reads the file, which belongs to the task
and may be anything by now. Bounds: a line of 16 KiB, 64 records, 16 KiB of annotation, 128 KiB and 1024 lines read at
a time (of more, the last). What does not fit or can't be read is left out; a task can spoil only its own report.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.agent.contracts import Traffic
from muster.objects.labels import Muster

VARIABLE: Final = "MUSTER_REPORT"
TARGET: Final = "/muster/report"
"""Where a container sees the directory."""
NAME: Final = "report.jsonl"
LINE_BYTES_MAX: Final = 16 * 1024
RECORDS_MAX: Final = 64
ANNOTATION_BYTES_MAX: Final = 16 * 1024
READ_BYTES_MAX: Final = 128 * 1024
"""At a time. All of it is read on the agent's event loop, for every pod, once a second."""
LINES_MAX: Final = 1024
"""Of one read; of more, the last count."""
_KEY_LEN_MAX: Final = 128


class Report:
    """Takes text as it comes, in pieces of any size."""

    def __init__(self) -> None:
        self.progress: float | None = None
        self.records: dict[str, Any] = {}
        self.refused = 0
        """Lines that could not be used."""
        self._pieces: dict[str, bytes] = {}
        """Each record as it will stand in the annotation."""
        self._rest = b""
        self._is_skipping = False

    def feed(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(lines) > LINES_MAX:
            # Old news: what counts is at the end.
            self.refused += len(lines) - LINES_MAX
            del lines[:-LINES_MAX]
            self._is_skipping = False
        for line in lines:
            if self._is_skipping:
                self._is_skipping = False
            elif len(line) > LINE_BYTES_MAX:
                self.refused += 1
            elif line.strip():
                self._take(line)
        if len(self._rest) > LINE_BYTES_MAX:
            if not self._is_skipping:
                self.refused += 1
            self._is_skipping, self._rest = True, b""

    def skip(self, *, is_inside: bool = False) -> None:
        """What comes next does not follow on what came before; `is_inside`: it begins somewhere in a line."""
        self._rest, self._is_skipping = b"", is_inside

    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.progress is not None:
            found[Muster.PROGRESS] = f"{self.progress:.4f}".rstrip("0").rstrip(".") or "0"
        if self.records:
            found[Muster.RECORDS] = (b"{" + b",".join(self._pieces.values()) + b"}").decode()
        return found

    def _take(self, line: bytes) -> None:
        try:
            said = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            said = None
        if not isinstance(said, dict):
            self.refused += 1
            return
        progress, records = said.get("progress"), said.get("records")
        if progress is not None:
            self._take_progress(progress)
        if records is not None:
            self._take_records(records)

    def _take_progress(self, progress: object) -> None:
        # Compared before it is made a float: JSON may write numbers that none can hold.
        if isinstance(progress, bool) or not isinstance(progress, int | float) or progress != progress:  # noqa: PLR0124
            self.refused += 1
        else:
            self.progress = float(min(1, max(0, progress)))

    def _take_records(self, records: object) -> None:
        if not isinstance(records, dict) or any(len(key) > _KEY_LEN_MAX for key in records):
            self.refused += 1
            return
        try:
            pieces = self._pieces | {key: msgspec.json.encode({key: value})[1:-1] for key, value in records.items()}
        except (RecursionError, ValueError):
            self.refused += 1
            return
        if len(pieces) > RECORDS_MAX or sum(map(len, pieces.values())) + len(pieces) + 1 > ANNOTATION_BYTES_MAX:
            self.refused += 1
        else:
            self.records |= records
            self._pieces = pieces


class Tail:
    """Follows one file. `poll` returns whether there was anything new. Blocking, quick."""

    def __init__(self, path: Path) -> None:
        self.report = Report()
        self._path = path
        self._offset = 0
        self._inode = 0

    def poll(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return self._read(descriptor)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int) -> bool:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return False
        if found.st_ino != self._inode or found.st_size < self._offset:
            self._inode, self._offset = found.st_ino, 0
            self.report.skip()
        if found.st_size - self._offset > READ_BYTES_MAX:
            # Old news: what counts is at the end.
            self._offset = found.st_size - READ_BYTES_MAX
            self.report.skip(is_inside=True)
        if found.st_size == self._offset:
            return False
        data = os.pread(descriptor, READ_BYTES_MAX, self._offset)
        self._offset += len(data)
        before = self.report.annotations()
        self.report.feed(data)
        return self.report.annotations() != before


def make_directory(top: Path, owner: int) -> None:
    """The directory and the file, which the pod's user may write to. The pod may be running already, when an agent comes back:
    what is found at a path may be a link by the next look, so rights are given to what is open, never to a path."""
    top.mkdir(parents=True, exist_ok=True)
    directory = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(NAME, flags, 0o666, dir_fd=directory)
            try:
                _give(file, owner, 0o666)
            finally:
                os.close(file)
        _give(directory, owner, 0o777)
    finally:
        os.close(directory)


def _give(descriptor: int, owner: int, mode: int) -> None:
    if os.geteuid() == 0:
        os.fchown(descriptor, owner, owner)
    os.fchmod(descriptor, mode)


def traffic_annotation(traffic: Traffic) -> dict[str, str]:
    text = msgspec.json.encode({"sentBytes": traffic.sent_bytes, "receivedBytes": traffic.received_bytes}).decode()
    return {Muster.TRAFFIC: text}
