"""The verbs on resources: what a request asks, the store does; the answer goes out in the form that was asked for.

Reads hand out the bytes that the store keeps. Whatever a request gets wrong (kind, name, namespace, version, options) is
answered before the store is touched, or by the store, which then changed nothing.

Concurrency: stateless; called once per request on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from muster.objects.resources import Resource
from muster.objects.selectors import FieldTerm
from muster.objects.status import ApiError, BadRequest, Cause, Expired, MethodNotAllowed, NotFound, Raw, Timeout
from muster.objects.steps import done_in_turns
from muster.objects.time import Clock
from muster.server.config import ServerLimits
from muster.server.decoding import decode_json, decode_yaml, duplicate_keys
from muster.server.exchange import Answer, Handler, Request, Response, Stream
from muster.server.listing import list_answer
from muster.server.metrics import Metrics
from muster.server.negotiation import BodyMedia, Form, body_media, encode, json_to_yaml, negotiate, patch_type
from muster.server.options import (
    delete_options,
    list_options,
    version_text,
    write_options,
)
from muster.server.paths import RequestInfo
from muster.server.protobuf import decode_protobuf
from muster.server.tables import partial_metadata, table
from muster.server.watching import expired_stream, watch_stream, watch_timeout_s
from muster.store.contract import PatchType, WriteOptions
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.context import LARGE_BYTES
from muster.store.embedded.deletion import FINALIZER_FOREGROUND, FINALIZER_ORPHAN
from muster.store.embedded.record_reads import RecordPage
from muster.store.embedded.records import Record

_THREAD_YAML_BYTES = 64 * 1024
_THREAD_RENDER_BYTES = 256 * 1024
"""Objects that are to be shown in another form than the stored one: more than this is rendered beside the loop, not on it."""
_THREADS_AT_ONCE = 2
"""They compete for one interpreter; more would only starve the loop, and what else needs a worker thread."""
_SUBRESOURCE_WRITES = frozenset({"status", "finalize", "approval"})
_ORPHANING = frozenset({"jobs.batch", "replicationcontrollers"})
"""Kinds from before there was a choice: whoever deletes one without saying so leaves its pods, as in Kubernetes."""
_PODS_KEPT = (
    "pods are kept when what made them is deleted without a propagationPolicy: say Background to have them deleted, or Orphan "
    "to have them kept without being warned"
)
_SHOWN_WHEN_DELETED = frozenset(
    {"persistentvolumeclaims", "persistentvolumes", "pods", "podtemplates", "resourcequotas", "serviceaccounts"}
)
"""Kinds of which a delete answers with the object as it was last, as Kubernetes does; of others with a Status."""


class ResourceHandlers:
    """Serves `/api/...` and `/apis/...`. Subresources and virtual kinds register their own handlers."""

    def __init__(self, store: EmbeddedStore, *, limits: ServerLimits, metrics: Metrics, clock: Clock) -> None:
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._threads = asyncio.Semaphore(_THREADS_AT_ONCE)
        self.subresources: dict[tuple[str, str, str], Handler] = {}
        """(group, plural, subresource) to its handler; "*" as the plural serves any kind that has the subresource."""
        self.virtual: dict[tuple[str, str], Handler] = {}
        """(group, plural) of kinds that are answered and never stored."""
        self.computed: dict[tuple[str, str, str], tuple[Resource, Handler]] = {}
        """(group, version, plural) of kinds that are no part of the store's catalog: each answer is made from other objects."""

    def find(self, info: RequestInfo) -> Resource | None:
        computed = self.computed.get((info.group, info.version, info.resource))
        if computed is not None:
            return computed[0]
        return self._store.catalog.by_plural(info.group, info.version, info.resource)

    async def handle(self, request: Request) -> Answer:
        info = request.info
        resource = self.find(info)
        if resource is None:
            raise _no_such_path(info)
        self._check_scope(resource, info)
        if info.subresource:
            return await self._subresource(request, resource)
        virtual = self.virtual.get((info.group, info.resource))
        if virtual is not None:
            if info.verb != "create" or info.name:
                raise _not_allowed(resource, info, ("create",))
            return await virtual(request)
        if info.verb not in resource.verbs:
            raise _not_allowed(resource, info, resource.verbs)
        computed = self.computed.get((info.group, info.version, info.resource))
        if computed is not None:
            return await computed[1](request)
        match info.verb:
            case "list":
                return await self._list(request, resource)
            case "watch":
                return self._watch(request, resource)
            case "deletecollection":
                return await self._delete_collection(request, resource)
        is_complete = bool(info.name) != (info.verb == "create") and (bool(info.namespace) or not resource.namespaced)
        if not is_complete:
            raise _not_allowed(resource, info, ("deletecollection", "list", "watch"))
        match info.verb:
            case "get":
                return await self.get(request, resource)
            case "create":
                return await self._create(request, resource)
            case "update":
                return await self.update(request, resource)
            case "patch":
                return await self.patch(request, resource)
            case "delete":
                return await self._delete(request, resource)
        raise _not_allowed(resource, info, resource.verbs)

    def _check_scope(self, resource: Resource, info: RequestInfo) -> None:
        """`/namespaces/x/nodes` is no path: nodes are in no namespace."""
        is_itself = info.resource == "namespaces" and info.namespace == info.name
        if info.namespace and not resource.namespaced and not is_itself:
            raise _no_such_path(info)
        if info.name and resource.namespaced and not info.namespace and info.verb not in ("list", "watch", "deletecollection"):
            raise _no_such_path(info)

    async def _subresource(self, request: Request, resource: Resource) -> Answer:
        info = request.info
        own = self.subresources.get((info.group, info.resource, info.subresource))
        general = self.subresources.get(("*", "*", info.subresource)) if info.subresource in resource.subresources else None
        handler = own or general
        if handler is not None and info.name:
            return await handler(request)
        if info.subresource not in resource.subresources or info.rest or not info.name:
            raise _no_such_path(info)
        if info.subresource in _SUBRESOURCE_WRITES:
            match info.verb:
                case "get":
                    return await self.get(request, resource)
                case "update":
                    return await self.update(request, resource)
                case "patch":
                    return await self.patch(request, resource)
        raise _not_allowed(resource, info, ("get", "update", "patch"))

    # --- reading

    async def get(self, request: Request, resource: Resource) -> Response:
        form = negotiate(request.header("accept"))
        version = version_text(request.query)
        if version not in ("", "0"):
            self._check_version(int(version))
        record = self._store.get_record(resource, request.info.name, request.info.namespace or None)
        return await self.answer(request, resource, record, form)

    def _check_version(self, wanted: int) -> None:
        """We only ever serve the present; a version from the future is one that another store gave out."""
        current = int(self._store.resource_version)
        if wanted > current:
            raise Timeout(
                f"Too large resource version: {wanted}, current: {current}; read again without one",
                causes=[Cause("", "Too large resource version", "ResourceVersionTooLarge")],
                retry_after_s=1,
            )

    async def _list(self, request: Request, resource: Resource) -> Response:
        form = negotiate(request.header("accept"))
        options = list_options(request.query, self._limits)
        steps = self._store.list_record_steps(
            resource,
            request.info.namespace or None,
            label_selector=_both(options.label_selector, request.only),
            field_selector=options.field_selector,
            limit=options.limit,
            continue_token=options.continue_token,
            resource_version=options.resource_version,
            version_match=options.version_match,
        )
        return await self._list_answer(request, resource, await done_in_turns(steps, request.turn), form)

    async def _list_answer(self, request: Request, resource: Resource, page: RecordPage, form: Form) -> Response:
        include = _include(request) if form.transform == "Table" else ""
        return await list_answer(resource, page, form, include=include, now=self._clock(), turn=request.turn)

    async def _render(self, form: Form, size: int, render: Callable[[], bytes]) -> bytes:
        """Stored bytes go out as they are, at once; to decode and print much of them takes seconds, and others are waiting."""
        if size <= _THREAD_RENDER_BYTES or (form.media == "json" and not form.transform):
            return render()
        async with self._threads:
            return await asyncio.to_thread(render)

    def _watch(self, request: Request, resource: Resource) -> Stream:
        form = negotiate(request.header("accept"), streaming=True)
        info = request.info
        options = list_options(request.query, self._limits, is_watch=True)
        include = _include(request)  # before there is a watcher: what is refused after that would leave it open
        selector = options.field_selector
        if info.name:
            # The permission was asked for this one object, so whatever else the selector says, no other may be seen.
            selector = _both(selector, str(FieldTerm("metadata.name", info.name)))
        try:
            watcher = self._store.watch_records(
                resource,
                info.namespace or None,
                label_selector=_both(options.label_selector, request.only),
                field_selector=selector,
                resource_version=options.resource_version,
                bookmarks=options.bookmarks,
                timeout_s=watch_timeout_s(request, options, self._limits),
                send_initial_events=options.send_initial_events,
            )
        except Expired as error:
            return expired_stream(error, form)
        return watch_stream(
            watcher,
            resource,
            form,
            include=include,
            clock=self._clock,
            metrics=self._metrics,
            pace=request.pace,
            load=self._store.load,
        )

    # --- writing

    async def _create(self, request: Request, resource: Resource) -> Response:
        form = negotiate(request.header("accept"))
        options = write_options(request)
        obj = await self.object_body(request, options)
        record = await self._store.create_record(
            resource,
            obj,
            request.info.namespace or None,
            options,
            actor=request.actor,
            warnings=request.warnings,
            turn=request.turn,
        )
        request.notes["name"] = record.key[1]
        return await self.answer(request, resource, record, form, code=201)

    async def update(self, request: Request, resource: Resource) -> Response:
        info = request.info
        form = negotiate(request.header("accept"))
        options = write_options(request)
        obj = await self.object_body(request, options)
        _check_name(info, obj)
        record = await self._store.update_record(
            resource,
            obj,
            info.namespace if resource.namespaced else None,
            options,
            subresource=info.subresource,
            actor=request.actor,
            warnings=request.warnings,
            turn=request.turn,
        )
        return await self.answer(request, resource, record, form)

    async def patch(self, request: Request, resource: Resource) -> Response:
        info = request.info
        form = negotiate(request.header("accept"))
        kind = patch_type(request.header("content-type"))
        options = write_options(request, kind)
        patch = await self.patch_body(request, kind)
        namespace = info.namespace if resource.namespaced else None
        is_new = kind is PatchType.APPLY and not self._exists(resource, info.name, namespace)
        record = await self._store.patch_record(
            resource,
            info.name,
            patch,
            namespace,
            options,
            patch_type=kind,
            subresource=info.subresource,
            actor=request.actor,
            warnings=request.warnings,
            turn=request.turn,
        )
        return await self.answer(request, resource, record, form, code=201 if is_new else 200)

    async def _delete(self, request: Request, resource: Resource) -> Response:
        info = request.info
        form = negotiate(request.header("accept"))
        options = delete_options(request, await self._optional_body(request))
        namespace = info.namespace if resource.namespaced else None
        propagation = options.propagation
        if propagation is None and resource.qualified in _ORPHANING:
            finalizers = self._store.get_record(resource, info.name, namespace).raw()["metadata"].get("finalizers") or ()
            if FINALIZER_ORPHAN not in finalizers and FINALIZER_FOREGROUND not in finalizers:
                propagation = "Orphan"
                request.warnings.append(_PODS_KEPT)
        record = await self._store.delete_record(
            resource,
            info.name,
            namespace,
            options.write,
            propagation=propagation,
            grace_period_s=options.grace_period_s,
            preconditions=options.preconditions,
            actor=request.actor,
            warnings=request.warnings,
        )
        if (record.deleting and not options.write.dry_run) or resource.qualified in _SHOWN_WHEN_DELETED:
            return await self.answer(request, resource, record, form)
        details = {"name": info.name, "group": resource.group, "kind": resource.plural, "uid": record.uid}
        return success({key: value for key, value in details.items() if value}, form)

    async def _delete_collection(self, request: Request, resource: Resource) -> Response:
        info = request.info
        if resource.namespaced and not info.namespace:  # those of a namespace are a collection; all together are not
            raise _not_allowed(resource, info, ("list", "watch"))
        if "metadata.name" not in request.query.text("fieldSelector") and info.name:
            raise _no_such_path(info)
        form = negotiate(request.header("accept"))
        options = delete_options(request, await self._optional_body(request))
        which = list_options(request.query, self._limits)
        is_orphaning = options.propagation is None and resource.qualified in _ORPHANING
        if is_orphaning:
            request.warnings.append(_PODS_KEPT)
        page = await self._store.delete_records(
            resource,
            info.namespace or None,
            label_selector=which.label_selector,
            field_selector=which.field_selector,
            limit=which.limit,
            continue_token=which.continue_token,
            propagation=options.propagation,
            otherwise="Orphan" if is_orphaning else None,
            grace_period_s=options.grace_period_s,
            options=options.write,
            actor=request.actor,
            warnings=request.warnings,
            turn=request.turn,
        )
        return await self._list_answer(request, resource, page, form)

    # --- bodies and answers, also for subresources

    async def object_body(self, request: Request, options: WriteOptions | None = None) -> Raw:
        """The body as one object."""
        media = body_media(request.header("content-type"))
        body = await request.body()
        value = await self._decode(body, media, request)
        if len(body) >= LARGE_BYTES:
            await request.turn()
        if not isinstance(value, dict):
            raise BadRequest(f"the body must be an object, not {_json_type(value)}")
        if options is not None and options.field_validation != "Ignore" and media == "json":
            self._check_duplicates(request, body, value, options)
        if len(body) >= LARGE_BYTES:
            await request.turn()
        return value

    def _check_duplicates(self, request: Request, body: bytes, value: Raw, options: WriteOptions) -> None:
        found = [f'duplicate field "{name}"' for name in duplicate_keys(body, value)]
        if found and options.field_validation == "Strict":
            raise BadRequest("strict decoding error: " + ", ".join(found))
        request.warnings.extend(found)

    async def patch_body(self, request: Request, kind: PatchType) -> Any:
        body = await request.body()
        value = await self._decode(body, "yaml" if kind is PatchType.APPLY else "json", request)
        if len(body) >= LARGE_BYTES:
            await request.turn()
        wanted = list if kind is PatchType.JSON else dict
        if not isinstance(value, wanted):
            raise BadRequest(f"a patch of type {kind.value} must be {_json_type(wanted())}, not {_json_type(value)}")
        if kind is PatchType.JSON and not all(isinstance(operation, dict) for operation in value):
            raise BadRequest("a JSON patch must be a list of objects, each with op and path")
        if kind is PatchType.APPLY and isinstance(value, dict):
            for name in ("apiVersion", "kind"):
                if not value.get(name):
                    raise BadRequest(f"{name} is missing; what is applied must name its apiVersion and kind")
        return value

    async def _optional_body(self, request: Request) -> Any:
        body = await request.body()
        if not body.strip():
            return None
        value = await self._decode(body, body_media(request.header("content-type")), request)
        if value is not None and not isinstance(value, dict):
            raise BadRequest(f"the body of a delete must be DeleteOptions, not {_json_type(value)}")
        return value

    async def _decode(self, body: bytes, media: BodyMedia, request: Request) -> Any:
        depth, nodes = self._limits.json_depth_max, self._limits.yaml_nodes_max
        if not body.strip():
            raise BadRequest("the request has no body; send the object")
        if media == "json":
            return decode_json(body, depth_max=depth)
        if media == "protobuf":
            info = request.info
            api_version = f"{info.group}/{info.version}" if info.group else info.version
            resource = self.find(info)
            kind = resource.kind if resource else ""
            if len(body) < _THREAD_YAML_BYTES:
                return decode_protobuf(body, depth_max=depth, api_version=api_version, kind=kind)
            async with self._threads:
                return await asyncio.to_thread(decode_protobuf, body, depth_max=depth, api_version=api_version, kind=kind)
        if len(body) < _THREAD_YAML_BYTES:
            return decode_yaml(body, depth_max=depth, nodes_max=nodes)
        async with self._threads:
            return await asyncio.to_thread(decode_yaml, body, depth_max=depth, nodes_max=nodes)

    async def answer(self, request: Request, resource: Resource, record: Record, form: Form, code: int = 200) -> Response:
        """One object in the form that was asked for."""
        body = await self._render(form, len(record.value), lambda: self._object_body(request, resource, record, form))
        return Response(code=code, body=body, content_type=form.content_type)

    def _object_body(self, request: Request, resource: Resource, record: Record, form: Form) -> bytes:
        if form.transform == "Table":
            raw = record.raw()
            meta = {"resourceVersion": raw["metadata"].get("resourceVersion", "")}
            shown = table(resource, [raw], self._clock(), version=form.version, include=_include(request), list_meta=meta)
            return encode(shown, form)
        if form.transform:
            return encode(partial_metadata(record.raw(), f"meta.k8s.io/{form.version}"), form)
        return record.value if form.media == "json" else json_to_yaml(record.value)

    def _exists(self, resource: Resource, name: str, namespace: str | None) -> bool:
        try:
            self._store.get_record(resource, name, namespace)
        except ApiError:
            return False
        return True


def success(details: Mapping[str, Any], form: Form, code: int = 200) -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": dict(details)}
    plain = Form(form.media)
    return Response(code=code, body=encode(status, plain), content_type=plain.content_type)


def _both(selector: str, other: str) -> str:
    return f"{selector},{other}" if selector and other else selector or other


def _include(request: Request) -> str:
    return request.query.choice("includeObject", ("None", "Metadata", "Object"), "Metadata")


def _check_name(info: RequestInfo, obj: Raw) -> None:
    """The URL and the object must agree; a name that is missing in the object is taken from the URL."""
    meta = obj.setdefault("metadata", {})
    if not isinstance(meta, dict):
        raise BadRequest(f"metadata must be an object, not {_json_type(meta)}")
    name = meta.setdefault("name", info.name)
    if name != info.name:
        raise BadRequest(f"the name of the object ({name!s:.100}) does not match the name on the URL ({info.name})")


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "a number")


def _no_such_path(info: RequestInfo) -> NotFound:
    # Some clients look at the details of any NotFound, and fall over when there are none.
    return NotFound(
        f"the server could not find the requested resource ({info.path[:200]})", kind=info.resource, group=info.group
    )


def _not_allowed(resource: Resource, info: RequestInfo, allowed: tuple[str, ...]) -> MethodNotAllowed:
    return MethodNotAllowed(
        f"the server does not allow {info.verb} on {info.resource_path} here; allowed: {', '.join(sorted(allowed))}",
        kind=resource.plural,
        group=resource.group,
        name=info.name,
    )
