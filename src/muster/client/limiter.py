"""How many requests may be in flight: a bound that gives way when the server says it is too many.

The limit starts at its maximum. An answer "too many requests" cuts it, once for all requests that were sent before the cut;
every success lets it grow again by a little. So a busy server is asked as much as it can take, instead of refusing half of
what it gets.

Used on one event loop. Invariants: never more than `maximum` are in flight; who came first goes first; a cancelled waiter
neither takes nor loses a slot.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

FLOOR = 4.0
CUT = 0.7


class Limiter:
    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.limit = float(maximum)
        self.in_flight = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._sent = 0
        self._cut_at = 0

    @property
    def is_full(self) -> bool:
        """Whether `acquire` would wait."""
        return bool(self._waiters) or self.in_flight >= int(self.limit)

    async def acquire(self) -> int:
        """Wait for a slot. The number of this request in the order of sending, for `refused`."""
        if self.is_full:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self.release()  # the slot was given in the moment of the cancellation: pass it on
                else:
                    with contextlib.suppress(ValueError):  # passed over already
                        self._waiters.remove(waiter)
                raise
        else:
            self.in_flight += 1
        self._sent += 1
        return self._sent

    def release(self) -> None:
        self.in_flight -= 1
        self._wake()

    def succeeded(self) -> None:
        if self.limit < self.maximum:
            self.limit = min(float(self.maximum), self.limit + 1.0 / self.limit)
            self._wake()

    def refused(self, number: int) -> None:
        """The server would not take request `number` on top of the others."""
        if number > self._cut_at:
            self.limit = max(min(FLOOR, self.maximum), min(self.limit, float(self.in_flight)) * CUT)
            self._cut_at = self._sent

    def _wake(self) -> None:
        while self._waiters and self.in_flight < int(self.limit):
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.in_flight += 1
                waiter.set_result(None)
