"""Create, update, patch and delete: each a step inside a transaction, each transaction submitted in one turn of the loop.

On the loop. A step reads through its transaction, may wait for admission hooks, and puts its change down. `run` submits when
nothing that was read has changed meanwhile, nor the kinds that are served, and otherwise builds the transaction anew: so an
update that names a version fails with Conflict, and one that does not is applied to what is there now.

Invariant: no answer, good or bad, rests on something that is not on disk. A refusal that came from a pending write waits for
that write's end, and is thought over again when it failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from muster.objects.names import Entropy, generated_name, random_uid
from muster.objects.patch.managed import apply_steps
from muster.objects.patch.shape import Schema
from muster.objects.patch.versions import Versions
from muster.objects.resources import Resource
from muster.objects.status import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Cause,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    Raw,
    ServiceUnavailable,
    UnsupportedMediaType,
)
from muster.objects.steps import done_in_turns
from muster.objects.time import format_time
from muster.store.contract import EventType, PatchType, Preconditions, Propagation
from muster.store.embedded import rules
from muster.store.embedded.admission import Accounts
from muster.store.embedded.core import Core, encoded
from muster.store.embedded.custom import CRD_ID
from muster.store.embedded.deletion import is_namespace, may_go, plan_delete
from muster.store.embedded.patching import applied_part, patched_with, replace_part
from muster.store.embedded.records import Key, Record
from muster.store.embedded.registry import Registry, Served
from muster.store.embedded.selection import in_version
from muster.store.embedded.shaping import Shaper, WriteContext
from muster.store.embedded.transaction import Result, Transaction

Build = Callable[[Transaction], Awaitable[Sequence[Result]]]
Hook = Callable[[Raw, Raw | None, WriteContext], Raw]
"""What a kind adds of its own to a valid object before it is stored: (new, old, context) -> new."""

_ATTEMPTS_MAX = 10
_NAME_ATTEMPTS_MAX = 8
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


class Writes:
    def __init__(self, core: Core, registry: Registry, shaper: Shaper, entropy: Entropy) -> None:
        self._core = core
        self._registry = registry
        self._shaper = shaper
        self._entropy = entropy
        self._definitions = core.collection(CRD_ID)
        self.hooks: dict[str, Hook] = {}
        """By kind (`Resource.qualified`)."""
        self.accounts: Accounts | None = None

    # --- running -------------------------------------------------------------------------------------------------

    async def run(self, build: Build, *, dry_run: bool = False) -> list[Record]:
        """Build, submit, wait for the disk. One record per result, in the stored version."""
        core = self._core
        core.check_open()
        for _ in range(_ATTEMPTS_MAX):
            transaction, kinds = Transaction(core), self._registry.revision
            try:
                results = await build(transaction)
            except ApiError as error:
                if isinstance(error, AlreadyExists) and transaction.is_stale:
                    continue  # not when it was first looked for: an apply is merged with it, a generated name is drawn again
                if not await transaction.is_founded():
                    continue
                raise
            except RecursionError:
                raise BadRequest("the object is nested too deeply; flatten it") from None
            if transaction.is_stale or self._registry.revision != kinds:
                continue
            changes, charge = transaction.changes, None
            pending = self._definitions.pending
            if pending and not dry_run and any(("", one.collection.id) in pending for one in changes):
                await core.settle()  # what it has to look like is being changed: it is shaped by that then
                continue
            if self.accounts is not None and changes:
                try:
                    charge = self.accounts.charge(changes)
                except ApiError:
                    if not await core.settle():
                        continue
                    raise
            if dry_run or not changes:
                if not await transaction.is_founded():
                    continue
                return [self._unstored(result) for result in results]
            for resource, key, change in charge.notes if charge is not None else ():
                self.modify(transaction, resource, key, change)
            records, committed = core.submit(changes, charge.staged if charge is not None else None)
            if committed.done():
                # Committed on the loop itself. A write is a place where others get to run, whichever way it is done.
                await asyncio.sleep(0)
            await committed
            by_change = dict(zip(map(id, changes), records, strict=True))
            return [_stored(result, by_change) for result in results]
        raise ServiceUnavailable(
            f"gave up after {_ATTEMPTS_MAX} attempts: the objects of this write change faster than its admission hooks answer; "
            "send it again",
            retry_after_s=1,
        )

    def _unstored(self, result: Result) -> Record:
        if result.record is not None:
            return result.record
        change = result.change
        assert change is not None
        record = encoded(change, 0)
        self._core.check_size(change.resource, record)
        return record

    # --- create --------------------------------------------------------------------------------------------------

    async def create(
        self, txn: Transaction, resource: Resource, obj: Mapping[str, Any], namespace: str | None, context: WriteContext
    ) -> Result:
        served = self._registry.find(resource)
        raw = rules.conform(resource, obj)
        key = self._new_key(txn, served, resource, raw, namespace)
        now_text = format_time(self._core.clock())
        # A node reports its state when it registers; everyone else's status comes later, through the subresource.
        drop_status = resource.has_status and not (resource.kind == "Node" and resource.group == "")
        if parts := rules.dropped(raw, drop_status=drop_status):
            self._shaper.check_dropped(served, resource, key[1], parts)
        shaped = served.shaped_as(resource)
        if shaped is not resource:
            raw = served.as_stored(resource, raw)
        rules.stamp_new(resource, raw, uid=random_uid(self._entropy), now_text=now_text, drop_status=drop_status)
        raw = await self._shaper.shape(served, shaped, raw, None, context, asked=resource, is_sent=True)
        raw = self._hooked(served, raw, None, context)
        await self._pause(served, context)
        raw = self._shaper.track(served, resource, raw, None, context)
        await self._pause(served, context)
        return self._put_new(txn, served, shaped, key, raw)

    def _put_new(self, txn: Transaction, served: Served, resource: Resource, key: Key, raw: Raw) -> Result:
        if txn.read(served.collection, key) is not None:
            raise rules.refusal(AlreadyExists, resource, key[1], f'{resource.qualified} "{key[1]}" already exists')
        return txn.write(resource, served.collection, EventType.ADDED, served.as_stored(resource, raw), was=None)

    def _new_key(self, txn: Transaction, served: Served, resource: Resource, raw: Raw, namespace: str | None) -> Key:
        if served.is_terminating:
            raise MethodNotAllowed(
                f"create not allowed while custom resource definition is terminating: {resource.qualified}",
                kind=resource.plural,
            )
        where = rules.check_namespace(resource, raw, namespace)
        name = self._new_name(txn, served, resource, raw, where)
        if where:
            namespaces = self._registry.find_kind("", "Namespace")
            if namespaces is not None:
                rules.check_content_allowed(resource, name, txn.read(namespaces.collection, ("", where)), where)
        return (where, name)

    def _new_name(self, txn: Transaction, served: Served, resource: Resource, raw: Raw, namespace: str) -> str:
        meta = raw["metadata"]
        name, prefix = meta.get("name"), meta.get("generateName")
        for field, value in (("name", name), ("generateName", prefix)):
            if value is not None and not isinstance(value, str):
                raise BadRequest(f"metadata.{field} must be a string, not {type(value).__name__}")
        if name:
            return str(name)
        if not prefix:
            cause = Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
            raise rules.invalid(resource, "", [cause])
        for _ in range(_NAME_ATTEMPTS_MAX):
            name = generated_name(prefix, self._entropy)
            if txn.read(served.collection, (namespace, name)) is None:
                meta["name"] = name
                return name
        message = (
            f'{resource.qualified} "{name}" already exists, the server was not able to generate a unique name for the object '
            f"from generateName {prefix!r}"
        )
        raise rules.refusal(AlreadyExists, resource, str(name), message)

    def _hooked(self, served: Served, raw: Raw, old: Raw | None, context: WriteContext) -> Raw:
        hook = self.hooks.get(served.stored.qualified)
        return hook(raw, old, context) if hook is not None else raw

    async def _pause(self, served: Served, context: WriteContext) -> None:
        """Not for kinds with a hook: it has looked at what others have, and nobody may come between that and the submission."""
        if served.stored.qualified not in self.hooks:
            await context.pause()

    # --- update and patch ----------------------------------------------------------------------------------------

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
        served = self._served_for_update(resource, subresource)
        raw = rules.conform(resource, obj)
        key = (rules.check_namespace(resource, raw, namespace), rules.require_name(resource, raw))
        record = self._existing(txn, served, resource, key)
        rules.check_preconditions(resource, record, preconditions)
        required = version_required and not subresource and (served.is_custom or resource.qualified in _VERSION_REQUIRED)
        rules.check_version(resource, raw, record, required=required)
        return await self._replace(txn, resource, record, raw, context, subresource=subresource, is_sent=True)

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
        served = self._served_for_update(resource, subresource)
        if patch_type is PatchType.APPLY:
            key = self._key(resource, name, namespace)
            if preconditions is not None:
                rules.check_preconditions(resource, self._existing(txn, served, resource, key), preconditions)
            return await self._apply(txn, resource, key, patch, context, subresource=subresource, tracked_as=tracked_as)
        if patch_type is PatchType.STRATEGIC and served.is_custom:
            raise UnsupportedMediaType(
                f"strategic merge patch is not supported for custom kinds such as {resource.kind}; send a merge patch",
                kind=resource.plural,
                group=resource.group,
            )
        key = self._key(resource, name, namespace)
        record = self._existing(txn, served, resource, key)
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
        self._check_same_name(resource, raw, key)
        rules.check_version(resource, raw, record, required=False, is_patched=True)
        return await self._replace(
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
        self._check_same_name(resource, config, key)
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
            key = self._new_key(txn, served, resource, config, key[0] or None)
            raw = await self._applied(None, config, schema, beside, now, context)
            managed = raw["metadata"].get("managedFields")
            uid = random_uid(self._entropy)
            shaped = served.shaped_as(resource)
            if shaped is not resource:
                raw = served.as_stored(resource, raw)
            rules.stamp_new(resource, raw, uid=uid, now_text=format_time(now), drop_status=resource.has_status)
            raw = await self._shaper.shape(served, shaped, raw, None, context, asked=resource)
            raw = self._hooked(served, raw, None, context)
            if managed is not None:
                raw["metadata"]["managedFields"] = managed
            return self._put_new(txn, served, shaped, key, raw)
        rules.check_version(resource, config, record, required=False)
        merged = await self._applied(live, config, schema, beside, now, context, subresource=tracked_as or subresource)
        merged = rules.conform(resource, merged)
        return await self._replace(txn, resource, record, merged, context, subresource=subresource, is_applied=True)

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

    async def _replace(
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
            raw = self._hooked(served, raw, current, context)
        await self._pause(served, context)
        if is_applied:
            raw["metadata"].pop("managedFields", None)
            if managed is not None:
                raw["metadata"]["managedFields"] = managed
        else:
            raw = self._shaper.track(served, resource, raw, current, context, subresource=tracked_as or subresource)
        await self._pause(served, context)
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

    # --- delete --------------------------------------------------------------------------------------------------

    async def delete(
        self,
        txn: Transaction,
        resource: Resource,
        name: str,
        namespace: str | None,
        context: WriteContext,
        *,
        propagation: Propagation | None = None,
        grace_period_s: int | None = None,
        preconditions: Preconditions | None = None,
    ) -> Result:
        served = self._registry.find(resource)
        key = self._key(resource, name, namespace)
        record = self._existing(txn, served, resource, key)
        rules.check_preconditions(resource, record, preconditions)
        if is_namespace(resource) and name in rules.NAMESPACES_KEPT:
            raise Forbidden(
                f'namespaces "{name}" is forbidden: this namespace may not be deleted', kind="namespaces", name=name
            )
        raw = record.raw()
        if self._shaper.admission is not None:
            await self._shaper.validate_delete(resource, in_version(record, resource).raw(), context)
        deletion = plan_delete(resource, raw, now=self._core.clock(), grace_period_s=grace_period_s, propagation=propagation)
        if not deletion.is_changed:
            return Result(record=record)
        type_ = EventType.DELETED if deletion.is_gone else EventType.MODIFIED
        return txn.write(resource, served.collection, type_, deletion.raw, was=record)

    # --- what the steps share ------------------------------------------------------------------------------------

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

    def _served_for_update(self, resource: Resource, subresource: str) -> Served:
        served = self._registry.find(resource)
        if subresource and (subresource not in _UPDATABLE or subresource not in resource.subresources):
            raise NotFound(
                f"the server could not find the requested resource: {resource.qualified} have no subresource {subresource!r} "
                "that can be written",
                kind=resource.plural,
                group=resource.group,
            )
        return served

    def _existing(self, txn: Transaction, served: Served, resource: Resource, key: Key) -> Record:
        record = txn.read(served.collection, key)
        if record is None:
            raise rules.not_found(resource, key[1])
        return record

    def _key(self, resource: Resource, name: str, namespace: str | None) -> Key:
        if not resource.namespaced:
            return ("", name)
        if not namespace:
            raise BadRequest(
                f'{resource.qualified} are namespaced: name the namespace of "{name}"', kind=resource.plural, name=name
            )
        return (namespace, name)

    def _check_same_name(self, resource: Resource, raw: Raw, key: Key) -> None:
        if raw["metadata"].get("name") != key[1]:
            raise BadRequest(
                f"the name of the object ({raw['metadata'].get('name')!s:.100}) does not match the name on the URL ({key[1]})"
            )
        rules.check_namespace(resource, raw, key[0] or None)


def _stored_value(served: Served, record: Record) -> bytes:
    """What is stored of an object that may be shown in another shape: as in Kubernetes, a write that changes nothing of what is
    shown puts that shape down."""
    stored = served.collection.latest(record.key)
    return record.value if stored is None or stored.rv != record.rv else stored.value


def _stored(result: Result, by_change: Mapping[int, Record]) -> Record:
    if result.change is not None:
        return by_change[id(result.change)]
    assert result.record is not None
    return result.record
