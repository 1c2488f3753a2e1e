"""Delete: the step of it. What a delete does to the object is decided in `deletion.py`.

Inside a transaction (`writes.py`); on the loop. Hooks are asked before, and may refuse it.
"""

from __future__ import annotations

from muster.objects.resources import Resource
from muster.objects.status import Forbidden
from muster.store.contract import EventType, Preconditions, Propagation
from muster.store.embedded import rules
from muster.store.embedded.context import WriteContext
from muster.store.embedded.core import Core
from muster.store.embedded.deletion import is_namespace, plan_delete
from muster.store.embedded.registry import Registry
from muster.store.embedded.selection import in_version
from muster.store.embedded.shaping import Shaper
from muster.store.embedded.transaction import Result, Transaction


class Deletes:
    def __init__(self, core: Core, registry: Registry, shaper: Shaper) -> None:
        self._core = core
        self._registry = registry
        self._shaper = shaper

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
        key = rules.key_of(resource, name, namespace)
        record = txn.require(resource, served.collection, key)
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
