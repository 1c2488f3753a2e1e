"""Children that end: noticed while something else is waited for, and all of them ended in the end. Standard library only.

For the one thread of a shim, which is the first process of a pid namespace, or a subreaper: orphans of the run come to it.
"""

from __future__ import annotations

import os

from muster.agent.shim import files
from muster.agent.shim import namespaces as ns
from muster.agent.shim.light import ignoring, signal


class Reaper:
    """`fd` becomes readable when children may have ended; then `reap`."""

    def __init__(self) -> None:
        self._is_first = os.getpid() == 1
        if not self._is_first:
            ns.become_subreaper()
        self.fd, writer = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(writer, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def reap(self, wanted: int) -> int | None:
        """The status of `wanted`, if it has ended. Whoever else has is forgotten."""
        with ignoring(BlockingIOError):
            os.read(self.fd, 4096)
        found = None
        with ignoring(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == wanted:
                    found = status
        return found

    def wait(self, pid: int) -> int:
        return os.waitpid(pid, 0)[1]

    def end_all(self) -> None:
        """SIGKILL for all that is left of the run, until nothing is."""
        with ignoring(ChildProcessError):
            while True:
                self._kill()
                os.waitpid(-1, 0)

    def _kill(self) -> None:
        if self._is_first:
            with ignoring(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all of the namespace but this one
            return
        for pid in files.read_small(f"/proc/self/task/{os.getpid()}/children").split():
            with ignoring(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
