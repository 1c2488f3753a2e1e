"""The agent's side of what a child of the zygote keeps open for it: commands with their streams, and connections into pods.

On the agent's event loop. A child is talked to over one socket (`Channel`): the request went there, frames come back, with
descriptors. When that socket is closed, by whatever end of the agent, the child kills what it has started and ends too.

Invariants: a descriptor that has arrived belongs to the channel until it is handed out, and to the session from then on, so
whoever is cancelled at any moment leaks none; a session is one task, which ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from fcntl import ioctl
from typing import Any, Final

from muster.agent.contracts import AgentError, ExecWant
from muster.agent.shim import beside

LOST_CODE: Final = 128 + signal.SIGKILL
KILL_S: Final = 10.0
"""So long a close waits for what can't be killed."""
_FDS_MAX: Final = 3
_BYTES: Final = 16 * 1024
_SIZE_MAX: Final = 0xFFFF
_ANSWER_TIMEOUT_S: Final = 30.0
_DIAL_TIMEOUT_S: Final = 5.0
SESSIONS_MAX: Final = 256
"""Open commands on one node. Each is a process of two megabytes, besides its own."""

Ended = Callable[["Session"], None]


class Channel:
    """Frames from one child. For one reader at a time."""

    def __init__(self, mine: socket.socket) -> None:
        mine.setblocking(False)
        self._socket = mine
        self._data = bytearray()
        self._fds: list[int] = []

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def frame(self) -> dict[str, Any] | None:
        """None: it has ended."""
        while (found := beside.take(self._data)) is None:
            await _readable(self._socket)
            try:
                data, fds = beside.receive_fds(self._socket, _FDS_MAX, _BYTES)
            except BlockingIOError:
                continue
            except ConnectionError:
                return None
            self._fds += fds
            if not data:
                return None
            self._data += data
        return found

    @property
    def fds_len(self) -> int:
        return len(self._fds)

    def take_fds(self) -> list[int]:
        """They belong to the caller now."""
        found, self._fds = self._fds, []
        return found

    def say_end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()
        for fd in self.take_fds():
            os.close(fd)


async def _readable(mine: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(mine, tell)
    try:
        await future
    finally:
        loop.remove_reader(mine)


class Session:
    """An `ExecSession`. `ended` is called when it is closed."""

    def __init__(self, channel: Channel, *, has_stdin: bool, has_tty: bool, ended: Ended) -> None:
        fds = channel.take_fds()
        for fd in fds:
            os.set_blocking(fd, False)
        self._channel = channel
        self._fds = fds
        self._has_tty = has_tty
        self._ended = ended
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._following = asyncio.create_task(self._follow(), name="an open command")
        self.stdout = fds[0] if has_tty else fds[-2]
        self.stderr = -1 if has_tty else fds[-1]
        self.stdin = fds[0] if has_stdin else -1

    async def _follow(self) -> None:
        """Until the child has ended; without a word when it was killed."""
        try:
            while (frame := await self._channel.frame()) is not None:
                if not self._code.done():
                    self._code.set_result(int(frame["code"]))
        finally:
            if not self._code.done():
                self._code.set_result(LOST_CODE)

    def close_stdin(self) -> None:
        if self.stdin >= 0 and not self._has_tty:
            self._fds.remove(self.stdin)
            os.close(self.stdin)
            self.stdin = -1

    def resize(self, columns: int, rows: int) -> None:
        """The kernel tells the programs on the terminal."""
        if self._has_tty and self._fds:
            size = [min(max(0, number), _SIZE_MAX) for number in (rows, columns)]
            with contextlib.suppress(OSError):
                ioctl(self._fds[0], termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    async def close(self) -> None:
        self._channel.say_end()
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)
        self.stdin = self.stdout = self.stderr = -1
        try:
            await asyncio.wait({self._following}, timeout=KILL_S)
        finally:
            self._following.cancel()
            self._channel.close()
            self._ended(self)


class Sessions:
    """Opens them. `begin` makes a child that waits for its request, and gives the socket to it."""

    def __init__(self, begin: Callable[[], Awaitable[socket.socket]]) -> None:
        self._begin = begin
        self._open: set[Session] = set()
        self._opening = 0

    async def open(self, hold: dict[str, Any], want: ExecWant) -> Session:
        """`hold`: what `holding` is to start. Returns when the command executes; AgentError `ExecFailed` when it can't."""
        if len(self._open) + self._opening >= SESSIONS_MAX:
            raise AgentError("ExecFailed", f"{SESSIONS_MAX} commands are open on this node, which is all it allows: end some")
        self._opening += 1
        try:
            request = {**hold, "argv": list(want.argv), "stdin": want.has_stdin, "tty": want.has_tty}
            count = 1 if want.has_tty else 2 + want.has_stdin
            channel = await self._ask({"hold": request}, _ANSWER_TIMEOUT_S, count)
        finally:
            self._opening -= 1
        made = Session(channel, has_stdin=want.has_stdin, has_tty=want.has_tty, ended=self._open.discard)
        self._open.add(made)
        return made

    async def dial(self, netns: str, port: int) -> socket.socket:
        """A connection to 127.0.0.1 or else ::1 in this network namespace; "": the host's. AgentError `ConnectionRefused`."""
        request = {"dial": {"netns": netns, "port": port, "timeout_s": _DIAL_TIMEOUT_S}}
        channel = await self._ask(request, _ANSWER_TIMEOUT_S, 1)
        found = socket.socket(fileno=channel.take_fds()[0])
        channel.close()
        found.setblocking(False)
        return found

    async def _ask(self, request: dict[str, Any], timeout_s: float, fds_len: int) -> Channel:
        """The first frame has come, and says nothing against it; so many descriptors are in the channel."""
        try:
            data = beside.pack(request)
        except ValueError as e:
            raise AgentError("ExecFailed", str(e)) from e
        channel = Channel(await self._begin())
        try:
            async with asyncio.timeout(timeout_s):
                await channel.send(data)
                frame = await channel.frame()
            if frame is None:
                raise AgentError("ExecFailed", "the process that was to do it was killed")
            if "error" in frame:
                raise AgentError(str(frame.get("reason", "ExecFailed")), str(frame["error"]))
            if channel.fds_len != fds_len:  # the kernel drops those for which there is no room
                raise AgentError("ExecFailed", "the agent has too much open to open more: raise its limit of open files")
        except TimeoutError as e:
            channel.close()
            raise AgentError("ExecFailed", f"nothing came of it within {timeout_s:.0f} s") from e
        except OSError as e:
            channel.close()
            raise AgentError("ExecFailed", "the process that was to do it was killed") from e
        except BaseException:
            channel.close()
            raise
        return channel

    async def close(self) -> None:
        """No command outlives the agent that it talks through."""
        await asyncio.gather(*(session.close() for session in list(self._open)))
