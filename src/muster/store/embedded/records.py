"""What the store holds in memory: an object as encoded JSON with the few facts that reads need, and a change to one.

Immutable values (the one cached field of `Event` is filled at most once and never changes what it means), made on the
event loop and shared by every reader. Nobody decodes an object to serve it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.objects.status import Raw
from muster.store.contract import EventType

Key = tuple[str, str]
"""(namespace, name); namespace is "" for what is not namespaced."""

encode = msgspec.json.Encoder().encode
decode: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

TYPE_CODES: Mapping[EventType, int] = {EventType.ADDED: 1, EventType.MODIFIED: 2, EventType.DELETED: 3}
"""How the log on disk writes the type of a change."""
TYPES_BY_CODE: Mapping[int, EventType] = {code: type_ for type_, code in TYPE_CODES.items()}


class Owner(msgspec.Struct, frozen=True, gc=False):
    """An owner reference, as far as garbage collection and informers read it."""

    api_version: str
    kind: str
    name: str
    uid: str
    block: bool = False
    is_controller: bool = False


class Record(msgspec.Struct, frozen=True, gc=False):
    """One version of one object. `value` is its JSON, resourceVersion included; an unstored one (dry run) has rv 0."""

    key: Key
    rv: int
    uid: str
    api_version: str
    value: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    """The kind's selectable fields besides name and namespace; missing means ""."""
    owners: tuple[Owner, ...] = ()
    finalizers: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def namespace(self) -> str:
        return self.key[0]

    @property
    def name(self) -> str:
        return self.key[1]

    def raw(self) -> Raw:
        """A fresh decoded object that belongs to the caller."""
        raw: Raw = decode.decode(self.value)
        return raw

    def field(self, path: str) -> str:
        """For field selectors."""
        if path == "metadata.name":
            return self.key[1]
        if path == "metadata.namespace":
            return self.key[0]
        return self.fields.get(path, "")


FieldPaths = Sequence[tuple[str, tuple[str, ...]]]
"""Selectable fields, each with its path already split."""


def record_of(raw: Raw, key: Key, rv: int, field_paths: FieldPaths, value: bytes | None = None) -> Record:
    """The record of a well-formed object; `value` is its JSON if the caller has it."""
    meta = raw["metadata"]
    references = meta.get("ownerReferences")
    finalizers = meta.get("finalizers")
    return Record(
        key=key,
        rv=rv,
        uid=meta.get("uid") or "",
        api_version=raw.get("apiVersion") or "",
        value=encode(raw) if value is None else value,
        labels=dict(meta.get("labels") or ()),  # a copy: the object may still be its caller's
        fields=fields_of(raw, field_paths) if field_paths else {},
        owners=tuple(map(_owner, references)) if references else (),
        finalizers=tuple(finalizers) if finalizers else (),
        deleting=bool(meta.get("deletionTimestamp")),
    )


def fields_of(raw: Raw, field_paths: FieldPaths) -> dict[str, str]:
    """The values at the paths that have one, as field selectors compare them."""
    found: dict[str, str] = {}
    for path, parts in field_paths:
        node: Any = raw
        for part in parts:
            node = node.get(part) if isinstance(node, dict) else None
        if node is not None and (text := node if isinstance(node, str) else _text(node)):
            found[path] = text
    return found


def _owner(reference: Raw) -> Owner:
    return Owner(
        api_version=str(reference.get("apiVersion", "")),
        kind=str(reference.get("kind", "")),
        name=str(reference.get("name", "")),
        uid=str(reference.get("uid", "")),
        block=reference.get("blockOwnerDeletion") is True,
        is_controller=reference.get("controller") is True,
    )


def _text(value: Any) -> str:
    """Booleans as Go writes them; "" for what is no single value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else ""


class Event(msgspec.Struct, eq=False, gc=False):
    """A change, as watchers get it. `record` is the new version, or for DELETED the last one under the deletion's version."""

    type: EventType
    record: Record
    previous: Record | None
    _line: bytes | None = None

    @property
    def rv(self) -> int:
        return self.record.rv

    @property
    def line(self) -> bytes:
        """The event as one line of a watch response. Built once, whoever asks first; the same bytes go to every watcher."""
        line = self._line
        if line is None:
            line = self._line = b'{"type":"%b","object":%b}\n' % (self.type.encode(), self.record.value)
        return line

    def forget_line(self) -> None:
        """Give back the memory of `line` once the watchers that keep up have it."""
        self._line = None
