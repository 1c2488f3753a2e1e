"""Forwarded ports on Kubernetes' channel protocol: one connection for each port, which all begin at once.

Port number i has channel 2i for its bytes and 2i + 1 for the sentence that says why there is no connection. The first message
on each is the port, two bytes, the lower one first. A channel has no end of its own: when all ports are over, so is the
WebSocket.

Concurrency: `run` is called once, on the task of the request.
"""

from __future__ import annotations

import asyncio

from muster.agent.streaming_channels import Codec
from muster.agent.streaming_forward import Forwards, Inbox
from muster.agent.streaming_line import Line, until_first


class _Port:
    """A `Reply` on two channels."""

    def __init__(self, line: Line, codec: Codec, number: int) -> None:
        self._line = line
        self._codec = codec
        self._data, self._error = 2 * number, 2 * number + 1

    async def begin(self, port: int) -> None:
        for channel in (self._data, self._error):
            await self._line.send(self._codec.pack(channel, port.to_bytes(2, "little")))

    async def send(self, data: bytes) -> None:
        self._line.used()
        await self._line.send(self._codec.pack(self._data, data))

    async def fail(self, sentence: str) -> None:
        await self._line.send(self._codec.pack(self._error, sentence.encode()))

    async def end(self, is_whole: bool) -> None:
        pass

    async def over(self) -> None:
        pass


class ChannelPorts:
    """Does not close the forwards."""

    def __init__(self, line: Line, codec: Codec, ports: tuple[int, ...], forwards: Forwards) -> None:
        self._line = line
        self._codec = codec
        self._ports = ports
        self._forwards = forwards
        self._inboxes = [Inbox(forwards.unread) for _ in ports]

    async def run(self) -> None:
        """Until all ports are over, or the peer has gone: Gone, ConnectionError, or in order."""
        await until_first(self._line.keep(), self._listen(), self._carry())

    async def _listen(self) -> None:
        while (message := await self._line.receive()) is not None:
            part = self._codec.unpack(message)
            if part is not None and part[0] % 2 == 0 and part[0] // 2 < len(self._inboxes):
                self._line.used()
                self._inboxes[part[0] // 2].put(part[1])
                await self._forwards.unread.room()
        for inbox in self._inboxes:
            inbox.end()

    async def _carry(self) -> None:
        replies = [_Port(self._line, self._codec, number) for number in range(len(self._ports))]
        for port, reply in zip(self._ports, replies, strict=True):
            await reply.begin(port)
        begun = [self._forwards.begin(*one) for one in zip(self._ports, self._inboxes, replies, strict=True)]
        await asyncio.wait(begun)
        await self._line.flush()
