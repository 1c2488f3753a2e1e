"""The Store contract: Kubernetes' object semantics as one async interface, with two implementations behind it.

`EmbeddedStore` (SQLite in this process) and `KubernetesStore` (an API server behind `muster.client`) pass one conformance
suite (`tests/store/conformance`). Controllers see only this contract.

Concurrency: every method is called on one asyncio event loop. A returned `Raw` belongs to the caller. Failures are
`muster.objects.status.ApiError` and nothing else, apart from `asyncio.CancelledError`.

Invariants that both implementations keep:
- a write that returned is durable;
- `metadata.resourceVersion` is opaque, compared only for equality; a watch started from a list's version misses nothing
  and repeats nothing;
- `metadata.generation` moves only when something outside metadata and status changed, or deletion began;
- an object with finalizers stays, with `deletionTimestamp`, until they are gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from muster.objects.requests import (
    DEFAULT_WRITE,
    EventType,
    Page,
    PatchType,
    Preconditions,
    Propagation,
    WatchEvent,
    WriteOptions,
)
from muster.objects.resources import Resource
from muster.objects.status import ApiError, Raw

__all__ = [
    "DEFAULT_WRITE",
    "Binding",
    "EventType",
    "Operation",
    "Page",
    "PatchType",
    "Preconditions",
    "Propagation",
    "Store",
    "WatchEvent",
    "WriteOptions",
]


class Store(Protocol):
    @property
    def is_atomic(self) -> bool:
        """Whether `transaction` works here: embedded yes; Kubernetes has no such thing and raises MethodNotAllowed."""
        ...

    async def minor_version(self) -> int:
        """The 27 of the Kubernetes 1.27 whose rules are kept here; 0 when the server does not say."""
        ...

    async def resource(self, group: str, kind: str) -> Resource:
        """The served version of a kind, CRDs included. NotFound when the server does not have it.

        Version differences (policy/v1beta1 against policy/v1) are settled here, so callers ask by group and kind only.
        """
        ...

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Raw: ...

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
        """All namespaces when `namespace` is None. Expired when the token's snapshot is compacted."""
        ...

    def watch(
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
        """Changes after `resource_version`; with "" first ADDED for all that exists. Ends quietly at `timeout_s`.

        Raises Expired when that version is compacted, or when this watcher reads so slowly that its buffer overflows.
        With a selector, an object that starts or stops matching is ADDED or DELETED.
        """
        ...

    async def create(
        self, resource: Resource, obj: Mapping[str, Any], namespace: str | None = None, options: WriteOptions = DEFAULT_WRITE
    ) -> Raw: ...

    async def update(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        subresource: str = "",
    ) -> Raw:
        """Replace. With metadata.resourceVersion set, Conflict unless it is current. `subresource` "" or "status"."""
        ...

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
        """APPLY creates what is not there; the others answer NotFound. Conflicts with concurrent writers are retried inside,
        unless the patch itself names a resourceVersion."""
        ...

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
        """The object as last seen: with deletionTimestamp when finalizers or a grace period keep it for now."""
        ...

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        propagation: Propagation = "Background",
    ) -> None: ...

    async def bind(
        self, pod: str, namespace: str, node: str, *, uid: str = "", annotations: Mapping[str, str] | None = None
    ) -> None:
        """Set spec.nodeName once. Conflict when the pod is bound, deleting, or has another uid."""
        ...

    async def bind_many(self, bindings: Sequence[Binding]) -> Sequence[ApiError | None]:
        """Each as by `bind`, independent of the others: why it was refused, or None, in their order.

        Returns when all have their answer. The embedded store makes one commit of them, at a fraction of the cost. On servers
        before Kubernetes 1.23 the uid is not checked here: the caller follows the pods.
        """
        ...

    async def evict(
        self, pod: str, namespace: str, *, grace_period_s: int | None = None, uid: str = "", dry_run: bool = False
    ) -> None:
        """Delete unless a PodDisruptionBudget forbids it now (TooManyRequests)."""
        ...

    async def transaction(self, operations: Sequence[Operation]) -> Sequence[Raw]:
        """All of `operations` or none of them, in order, with one durable commit."""
        ...

    async def close(self) -> None: ...


class Binding(msgspec.Struct, frozen=True):
    """One pod to bind; see `Store.bind`."""

    pod: str
    namespace: str
    node: str
    uid: str = ""
    annotations: Mapping[str, str] | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One write in a transaction. `object` for create and update, `patch` (merge) for patch; delete needs the name only."""

    verb: Literal["create", "update", "patch", "delete"]
    resource: Resource
    name: str = ""
    namespace: str | None = None
    object: Raw | None = None
    patch: Raw | None = None
    subresource: str = ""
    preconditions: Preconditions | None = None
