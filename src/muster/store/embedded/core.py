"""The heart of the embedded store: versions are handed out, units of change go to disk, and only then show to readers.

On the loop only. A write is checked against `Collection.latest` and submitted in the same turn of the loop, so no other
write comes between check and version. From `submit` to the commit it is pending: later writes see it, readers do not.
When a commit fails, everything pending is dropped and everyone who waits is told; readers never saw any of it.

Invariants:
- `committed_rv` and every record, history entry and watcher event are on disk;
- the events of the log (`log.py`) are exactly those after `horizon`, in order, over all kinds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import structlog

from muster.objects.json_numbers import EXTREME_MAX, has_many_extremes
from muster.objects.resources import Resource
from muster.objects.status import (
    ApiError,
    BadRequest,
    InternalError,
    Raw,
    ServiceUnavailable,
    StorageFull,
    TooManyRequests,
)
from muster.objects.time import Clock
from muster.store.contract import EventType
from muster.store.embedded.collection import Collection
from muster.store.embedded.committer import Committer
from muster.store.embedded.database import CommitFailed, Row
from muster.store.embedded.limits import Limits
from muster.store.embedded.log import Dropped, Log
from muster.store.embedded.records import TYPE_CODES, Event, Key, Record, encode, record_of
from muster.store.embedded.rules import not_json, refusal, too_large
from muster.store.embedded.watchers import Watcher

_log = structlog.get_logger(__name__)


class Change:
    """One object's next state. `raw` gets its resourceVersion when the change is submitted.

    Where its author says what the selectable `fields` become, and changes nothing else that a record tells apart from its
    JSON, nobody looks into `raw`: its members, and those of `metadata`, may then be encoded already (`msgspec.Raw`).
    """

    __slots__ = ("collection", "fields", "key", "previous", "raw", "resource", "type")

    def __init__(
        self,
        resource: Resource,
        collection: Collection,
        type_: EventType,
        key: Key,
        raw: Raw,
        *,
        previous: Record | None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        self.resource = resource
        self.collection = collection
        self.type = type_
        self.key = key
        self.raw = raw
        self.previous = previous
        self.fields = fields


class Unit:
    """Changes that go to disk together, and whoever waits for them."""

    __slots__ = ("events", "followers", "future", "rows", "size_bytes")

    def __init__(self, events: Sequence[tuple[Collection, Event]], rows: Sequence[Row], future: asyncio.Future[None]) -> None:
        self.events = events
        self.rows = rows
        self.future = future
        """The author's own: it is cancelled when the author is, which does not concern anyone else."""
        self.followers: list[asyncio.Future[bool]] = []
        """Others who must know whether this unit came to be."""
        self.size_bytes = sum(len(row.value) for row in rows)

    def follow(self, came_to_be: bool) -> None:
        for follower in self.followers:
            if not follower.done():
                follower.set_result(came_to_be)


class Counters:
    """Plain numbers for `metrics.py` to read; counting must not cost."""

    __slots__ = ("batches", "commit_failures", "compacted", "expired_watches", "refused_writes", "writes")

    def __init__(self) -> None:
        self.writes = 0
        self.batches = 0
        self.commit_failures = 0
        self.refused_writes = 0
        self.compacted = 0
        self.expired_watches = 0


class Core:
    def __init__(self, clock: Clock, limits: Limits) -> None:
        self.clock = clock
        self.limits = limits
        self.collections: dict[str, Collection] = {}
        self.committed_rv = 1
        self.horizon = 0
        self.compacted_at = 0.0
        """When history was last dropped, in this process."""
        self.identity = b""
        self.counters = Counters()
        self.watchers: dict[Watcher, None] = {}
        self.listeners: list[Callable[[Collection, Event], None]] = []
        """Called for each change after it shows to readers. They must not raise, and write only from tasks of their own."""
        self.on_dropped: list[Callable[[Sequence[tuple[str, Key]]], None]] = []
        """Called when everything pending has failed and is forgotten, with what it would have changed. They must not raise."""
        self.committer: Committer[Unit]
        """Set once, before the first use."""
        self.is_closed = False
        self.write_problem = ""
        """Why the last commit failed; "" when it did not, or when there is room again."""
        self.changes = 0
        """Counts every change to what writes are checked against: a write that saw the same count saw the same state."""
        self._assigned_rv = 1
        self._log = Log()
        self._in_flight: deque[Unit] = deque()
        self._in_flight_bytes = 0

    # --- state ---------------------------------------------------------------------------------------------------

    def collection(self, id_: str) -> Collection:
        found = self.collections.get(id_)
        if found is None:
            found = self.collections[id_] = Collection(id_)
        return found

    @property
    def in_flight_len(self) -> int:
        return len(self._in_flight)

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight_bytes

    @property
    def history_len(self) -> int:
        return len(self._log)

    @property
    def history_bytes(self) -> int:
        return self._log.size_bytes

    def restore(self, rv: int, horizon: int, events: Iterable[tuple[Event, Collection]]) -> None:
        """Take over what was on disk; the collections have their records already. Its history counts as of now."""
        now = self.clock()
        self.committed_rv = self._assigned_rv = max(rv, horizon, 1)
        self.horizon = horizon
        for event, collection in events:
            collection.history.append(event)
            self._log.append(event, collection, now)

    def check_open(self) -> None:
        if self.is_closed:
            raise ServiceUnavailable("the store is closed; connect again when the server is back", retry_after_s=1)

    # --- writing -------------------------------------------------------------------------------------------------

    def submit(
        self, changes: Sequence[Change], staged: Sequence[Callable[[], None]] = ()
    ) -> tuple[list[Record], asyncio.Future[None]]:
        """Give `changes` their versions and send them to disk together. Await the future before answering anyone.

        `staged` are called once they are pending: nothing can hinder them any more but the disk.
        Raises, with nothing changed, when the store is closed or too busy, or an object is too large.
        """
        self.check_open()
        self._check_room(changes)
        rv = self._assigned_rv
        events: list[tuple[Collection, Event]] = []
        rows: list[Row] = []
        built: dict[tuple[str, Key], Record | None] = {}
        for change in changes:
            rv += 1
            collection, key = change.collection, change.key
            change.raw["metadata"]["resourceVersion"] = str(rv)
            record = encoded(change, rv)
            self.check_size(change.resource, record)
            # An object may change twice in one unit: then its previous version is one that was made just here.
            previous = built.get((collection.id, key), change.previous)
            built[(collection.id, key)] = None if change.type is EventType.DELETED else record
            events.append((collection, Event(change.type, record, previous)))
            previous_rv = previous.rv if previous is not None else None
            rows.append(Row(rv, collection.id, *key, TYPE_CODES[change.type], previous_rv, record.value))
        unit = Unit(events, rows, asyncio.get_running_loop().create_future())
        self._assigned_rv = rv
        self.changes += 1
        for collection, event in events:
            after = None if event.type is EventType.DELETED else event.record
            collection.pending[event.record.key] = (event.rv, after)
        for note in staged:
            note()
        self._in_flight.append(unit)
        self._in_flight_bytes += unit.size_bytes
        self.committer.submit(unit)
        return [event.record for _, event in events], unit.future

    def _check_room(self, changes: Sequence[Change]) -> None:
        limits = self.limits
        if len(self._in_flight) < limits.writes_in_flight_max and self._in_flight_bytes <= limits.writes_in_flight_bytes_max:
            return
        self.counters.refused_writes += 1
        resource = changes[0].resource
        raise TooManyRequests(
            f"the store has {len(self._in_flight)} writes ({self._in_flight_bytes} bytes) on their way to disk, which is its "
            "limit; this one was not accepted: wait a second and send it again",
            kind=resource.plural,
            group=resource.group,
            retry_after_s=1,
        )

    def check_size(self, resource: Resource, record: Record) -> None:
        size, limit = len(record.value), self.limits.object_bytes_max
        if size > limit:
            raise too_large(resource, record.name, size, limit)
        if has_many_extremes(record.value):
            message = (
                f'{resource.qualified} "{record.name}" has more than {EXTREME_MAX} numbers with an exponent of three digits, '
                "such as 1e308; write them as strings"
            )
            raise refusal(BadRequest, resource, record.name, message)

    async def settle(self) -> bool:
        """Wait until all that is pending now has been decided. True if it is on disk, False if it failed."""
        if not self._in_flight:
            return True
        follower: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._in_flight[-1].followers.append(follower)
        return await follower

    # --- the committer reports -----------------------------------------------------------------------------------

    def on_committed(self, units: Sequence[Unit]) -> None:
        touched: dict[str, Collection] = {}
        now = self.clock()
        for unit in units:
            assert self._in_flight[0] is unit
            self._in_flight.popleft()
            self._in_flight_bytes -= unit.size_bytes
            for collection, event in unit.events:
                collection.apply(event)
                self._log.append(event, collection, now)
                touched[collection.id] = collection
            self.counters.writes += len(unit.events)
            self.committed_rv = unit.rows[-1].rv
        self.counters.batches += 1
        self.write_problem = ""
        self._compact(now)
        for collection in touched.values():
            collection.wake()
        for unit in units:
            for collection, event in unit.events:
                self._tell(collection, event)
            if not unit.future.done():
                unit.future.set_result(None)
            unit.follow(True)

    def _tell(self, collection: Collection, event: Event) -> None:
        for listener in self.listeners:
            try:
                listener(collection, event)
            except Exception:  # noqa: BLE001 - logged with its traceback
                # The write is on disk and its author must hear so, whatever a listener makes of it.
                _log.exception("a listener failed", resource=collection.id, name=event.record.name)

    def on_failed(self, units: Sequence[Unit], failure: CommitFailed) -> None:
        """Nothing of `units` is on disk, and they are all there is in flight: forget them, and say so."""
        assert len(units) == len(self._in_flight)
        self.counters.commit_failures += 1
        self.write_problem = failure.message
        self.changes += 1
        self._in_flight.clear()
        self._in_flight_bytes = 0
        for collection in self.collections.values():
            collection.pending.clear()
        changed = [(collection.id, event.record.key) for unit in units for collection, event in unit.events]
        for forget in self.on_dropped:
            forget(changed)
        for unit in units:
            if not unit.future.done():
                unit.future.set_exception(_as_api_error(failure))
                unit.future.exception()  # whoever waited may be gone: that is no reason for a warning
            unit.follow(False)

    def on_healed(self) -> None:
        """The committer has found that the disk can be written again."""
        self.write_problem = ""

    # --- compaction ----------------------------------------------------------------------------------------------

    def _compact(self, now: float) -> None:
        """Drop history beyond its bounds, a bounded number of events at a time."""
        dropped = self._log.drop_beyond(self.limits, now)
        if dropped.number:
            self._forgotten(dropped, dropped.horizon, now)

    def compact_to(self, rv: int) -> None:
        """Forget all history up to `rv`. For operators and tests; the limits do it by themselves."""
        dropped = self._log.drop_to(rv)
        self._forgotten(dropped, max(self.horizon, min(rv, self.committed_rv)), self.clock())

    def _forgotten(self, dropped: Dropped, horizon: int, now: float) -> None:
        self.horizon = horizon
        self.compacted_at = now
        self.counters.compacted += dropped.number
        self.committer.doom(dropped.doomed, horizon)

    # --- watchers and the end ------------------------------------------------------------------------------------

    def forget_watcher(self, watcher: Watcher, *, is_expired: bool) -> None:
        self.watchers.pop(watcher, None)
        self.counters.expired_watches += is_expired

    def end_watches(self, collection: Collection) -> None:
        """The kind is gone: its watches end."""
        for watcher in [w for w in self.watchers if w.collection is collection]:
            watcher.close()

    async def close(self) -> None:
        """Refuse new writes, finish those accepted, end every watch, close the file."""
        if self.is_closed:
            return
        self.is_closed = True
        for watcher in list(self.watchers):
            watcher.close()
        await self.committer.close()


def encoded(change: Change, rv: int) -> Record:
    """The record of a change. BadRequest when it is not JSON, which only a caller in this process can bring about."""
    resource, key = change.resource, change.key
    try:
        if change.fields is not None and change.previous is not None:
            return msgspec.structs.replace(change.previous, rv=rv, value=encode(change.raw), fields=change.fields)
        return record_of(change.raw, key, rv, change.collection.field_paths)
    except (TypeError, ValueError, RecursionError) as error:
        raise not_json(resource, key[1], error) from None


def _as_api_error(failure: CommitFailed) -> ApiError:
    if failure.full:
        return StorageFull(f"{failure.message}; nothing was written and reads go on: make room, then send it again")
    return InternalError(f"{failure.message}; nothing of it was kept and reads go on: look at the disk and the system's log")
