"""The verbs that every kind has: get, list, watch, create, update, patch, delete.

`ObjectClient` is the base of `ApiClient`, which see for the rules on event loops and errors. Each method is thin: `requests`
builds the request, `transport` sends it, `decode` reads the answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

from muster.client import requests
from muster.client.config import ClientConfig
from muster.client.decode import decode_events, decode_object, decode_page, decode_view_events, decode_view_page
from muster.client.discovery import Discovery
from muster.client.errors import PathNotServed, expired
from muster.client.kubeconfig import load
from muster.client.messages import JSON, Request, Response
from muster.client.stats import TransportStats
from muster.client.transport import Transport, TransportLimits
from muster.objects.requests import (
    DEFAULT_WRITE,
    Page,
    PatchType,
    Preconditions,
    Propagation,
    V,
    ViewEvent,
    ViewPage,
    WatchEvent,
    WriteOptions,
)
from muster.objects.resources import Resource
from muster.objects.status import BadRequest, Expired, Gone, Raw
from muster.objects.time import Clock, wall_clock

Lines = list[bytes]


class ObjectClient:
    """One server, one identity, every verb. Use `ApiClient`."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        limits: TransportLimits | None = None,
        clock: Clock = wall_clock,
        entropy: Callable[[int], bytes] = os.urandom,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        """`on_warning` gets the text of each warning that the server sends along; `clock` and `entropy` are for tests."""
        self.config = config
        self.transport = Transport(config, limits=limits, clock=clock, entropy=entropy, on_warning=on_warning)
        self.discovery = Discovery(self._fetch)

    @classmethod
    async def from_kubeconfig(
        cls,
        path: str | os.PathLike[str] | None = None,
        context: str | None = None,
        *,
        namespace: str = "",
        limits: TransportLimits | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> Self:
        """By kubectl's rules: the file named, or KUBECONFIG, or ~/.kube/config, or the pod's own service account."""
        config = await asyncio.to_thread(load, path, context=context or "", namespace=namespace)
        return cls(config, limits=limits, on_warning=on_warning)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; open watches end. A closed client answers everything with an error."""
        await self.transport.close()

    @property
    def stats(self) -> TransportStats:
        """What is in flight and what was repeated, now."""
        return self.transport.stats

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Sequence[tuple[str, str]] = (),
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float | None = None,
    ) -> Response:
        """Any request: `path` is quoted and begins with a slash; a `body` that is not bytes is sent as JSON."""
        if not path.startswith("/"):
            raise BadRequest(f'path "{path}" must begin with "/"')
        encoded = body if body is None or isinstance(body, bytes) else requests.encode(body)
        request = Request(method=method, path=path, params=params, body=encoded, content_type=content_type, accept=accept)
        return await self._send(request, timeout_s=timeout_s)

    async def get(self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str = "") -> Raw:
        path = requests.object_path(resource, name, namespace, subresource)
        return await self._object(Request(method="GET", path=path))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
    ) -> Page:
        """All namespaces when `namespace` is None. With `limit`, ask on with the page's `continue_token` until it is "".

        Expired when a token is so old that its snapshot is gone.
        """
        request = requests.list_request(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
            resource_version=resource_version,
        )
        return decode_page(await self._list_body(request), resource, request)

    async def list_views(
        self,
        resource: Resource,
        view: type[V],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
    ) -> ViewPage[V]:
        """As `list`, each item decoded as `view` straight from the bytes: several times faster and smaller than raw objects."""
        request = requests.list_request(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
            resource_version=resource_version,
        )
        return decode_view_page(await self._list_body(request), view, request)

    async def items(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = 500,
    ) -> AsyncGenerator[Raw, None]:
        """Every object, page by page. Expired when the pages are read so slowly that the snapshot is gone."""
        token = ""
        while True:
            page = await self.list(
                resource,
                namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=page_size,
                continue_token=token,
            )
            for item in page.items:
                yield item
            token = page.continue_token
            if not token:
                return

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
    ) -> AsyncGenerator[WatchEvent, None]:
        """Changes after `resource_version`; with "" first ADDED for all that exists. Ends quietly at `timeout_s`.

        Ends also when the server ends it; raises Expired when that version is compacted, and OutcomeUnknown when the connection
        breaks. Go on from the last event's resource_version.
        """
        request = requests.watch_request(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            bookmarks=bookmarks,
            timeout_s=timeout_s,
        )
        async with aclosing(self._lines(request, timeout_s)) as batches:
            async for lines in batches:
                for event in decode_events(lines, request):
                    yield event

    async def watch_views(
        self,
        resource: Resource,
        view: type[V],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[ViewEvent[V], None]:
        """As `watch`, each object decoded as `view` straight from the bytes."""
        request = requests.watch_request(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            bookmarks=bookmarks,
            timeout_s=timeout_s,
        )
        async with aclosing(self._lines(request, timeout_s)) as batches:
            async for lines in batches:
                for event in decode_view_events(lines, view, request):
                    yield event

    async def create(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        name: str = "",
        subresource: str = "",
    ) -> Raw:
        """Create an object, or with `name` and `subresource` post to one (a service account's `token`)."""
        namespace = requests.namespace_for(obj, resource, namespace)
        if subresource:
            path, body = requests.object_path(resource, name, namespace, subresource), obj
        else:
            path = requests.collection_path(resource, namespace, is_write=True)
            body = requests.with_type(obj, resource)
        params = requests.write_params(options)
        return await self._object(Request(method="POST", path=path, params=params, body=requests.encode(body)))

    async def update(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        subresource: str = "",
    ) -> Raw:
        """Replace. With metadata.resourceVersion set, Conflict unless it is current."""
        name = str(requests.metadata_of(obj, resource).get("name") or "")
        path = requests.object_path(resource, name, requests.namespace_for(obj, resource, namespace), subresource)
        body = requests.encode(requests.with_type(obj, resource))
        return await self._object(Request(method="PUT", path=path, params=requests.write_params(options), body=body))

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
        """APPLY creates what is not there; the others answer NotFound."""
        if patch_type is PatchType.APPLY and isinstance(patch, Mapping) and not subresource:
            requests.check_type(patch, resource)
        path = requests.object_path(resource, name, namespace, subresource)
        return await self._object(requests.patch_request(path, patch, patch_type, options))

    async def apply(
        self, resource: Resource, obj: Mapping[str, Any], namespace: str | None = None, options: WriteOptions = DEFAULT_WRITE
    ) -> Raw:
        """Server-side apply of `obj`: its fields become `options.field_manager`'s. Conflict names the fields of others."""
        name = str(requests.metadata_of(obj, resource).get("name") or "")
        place = requests.namespace_for(obj, resource, namespace)
        body = dict(requests.with_type(obj, resource))
        return await self.patch(resource, name, body, place, options, patch_type=PatchType.APPLY)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        propagation: Propagation | None = "Background",
        grace_period_s: int | None = None,
        preconditions: Preconditions | None = None,
    ) -> Raw:
        """The server's answer: the object while something still keeps it, otherwise a `Status` with its name and uid."""
        body = requests.delete_options(
            propagation=propagation, grace_period_s=grace_period_s, preconditions=preconditions, dry_run=options.dry_run
        )
        path = requests.object_path(resource, name, namespace)
        params = [("dryRun", "All")] if options.dry_run else []
        return await self._object(Request(method="DELETE", path=path, params=params, body=requests.encode(body)))

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        propagation: Propagation | None = "Background",
    ) -> None:
        """Delete all that match. A namespaced kind needs its namespace: servers do not delete across namespaces."""
        path = requests.collection_path(resource, namespace, is_write=True)
        params = requests.selection(label_selector, field_selector)
        body = requests.encode(requests.delete_options(propagation=propagation))
        await self._send(Request(method="DELETE", path=path, params=params, body=body))

    # --- inside ---------------------------------------------------------------------------------------------------------------

    async def _send(self, request: Request, *, timeout_s: float | None = None) -> Response:
        try:
            return await self.transport.request(request, timeout_s=timeout_s)
        except PathNotServed:
            # A version that is gone, or a CRD: what discovery told us may be out of date.
            self.discovery.invalidate()
            raise

    async def _object(self, request: Request) -> Raw:
        return decode_object((await self._send(request)).body, request)

    async def _list_body(self, request: Request) -> bytes:
        try:
            return (await self._send(request)).body
        except (Gone, Expired) as error:
            raise expired(error) from None

    async def _lines(self, request: Request, timeout_s: float | None) -> AsyncGenerator[Lines, None]:
        try:
            async with self.transport.stream(request, timeout_s=timeout_s) as stream, aclosing(stream.lines()) as batches:
                async for batch in batches:
                    yield batch
        except (Gone, Expired) as error:
            raise expired(error) from None
        except PathNotServed:
            self.discovery.invalidate()
            raise

    async def _fetch(self, path: str, accept: str) -> bytes:
        return (await self.transport.request(Request(method="GET", path=path, accept=accept))).body
