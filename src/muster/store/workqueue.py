"""A queue of keys to work on, each at most once at a time: what stands between informers and controllers.

The rules are those of Kubernetes' client libraries:
- a key added while it waits is one entry; a key added while it is being worked on waits until `done` and then comes again;
- `add_after` brings a key back later (the earlier of two wins); `add_rate_limited` does so after a wait that grows with each
  failure of that key and that an overall bucket may lengthen; `forget` resets the growth.

Beyond them: keys of one lane (a namespace) are taken in the order they came, and lanes take turns, so that one tenant with
10,000 keys does not hold up another with one. The number of keys known is bounded; what comes when it is full is refused,
counted, and made good by `on_room`, in which the owner adds what it still knows once there is room.

Concurrency: one event loop; `add`, `done` and the like are plain calls from that loop, `get` may be awaited by any number of
workers. Time is the loop's monotonic clock; waits are spread by a hash of the key, never by chance.

Invariants (`check_invariants`): no key is in two of {waiting, processing} unless it is dirty; every dirty key is waiting or
processing; counts match what the metrics say.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec
from prometheus_client import Counter, Gauge, Histogram

from muster.store.backoff import Backoff

K = TypeVar("K", bound=Hashable)

DEPTH = Gauge("muster_workqueue_depth", "Keys that wait for a worker.", ["queue"])
DELAYED = Gauge("muster_workqueue_delayed", "Keys that wait for their time.", ["queue"])
CAPACITY = Gauge("muster_workqueue_capacity", "Keys that the queue may know at once.", ["queue"])
ADDS = Counter("muster_workqueue_adds", "Keys that entered the queue.", ["queue"])
RETRIES = Counter("muster_workqueue_retries", "Keys that came back after a failure.", ["queue"])
REFUSED = Counter("muster_workqueue_refused", "Keys refused because the queue was full.", ["queue"])
WAIT_S = Histogram("muster_workqueue_wait_seconds", "From entering the queue to being taken by a worker.", ["queue"])


_TICK_S = 1e-9
"""A loop may call a timer this much early."""


class QueueClosed(Exception):
    """`get` on a queue that is closed and empty."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`capacity` bounds the keys known at once. The bucket refills at `retries_per_s` and holds `retries_burst`."""

    capacity: int = 200_000
    backoff: Backoff = Backoff()
    retries_per_s: float = 50.0
    retries_burst: int = 500


class TokenBucket:
    """Hands out places in time: `reserve_s` says how long the caller must wait for its turn. The clock is handed in."""

    def __init__(self, per_s: float, burst: int, now_s: Callable[[], float]) -> None:
        if per_s <= 0 or burst < 1:
            raise ValueError(f"a bucket needs a positive rate and room for one, not {per_s}/s and {burst}")
        self._per_s = per_s
        self._burst = burst
        self._now_s = now_s
        self._tokens = float(burst)
        self._at_s = now_s()

    def reserve_s(self) -> float:
        self._refill()
        self._tokens -= 1
        return max(0.0, -self._tokens / self._per_s)

    def try_take(self) -> bool:
        """Take a token if there is one now."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self) -> None:
        now_s = self._now_s()
        self._tokens = min(float(self._burst), self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s


class WorkQueue(Generic[K]):
    """See the module. Must be made while its event loop runs."""

    def __init__(
        self,
        name: str,
        *,
        limits: QueueLimits | None = None,
        lane: Callable[[K], Hashable] | None = None,
        on_room: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.limits = limits or QueueLimits()
        self._loop = asyncio.get_running_loop()
        self._lane = lane or (lambda _key: None)
        self._on_room = on_room
        self._lanes: OrderedDict[Hashable, deque[K]] = OrderedDict()
        self._depth = 0
        self._dirty: dict[K, float] = {}
        """Keys that must be worked on, with the time they were added."""
        self._processing: set[K] = set()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._failures: dict[K, int] = {}
        self._bucket = TokenBucket(self.limits.retries_per_s, self.limits.retries_burst, self._loop.time)
        self._getters: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._overflowed = False
        self._closed = False
        self._bind_metrics()

    def __len__(self) -> int:
        """Keys waiting for a worker; those that wait for their time or are being worked on are not counted."""
        return self._depth

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing is being worked on; delayed keys may still come."""
        return not self._dirty and not self._processing

    def add(self, key: K) -> bool:
        """Have `key` worked on. False when the queue is closed or full and the key was not taken."""
        if self._closed:
            return False
        if key in self._dirty:
            return True
        if not self._has_room_for(key):
            return False
        self._dirty[key] = self._loop.time()
        self._adds.inc()
        self._idle.clear()
        if key not in self._processing:
            self._push(key)
        return True

    def add_after(self, key: K, delay_s: float) -> bool:
        """Add `key` when `delay_s` have passed, unless it is due earlier anyway."""
        if self._closed:
            return False
        if delay_s <= 0:
            return self.add(key)
        due_s = self._loop.time() + delay_s
        known_s = self._due.get(key)
        if known_s is not None and known_s <= due_s:
            return True
        if known_s is None and not self._has_room_for(key):
            return False
        self._due[key] = due_s
        self._sequence += 1
        # An entry whose time is not the one in `_due` is void and skipped when it surfaces.
        heapq.heappush(self._heap, (due_s, self._sequence, key))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
        self._delayed.set(len(self._due))
        self._arm()
        return True

    def add_rate_limited(self, key: K) -> bool:
        """Add `key` after the wait that its failures have earned it."""
        failures = self._failures.get(key, 0)
        if failures or len(self._failures) < self.limits.capacity:
            self._failures[key] = failures + 1
        self._retries.inc()
        return self.add_after(key, max(self.limits.backoff.delay_s(failures, key), self._bucket.reserve_s()))

    def forget(self, key: K) -> None:
        """`key` is well: its next failure waits as long as a first one."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key, which is then being worked on until `done`. Raises QueueClosed when closed and empty."""
        while not self._depth:
            if self._closed:
                raise QueueClosed(f"queue {self.name} is closed")
            await self._wait_for_key()
        key = self._pop()
        self._processing.add(key)
        self._waits.observe(self._loop.time() - self._dirty.pop(key))
        return key

    def done(self, key: K) -> None:
        """The worker that got `key` has finished; if it was added meanwhile it now waits again."""
        if key not in self._processing:
            raise ValueError(f"queue {self.name}: {key} is not being worked on")
        self._processing.discard(key)
        if key in self._dirty:
            self._push(key)
        self._settle()

    def close(self) -> None:
        """Take nothing more, drop what is delayed, let workers finish what waits; then `get` raises QueueClosed."""
        self._closed = True
        self._due.clear()
        self._heap.clear()
        self._delayed.set(0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._getters:
            _wake(self._getters.popleft())

    async def wait_idle(self) -> None:
        """Until nothing waits and nothing is being worked on."""
        await self._idle.wait()

    def check_invariants(self) -> None:
        waiting = [key for keys in self._lanes.values() for key in keys]
        assert len(waiting) == len(set(waiting)) == self._depth, "a key waits twice or the depth is wrong"
        assert not set(waiting) & self._processing, "a key waits and is being worked on"
        assert set(waiting) <= set(self._dirty), "a key waits that nobody added"
        assert set(self._dirty) <= set(waiting) | self._processing, "a key was added and is nowhere"
        assert self._idle.is_set() == self.is_idle
        assert len(self._due) + len(self._dirty) <= self.limits.capacity

    def _bind_metrics(self) -> None:
        self._depth_gauge = DEPTH.labels(self.name)
        self._delayed = DELAYED.labels(self.name)
        self._adds = ADDS.labels(self.name)
        self._retries = RETRIES.labels(self.name)
        self._refused = REFUSED.labels(self.name)
        self._waits = WAIT_S.labels(self.name)
        CAPACITY.labels(self.name).set(self.limits.capacity)

    def _has_room_for(self, key: K) -> bool:
        if len(self._dirty) + len(self._due) < self.limits.capacity:
            return True
        if key in self._due:
            # It moves from delayed to waiting and takes no more room than before.
            del self._due[key]
            return True
        self._overflowed = True
        self._refused.inc()
        return False

    def _settle(self) -> None:
        if self.is_idle:
            self._idle.set()
        if self._overflowed and len(self._dirty) + len(self._due) <= self.limits.capacity // 2:
            self._overflowed = False
            if self._on_room is not None and not self._closed:
                self._on_room()

    def _push(self, key: K) -> None:
        lane = self._lane(key)
        keys = self._lanes.get(lane)
        if keys is None:
            keys = self._lanes[lane] = deque()
        keys.append(key)
        self._depth += 1
        self._depth_gauge.set(self._depth)
        self._wake_one()

    def _pop(self) -> K:
        lane, keys = next(iter(self._lanes.items()))
        key = keys.popleft()
        if keys:
            self._lanes.move_to_end(lane)
        else:
            del self._lanes[lane]
        self._depth -= 1
        self._depth_gauge.set(self._depth)
        return key

    async def _wait_for_key(self) -> None:
        getter = self._loop.create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            if getter.done() and not getter.cancelled():
                # This worker was woken for a key that it will not take: another one must.
                self._wake_one()
            elif getter in self._getters:
                self._getters.remove(getter)
            raise

    def _wake_one(self) -> None:
        while self._getters:
            if _wake(self._getters.popleft()):
                return

    def _arm(self) -> None:
        """Set the timer to the earliest delayed key."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer = self._loop.call_at(self._heap[0][0], self._ripen)

    def _ripen(self) -> None:
        now_s = self._loop.time()
        while self._heap and self._heap[0][0] <= now_s + _TICK_S:
            due_s, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due_s:
                del self._due[key]
                self.add(key)
        self._delayed.set(len(self._due))
        self._arm()


def _wake(getter: asyncio.Future[None]) -> bool:
    if getter.done():
        return False
    getter.set_result(None)
    return True
