"""All objects of a kind as they were at one version, in order, read in pieces while the kind goes on changing.

A scan copies nothing: what has not changed since its version is read from the collection, and what has is undone by the
history. So it costs a key and what changed while it went on, however many objects there are. One that is read more slowly than
history is kept gets Expired.

On the loop only.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice

from muster.objects.status import Expired
from muster.store.embedded.collection import Collection
from muster.store.embedded.records import Key, Record


class Scan:
    def __init__(self, collection: Collection, rv: int, namespace: str | None, start: Key | None = None) -> None:
        """The caller has made sure that `rv` is not compacted."""
        self._collection = collection
        self._namespace = namespace
        self._next = start
        self._position = collection.history.after(rv)
        self._past: dict[Key, Record | None] = {}
        """Of what changed after `rv`: what it was then."""
        self._gone: list[Key] = []
        """Keys of the past that the present has no more, in order."""
        self.is_done = False

    def take(self, len_max: int) -> list[Record]:
        """The next objects, up to `len_max` and perhaps fewer; all of them when `is_done`."""
        self._catch_up()
        collection, past = self._collection, self._past
        keys = list(islice(collection.iter_keys(self._namespace, self._next), len_max + 1))
        is_last = len(keys) <= len_max
        if self._gone:
            lo = 0 if self._next is None else bisect_left(self._gone, self._next)
            hi = len(self._gone) if is_last else bisect_left(self._gone, keys[-1])
            keys = sorted([*keys, *self._gone[lo:hi]])
        self._next = None if is_last else keys.pop()
        self.is_done = is_last
        records = collection.records
        if not past:
            return [records[key] for key in keys]
        found = (past[key] if key in past else records[key] for key in keys)
        return [record for record in found if record is not None]

    def _catch_up(self) -> None:
        history = self._collection.history
        if self._position == history.end:
            return
        if self._position < history.first:
            raise Expired(
                f"too old resource version: the history of {self._collection.id} was compacted while they were read; list again"
            )
        past = self._past
        for event in history.read(self._position, history.end - self._position):
            past.setdefault(event.record.key, event.previous)
        self._position = history.end
        records, namespace = self._collection.records, self._namespace
        self._gone = sorted(key for key in past if key not in records and (namespace is None or key[0] == namespace))
