"""A client's connection that goes on to an agent: the bytes of both sides, handed on until one of them ends.

A handler gives out a `Tunnel`, knowing that the client may have it; `answering` dials, tells the client, and lets bytes pass.
What they mean is between client and agent. Each side is read only as fast as the other takes it, so a tunnel holds no more than
the buffers of two connections. It ends with either side, when nothing passes for too long, or with `close`; what was read by
then is handed on first. TLS as Python has it knows no connection that is open in one direction only, so neither does a tunnel.

Concurrency: on the event loop, in the task of the request, with two tasks of its own while bytes pass. Invariant: after `end`,
which may be called at any time, the agent's connection is closed and the slot is free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from muster.server.upgrade import Headers

_PIECE_BYTES: Final = 64 * 1024
_LOOK_S: Final = 5.0
"""How often it is looked after whether somebody is still there."""


class Far:
    """The agent's side: asked, and agreed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Headers) -> None:
        self.reader = reader
        self.writer = writer
        self.headers = tuple(headers)


class Near(Protocol):
    """The client's side, once HTTP has ended there. What the client sends comes through a reader."""

    def hand_on(self, data: bytes) -> None:
        """Nothing, when the client has gone."""
        ...

    async def drained(self) -> None:
        """Until the client has read enough for more, or has gone."""
        ...

    async def flushed(self) -> None: ...

    def has_left(self) -> bool:
        """Whether the client sends no more, though what it sent may not have been read."""
        ...


Dial = Callable[[Headers], Coroutine[Any, Any, Far]]
"""Ask the agent, with the client's headers. Raises ApiError, and then nothing is left open."""


class Tunnel:
    def __init__(self, dial: Dial, *, silence_s: float, freed: Callable[[], None] = lambda: None) -> None:
        """`freed` is called once for what `dial` returned, when that is closed."""
        self._dial = dial
        self._silence_s = silence_s
        self._freed = freed
        self._far: Far | None = None
        self._over = asyncio.Event()
        self._passed_s = 0.0
        """When bytes passed last, on the loop's clock."""

    def close(self) -> None:
        """End it soon. May be repeated."""
        self._over.set()

    async def dial(self, headers: Headers) -> Far | None:
        """Raises ApiError. None when it was closed before the agent had answered."""

        async def reach() -> None:
            self._far = await self._dial(headers)

        reaching, over = asyncio.ensure_future(reach()), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({reaching, over}, return_when=asyncio.FIRST_COMPLETED)
            if reaching.done():
                await reaching
            return self._far
        finally:
            await _ended(reaching, over)

    async def splice(self, near: Near, incoming: asyncio.StreamReader, turn: Callable[[], Awaitable[None]]) -> None:
        """After `dial`. `turn` is awaited for each piece, so that others have theirs."""
        assert self._far is not None
        self._passed_s = asyncio.get_running_loop().time()
        ends = [
            asyncio.ensure_future(self._up(incoming, self._far.writer, turn)),
            asyncio.ensure_future(self._down(self._far.reader, near, turn)),
            asyncio.ensure_future(self._silent(near)),
            asyncio.ensure_future(self._over.wait()),
        ]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _ended(*ends)

    def end(self) -> None:
        """Close what is open on the agent's side; what was written to it goes out first. May be repeated."""
        far, self._far = self._far, None
        if far is not None:
            far.writer.close()
            self._freed()

    # --- the bytes

    async def _up(
        self, incoming: asyncio.StreamReader, writer: asyncio.StreamWriter, turn: Callable[[], Awaitable[None]]
    ) -> None:
        """From the client, until it ends. An agent that takes nothing more may still have said why: then the others end it."""
        with contextlib.suppress(OSError):
            while data := await incoming.read(_PIECE_BYTES):
                self._passed_s = asyncio.get_running_loop().time()
                writer.write(data)
                await writer.drain()
                await turn()
            return
        await self._over.wait()

    async def _down(self, reader: asyncio.StreamReader, near: Near, turn: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                self._passed_s = asyncio.get_running_loop().time()
                near.hand_on(data)
                await near.drained()
                await turn()
        await near.flushed()

    async def _silent(self, near: Near) -> None:
        """Until nothing passes any more. While an agent takes nothing the client is not read, and its end would not be seen."""
        loop = asyncio.get_running_loop()
        while (left_s := self._passed_s + self._silence_s - loop.time()) > 0:
            passed_s = self._passed_s
            await asyncio.sleep(min(left_s, _LOOK_S))
            if self._passed_s == passed_s and near.has_left():
                return


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
