"""`pods/log`, made ready when the first log is asked for: its HTTP client is a tenth of what the server has to load to start.

Concurrency: on the event loop; the modules are loaded in a thread meanwhile, so that nobody waits but those who want a log.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.server.exchange import Request, Response, Stream

if TYPE_CHECKING:
    from muster.server.kubelet_proxy import NodeLogs


class LateLogs:
    """A handler like `NodeLogs`, which `make` makes from the class."""

    def __init__(self, make: Callable[[type[NodeLogs]], NodeLogs]) -> None:
        self._make = make
        self._logs: NodeLogs | None = None

    async def __call__(self, request: Request) -> Response | Stream:
        if self._logs is None:
            module = await asyncio.to_thread(importlib.import_module, "muster.server.kubelet_proxy")
            self._logs = self._logs or self._make(module.NodeLogs)
        return await self._logs(request)

    async def close(self) -> None:
        if self._logs is not None:
            await self._logs.close()
