"""How much is served at once: requests in flight, by reading and writing; answers not yet read; watches, in all and per user.

Concurrency: plain counters on the event loop. A slot is given back exactly once, by leaving the `with` block.

What is beyond a bound is answered 429 with Retry-After at once; nothing waits in a queue inside the server. A reserve on top
of both bounds is open to `system:masters` and to health checks only, so an overloaded server can still be looked at.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from muster.objects.status import TooManyRequests
from muster.server.config import ServerLimits
from muster.server.metrics import Metrics


class Flow:
    def __init__(self, limits: ServerLimits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._in_flight = {"readOnly": 0, "mutating": 0}
        for kind in self._in_flight:
            metrics.in_flight.labels(kind).set_function(functools.partial(self._in_flight.__getitem__, kind))
        metrics.watches.set_function(lambda: self._watches)
        self._watches = 0
        self._sending_bytes = 0
        self._watches_by_user: dict[str, int] = {}

    @property
    def in_flight(self) -> int:
        return sum(self._in_flight.values())

    @property
    def watches(self) -> int:
        return self._watches

    @contextlib.contextmanager
    def request(self, *, is_write: bool, is_privileged: bool) -> Iterator[None]:
        """A slot for one request. Raises TooManyRequests."""
        kind = "mutating" if is_write else "readOnly"
        bound = self._limits.in_flight_write_max if is_write else self._limits.in_flight_read_max
        if is_privileged:
            bound += self._limits.in_flight_reserved
        if self._in_flight[kind] >= bound:
            self._metrics.refused.labels(f"in_flight_{'write' if is_write else 'read'}_max").inc()
            raise TooManyRequests("too many requests are being served, please try again later", retry_after_s=1)
        self._in_flight[kind] += 1
        try:
            yield
        finally:
            self._in_flight[kind] -= 1

    @contextlib.contextmanager
    def sending(self, size_bytes: int, *, may_refuse: bool) -> Iterator[None]:
        """Account for one large body until it has been taken. Raises TooManyRequests, but never when nothing else is under way.

        `may_refuse` is False for the answer to a write: it has happened, and its client must hear so.
        """
        if may_refuse and self._sending_bytes and self._sending_bytes + size_bytes > self._limits.sending_bytes_max:
            self._metrics.refused.labels("sending_bytes_max").inc()
            raise TooManyRequests(
                f"answers of {self._sending_bytes} bytes wait for their clients to read them; try later, or list with a limit",
                retry_after_s=1,
            )
        self._sending_bytes += size_bytes
        try:
            yield
        finally:
            self._sending_bytes -= size_bytes

    @contextlib.contextmanager
    def watch(self, user: str) -> Iterator[None]:
        """A slot for one watch. Raises TooManyRequests."""
        mine = self._watches_by_user.get(user, 0)
        if self._watches >= self._limits.watches_max:
            self._metrics.refused.labels("watches_max").inc()
            raise TooManyRequests(f"{self._watches} watches are open, the most this server serves; try later", retry_after_s=5)
        if mine >= self._limits.watches_per_user_max:
            self._metrics.refused.labels("watches_per_user_max").inc()
            raise TooManyRequests(f'user "{user}" has {mine} watches open, the most one user may have', retry_after_s=5)
        self._watches += 1
        self._watches_by_user[user] = mine + 1
        try:
            yield
        finally:
            self._watches -= 1
            left = self._watches_by_user[user] - 1
            if left:
                self._watches_by_user[user] = left
            else:
                del self._watches_by_user[user]
