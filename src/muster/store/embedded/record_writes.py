"""Create, update, patch and delete one object: each a transaction with one step, answered as a record when it is on disk.

`RecordStore` has these methods (record_store.py); the steps are in `creates.py`, `updates.py`, `patches.py` and
`deletes.py`. On the loop. The answer is in the version of the kind that was asked for, and says what was stored, whatever
others do to the object meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.store.contract import DEFAULT_WRITE, PatchType, Preconditions, Propagation, WriteOptions
from muster.store.embedded.admission import Actor
from muster.store.embedded.context import Turn, WriteContext
from muster.store.embedded.creates import Creates
from muster.store.embedded.deletes import Deletes
from muster.store.embedded.patches import Patches
from muster.store.embedded.records import Record
from muster.store.embedded.selection import in_version
from muster.store.embedded.transaction import Result, Transaction
from muster.store.embedded.updates import Updates
from muster.store.embedded.writes import Build, Writes

Step = Callable[[Transaction], Awaitable[Result]]


class RecordWrites:
    _creates: Creates
    _updates: Updates
    _patches: Patches
    _deletes: Deletes
    _writes: Writes

    async def _one(self, resource: Resource, step: Step, context: WriteContext) -> Record:
        async def build(transaction: Transaction) -> Sequence[Result]:
            return [await step(transaction)]

        (record,) = await self._run(build, context)
        return in_version(record, resource)

    def _run(self, build: Build, context: WriteContext) -> Awaitable[list[Record]]:
        return self._writes.run(build, dry_run=context.options.dry_run, actor=context.actor)

    async def create_record(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
        turn: Turn | None = None,
    ) -> Record:
        """`turn`, here and in the other writes, is awaited between the steps of a large object; others run then in any case."""
        context = WriteContext(options, actor, warnings, turn)
        return await self._one(resource, lambda txn: self._creates.create(txn, resource, obj, namespace, context), context)

    async def update_record(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        subresource: str = "",
        version_required: bool = True,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
        turn: Turn | None = None,
    ) -> Record:
        """With `version_required`, as Kubernetes' API does, custom and some other kinds must name the version they replace."""
        context = WriteContext(options, actor, warnings, turn)
        return await self._one(
            resource,
            lambda txn: self._updates.update(
                txn, resource, obj, namespace, context, subresource=subresource, version_required=version_required
            ),
            context,
        )

    async def patch_record(
        self,
        resource: Resource,
        name: str,
        patch: Raw | Sequence[Raw],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
        actor: Actor | None = None,
        warnings: list[str] | None = None,
        turn: Turn | None = None,
    ) -> Record:
        context = WriteContext(options, actor, warnings, turn)
        return await self._one(
            resource,
            lambda txn: self._patches.patch(
                txn, resource, name, patch, context, namespace=namespace, patch_type=patch_type, subresource=subresource
            ),
            context,
        )

    async def amend(self, resource: Resource, name: str, namespace: str | None, change: Callable[[Raw], Raw | None]) -> None:
        """This process' own change to an object, past hooks and schemas; nothing when it is gone or `change` returns None.

        `change` runs in the turn of the loop in which its result is submitted.
        """

        async def build(txn: Transaction) -> Sequence[Result]:
            result = self._updates.modify(txn, resource, (namespace or "", name), change)
            return [] if result is None else [result]

        await self._writes.run(build)

    async def delete_record(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        propagation: Propagation | None = "Background",
        grace_period_s: int | None = None,
        preconditions: Preconditions | None = None,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
    ) -> Record:
        """`propagation` None leaves it to the object's own finalizers, as a request without a policy does."""
        context = WriteContext(options, actor, warnings)
        return await self._one(
            resource,
            lambda txn: self._deletes.delete(
                txn,
                resource,
                name,
                namespace,
                context,
                propagation=propagation,
                grace_period_s=grace_period_s,
                preconditions=preconditions,
            ),
            context,
        )
