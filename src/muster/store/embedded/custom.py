"""CustomResourceDefinitions: from an object in the store to a kind that it serves.

A definition is accepted or refused when it is written (its schema must be structural), its status is set in the same write,
and the kind is there when the write returns. While a definition is being deleted its kind takes nothing new; it goes after
the last of its objects and what they owned (`garbage.py`).

On the loop. `prepare` is pure but for reading the registry, and what is on its way to disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.objects.conditions import is_true, set_condition
from muster.objects.crd import crd_warnings, resource_from_crd, schema_from_crd, storage_version
from muster.objects.status import Raw
from muster.store.contract import EventType
from muster.store.embedded.collection import Collection
from muster.store.embedded.context import WriteContext
from muster.store.embedded.core import Core
from muster.store.embedded.records import Event, Record
from muster.store.embedded.registry import Registry, Served

CRD_ID = "customresourcedefinitions.apiextensions.k8s.io"
FINALIZER_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


class CustomKinds:
    def __init__(self, core: Core, registry: Registry) -> None:
        self._core = core
        self._registry = registry

    def prepare(self, raw: Raw, old: Raw | None, context: WriteContext) -> Raw:
        """A definition with the status that follows from its spec. It has been validated."""
        for warning in crd_warnings(raw):
            context.warn(warning)
        result = {**raw, "metadata": dict(raw["metadata"])}
        name, spec = result["metadata"]["name"], raw["spec"]
        before = (old or {}).get("status") or {}
        promised = self._promised(name, spec["group"])
        problem = self._registry.name_conflict(name, spec["group"], _claimed(spec["names"]), promised)
        now = self._core.clock()
        conditions = set_condition(
            before.get("conditions"),
            type_="NamesAccepted",
            status="False" if problem else "True",
            reason="NamesConflict" if problem else "NoConflicts",
            message=problem or "no conflicts found",
            now=now,
        )
        if not is_true(conditions, "Established"):
            conditions = set_condition(
                conditions,
                type_="Established",
                status="False" if problem else "True",
                reason="NotAccepted" if problem else "InitialNamesAccepted",
                message="not all names are accepted" if problem else "the initial names have been accepted",
                now=now,
            )
        stored = storage_version(raw)
        kept = [version for version in before.get("storedVersions") or [] if version != stored]
        result["status"] = {
            "conditions": conditions,
            "acceptedNames": (before.get("acceptedNames") or {}) if problem else spec["names"],
            "storedVersions": [*kept, stored],
        }
        if old is None and not self._registry.is_built_in(name):
            finalizers = [f for f in result["metadata"].get("finalizers") or [] if f != FINALIZER_CLEANUP]
            result["metadata"]["finalizers"] = [*finalizers, FINALIZER_CLEANUP]
        return result

    def _promised(self, name: str, group: str) -> dict[str, str]:
        """Whose the names are of other definitions of the group that are on their way to disk: of two that come together only
        one has a name."""
        found: dict[str, str] = {}
        for _, record in self._core.collection(CRD_ID).pending.values():
            raw = record.raw() if record is not None and record.name != name else {}
            if raw and raw["spec"]["group"] == group and is_true(raw["status"]["conditions"], "NamesAccepted"):
                found |= {
                    claimed: raw["metadata"]["name"] for some in _claimed(raw["spec"]["names"]).values() for claimed in some
                }
        return found

    def on_event(self, collection: Collection, event: Event) -> None:
        """A definition was committed: serve what it says from now on."""
        if collection.id != CRD_ID:
            return
        if event.type is EventType.DELETED:
            self._registry.drop_custom(event.record.name)
        else:
            collection = self._core.collection(event.record.name)
            has_any = collection.records or collection.pending or len(collection.history)
            self.serve(event.record.raw(), event.rv if has_any else 0)

    def serve(self, crd: Raw, until: int) -> None:
        """`until`: the last version that may have been stored under another definition, which is the version of this one:
        nothing of a kind is accepted while its definition is on its way to disk (`Writes.run`)."""
        name = crd["metadata"]["name"]
        if self._registry.is_built_in(name):
            return
        resources = resource_from_crd(crd)
        if not resources or not is_true((crd.get("status") or {}).get("conditions"), "Established"):
            self._registry.drop_custom(name)
            return
        stored_version = storage_version(crd)
        # The version that objects are kept in need not be one that is served.
        stored = msgspec.structs.replace(resources[0], version=stored_version)
        stored = next((resource for resource in resources if resource.version == stored_version), stored)
        schemas = {resource.api_version: schema_from_crd(crd, resource.version) for resource in resources}
        collection = self._core.collection(name)
        served = Served(resources, stored, collection, {v: s for v, s in schemas.items() if s is not None})
        collection.reshaping.take(schema_from_crd(crd, stored_version), until)
        served.is_terminating = bool(crd["metadata"].get("deletionTimestamp"))
        self._registry.serve_custom(served)


def with_terminating_condition(raw: Raw, left: Sequence[Record], now: float) -> Raw | None:
    """Say which finalizers keep objects of the kind, so that whoever waits for the definition sees why.

    Not how many objects: that changes with each that goes, and each change would be a write.
    """
    held = ", ".join(sorted({finalizer for record in left for finalizer in record.finalizers}))
    if not held:
        return None
    status = raw.get("status") or {}
    conditions = set_condition(
        status.get("conditions"),
        type_="Terminating",
        status="True",
        reason="InstanceDeletionInProgress",
        message=f"objects of the kind are left, kept by finalizers: {held}",
        now=now,
    )
    if conditions == status.get("conditions"):
        return None
    raw["status"] = {**status, "conditions": conditions}
    return raw


def _claimed(names: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """The names that must be unique within a group."""
    return {
        "plural": [names.get("plural", "")],
        "singular": [names.get("singular", "")],
        "shortNames": names.get("shortNames") or [],
        "kind": [names.get("kind", "")],
        "listKind": [names.get("listKind", "")],
    }
