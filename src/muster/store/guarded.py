"""A Store around another, in which every write goes through one place: the base of fences and of injected faults.

Reads pass as they are. Concurrency and failures are those of the store inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from muster.objects.resources import Resource
from muster.objects.status import ApiError, Raw
from muster.store.contract import (
    DEFAULT_WRITE,
    Binding,
    Operation,
    Page,
    PatchType,
    Preconditions,
    Propagation,
    Store,
    WatchEvent,
    WriteOptions,
)

T = TypeVar("T")


class GuardedStore:
    """A Store around another in which every writing call goes through `write`. Subclasses say what happens there."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    async def write(self, verb: str, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Carry out `operation` (which does `verb` to `what`), or not."""
        raise NotImplementedError

    @property
    def is_atomic(self) -> bool:
        return self.inner.is_atomic

    async def minor_version(self) -> int:
        return await self.inner.minor_version()

    async def resource(self, group: str, kind: str) -> Resource:
        return await self.inner.resource(group, kind)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Raw:
        return await self.inner.get(resource, name, namespace)

    async def list(self, resource: Resource, namespace: str | None = None, **options: Any) -> Page:
        return await self.inner.list(resource, namespace, **options)

    def watch(self, resource: Resource, namespace: str | None = None, **options: Any) -> AsyncIterator[WatchEvent]:
        return self.inner.watch(resource, namespace, **options)

    async def create(
        self, resource: Resource, obj: Mapping[str, Any], namespace: str | None = None, options: WriteOptions = DEFAULT_WRITE
    ) -> Raw:
        return await self.write(
            "create", _of(resource, namespace, _name(obj)), lambda: self.inner.create(resource, obj, namespace, options)
        )

    async def update(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        subresource: str = "",
    ) -> Raw:
        return await self.write(
            "update",
            _of(resource, namespace, _name(obj), subresource),
            lambda: self.inner.update(resource, obj, namespace, options, subresource=subresource),
        )

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
    ) -> Raw:
        verb = "apply" if patch_type is PatchType.APPLY else "patch"
        return await self.write(
            verb,
            _of(resource, namespace, name, subresource),
            lambda: self.inner.patch(resource, name, patch, namespace, options, patch_type=patch_type, subresource=subresource),
        )

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
    ) -> Raw:
        return await self.write(
            "delete",
            _of(resource, namespace, name),
            lambda: self.inner.delete(
                resource,
                name,
                namespace,
                options,
                propagation=propagation,
                grace_period_s=grace_period_s,
                preconditions=preconditions,
            ),
        )

    async def delete_collection(self, resource: Resource, namespace: str | None = None, **options: Any) -> None:
        await self.write(
            "deletecollection",
            _of(resource, namespace, "*"),
            lambda: self.inner.delete_collection(resource, namespace, **options),
        )

    async def bind(
        self, pod: str, namespace: str, node: str, *, uid: str = "", annotations: Mapping[str, str] | None = None
    ) -> None:
        await self.write(
            "bind",
            f"pods {namespace}/{pod} to {node}",
            lambda: self.inner.bind(pod, namespace, node, uid=uid, annotations=annotations),
        )

    async def bind_many(self, bindings: Sequence[Binding]) -> Sequence[ApiError | None]:
        """Each is a write of its own here. A subclass to which they are one hands them on together."""

        async def one(binding: Binding) -> ApiError | None:
            try:
                await self.bind(binding.pod, binding.namespace, binding.node, uid=binding.uid, annotations=binding.annotations)
            except ApiError as error:
                return error
            return None

        return await asyncio.gather(*map(one, bindings))

    async def evict(
        self, pod: str, namespace: str, *, grace_period_s: int | None = None, uid: str = "", dry_run: bool = False
    ) -> None:
        await self.write(
            "evict",
            f"pods {namespace}/{pod}",
            lambda: self.inner.evict(pod, namespace, grace_period_s=grace_period_s, uid=uid, dry_run=dry_run),
        )

    async def transaction(self, operations: Sequence[Operation]) -> Sequence[Raw]:
        what = ", ".join(f"{o.verb} {_of(o.resource, o.namespace, o.name or _name(o.object or {}))}" for o in operations[:5])
        return await self.write("transaction", what, lambda: self.inner.transaction(operations))

    async def close(self) -> None:
        await self.inner.close()


def _name(obj: Mapping[str, Any]) -> str:
    meta = obj.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    return str(meta.get("name") or f"{meta.get('generateName', '')}*")


def _of(resource: Resource, namespace: str | None, name: str, subresource: str = "") -> str:
    where = f"{namespace}/{name}" if namespace else name
    return f"{resource.qualified} {where}" + (f" ({subresource})" if subresource else "")
