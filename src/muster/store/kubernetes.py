"""The Store contract on a real API server, through `muster.client`.

Belongs to the event loop of its client. Nothing is cached but discovery. What this adds to the client:

- a watch survives its connection: it goes on from the last version seen (bookmarks included), with growing pauses while the
  server is away, and tells the caller only what the caller must act on: Expired, or a refusal;
- a watch of all that exists is a list and a watch from the list's version, so it too resumes without a gap or a repetition;
- a list without a limit is fetched in chunks and put together;
- what servers leave to the client: conflicts of patches with other writers, updates of kinds that insist on a version.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from muster.client.api import ApiClient
from muster.client.errors import BadResponse, CredentialError, NotAnApi, ResponseTooLarge, Untrusted
from muster.client.retry import RetryPolicy, backoff_s
from muster.objects.meta import name_of, namespace_of
from muster.objects.resources import Resource
from muster.objects.status import (
    ApiError,
    Conflict,
    Expired,
    InternalError,
    Invalid,
    MethodNotAllowed,
    Raw,
    ServiceUnavailable,
    Timeout,
    TooManyRequests,
)
from muster.store.contract import (
    DEFAULT_WRITE,
    Binding,
    EventType,
    Operation,
    Page,
    PatchType,
    Preconditions,
    Propagation,
    WatchEvent,
    WriteOptions,
)

CHUNK = 500
"""Objects per request of a list without a limit."""
CONFLICT_RETRIES_MAX = 10
WATCH_WINDOW_S = 300.0
"""One connection of a watch lasts about this long: a server that hangs is noticed, and load moves between servers."""
SETTLED_S = 2.0
"""A connection that lasted this long, or brought an event, was a good one: the pauses start small again."""
RETRY_AFTER_MAX_S = 60
WATCH_PAUSES = RetryPolicy(backoff_first_s=0.2, backoff_max_s=30.0)

Items = list[Raw]

_TRANSIENT = (ServiceUnavailable, Timeout, TooManyRequests, InternalError, BadResponse)
_FATAL = (Untrusted, CredentialError, NotAnApi, ResponseTooLarge)


class KubernetesStore:
    """See the module. The store owns `client`: closing one closes the other."""

    def __init__(self, client: ApiClient, *, watch_window_s: float = WATCH_WINDOW_S) -> None:
        self.client = client
        self._watch_window_s = watch_window_s

    @property
    def is_atomic(self) -> bool:
        return False

    async def close(self) -> None:
        await self.client.close()

    async def minor_version(self) -> int:
        return await self.client.minor_version()

    async def resource(self, group: str, kind: str) -> Resource:
        return await self.client.resource(group, kind)

    # --- reading --------------------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Raw:
        return await self.client.get(resource, name, namespace)

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
        if not limit and not continue_token:
            return await self._list_whole(resource, namespace, label_selector, field_selector)
        page = await self.client.list(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
        )
        return Page(page.items, page.resource_version, page.continue_token, page.remaining)

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
        loop = asyncio.get_running_loop()
        deadline = math.inf if timeout_s is None else loop.time() + timeout_s
        version = resource_version
        if not version:
            page = await self._list_whole(resource, namespace, label_selector, field_selector)
            version = page.resource_version
            for item in page.items:
                yield WatchEvent(EventType.ADDED, item)
        failures = 0
        while (remaining_s := deadline - loop.time()) > 0:
            started, told_s = loop.time(), 0
            window_s = min(remaining_s, self._watch_window_s * (0.75 + self.client.transport.spread() / 2))
            try:
                source = self.client.watch(
                    resource,
                    namespace,
                    label_selector=label_selector,
                    field_selector=field_selector,
                    resource_version=version,
                    timeout_s=window_s,
                )
                async with aclosing(source) as events:
                    async for event in events:
                        version = event.resource_version
                        failures = 0
                        kind = EventType(event.type)
                        if bookmarks or kind is not EventType.BOOKMARK:
                            yield WatchEvent(kind, event.object)
            except _FATAL:
                raise
            except _TRANSIENT as error:
                self.client.stats.last_error = error.message[:500]
                told_s = min(error.retry_after_s, RETRY_AFTER_MAX_S)
            failures = 0 if loop.time() - started >= SETTLED_S else failures + 1
            self.client.stats.watch_resumes += 1
            if failures or told_s:
                pause_s = told_s + backoff_s(WATCH_PAUSES, max(1, failures), self.client.transport.spread())
                await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))

    async def _list_whole(self, resource: Resource, namespace: str | None, labels: str, fields: str) -> Page:
        items: Items = []
        token = ""
        try:
            while True:
                page = await self.client.list(
                    resource, namespace, label_selector=labels, field_selector=fields, limit=CHUNK, continue_token=token
                )
                items += page.items
                token = page.continue_token
                if not token:
                    return Page(items, page.resource_version)
        except Expired:
            # The history was compacted between two chunks: all in one answer cannot be overtaken.
            page = await self.client.list(resource, namespace, label_selector=labels, field_selector=fields)
            return Page(page.items, page.resource_version)

    # --- writing --------------------------------------------------------------------------------------------------------------

    async def create(
        self, resource: Resource, obj: Mapping[str, Any], namespace: str | None = None, options: WriteOptions = DEFAULT_WRITE
    ) -> Raw:
        return await self.client.create(resource, obj, namespace, options)

    async def update(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        subresource: str = "",
    ) -> Raw:
        try:
            return await self.client.update(resource, obj, namespace, options, subresource=subresource)
        except Invalid as error:
            metadata = obj.get("metadata") or {}
            if metadata.get("resourceVersion") or not _wants_version(error):
                raise
        # Custom kinds have no unconditional update: replace whatever is there now.
        for attempt in range(1, CONFLICT_RETRIES_MAX + 1):
            current = await self.client.get(resource, name_of(dict(obj)), namespace or namespace_of(dict(obj)) or None)
            versioned = {**obj, "metadata": {**metadata, "resourceVersion": current["metadata"]["resourceVersion"]}}
            try:
                return await self.client.update(resource, versioned, namespace, options, subresource=subresource)
            except Conflict:
                if attempt == CONFLICT_RETRIES_MAX:
                    raise
        raise AssertionError("unreachable")

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
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self.client.patch(
                    resource,
                    name,
                    patch,
                    namespace,
                    options,
                    patch_type=patch_type,
                    subresource=subresource,
                )
            except Conflict as error:
                # The server tries a few times by itself; under many writers that is not enough.
                if attempt == CONFLICT_RETRIES_MAX or error.causes or _names_version(patch) or _is_of_another(error):
                    raise
            await asyncio.sleep(backoff_s(self.client.transport.limits.retry, attempt, self.client.transport.spread()) / 4)

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
        """Servers answer with a Status when the object is gone at once; then what is returned has only its identity."""
        answer = await self.client.delete(
            resource,
            name,
            namespace,
            options,
            propagation=propagation,
            grace_period_s=grace_period_s,
            preconditions=preconditions,
        )
        if answer.get("kind") != "Status":
            return answer
        metadata = {"name": name, "uid": (answer.get("details") or {}).get("uid", "")}
        if resource.namespaced and namespace:
            metadata["namespace"] = namespace
        return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        propagation: Propagation = "Background",
    ) -> None:
        await self.client.delete_collection(
            resource, namespace, label_selector=label_selector, field_selector=field_selector, propagation=propagation
        )

    async def bind(
        self, pod: str, namespace: str, node: str, *, uid: str = "", annotations: Mapping[str, str] | None = None
    ) -> None:
        await self.client.bind(pod, namespace, node, uid=uid, annotations=annotations)

    async def bind_many(self, bindings: Sequence[Binding]) -> Sequence[ApiError | None]:
        """All at once: the client keeps the number of requests under way within its bounds.

        Servers before 1.23 bind whatever pod has the name. `bind` reads the pod first there; this does not: whoever binds many
        follows the pods and has just seen them, and a read for each would cost as much as the binding.
        """

        async def one(b: Binding) -> ApiError | None:
            try:
                await self.client.bind(b.pod, b.namespace, b.node, uid=b.uid, annotations=b.annotations, is_followed=True)
            except ApiError as error:
                return error
            return None

        return await asyncio.gather(*map(one, bindings))

    async def request_token(self, account: str, namespace: str, spec: Mapping[str, Any]) -> Raw:
        """A token of a service account; beyond the `Store` contract, since only an API server makes them."""
        return await self.client.request_token(account, namespace, spec)

    async def evict(
        self, pod: str, namespace: str, *, grace_period_s: int | None = None, uid: str = "", dry_run: bool = False
    ) -> None:
        await self.client.evict(pod, namespace, grace_period_s=grace_period_s, uid=uid, dry_run=dry_run)

    async def transaction(self, operations: Sequence[Operation]) -> Sequence[Raw]:
        raise MethodNotAllowed(
            f"a Kubernetes API server cannot write {len(operations)} objects in one transaction; "
            "check `store.is_atomic` and write them one by one, each step safe to repeat"
        )


def _wants_version(error: ApiError) -> bool:
    return any(cause.field == "metadata.resourceVersion" for cause in error.causes)


def _names_version(patch: Raw | Sequence[Raw]) -> bool:
    """Whether the caller's own patch says which version it is for: then a conflict is the answer."""
    if isinstance(patch, Mapping):
        metadata = patch.get("metadata")
        return isinstance(metadata, Mapping) and bool(metadata.get("resourceVersion"))
    return any(isinstance(step, Mapping) and step.get("path") == "/metadata/resourceVersion" for step in patch)


def _is_of_another(error: Conflict) -> bool:
    """Whether the patch is for an object of that name with another UID: no further try can help."""
    return "UID in precondition" in error.message
