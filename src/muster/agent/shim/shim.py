"""A run's parent. Forked from the zygote for one run; outlives the agent; ends with the run. Standard library only.

In order: take the run's lock; refuse if it was ever started; start the container up to the point where the task waits; write
`started.json`; let it go; copy what it prints into the log; wait; end what it left behind; write `exit.json`; tell the agent.

Where the run has a pid namespace of its own, the shim is its first process: it inherits orphans, and if it is killed the kernel
ends everything in the namespace. Otherwise it is a subreaper.

Invariants:
- the lock is held from before the first step until after `exit.json` is written: free lock and no `exit.json` means that the
  shim died, and never that it is still at work;
- `started.json` is written before the task executes: without it, nothing of the task's ran in this boot;
- both are written at most once, for one start.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import struct
import time

from muster.agent.runtimes import runc_enter
from muster.agent.shim import container, files, runc_state
from muster.agent.shim import namespaces as ns
from muster.agent.shim.copying import Output, pipe
from muster.agent.shim.grouping import Groups
from muster.agent.shim.launching import BEGUN, EXIT, LAUNCH, LOCK, LOG, STARTED
from muster.agent.shim.light import ignoring, signal
from muster.agent.shim.log_writer import LogWriter
from muster.agent.shim.reaping import Reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_TELL_TIMEOUT = struct.pack("ll", 5, 0)  # seconds, microseconds
DYING_S = 0.2
START_ERROR = "StartError"


class Shim:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._oom_before = 0
        self._launch: dict[str, Any] = {}

    def run(self, answer: Callable[[str], None]) -> None:
        """The whole life of the run. `answer` is called once, with "" when the shim has it in hand, else with why not."""
        lock_fd = files.open_lock(self._dir_fd, LOCK)
        if not files.take_lock(lock_fd):
            answer("")  # another shim has it in hand
            return
        if any(files.exists(self._dir_fd, name) for name in (STARTED, EXIT, BEGUN)):
            answer("")
            return
        launch = files.read_json(self._dir_fd, LAUNCH)
        if launch is None:
            answer(f"{self._directory}/{LAUNCH} is missing or broken")
            return
        answer("")
        self._launch = launch
        ns.set_name("muster-shim")
        exited = self._carry(lock_fd)
        # Whole under its name, whoever is killed. It need not survive a power failure: after another boot the run is lost.
        files.write_json(self._dir_fd, EXIT, {**exited, "at": _now()}, is_durable=False)
        self._tell()

    def _carry(self, lock_fd: int) -> dict[str, Any]:
        limits = self._launch["log"]
        log = LogWriter(f"{self._directory}/{LOG}", limits["bytesMax"], limits["filesMax"])
        carry = self._carry_command if self._launch.get("pidFile") else self._carry_container
        reaper = Reaper()
        try:
            self._oom_before = self._oom_kills()
            return carry(Output(log), reaper, lock_fd)
        except OSError as e:
            reaper.end_all()
            return {"code": 128, "reason": START_ERROR, "message": e.strerror or str(e)}
        finally:
            log.close()

    # -- a container of our own ------------------------------------------------------------------------------------------------

    def _carry_container(self, output: Output, reaper: Reaper, lock_fd: int) -> dict[str, Any]:
        mine, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        groups = Groups(self._launch["cgroupProcs"])
        task = groups.fork()
        if task == 0:
            # The lock is the shim's alone: a child that kept it would hide the shim's death.
            for fd in (lock_fd, output.out, output.err):
                os.close(fd)
            mine.close()
            null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            streams = container.Streams(theirs, null, output.inner_out, output.inner_err)
            container.become_task(self._launch, streams, groups)
        theirs.close()
        output.close_inner()
        groups.move(task)
        self._spend(lock_fd)
        said = mine.recv(4096)
        if said != container.READY:
            reaper.end_all()
            return _start_error(said or b"0 the container's first process was killed before it was ready")
        self._started(task)
        with ignoring(OSError):  # it was killed meanwhile: its end says so
            mine.send(container.GO)
        self._tell()
        status, said = output.copy_until_end(task, reaper, mine)
        reaper.end_all()
        output.drain()
        return _start_error(said) if said else self._exited(status)

    @staticmethod
    def _spend(lock_fd: int) -> None:
        """`launch.json` is on the disk, with its name: the attempt is spent, whatever happens to the machine. Before the task
        executes, and while it still builds its root, so that nobody waits for the disk."""
        os.fsync(lock_fd)

    def _started(self, task: int) -> None:
        """Pids as the host has them, also when the shim lives in another namespace: /proc is the host's."""
        pid_fd = os.pidfd_open(task)
        try:
            pid = files.pid_of(pid_fd)
        finally:
            os.close(pid_fd)
        shim = int(os.readlink("/proc/self"))
        started = {
            "pid": pid,
            "start_ticks": files.start_ticks(pid),
            "boot_id": files.boot_id(),
            "at": _now(),
            "shim_pid": shim,
            "shim_start_ticks": files.start_ticks(shim),
        }
        # It need not survive a power failure: `launch.json` does, and after another boot that is answer enough.
        files.write_json(self._dir_fd, STARTED, started, is_durable=False)

    # -- a container that a command starts (runc) ------------------------------------------------------------------------------

    def _carry_command(self, output: Output, reaper: Reaper, lock_fd: int) -> dict[str, Any]:
        """The command may have started the task when it is interrupted, so the attempt is spent before it is run. Where the
        task waits to be let go, the disk is waited for meanwhile."""
        is_gated = bool(self._launch.get("startArgv"))
        if not is_gated:
            self._spend(lock_fd)
        files.write_json(self._dir_fd, BEGUN, {"at": _now()}, is_durable=False)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        command = self._spawn_command((null, output.inner_out, output.inner_err), lock_fd)
        output.close_inner()
        if is_gated:
            self._spend(lock_fd)
        status, _ = output.copy_until_end(command, reaper)
        pid = self._read_pid()
        if status != 0 or pid == 0:
            said = self._start_log() or f"it ended with code {_code(status)} and left no pid"
            problem = f"0 {' '.join(self._launch['argv'][:2])}: {said}".encode()
        else:
            problem = self._let_go(pid, null)
            if problem and self._is_over(pid):
                problem = b""  # killed before it was let go: that is how it ended, and not that it could not start
            if problem:
                with ignoring(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._tell()
            status, _ = output.copy_until_end(pid, reaper)
        output.drain()
        # Before the cgroup is taken away, and with it the count of what was killed for memory.
        exited = _start_error(problem) if problem else self._exited(status)
        if self._launch.get("stopArgv") and not runc_state.forget(self._launch.get("stateDir") or ""):
            with ignoring(OSError):
                reaper.wait(self._spawn(self._launch["stopArgv"], null, null, null))
        reaper.end_all()
        return exited

    def _spawn_command(self, streams: tuple[int, int, int], lock_fd: int) -> int:
        """`argv`. With `enter`, in a child that first puts the root file system together: it has everything imported."""
        argv, words = self._launch["argv"], self._launch.get("enter")
        if not words:
            return self._spawn(argv, *streams)
        child = os.fork()
        if child == 0:
            os.close(lock_fd)
            runc_enter.become(words, argv, streams)
        return child

    @staticmethod
    def _is_over(pid: int) -> bool:
        """Ended, and not yet waited for; one that was killed a moment ago may still be on its way."""
        fd = os.pidfd_open(pid)
        try:
            return bool(select.select([fd], [], [], DYING_S)[0])
        finally:
            os.close(fd)

    def _let_go(self, pid: int, null: int) -> bytes:
        """The start is on record; then the task is let go, if it waits for that (`startArgv`). What went wrong."""
        try:
            self._started(pid)
        except ProcessLookupError:
            return b""  # it has ended already
        argv = self._launch.get("startArgv") or []
        if not argv or runc_state.let_go(self._launch.get("stateDir") or "", pid):
            return b""
        out, inner = pipe()
        try:
            child = self._spawn(argv, null, inner, inner)
            os.close(inner)
            _, status = os.waitpid(child, 0)
            if status == 0:
                return b""
            with ignoring(BlockingIOError):
                return f"0 {' '.join(argv[:2])}: ".encode() + (os.read(out, 2000).strip() or self._start_log().encode())
            return f"0 {' '.join(argv[:2])}: {self._start_log()}".encode()
        finally:
            os.close(out)

    def _spawn(self, argv: list[str], stdin: int, stdout: int, stderr: int) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)]
        env = dict(self._launch["env"]) or dict(os.environ)
        return os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsid=True)

    def _read_pid(self) -> int:
        try:
            with open(self._launch["pidFile"], encoding="ascii") as f:
                return int(f.read(32))
        except (OSError, ValueError):
            return 0

    def _start_log(self) -> str:
        try:
            fd = os.open("start.log", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir_fd)
        except OSError:
            return ""
        try:
            os.lseek(fd, -min(2000, os.fstat(fd).st_size), os.SEEK_END)
            return os.read(fd, 2000).decode(errors="replace").strip()
        finally:
            os.close(fd)

    # -- how it ended ----------------------------------------------------------------------------------------------------------

    def _exited(self, status: int) -> dict[str, Any]:
        code = _code(status)
        is_oom = code != 0 and self._oom_kills() > self._oom_before
        return {"code": code, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "oom_killed": is_oom}

    def _oom_kills(self) -> int:
        path = self._launch.get("oomFile")
        if not path:
            return 0
        try:
            return files.number_after(files.read_small(path), b"oom_kill ")
        except (OSError, ValueError, IndexError):
            return 0

    def _tell(self) -> None:
        """The agent may be away: then it reads the files when it comes back."""
        if path := self._launch.get("events"):
            with ignoring(OSError):
                tell(path, self._directory)


def tell(path: str, directory: str) -> None:
    """Addresses of sockets are short, paths need not be: so the socket is reached through its directory.

    The kernel keeps ten messages for an agent that is busy. The eleventh waits inside the call: a socket that never waits would
    be told again and again that it may write, since it is not connected."""
    dir_fd = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        try:
            channel.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, _TELL_TIMEOUT)
            channel.sendto(directory.encode(), f"/proc/self/fd/{dir_fd}/{os.path.basename(path)}")
        finally:
            channel.close()
    finally:
        os.close(dir_fd)


def _code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _start_error(problem: bytes) -> dict[str, Any]:
    number, _, text = problem.decode(errors="replace").partition(" ")
    code = {errno.ENOENT: 127, errno.EACCES: 126, errno.ENOEXEC: 126}.get(int(number) if number.isdecimal() else 0, 128)
    return {"code": code, "reason": START_ERROR, "message": text}


def _now() -> float:
    return time.time()  # noqa: TID251 - a shim is a process of its own: nobody hands it a clock


def _is_dead(pid: int) -> bool:
    """Ended, whether or not somebody has asked how."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True
