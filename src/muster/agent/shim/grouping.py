"""Into a run's cgroups, without waiting for the kernel. Standard library only; for a shim and its child, one thread each.

To move a whole process (`cgroup.procs`) the kernel first sees to it that none is being forked or ending anywhere on the
machine: on a quiet one that is a wait for a grace period, 10 ms and more, longer than all the rest of a start. There is none
when a thread moves itself alone (`tasks`, cgroup v1), which for a process of one thread is the same, and none when a child is
born in its group (clone3, cgroup v2). Where the kernel can't, or all is v2, the shim moves its child as ever.

Late, after the root was built: what that costs is not the task's, however little it may use.
"""

from __future__ import annotations

import os

from muster.agent.shim import namespaces as ns
from muster.agent.shim.light import ignoring

_PROCS, _TASKS = "/cgroup.procs", "/tasks"


class Groups:
    """Of one run. Made by the shim: the child would not find the files any more once it has its own root."""

    def __init__(self, procs: list[str]) -> None:
        """`procs`: the launch's `cgroupProcs`. OSError names the file."""
        self._alone: dict[str, int] = {}
        """To be written by the child itself."""
        self._whole: list[str] = []
        for path in procs:
            tasks = path.removesuffix(_PROCS) + _TASKS
            try:
                self._alone[tasks] = os.open(tasks, os.O_WRONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._whole.append(path)

    def fork(self) -> int:
        """As `os.fork`. In the groups of v2, if there are others: then those have no limits that a start could run into."""
        if not self._alone or len(self._whole) != 1:
            return os.fork()
        fd = os.open(self._whole[0].removesuffix(_PROCS), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            pid = ns.fork_into(fd)
        except OSError:
            pid = -1
        os.close(fd)
        if pid < 0:
            return os.fork()
        self._whole = []
        return pid

    def enter(self) -> None:
        """By the child, while it is root."""
        for path, fd in self._alone.items():
            try:
                os.write(fd, b"0")
            except OSError as e:
                raise OSError(e.errno, f"enter {path}: {e.strerror}") from e
        self.close()

    def move(self, child: int) -> None:
        """By the shim: what is left to do for the child. The kernel may take its time, and the child has its root to build."""
        self.close()
        with ignoring(ProcessLookupError):  # it has failed, and says why
            self._write_whole(str(child).encode())

    def enter_all(self) -> None:
        """By a child that nobody moves, before it changes its root."""
        self.enter()
        self._write_whole(b"0")

    def _write_whole(self, process: bytes) -> None:
        for path in self._whole:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, process)
            finally:
                os.close(fd)

    def close(self) -> None:
        for fd in self._alone.values():
            os.close(fd)
        self._alone = {}
