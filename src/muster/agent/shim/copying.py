"""What a run prints, from its pipes into its log. Standard library only; one thread, the shim's."""

from __future__ import annotations

import _socket
import fcntl
import os
import select

from muster.agent.shim.light import ignoring
from muster.agent.shim.log_writer import LINE_BYTES_MAX, LogWriter
from muster.agent.shim.reaping import Reaper

_FLUSH_AFTER_MS = 1000
_PIPE_BYTES = 256 * 1024
_DRAIN_BYTES_MAX = 1024 * 1024
"""All that a pipe can hold. Whoever still writes was handed the pipe by the run, and may never stop."""


def pipe() -> tuple[int, int]:
    """Read end (never waits) and write end."""
    outer, inner = os.pipe()
    with ignoring(OSError):  # beyond what one user may have in pipes
        fcntl.fcntl(outer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(outer, False)
    return outer, inner


class Output:
    """Both streams of a run. `inner_out` and `inner_err` are the ends that its processes write to."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self.out, self.inner_out = pipe()
        self.err, self.inner_err = pipe()
        self._names = {self.out: "stdout", self.err: "stderr"}

    def close_inner(self) -> None:
        os.close(self.inner_out)
        os.close(self.inner_err)

    def copy_until_end(self, pid: int, reaper: Reaper, control: _socket.socket | None = None) -> tuple[int, bytes]:
        """Copy until the child `pid` has ended: its status, and what came over `control`, if anything."""
        poll = select.poll()
        said = b""
        for fd in (*self._names, reaper.fd, *([control.fileno()] if control else [])):
            poll.register(fd, select.POLLIN)
        while (status := reaper.reap(pid)) is None:
            ready = [fd for fd, _ in poll.poll(_FLUSH_AFTER_MS if self._log.has_pending() else None)]
            if not ready:
                self._log.flush()
            for fd in ready:
                if fd in self._names:
                    if not self._pump(fd):
                        poll.unregister(fd)
                elif control is not None and fd == control.fileno():
                    said = _said(control)
                    poll.unregister(fd)
        return status, said or (_said(control) if control else b"")

    def drain(self) -> None:
        """What is left in the pipes, whoever still has them open."""
        for fd, name in self._names.items():
            left = _DRAIN_BYTES_MAX
            with ignoring(BlockingIOError):
                while left > 0 and (data := os.read(fd, LINE_BYTES_MAX)):
                    self._log.write(name, data)
                    left -= len(data)

    def _pump(self, fd: int) -> bool:
        """False at the end of the stream."""
        try:
            data = os.read(fd, LINE_BYTES_MAX)
        except BlockingIOError:
            return True
        if data:
            self._log.write(self._names[fd], data)
        return bool(data)


def _said(control: _socket.socket) -> bytes:
    try:
        return control.recv(4096, _socket.MSG_DONTWAIT)
    except OSError:
        return b""
