"""What one object only may have: whoever comes second is refused, also when both come at once.

A `Rule` says which keys the objects of a kind take: the logins of a User, being the default among PriorityClasses. For each
kind that has a rule, `UniqueKeys` knows who has which key, writes in flight included, and has a say in every transaction as a
whole (see `Accounts`): so one that gives a key up and lets another take it passes, and of two writes in flight one is refused.
An object is judged by what it takes with this write, not by what it has already: two that have one key, because they were let
in before there was a rule, can still be changed, and set right.

Concurrency: on the event loop, memory only; every method does its work without waiting. Nothing is stored: what is known
follows from the objects, read once at the start, and taken back from them when a commit fails. A write of a kind without a
rule costs one look into a dict.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from muster.objects.status import Raw
from muster.server.admission import refused_object
from muster.store.contract import EventType
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.admission import Actor, Charge
from muster.store.embedded.core import Change
from muster.store.embedded.records import Key

K = TypeVar("K", bound=Hashable)


class Rule(ABC, Generic[K]):
    """One kind, and what of it is one object's only. Pure; objects are in the version that is stored."""

    kind: str
    """As `Resource.qualified` has it."""

    @abstractmethod
    def keys_of(self, raw: Raw) -> frozenset[K]:
        """What the object takes. Asked at every write of the kind."""

    def judges(self, actor: Actor | None) -> bool:
        """Whether it holds for what this one writes. What others take counts all the same."""
        return True

    def in_the_way(self, key: K, taken: Mapping[K, Any]) -> Iterable[K]:
        """The keys among those taken that can't be somebody else's beside this one."""
        return (key,) if key in taken else ()

    @abstractmethod
    def refusal(self, key: K, other: str) -> str:
        """What whoever wants the key is told, which that other object has."""


class _Taken(Generic[K]):
    """Who has what, of one kind."""

    def __init__(self, rule: Rule[K]) -> None:
        self.rule = rule
        self.by_object: dict[Key, frozenset[K]] = {}
        self.by_key: dict[K, dict[Key, None]] = {}

    def put(self, owner: Key, keys: frozenset[K]) -> None:
        before = self.by_object.pop(owner, frozenset())
        for key in before - keys:
            owners = self.by_key[key]
            del owners[owner]
            if not owners:
                del self.by_key[key]
        for key in keys - before:
            self.by_key.setdefault(key, {})[owner] = None
        if keys:
            self.by_object[owner] = keys

    def taken_by(self, changes: Iterable[Change]) -> dict[Key, frozenset[K]]:
        """Of each object that takes or gives up something: what it has in the end."""
        after: dict[Key, frozenset[K]] = {}
        for change in changes:
            after[change.key] = frozenset() if change.type is EventType.DELETED else self.rule.keys_of(change.raw)
        return {owner: keys for owner, keys in after.items() if keys != self.by_object.get(owner, frozenset())}

    def conflict(self, after: Mapping[Key, frozenset[K]]) -> tuple[Key, K, Key] | None:
        """Who takes what of whom, if things become so; None when nobody does."""
        taken: dict[K, Key] = {}
        """By what is judged here already."""
        for owner, keys in after.items():
            for key in keys - self.by_object.get(owner, frozenset()):
                for other in self._others(key, after):
                    if other != owner:
                        return owner, key, other
                for same in self.rule.in_the_way(key, taken):
                    if taken[same] != owner:
                        return owner, key, taken[same]
            taken.update(dict.fromkeys(keys, owner))
        return None

    def _others(self, key: K, after: Mapping[Key, frozenset[K]]) -> Iterable[Key]:
        """Those who have it, or what is in its way, and keep that."""
        for same in self.rule.in_the_way(key, self.by_key):
            for other in self.by_key[same]:
                if other not in after or same in after[other]:
                    yield other


class UniqueKeys:
    """See the module. `start` before the server serves."""

    def __init__(self, store: EmbeddedStore, rules: Iterable[Rule[Any]]) -> None:
        self._store = store
        self._taken: dict[str, _Taken[Any]] = {rule.kind: _Taken(rule) for rule in rules}

    def start(self) -> None:
        """Read what is there, and judge from now on."""
        for kind, taken in self._taken.items():
            for record in self._store.latest_records(kind):
                taken.put(record.key, taken.rule.keys_of(record.raw()))
        self._store.keep_accounts(self)

    def charge(self, changes: Sequence[Change], actor: Actor | None) -> Charge | None:
        concerned: dict[str, list[Change]] | None = None
        for change in changes:
            if change.collection.id in self._taken and change.fields is None:
                concerned = concerned if concerned is not None else {}
                concerned.setdefault(change.collection.id, []).append(change)
        if concerned is None:
            return None
        become: list[tuple[_Taken[Any], dict[Key, frozenset[Any]]]] = []
        for kind, some in concerned.items():
            taken = self._taken[kind]
            after = taken.taken_by(some)
            found = taken.conflict(after) if taken.rule.judges(actor) else None
            if found is not None:
                (_, name), key, (_, other) = found
                raise refused_object(some[0].resource, name, taken.rule.refusal(key, other))
            if after:
                become.append((taken, after))
        return Charge(lambda: _note(become)) if become else None

    def dropped(self, changed: Sequence[tuple[str, Key]]) -> None:
        for kind, key in changed:
            taken = self._taken.get(kind)
            if taken is not None:
                record = self._store.latest_record(kind, key)
                taken.put(key, frozenset() if record is None else taken.rule.keys_of(record.raw()))


def _note(become: Iterable[tuple[_Taken[Any], Mapping[Key, frozenset[Any]]]]) -> None:
    for taken, after in become:
        for owner, keys in after.items():
            taken.put(owner, keys)
