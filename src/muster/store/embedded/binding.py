"""Binding a pod nobody has tried before, without the work that a general update needs.

A binding adds a node name, a condition and perhaps annotations. Where all of these are new to the object, no field changes
hands: the owners of the others stay as they are, and one entry is added to the managed fields that depends on nothing but the
shape of the addition. So what a general update finds by comparing two whole objects can be remembered (`_added_fields`).

On the loop; pure but for that memory. Invariant: where `bound` answers at all, its answer equals that of a general update.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from muster.objects.patch.managed import track_update
from muster.objects.patch.managers import UPDATE_MANAGERS_MAX
from muster.objects.patch.shape import Schema
from muster.objects.status import Raw
from muster.objects.time import format_time

_SUBRESOURCE = "binding"
_SOMEBODY = {"manager": "a", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:x": {}}}


class QuickBinder:
    def __init__(self) -> None:
        self._schema: Schema = None
        self._added_fields = functools.lru_cache(maxsize=256)(self._find_added_fields)

    def bound(
        self, pod: Raw, node: str, annotations: Mapping[str, str] | None, *, manager: str, schema: Schema, now: float
    ) -> Raw | None:
        """`pod`, which is consumed, bound to `node`; None, with `pod` untouched, where only a general update is right."""
        metadata, spec, status = pod["metadata"], pod.get("spec"), pod.get("status")
        if not isinstance(spec, dict) or not isinstance(status, dict) or "nodeName" in spec:
            return None
        conditions = status.get("conditions")
        known = metadata.get("annotations")
        if not _is_free(conditions) or (annotations and not _is_disjoint(annotations, known)):
            return None
        entries = metadata.get("managedFields")
        now_text = format_time(now)
        if entries is not None:
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
            merged = _with_entry(entries, entry)
            if merged is None:
                return None
            metadata["managedFields"] = merged
        if annotations:
            metadata["annotations"] = {**(known or {}), **annotations}
        metadata["generation"] = (metadata.get("generation") or 0) + 1
        spec["nodeName"] = node
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text}
        status["conditions"] = [*(conditions or ()), scheduled]
        return pod

    def _find_added_fields(
        self, manager: str, has_conditions: bool, annotations: tuple[str, ...], has_annotations: bool
    ) -> Raw:
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
        fields: Raw = next(e for e in tracked["metadata"]["managedFields"] if e.get("subresource"))["fieldsV1"]
        return fields


def _is_free(conditions: Any) -> bool:
    """Whether PodScheduled is new to these conditions, and each of them such that a general update would leave it as it is."""
    if conditions is None:
        return True
    return isinstance(conditions, list) and all(
        isinstance(c, dict) and c.get("type") != "PodScheduled" and "" not in c.values() for c in conditions
    )


def _is_disjoint(annotations: Mapping[str, str], known: Any) -> bool:
    return known is None or (isinstance(known, dict) and annotations.keys().isdisjoint(known))


def _with_entry(entries: Any, entry: Raw) -> list[Raw] | None:
    """`entries` with one more in its place; None when they are not in order, or when one would have to give way."""
    if not isinstance(entries, list) or not 0 < len(entries) < UPDATE_MANAGERS_MAX:
        return None
    mine = _order(entry)
    place, last = len(entries), None
    for index, other in enumerate(entries):
        key = _order(other)
        if key is None or key[4] == _SUBRESOURCE or (last is not None and key < last):
            return None
        if place == len(entries) and mine is not None and key > mine:
            place = index
        last = key
    return [*entries[:place], entry, *entries[place:]]


def _order(entry: Any) -> tuple[str, str, str, str, str] | None:
    """What managed fields are sorted by; None for what this file leaves to others."""
    if not isinstance(entry, dict) or entry.get("fieldsType") != "FieldsV1" or not entry.get("fieldsV1"):
        return None
    operation, time, manager = entry.get("operation"), entry.get("time") or "", entry.get("manager")
    version, subresource = entry.get("apiVersion") or "", entry.get("subresource") or ""
    if not manager or not all(type(word) is str for word in (operation, time, manager, version, subresource)):
        return None
    return (operation, time, manager, version, subresource)  # type: ignore[return-value]
