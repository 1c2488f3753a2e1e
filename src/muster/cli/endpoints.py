"""Small HTTP listeners beside the API: webhooks over TLS, health and metrics in the clear.

uvicorn's protocol serves the connections, with the server's bounds on headers, time and number; its own server loop, which
takes over signals and exits when a port is taken, is not used. On one event loop.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Callable
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from uvicorn.config import Config
from uvicorn.server import ServerState

from muster.cli.errors import CliError
from muster.server.config import ServerLimits
from muster.server.metrics import Metrics
from muster.server.protocol import BoundedProtocol

CONNECTIONS_MAX = 256
STOP_POLL_S = 0.02
Check = Callable[[], str]
"""Empty when all is well, otherwise what is wrong."""


class Endpoint:
    """One listening port with one ASGI application behind it."""

    def __init__(self, name: str, app: Any, host: str, port: int, context: ssl.SSLContext | None = None) -> None:
        self.name = name
        self.host = host
        self.port = port
        self._app = app
        self._context = context
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. CliError when the address cannot be had."""
        limits = ServerLimits(connections_max=CONNECTIONS_MAX)
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
        )
        settings.load()
        protocol = functools.partial(BoundedProtocol, settings, self._state, {}, limits=limits, metrics=Metrics(limits))
        loop = asyncio.get_running_loop()
        sock = self._bind()
        self.port = sock.getsockname()[1]
        handshake_s = limits.tls_handshake_timeout_s if self._context else None
        self._server = await loop.create_server(protocol, sock=sock, ssl=self._context, ssl_handshake_timeout=handshake_s)

    def _bind(self) -> socket.socket:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self.host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(address)
                sock.listen()
                sock.setblocking(False)
            except OSError:
                sock.close()
                raise
        except OSError as e:
            raise CliError(
                f"--{self.name}-listen {self.host}:{self.port}: {e.strerror}; choose another (port 0 takes any free one)"
            ) from e
        return sock

    async def stop(self, grace_s: float = 3.0) -> None:
        """No new connections; what is being answered may finish within `grace_s`."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while (self._state.tasks or self._state.connections) and loop.time() < deadline:  # noqa: ASYNC110 - sets, no event
            await asyncio.sleep(STOP_POLL_S)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()


class HealthApp:
    """/healthz and /livez: the process answers. /readyz: every check passes. /metrics: for Prometheus."""

    def __init__(self, checks: dict[str, Check]) -> None:
        self._checks = checks

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        code, kind, body = await self._answer(scope["method"], scope["path"])
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        plain = "text/plain; charset=utf-8"
        if method not in ("GET", "HEAD"):
            return 405, plain, b"GET only\n"
        if path in ("/healthz", "/livez"):
            return 200, plain, b"ok"
        if path == "/readyz":
            problems = {name: check() for name, check in self._checks.items()}
            lines = [f"[-]{name} failed: {text}" if text else f"[+]{name} ok" for name, text in problems.items()]
            failed = any(problems.values())
            return (503, plain, "\n".join([*lines, "readyz check failed", ""]).encode()) if failed else (200, plain, b"ok")
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, await asyncio.to_thread(generate_latest, REGISTRY)
        return 404, plain, b"there are /healthz, /livez, /readyz and /metrics\n"
