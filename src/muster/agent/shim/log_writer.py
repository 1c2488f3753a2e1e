"""A run's log, in the format of the container runtime interface, with rotation. Standard library only; one thread, the shim's.

    <RFC 3339 with nanoseconds> <stdout|stderr> <P|F> <text>

The directory and its file are made with the first output: many runs print nothing.

`F` ends a line; `P` is a piece of one that goes on, so that joining the texts (with a newline after each `F`) gives back
exactly the bytes that were printed. `0.log` is written; at `bytes_max` it becomes `0.log.<n>`, n rising, and the oldest goes.

Invariants: the files together never hold more than bytes_max * files_max; a full disk loses text, never the shim.
"""

from __future__ import annotations

import os
import time

from muster.agent.shim.light import ignoring

CURRENT = "0.log"
LINE_BYTES_MAX = 64 * 1024
"""A longer line is written in pieces."""
_PREFIX_BYTES = 50
"""At least the length of everything before the text."""


def rotated(names: list[str]) -> list[int]:
    """The numbers of rotated files, oldest first."""
    numbers = [name.removeprefix(CURRENT + ".") for name in names if name.startswith(CURRENT + ".")]
    return sorted(int(number) for number in numbers if number.isdecimal())


class LogWriter:
    def __init__(self, directory: str, bytes_max: int, files_max: int) -> None:
        self._directory = directory
        self._dir_fd = self._fd = -1
        self._bytes_max = max(bytes_max, 1024)
        self._files_max = max(files_max, 1)
        self._line_max = min(LINE_BYTES_MAX, self._bytes_max - _PREFIX_BYTES)
        self._pending = {"stdout": b"", "stderr": b""}
        self._numbers: list[int] = []
        self._size = 0
        self.lost_bytes = 0

    def _begin(self) -> None:
        with ignoring(FileExistsError):
            os.mkdir(self._directory, 0o700)
        self._dir_fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._numbers = rotated(os.listdir(self._dir_fd))
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(CURRENT, flags, 0o600, dir_fd=self._dir_fd)

    def has_pending(self) -> bool:
        """Something was printed that waits for the end of its line."""
        return bool(self._pending["stdout"] or self._pending["stderr"])

    def write(self, stream: str, data: bytes) -> None:
        """What was read from `stream`. `data` has at most LINE_BYTES_MAX bytes or so; it need not end with a line."""
        full, partial = self._prefixes(stream)
        data = self._pending[stream] + data
        out: list[bytes] = []
        # Only the first line can be longer than what one read brings: the others began in this read.
        head_end = data.find(b"\n")
        while (head_end if head_end >= 0 else len(data)) > self._line_max:
            out.append(partial + data[: self._line_max] + b"\n")
            data = data[self._line_max :]
            head_end = head_end - self._line_max if head_end >= 0 else -1
        end = data.rfind(b"\n")
        self._pending[stream] = data[end + 1 :]
        if out:
            self._append(out)
        if end >= 0:
            self._append_lines(full, data[:end])

    def flush(self) -> None:
        """Lines that were begun are written as pieces."""
        for stream, data in self._pending.items():
            if data:
                self._pending[stream] = b""
                self._append([self._prefixes(stream)[1] + data + b"\n"])

    def close(self) -> None:
        self.flush()
        for fd in (self._fd, self._dir_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._dir_fd = -1

    def _prefixes(self, stream: str) -> tuple[bytes, bytes]:
        now_ns = time.time_ns()
        whole_s, part_ns = divmod(now_ns, 1_000_000_000)
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole_s))}.{part_ns:09d}Z {stream}".encode()
        return stamp + b" F ", stamp + b" P "

    def _append_lines(self, prefix: bytes, lines: bytes) -> None:
        """Lines without the last newline. In one go where they fit: text is cheap, calls are not."""
        block = prefix + lines.replace(b"\n", b"\n" + prefix) + b"\n"
        if self._size + len(block) <= self._bytes_max:
            self._append([block])
            return
        self._append([prefix + line + b"\n" for line in lines.split(b"\n")])

    def _append(self, pieces: list[bytes]) -> None:
        """Each piece stays whole, in one file."""
        if self._fd < 0:
            try:
                self._begin()
            except OSError:
                self.lost_bytes += sum(map(len, pieces))
                if self._dir_fd >= 0:
                    os.close(self._dir_fd)
                    self._dir_fd = -1
                return
        group: list[bytes] = []
        group_bytes = 0
        for piece in pieces:
            if self._size + group_bytes + len(piece) > self._bytes_max and self._size + group_bytes > 0:
                self._put(b"".join(group))
                group, group_bytes = [], 0
                self._rotate()
            group.append(piece)
            group_bytes += len(piece)
        self._put(b"".join(group))

    def _put(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data) if data else 0
        except OSError:
            self.lost_bytes += len(data)
            return
        self._size += written
        if written < len(data):  # the disk is full: no half lines
            os.ftruncate(self._fd, self._size - written)
            self._size -= written
            self.lost_bytes += len(data)

    def _rotate(self) -> None:
        number = self._numbers[-1] + 1 if self._numbers else 1
        try:
            while len(self._numbers) >= self._files_max - 1 and self._numbers:
                os.unlink(f"{CURRENT}.{self._numbers[0]}", dir_fd=self._dir_fd)
                del self._numbers[0]
            if self._files_max > 1:
                os.rename(CURRENT, f"{CURRENT}.{number}", src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)
                self._numbers.append(number)
            else:
                os.unlink(CURRENT, dir_fd=self._dir_fd)
            fd = self._open()
        except OSError:
            # Better an empty file than one that grows without end.
            os.ftruncate(self._fd, 0)
            self._size = 0
            return
        os.close(self._fd)
        self._fd, self._size = fd, 0
