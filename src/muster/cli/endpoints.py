"""Small HTTP listeners beside the API: webhooks over TLS, health and metrics in the clear.

They have the server's own bounds on headers, time and number of connections. On one event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from muster.cli.errors import CliError
from muster.objects.time import wall_clock
from muster.server.config import ServerLimits
from muster.server.listener import Listener, ListenError
from muster.server.metrics import Metrics

CONNECTIONS_MAX = 256
Check = Callable[[], str]
"""Empty when all is well, otherwise what is wrong."""


class Endpoint:
    """A listener that a `--NAME-listen` option asked for."""

    def __init__(self, name: str, app: Any, host: str, port: int, context: ssl.SSLContext | None = None) -> None:
        self.name = name
        limits = ServerLimits(connections_max=CONNECTIONS_MAX)
        self._listener = Listener(app, host, port, limits=limits, metrics=Metrics(limits), clock=wall_clock, context=context)

    @property
    def host(self) -> str:
        return self._listener.host

    @property
    def port(self) -> int:
        return self._listener.port

    async def start(self) -> None:
        """Listen. CliError when the address cannot be had."""
        try:
            await self._listener.start()
        except ListenError as e:
            raise CliError(f"--{self.name}-listen: {e}") from e

    async def stop(self, grace_s: float = 3.0) -> None:
        """No new connections; what is being answered may finish within `grace_s`."""
        await self._listener.stop(grace_s)


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
