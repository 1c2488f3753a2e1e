"""Faults between a component and its store, by seed.

`FaultyStore` is what a simulated component gets instead of the store. It does to requests and watches what networks, servers
and crashes do, and nothing that they can't do, so that a failure found here is a failure in the field.

| fault | what the component sees | what the store saw |
|---|---|---|
| latency | the answer comes later | the request arrives some time after it was sent |
| refused | ServiceUnavailable, TooManyRequests or InternalError | nothing |
| answer lost | Timeout | the write happened |
| late | the caller gave up (cancelled) | the write arrives all the same, up to `late_s` later |
| crash | nothing: it is dead; its tasks end with SimulatedCrash | the write happened, or not: both are tried |
| partition | requests time out, watches stand still and then break | only what had arrived before |
| watch lag | events come late; each watch has its own lag, so that kinds overtake each other | |
| watch broken | the stream ends, quietly or with an error, anywhere between two events | |
| watch repeated | after a break the stream starts at an older version: known events come again, in their order | |
| expired | Expired when the watch starts | |

What never happens, because no watch does it: an event is lost without a break, the order within one watch changes, a watch
shows a state that never was, a read shows an older state than an earlier read of the same component.

Concurrency: one virtual loop. The choices come from one stream of chance per component and run: what one component does not ask
for does not shift what another one gets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from muster.objects.resources import Resource
from muster.objects.status import ApiError, Expired, InternalError, Raw, ServiceUnavailable, Timeout, TooManyRequests
from muster.sim.entropy import Chance
from muster.store.contract import Page, Store, WatchEvent
from muster.store.guarded import GuardedStore

T = TypeVar("T")
Moment = Literal["before", "after"]


class SimulatedCrash(BaseException):
    """The component is dead. Like the death of a process it is no Exception: nothing in the component may handle it."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how bad. Rates are per request, per event or per start of a watch; ranges are (least, most) seconds."""

    crash_rate: float = 0.0
    refused_rate: float = 0.0
    answer_lost_rate: float = 0.0
    late_rate: float = 0.0
    late_s: float = 2.0
    read_error_rate: float = 0.0
    latency_s: tuple[float, float] = (0.0, 0.0)
    watch_lag_s: tuple[float, float] = (0.0, 0.0)
    watch_broken_rate: float = 0.0
    watch_repeated_rate: float = 0.0
    expired_rate: float = 0.0
    partition_timeout_s: float = 5.0
    crash_at: tuple[int, Moment] | None = None
    """Crash at exactly this write of the component's first run (1 is its first), before or after it happens."""

    def quiet(self) -> Faults:
        """The same delays and nothing that fails: what is left when the storm is over."""
        return Faults(latency_s=self.latency_s, watch_lag_s=self.watch_lag_s)


CALM = Faults(latency_s=(0.0005, 0.005))
"""An ordinary day: requests take a moment."""

STORMY = Faults(
    crash_rate=0.01,
    refused_rate=0.05,
    answer_lost_rate=0.05,
    late_rate=0.5,
    read_error_rate=0.03,
    latency_s=(0.0005, 0.4),
    watch_lag_s=(0.0, 2.0),
    watch_broken_rate=0.05,
    watch_repeated_rate=0.3,
    expired_rate=0.1,
)
"""Everything at once, each more often than in the worst week of production."""


class FaultyStore(GuardedStore):
    """One run of one component sees the store through this. `note` is told what happened; `settled` runs after each write."""

    def __init__(
        self,
        inner: Store,
        component: str,
        chance: Chance,
        faults: Faults,
        *,
        note: Callable[[str, str], None],
        settled: Callable[[], Awaitable[None]],
        on_crash: Callable[[], None],
    ) -> None:
        super().__init__(inner)
        self.component = component
        self.faults = faults
        self.writes = 0
        self._chance = chance
        self._note = note
        self._settled = settled
        self._on_crash = on_crash
        self._is_dead = False
        self._partition_until_s = 0.0
        self._seen: dict[str, deque[str]] = {}
        self._late: set[asyncio.Task[None]] = set()

    # -- what the harness does to a component ----------------------------------------------------------------------------

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    def check_alive(self) -> None:
        """Raise SimulatedCrash when this run is dead: for what a component does besides writing."""
        if self._is_dead:
            raise SimulatedCrash(f"{self.component} is dead")

    def kill(self) -> None:
        """From now on this component can neither read nor write."""
        self._is_dead = True

    def partition(self, seconds: float) -> None:
        """Cut the component off for a while."""
        self._partition_until_s = max(self._partition_until_s, self._now_s() + seconds)
        self._note(self.component, f"partitioned for {seconds:.3f} s")

    # -- reads -----------------------------------------------------------------------------------------------------------

    async def resource(self, group: str, kind: str) -> Resource:
        return await self._read(f"resource {kind}.{group}", lambda: self.inner.resource(group, kind))

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Raw:
        what = f"get {resource.qualified} {namespace or ''}/{name}"
        return await self._read(what, lambda: self.inner.get(resource, name, namespace))

    async def list(self, resource: Resource, namespace: str | None = None, **options: Any) -> Page:
        return await self._read(f"list {resource.qualified}", lambda: self.inner.list(resource, namespace, **options))

    async def _read(self, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        await self._travel()
        if self._happens(self.faults.read_error_rate):
            raise self._error(what)
        result = await operation()
        await self._travel()
        return result

    # -- writes ----------------------------------------------------------------------------------------------------------

    async def write(self, verb: str, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        self.check_alive()
        self.writes += 1
        number, label = self.writes, f"{verb} {what}"
        fate = self._fate(number)
        try:
            await self._travel()
        except asyncio.CancelledError:
            if self._happens(self.faults.late_rate):
                self._deliver_late(label, operation)
            raise
        if fate == "crash before":
            self._crash(f"before {label}")
        if fate == "refused":
            error = self._error(label)
            self._note(self.component, f"{label}: refused ({error.reason})")
            raise error
        try:
            result = await operation()
        except ApiError as error:
            self._note(self.component, f"{label}: {error.reason}")
            raise
        self._note(self.component, f"{label}: {_outcome(result)}")
        await self._settled()
        if fate == "crash after":
            self._crash(f"after {label}")
        await self._travel()
        if fate == "answer lost":
            self._note(self.component, f"{label}: answer lost")
            raise Timeout(f"no answer to {label}; it may or may not have happened (simulated)")
        return result

    def _fate(self, number: int) -> str:
        """What will become of this write. Every write draws as often, so that its fate does not depend on the others'."""
        faults, draw = self.faults, self._chance.random()
        if faults.crash_at is not None:
            at, moment = faults.crash_at
            return f"crash {moment}" if number == at else ""
        steps = (
            ("crash before", faults.crash_rate / 2),
            ("crash after", faults.crash_rate / 2),
            ("refused", faults.refused_rate),
            ("answer lost", faults.answer_lost_rate),
        )
        for fate, rate in steps:
            if draw < rate:
                return fate
            draw -= rate
        return ""

    def _deliver_late(self, label: str, operation: Callable[[], Awaitable[T]]) -> None:
        delay_s = self._chance.uniform(0.0, self.faults.late_s)

        async def deliver() -> None:
            await asyncio.sleep(delay_s)
            outcome = "arrived late"
            try:
                await operation()
            except ApiError as error:
                outcome = f"arrived late: {error.reason}"
            self._note(self.component, f"{label}: {outcome}")
            await self._settled()

        task = asyncio.create_task(deliver(), name=f"late {label}")
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    # -- watches ---------------------------------------------------------------------------------------------------------

    def watch(self, resource: Resource, namespace: str | None = None, **options: Any) -> AsyncIterator[WatchEvent]:
        return self._watch(resource, namespace, options)

    async def _watch(self, resource: Resource, namespace: str | None, options: dict[str, Any]) -> AsyncIterator[WatchEvent]:
        await self._travel()
        stream_id = f"{resource.qualified} {namespace} {options.get('label_selector')} {options.get('field_selector')}"
        seen = self._seen.setdefault(stream_id, deque(maxlen=16))
        if self._happens(self.faults.expired_rate) and options.get("resource_version"):
            self._note(self.component, f"watch {resource.qualified}: expired")
            raise Expired(f"the version from which to watch {resource.qualified} is too old (simulated)")
        older = [version for version in seen if int(version) <= int(options.get("resource_version") or 0)]
        if older and self._happens(self.faults.watch_repeated_rate):
            options = {**options, "resource_version": self._chance.choice(older)}
        least_s, most_s = self.faults.watch_lag_s
        lag_s = self._chance.uniform(least_s, most_s)
        stream = self.inner.watch(resource, namespace, **options)
        try:
            async for event in stream:
                due_s = self._now_s() + (self._chance.uniform(least_s, lag_s) if lag_s else 0.0)
                await asyncio.sleep(max(0.0, due_s - self._now_s()))
                await self._stand_partition(resource)
                self.check_alive()
                seen.append(event.resource_version)
                yield event
                if self._happens(self.faults.watch_broken_rate):
                    self._note(self.component, f"watch {resource.qualified}: broken")
                    if self._happens(0.5):
                        return
                    raise ServiceUnavailable(f"the watch of {resource.qualified} broke (simulated)")
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def _stand_partition(self, resource: Resource) -> None:
        wait_s = self._partition_until_s - self._now_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
            raise ServiceUnavailable(f"the watch of {resource.qualified} was cut (simulated)")

    # -- chance and time -------------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _happens(self, rate: float) -> bool:
        return rate > 0 and self._chance.random() < rate

    def _error(self, what: str) -> ApiError:
        kind = self._chance.choice((ServiceUnavailable, TooManyRequests, InternalError))
        return kind(f"{what} was refused (simulated)")

    async def _travel(self) -> None:
        """One way of a request, during which the component may die or be cut off."""
        self.check_alive()
        least_s, most_s = self.faults.latency_s
        if most_s > 0:
            await asyncio.sleep(self._chance.uniform(least_s, most_s))
        self.check_alive()
        wait_s = self._partition_until_s - self._now_s()
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, self.faults.partition_timeout_s))
            self.check_alive()
            raise Timeout(f"{self.component} can't reach the store (simulated partition)")

    def _crash(self, where: str) -> NoReturn:
        self._is_dead = True
        self._note(self.component, f"crashed {where}")
        self._on_crash()
        raise SimulatedCrash(f"{self.component} crashed {where}")


def _outcome(result: object) -> str:
    if isinstance(result, dict):
        meta = result.get("metadata", {})
        return f"version {meta.get('resourceVersion', '')}"
    return "done"
