"""Objects that were stored before the schema of their kind became what it is, as that schema has them: pruned, with defaults.

Kubernetes does this whenever it reads an object from etcd; here it is done when somebody reads one, and what comes of it is
kept until the object is written again. What is stored stays as it is, so that a definition that is put back brings back what
it knew. Which objects it concerns, their version says: those up to `until`. Kinds whose schema never changed while they had
objects pay nothing but the comparison with 0.

On the loop only. What is kept is at most one record for each object that is older than the schema.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from muster.objects.status import ApiError, Raw
from muster.objects.structural import Structural
from muster.store.embedded.records import Event, FieldPaths, Key, Record, encode, fields_of


class Reshaping:
    __slots__ = ("_kept", "_structural", "until")

    def __init__(self) -> None:
        self.until = 0
        """The last version that may have been stored under another schema; 0 when none was."""
        self._structural: Structural | None = None
        self._kept: dict[Key, Record] = {}

    def take(self, schema: Raw | None, until: int) -> None:
        """The schema of the stored version is this now. If it is another than before, what was stored up to `until` may need
        another shape."""
        if schema == (None if self._structural is None else self._structural.given):
            return
        self._structural = None if schema is None else Structural(schema)
        self.until = 0 if schema is None else until
        self._kept.clear()

    def none_before(self, rv: int) -> None:
        """Nothing is older than `rv`."""
        if rv > self.until:
            self.until = 0

    def forget(self, key: Key) -> None:
        """The object was written, or is gone."""
        if self._kept:
            self._kept.pop(key, None)

    def shown(self, record: Record, field_paths: FieldPaths, *, is_present: bool) -> Record:
        """Of a record up to `until`. Only what is `is_present` is kept: of the past nobody reads much."""
        kept = self._kept.get(record.key)
        if kept is not None and kept.rv == record.rv:
            return kept
        made = self._made(record, field_paths)
        if is_present:
            self._kept[record.key] = made
        return made

    def _made(self, record: Record, field_paths: FieldPaths) -> Record:
        structural = self._structural
        assert structural is not None
        raw = record.raw()
        try:
            shaped = structural.default(structural.prune(raw)[0])
        except (ApiError, RecursionError):
            return record  # too large with its defaults, which only a write can be told
        if shaped is raw:
            return record
        return msgspec.structs.replace(record, value=encode(shaped), fields=fields_of(shaped, field_paths))


def event_shown(event: Event, show: Callable[[Record], Record]) -> Event:
    previous = event.previous
    return Event(event.type, show(event.record), None if previous is None else show(previous))
