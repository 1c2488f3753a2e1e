"""The small process that shims are forked from: `python -I -S zygote.py FD LOCK`. Standard library only, one thread.

It has everything imported that a shim needs, so that a start costs a fork and no imports. It reads requests from the agent's
socket (`FD`, SOCK_SEQPACKET, JSON) and forks for each; the children answer for themselves. It ends when the agent does.

LOCK is held by the zygote and by every child that has not yet taken the lock of its own run: when it is free, no start that an
earlier agent asked for is still on its way.
"""

from __future__ import annotations

import _socket
import gc
import os
import sys

if __name__ == "__main__":
    # Run as a file, without site-packages: the package is found beside this file, and its parents hold docstrings only.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)))

from muster.agent.shim import beside, files, light
from muster.agent.shim import namespaces as ns
from muster.agent.shim.light import ignoring, signal
from muster.agent.shim.shim import Shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

MESSAGE_BYTES_MAX = 64 * 1024
_FDS_MAX = 1


def main(socket_fd: int, lock_path: str) -> None:
    os.setsid()
    ns.set_name("muster-zygote")
    lock_fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    files.take_lock(lock_fd, is_waiting=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that have ended are gone at once
    own_fd = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    agent = _socket.socket(fileno=socket_fd)
    os.set_inheritable(socket_fd, False)
    files.boot_id()  # asked once, here, for all
    gc.collect()
    gc.disable()
    gc.freeze()  # what is here stays shared with the children
    _answer(agent, 0, "")
    while True:
        data, fds = _receive(agent)
        if not data:
            return
        request = light.decode(data)
        try:
            pid = _fork(own_fd if request.get("ownPids") else -1, bool(request.get("ownUser")))
        except OSError as e:
            _answer(agent, request["id"], f"fork: {e.strerror}")
            pid = -1
        if pid == 0:
            _child(agent, lock_fd, request, fds)
        for fd in fds:
            os.close(fd)


def _fork(own_fd: int, has_own_user: bool) -> int:
    """A child; with `own_fd` (this namespace) it is the first of a new pid namespace."""
    if own_fd < 0:
        return os.fork()
    if has_own_user:
        return _fork_twice()
    ns.unshare(ns.CLONE_NEWPID)  # for children, not for this process
    try:
        pid = os.fork()
    finally:
        if os.getpid() != 1:
            ns.setns(own_fd, ns.CLONE_NEWPID, "the zygote's own pid namespace")
    return pid


def _fork_twice() -> int:
    """There is no way back out of a user namespace: a child enters it, and its child is the one."""
    pid = os.fork()
    if pid != 0:
        return pid
    with ignoring(OSError):
        ns.unshare_user(ns.CLONE_NEWPID)
        if os.fork() == 0:
            return 0
    os._exit(0)


def _receive(agent: _socket.socket) -> tuple[bytes, list[int]]:
    try:
        return beside.receive_fds(agent, _FDS_MAX, MESSAGE_BYTES_MAX)
    except ConnectionError:
        return b"", []


def _answer(agent: _socket.socket, number: int, problem: str) -> None:
    with ignoring(OSError):  # the agent is gone; what was asked for goes on
        agent.send(light.encode({"id": number, "problem": problem[:4000]}))


def _child(agent: _socket.socket, lock_fd: int, request: dict[str, object], fds: list[int]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if fds:
            os.close(lock_fd)
            agent.close()
            beside.serve(_socket.socket(fileno=fds[0]))
        else:
            Shim(str(request["dir"])).run(_answer_once(agent, lock_fd, int(str(request["id"]))))
        code = 0
    finally:
        os._exit(code)


def _answer_once(agent: _socket.socket, lock_fd: int, number: int) -> Callable[[str], None]:
    def answer(problem: str) -> None:
        _answer(agent, number, problem)
        agent.close()
        os.close(lock_fd)

    return answer


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
