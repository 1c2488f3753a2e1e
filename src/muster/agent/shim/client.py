"""The agent's side of the shims: start runs, see how they are, hear of their ends, run commands beside them.

On the agent's event loop. Nothing here holds the truth: the files of a run and the lock of its shim do, so a new agent sees
what the old one saw. `observe` is a few small reads.

Invariants:
- a run's attempt is started at most once, whoever asks how often (the shim's lock, and `started.json` before the exec);
- a run without `exit.json` whose lock is free has ended, and nobody knows how: it is written down as `Lost`, once, under that
  lock, after whatever is left of it was killed;
- a start that is still on its way is never judged: the zygote's lock is waited for first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

from muster.agent.contracts import AgentError, ExecResult, Exited, RunState, Started
from muster.agent.layout import Layout
from muster.agent.shim import beside, files, zygote
from muster.agent.shim.launching import BEGUN, EXIT, LAUNCH, LOCK, STARTED, Launch
from muster.agent.shim.sessions import LOST_CODE, Sessions
from muster.objects.time import Clock, wall_clock

_IN_FLIGHT_MAX = 64
_ZYGOTE_LOG = "zygote.log"
"""Empty, unless the zygote or a shim has met with an error of its own."""
_ANSWER_TIMEOUT_S = 30.0
_RESTART_TRIES = 3
_CHANGES_MAX = 100_000
_EXEC_MARGIN_S = 10.0


class Shims:
    def __init__(self, layout: Layout, clock: Clock = wall_clock) -> None:
        self._layout = layout
        self._clock = clock
        self._boot_id = files.boot_id()
        self._zygote: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._events: socket.socket | None = None
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._in_flight: set[Path] = set()
        self._number = 0
        self._slots = asyncio.Semaphore(_IN_FLIGHT_MAX)
        self._changes: asyncio.Queue[Path] = asyncio.Queue(_CHANGES_MAX)
        self._watched: dict[Path, int] = {}
        self._starting = asyncio.Lock()
        self._is_open = False
        self.sessions = Sessions(self._begin_child)
        """Open commands, and connections into pods."""

    # -- opening and closing ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Ready to launch; starts that an earlier agent had on their way have come to something."""
        self._is_open = True
        self._layout.run.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._layout.pods.mkdir(mode=0o711, parents=True, exist_ok=True)
        files.spread(str(self._layout.pods))
        self._bind_events()
        try:
            await self._ensure_zygote()
        except ConnectionResetError as e:
            raise AgentError("ShimError", f"the zygote did not begin: see {self._layout.run / _ZYGOTE_LOG}") from e

    async def close(self) -> None:
        """The zygote ends; every run goes on."""
        self._is_open = False
        await self.sessions.close()
        loop = asyncio.get_running_loop()
        for fd in self._watched.values():
            loop.remove_reader(fd)
            os.close(fd)
        self._watched.clear()
        if self._events is not None:
            loop.remove_reader(self._events.fileno())
            self._events.close()
            self._events = None
            with contextlib.suppress(FileNotFoundError):
                self._layout.events_socket.unlink()
        self._drop_socket()
        if self._zygote is not None:
            await self._zygote.wait()
            self._zygote = None

    @property
    def zygote_pid(self) -> int | None:
        return self._zygote.pid if self._zygote is not None else None

    def _bind_events(self) -> None:
        self._events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        path = self._layout.events_socket
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        dir_fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._events.bind(f"/proc/self/fd/{dir_fd}/{path.name}")
        finally:
            os.close(dir_fd)
        path.chmod(0o600)
        asyncio.get_running_loop().add_reader(self._events.fileno(), self._hear)

    async def _ensure_zygote(self) -> socket.socket:
        async with self._starting:
            if not self._is_open:
                raise AgentError("AgentStopping", "the agent is stopping: nothing is started any more")
            if self._socket is not None:
                return self._socket
            if self._zygote is not None:
                await self._zygote.wait()
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            mine.setblocking(False)
            ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._waiting[0] = ready
            # Not the agent's own output: containers outlive it, and whoever reads that would wait for them.
            with theirs, open(self._layout.run / _ZYGOTE_LOG, "wb") as log:  # noqa: ASYNC230 - a few bytes on a tmpfs
                self._zygote = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", zygote.__file__, str(theirs.fileno()), str(self._layout.run / "zygote.lock"),
                    pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                )  # fmt: skip
            self._socket = mine
            asyncio.get_running_loop().add_reader(mine.fileno(), self._answered)
            problem = await ready
            if problem:
                raise AgentError("ShimError", f"the process that containers are started from could not begin: {problem}")
            return mine

    def _drop_socket(self) -> None:
        """Whoever waits for an answer learns that none will come."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the zygote has ended"))
        self._waiting.clear()

    def _answered(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(zygote.MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._drop_socket()
            return
        answer = msgspec.json.decode(data)
        future = self._waiting.pop(answer["id"], None)
        if future is not None and not future.done():
            future.set_result(answer["problem"])

    # -- starting --------------------------------------------------------------------------------------------------------------

    def write_launch(self, run_dir: Path, launch: Launch) -> None:
        """The shim makes it durable before anything of the run executes, so the attempt is known to be spent from then on."""
        os.makedirs(run_dir, mode=0o711, exist_ok=True)
        dir_fd = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            whole = {**launch, "bootId": self._boot_id, "events": str(self._layout.events_socket)}
            files.write_new(dir_fd, LAUNCH, msgspec.json.encode(whole))
        finally:
            os.close(dir_fd)

    async def launch(self, run_dir: Path, *, has_own_pids: bool = False, has_own_user: bool = False) -> None:
        """Returns when a shim has the run in hand, or had it before. AgentError when none could take it.

        has_own_pids: its shim is the first process of a new pid namespace, and everything in there ends with it;
        has_own_user: in a user namespace, which alone allows that to an agent without rights.
        """
        self._in_flight.add(run_dir)
        try:
            async with self._slots:
                for is_last in [False] * (_RESTART_TRIES - 1) + [True]:
                    try:
                        problem = await self._ask(run_dir, has_own_pids, has_own_user)
                    except ConnectionResetError as e:
                        if is_last:
                            raise AgentError("ShimError", f"{run_dir}: {e} {_RESTART_TRIES} times; see the agent's log") from e
                        continue
                    if problem:
                        raise AgentError("ShimError", problem)
                    return
        finally:
            self._in_flight.discard(run_dir)

    async def _ask(self, run_dir: Path, has_own_pids: bool, has_own_user: bool) -> str:
        channel = await self._ensure_zygote()
        self._number += 1
        number = self._number
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            request = {"id": number, "dir": str(run_dir), "ownPids": has_own_pids, "ownUser": has_own_user}
            await self._send(channel, request, [])
            return await asyncio.wait_for(future, _ANSWER_TIMEOUT_S)
        except TimeoutError:
            return f"{run_dir}: no shim answered within {_ANSWER_TIMEOUT_S:.0f} s"
        finally:
            self._waiting.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()  # told by the exception that is on its way

    async def _send(self, channel: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
        data = msgspec.json.encode(message)
        while True:
            try:
                socket.send_fds(channel, [data], fds) if fds else channel.send(data)
            except BlockingIOError:
                await asyncio.sleep(0.002)
            except OSError as e:
                if channel is self._socket:
                    self._drop_socket()  # the next one who asks starts another
                raise ConnectionResetError("the zygote has ended") from e
            else:
                return

    # -- looking ---------------------------------------------------------------------------------------------------------------

    def observe(self, run_dir: Path, end: Callable[[], object] | None = None) -> RunState | None:
        """How the run is. None: nothing of it was ever started. `end` kills what is left of a run whose shim has died."""
        try:
            dir_fd = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return self._observe(run_dir, dir_fd, end)
        finally:
            os.close(dir_fd)

    def _observe(self, run_dir: Path, dir_fd: int, end: Callable[[], object] | None) -> RunState | None:
        if found := _ended(dir_fd):
            self._unwatch(run_dir)
            return found
        if files.is_locked(dir_fd, LOCK):
            started = _started(dir_fd)
            if started is not None:
                self._watch(run_dir, started)
            return RunState(state="running" if started else "starting", started=started)
        if found := _ended(dir_fd):  # between the two looks
            return found
        launch = files.read_json(dir_fd, LAUNCH)
        started = _started(dir_fd)
        if launch is None and started is None:
            return None
        if launch is not None and launch.get("bootId") != self._boot_id:
            return self._lost(dir_fd, started, "NodeRestarted", "the machine was restarted while this ran")
        if started is None and not files.exists(dir_fd, BEGUN):
            return RunState(state="starting") if run_dir in self._in_flight else None
        if end is not None:
            end()
        if started is not None:
            _kill_rest(started)
        return self._lost(dir_fd, started, "Lost", "its parent process was killed, and the container with it")

    def spend(self, run_dir: Path, message: str) -> None:
        """A run that was never started can't be any more."""
        dir_fd = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not files.exists(dir_fd, EXIT):
                self._lost(dir_fd, _started(dir_fd), "Lost", message)
        finally:
            os.close(dir_fd)

    def _lost(self, dir_fd: int, started: Started | None, reason: str, message: str) -> RunState:
        exited = Exited(code=LOST_CODE, signal=signal.SIGKILL, at=self._clock(), reason=reason, message=message)
        lock_fd = files.open_lock(dir_fd, LOCK)
        try:
            if not files.take_lock(lock_fd):
                return RunState(state="running" if started else "starting", started=started)
            if found := _ended(dir_fd):
                return found
            files.write_json(dir_fd, EXIT, msgspec.to_builtins(exited))
        finally:
            os.close(lock_fd)
        return RunState(state="exited", started=started, exited=exited)

    # -- hearing ---------------------------------------------------------------------------------------------------------------

    async def changed(self) -> AsyncIterator[Path]:
        """Directories of runs that have started or ended. For one listener; a run may come more often than it changed."""
        while True:
            yield await self._changes.get()

    def _hear(self) -> None:
        assert self._events is not None
        for _ in range(64):
            try:
                data = self._events.recv(4096)
            except BlockingIOError:
                return
            self._note(Path(os.fsdecode(data)))

    def _note(self, run_dir: Path) -> None:
        with contextlib.suppress(asyncio.QueueFull):  # so far behind that the listener looks at everything anyway
            self._changes.put_nowait(run_dir)

    def _watch(self, run_dir: Path, started: Started) -> None:
        """A shim that is killed tells nobody: its pidfd does."""
        if run_dir in self._watched or not self._is_open:
            return
        fd = files.open_process(started.shim_pid, started.shim_start_ticks)
        if fd is None:
            self._note(run_dir)
            return
        self._watched[run_dir] = fd
        asyncio.get_running_loop().add_reader(fd, self._shim_ended, run_dir)

    def _shim_ended(self, run_dir: Path) -> None:
        self._unwatch(run_dir)
        self._note(run_dir)

    def _unwatch(self, run_dir: Path) -> None:
        fd = self._watched.pop(run_dir, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    # -- commands --------------------------------------------------------------------------------------------------------------

    async def run_once(self, launch: Launch, timeout_s: float, join: Started | None = None) -> ExecResult:
        """A command to its end: beside the run `join`, or on the host. AgentError `ExecFailed` when it could not be run."""
        request = {"launch": launch, "timeout_s": timeout_s, "join": msgspec.to_builtins(join) if join else None}
        found = await self._converse(request, timeout_s + _EXEC_MARGIN_S)
        if found is None:
            return ExecResult(code=LOST_CODE, output=b"", is_timeout=True)
        answer, output = found
        if "error" in answer:
            raise AgentError("ExecFailed", answer["error"])
        return ExecResult(code=answer["code"], output=output, is_timeout=answer["is_timeout"])

    async def probe(self, scratch: Path) -> dict[str, str]:
        """What containers can't have here, and why (`probing`). `scratch` lies where their writable layers will."""
        found = await self._converse({"probe": str(scratch)}, _ANSWER_TIMEOUT_S)
        if found is None:
            raise AgentError("ShimError", "trying out what this machine allows took too long")
        return found[0]

    async def _converse(self, request: dict[str, Any], timeout_s: float) -> tuple[dict[str, Any], bytes] | None:
        """None: out of time."""
        data = beside.pack(request)
        mine = await self._begin_child()
        mine.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=mine)
        try:
            async with asyncio.timeout(timeout_s):
                writer.write(data)
                await writer.drain()
                found = beside.unpack(await reader.read(-1))
        except TimeoutError:
            return None
        except ConnectionError:
            found = None
        finally:
            writer.close()
        if found is None:
            raise AgentError("ExecFailed", "the process that was to run the command was killed")
        return found

    async def _begin_child(self) -> socket.socket:
        """A child of the zygote reads its request from, and answers on, a socket of its own: this is the other end of it."""
        try:
            channel = await self._ensure_zygote()
            mine, theirs = socket.socketpair()
        except OSError as e:
            raise AgentError("ExecFailed", f"no process can be begun for it: {e.strerror or e}") from e
        with theirs:
            try:
                await self._send(channel, {"id": -1}, [theirs.fileno()])
            except ConnectionResetError as e:
                mine.close()
                raise AgentError("ExecFailed", str(e)) from e
            except BaseException:
                mine.close()
                raise
        return mine


def _started(dir_fd: int) -> Started | None:
    raw = files.read_json(dir_fd, STARTED)
    return msgspec.convert(raw, Started) if raw else None


def _ended(dir_fd: int) -> RunState | None:
    raw = files.read_json(dir_fd, EXIT)
    return RunState(state="exited", started=_started(dir_fd), exited=msgspec.convert(raw, Exited)) if raw else None


def _kill_rest(started: Started) -> None:
    """The container's first process, if the kernel has not ended it already."""
    fd = files.open_process(started.pid, started.start_ticks)
    if fd is not None:
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
