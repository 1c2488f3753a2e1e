"""The unit of work of one write: what it read, what it will change. Submitted whole or not at all.

On the loop only. A write may wait between reading and submitting (admission hooks do I/O); `is_stale` then tells whether
anything it read has changed, and the write starts over with a fresh transaction. Within one transaction, later operations
see what earlier ones will have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.store.contract import EventType
from muster.store.embedded.collection import Collection
from muster.store.embedded.core import Change, Core
from muster.store.embedded.records import Key, Record, decode, encode, record_of
from muster.store.embedded.rules import not_found


class Result:
    """What one operation comes to: a change that is still to be stored, or a record that already says it all."""

    __slots__ = ("change", "record")

    def __init__(self, *, change: Change | None = None, record: Record | None = None) -> None:
        self.change = change
        self.record = record


class Transaction:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._started_at = core.changes
        self._failures_before = core.counters.commit_failures
        self._changes: list[Change] = []
        self._seen: dict[tuple[str, Key], tuple[Collection, int]] = {}
        self._drafts: dict[tuple[str, Key], Record | None] = {}
        self._drafted_len = 0
        """Changes that have their draft. A draft is a copy: what an operation does later to its own object can't reach it."""
        self.rests_on_pending = False
        """Whether anything that was read is not on disk yet: then no answer may be given before it is."""

    @property
    def changes(self) -> Sequence[Change]:
        return self._changes

    def read(self, collection: Collection, key: Key) -> Record | None:
        """The object as this transaction finds it; a draft of its own has rv 0."""
        place = (collection.id, key)
        if place in self._drafts:
            return self._drafts[place]
        record = collection.latest(key)
        if key in collection.pending:
            self.rests_on_pending = True
        # What it was when it was first read: what was made of that must not be stored over anything else.
        self._seen.setdefault(place, (collection, record.rv if record is not None else 0))
        return None if record is None else collection.shown(record)

    def require(self, resource: Resource, collection: Collection, key: Key) -> Record:
        """As `read`; NotFound when there is none."""
        record = self.read(collection, key)
        if record is None:
            raise not_found(resource, key[1])
        return record

    def write(self, resource: Resource, collection: Collection, type_: EventType, raw: Raw, *, was: Record | None) -> Result:
        """Put a change down. `was` is what `read` returned for it."""
        meta = raw["metadata"]
        key = (meta.get("namespace") or "", meta["name"])
        return self._put(Change(resource, collection, type_, key, raw, previous=was))

    def write_parts(
        self, resource: Resource, collection: Collection, parts: Raw, *, was: Record, fields: Mapping[str, str]
    ) -> Result:
        """Put down a modification that is encoded in part, and after which the selectable fields are these (see `Change`)."""
        return self._put(Change(resource, collection, EventType.MODIFIED, was.key, parts, previous=was, fields=fields))

    def _put(self, change: Change) -> Result:
        self._changes.append(change)
        return Result(change=change)

    def keep_drafts(self) -> None:
        """Let the next operation see the changes so far. Only transactions of several operations need to pay for this."""
        fresh = self._changes[self._drafted_len :]
        self._drafted_len = len(self._changes)
        for change in fresh:
            place = (change.collection.id, change.key)
            if change.type is EventType.DELETED:
                self._drafts[place] = None
            else:
                draft: Raw = decode.decode(encode(change.raw))
                draft["metadata"].pop("resourceVersion", None)
                self._drafts[place] = record_of(draft, change.key, 0, change.collection.field_paths)

    async def is_founded(self) -> bool:
        """Whether everything that was read is on disk, as soon as that is decided.

        It may have failed while the write waited for something else: then nothing is in flight any more that could tell.
        """
        if not self.rests_on_pending:
            return True
        return self._core.counters.commit_failures == self._failures_before and await self._core.settle()

    @property
    def is_stale(self) -> bool:
        """Whether something that was read has changed since."""
        if self._core.changes == self._started_at:
            return False
        for (_, key), (collection, rv) in self._seen.items():
            record = collection.latest(key)
            if (record.rv if record is not None else 0) != rv:
                return True
        return False
