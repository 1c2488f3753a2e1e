"""A port: TLS, connections in, requests to the application, and a stop that lets what was begun finish.

uvicorn's protocol serves the connections; its own server loop is not used, because it takes over signals and ends the process
when a port is taken. Here a port that is taken is an exception, and stopping has an order: no new connections, idle ones
closed, requests in flight finished, the rest cut.

Concurrency: everything on one event loop.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
import ssl
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from muster.objects.time import Clock
from muster.server.accepting import Acceptor, Turn
from muster.server.config import ServerLimits
from muster.server.logs import logger
from muster.server.metrics import Metrics
from muster.server.protocol import BoundedProtocol

log = logger(__name__)
_BACKLOG = 2048
_TICK_S = 1.0
_POLL_S = 0.02


class ListenError(Exception):
    """The address can't be listened on; the message says why and what to do."""


class Listener:
    """One listening port with one ASGI application behind it; in the clear when there is no `context`."""

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        *,
        limits: ServerLimits,
        metrics: Metrics,
        clock: Clock,
        context: ssl.SSLContext | None = None,
        end_streams: Callable[[], None] = lambda: None,
        turn: Turn | None = None,
    ) -> None:
        """`end_streams` tells the application, when the stop begins, to finish the answers that have no end of their own.

        `turn` is awaited before each TLS handshake, with the address that asks for it.
        """
        self._app = app
        self.host = host
        self.port = port
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._context = context
        self._end_streams = end_streams
        self._state = ServerState()
        self._turn = turn
        self._server: Acceptor | None = None
        self._clock_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; `port` is then the one that was given, or the one that 0 became. Raises ListenError."""
        settings = Config(
            self._app,
            http=BoundedProtocol,
            ws="none",
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(self._limits.keep_alive_timeout_s),
        )
        settings.load()
        protocol = functools.partial(BoundedProtocol, settings, self._state, {}, limits=self._limits, metrics=self._metrics)
        sock = _bind(self.host, self.port)
        self.port = sock.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = Acceptor(
            sock, protocol, context=self._context, limits=self._limits, metrics=self._metrics, turn=self._turn
        )
        self._server.start()
        self._clock_task = loop.create_task(_keep_date(self._state, self._clock))

    async def stop(self, grace_s: float) -> None:
        """Finish what is being served, within `grace_s`; then cut what is left."""
        if self._server is None:
            return
        self._server.close()
        self._end_streams()
        for connection in list(self._state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        # A connection may stay open for as long as its client likes; what counts is that its answer has gone out.
        while (self._state.tasks or self._unsent()) and loop.time() < deadline:  # noqa: ASYNC110 - sets, no event
            await asyncio.sleep(_POLL_S)
        if self._state.tasks:
            log.warning("requests cut short at stop", requests=len(self._state.tasks))
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=1.0)
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._clock_task is not None:
            self._clock_task.cancel()
            await asyncio.gather(self._clock_task, return_exceptions=True)
        self._server = None

    def _unsent(self) -> bool:
        return any(connection.transport.get_write_buffer_size() for connection in self._state.connections)


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket's address is taken before anything else starts, so that a clash is seen at once."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}; give an address of this machine") from error
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        hint = {
            errno.EADDRINUSE: "another program listens there; stop it, or choose another port (0 takes any free one)",
            errno.EACCES: "ports below 1024 need privileges; choose a higher one",
            errno.EADDRNOTAVAIL: "this machine does not have that address",
        }.get(error.errno or 0, "choose another address")
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}; {hint}") from error
    return sock


async def _keep_date(state: ServerState, clock: Clock) -> None:
    """The Date header, once a second for everyone."""
    while True:
        state.default_headers = [(b"date", formatdate(clock(), usegmt=True).encode())]
        await asyncio.sleep(_TICK_S)
