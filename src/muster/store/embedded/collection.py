"""All objects of one kind in memory: what is committed, what is on its way to disk, in order of name, with recent history.

On the loop only. Reads see `records` (committed); writes are checked against `latest` (committed, overlaid with pending).
A kind is stored once however many versions it is served in; `Record.api_version` tells which one was written.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from muster.store.contract import EventType
from muster.store.embedded.history import History
from muster.store.embedded.records import Event, FieldPaths, Key, Record, fields_of
from muster.store.embedded.reshaping import Reshaping

Matches = Callable[[Record], bool]
Topic = tuple[str, str]
"""A selectable field and a value of it."""
Waiter = asyncio.Future[tuple[Sequence[int], int]]
"""Of a watcher that has read everything. Its result: positions of events that may concern it, and a position before which no
other does."""
_WOKEN_AT_ONCE = 100
_AFTER_ANY_NAME = "\U0010ffff"


class Slice:
    """Part of a snapshot in order: `records` up to a limit, the key to go on from, and how many follow if that is known."""

    __slots__ = ("next_key", "records", "remaining")

    def __init__(self, records: list[Record], next_key: Key | None, remaining: int | None) -> None:
        self.records = records
        self.next_key = next_key
        self.remaining = remaining


class Collection:
    def __init__(self, id_: str) -> None:
        self.id = id_
        """`pods` or `kusciajobs.kuscia.secretflow`: how the log on disk names the kind."""
        self.records: dict[Key, Record] = {}
        self.pending: dict[Key, tuple[int, Record | None]] = {}
        """Staged and not yet committed: the version of the change, and the object after it (None when it deletes)."""
        self.history = History()
        self.field_paths: FieldPaths = ()
        self.api_version = ""
        """The version that new objects are stored in."""
        self.is_mixed = False
        """Whether objects may be stored in other versions than `api_version`: those of custom kinds that have several."""
        self.reshaping = Reshaping()
        self._keys: list[Key] = []
        self._waiters: dict[Waiter, None] = {}
        """In order of arrival: a set would wake them in an order that differs from run to run."""
        self._by_topic: dict[str, dict[str, dict[Waiter, None]]] = {}
        """Those that wait for a topic only, by field and value: the watches of a thousand nodes cost a change of one pod no
        more than those of ten."""
        self._told_to = 0
        """The position up to which watchers were woken."""

    # --- state ---------------------------------------------------------------------------------------------------

    def latest(self, key: Key) -> Record | None:
        """The object as the next write finds it."""
        pending = self.pending.get(key)
        return pending[1] if pending is not None else self.records.get(key)

    def shown(self, record: Record) -> Record:
        """The object as the kind's present schema has it: another than is stored if it is older than that."""
        reshaping = self.reshaping
        if record.rv > reshaping.until:
            return record
        return reshaping.shown(record, self.field_paths, is_present=self.records.get(record.key) is record)

    def apply(self, event: Event) -> None:
        """A change is on disk: show it to readers. Watchers are woken separately, once per batch."""
        record = event.record
        key = record.key
        if event.type is EventType.DELETED:
            if self.records.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        else:
            if key not in self.records:
                insort(self._keys, key)
            self.records[key] = record
            if record.api_version != self.api_version:
                self.is_mixed = True
        self.reshaping.forget(key)
        pending = self.pending.get(key)
        if pending is not None and pending[0] == record.rv:
            del self.pending[key]
        self.history.append(event)

    def restore(self, records: Sequence[Record]) -> None:
        """Set the committed state at once, when the store is opened."""
        self.records = {record.key: record for record in records}
        self._keys = sorted(self.records)
        self.reshaping.none_before(min((record.rv for record in records), default=0))

    def serve(self, api_versions: Sequence[str], stored: str, fields: Sequence[str]) -> None:
        """How the kind is served now: when the store opens, when a CRD is made or changed."""
        self.api_version = stored
        self.is_mixed = len(api_versions) > 1 or any(r.api_version != stored for r in self.records.values())
        self._set_fields(fields)

    def is_as_stored(self, api_version: str) -> bool:
        """Whether all there is can be shown in this version as it is, byte for byte, unless `reshaping` has it otherwise."""
        return api_version == self.api_version and not self.is_mixed

    def _set_fields(self, paths: Sequence[str]) -> None:
        """Make `paths` selectable. What is already here is read again."""
        field_paths = tuple((path, tuple(path.split("."))) for path in paths)
        if field_paths == self.field_paths:
            return
        self.field_paths = field_paths
        for key, record in self.records.items():
            self.records[key] = _with_fields(record, field_paths)
            self.reshaping.forget(key)
        for key, (rv, pending) in self.pending.items():
            if pending is not None:
                self.pending[key] = (rv, _with_fields(pending, field_paths))

    # --- reading -------------------------------------------------------------------------------------------------

    def keys_in(self, namespace: str | None) -> Sequence[Key]:
        """Committed keys in order; all namespaces when None."""
        lo, hi = self._range(namespace, None)
        return self._keys[lo:hi]

    def iter_keys(self, namespace: str | None, start: Key | None) -> Iterator[Key]:
        """Committed keys in order, from `start` on. The collection must not change meanwhile."""
        lo, hi = self._range(namespace, start)
        return map(self._keys.__getitem__, range(lo, hi))

    def has_any(self, namespace: str) -> bool:
        """Whether anything is in `namespace` or on its way into it."""
        lo, hi = self._range(namespace, None)
        if any(self.latest(key) is not None for key in self._keys[lo:hi]):
            return True
        return any(key[0] == namespace and record is not None for key, (_, record) in self.pending.items())

    def latest_in(self, namespace: str | None) -> Iterator[Record]:
        """The objects of `namespace` as the next write finds them, in no order. The collection must not change meanwhile."""
        for key in self.iter_keys(namespace, None):
            if (record := self.latest(key)) is not None:
                yield record
        for key, (_, record) in self.pending.items():
            if record is not None and key not in self.records and namespace in (None, key[0]):
                yield record

    def _range(self, namespace: str | None, start: Key | None) -> tuple[int, int]:
        keys = self._keys
        if namespace is None:
            return (bisect_left(keys, start) if start else 0), len(keys)
        first = (namespace, "")
        lo = bisect_left(keys, max(start, first) if start else first)
        return lo, bisect_left(keys, (namespace, _AFTER_ANY_NAME), lo=lo)

    def slice(self, namespace: str | None, matches: Matches | None, start: Key | None, limit: int) -> Slice:
        """The present, from `start` on; `limit` 0 takes all."""
        lo, hi = self._range(namespace, start)
        keys, records = self._keys, self.records
        found: list[Record] = []
        for index in range(lo, hi):
            record = records[keys[index]]
            if matches is not None and not matches(record):
                continue
            if limit and len(found) == limit:
                return Slice(found, keys[index], hi - index if matches is None else None)
            found.append(record)
        return Slice(found, None, None)

    def slice_at(self, rv: int, namespace: str | None, matches: Matches | None, start: Key | None, limit: int) -> Slice:
        """As `slice`, of the state just after `rv`, which the history still covers."""
        past = self._undone(rv)
        if not past:
            return self.slice(namespace, matches, start, limit)
        found: list[Record] = []
        next_key: Key | None = None
        following = 0
        for key in self._merged_keys(past, namespace, start):
            record = past[key] if key in past else self.records[key]
            if record is None or (matches is not None and not matches(record)):
                continue
            if next_key is not None:
                following += 1
            elif limit and len(found) == limit:
                next_key, following = key, 1
                if matches is not None:
                    break
            else:
                found.append(record)
        return Slice(found, next_key, following if next_key is not None and matches is None else None)

    def _undone(self, rv: int) -> Mapping[Key, Record | None]:
        """For each key that changed after `rv`, what it was then. Later changes are overwritten by earlier ones."""
        return {event.record.key: event.previous for event in self.history.backwards(rv)}

    def _merged_keys(self, past: Mapping[Key, Record | None], namespace: str | None, start: Key | None) -> Iterator[Key]:
        """Keys of the present and of `past` from `start` on, in order, without repeats."""
        lo, hi = self._range(namespace, start)
        gone = sorted(
            key
            for key in past
            if key not in self.records and (namespace is None or key[0] == namespace) and (start is None or key >= start)
        )
        position = 0
        for index in range(lo, hi):
            key = self._keys[index]
            while position < len(gone) and gone[position] < key:
                yield gone[position]
                position += 1
            yield key
        yield from gone[position:]

    # --- waking watchers -----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Let every watcher look at the history again that it may find something in."""
        first, self._told_to = self._told_to, self.history.end
        if self._waiters:
            _release_all(self._waiters, (), 0)
        for path, by_value in self._by_topic.items():
            if by_value and first < self.history.first:
                # What was dropped before it was told: nobody knows any more whom it concerned.
                for some in list(by_value.values()):
                    _release_all(some, (), 0)
            elif by_value:
                self._wake_topics(path, by_value, first)

    def _wake_topics(self, path: str, by_value: Mapping[str, dict[Waiter, None]], first: int) -> None:
        end = self.history.end
        found: dict[str, list[int]] = {}
        for position, event in enumerate(self.history.read(first, end - first), first):
            value = event.record.field(path)
            if value in by_value:
                found.setdefault(value, []).append(position)
            before = event.previous.field(path) if event.previous is not None else value
            if before != value and before in by_value:
                found.setdefault(before, []).append(position)
        for value, positions in found.items():
            _release_all(by_value[value], positions, end)

    def add_waiter(self, waiter: Waiter, topic: Topic | None = None) -> None:
        """With a topic, it is woken only by changes of objects that have this value, or had it before."""
        self._waiters_of(topic)[waiter] = None

    def is_waiting(self, waiter: Waiter, topic: Topic | None = None) -> bool:
        """Whether nothing has happened that will wake it. Of many that are woken some are told later: they wait no longer."""
        waiters = self._waiters if topic is None else self._by_topic.get(topic[0], {}).get(topic[1], {})
        return waiter in waiters

    def remove_waiter(self, waiter: Waiter, topic: Topic | None = None) -> None:
        self._waiters_of(topic).pop(waiter, None)
        if topic is not None and not self._by_topic[topic[0]][topic[1]]:
            del self._by_topic[topic[0]][topic[1]]

    def _waiters_of(self, topic: Topic | None) -> dict[Waiter, None]:
        return self._waiters if topic is None else self._by_topic.setdefault(topic[0], {}).setdefault(topic[1], {})


def _release_all(waiters: dict[Waiter, None], positions: Sequence[int], until: int) -> None:
    """Of many, some now and the others in the next rounds of the loop: whoever else has something to do comes in between."""
    released = list(waiters)
    waiters.clear()
    _release(released, 0, positions, until)


def _release(waiters: Sequence[Waiter], first: int, positions: Sequence[int], until: int) -> None:
    for waiter in waiters[first : first + _WOKEN_AT_ONCE]:
        if not waiter.done():
            waiter.set_result((positions, until))
    following = first + _WOKEN_AT_ONCE
    if following < len(waiters):
        asyncio.get_running_loop().call_soon(_release, waiters, following, positions, until)


def _with_fields(record: Record, field_paths: FieldPaths) -> Record:
    return msgspec.structs.replace(record, fields=fields_of(record.raw(), field_paths))
