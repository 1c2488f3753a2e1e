"""One command and the one who talks to it, until either goes.

Concurrency: `run` is called once, on the task of the request. One task reads the connection, one writes to the command, one
reads each of its outputs, and one writes the connection; each waits for the next, so that nothing grows where somebody is
slow.

Invariant: all that the command printed itself is sent before how it ended; what it has left behind can't hold the stream
open.
"""

from __future__ import annotations

import asyncio
import logging

from muster.agent.contracts import AgentError, ExecSession
from muster.agent.serving_query import ExecAsk
from muster.agent.streaming_channels import CLOSE, ERROR, RESIZE, STDERR, STDIN, STDOUT, Codec, read_size
from muster.agent.streaming_line import Line, Pace, until_first
from muster.agent.streaming_pipes import Source, write_all

log = logging.getLogger(__name__)


class ExecStream:
    """Does not close the session."""

    def __init__(self, line: Line, session: ExecSession, ask: ExecAsk, codec: Codec, pace: Pace) -> None:
        self._line = line
        self._session = session
        self._ask = ask
        self._codec = codec
        self._pace = pace
        self._typed: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        """For its stdin; None: that ends."""

    async def run(self) -> None:
        """Until the command has ended and that was told, or the peer has gone: Gone, ConnectionError, or in order."""
        await until_first(self._line.keep(), self._listen(), self._feed(), self._tell())

    async def _listen(self) -> None:
        while (message := await self._line.receive()) is not None:
            if (part := self._codec.unpack(message)) is None:
                continue
            self._line.used()
            channel, data = part
            if channel == STDIN and self._ask.want.has_stdin:
                if data:
                    await self._typed.put(data)
            elif channel == RESIZE and self._ask.want.has_tty:
                if (size := read_size(data)) is not None:
                    self._session.resize(*size)
            elif channel == CLOSE and self._codec.has_close and data == bytes((STDIN,)) and self._ask.want.has_stdin:
                await self._typed.put(None)

    async def _feed(self) -> None:
        is_read = True
        while True:
            data = await self._typed.get()
            if not is_read:
                continue  # as a pipe whose reader has gone: the peer may go on, and nobody hears it
            if data is None:
                self._session.close_stdin()
                is_read = False
            else:
                is_read = await write_all(self._session.stdin, data)

    async def _tell(self) -> None:
        wanted = [channel for channel, is_wanted in self._outputs() if is_wanted]
        # Says that it runs: kubelets do so too.
        await self._line.send(self._codec.pack(wanted[0] if wanted else ERROR, b""))
        sources = [(STDOUT, Source(self._session.stdout))]
        if self._session.stderr >= 0:
            sources.append((STDERR, Source(self._session.stderr)))
        async with asyncio.TaskGroup() as pumps:
            for channel, source in sources:
                pumps.create_task(self._pump(source, channel, channel in wanted))
            last = await self._ended()
            for _, source in sources:
                source.end_in(self._pace.left_over_s)
        if last is not None:
            await self._line.send(last)
        await self._line.flush()

    def _outputs(self) -> tuple[tuple[int, bool], ...]:
        return (STDOUT, self._ask.has_stdout), (STDERR, self._ask.has_stderr)

    async def _pump(self, source: Source, channel: int, is_wanted: bool) -> None:
        while data := await source.read():
            if is_wanted:
                self._line.used()
                await self._line.send(self._codec.pack(channel, data))
            await asyncio.sleep(0)  # others have their turn, however fast it prints

    async def _ended(self) -> bytes | None:
        try:
            return self._codec.pack_end(await self._session.wait())
        except (AgentError, OSError) as error:
            log.warning("how the command %s ended is not known: %s", self._ask.want.argv[0], error)
            return self._codec.pack_failure(f"it is not known how the command ended: {error}")
