"""The embedded store: Kubernetes' object semantics over one SQLite file, in this process.

Implements `muster.store.contract.Store`, and adds what a server in front of it needs: encoded records instead of decoded
objects (`get_record`, `list_records`, `watch_records`, the `*_record` writes), actors, warnings and admission hooks.

Concurrency: one event loop owns a store; every method is called on it. Disk work happens on a thread of the committer, or on
the loop itself with `writer="inline"`, which makes runs repeatable: same calls, same clock, same entropy, same bytes.

How it is put together: `record_*.py` are the methods that a server calls (see `record_store.py`); `writes.py` says how a write
comes about, and which files hold its steps; `core.py` hands out versions and shows what is committed; `registry.py` and
`custom.py` are the kinds; `garbage.py` cleans up behind owners and namespaces; `database.py` is the file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.store.contract import (
    DEFAULT_WRITE,
    Operation,
    Page,
    PatchType,
    Preconditions,
    Propagation,
    WatchEvent,
    WriteOptions,
)
from muster.store.embedded.admission import Actor
from muster.store.embedded.record_store import RecordStore

Warnings = list[str]
"""Where a write puts what it has to say to the client. Named here, because inside the class `list` is a method."""

KUBERNETES_MINOR = 33
"""Which Kubernetes clients may take this for; what is missing of it is in docs/api-coverage.md."""


class EmbeddedStore(RecordStore):
    """Use `await EmbeddedStore.open(...)`, then `await store.close()`."""

    @property
    def is_atomic(self) -> bool:
        return True

    async def minor_version(self) -> int:
        return KUBERNETES_MINOR

    async def resource(self, group: str, kind: str) -> Resource:
        return self.catalog.by_kind(group, kind)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Raw:
        return self.get_record(resource, name, namespace).raw()

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> Page:
        page = self.list_records(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
        )
        items = [record.raw() for record in page.records]
        return Page(items, page.resource_version, page.continue_token, page.remaining)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        timeout_s: float | None = None,
    ) -> AsyncIterator[WatchEvent]:
        watcher = self.watch_records(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            bookmarks=bookmarks,
            timeout_s=timeout_s,
        )
        try:
            async for batch in watcher:
                for event in batch:
                    yield WatchEvent(event.type, event.record.raw())
        finally:
            watcher.close()

    async def create(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        actor: Actor | None = None,
        warnings: Warnings | None = None,
    ) -> Raw:
        return (await self.create_record(resource, obj, namespace, options, actor=actor, warnings=warnings)).raw()

    async def update(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        subresource: str = "",
        actor: Actor | None = None,
        warnings: Warnings | None = None,
    ) -> Raw:
        record = await self.update_record(
            resource,
            obj,
            namespace,
            options,
            subresource=subresource,
            version_required=False,
            actor=actor,
            warnings=warnings,
        )
        return record.raw()

    async def patch(
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
        warnings: Warnings | None = None,
    ) -> Raw:
        record = await self.patch_record(
            resource,
            name,
            patch,
            namespace,
            options,
            patch_type=patch_type,
            subresource=subresource,
            actor=actor,
            warnings=warnings,
        )
        return record.raw()

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        propagation: Propagation = "Background",
        grace_period_s: int | None = None,
        preconditions: Preconditions | None = None,
        actor: Actor | None = None,
        warnings: Warnings | None = None,
    ) -> Raw:
        record = await self.delete_record(
            resource,
            name,
            namespace,
            options,
            propagation=propagation,
            grace_period_s=grace_period_s,
            preconditions=preconditions,
            actor=actor,
            warnings=warnings,
        )
        return record.raw()

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        propagation: Propagation = "Background",
        grace_period_s: int | None = None,
    ) -> None:
        await self.delete_records(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            propagation=propagation,
            grace_period_s=grace_period_s,
        )

    async def transaction(
        self, operations: Sequence[Operation], options: WriteOptions = DEFAULT_WRITE, *, actor: Actor | None = None
    ) -> Sequence[Raw]:
        return [record.raw() for record in await self.transaction_records(operations, options, actor=actor)]
