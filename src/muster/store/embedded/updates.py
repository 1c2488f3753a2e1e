"""Update: what a client sends takes the place of what is stored, as far as the part of the object goes that it writes to.

Steps inside a transaction (`writes.py`); on the loop. Patches and applies end here too (`replace`), and all changes of an
object that is there, the store's own included, in `put`: what differs in nothing is no change, and an object under deletion
that gave up its last hold is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muster.objects.resources import Resource
from muster.objects.status import NotFound, Raw
from muster.store.contract import EventType, Preconditions
from muster.store.embedded import rules
from muster.store.embedded.context import WriteContext
from muster.store.embedded.deletion import may_go
from muster.store.embedded.parts import replace_part
from muster.store.embedded.records import Key, Record
from muster.store.embedded.registry import Registry, Served
from muster.store.embedded.selection import in_version
from muster.store.embedded.shaping import Shaper
from muster.store.embedded.transaction import Result, Transaction

_UPDATABLE = frozenset({"", "status", "finalize", "approval"})
_VERSION_REQUIRED = frozenset(
    {
        "customresourcedefinitions.apiextensions.k8s.io",
        "leases.coordination.k8s.io",
        "poddisruptionbudgets.policy",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "volumeattachments.storage.k8s.io",
    }
)
"""Built-in kinds that Kubernetes never replaces without a resourceVersion; custom kinds are all like that."""


class Updates:
    def __init__(self, registry: Registry, shaper: Shaper) -> None:
        self._registry = registry
        self._shaper = shaper

    async def update(
        self,
        txn: Transaction,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None,
        context: WriteContext,
        *,
        subresource: str = "",
        preconditions: Preconditions | None = None,
        version_required: bool = False,
    ) -> Result:
        """`version_required` refuses, as Kubernetes' API does, to replace some kinds unless the object names a version."""
        served = self.served_for_update(resource, subresource)
        raw = rules.conform(resource, obj)
        key = (rules.check_namespace(resource, raw, namespace), rules.require_name(resource, raw))
        record = txn.require(resource, served.collection, key)
        rules.check_preconditions(resource, record, preconditions)
        required = version_required and not subresource and (served.is_custom or resource.qualified in _VERSION_REQUIRED)
        rules.check_version(resource, raw, record, required=required)
        return await self.replace(txn, resource, record, raw, context, subresource=subresource, is_sent=True)

    async def replace(
        self,
        txn: Transaction,
        resource: Resource,
        record: Record,
        raw: Raw,
        context: WriteContext,
        *,
        subresource: str,
        tracked_as: str = "",
        is_applied: bool = False,
        is_sent: bool = False,
        current: Raw | None = None,
    ) -> Result:
        """Store `raw` over `record`, as far as `subresource` lets it. `current` is what `record` says, where that is known."""
        served = self._registry.find(resource)
        shaped = served.shaped_as(resource)
        if shaped is not resource:
            current, raw = record.raw(), served.as_stored(resource, raw)
        elif current is None:
            current = in_version(record, resource).raw()
        if subresource == "status":
            raw = rules.replace_status(shaped, current, raw)
        elif subresource:
            raw = replace_part(current, raw, subresource)
        else:
            raw = rules.replace(shaped, current, raw)
        managed = raw["metadata"].get("managedFields")
        raw = await self._shaper.shape(
            served, shaped, raw, current, context, subresource=subresource, asked=resource, is_sent=is_sent
        )
        if not subresource:
            raw = self._shaper.hooked(served, raw, current, context)
        await self._shaper.pause(served, context)
        if is_applied:
            raw["metadata"].pop("managedFields", None)
            if managed is not None:
                raw["metadata"]["managedFields"] = managed
        else:
            raw = self._shaper.track(served, resource, raw, current, context, subresource=tracked_as or subresource)
        await self._shaper.pause(served, context)
        return self.put(txn, served, shaped, record, current, raw, is_status=subresource == "status")

    def put(  # noqa: PLR0917 - what is to change, then from what to what
        self,
        txn: Transaction,
        served: Served,
        asked: Resource,
        record: Record,
        current: Raw,
        raw: Raw,
        *,
        is_status: bool = False,
    ) -> Result:
        """The change from `current` to `raw`, both in the version `asked` for: nothing, a new version, or, when it gave up its
        last hold, the object's end."""
        if asked.conversion is not None:
            current, raw = record.raw(), served.as_stored(asked, raw)
        resource = served.stored
        rules.advance_generation(resource, current, raw, is_status=is_status)
        if rules.is_unchanged(current, raw) and record.value == _stored_value(served, record):
            return Result(record=record)
        raw["apiVersion"] = resource.api_version
        type_ = EventType.DELETED if may_go(resource, raw) else EventType.MODIFIED
        return txn.write(resource, served.collection, type_, raw, was=record)

    def modify(
        self,
        txn: Transaction,
        resource: Resource,
        key: Key,
        change: Callable[[Raw], Raw | None],
        *,
        uid: str = "",
    ) -> Result | None:
        """The store's own change to an object, past hooks and schemas. None when it is gone, is another one, or needs none."""
        served = self._registry.find(resource)
        record = txn.read(served.collection, key)
        if record is None or (uid and record.uid != uid):
            return None
        current = record.raw()
        raw = change(record.raw())
        return None if raw is None else self.put(txn, served, resource, record, current, raw)

    def served_for_update(self, resource: Resource, subresource: str) -> Served:
        """How the kind is served. NotFound for a subresource that can't be written."""
        served = self._registry.find(resource)
        if subresource and (subresource not in _UPDATABLE or subresource not in resource.subresources):
            raise NotFound(
                f"the server could not find the requested resource: {resource.qualified} have no subresource {subresource!r} "
                "that can be written",
                kind=resource.plural,
                group=resource.group,
            )
        return served


def _stored_value(served: Served, record: Record) -> bytes:
    """What is stored of an object that may be shown in another shape: as in Kubernetes, a write that changes nothing of what is
    shown puts that shape down."""
    stored = served.collection.latest(record.key)
    return record.value if stored is None or stored.rv != record.rv else stored.value
