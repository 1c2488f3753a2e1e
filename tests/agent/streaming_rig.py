"""An agent's endpoint over real TLS; its commands are real processes, its pods' ports real sockets of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import ssl
import struct
import subprocess
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from muster.agent.contracts import AgentError, ExecSession, ExecWant, LogQuery, StreamTarget
from muster.agent.serving import Endpoint
from muster.agent.serving_access import ensure_self_signed, tls_context
from muster.agent.streaming_line import Pace
from muster.objects.time import wall_clock
from tests.waiting import until

EXEC = "/exec/ns/p/c"
FORWARD = "/portForward/ns/p"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def no_streams() -> dict[str, Any]:
    """For endpoints whose tests are about something else."""

    async def open_exec(target: StreamTarget, want: ExecWant) -> ExecSession:
        raise AgentError("NotFound", f"pod {target.pod} is not here")

    async def dial(target: StreamTarget, port: int) -> socket.socket:
        raise AgentError("NotFound", f"pod {target.pod} is not here")

    return {"open_exec": open_exec, "dial": dial}


class Everybody:
    async def refusal(self, request: web.Request, verb: str = "get") -> tuple[int, str] | None:
        return None


async def no_logs(_query: LogQuery) -> AsyncIterator[bytes]:
    yield b"nothing\n"


class ProcessSession:
    """An `ExecSession` of this machine: a process of its own session, on pipes or on a terminal."""

    def __init__(self, want: ExecWant) -> None:
        self.stderr = -1
        self.closed = 0
        self.sizes: list[tuple[int, int]] = []
        self._want = want
        theirs = self._terminal() if want.has_tty else self._pipes()
        self.process = subprocess.Popen(
            want.argv,
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            start_new_session=True,
            preexec_fn=_take_terminal if want.has_tty else None,  # noqa: PLW1509
            env={"PATH": os.environ["PATH"], "TERM": "xterm", "PS1": "ready> "},
        )
        for fd in set(theirs):
            os.close(fd)
        for fd in {self.stdin, self.stdout, self.stderr} - {-1}:
            os.set_blocking(fd, False)

    def _terminal(self) -> tuple[int, int, int]:
        self.stdout, theirs = os.openpty()
        self.stdin = self.stdout if self._want.has_stdin else -1
        return theirs, theirs, theirs

    def _pipes(self) -> tuple[int, int, int]:
        self.stdout, out = os.pipe()
        self.stderr, err = os.pipe()
        if self._want.has_stdin:
            into, self.stdin = os.pipe()
        else:
            into, self.stdin = os.open("/dev/null", os.O_RDONLY), -1
        return into, out, err

    def close_stdin(self) -> None:
        if self.stdin >= 0 and not self._want.has_tty:
            os.close(self.stdin)
            self.stdin = -1

    def resize(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))
        fcntl.ioctl(self.stdout, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        loop = asyncio.get_running_loop()
        pidfd = os.pidfd_open(self.process.pid)
        ended = asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        code = self.process.wait()
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        self.closed += 1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for fd in {self.stdin, self.stdout, self.stderr} - {-1}:
            os.close(fd)
        self.stdin = self.stdout = self.stderr = -1


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Pods:
    """A carrier's two methods; `error` is raised instead."""

    def __init__(self) -> None:
        self.error: AgentError | None = None
        self.sessions: list[ProcessSession] = []
        self.asked: list[tuple[StreamTarget, ExecWant]] = []
        self.dialled: list[tuple[StreamTarget, int]] = []

    async def open_exec(self, target: StreamTarget, want: ExecWant) -> ExecSession:
        self.asked.append((target, want))
        if self.error is not None:
            raise self.error
        self.sessions.append(ProcessSession(want))
        return self.sessions[-1]

    async def dial(self, target: StreamTarget, port: int) -> socket.socket:
        self.dialled.append((target, port))
        if self.error is not None:
            raise self.error
        made = socket.socket()
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
        except OSError as error:
            made.close()
            raise AgentError("ConnectionRefused", f"nothing listens on port {port}") from error
        return made


class StreamRig:
    """`pods` is behind `endpoint`; `connect` opens a WebSocket to it as the API server would."""

    def __init__(self, directory: Path, pace: Pace) -> None:
        pair = ensure_self_signed(directory / "credentials", "n1", ("127.0.0.1",), wall_clock())
        self.pods = Pods()
        self.tls = ssl.create_default_context(cafile=str(pair[0]))
        self.endpoint = Endpoint(
            logs=no_logs,
            open_exec=self.pods.open_exec,
            dial=self.pods.dial,
            access=Everybody(),
            tls=tls_context(*pair, None),
            clock=wall_clock,
            pace=pace,
        )
        self._sessions: list[aiohttp.ClientSession] = []

    async def connect(
        self, path: str, query: list[tuple[str, str]], *protocols: str, **how: Any
    ) -> aiohttp.ClientWebSocketResponse:
        session = aiohttp.ClientSession()
        self._sessions.append(session)
        url = f"https://127.0.0.1:{self.endpoint.port}{path}"
        made: aiohttp.ClientWebSocketResponse = await session.ws_connect(
            url, params=query, protocols=protocols, ssl=self.tls, max_msg_size=0, **how
        )
        return made

    async def ask(
        self, path: str, query: list[tuple[str, str]], headers: dict[str, str] | None = None, method: str = "GET"
    ) -> tuple[int, str]:
        url = f"https://127.0.0.1:{self.endpoint.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, params=query, headers=headers, ssl=self.tls) as answer,
        ):
            return answer.status, await answer.text()

    async def all_closed(self, count: int) -> None:
        """So many commands were begun, and each was closed."""

        async def are() -> bool:
            return len(self.pods.sessions) == count and all(one.closed for one in self.pods.sessions)

        await until(are)
        assert [one.closed for one in self.pods.sessions] == [1] * count

    async def close(self) -> None:
        await self.endpoint.stop()
        for session in self._sessions:
            await session.close()


@contextlib.asynccontextmanager
async def running_rig(
    directory: Path,
    pace: Pace = Pace(),  # noqa: B008
    *,
    counts_descriptors: bool = True,
) -> AsyncIterator[StreamRig]:
    """Leaves no task, no descriptor and no process behind, or fails. Some clients in this process keep descriptors."""
    before, open_fds = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
    made = StreamRig(directory, pace)
    await made.endpoint.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.close()

    async def is_clean() -> bool:
        tasks = asyncio.all_tasks() - {asyncio.current_task()} - before
        return not tasks and (not counts_descriptors or len(os.listdir("/proc/self/fd")) <= open_fds)

    await until(is_clean)
    assert all(one.closed == 1 and one.process.poll() is not None for one in made.pods.sessions)
