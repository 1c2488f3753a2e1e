"""Everything that a store holds at one version: what a backup is made of.

From a running store it is taken on the loop, in one turn, from what is committed. It holds references to immutable records, so
it costs no copy, waits for no lock, and no writer waits for it; whatever is written later goes to new records beside it. From a
store that nobody runs it is read from the file, which is only read.

The history is not in it: whoever comes back to a snapshot has to list anew, because what followed it never happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from muster.store.contract import EventType
from muster.store.embedded.core import Core
from muster.store.embedded.database import Database, Row
from muster.store.embedded.records import TYPE_CODES, Record

_ADDED = TYPE_CODES[EventType.ADDED]
_DELETED = TYPE_CODES[EventType.DELETED]


class Snapshot(NamedTuple):
    """`entries` are in no order; `rows` puts them into that of their versions, on whatever thread."""

    identity: bytes
    resource_version: int
    entries: list[tuple[str, Record]] | list[Row]

    def rows(self) -> list[Row]:
        """Each object as its only version, in order."""
        return sorted(map(_row, self.entries), key=lambda row: row.rv)


def _row(entry: tuple[str, Record] | Row) -> Row:
    if isinstance(entry, Row):
        return entry._replace(type=_ADDED, prev=None)
    resource, record = entry
    return Row(record.rv, resource, *record.key, _ADDED, None, record.value)


def snapshot_of(core: Core) -> Snapshot:
    """What readers see now. On the loop."""
    return Snapshot(core.identity, core.committed_rv, list(_records(core)))


def _records(core: Core) -> Iterator[tuple[str, Record]]:
    for collection in core.collections.values():
        for record in collection.records.values():
            yield collection.id, record


def snapshot_of_file(directory: Path) -> Snapshot:
    """Of a store that nobody has open. Raises StoreError, and FileNotFoundError when there is none."""
    database = Database.open_to_read(directory)
    try:
        heads: dict[tuple[str, str, str], Row] = {}
        version = max(database.horizon, 1)
        for row in database.load():
            version = max(version, row.rv)
            place = (row.resource, row.namespace, row.name)
            if row.type == _DELETED:
                heads.pop(place, None)
            else:
                heads[place] = row
        return Snapshot(database.identity, version, list(heads.values()))
    finally:
        database.abandon()
