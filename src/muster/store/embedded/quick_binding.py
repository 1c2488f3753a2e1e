"""Binding a pod nobody has tried before, without the work that a general update needs.

A binding adds a node name, a condition and perhaps annotations. Where all of these are new to the object, no field changes
hands: the owners of the others stay as they are, and one entry is added to the managed fields that depends on nothing but the
shape of the addition. So what a general update finds by comparing two whole objects can be remembered (`_added_fields`), and
what the binding does not touch needs no decoding: it goes from the old version into the new one as the bytes that it is.

On the loop; pure but for that memory. Invariant: where `bound` answers at all, its answer equals that of a general update.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from muster.objects.patch.managed import track_update
from muster.objects.patch.managers import UPDATE_MANAGERS_MAX
from muster.objects.patch.shape import Schema
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.store.embedded.records import decode, encode

_SUBRESOURCE = "binding"
_SOMEBODY = {"manager": "a", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:x": {}}}

Parts = dict[str, Any]
"""An object whose members are values or, where nobody looked into them, still encoded (`msgspec.Raw`)."""


class _Entry(msgspec.Struct, rename="camel", gc=False):
    """An entry of the managed fields, as far as its order goes."""

    manager: str
    operation: str
    fields_type: str
    fields_v1: dict[str, msgspec.Raw] = msgspec.field(name="fieldsV1")
    time: str | None = None
    api_version: str | None = None
    subresource: str | None = None


_parts_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list_of = msgspec.json.Decoder(list[msgspec.Raw]).decode
_entry_of = msgspec.json.Decoder(_Entry).decode

Order = tuple[str, str, str, str, str]


class QuickBinder:
    def __init__(self) -> None:
        self._schema: Schema = None
        self._added_fields = functools.lru_cache(maxsize=256)(self._find_added_fields)

    def bound(
        self, value: bytes, node: str, annotations: Mapping[str, str] | None, *, manager: str, schema: Schema, now: float
    ) -> Parts | None:
        """The pod whose JSON is `value`, bound to `node`; None where only a general update is right."""
        try:
            return self._bound(value, node, annotations, manager=manager, schema=schema, now_text=format_time(now))
        except (KeyError, msgspec.ValidationError):
            return None

    def _bound(
        self, value: bytes, node: str, annotations: Mapping[str, str] | None, *, manager: str, schema: Schema, now_text: str
    ) -> Parts | None:
        """KeyError and msgspec.ValidationError when the pod is of an unusual shape."""
        pod: Parts = _parts_of(value)
        metadata: Parts = _parts_of(pod["metadata"])
        spec: Parts = _parts_of(pod["spec"])
        status: Parts = _parts_of(pod["status"])
        if "nodeName" in spec:
            return None
        conditions = _decoded(status, "conditions")
        known = _decoded(metadata, "annotations")
        if not _is_free(conditions) or (annotations and not _is_disjoint(annotations, known)):
            return None
        if "managedFields" in metadata:
            if schema is not self._schema:
                self._schema = schema
                self._added_fields.cache_clear()
            fields = self._added_fields(manager, conditions is not None, tuple(annotations or ()), known is not None)
            entry = {
                "manager": manager,
                "operation": "Update",
                "apiVersion": "v1",
                "time": now_text,
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
                "subresource": _SUBRESOURCE,
            }
            merged = _with_entry(_list_of(metadata["managedFields"]), entry, ("Update", now_text, manager, "v1", _SUBRESOURCE))
            if merged is None:
                return None
            metadata["managedFields"] = merged
        if annotations:
            metadata["annotations"] = {**(known or {}), **annotations}
        metadata["generation"] = (_decoded(metadata, "generation") or 0) + 1
        spec["nodeName"] = node
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text}
        status["conditions"] = [*(conditions or ()), scheduled]
        return {**pod, "metadata": metadata, "spec": spec, "status": status}

    def _find_added_fields(
        self, manager: str, has_conditions: bool, annotations: tuple[str, ...], has_annotations: bool
    ) -> msgspec.Raw:
        """What a general update says of such an addition, tried on a pod that has nothing else."""
        before: Raw = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "a", "managedFields": [_SOMEBODY]},
            "spec": {"restartPolicy": "Never"},
            "status": {"phase": "Pending"},
        }
        if has_annotations:
            before["metadata"]["annotations"] = {"\n": ""}
        if has_conditions:
            before["status"]["conditions"] = [{"type": "\n", "status": "True"}]
        after = {**before, "metadata": dict(before["metadata"]), "spec": {**before["spec"], "nodeName": "n"}}
        if annotations:
            known = before["metadata"].get("annotations") or {}
            after["metadata"]["annotations"] = known | dict.fromkeys(annotations, "")
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "x"}
        after["status"] = {**before["status"], "conditions": [*(before["status"].get("conditions") or ()), scheduled]}
        tracked = track_update(before, after, manager, self._schema, 0.0, _SUBRESOURCE)
        return msgspec.Raw(encode(next(e for e in tracked["metadata"]["managedFields"] if e.get("subresource"))["fieldsV1"]))


def _decoded(parts: Parts, name: str) -> Any:
    """The member, whole; None when it is null or not there."""
    value = parts.get(name)
    return None if value is None else decode.decode(value)


def _is_free(conditions: Any) -> bool:
    """Whether PodScheduled is new to these conditions, and each of them such that a general update would leave it as it is."""
    if conditions is None:
        return True
    return isinstance(conditions, list) and all(
        isinstance(c, dict) and c.get("type") != "PodScheduled" and "" not in c.values() for c in conditions
    )


def _is_disjoint(annotations: Mapping[str, str], known: Any) -> bool:
    return known is None or (isinstance(known, dict) and annotations.keys().isdisjoint(known))


def _with_entry(entries: list[msgspec.Raw], entry: Raw, mine: Order) -> list[Any] | None:
    """`entries` with one more in its place; None when they are not in order, or when one would have to give way."""
    if not 0 < len(entries) < UPDATE_MANAGERS_MAX:
        return None
    place, last = len(entries), None
    for index, other in enumerate(entries):
        key = _order(_entry_of(other))
        if key is None or key[4] == _SUBRESOURCE or (last is not None and key < last):
            return None
        if place == len(entries) and key > mine:
            place = index
        last = key
    return [*entries[:place], entry, *entries[place:]]


def _order(entry: _Entry) -> Order | None:
    """What managed fields are sorted by; None for what this file leaves to others."""
    if entry.fields_type != "FieldsV1" or not entry.fields_v1 or not entry.manager:
        return None
    return (entry.operation, entry.time or "", entry.manager, entry.api_version or "", entry.subresource or "")
