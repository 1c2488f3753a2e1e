"""Reading the body of a request, before the request takes a seat: whoever sends slowly keeps only its own connection.

Bounds: the size of one body, the time it may take, how many of one user are on their way at once, and the bytes that are held
of one user and of all. What was read counts until the request is over.

Concurrency: on the event loop, in the task of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from muster.objects.status import BadRequest, RequestEntityTooLarge, Timeout, TooManyRequests
from muster.server.budgets import ByteBudget, Held
from muster.server.config import ServerLimits
from muster.server.exchange import Receive
from muster.server.metrics import Metrics


class Bodies:
    def __init__(self, limits: ServerLimits, metrics: Metrics, budget: ByteBudget) -> None:
        self._limits = limits
        self._metrics = metrics
        self._budget = budget
        self._coming: dict[str, int] = {}
        """By user: bodies of which something is still to come."""

    def hold(self, user: str) -> Held:
        return Held(self._budget, user)

    async def read(self, receive: Receive, headers: Mapping[str, str], user: str, held: Held) -> bytes:
        """The whole body, which counts in `held` from then on."""
        declared = headers.get("content-length", "")
        if declared.isdigit():
            if int(declared) > self._limits.body_bytes_max:
                raise self._too_large()
        elif "transfer-encoding" not in headers:
            return b""  # that is how HTTP/1.1 says that there is none
        mine = self._coming.get(user, 0)
        if mine >= self._limits.bodies_per_user_max:
            self._metrics.refused.labels("bodies_per_user_max").inc()
            raise TooManyRequests(
                f'{mine} bodies of requests of "{user}" are on their way, the most one user may send at once', retry_after_s=1
            )
        self._coming[user] = mine + 1
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                return await self._all(receive, user, held)
        except TimeoutError:
            raise Timeout(f"the body did not arrive within {self._limits.body_timeout_s:g} s") from None
        finally:
            left = self._coming[user] - 1
            if left:
                self._coming[user] = left
            else:
                del self._coming[user]

    async def _all(self, receive: Receive, user: str, held: Held) -> bytes:
        chunks = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("the connection ended before the whole body had arrived")
            chunk: bytes = message.get("body", b"")
            if len(chunks) + len(chunk) > self._limits.body_bytes_max:
                raise self._too_large()
            self._take(len(chunk), user, held)
            if not message.get("more_body", False):
                return bytes(chunks + chunk) if chunks else chunk
            chunks += chunk

    def _take(self, size: int, user: str, held: Held) -> None:
        excess = self._budget.excess(user, size)
        if excess:
            limit = "body_held_bytes_max" if excess == "total" else "body_held_per_user_bytes_max"
            self._metrics.refused.labels(limit).inc()
            whose = "" if excess == "total" else f' of "{user}"'
            size_held = self._budget.total if excess == "total" else self._budget.of(user)
            raise TooManyRequests(f"bodies{whose} of {size_held} bytes are being worked on; try later", retry_after_s=1)
        held.grow(size)

    def _too_large(self) -> RequestEntityTooLarge:
        most = self._limits.body_bytes_max
        return RequestEntityTooLarge(f"the request body is larger than {most} bytes; split it or make it smaller")
