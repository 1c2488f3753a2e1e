"""One upgraded connection: messages in order both ways, and whether anybody is still there.

Concurrency: one task calls `receive`, any number call `send`, and `keep` runs beside them as long as the connection is used.
Only `keep` writes to the socket, so that whoever else is cancelled cuts no message in half. Where the peer does not read,
`send` waits; where nobody calls `receive`, the peer's bytes stay in the kernel.

A peer that says nothing for `silence_s`, not even an answer to a heartbeat, is gone. Time in which it has not yet taken what
was sent, or in which nobody here listens, does not count: then it need not have heard, or can't be heard. Nor does it in the
end: a peer hears our goodbye when it has taken what was sent before, and is waited for as long as it goes on taking that. And
one that is there and does nothing with the connection for `idle_s` has forgotten it; what is done with it is said by `used`.

While nobody here listens, the peer's own heartbeats are not read. It is told now and then all the same that somebody is here:
kubectl leaves after a minute without an answer, however busy the command is with what it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import termios
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Literal

import msgspec
from aiohttp import WSMsgType, web

MESSAGE_BYTES_MAX: Final = 2**20 + 1024
"""Of the peer's; clients send up to 1 MiB and the byte of its channel in one."""
OUTBOX_LEN_MAX: Final = 8
CHUNK_BYTES: Final = 32 * 1024
"""In one message of ours."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How patient streams are."""

    heartbeat_s: float = 30.0
    silence_s: float = 120.0
    idle_s: float = 4 * 3600.0
    """Without a byte in either direction, however lively the heartbeats of both sides: as long as kubelets wait."""
    left_over_s: float = 0.5
    """After a command's end, for what its own children still print."""
    linger_s: float = 1.0
    """After a pod has said everything on a connection, for what the peer still says."""
    drain_s: float = 5.0
    """After the peer has said goodbye, for a pod to take what had come before."""
    pair_s: float = 30.0
    """Between the two streams of a forwarded connection."""


class Gone(Exception):
    """The peer is not there any more, or not to be understood."""


class Line:
    """`open`, then `keep` beside everything else, then `close`."""

    def __init__(self, pace: Pace, protocol: str, *, is_text: bool = False) -> None:
        self._pace = pace
        self._kind = WSMsgType.TEXT if is_text else WSMsgType.BINARY
        self.socket: web.WebSocketResponse[Literal[False]] = web.WebSocketResponse(
            timeout=pace.idle_s,  # of `close`, which has a patience of its own
            autoclose=False,
            autoping=False,
            protocols=(protocol,) if protocol else (),
            compress=False,
            max_msg_size=MESSAGE_BYTES_MAX,
            decode_text=False,
        )
        self._outbox: deque[tuple[WSMsgType, bytes]] = deque()
        self._changed = asyncio.Condition()
        self._is_over = False
        self._is_cut = False
        self._is_listening = False
        self._request: web.Request | None = None
        self._heard_at = 0.0
        self._used_at = 0.0
        self.has_goodbye = False
        """The peer has closed in order: what it sent before is all that it wanted to send."""

    async def open(self, request: web.Request) -> None:
        """ConnectionError when it is gone already."""
        self._request = request
        await self.socket.prepare(request)
        self._heard_at = self._used_at = asyncio.get_running_loop().time()

    def used(self) -> None:
        """Something other than a heartbeat has come from the peer, or goes to it."""
        self._used_at = asyncio.get_running_loop().time()

    async def send(self, message: bytes) -> None:
        """Dropped when nobody is there any more."""
        await self._put(self._kind, message)

    async def _put(self, kind: WSMsgType, data: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_over or len(self._outbox) < OUTBOX_LEN_MAX)
            if not self._is_over:
                self._outbox.append((kind, data))
                self._changed.notify_all()

    async def receive(self) -> bytes | None:
        """The next message; None when the peer has closed."""
        while True:
            message = await self._next()
            await asyncio.sleep(0)  # others have their turn: a message takes seven bytes, and tens of thousands may be here
            if message.type in (WSMsgType.BINARY, WSMsgType.TEXT):
                data: bytes = message.data
                return data
            if message.type is WSMsgType.PING:
                await self._put(WSMsgType.PONG, message.data)
            elif message.type is WSMsgType.CLOSE:
                self.has_goodbye = True
                return None
            elif message.type in (WSMsgType.CLOSING, WSMsgType.CLOSED):
                return None
            elif message.type is WSMsgType.ERROR:
                raise Gone(str(message.data))

    async def _next(self) -> Any:
        loop = asyncio.get_running_loop()
        self._heard_at, self._is_listening = loop.time(), True
        try:
            return await self.socket.receive()
        finally:
            self._heard_at, self._is_listening = loop.time(), False

    async def flush(self) -> None:
        """Everything that was sent is with the kernel, or soon is; or nobody is there any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_over or not self._outbox)

    async def keep(self) -> None:
        """Until cancelled. Gone or ConnectionError when the peer is not there any more."""
        try:
            await until_first(self._write(), self._beat())
        finally:
            self._is_over, self._is_cut = True, bool(self._outbox)
            self._outbox.clear()
            async with self._changed:
                self._changed.notify_all()

    async def _write(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._outbox))
            kind, data = self._outbox[0]
            await self.socket.send_frame(data, kind)
            async with self._changed:
                self._outbox.popleft()  # not before it is sent: what is in here is what the peer has not taken yet
                self._changed.notify_all()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._pace.heartbeat_s)
            if loop.time() - self._used_at > self._pace.idle_s:
                raise Gone(f"nothing has passed for {self._pace.idle_s:g} s")
            if self._outbox:
                self._heard_at = loop.time()
                continue
            if self._is_listening and loop.time() - self._heard_at > self._pace.silence_s:
                raise Gone(f"the peer has said nothing for {self._pace.silence_s:g} s")
            if not self._is_listening:
                await self._put(WSMsgType.PONG, b"")
            await self._put(WSMsgType.PING, b"")

    async def close(self) -> None:
        """Say goodbye, where all that was sent could be, and wait until the peer has heard it. Nobody calls `receive` then."""
        if self._is_cut:
            self.abort()
            return
        with contextlib.suppress(ConnectionError):
            await until_first(self._say_goodbye(), self._lose_patience())

    async def _say_goodbye(self) -> None:
        await self.socket.close()

    async def _lose_patience(self) -> None:
        """Cut it when the peer has taken nothing of what was sent for `silence_s`, and did not say goodbye either."""
        before = self._unsent_bytes()
        while True:
            await asyncio.sleep(self._pace.silence_s)
            now = self._unsent_bytes()
            if now >= before:
                break
            before = now
        self.abort()

    def _unsent_bytes(self) -> int:
        """Of what was sent, what still waits here and in the kernel."""
        transport = self._request.transport if self._request is not None else None
        if transport is None or (place := transport.get_extra_info("socket")) is None or place.fileno() < 0:
            return 0
        (in_kernel,) = struct.unpack("i", fcntl.ioctl(place.fileno(), termios.TIOCOUTQ, bytes(4)))
        return int(in_kernel) + transport.get_write_buffer_size()

    def abort(self) -> None:
        """Cut it, so that the peer sees that it is not the end."""
        if self._request is not None and self._request.transport is not None:
            self._request.transport.abort()


async def until_first(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all of them until one ends, and end the others; what it raised is raised here."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
