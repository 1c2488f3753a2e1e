"""`GET /muster/v1/backup`: the whole store as one archive, sent while it is made.

Who may: RBAC decides, by `get` on the non-resource URL. Only cluster-admin has it by default: every Secret is in the archive.
The directory's own keys never are; they do not leave the machine over the network.

The snapshot is taken in one turn of the loop and costs no copy (`snapshot.py`); the pieces are encoded and compressed on a
worker thread, one ahead of the client at most, and nothing is written to this server's disk. One backup at a time: meanwhile
the objects that it holds can't be freed, which at worst doubles what the store takes in memory. A client that does not read is
cut off, and what it has then has no manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, Final

from prometheus_client import Counter, Gauge
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from muster.objects.status import TooManyRequests
from muster.objects.time import Clock
from muster.server.config import ServerLimits
from muster.server.logs import logger
from muster.server.metrics import Metrics
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.archive import write

PATH: Final = "/muster/v1/backup"
MEDIA: Final = "application/x-tar"
OBJECTS_HEADER: Final = "muster-backup-objects"
VERSION_HEADER: Final = "muster-backup-resource-version"

log = logger(__name__)

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class Backups:
    """See the module."""

    def __init__(self, store: EmbeddedStore, *, clock: Clock, limits: ServerLimits, metrics: Metrics) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._is_busy = False
        registry = metrics.registry
        self._taken = Counter("muster_backups", "Backups sent, by outcome", ["result"], registry=registry)
        for result in ("success", "failure"):  # there from the start, so that an alert can tell none from unknown
            self._taken.labels(result)
        self._last = Gauge(
            "muster_backup_last_success_timestamp_seconds",
            "When the last backup was sent whole; 0 when none was since the start",
            registry=registry,
        )

    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, self._backup, methods=["GET"])]

    async def _backup(self, request: Request) -> Response:
        if self._is_busy:
            raise TooManyRequests("a backup is being taken already, and there is one at a time; try again", retry_after_s=5)
        snapshot, now = self._store.snapshot(), self._clock()
        headers = {
            OBJECTS_HEADER: str(len(snapshot)),
            VERSION_HEADER: str(snapshot.resource_version),
            "cache-control": "no-store",
        }
        if request.method == "HEAD":
            return Response(headers=headers, media_type=MEDIA)
        self._is_busy = True
        return _Sending(self._send, write(snapshot, now), headers)

    async def _send(self, start: _Message, pieces: Iterator[bytes], scope: _Message, receive: _Receive, send: _Send) -> None:
        """The answer. When it can't be sent whole, the connection ends, and what the client has is no archive."""
        leaving = asyncio.get_running_loop().create_task(_gone(receive))
        is_whole = False
        try:
            await send(start)
            while piece := await asyncio.to_thread(next, pieces, b""):
                async with asyncio.timeout(self._limits.send_timeout_s):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                if leaving.done():
                    return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            is_whole = True
            self._last.set(self._clock())
        except TimeoutError:
            scope["muster.abort"]()
        finally:
            self._is_busy = False
            leaving.cancel()
            self._taken.labels("success" if is_whole else "failure").inc()
            if not is_whole:
                log.warning("a backup was not sent whole")


async def _gone(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Sending(Response):
    """A response that is sent by whoever made it."""

    media_type = MEDIA

    def __init__(
        self,
        body: Callable[[_Message, Iterator[bytes], _Message, _Receive, _Send], Awaitable[None]],
        pieces: Iterator[bytes],
        headers: dict[str, str],
    ) -> None:
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._body = body
        self._pieces = pieces

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await self._body(start, self._pieces, scope, receive, send)
