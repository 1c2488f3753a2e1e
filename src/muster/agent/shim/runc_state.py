"""What `runc start` and `runc delete` come to, without two more processes. In a shim, on its one thread. Standard library only.

Each of these commands is a start of runc: 5 ms of CPU, while a short task runs for one. What they do lies open in runc's
directory of the container: the first process of one that was created waits until somebody reads `exec.fifo`, and `state.json`
names its groups. Whatever is not as it should be there (another runtime has other files) is left to the command itself: both
functions say so, and nothing has happened then that the command would mind.
"""

from __future__ import annotations

import os
import select

from muster.agent.shim import files
from muster.agent.shim.light import ignoring

_STATE, _FIFO = "state.json", "exec.fifo"


def let_go(directory: str, pid: int) -> bool:
    """The container's first process, a child of this one, executes the task, or has ended before. False: ask the command."""
    try:
        dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # crun has such a fifo too, and reads where runc writes; but no file of this name.
        if not files.exists(dir_fd, _STATE):
            return False
        fifo = os.open(_FIFO, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
        try:
            if _is_heard(fifo, pid):
                os.unlink(_FIFO, dir_fd=dir_fd)  # so runc knows that it runs
        finally:
            os.close(fifo)
    except FileNotFoundError:
        return False
    finally:
        os.close(dir_fd)
    return True


def _is_heard(fifo: int, pid: int) -> bool:
    """False when the process has ended without a word."""
    end_fd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(fifo, select.POLLIN)
        poll.register(end_fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if fifo in ready:
                with ignoring(BlockingIOError):
                    if os.read(fifo, 16):
                        return True
                    poll.unregister(fifo)  # opened and closed: it is about to end
            if end_fd in ready:
                return False
    finally:
        os.close(end_fd)


def forget(directory: str) -> bool:
    """Of a container that has ended, with all its processes: its groups and its directory go. False: ask the command."""
    try:
        dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        state = files.read_json(dir_fd, _STATE)
        groups = (state or {}).get("cgroup_paths")
        if state is None or not isinstance(groups, dict) or state.get("intel_rdt_path"):
            return False
        for group in groups.values():
            with ignoring(FileNotFoundError):
                os.rmdir(group)
        # Last: as long as it is there, the command can do what is left.
        for name in (_FIFO, _STATE):
            with ignoring(FileNotFoundError):
                os.unlink(name, dir_fd=dir_fd)
        os.rmdir(directory)
    except OSError:
        return False
    finally:
        os.close(dir_fd)
    return True
