"""Forwarded ports on SPDY/3.1 inside a WebSocket, as kubectl asks for them: a pair of streams for each connection.

The headers of a stream say to which connection it belongs (`requestid`), to which port, and whether it carries the bytes or
the sentence that says why there is no connection. The peer opens streams as it takes connections, and goes on after one has
failed.

Concurrency: `run` is called once, on the task of the request, and alone changes what is known of streams, except that a
connection that is over takes its own out.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from muster.agent.serving_query import BadQuery, read_port
from muster.agent.streaming_forward import Forwards, Inbox
from muster.agent.streaming_line import Line, Pace, until_first
from muster.agent.streaming_spdy_frames import (
    CANCEL,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    Data,
    Event,
    FrameReader,
    FrameWriter,
    Leaving,
    Opened,
    Pinged,
    Reset,
)
from muster.agent.streaming_spdy_headers import SpdyError

log = logging.getLogger(__name__)

PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
STREAMS_MAX: Final = 128
"""Of one peer at a time: two for each connection."""
SLICE_BYTES: Final = 8 * 1024
"""Of a message that is read before others have their turn: a thousand frames may be in it, and a million bytes more behind."""


class _Pair:
    """The two streams of a connection, 0 as long as one is not there. A `Reply` on them."""

    def __init__(self, request: str, port: int, at: float, forwards: Forwards, ports: SpdyPorts) -> None:
        self.request = request
        self.port = port
        self.at = at
        self.data = 0
        self.error = 0
        self.inbox = Inbox(forwards.unread)
        self.task: asyncio.Task[None] | None = None
        self._ports = ports

    async def send(self, data: bytes) -> None:
        self._ports.used()
        await self._ports.send(FrameWriter.data(self.data, data))

    async def end(self, is_whole: bool) -> None:
        if is_whole:
            await self._ports.send(FrameWriter.data(self.data, b"", is_last=True))
        else:
            await self._ports.send(FrameWriter.reset(self.data, CANCEL))

    async def fail(self, sentence: str) -> None:
        await self._ports.send(FrameWriter.data(self.error, sentence.encode()))
        await self.end(True)

    async def over(self) -> None:
        """Peers wait for the end of the error stream."""
        self._ports.forget(self)
        await self._ports.send(FrameWriter.data(self.error, b"", is_last=True))


class SpdyPorts:
    """Does not close the forwards."""

    def __init__(self, line: Line, forwards: Forwards, pace: Pace) -> None:
        self._line = line
        self._forwards = forwards
        self._pace = pace
        self._reader = FrameReader()
        self._writer = FrameWriter()
        self._halves: dict[str, _Pair] = {}
        self._streams: dict[int, _Pair] = {}
        self._last = 0
        self._is_leaving = False

    async def run(self) -> None:
        """Until the peer has gone: Gone, ConnectionError, or in order."""
        await until_first(self._line.keep(), self._listen())

    def used(self) -> None:
        self._line.used()

    async def send(self, frame: bytes) -> None:
        await self._line.send(frame)

    def forget(self, pair: _Pair) -> None:
        for stream in (pair.data, pair.error):
            self._streams.pop(stream, None)
        if self._halves.get(pair.request) is pair:
            del self._halves[pair.request]

    async def _listen(self) -> None:
        try:
            while (message := await self._line.receive()) is not None:
                for start in range(0, len(message), SLICE_BYTES):
                    for event in self._reader.feed(message[start : start + SLICE_BYTES]):
                        await self._act(event)
                    await self._forwards.unread.room()
                    await asyncio.sleep(0)
        except SpdyError as error:
            log.warning("a peer that forwards ports is cut off: %s", error)
            await self.send(FrameWriter.leave(self._last, PROTOCOL_ERROR))
            await self._line.flush()

    async def _act(self, event: Event) -> None:
        match event:
            case Opened():
                self.used()
                await self._open(event)
            case Data(stream, data, is_last):
                pair = self._streams.get(stream)
                if pair is not None and stream == pair.data:
                    self.used()
                    pair.inbox.put(data)
                    if is_last:
                        pair.inbox.end()
            case Reset(stream):
                if (pair := self._streams.get(stream)) is not None:
                    await self._cut(pair, stream)
            case Pinged(number):
                if number % 2:  # others are answers to ours, and there are none
                    await self.send(FrameWriter.ping(number))
            case Leaving():
                self._is_leaving = True

    async def _open(self, opened: Opened) -> None:
        stream = opened.stream
        if stream % 2 == 0 or stream <= self._last:
            raise SpdyError(f"stream {stream} after {self._last}: a client's are odd, and ever greater")
        self._last = stream
        await self._forget_old()
        if self._is_leaving or len(self._streams) >= STREAMS_MAX:
            await self.send(FrameWriter.reset(stream, REFUSED_STREAM))
            return
        pair = self._pair_of(opened)
        if pair is None:
            await self.send(FrameWriter.reset(stream, PROTOCOL_ERROR))
            return
        self._streams[stream] = pair
        await self.send(self._writer.reply(stream))
        if opened.is_last and stream == pair.data:
            pair.inbox.end()
        if pair.data and pair.error:
            del self._halves[pair.request]
            pair.task = self._forwards.begin(pair.port, pair.inbox, pair)

    def _pair_of(self, opened: Opened) -> _Pair | None:
        """The pair with this stream in its place; None: the headers don't say where that is, or it is taken."""
        kind = opened.headers.get("streamtype", "")
        if kind not in ("data", "error") or opened.is_one_way:
            return None
        try:
            port = read_port("port", opened.headers.get("port", ""))
        except BadQuery:
            return None
        # Clients that name no request open the error stream first, and the other at once.
        first = opened.stream if kind == "error" else opened.stream - 2
        request = opened.headers.get("requestid", "") or f"stream {first}"
        pair = self._halves.get(request)
        if pair is None:
            now = asyncio.get_running_loop().time()
            pair = self._halves[request] = _Pair(request, port, now, self._forwards, self)
        elif getattr(pair, kind) or pair.port != port:
            return None
        setattr(pair, kind, opened.stream)
        return pair

    async def _forget_old(self) -> None:
        """Pairs whose other half has never come."""
        before = asyncio.get_running_loop().time() - self._pace.pair_s
        for pair in [pair for pair in self._halves.values() if pair.at < before]:
            self._drop(pair)
            await self.send(FrameWriter.reset(pair.data or pair.error, CANCEL))

    def _drop(self, pair: _Pair) -> None:
        if pair.task is not None:
            pair.task.cancel()
        pair.inbox.discard()
        self.forget(pair)

    async def _cut(self, pair: _Pair, stream: int) -> None:
        """The peer wants no more of it: `stream` is the one that it has ended, which hears nothing more."""
        self._drop(pair)
        if pair.error and stream == pair.data:
            await self.send(FrameWriter.data(pair.error, b"", is_last=True))
        elif pair.data and stream == pair.error:
            await self.send(FrameWriter.reset(pair.data, CANCEL))
