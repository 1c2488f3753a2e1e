"""Patch and server-side apply: what becomes of an object when a client says what shall change, or what it wants to own.

Steps inside a transaction (`writes.py`); on the loop, with pauses while a large configuration is merged. The result goes the
way of an update, or of a creation where an apply finds nothing. How patches are merged is in `objects/patch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.objects.patch.managed import apply_steps
from muster.objects.patch.shape import Schema
from muster.objects.patch.versions import Versions
from muster.objects.resources import Resource
from muster.objects.status import BadRequest, Raw, UnsupportedMediaType
from muster.objects.steps import done_in_turns
from muster.store.contract import PatchType, Preconditions
from muster.store.embedded import rules
from muster.store.embedded.context import WriteContext
from muster.store.embedded.core import Core
from muster.store.embedded.creates import Creates
from muster.store.embedded.parts import applied_part, patched_with
from muster.store.embedded.records import Key
from muster.store.embedded.registry import Registry
from muster.store.embedded.selection import in_version
from muster.store.embedded.shaping import Shaper
from muster.store.embedded.transaction import Result, Transaction
from muster.store.embedded.updates import Updates


class Patches:
    def __init__(self, core: Core, registry: Registry, shaper: Shaper, creates: Creates, updates: Updates) -> None:
        self._core = core
        self._registry = registry
        self._shaper = shaper
        self._creates = creates
        self._updates = updates

    async def patch(
        self,
        txn: Transaction,
        resource: Resource,
        name: str,
        patch: Raw | Sequence[Raw],
        context: WriteContext,
        *,
        namespace: str | None,
        patch_type: PatchType,
        subresource: str = "",
        tracked_as: str = "",
        preconditions: Preconditions | None = None,
    ) -> Result:
        """`tracked_as` is the subresource in the field manager's entry, for one that changes the object itself: `scale`."""
        served = self._updates.served_for_update(resource, subresource)
        if patch_type is PatchType.APPLY:
            key = rules.key_of(resource, name, namespace)
            if preconditions is not None:
                rules.check_preconditions(resource, txn.require(resource, served.collection, key), preconditions)
            return await self._apply(txn, resource, key, patch, context, subresource=subresource, tracked_as=tracked_as)
        if patch_type is PatchType.STRATEGIC and served.is_custom:
            raise UnsupportedMediaType(
                f"strategic merge patch is not supported for custom kinds such as {resource.kind}; send a merge patch",
                kind=resource.plural,
                group=resource.group,
            )
        key = rules.key_of(resource, name, namespace)
        record = txn.require(resource, served.collection, key)
        rules.check_preconditions(resource, record, preconditions)
        if patch_type is not PatchType.JSON:
            self._shaper.check_patch_size(resource, name, patch, len(record.value), context)
            await context.pause()
        current = in_version(record, resource).raw()
        # All but the status and metadata is taken from `current` then, so it may be read once and be part of both.
        is_shared = patch_type is PatchType.MERGE and subresource == "status"
        patched = patched_with(current, patch, patch_type, served.schema(resource))
        rules.check_same_kind(resource, patched)
        raw = rules.conform(resource, patched)
        rules.check_same_name(resource, raw, key)
        rules.check_version(resource, raw, record, required=False, is_patched=True)
        return await self._updates.replace(
            txn,
            resource,
            record,
            raw,
            context,
            subresource=subresource,
            tracked_as=tracked_as,
            current=current if is_shared else None,
        )

    async def _apply(
        self,
        txn: Transaction,
        resource: Resource,
        key: Key,
        patch: Raw | Sequence[Raw],
        context: WriteContext,
        *,
        subresource: str,
        tracked_as: str,
    ) -> Result:
        """Server-side apply: creates what is not there."""
        served = self._registry.find(resource)
        if not isinstance(patch, Mapping):
            raise BadRequest(f"an apply patch must be an object, not {type(patch).__name__}")
        config = applied_part(resource, rules.conform(resource, patch), subresource)
        config["metadata"].setdefault("name", key[1])
        rules.check_same_name(resource, config, key)
        record = txn.read(served.collection, key)
        if record is None and subresource:
            raise rules.not_found(resource, key[1])
        self._shaper.check_patch_size(resource, key[1], config, len(record.value) if record is not None else 0, context)
        await context.pause()
        schema, beside = served.schema(resource), served.beside(resource)
        live = in_version(record, resource).raw() if record is not None else None
        now = self._core.clock()
        if live is None or record is None:
            if uid := config["metadata"].get("uid"):
                why = (
                    f"what is applied names the uid {uid!s:.100}, but there is no such object; leave the uid out to create one"
                )
                raise rules.conflict(resource, key[1], why)
            key = self._creates.new_key(txn, served, resource, config, key[0] or None)
            raw = await self._applied(None, config, schema, beside, now, context)
            return await self._creates.create_applied(txn, served, resource, raw, key, context, now=now)
        rules.check_version(resource, config, record, required=False)
        merged = await self._applied(live, config, schema, beside, now, context, subresource=tracked_as or subresource)
        merged = rules.conform(resource, merged)
        return await self._updates.replace(txn, resource, record, merged, context, subresource=subresource, is_applied=True)

    async def _applied(  # noqa: PLR0917 - the order of `apply_steps`
        self,
        live: Raw | None,
        config: Raw,
        schema: Schema,
        beside: Versions,
        now: float,
        context: WriteContext,
        *,
        subresource: str = "",
    ) -> Raw:
        options = context.options
        steps = apply_steps(
            live, config, options.field_manager, schema, now, options.force, subresource=subresource, beside=beside
        )
        return await done_in_turns(steps, context.pause)
