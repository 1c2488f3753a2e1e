"""Who owns whom: the owner references of everything committed, both ways. On the loop only.

An owner is looked up as Kubernetes does, by kind and name in the dependent's own namespace (or without one), and must have the
uid that the reference names. A reference into another namespace therefore counts as an owner that is gone. A reference to a
kind that is not served, or from a cluster-wide object to a namespaced one, can't be resolved; nothing is deleted for it.
That is why a kind is served until what its objects owned is gone (`garbage.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import NamedTuple

from muster.objects.resources import Resource
from muster.store.contract import EventType
from muster.store.embedded.collection import Collection
from muster.store.embedded.deletion import FINALIZER_FOREGROUND
from muster.store.embedded.records import Event, Key, Owner, Record
from muster.store.embedded.registry import Registry


class Item(NamedTuple):
    """An object, by where it is and which one it was there."""

    collection_id: str
    key: Key
    uid: str


class OwnerState(enum.Enum):
    SOLID = "solid"
    GONE = "gone"
    WAITING = "waiting for its dependents"


def _committed(collection: Collection, key: Key) -> Record | None:
    return collection.records.get(key)


def _group(owner: Owner) -> str:
    return owner.api_version.rpartition("/")[0]


Read = Callable[[Collection, Key], Record | None]
"""How an owner is looked up: what is committed, or what a transaction finds."""


class Dependents:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        # Dicts as ordered sets: what is collected first must not depend on the hash seed.
        self._by_owner: dict[str, dict[Item, None]] = {}

    def restore(self, collections: Iterable[Collection]) -> None:
        for collection in collections:
            for record in collection.records.values():
                self._add(collection, record)

    def on_event(self, collection: Collection, event: Event) -> None:
        if event.previous is not None:
            item = Item(collection.id, event.previous.key, event.previous.uid)
            for owner in event.previous.owners:
                known = self._by_owner.get(owner.uid)
                if known is not None:
                    known.pop(item, None)
                    if not known:
                        del self._by_owner[owner.uid]
        if event.type is not EventType.DELETED:
            self._add(collection, event.record)

    def _add(self, collection: Collection, record: Record) -> None:
        for owner in record.owners:
            self._by_owner.setdefault(owner.uid, {})[Item(collection.id, record.key, record.uid)] = None

    def of(self, uid: str) -> list[Item]:
        return list(self._by_owner.get(uid, ()))

    def state(self, dependent: Record, owner: Owner, read: Read = _committed) -> OwnerState:
        found = self.find(dependent, owner, read)
        if found is None:
            return OwnerState.GONE
        record = found[1]
        if record is not None and record.deleting and FINALIZER_FOREGROUND in record.finalizers:
            return OwnerState.WAITING
        return OwnerState.SOLID

    def states(self, dependent: Record, read: Read = _committed) -> dict[str, OwnerState]:
        """By the uid that a reference names. Of several that name the same one, the last counts."""
        return {owner.uid: self.state(dependent, owner, read) for owner in dependent.owners}

    def is_lost_with(self, kind: Resource, dependent: Record) -> bool:
        """Whether an object is still to be collected, or to be released, because an owner of this kind is gone."""
        mine = [owner for owner in dependent.owners if (_group(owner), owner.kind) == (kind.group, kind.kind)]
        if not mine or dependent.deleting:
            return False
        states = self.states(dependent)
        return any(states[owner.uid] is OwnerState.GONE for owner in mine)

    def find(self, dependent: Record, owner: Owner, read: Read = _committed) -> tuple[Collection | None, Record | None] | None:
        """Where the owner is; (None, None) when that can't be resolved, None when it is gone."""
        served = self._registry.find_kind(_group(owner), owner.kind)
        if served is None or (served.stored.namespaced and not dependent.namespace):
            return (None, None)
        key = (dependent.namespace if served.stored.namespaced else "", owner.name)
        record = read(served.collection, key)
        return (served.collection, record) if record is not None and record.uid == owner.uid else None
