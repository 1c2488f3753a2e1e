"""The door of the agent's endpoint: how many connections are held, and how long strangers may keep one without asking anything.

Whoever can reach the port can open connections, long before it is known who they are; each costs a descriptor of the agent,
which its tasks need too. So connections are counted from the moment that they are accepted, before TLS, and one on which no
whole request has come within `REQUEST_S` is closed.

Concurrency: one task that accepts, and one for each connection, on the agent's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 768
PER_ADDRESS_MAX: Final = 512
"""More than logs, commands and forwards together: all who ask for these come by way of the API server."""
HANDSHAKE_S: Final = 10.0
REQUEST_S: Final = 10.0
_BACKLOG: Final = 128
_PAUSE_S: Final = 0.2
_HEAD_END: Final = b"\r\n\r\n"


class Door:
    """`open`, then `port` says where, then `close`. `make` gives the protocol of one connection."""

    def __init__(
        self, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None, *, request_s: float = REQUEST_S
    ) -> None:
        self._make = make
        self._tls = tls
        self._request_s = request_s
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_address: Counter[str] = Counter()
        self.refused = 0
        self.port = 0

    @property
    def connections(self) -> int:
        return len(self._tasks)

    async def open(self, host: str, port: int) -> None:
        """OSError when the address can't be had."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        self._socket = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        self._accepting = asyncio.create_task(self._accept(self._socket), name="log endpoint accepts")

    async def close(self) -> None:
        """No more connections; those that are open are the handlers' to end."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def drop(self) -> None:
        """Whatever is still open is cut."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("the log endpoint can't take a connection now: %s", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            peer = str(address[0]) if address else ""
            if len(self._tasks) >= CONNECTIONS_MAX or self._by_address[peer] >= PER_ADDRESS_MAX:
                self.refused += 1
                connection.close()
                continue
            self._by_address[peer] += 1
            task = asyncio.create_task(self._serve(connection), name=f"log endpoint serves {peer}")
            self._tasks.add(task)
            task.add_done_callback(lambda done, peer=peer: self._ended(done, peer))  # type: ignore[misc]

    def _ended(self, task: asyncio.Task[None], peer: str) -> None:
        self._tasks.discard(task)
        self._by_address[peer] -= 1
        if self._by_address[peer] <= 0:
            del self._by_address[peer]

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        guest = _Guest(self._make(), self._request_s, loop)
        patience = {"ssl_handshake_timeout": HANDSHAKE_S} if self._tls is not None else {}
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: guest, connection, ssl=self._tls, **patience)
        except (OSError, ssl.SSLError, TimeoutError):  # not TLS, the wrong certificate, or nothing at all
            connection.close()
            return
        try:
            await guest.gone
        finally:
            if not transport.is_closing():
                with contextlib.suppress(RuntimeError):
                    transport.abort()


class _Guest(asyncio.Protocol):
    """Hands everything on to the protocol that does the work, and watches whether a request comes at all."""

    def __init__(self, inner: asyncio.Protocol, request_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._request_s = request_s
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._end = b""
        self.gone: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports are of asyncio's class: uvloop's are not.
        self._timer = self._loop.call_later(self._request_s, cast("asyncio.Transport", transport).abort)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            # Empty lines before a request are none of it, and may come for ever.
            self._end = self._end + data if self._end else data.lstrip(b"\r\n")
            if _HEAD_END in self._end:
                self._timer.cancel()
                self._timer = None
            self._end = self._end[1 - len(_HEAD_END) :]
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.gone.done():
            self.gone.set_result(None)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
