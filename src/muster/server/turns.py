"""Questions that take the scheduler's loop for a while: one at a time, with a rest after each as long as it took.

So whoever asks, and however many, the scheduler has at least half of the loop. A question of several parts takes a turn for
each, and what changed in between is seen by the next.

Concurrency: on the event loop. Bounded: WAITING_MAX questions wait in all, WAITING_PER_USER_MAX of one user; more are answered
429.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from muster.objects.status import TooManyRequests

WAITING_MAX: Final = 64
WAITING_PER_USER_MAX: Final = 8
REST_S_MAX: Final = 1.0

T = TypeVar("T")


class Turns:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting: dict[str, int] = {}
        """By user: how many wait or are being answered."""

    async def take(self, user: str, answer: Callable[[], T]) -> T:
        """What `answer` gives, when it is its turn. TooManyRequests when too many wait already."""
        mine, count = self._waiting.get(user, 0), sum(self._waiting.values())
        if mine >= WAITING_PER_USER_MAX or count >= WAITING_MAX:
            raise TooManyRequests(
                f"{mine} questions of {user!r} about the line wait for their turn already, and {count} in all "
                f"(at most {WAITING_PER_USER_MAX} and {WAITING_MAX}); try again",
                retry_after_s=1,
            )
        self._waiting[user] = mine + 1
        try:
            await self._lock.acquire()
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            try:
                return answer()
            finally:
                loop.call_later(min(loop.time() - began_s, REST_S_MAX), self._lock.release)
        finally:
            self._waiting[user] -= 1
            if not self._waiting[user]:
                del self._waiting[user]
