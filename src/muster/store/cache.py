"""What an informer remembers: objects by key, with indexes.

Plain data structures without tasks or clocks; `muster.store.informer` fills them. A `Cached` never changes: a new version of
an object is a new `Cached`, so that what a controller has read stays as it was while it decides.

Concurrency: used on one event loop; methods do not suspend, so that each sees one consistent state.

Invariant: an index holds a key under a value exactly when the index function gives that value for the cached object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from muster.objects.meta import controller_of, is_deleting, labels_of, name_of, namespace_of, owners_of, uid_of
from muster.objects.selectors import LabelQuery
from muster.objects.status import Raw
from muster.objects.view import View, view_of
from muster.store.encoded import Encoded

V = TypeVar("V", bound=View)

Keep = Literal["raw", "bytes", "nothing"]
"""What to hold besides the views. `bytes` is a fifth of the memory of `raw` and gives every reader its own copy; `raw` costs
no decoding and must not be changed by readers; `nothing` is for kinds read only through their view."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class ObjectKey(NamedTuple):
    """Where an object is, within its kind. `namespace` is empty for cluster-wide kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Cached:
    """One version of one object."""

    __slots__ = (
        "_kept",
        "_views",
        "controller_uid",
        "deleting",
        "key",
        "kind",
        "labels",
        "owner_uids",
        "resource_version",
        "uid",
    )

    def __init__(self, kind: str, obj: Raw | Encoded, resource_version: str, keep: Keep, views: Iterable[type[View]]) -> None:
        """Raises msgspec.ValidationError when `obj` does not fit one of `views`."""
        self.kind = kind
        self.resource_version = resource_version
        if isinstance(obj, dict):
            self._take_raw(obj, keep, views)
        else:
            self._take_encoded(obj, keep, views)

    def _take_raw(self, raw: Raw, keep: Keep, views: Iterable[type[View]]) -> None:
        self.key = ObjectKey(namespace_of(raw), name_of(raw))
        self.uid = uid_of(raw)
        self.labels: Mapping[str, str] = labels_of(raw)
        self.owner_uids = tuple(str(owner.get("uid", "")) for owner in owners_of(raw))
        controller = controller_of(raw)
        self.controller_uid = str(controller.get("uid", "")) if controller else ""
        self.deleting = is_deleting(raw)
        self._views: dict[type[View], View] = {cls: view_of(cls, raw) for cls in views}
        self._kept: Raw | bytes | None = _encoder.encode(raw) if keep == "bytes" else raw if keep == "raw" else None

    def _take_encoded(self, obj: Encoded, keep: Keep, views: Iterable[type[View]]) -> None:
        self.key = ObjectKey(*obj.key)
        self.uid = obj.uid
        self.labels = obj.labels
        owners = obj.owners
        self.owner_uids = tuple(owner.uid for owner in owners) if owners else ()
        self.controller_uid = next((owner.uid for owner in owners if owner.is_controller), "") if owners else ""
        self.deleting = obj.deleting
        value = obj.value
        self._views = {cls: view_of(cls, value) for cls in views}
        self._kept = value if keep == "bytes" else _decoder.decode(value) if keep == "raw" else None

    @property
    def raw(self) -> Raw:
        """The whole object: the caller's own copy when bytes are kept, else shared and only for reading."""
        if isinstance(self._kept, bytes):
            decoded: Raw = _decoder.decode(self._kept)
            return decoded
        if self._kept is None:
            raise LookupError(f"{self.kind} {self.key}: this informer keeps views only; ask for it with keep='bytes'")
        return self._kept

    def view(self, cls: type[V]) -> V:
        """The object as `cls`, decoded once. Treat it as immutable, others hold it too."""
        view = self._views.get(cls)
        if view is None:
            view = self._views[cls] = view_of(cls, self.raw)
        assert isinstance(view, cls)
        return view

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key} at {self.resource_version}>"


IndexFunction = Callable[[Cached], Iterable[str]]


def by_namespace(obj: Cached) -> Iterable[str]:
    return (obj.key.namespace,)


def by_owner(obj: Cached) -> Iterable[str]:
    """Every owner's uid."""
    return obj.owner_uids


def by_controller(obj: Cached) -> Iterable[str]:
    """The uid of the one owner that manages it."""
    return (obj.controller_uid,) if obj.controller_uid else ()


def by_label(label: str) -> IndexFunction:
    """Objects that carry `label`, by its value."""

    def index(obj: Cached) -> Iterable[str]:
        value = obj.labels.get(label)
        return () if value is None else (value,)

    return index


NAMESPACE_INDEX = "namespace"
OWNER_INDEX = "owner"
CONTROLLER_INDEX = "controller"


class Cache:
    """Objects of one kind by key, and by the value of each index."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, Cached] = {}
        self._functions: dict[str, IndexFunction] = {}
        # Dicts stand for ordered sets: iteration must not depend on how strings hash in this process.
        self._indexes: dict[str, dict[str, dict[ObjectKey, None]]] = {}
        for name, function in ((NAMESPACE_INDEX, by_namespace), (OWNER_INDEX, by_owner), (CONTROLLER_INDEX, by_controller)):
            self.add_index(name, function)

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Cached]:
        return iter(tuple(self._objects.values()))

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._objects

    def get(self, key: ObjectKey) -> Cached | None:
        return self._objects.get(key)

    def keys(self) -> list[ObjectKey]:
        return list(self._objects)

    def select(self, namespace: str | None = None, selector: LabelQuery | None = None) -> list[Cached]:
        """All objects, or those of a namespace; sorted by key, so that equal caches read equal however they were filled."""
        found = self._objects.values() if namespace is None else self.by_index(NAMESPACE_INDEX, namespace)
        return sorted((o for o in found if selector is None or selector.matches(o.labels)), key=_key_of)

    def by_index(self, index: str, value: str) -> list[Cached]:
        """Objects for which the index has `value`, sorted by key. LookupError when nobody added such an index."""
        values = self._indexes.get(index)
        if values is None:
            raise LookupError(f"no index {index!r}; there are {', '.join(self._indexes)}")
        return sorted((self._objects[key] for key in values.get(value, ())), key=_key_of)

    def index_len(self, index: str, value: str) -> int:
        """How many objects `by_index` would give, without looking at any. LookupError as there."""
        values = self._indexes.get(index)
        if values is None:
            raise LookupError(f"no index {index!r}; there are {', '.join(self._indexes)}")
        return len(values.get(value, ()))

    def add_index(self, name: str, function: IndexFunction) -> None:
        """Index also what is there already. The same function again changes nothing; another one is refused."""
        known = self._functions.get(name)
        if known is not None:
            if known is not function:
                raise ValueError(f"index {name!r} exists with another function")
            return
        self._functions[name] = function
        self._indexes[name] = {}
        for obj in self._objects.values():
            self._index(name, function(obj), obj.key)

    def put(self, obj: Cached) -> Cached | None:
        """Store `obj`; the version that it replaces, if there was one. When an index function raises, nothing has changed."""
        old = self._objects.get(obj.key)
        moves = []
        for name, function in self._functions.items():
            before, after = () if old is None else tuple(function(old)), tuple(function(obj))
            if before != after:
                moves.append((name, before, after))
        self._objects[obj.key] = obj
        for name, before, after in moves:
            self._unindex(name, before, obj.key)
            self._index(name, after, obj.key)
        return old

    def remove(self, key: ObjectKey) -> Cached | None:
        old = self._objects.pop(key, None)
        if old is not None:
            for name, function in self._functions.items():
                self._unindex(name, function(old), key)
        return old

    def check_invariants(self) -> None:
        for name, function in self._functions.items():
            expected: dict[str, set[Any]] = {}
            for obj in self._objects.values():
                for value in function(obj):
                    expected.setdefault(value, set()).add(obj.key)
            assert {value: set(keys) for value, keys in self._indexes[name].items()} == expected, f"index {name} is off"

    def _index(self, name: str, under: Iterable[str], key: ObjectKey) -> None:
        values = self._indexes[name]
        for value in under:
            values.setdefault(value, {})[key] = None

    def _unindex(self, name: str, under: Iterable[str], key: ObjectKey) -> None:
        values = self._indexes[name]
        for value in under:
            keys = values.get(value)
            if keys is not None:
                keys.pop(key, None)
                if not keys:
                    del values[value]


def _key_of(obj: Cached) -> ObjectKey:
    return obj.key
