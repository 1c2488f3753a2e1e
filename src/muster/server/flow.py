"""How much is served at once, and whose turn it is: requests, pieces of long answers and events of watches, fairly by user.

The loop is one thread, so whatever is let onto it delays everybody. Hence only TURN_COST_MAX is let on before the loop looks at
its sockets again; the rest waits in the `FairQueue`, not in the loop's list of tasks that are ready, and whoever asks next is
served before the second request of a flood that came earlier. When there is nobody else, a request takes its seat at once.

What waits is bounded for each user and each level, and so is how long; beyond, the answer is 429 with Retry-After. Turns of
what has begun (a list that is being sent, a watch) are never refused: they are as many as there are answers under way.

Concurrency: on the event loop. Every ticket is given back exactly once, whether its task ends, fails or is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from typing import Final

from muster.objects.status import TooManyRequests
from muster.server.budgets import ByteBudget, Held
from muster.server.config import ServerLimits
from muster.server.fair_queue import FairQueue, Kind, State, Ticket
from muster.server.metrics import Metrics
from muster.server.priority import (
    BODY_BYTES_PER_COST,
    EXEMPT,
    LEVELS,
    READ_COST,
    TURN_COST_MAX,
    WORKERS,
    WRITE_COST,
    Whose,
)

RETRY_AFTER_S: Final = 1
_SERVED: Final = (Kind.READ, Kind.WRITE)


class Flow:
    def __init__(self, limits: ServerLimits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._queue = queue = FairQueue(
            LEVELS,
            seats=(limits.in_flight_read_max, limits.in_flight_write_max),
            reserved=limits.in_flight_reserved,
            per_flow_max=limits.in_flight_per_user_max,
        )
        self._used = 0.0
        """What was let onto the loop since it last looked at its sockets."""
        self._is_scheduled = False
        self._by_age: dict[Ticket, float] = {}
        """Requests that wait and may be refused, the oldest first, with the instant at which they are."""
        self._timer: asyncio.TimerHandle | None = None
        self._watches = 0
        self._watches_by_user: dict[str, int] = {}
        self.bodies = ByteBudget(limits.body_held_bytes_max, limits.body_held_per_user_bytes_max)
        self.answers = ByteBudget(limits.sending_bytes_max, limits.sending_per_user_bytes_max)
        self.unread = ByteBudget(limits.watch_unread_bytes_max, limits.watch_unread_per_user_bytes_max)
        for kind, name in ((Kind.READ, "readOnly"), (Kind.WRITE, "mutating")):
            metrics.in_flight.labels(name).set_function(functools.partial(queue.held, kind))
        for level in LEVELS:
            metrics.queued.labels(level.name).set_function(functools.partial(queue.waiting_in, level.name))
            metrics.executing.labels(level.name).set_function(functools.partial(self._executing, level.name))
        for what, budget in (("bodies", self.bodies), ("answers", self.answers), ("watches", self.unread)):
            metrics.held_bytes.labels(what).set_function(functools.partial(getattr, budget, "total"))
        metrics.watches.set_function(lambda: self._watches)

    @property
    def in_flight(self) -> int:
        return sum(self._queue.held(kind) for kind in _SERVED)

    @property
    def waiting(self) -> int:
        return self._queue.waiting_len

    @property
    def watches(self) -> int:
        return self._watches

    def _executing(self, level: str) -> int:
        return sum(self._queue.held(kind, level) for kind in _SERVED)

    # --- requests

    async def start(self, whose: Whose, *, is_write: bool, body_bytes: int = 0) -> Ticket:
        """A seat for one request, as soon as it is its turn. Raises TooManyRequests. Whoever gets it gives it back."""
        kind, cost = (Kind.WRITE, WRITE_COST) if is_write else (Kind.READ, READ_COST)
        cost += body_bytes / BODY_BYTES_PER_COST
        return self._take(whose, kind, cost) or await self._wait(whose, kind, cost)

    def give_back(self, ticket: Ticket) -> None:
        """The seat is free again. More than once does no harm."""
        if ticket.state is not State.DONE:
            self._queue.give_back(ticket)
            if self._queue.waiting_len:
                self._schedule()

    async def begin(self, whose: Whose, cost: float) -> None:
        """A turn for something that takes no seat and may still be refused. Raises TooManyRequests."""
        if self._take(whose, Kind.TURN, cost) is None:
            await self._wait(whose, Kind.TURN, cost)

    async def turn(self, whose: Whose, cost: float) -> None:
        """The next turn of what has begun; never refused. To go first is for what is short: here, nobody does."""
        if whose.level == EXEMPT:
            whose = Whose(WORKERS, whose.flow)
        if self._take(whose, Kind.TURN, cost) is None:
            await self._queued(self._queue.ask(whose.level, whose.flow, Kind.TURN, cost))

    def _take(self, whose: Whose, kind: Kind, cost: float) -> Ticket | None:
        if self._used and self._used + cost > TURN_COST_MAX and whose.level != EXEMPT:
            return None
        ticket = self._queue.take(whose.level, whose.flow, kind, cost)
        if ticket is not None:
            self._used += cost
            if self._used * 2 >= TURN_COST_MAX:  # a round for every small read would be felt by a client that is alone
                self._schedule()
        return ticket

    async def _wait(self, whose: Whose, kind: Kind, cost: float) -> Ticket:
        limits = self._limits
        mine, all_of_level = self._queue.waiting_of(*whose), self._queue.waiting_in(whose.level)
        if mine >= limits.queue_per_user_len_max:
            raise self._refused(
                whose.level,
                "queue-full",
                "queue_per_user_len_max",
                f'{mine} requests of "{whose.flow}" wait to be served, the most one user may have waiting; send fewer at once',
            )
        if all_of_level >= limits.queue_len_max:
            text = (
                f"{all_of_level} requests of priority level {whose.level} wait to be served, the most there may be; try later"
            )
            raise self._refused(whose.level, "queue-full", "queue_len_max", text)
        loop = asyncio.get_running_loop()
        now = loop.time()
        ticket = self._queue.ask(whose.level, whose.flow, kind, cost)
        self._by_age[ticket] = now + limits.queue_wait_max_s
        if self._timer is None:
            self._timer = loop.call_at(now + limits.queue_wait_max_s, self._refuse_old)
        try:
            await self._queued(ticket)
        except asyncio.CancelledError:
            self._metrics.rejected.labels(whose.level, "cancelled").inc()
            raise
        finally:
            self._by_age.pop(ticket, None)
            self._metrics.waited.labels(whose.level).observe(loop.time() - now)
        return ticket

    async def _queued(self, ticket: Ticket) -> None:
        ticket.data = asyncio.get_running_loop().create_future()
        self._schedule()
        try:
            await ticket.data
        except BaseException:
            self.give_back(ticket)  # whether it still waited, or was served while its task was being cancelled
            raise

    def _refuse_old(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for ticket, until in list(self._by_age.items()):
            if until > now:
                self._timer = loop.call_at(until, self._refuse_old)
                break
            del self._by_age[ticket]
            if ticket.data is not None and not ticket.data.done():
                wait_s = self._limits.queue_wait_max_s
                level = ticket.flow.level.config.name
                text = f"the request waited for {wait_s:g} s behind others of its priority level ({level}); try later"
                ticket.data.set_exception(self._refused(level, "time-out", "queue_wait_max_s", text))

    def _refused(self, level: str, reason: str, limit: str, text: str) -> TooManyRequests:
        self._metrics.refused.labels(limit).inc()
        self._metrics.rejected.labels(level, reason).inc()
        return TooManyRequests(text, retry_after_s=RETRY_AFTER_S)

    # --- the loop's turns

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Once for each round of the loop in which there is something to do."""
        self._is_scheduled = False
        self._used = 0.0
        queue = self._queue
        while queue.waiting_len and self._used < TURN_COST_MAX:
            ticket = queue.next()
            if ticket is None:
                break  # all who wait want a seat; the next one that is given back comes here
            if ticket.data.done():  # refused or cancelled, and its task has not run yet
                queue.give_back(ticket)
                continue
            self._used += ticket.cost
            ticket.data.set_result(None)
        if self._used:
            self._schedule()

    # --- bytes and watches

    @contextlib.contextmanager
    def sending(self, user: str, size_bytes: int, *, may_refuse: bool) -> Iterator[None]:
        """Account for one large body until it has been taken. Raises TooManyRequests, but never when nothing else is under way.

        `may_refuse` is False for the answer to a write: it has happened, and its client must hear so.
        """
        excess = self.answers.excess(user, size_bytes) if may_refuse else ""
        if excess:
            self._metrics.refused.labels("sending_bytes_max" if excess == "total" else "sending_per_user_bytes_max").inc()
            waiting = self.answers.total if excess == "total" else self.answers.of(user)
            raise TooManyRequests(
                f"answers of {waiting} bytes wait for their clients to read them; try later, or list with a limit",
                retry_after_s=RETRY_AFTER_S,
            )
        with Held(self.answers, user) as held:
            held.grow(size_bytes)
            yield

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
