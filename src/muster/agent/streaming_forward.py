"""Connections into a pod on behalf of one peer, whichever way the peer's bytes are wrapped.

Concurrency: `begin` starts a task for each connection; what the peer sends is put into its `Inbox` by the one task that reads
the peer, which waits for `room` before it reads on. So a pod that does not read holds up its whole peer, as in Kubernetes,
whose protocols have no other way to tell; and what waits is bounded over all connections of a peer together.

Invariant: every socket is closed, whatever ends first, at the latest by `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from muster.agent.contracts import AgentError, StreamTarget
from muster.agent.streaming_line import CHUNK_BYTES, Pace

log = logging.getLogger(__name__)

Dial = Callable[[StreamTarget, int], Awaitable[socket.socket]]

CONNECTIONS_MAX: Final = 512
"""Into pods, of one node at a time."""
UNREAD_BYTES_MAX: Final = 2**20
"""Of one peer, over all of its connections."""
_PIECE_BYTES: Final = 64
"""What a piece takes beside its bytes, about."""


class Unread:
    """How many bytes of a peer wait for pods."""

    def __init__(self) -> None:
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    def change(self, size: int) -> None:
        self._bytes += size
        if self._bytes < UNREAD_BYTES_MAX:
            self._room.set()
        else:
            self._room.clear()

    async def room(self) -> None:
        await self._room.wait()


class Inbox:
    """What the peer has sent on one connection and the pod has not taken yet."""

    def __init__(self, unread: Unread) -> None:
        self._unread = unread
        self._pieces: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._is_read = True
        self.has_end = False
        self.done = asyncio.Event()
        """The pod has taken everything, or takes nothing more."""

    def put(self, data: bytes) -> None:
        if data and self._is_read and not self.has_end:
            self._pieces.append(data)
            self._unread.change(len(data) + _PIECE_BYTES)
            self._changed.set()

    def end(self) -> None:
        """The peer sends nothing more."""
        self.has_end = True
        self._changed.set()

    async def get(self) -> bytes | None:
        """None at the end."""
        while not self._pieces:
            if self.has_end:
                self.done.set()
                return None
            self._changed.clear()
            await self._changed.wait()
        data = self._pieces.popleft()
        self._unread.change(-len(data) - _PIECE_BYTES)
        return data

    def discard(self) -> None:
        """Nobody takes anything from it any more."""
        self._is_read = False
        self.done.set()
        while self._pieces:
            self._unread.change(-len(self._pieces.popleft()) - _PIECE_BYTES)


class Reply(Protocol):
    """Where a connection's other end is."""

    async def send(self, data: bytes) -> None: ...

    async def end(self, is_whole: bool) -> None:
        """The pod sends nothing more; not `is_whole`: it broke off."""
        ...

    async def fail(self, sentence: str) -> None:
        """There is no connection."""
        ...

    async def over(self) -> None:
        """The last that is heard, of a connection as of a failure; not of what was cancelled."""
        ...


class Connections:
    """How many there are on this node."""

    def __init__(self) -> None:
        self.open = 0


class Forwards:
    """The connections of one peer. `linger_s`: see `Pace`; 0 where a peer can't end its half."""

    def __init__(self, dial: Dial, target: StreamTarget, connections: Connections, pace: Pace, *, linger_s: float) -> None:
        self._dial = dial
        self._target = target
        self._connections = connections
        self._pace = pace
        self._linger_s = linger_s
        self._tasks: dict[asyncio.Task[None], Inbox] = {}
        self.unread = Unread()

    def begin(self, port: int, inbox: Inbox, reply: Reply) -> asyncio.Task[None]:
        """Cancelling it closes the connection, and then nothing more is said."""
        task = asyncio.create_task(self._serve(port, inbox, reply), name=f"connection to port {port} of {self._target.pod}")
        self._tasks[task] = inbox
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    async def close(self) -> None:
        """Pods still get what was sent in full, for a while; the rest is cut."""
        draining = [inbox.done.wait() for inbox in self._tasks.values() if inbox.has_end]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pace.drain_s):
                await asyncio.gather(*draining)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, port: int, inbox: Inbox, reply: Reply) -> None:
        try:
            why = await self._carry(port, inbox, reply)
        except Exception:  # the root of a connection: the peer would wait for it
            log.exception("a connection to port %d of %s/%s failed", port, self._target.namespace, self._target.pod)
            why = "a fault of the agent; its log says more"
        finally:
            inbox.discard()
        if why:
            await reply.fail(f"error forwarding port {port} to pod {self._target.namespace}/{self._target.pod}: {why}")
        await reply.over()

    async def _carry(self, port: int, inbox: Inbox, reply: Reply) -> str:
        """Why there is no connection; otherwise empty, when it is over."""
        if self._connections.open >= CONNECTIONS_MAX:
            return f"{CONNECTIONS_MAX} connections into pods of this node are open"
        self._connections.open += 1
        try:
            with await self._dial(self._target, port) as connection:
                await self._splice(connection, inbox, reply)
        except AgentError as error:
            return error.message
        finally:
            self._connections.open -= 1
        return ""

    async def _splice(self, connection: socket.socket, inbox: Inbox, reply: Reply) -> None:
        feeding = asyncio.create_task(_feed(connection, inbox))
        try:
            is_whole = await _tell(connection, reply)
            await reply.end(is_whole)
            if is_whole:
                await asyncio.wait((feeding,), timeout=self._linger_s)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


async def _feed(connection: socket.socket, inbox: Inbox) -> None:
    loop = asyncio.get_running_loop()
    try:
        while (data := await inbox.get()) is not None:
            await loop.sock_sendall(connection, data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # the pod takes nothing more; whether it says something more is another matter
        inbox.discard()


async def _tell(connection: socket.socket, reply: Reply) -> bool:
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(connection, CHUNK_BYTES):
            await reply.send(data)
            await asyncio.sleep(0)  # others have their turn, however fast it sends
    except OSError:
        return False
    return True
