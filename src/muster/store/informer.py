"""Informers: a cache of one kind that follows the store, and tells handlers what changed.

An informer lists, then watches from that list's version. When the watch breaks it resumes where it was; when the history is
compacted (Expired) it lists again and works out what it missed: deletions and changes then come out of the comparison.

Concurrency: each informer is one task on the store's event loop. Handlers are plain functions, called one after the other in
the order of registration while nothing else runs; they must be quick (put a key into a queue). A handler that raises is
logged and counted; the others and the informer go on.

Invariants:
- a handler never sees an older version of an object after a newer one, nor a version twice, apart from a resync, which
  repeats the newest; `added` comes before `updated` and `deleted`, and nothing after `deleted` but another `added`;
- an object that was deleted and made again under its name is deleted and added, never updated;
- `has_synced` is False until one whole list is in the cache; after that the cache always was the true state at some moment,
  and catches up when the store answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypedDict

import msgspec
from prometheus_client import Counter, Gauge

from muster.objects.meta import name_of, namespace_of, resource_version_of
from muster.objects.resources import Resource
from muster.objects.status import ApiError, Expired, Gone, Raw
from muster.objects.view import View
from muster.store.backoff import Backoff, is_cancelled, spread
from muster.store.cache import Cache, Cached, IndexFunction, Keep, ObjectKey
from muster.store.contract import EventType, Store
from muster.store.encoded import Encoded, EncodedReads

log = logging.getLogger(__name__)

OBJECTS = Gauge("muster_informer_objects", "Objects in the cache.", ["kind", "namespace"])
LISTS = Counter("muster_informer_lists", "Whole lists read.", ["kind", "namespace"])
EVENTS = Counter("muster_informer_events", "Watch events taken in.", ["kind", "namespace"])
STALE = Counter("muster_informer_stale_events", "Events dropped: not newer than what is known.", ["kind", "namespace"])
UNREADABLE = Gauge("muster_informer_unreadable_objects", "Objects that do not fit their view.", ["kind", "namespace"])
FAILURES = Counter("muster_informer_failures", "Lists and watches that failed.", ["kind", "namespace", "reason"])
HANDLER_ERRORS = Counter("muster_informer_handler_errors", "Handlers that raised.", ["kind", "namespace"])

_UNREADABLE_MAX = 1_000
"""Messages kept about objects that can't be read."""


class ChangeType(enum.Enum):
    ADDED = "added"
    UPDATED = "updated"
    DELETED = "deleted"
    RESYNCED = "resynced"


class Change(msgspec.Struct, frozen=True):
    """What happened to one object. `is_inferred`: found by comparing lists; steps in between may have been missed."""

    type: ChangeType
    old: Cached | None
    new: Cached | None
    is_inferred: bool = False

    @property
    def newest(self) -> Cached:
        newest = self.new or self.old
        assert newest is not None
        return newest


Handler = Callable[[Change], None]


class InformerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`watch_s` ends a quiet watch now and then, so that a connection that died silently is noticed."""

    objects_max: int = 1_000_000
    page_len: int = 500
    watch_s: float = 240.0
    backoff: Backoff = Backoff(base_s=0.2, max_s=30.0)


class _Selectors(TypedDict):
    label_selector: str
    field_selector: str


class CacheOverflow(Exception):
    """More objects of this kind exist than the informer may hold."""


class StaleList(Exception):
    """A list came from before what is already known: the server behind it lags, or was restored from a backup."""


def is_newer(candidate: str, known: str) -> bool:
    """Whether version `candidate` is later than `known`. Versions that are no plain numbers can only be told apart."""
    if candidate.isdecimal() and known.isdecimal():
        return int(candidate) > int(known)
    return candidate != known


class Informer:
    """See the module. `start` it, `await wait_synced()`, read `cache`, `stop` it."""

    def __init__(
        self,
        store: Store,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        keep: Keep = "bytes",
        views: Iterable[type[View]] = (),
        indexes: Mapping[str, IndexFunction] | None = None,
        resync_s: float = 0.0,
        limits: InformerLimits | None = None,
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.keep = keep
        self.limits = limits or InformerLimits()
        self.cache = Cache()
        self.unreadable: dict[ObjectKey, str] = {}
        self.last_error = ""
        """Why the store can't be followed at the moment; empty while it can."""
        self._store = store
        self._encoded = store if isinstance(store, EncodedReads) else None
        self._selectors = _Selectors(label_selector=label_selector, field_selector=field_selector)
        self._resync_s = resync_s
        self._views: dict[type[View], None] = dict.fromkeys(views)
        self._handlers: dict[int, Handler] = {}
        self._handler_id = 0
        self._version = ""
        self._synced = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._name = f"{resource.qualified}/{namespace or '*'}"
        self._labels = (resource.qualified, namespace or "")
        self._failures = 0
        self._expiries = 0
        """Times in a row that the history was gone although it had just been listed."""
        self._objects_gauge = OBJECTS.labels(*self._labels)
        self._events = EVENTS.labels(*self._labels)
        for name, function in (indexes or {}).items():
            self.cache.add_index(name, function)

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def has_synced(self) -> bool:
        return self._synced.is_set()

    @property
    def is_healthy(self) -> bool:
        return self.has_synced and not self.last_error

    @property
    def version(self) -> str:
        """The resourceVersion up to which the cache has followed the store."""
        return self._version

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def start(self) -> None:
        if self._tasks:
            return
        self._tasks.append(asyncio.create_task(self._follow(), name=f"informer {self._name}"))
        if self._resync_s > 0:
            self._tasks.append(asyncio.create_task(self._resync_regularly(), name=f"resync {self._name}"))

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- what users register ------------------------------------------------------------------------------------------

    def add_handler(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every change from now on, and at once with ADDED for what is there. Returns how to stop that."""
        self._handler_id += 1
        handler_id = self._handler_id
        self._handlers[handler_id] = handler
        for obj in self.cache:
            self._call(handler, Change(ChangeType.ADDED, None, obj))
        return lambda: self._handlers.pop(handler_id, None) and None

    def add_view(self, cls: type[View]) -> None:
        """Decode every object as `cls` when it comes in; one that does not fit is kept out of the cache and reported."""
        if cls in self._views:
            return
        if self.keep == "nothing" and len(self.cache):
            raise ValueError(
                f"the informer of {self.resource.qualified} keeps views only and has begun without {cls.__name__}: "
                "ask for it before the informer starts, or use keep='bytes'"
            )
        self._views[cls] = None
        for obj in self.cache:
            try:
                obj.view(cls)
            except msgspec.ValidationError as error:
                self._note_unreadable(obj.key, error)
                self._remove(obj.key, is_inferred=True)

    def resync(self) -> None:
        """Tell the handlers about every object again."""
        for obj in self.cache:
            self._tell(Change(ChangeType.RESYNCED, obj, obj))

    # -- following the store ------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """List, watch, repeat. Ends only by cancellation: whatever fails is retried, slower each time, and reported."""
        must_list = True
        while not is_cancelled():
            try:
                if must_list:
                    await self._list()
                    must_list = False
                await self._watch()
            except (Expired, Gone) as error:
                must_list = True
                self._note_failure(error)
                self._expiries += 1
                if self._expiries > 1:
                    await asyncio.sleep(self.limits.backoff.delay_s(self._expiries - 2, self._name))
            except (ApiError, CacheOverflow, StaleList) as error:
                must_list = must_list or not isinstance(error, ApiError)
                self._note_failure(error)
                await asyncio.sleep(self.limits.backoff.delay_s(self._failures - 1, self._name))
            except Exception as error:
                log.exception("informer of %s: unexpected error, listing again", self._name)
                must_list = True
                self._note_failure(error)
                await asyncio.sleep(self.limits.backoff.delay_s(self._failures - 1, self._name))

    def _note_failure(self, error: Exception) -> None:
        reason = error.reason if isinstance(error, ApiError) else type(error).__name__
        FAILURES.labels(*self._labels, reason).inc()
        if isinstance(error, Expired | Gone):
            log.info("informer of %s: history is gone, listing again: %s", self._name, error)
            return
        self._failures += 1
        if not self.last_error:
            log.warning("informer of %s can't follow the store: %s", self._name, error)
        self.last_error = f"{reason}: {error}"

    def _note_success(self) -> None:
        if self.last_error:
            log.info("informer of %s follows the store again", self._name)
        self.last_error = ""
        self._failures = 0

    async def _list(self) -> None:
        """Read all pages and make the cache equal to them. A snapshot that expires between pages is read without pages."""
        try:
            objects, version = await self._read_pages(self.limits.page_len)
        except (Expired, Gone):
            objects, version = await self._read_pages(0)
        if self._version and version != self._version and not is_newer(version, self._version):
            raise StaleList(
                f"a list of {self.resource.qualified} came at version {version}, but {self._version} was already seen; "
                "if the store was restored from a backup, restart this process"
            )
        self._replace(objects)
        self._version = version
        LISTS.labels(*self._labels).inc()
        self._note_success()
        self._synced.set()

    async def _read_pages(self, page_len: int) -> tuple[dict[ObjectKey, Cached | None], str]:
        """Objects by key (None for one that can't be read), and the version of the snapshot."""
        objects: dict[ObjectKey, Cached | None] = {}
        token = ""
        self.unreadable.clear()
        while True:
            items, version, token = await self._read_page(page_len, token)
            for key, obj, object_version in items:
                objects[key] = self._read(key, obj, object_version)
            if len(objects) > self.limits.objects_max:
                raise self._overflow()
            if not token:
                return objects, version

    async def _read_page(self, page_len: int, token: str) -> tuple[Iterable[tuple[ObjectKey, Raw | Encoded, str]], str, str]:
        """Objects with their keys and versions; the snapshot's version; the token of the next page."""
        if self._encoded is not None:
            records = self._encoded.list_records(
                self.resource, self.namespace, **self._selectors, limit=page_len, continue_token=token
            )
            items = [(ObjectKey(*record.key), record, str(record.rv)) for record in records.records]
            return items, records.resource_version, records.continue_token
        page = await self._store.list(self.resource, self.namespace, **self._selectors, limit=page_len, continue_token=token)
        raws = [(_raw_key(raw), raw, resource_version_of(raw)) for raw in page.items]
        return raws, page.resource_version, page.continue_token

    def _replace(self, objects: Mapping[ObjectKey, Cached | None]) -> None:
        for obj in self.cache:
            if obj.key not in objects:
                self._remove(obj.key, is_inferred=True)
        for key, new in objects.items():
            if new is not None:
                self._put(key, new, is_inferred=True)

    async def _watch(self) -> None:
        """Take in changes until the stream ends by itself; then it is time to resume."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        watch_s = self.limits.watch_s * (1 + 0.25 * spread(self._name, self._version))
        if self._encoded is not None:
            seen = await self._watch_encoded(self._encoded, watch_s)
        else:
            seen = await self._watch_raw(watch_s)
        if not seen and loop.time() - started_s < self.limits.backoff.base_s:
            # A server that ends watches at once must not be asked again at once.
            self._failures += 1
            await asyncio.sleep(self.limits.backoff.delay_s(self._failures - 1, self._name))
        elif not seen:
            self._note_moved()

    async def _watch_raw(self, watch_s: float) -> bool:
        """Whether anything came before the stream ended."""
        seen = False
        stream = self._store.watch(
            self.resource, self.namespace, **self._selectors, resource_version=self._version, timeout_s=watch_s
        )
        async with _closing(stream):
            async for event in stream:
                seen = True
                self._events.inc()
                self._take(event.type, _raw_key(event.object), event.object, event.resource_version)
                self._note_moved()
        return seen

    async def _watch_encoded(self, store: EncodedReads, watch_s: float) -> bool:
        """As `_watch_raw`, on records."""
        seen = False
        watch = store.watch_records(
            self.resource, self.namespace, **self._selectors, resource_version=self._version, timeout_s=watch_s
        )
        try:
            async for batch in watch:
                seen = True
                self._events.inc(len(batch))
                for event in batch:
                    record = event.record
                    self._take(event.type, ObjectKey(*record.key), record, str(record.rv))
                self._note_moved()
        finally:
            watch.close()
        return seen

    def _take(self, type_: EventType, key: ObjectKey, obj: Raw | Encoded, version: str) -> None:
        if not is_newer(version, self._version):
            STALE.labels(*self._labels).inc()
            return
        if type_ is EventType.DELETED:
            self.unreadable.pop(key, None)
            self._remove(key)
        elif type_ is not EventType.BOOKMARK:
            if key not in self.cache and len(self.cache) >= self.limits.objects_max:
                raise self._overflow()
            cached = self._read(key, obj, version)
            if cached is not None:
                self._put(key, cached)
        self._version = version

    def _note_moved(self) -> None:
        self._expiries = 0
        self._note_success()

    # -- keeping the cache --------------------------------------------------------------------------------------------

    def _read(self, key: ObjectKey, obj: Raw | Encoded, version: str) -> Cached | None:
        try:
            cached = Cached(self.resource.kind, obj, version, self.keep, self._views)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            self._note_unreadable(key, error)
            return None
        if self.unreadable.pop(key, None) is not None:
            UNREADABLE.labels(*self._labels).set(len(self.unreadable))
        return cached

    def _note_unreadable(self, key: ObjectKey, error: Exception) -> None:
        """The last readable version stays in the cache: taking it for deleted could free what is still in use."""
        log.warning("%s %s can't be read and is left as it was: %s", self.resource.kind, key, error)
        if len(self.unreadable) < _UNREADABLE_MAX:
            self.unreadable[key] = str(error)
        UNREADABLE.labels(*self._labels).set(len(self.unreadable))

    def _put(self, key: ObjectKey, obj: Cached, *, is_inferred: bool = False) -> None:
        old = self.cache.get(key)
        if old is not None and old.uid != obj.uid:
            self._remove(key, is_inferred=True)
            old = None
        if old is not None and old.resource_version == obj.resource_version:
            return
        self.cache.put(obj)
        if old is None:
            self._objects_gauge.set(len(self.cache))
        self._tell(Change(ChangeType.ADDED if old is None else ChangeType.UPDATED, old, obj, is_inferred))

    def _remove(self, key: ObjectKey, *, is_inferred: bool = False) -> None:
        old = self.cache.remove(key)
        if old is not None:
            self._objects_gauge.set(len(self.cache))
            self._tell(Change(ChangeType.DELETED, old, None, is_inferred))

    def _tell(self, change: Change) -> None:
        for handler in tuple(self._handlers.values()):
            self._call(handler, change)

    def _call(self, handler: Handler, change: Change) -> None:
        try:
            handler(change)
        except Exception:
            HANDLER_ERRORS.labels(*self._labels).inc()
            log.exception("a handler of %s failed on %s", self._name, change.newest)

    async def _resync_regularly(self) -> None:
        await self.wait_synced()
        await asyncio.sleep(self._resync_s * spread(self._name))
        while True:
            await asyncio.sleep(self._resync_s)
            self.resync()

    def _overflow(self) -> CacheOverflow:
        return CacheOverflow(
            f"more than {self.limits.objects_max} objects of {self.resource.qualified}: raise InformerLimits.objects_max "
            "or narrow the informer with a namespace or a selector"
        )


def _raw_key(raw: Raw) -> ObjectKey:
    return ObjectKey(namespace_of(raw), name_of(raw))


@contextlib.asynccontextmanager
async def _closing(stream: AsyncIterator[Any]) -> AsyncIterator[None]:
    """End the stream on the way out, whatever kind of async iterator it is."""
    try:
        yield
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
