"""Recording Events: what `kubectl describe` shows under an object, without ever holding up or failing who records.

`Correlator` (plain data, clock handed in) decides what there is to say:
- the same thing about the same object again raises `count` of one Event;
- after `similar_max` different messages with the same reason within `similar_window_s`, further ones share an Event whose
  message says that it is combined;
- each object has a bucket of `burst` Events that refills slowly; what exceeds it is dropped and counted.

`EventRecorder` is the shell: `event` only notes; one task writes. Occurrences that pile up while the store is slow or away
melt into counts, so memory is bounded by the number of distinct Events remembered (`remembered_max`), not by how long it lasts.

Concurrency: one event loop. `event` is a plain call and raises nothing.
Invariant: the sum of counts written plus occurrences dropped equals the occurrences recorded, once the recorder has flushed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from prometheus_client import Counter, Gauge

from muster.objects.meta import metadata_of
from muster.objects.resources import Resource
from muster.objects.status import AlreadyExists, ApiError, BadRequest, Forbidden, Invalid, NotFound, Raw
from muster.objects.time import Clock, format_time
from muster.store.backoff import Backoff, is_cancelled
from muster.store.contract import Store

log = logging.getLogger(__name__)

RECORDED = Counter("muster_events_recorded", "Occurrences handed to the recorder.", ["component"])
WRITTEN = Counter("muster_events_written", "Events created or updated in the store.", ["component"])
DROPPED = Counter("muster_events_dropped", "Occurrences that were not written.", ["component", "why"])
PENDING = Gauge("muster_events_pending", "Events that wait to be written.", ["component"])

NORMAL: Literal["Normal"] = "Normal"
WARNING: Literal["Warning"] = "Warning"
EventKind = Literal["Normal", "Warning"]

_MESSAGE_LEN_MAX = 1024
_NAME_LEN_MAX = 253
_REFERENCE_FIELDS = ("apiVersion", "kind", "namespace", "name", "uid", "resourceVersion", "fieldPath")
_COMBINED = "(combined from similar events): "


class EventLimits(msgspec.Struct, frozen=True, kw_only=True):
    similar_max: int = 10
    similar_window_s: float = 600.0
    burst: int = 25
    refill_s: float = 300.0
    remembered_max: int = 4_096
    attempts_max: int = 6
    backoff: Backoff = Backoff(base_s=0.5, max_s=15.0)


def reference_to(regarding: Mapping[str, Any], field_path: str = "") -> Raw:
    """The ObjectReference to an object, or `regarding` itself when it is one already."""
    meta = metadata_of(regarding)
    source: dict[str, Any] = {**meta, **{k: regarding.get(k) for k in ("apiVersion", "kind")}} if meta else dict(regarding)
    if field_path:
        source["fieldPath"] = field_path
    return {key: value for key in _REFERENCE_FIELDS if isinstance(value := source.get(key), str) and value}


class _Entry:
    """One Event, existing or to be made."""

    __slots__ = (
        "attempts",
        "count",
        "first_s",
        "is_stored",
        "key",
        "last_s",
        "message",
        "name",
        "reason",
        "regarding",
        "type",
        "unwritten",
    )

    def __init__(self, key: tuple[str, ...], regarding: Raw, type_: EventKind, reason: str, now_s: float) -> None:
        self.key = key
        self.regarding = regarding
        self.type = type_
        self.reason = reason
        self.message = ""
        self.name = ""
        """Chosen once, so that a create that is tried again after an unknown outcome can't make a second Event."""
        self.is_stored = False
        self.count = 0
        self.unwritten = 0
        self.attempts = 0
        self.first_s = self.last_s = now_s


class _Similar:
    __slots__ = ("messages", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.messages: set[str] = set()


class _Bucket:
    __slots__ = ("at_s", "tokens")

    def __init__(self, tokens: float, at_s: float) -> None:
        self.tokens = tokens
        self.at_s = at_s


class Correlator:
    """Folds occurrences into entries. All memories are bounded and forget what was used least recently."""

    def __init__(self, limits: EventLimits) -> None:
        self._limits = limits
        self._entries: OrderedDict[tuple[str, ...], _Entry] = OrderedDict()
        self._similar: OrderedDict[tuple[str, ...], _Similar] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, ...], _Bucket] = OrderedDict()

    def observe(self, regarding: Raw, type_: EventKind, reason: str, message: str, now_s: float) -> _Entry | None:
        """The entry that now also stands for this occurrence; None when its object has had too many."""
        who = tuple(str(regarding.get(k, "")) for k in ("apiVersion", "kind", "namespace", "name", "uid", "fieldPath"))
        if not self._has_token(who, now_s):
            return None
        message = message[:_MESSAGE_LEN_MAX]
        kind = (*who, type_, reason)
        if self._is_one_of_many(kind, message, now_s):
            key, message = (*kind, _COMBINED), (_COMBINED + message)[:_MESSAGE_LEN_MAX]
        else:
            key = (*kind, message)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, regarding, type_, reason, now_s)
        self._entries.move_to_end(key)
        entry.message = message
        entry.count += 1
        entry.unwritten += 1
        entry.last_s = now_s
        return entry

    def trim(self) -> list[_Entry]:
        """Forget the oldest entries beyond the limit; they are returned, since some may not have been written."""
        forgotten = []
        while len(self._entries) > self._limits.remembered_max:
            forgotten.append(self._entries.popitem(last=False)[1])
        return forgotten

    def forget(self, entry: _Entry) -> None:
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]

    def _is_one_of_many(self, kind: tuple[str, ...], message: str, now_s: float) -> bool:
        similar = self._similar.get(kind)
        if similar is None or now_s - similar.since_s > self._limits.similar_window_s:
            similar = self._similar[kind] = _Similar(now_s)
        self._touch(self._similar, kind)
        if message in similar.messages:
            return False
        if len(similar.messages) >= self._limits.similar_max:
            return True
        similar.messages.add(message)
        return False

    def _has_token(self, who: tuple[str, ...], now_s: float) -> bool:
        bucket = self._buckets.get(who)
        if bucket is None:
            bucket = self._buckets[who] = _Bucket(float(self._limits.burst), now_s)
        self._touch(self._buckets, who)
        bucket.tokens = min(float(self._limits.burst), bucket.tokens + (now_s - bucket.at_s) / self._limits.refill_s)
        bucket.at_s = now_s
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def _touch(self, memory: OrderedDict[tuple[str, ...], Any], key: tuple[str, ...]) -> None:
        memory.move_to_end(key)
        if len(memory) > self._limits.remembered_max:
            memory.popitem(last=False)


class EventRecorder:
    """See the module. `start` it, call `event`, `stop` it (which gives what is pending a moment to be written)."""

    def __init__(
        self, store: Store, *, component: str, clock: Clock, instance: str = "", limits: EventLimits | None = None
    ) -> None:
        self.component = component
        self.instance = instance or component
        self.limits = limits or EventLimits()
        self._store = store
        self._clock = clock
        self._correlator = Correlator(self.limits)
        self._pending: OrderedDict[tuple[str, ...], _Entry] = OrderedDict()
        self._has_pending = asyncio.Event()
        self._is_flushed = asyncio.Event()
        self._is_flushed.set()
        self._task: asyncio.Task[None] | None = None
        self._resource: Resource | None = None
        self._serial = 0
        self._recorded = RECORDED.labels(component)
        self._written = WRITTEN.labels(component)
        self._pending_gauge = PENDING.labels(component)

    def event(self, regarding: Mapping[str, Any], type_: EventKind, reason: str, message: str, *, field_path: str = "") -> None:
        """Note that `reason` happened to `regarding` (an object or an ObjectReference). Never blocks, never raises."""
        self._recorded.inc()
        reason = str(reason)  # a `Reason` is a str to Python, but not to a store that checks types
        reference = reference_to(regarding, field_path)
        if not reference.get("kind") or not reference.get("name"):
            self._drop(1, "no object")
            return
        entry = self._correlator.observe(reference, type_, reason, message, self._clock())
        if entry is None:
            self._drop(1, "too many")
            return
        self._pending[entry.key] = entry
        for forgotten in self._correlator.trim():
            self._pending.pop(forgotten.key, None)
            self._drop(forgotten.unwritten, "forgotten")
        self._signal()

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._write_forever(), name=f"events of {self.component}")

    async def flush(self) -> None:
        """Until nothing is pending."""
        await self._is_flushed.wait()

    async def stop(self, flush_s: float = 2.0) -> None:
        """Write what is pending for at most `flush_s`, then end."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(flush_s):
                await self.flush()
        except TimeoutError:
            self._drop(sum(entry.unwritten for entry in self._pending.values()), "stopped")
        finally:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _signal(self) -> None:
        self._pending_gauge.set(len(self._pending))
        if self._pending:
            self._has_pending.set()
            self._is_flushed.clear()
        else:
            self._has_pending.clear()
            self._is_flushed.set()

    def _drop(self, count: int, why: str) -> None:
        if count:
            DROPPED.labels(self.component, why).inc(count)

    async def _write_forever(self) -> None:
        while not is_cancelled():
            await self._has_pending.wait()
            entry = next(iter(self._pending.values()))
            unwritten = entry.unwritten
            try:
                await self._write(entry)
            except (Forbidden, Invalid, BadRequest) as error:
                # The namespace is going away, or the store will not have it: asking again will not help.
                self._give_up(entry, error)
            except ApiError as error:
                entry.attempts += 1
                if entry.attempts >= self.limits.attempts_max:
                    self._give_up(entry, error)
                else:
                    if self._pending.get(entry.key) is entry:
                        self._pending.move_to_end(entry.key)
                    await asyncio.sleep(self.limits.backoff.delay_s(entry.attempts - 1, entry.key))
            except Exception as error:
                log.exception("events of %s: unexpected error", self.component)
                self._give_up(entry, error)
            else:
                self._written.inc()
                entry.attempts = 0
                entry.unwritten -= unwritten
                if not entry.unwritten:
                    self._unqueue(entry)
            self._signal()

    def _unqueue(self, entry: _Entry) -> None:
        # While it was being written, it may have been forgotten and its key taken by a successor.
        if self._pending.get(entry.key) is entry:
            del self._pending[entry.key]

    def _give_up(self, entry: _Entry, error: Exception) -> None:
        log.info("event %s of %s not recorded: %s", entry.reason, entry.regarding.get("name"), error)
        self._unqueue(entry)
        self._correlator.forget(entry)
        self._drop(entry.unwritten, "refused")

    async def _write(self, entry: _Entry) -> None:
        if self._resource is None:
            self._resource = await self._store.resource("", "Event")
        namespace = entry.regarding.get("namespace") or "default"
        if not entry.is_stored:
            entry.name = entry.name or self._new_name(entry)
            try:
                await self._store.create(self._resource, self._body(entry, namespace), namespace)
            except AlreadyExists:
                # An earlier try got through after all; the patch below brings it up to date.
                entry.is_stored = True
            else:
                entry.is_stored = True
                return
        patch = {"count": entry.count, "lastTimestamp": format_time(entry.last_s), "message": entry.message}
        try:
            await self._store.patch(self._resource, entry.name, patch, namespace)
        except NotFound:
            # It has expired; it is said anew under another name.
            entry.is_stored, entry.name = False, self._new_name(entry)
            await self._store.create(self._resource, self._body(entry, namespace), namespace)
            entry.is_stored = True

    def _new_name(self, entry: _Entry) -> str:
        self._serial += 1
        identity = repr((self.instance, self._serial, self._clock(), entry.key))
        unique = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        return f"{str(entry.regarding['name'])[: _NAME_LEN_MAX - len(unique) - 1]}.{unique}"

    def _body(self, entry: _Entry, namespace: str) -> Raw:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": entry.name, "namespace": namespace},
            "involvedObject": {**entry.regarding, "namespace": entry.regarding.get("namespace", "")},
            "reason": entry.reason,
            "message": entry.message,
            "type": entry.type,
            "count": entry.count,
            "firstTimestamp": format_time(entry.first_s),
            "lastTimestamp": format_time(entry.last_s),
            "source": {"component": self.component, "host": self.instance},
            "reportingComponent": self.component,
            "reportingInstance": self.instance,
        }
