"""Hold one command whose streams somebody else has: start it, hand them over, say how it ended. Standard library only.

A child of the zygote, for one command. Two frames go over its socket (`beside`): one with the descriptors when the command
executes, or with why it can't; and one with its code when it has ended. When the agent closes its side, or dies, or the
container has ended, everything in the command's session is killed, also what it has left in the background there; then this
process ends.

A command in a container of runc is started by `runc exec --detach`, which leaves it to this process, its subreaper: nothing of
runc stays in memory.

Invariants: no end of a stream is kept here, so that whoever reads sees the end; the command is not reaped before its session is
dead, so that its number names nobody else.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import stat
import struct
import time

from muster.agent.shim import beside, container, files
from muster.agent.shim import namespaces as ns
from muster.agent.shim.grouping import Groups
from muster.agent.shim.light import ignoring, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

_TERMINAL: Final = b"terminal"
"""Said by the child that sends one."""
_TIOCSCTTY: Final = 0x540E
_TIOCSPTLCK: Final = 0x4004_5431
_TIOCGPTPEER: Final = 0x5441
_PARENT, _SESSION = 1, 3
"""Fields of /proc/<pid>/stat, after the name."""
_LEFT_OVER_S: Final = 2.0
"""A command that has ended is reaped after so long, which is more than the agent waits for what its children still print: until
it is, the container that it belongs to can't end, however long somebody takes to read."""
_ROUNDS_MAX: Final = 200
_ROUND_S: Final = 0.005
_MESSAGE_BYTES_MAX: Final = 4000
_RESET: Final = ("SIGHUP", "SIGQUIT", "SIGTERM", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGPIPE", "SIGXFSZ", "SIGCHLD", "SIGINT")
"""Whatever the agent was started with, a command has these as usual."""


class Gone(Exception):
    """Nobody wants it any more."""


class Pipes:
    """Between the command (`inner`) and who talks to it (`outer`)."""

    def __init__(self, has_stdin: bool) -> None:
        null = -1 if has_stdin else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        stdin, feed = os.pipe() if has_stdin else (null, -1)
        out, stdout = os.pipe()
        err, stderr = os.pipe()
        self.has_stdin = has_stdin
        self.inner = [stdin, stdout, stderr]
        self.outer = [feed, out, err] if has_stdin else [out, err]

    def give_to(self, user: int, group: int) -> None:
        """So that the command can open them again by name, as /dev/stdin."""
        for fd in self.inner if self.has_stdin else self.inner[1:]:
            os.fchown(fd, user, group)

    def let_go(self) -> None:
        """Of the command's own ends."""
        for fd in self.inner:
            os.close(fd)


def serve(wanted: dict[str, Any], channel: _socket.socket) -> None:
    try:
        start = _start_runc if "runc" in wanted else _start_beside
        leader, ends, container_fd = start(wanted, channel)
    except Gone:
        return
    except OSError as e:
        beside.tell(channel, {"error": e.strerror or str(e)})
        return
    beside.tell(channel, {"code": None}, ends)
    for fd in ends:
        os.close(fd)
    is_told = False
    try:
        is_told = _hold(leader, container_fd, channel)
    finally:
        code = end_session(leader)
    if not is_told:
        beside.tell(channel, {"code": code})


def _hold(leader: int, container_fd: int, channel: _socket.socket) -> bool:
    """Until nobody wants it any more, its container has ended, or it has itself, a while ago. Whether the code was told."""
    poll = select.poll()
    end_fd = os.pidfd_open(leader)
    is_told = False
    for fd in (end_fd, channel.fileno(), container_fd):
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll(_LEFT_OVER_S * 1000 if is_told else None)]
        if not ready or channel.fileno() in ready or container_fd in ready:
            return is_told
        beside.tell(channel, {"code": _code(leader, os.WNOWAIT)})
        is_told = True
        poll.unregister(end_fd)


def _code(leader: int, how: int = 0) -> int:
    """As a shell says it, when it has ended. WNOWAIT: it stays to be reaped."""
    found = None
    with ignoring(ChildProcessError):
        found = os.waitid(os.P_PID, leader, os.WEXITED | how)
    if found is None:
        return 128 + signal.SIGKILL
    return found.si_status if found.si_code == os.CLD_EXITED else 128 + found.si_status


# -- beside a run of the process runtime ---------------------------------------------------------------------------------------


def _start_beside(wanted: dict[str, Any], channel: _socket.socket) -> tuple[int, list[int], int]:
    launch, has_tty = wanted["launch"], wanted["tty"]
    groups = Groups(launch.get("cgroupProcs", []))
    pid_fd = beside.join(wanted)
    pipes = None if has_tty else Pipes(wanted["stdin"])
    mine, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    child = groups.fork()
    if child == 0:
        streams = container.Streams(theirs, *(pipes.inner if pipes else (-1, -1, -1)))
        container.guarded(streams, lambda: _become(launch, streams, pipes, pid_fd, groups))
    groups.close()
    theirs.close()
    if pipes:
        pipes.let_go()
    try:
        sent = _await_exec(mine, channel)
    except BaseException:
        end_session(child)
        raise
    mine.close()
    return child, pipes.outer if pipes else sent, pid_fd


def _become(launch: dict[str, Any], streams: container.Streams, pipes: Pipes | None, pid_fd: int, groups: Groups) -> None:
    beside.enter(launch, pid_fd, groups)
    if pipes:
        if os.geteuid() == 0:
            pipes.give_to(launch["user"], launch["group"])
        container.put_streams(streams.stdin, streams.stdout, streams.stderr, launch["user"], launch["group"])
    container.prepare(launch)
    for name in _RESET:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    if not pipes:
        _take_terminal(streams.control)
    container.execute(launch)


def _take_terminal(control: _socket.socket) -> None:
    """One of the container's own, made with its user's rights and no others. Its other end goes to the parent."""
    try:
        master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        # The container decides what its /dev is, and could have put something there that blocks whoever reads it.
        if not stat.S_ISCHR(os.fstat(master).st_mode) or not os.isatty(slave):
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        fcntl.ioctl(slave, _TIOCSCTTY, 0)
    except OSError as e:
        raise OSError(e.errno, f"no terminal can be had in the container: {e.strerror}") from e
    for number in range(3):
        os.dup2(slave, number)
    beside.send_fds(control, _TERMINAL, [master])


def _await_exec(control: _socket.socket, channel: _socket.socket) -> list[int]:
    """The descriptors that it sends. `control` ends with the exec; before that it may say why there is none: OSError."""
    sent: list[int] = []
    while True:
        _await_either(control.fileno(), channel)
        data, fds = beside.receive_fds(control, 1)
        sent += fds
        if not data:
            return sent
        if data != _TERMINAL:
            number, _, text = data.decode(errors="replace").partition(" ")
            raise OSError(int(number), text)


def _await_either(fd: int, channel: _socket.socket) -> None:
    """Until there is something to read. Gone, when the agent is: it never says a second thing."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(channel.fileno(), select.POLLIN)
    if channel.fileno() in [ready for ready, _ in poll.poll()]:
        raise Gone


# -- in a container of runc ----------------------------------------------------------------------------------------------------


def _start_runc(wanted: dict[str, Any], channel: _socket.socket) -> tuple[int, list[int], int]:
    ns.become_subreaper()
    work = f"{wanted['work']}/exec-{os.getpid()}-{os.urandom(6).hex()}"
    os.mkdir(work, 0o700)
    # What a socket's path may be long is little; and this is the same directory even when the container's is moved away.
    work_fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    place = f"/proc/{os.getpid()}/fd/{work_fd}"
    try:
        console = _listen(f"{place}/console") if wanted["tty"] else None
        pipes = Pipes(wanted["stdin"] and not wanted["tty"])
        pipes.give_to(wanted["user"], wanted["group"])
        leader = _run_runc(wanted, place, pipes, channel)
        if console is None:
            return leader, pipes.outer, -1
        for fd in pipes.outer:
            os.close(fd)
        try:
            return leader, _accept(console), -1
        except BaseException:
            end_session(leader)
            raise
    finally:
        with ignoring(FileNotFoundError):  # the container's own directory may go at any time
            for name in os.listdir(work_fd):
                os.unlink(name, dir_fd=work_fd)
            os.rmdir(work)
        os.close(work_fd)


def _run_runc(wanted: dict[str, Any], place: str, pipes: Pipes, channel: _socket.socket) -> int:
    """The command's pid. OSError with what runc says."""
    before, name, argv = wanted["runc"], wanted["id"], wanted["argv"]
    flags = ["--detach", "--pid-file", f"{place}/pid"]
    if wanted["tty"]:
        flags += ["--tty", "--console-socket", f"{place}/console"]
    for pair in wanted["env"]:
        flags += ["--env", pair]
    words = [*before, "--log", f"{place}/log", "exec", *flags, name, *argv]
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(pipes.inner)]
    reset = [getattr(signal, one) for one in _RESET]
    pid = os.posix_spawn(words[0], words, dict(os.environ), file_actions=actions, setsigdef=reset, setsigmask=())
    pipes.let_go()
    end_fd = os.pidfd_open(pid)
    try:
        _await_either(end_fd, channel)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == 0:
            return int(files.read_small(f"{place}/pid"))
        raise OSError(0, _said(f"{place}/log") or f"runc exec ended with {status}")
    except BaseException:
        _kill_where(_PARENT, os.getpid())  # runc, and what it has begun
        raise
    finally:
        os.close(end_fd)


def _said(log: str) -> str:
    try:
        return files.read_small(log)[-_MESSAGE_BYTES_MAX:].decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


def _listen(path: str) -> _socket.socket:
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(1)
    return listener


def _accept(listener: _socket.socket) -> list[int]:
    """The terminal that runc has made. It has ended by now: what it sent is there, or will never be."""
    listener.setblocking(False)
    try:
        fd, _ = listener._accept()  # type: ignore[attr-defined]
        connection = _socket.socket(fileno=fd)
        connection.setblocking(False)
        _, found = beside.receive_fds(connection, 1)
        connection.close()
    except BlockingIOError as e:
        raise OSError(e.errno, "runc has sent no terminal") from e
    finally:
        listener.close()
    return found


# -- the end -------------------------------------------------------------------------------------------------------------------


def end_session(leader: int) -> int:
    """SIGKILL to the command, which is a child of this process and not reaped yet, and to all in its session. Its code."""
    with ignoring(ProcessLookupError):
        os.kill(leader, signal.SIGKILL)
    _kill_where(_SESSION, leader)
    return _code(leader)


def _kill_where(field: int, value: int) -> None:
    """Round after round, since they may fork meanwhile. The rounds are bounded: the pids limit holds who is faster.

    One round without any is not the end: who ended while it looked may have left a child that it has passed already."""
    empty = 0
    for _ in range(_ROUNDS_MAX):
        found = [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_of(name, field, value)]
        empty = 0 if found else empty + 1
        if empty == 2:
            return
        for pid in found:
            with ignoring(OSError):
                fd = os.pidfd_open(pid)
                if _is_of(str(pid), field, value):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                os.close(fd)
        if found:
            time.sleep(_ROUND_S)


def _is_of(pid: str, field: int, value: int) -> bool:
    """Whether it lives, and has this in its /proc/<pid>/stat."""
    try:
        text = files.read_small(f"/proc/{pid}/stat")
    except OSError:
        return False
    fields = text[text.rindex(b")") + 2 :].split()
    return int(fields[field]) == value and fields[0] not in (b"Z", b"X")
