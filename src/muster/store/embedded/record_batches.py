"""Many objects in one call: the deletion of a collection, which is a write each, and a transaction, which is one write.

`RecordStore` has these methods (record_store.py). On the loop. A deletion of many lets others run between its parts, and what
it has deleted stays deleted when it is refused or cancelled on the way; a transaction is stored whole or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from muster.objects.resources import Resource
from muster.objects.status import BadRequest, NotFound, Raw
from muster.objects.steps import done_in_turns
from muster.store.contract import DEFAULT_WRITE, Operation, PatchType, Propagation, WriteOptions
from muster.store.embedded.admission import Actor
from muster.store.embedded.context import Turn, WriteContext
from muster.store.embedded.deletion import FINALIZER_FOREGROUND, FINALIZER_ORPHAN
from muster.store.embedded.record_reads import RecordPage, RecordReads
from muster.store.embedded.record_writes import RecordWrites
from muster.store.embedded.records import Record
from muster.store.embedded.selection import in_version
from muster.store.embedded.transaction import Result, Transaction

_DELETED_AT_ONCE = 64


async def _let_others_run() -> None:
    await asyncio.sleep(0)


class RecordBatches(RecordReads, RecordWrites):
    async def delete_records(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        propagation: Propagation | None = None,
        otherwise: Propagation | None = None,
        grace_period_s: int | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
        turn: Turn | None = None,
    ) -> RecordPage:
        """Without `propagation`, dependents are dealt with as each object says, and as `otherwise` where it says nothing.

        Each object on its own, as it is listed now; one that somebody else deletes meanwhile is as good as deleted.

        Returns that list: the objects as they were before. They are the store's own records, and nothing is copied. Without a
        `limit` it is all of them.
        """
        turn = turn or _let_others_run

        async def delete_one(record: Record) -> None:
            says = FINALIZER_ORPHAN in record.finalizers or FINALIZER_FOREGROUND in record.finalizers
            with contextlib.suppress(NotFound):
                await self.delete_record(
                    resource,
                    record.name,
                    record.namespace or None,
                    options,
                    propagation=propagation or (None if says else otherwise),
                    grace_period_s=grace_period_s,
                    actor=actor,
                    warnings=warnings,
                )

        # All are listed before the first is deleted: a list of the past takes the longer the more has changed since.
        found = list[Record]()
        while True:
            steps = self.list_record_steps(
                resource,
                namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=limit,
                continue_token=continue_token,
            )
            page = await done_in_turns(steps, turn)
            found += page.records
            continue_token = page.continue_token
            if limit or not continue_token:
                break
        for first in range(0, len(found), _DELETED_AT_ONCE):
            if first:
                await turn()
            await asyncio.gather(*map(delete_one, found[first : first + _DELETED_AT_ONCE]))
        return msgspec.structs.replace(page, records=found)

    async def transaction_records(
        self, operations: Sequence[Operation], options: WriteOptions = DEFAULT_WRITE, *, actor: Actor | None = None
    ) -> list[Record]:
        """All of `operations` or none, in order; later ones see what earlier ones do."""
        limit = self._core.limits.transaction_len_max
        if len(operations) > limit:
            raise BadRequest(f"a transaction may have {limit} operations; this one has {len(operations)}: split it")
        context = WriteContext(options, actor)

        async def build(txn: Transaction) -> Sequence[Result]:
            results = []
            for operation in operations:
                results.append(await self._operate(txn, operation, context))
                txn.keep_drafts()
            return results

        records = await self._run(build, context) if operations else []
        return [in_version(r, operation.resource) for r, operation in zip(records, operations, strict=True)]

    async def _operate(self, txn: Transaction, operation: Operation, context: WriteContext) -> Result:
        resource, namespace = operation.resource, operation.namespace
        name = operation.name or str(((operation.object or {}).get("metadata") or {}).get("name") or "")
        match operation.verb:
            case "create":
                return await self._creates.create(txn, resource, _given(operation, "object"), namespace, context)
            case "update":
                return await self._updates.update(
                    txn,
                    resource,
                    _given(operation, "object"),
                    namespace,
                    context,
                    subresource=operation.subresource,
                    preconditions=operation.preconditions,
                )
            case "patch":
                return await self._patches.patch(
                    txn,
                    resource,
                    name,
                    _given(operation, "patch"),
                    context,
                    namespace=namespace,
                    patch_type=PatchType.MERGE,
                    subresource=operation.subresource,
                    preconditions=operation.preconditions,
                )
            case "delete":
                return await self._deletes.delete(
                    txn, resource, name, namespace, context, propagation="Background", preconditions=operation.preconditions
                )


def _given(operation: Operation, field: Literal["object", "patch"]) -> Raw:
    value = operation.object if field == "object" else operation.patch
    if value is None:
        raise BadRequest(f"a {operation.verb} of {operation.resource.qualified} in a transaction needs its {field}")
    return value
