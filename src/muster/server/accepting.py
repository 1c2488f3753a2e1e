"""New connections: accepted at once, let through their TLS handshake in turn, fairly by address.

A handshake is a few times the work of a small request, and whoever is not known yet can ask for any number of them. So a
connection waits here until its first bytes have arrived, which costs nothing, and then for a turn of its address; connections
that are established are served meanwhile. At most `handshakes_max` are between, of one address `handshakes_per_address_max`.

Concurrency: on the event loop; one task for each connection until it is through its handshake. Invariant: what counts for an
address is given back exactly once, whether the handshake fails or the connection ends later.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from muster.objects.status import ApiError
from muster.server.config import ServerLimits
from muster.server.logs import logger
from muster.server.metrics import Metrics
from muster.server.protocol import BoundedProtocol

log = logger(__name__)
_ACCEPTED_AT_ONCE: Final = 32
_REST_S: Final = 0.1
"""After the process ran out of descriptors."""
_TLS_SHUTDOWN_S: Final = 2.0
_SAID_EVERY_S: Final = 60.0
"""That a limit turns connections away."""

Turn = Callable[[str], Awaitable[None]]
"""Waits until an address may have a handshake. Raises ApiError when too many wait."""


class Acceptor:
    def __init__(
        self,
        sock: socket.socket,
        make_protocol: Callable[[], BoundedProtocol],
        *,
        context: ssl.SSLContext | None,
        limits: ServerLimits,
        metrics: Metrics,
        turn: Turn | None,
    ) -> None:
        """`sock` listens and does not block; it belongs to the acceptor from now on."""
        self._sock = sock
        self._make_protocol = make_protocol
        self._context = context
        self._limits = limits
        self._metrics = metrics
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self._is_listening = False
        self._rest: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._shaking: dict[str, int] = {}
        self._connected: dict[str, int] = {}
        """By address: those before and in their handshake, and all."""
        self._silent_until: dict[str, float] = {}
        """By limit."""
        metrics.handshakes.set_function(lambda: len(self._tasks))

    def start(self) -> None:
        self._listen()

    def close(self) -> None:
        """No new connections; those that are established stay."""
        if not self._is_open:
            return
        self._is_open = False
        self._pause()
        if self._rest is not None:
            self._rest.cancel()
        self._sock.close()
        for task in self._tasks:
            task.cancel()

    # --- accepting

    def _listen(self) -> None:
        self._rest = None
        if self._is_open and not self._is_listening and len(self._tasks) < self._limits.handshakes_max:
            self._is_listening = True
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _pause(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if len(self._tasks) >= self._limits.handshakes_max:
                self._pause()  # the kernel keeps the others until some are through
                return
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.error("no new connections for a moment", error=error.strerror)
                self._pause()
                self._rest = self._loop.call_later(_REST_S, self._listen)
                return
            sock.setblocking(False)
            self._take(sock, str(peer[0]))

    def _take(self, sock: socket.socket, address: str) -> None:
        limit = ""
        if self._shaking.get(address, 0) >= self._limits.handshakes_per_address_max:
            limit = "handshakes_per_address_max"
        elif self._connected.get(address, 0) >= self._limits.connections_per_address_max:
            limit = "connections_per_address_max"
        if limit:
            self._metrics.refused.labels(limit).inc()
            sock.close()  # an answer would cost the handshake that it is to save
            self._say_refused(limit, address)
            return
        newcomer = _Newcomer(sock, address, _Lease(self._shaking, address), _Lease(self._connected, address))
        task = self._loop.create_task(self._connect(newcomer))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._through, newcomer))

    def _say_refused(self, limit: str, address: str) -> None:
        """Now and then: the client sees a connection that ends, and tries again for seconds without a word."""
        now = self._loop.time()
        if now >= self._silent_until.get(limit, now):
            self._silent_until[limit] = now + _SAID_EVERY_S
            most = getattr(self._limits, limit)
            log.warning("connections of an address are closed unanswered, it has too many", address=address, **{limit: most})

    def _through(self, newcomer: _Newcomer, task: asyncio.Task[None]) -> None:
        """Called for every task, even for one that was cancelled before it began."""
        self._tasks.discard(task)
        newcomer.shaking.end()
        if task.cancelled() or task.exception() is not None:
            newcomer.connected.end()
        if not newcomer.is_handed_over:
            newcomer.sock.close()
        self._listen()

    # --- one connection

    async def _connect(self, newcomer: _Newcomer) -> None:
        try:
            if self._context is not None:
                async with asyncio.timeout(self._limits.tls_handshake_timeout_s):
                    await self._readable(newcomer.sock)
                if self._turn is not None:
                    await self._turn(newcomer.address)
            protocol = self._make_protocol()
            protocol.on_lost = newcomer.connected.end
            newcomer.is_handed_over = True
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                newcomer.sock,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.tls_handshake_timeout_s if self._context else None,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_S if self._context else None,
            )
        except (OSError, TimeoutError, ApiError):  # no TLS, a stranger's certificate, nothing said, gone, too many
            newcomer.connected.end()

    async def _readable(self, sock: socket.socket) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        number = sock.fileno()
        self._loop.add_reader(number, _set, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(number)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class _Newcomer:
    """A connection until it is through its handshake."""

    __slots__ = ("address", "connected", "is_handed_over", "shaking", "sock")

    def __init__(self, sock: socket.socket, address: str, shaking: _Lease, connected: _Lease) -> None:
        self.sock = sock
        self.address = address
        self.shaking = shaking
        self.connected = connected
        self.is_handed_over = False
        """Whether the loop's transport owns the socket."""


class _Lease:
    """One connection in the count of its address."""

    __slots__ = ("_address", "_counts", "_is_over")

    def __init__(self, counts: dict[str, int], address: str) -> None:
        self._counts = counts
        self._address = address
        self._is_over = False
        counts[address] = counts.get(address, 0) + 1

    def end(self) -> None:
        if not self._is_over:
            self._is_over = True
            left = self._counts[self._address] - 1
            if left:
                self._counts[self._address] = left
            else:
                del self._counts[self._address]
