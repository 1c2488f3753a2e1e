"""From the log on disk to the state in memory: runs once, before anyone uses the store, on whatever thread opens it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from muster.objects.status import Raw
from muster.store.contract import EventType
from muster.store.embedded.collection import Collection
from muster.store.embedded.core import Core
from muster.store.embedded.custom import CRD_ID, CustomKinds
from muster.store.embedded.database import Database, Row
from muster.store.embedded.errors import StoreCorrupt
from muster.store.embedded.facts import facts_of
from muster.store.embedded.records import TYPES_BY_CODE, Event, FieldPaths, Key, Record, decode, record_of


def load(core: Core, custom: CustomKinds, database: Database) -> list[int]:
    """Fill `core` from `database`. Returns the versions of rows that an interrupted compaction left behind.

    Definitions of custom kinds come first: they say which fields of the others can be selected by.
    """
    rows = list(database.load())
    horizon = database.horizon
    for rv, crd in _definitions(rows, database):
        try:
            custom.serve(crd, rv)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"version {rv} of {CRD_ID} {crd['metadata'].get('name')} is no definition: {error!r}"
            raise StoreCorrupt(database.path, what) from error
    loader = _Loader(core, database, horizon)
    for row in rows:
        loader.add(row)
    heads: dict[str, list[Record]] = {}
    for (id_, _), record in loader.heads.items():
        if record is not None:
            heads.setdefault(id_, []).append(record)
    for id_, records in heads.items():
        core.collection(id_).restore(records)
    core.restore(rows[-1].rv if rows else 0, horizon, loader.events)
    return loader.leftovers


class _Loader:
    def __init__(self, core: Core, database: Database, horizon: int) -> None:
        self._core = core
        self._database = database
        self._horizon = horizon
        self.heads: dict[tuple[str, Key], Record | None] = {}
        self.events: list[tuple[Event, Collection]] = []
        self.leftovers: list[int] = []

    def add(self, row: Row) -> None:
        collection = self._core.collection(row.resource)
        key = (row.namespace, row.name)
        place = (row.resource, key)
        facts = _checked(row, self._database, collection.field_paths)
        record = record_of(facts, key, row.rv, collection.field_paths, row.value)
        previous = self.heads.get(place)
        type_ = TYPES_BY_CODE[row.type]
        self.heads[place] = None if type_ is EventType.DELETED else record
        if row.rv > self._horizon:
            self.events.append((Event(type_, record, previous), collection))
            return
        if previous is not None:
            self.leftovers.append(previous.rv)
        if type_ is EventType.DELETED:
            self.leftovers.append(row.rv)


def _definitions(rows: Iterable[Row], database: Database) -> list[tuple[int, Raw]]:
    """With the version of each."""
    last: dict[str, Row] = {row.name: row for row in rows if row.resource == CRD_ID}
    return [
        (row.rv, decode.decode(row.value))
        for row in last.values()
        if TYPES_BY_CODE.get(row.type) is not EventType.DELETED and _checked(row, database, ())
    ]


def _checked(row: Row, database: Database, field_paths: FieldPaths) -> Raw:
    """What a record needs of the row's object, which is well-formed as far as that goes."""
    try:
        facts = facts_of(row.value, field_paths)
        if isinstance(facts, dict) and isinstance(facts.get("metadata"), dict) and row.type in TYPES_BY_CODE:
            return facts
        why = "it is no object"
    except msgspec.DecodeError as error:
        why = str(error)
    raise StoreCorrupt(database.path, f"version {row.rv} of {row.resource} {row.namespace}/{row.name} can't be read: {why}")
