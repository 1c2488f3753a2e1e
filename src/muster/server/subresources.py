"""Subresources that are more than a part of their object: binding, eviction, scale, token, and those we do not serve.

Concurrency: stateless handlers on the event loop, registered with `register`. `pods/log` is in `kubelet_proxy`,
`pods/exec` and `pods/portforward` are in `node_streams`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from muster.objects.patch.json_patch import apply_json_patch
from muster.objects.patch.merge import apply_merge_patch
from muster.objects.resources import Resource
from muster.objects.status import BadRequest, Cause, Conflict, Forbidden, Invalid, MethodNotAllowed, NotFound, Raw, shown
from muster.objects.time import Clock, format_time
from muster.server.admission import DEFAULT_ACCOUNT
from muster.server.config import ServerLimits
from muster.server.exchange import Request, Response
from muster.server.handlers import ResourceHandlers, success
from muster.server.negotiation import encode, negotiate, patch_type
from muster.server.node_access import token_refusal
from muster.server.node_index import node_of_user
from muster.server.options import write_options
from muster.server.token_keys import TokenKeys
from muster.server.tokens import AUDIENCE, BOUND_KINDS, service_account_claims, sign
from muster.store.contract import PatchType
from muster.store.embedded import EmbeddedStore

SCALE_VERSION = "autoscaling/v1"
SCALE_TRIES_MAX = 5
"""Of a patch, while others write the object: as often as Kubernetes tries."""
_NO_PROXY = "requests are not passed on over HTTP; `kubectl port-forward` opens a connection to a pod"
_NO_CHANGE = "the containers of a pod stay as they were created; make another pod"
_NOT_SERVED = {
    ("pods", "attach"): "`kubectl logs -f` shows what a container prints, and `kubectl exec` runs a command beside it",
    ("pods", "proxy"): _NO_PROXY,
    ("services", "proxy"): _NO_PROXY,
    ("nodes", "proxy"): "ask the agent of the node itself, with the same credentials",
    ("pods", "ephemeralcontainers"): _NO_CHANGE,
    ("pods", "resize"): _NO_CHANGE,
}
"""Subresources that Kubernetes has and this server has not, and why: who asks for them is told."""


class Subresources:
    def __init__(
        self,
        handlers: ResourceHandlers,
        store: EmbeddedStore,
        *,
        token_keys: TokenKeys,
        clock: Clock,
        limits: ServerLimits,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._handlers = handlers
        self._store = store
        self._token_keys = token_keys
        self._clock = clock
        self._limits = limits
        self._entropy = entropy

    def register(self) -> None:
        table = self._handlers.subresources
        table[("", "pods", "binding")] = self._binding
        table[("", "pods", "eviction")] = self._eviction
        table[("", "serviceaccounts", "token")] = self._token
        table[("*", "*", "scale")] = self._scale
        for resource, name in _NOT_SERVED:
            table[("", resource, name)] = self._not_supported
        self._handlers.virtual[("", "bindings")] = self._binding

    # --- pods

    async def _binding(self, request: Request) -> Response:
        """`POST pods/{name}/binding`, and the old `POST bindings`. Answered with a Status, as Kubernetes does."""
        _require(request, "create")
        form = negotiate(request.header("accept"), transforms=False)
        options = write_options(request)
        raw = await self._handlers.object_body(request)
        _check_kind(raw, "Binding")
        meta, target = _part(raw, "metadata"), _part(raw, "target")
        name = meta.get("name") or request.info.name
        if request.info.name and name != request.info.name:
            raise BadRequest(f"the name of the binding ({name!s:.100}) does not match the pod on the URL ({request.info.name})")
        node = target.get("name")
        if node is not None and not isinstance(node, str):
            raise _mistyped("target.name", node, "string")
        if target.get("kind") not in (None, "", "Node") or not node:
            raise _invalid("Binding", str(name), "target.name", "Required value: the name of the node, with kind Node")
        if not isinstance(name, str) or not name:
            raise _invalid("Binding", "", "metadata.name", "Required value: the name of the pod")
        annotations = meta.get("annotations")
        await self._store.bind(
            name,
            request.info.namespace,
            node,
            uid=str(meta.get("uid") or ""),
            annotations=_texts(annotations) if annotations else None,
            options=options,
            actor=request.actor,
            warnings=request.warnings,
        )
        return success({}, form, code=201)

    async def _eviction(self, request: Request) -> Response:
        _require(request, "create")
        form = negotiate(request.header("accept"), transforms=False)
        options = write_options(request)
        raw = await self._handlers.object_body(request)
        _check_kind(raw, "Eviction")
        name = _part(raw, "metadata").get("name") or request.info.name
        if name != request.info.name:
            raise BadRequest(
                f"the name of the eviction ({name!s:.100}) does not match the pod on the URL ({request.info.name})"
            )
        wanted = _part(raw, "deleteOptions")
        grace_s = wanted.get("gracePeriodSeconds")
        if grace_s is not None and type(grace_s) is not int:
            raise _mistyped("deleteOptions.gracePeriodSeconds", grace_s, "integer")
        await self._store.evict(
            request.info.name,
            request.info.namespace,
            grace_period_s=grace_s,
            uid=str(_part(wanted, "preconditions").get("uid") or ""),
            dry_run=options.dry_run or wanted.get("dryRun") == ["All"],
            actor=request.actor,
            warnings=request.warnings,
        )
        return success({}, form, code=201)

    async def _not_supported(self, request: Request) -> Response:
        info = request.info
        raise MethodNotAllowed(
            f"{info.subresource} is not supported by this server ({info.resource}/{info.name}): "
            f"{_NOT_SERVED[info.resource, info.subresource]}",
            kind=info.resource,
            name=info.name,
        )

    # --- service accounts

    async def _token(self, request: Request) -> Response:
        """`kubectl create token`: a signed token that dies with its account, and with the object it is bound to."""
        _require(request, "create")
        info = request.info
        form = negotiate(request.header("accept"), transforms=False)
        raw = await self._handlers.object_body(request)
        _check_kind(raw, "TokenRequest")
        account = self._store.get_record(self._resource("", "ServiceAccount"), info.name, info.namespace)
        spec = _part(raw, "spec")
        lifetime_s = spec.get("expirationSeconds")
        if lifetime_s is None:  # clients in Go send null for what they leave open
            lifetime_s = self._limits.token_lifetime_default_s
        shortest, longest = self._limits.token_lifetime_min_s, self._limits.token_lifetime_max_s
        if type(lifetime_s) is not int:
            raise _mistyped("spec.expirationSeconds", lifetime_s, "integer")
        if not shortest <= lifetime_s <= longest:
            message = f"Invalid value: {lifetime_s}: must be between {shortest} and {longest} seconds"
            raise _invalid("TokenRequest", info.name, "spec.expirationSeconds", message)
        audiences = spec.get("audiences") or [AUDIENCE]
        if not isinstance(audiences, list) or not all(isinstance(a, str) for a in audiences):
            raise _mistyped("spec.audiences", audiences, "list of strings")
        if not all(audiences):
            raise _invalid("TokenRequest", info.name, "spec.audiences", "Invalid value: an audience may not be empty")
        now_s = self._clock()
        bound, node = self._bound(request, _part(spec, "boundObjectRef"), audiences)
        claims = service_account_claims(
            namespace=info.namespace,
            name=info.name,
            uid=account.uid,
            audiences=audiences,
            now_s=now_s,
            lifetime_s=lifetime_s,
            token_id=self._entropy(16).hex(),
            bound=bound,
            node=node,
        )
        answer = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": info.name, "namespace": info.namespace, "creationTimestamp": format_time(now_s)},
            "spec": {**spec, "audiences": audiences, "expirationSeconds": lifetime_s},
            "status": {"token": sign(self._token_keys.signing, claims), "expirationTimestamp": format_time(now_s + lifetime_s)},
        }
        return Response(code=201, body=encode(answer, form), content_type=form.content_type)

    def _bound(
        self, request: Request, ref: Raw, audiences: list[str]
    ) -> tuple[tuple[str, str, str] | None, tuple[str, str] | None]:
        """What the token ends with, and the node (name, uid) of a pod that has one."""
        info = request.info
        asker = node_of_user(request.actor.user, request.actor.groups)
        if not ref:
            if asker:
                raise Forbidden(token_refusal(asker, "", {}, audiences), kind="serviceaccounts", name=info.name)
            return None, None
        kind, name, uid = (str(ref.get(key) or "") for key in ("kind", "name", "uid"))
        if kind not in BOUND_KINDS:
            message = f'Unsupported value: "{kind:.80}": supported values: {", ".join(BOUND_KINDS)}'
            raise _invalid("TokenRequest", info.name, "spec.boundObjectRef.kind", message)
        bound = self._store.get_record(self._resource("", kind), name, None if kind == "Node" else info.namespace)
        if uid and uid != bound.uid:
            message = f'Invalid value: "{uid:.80}": {kind} "{name}" has uid {bound.uid}'
            raise _invalid("TokenRequest", info.name, "spec.boundObjectRef.uid", message)
        node = None
        spec = _part(bound.raw(), "spec") if kind == "Pod" else {}
        if asker and (why := token_refusal(asker, kind, spec, audiences)):
            raise Forbidden(why, kind="serviceaccounts", name=info.name)
        if kind == "Pod":
            if (spec.get("serviceAccountName") or DEFAULT_ACCOUNT) != info.name:
                message = f'Invalid value: "{name}": the pod runs as "{spec.get("serviceAccountName")}", not as "{info.name}"'
                raise _invalid("TokenRequest", info.name, "spec.boundObjectRef.name", message)
            with contextlib.suppress(NotFound):
                where = str(spec.get("nodeName") or "")
                node = (where, self._store.get_record(self._resource("", "Node"), where).uid) if where else None
        return (kind, name, bound.uid), node

    # --- scale

    async def _scale(self, request: Request) -> Response:
        """`autoscaling/v1` Scale, a window on the object's replicas."""
        info = request.info
        resource = self._handlers.find(info)
        assert resource is not None
        form = negotiate(request.header("accept"), transforms=False)
        if info.verb == "update":
            scale = await self._put_scale(request, resource, await self._handlers.object_body(request), None)
        elif info.verb == "patch":
            scale = await self._patch_scale(request, resource)
        else:
            _require(request, "get")
            scale = await self._store.get_scale(resource, info.name, info.namespace or None)
        return Response(body=encode(scale, form), content_type=form.content_type)

    async def _patch_scale(self, request: Request, resource: Resource) -> Raw:
        info = request.info
        kind = patch_type(request.header("content-type"))
        patch = await self._handlers.patch_body(request, kind)
        if kind is PatchType.APPLY:
            _check_applied(patch, info.name)
            return await self._put_scale(request, resource, patch, kind)
        tries_left = 1 if _names_version(patch, kind) else SCALE_TRIES_MAX
        while True:
            tries_left -= 1
            scale = await self._store.get_scale(resource, info.name, info.namespace or None)
            # A strategic patch on a Scale has no lists to merge, so it is a merge patch.
            wanted = apply_json_patch(scale, patch) if kind is PatchType.JSON else apply_merge_patch(scale, patch)
            try:
                return await self._put_scale(request, resource, wanted, kind)
            except Conflict:
                if not tries_left:
                    raise
                # The object changed in between, and the client has named no version of it: what it wants still holds.

    async def _put_scale(self, request: Request, resource: Resource, wanted: Raw, kind: PatchType | None) -> Raw:
        _check_kind(wanted, "Scale")
        return await self._store.update_scale(
            resource,
            request.info.name,
            wanted,
            request.info.namespace or None,
            write_options(request, kind),
            is_applied=kind is PatchType.APPLY,
            actor=request.actor,
            warnings=request.warnings,
        )

    def _resource(self, group: str, kind: str) -> Resource:
        return self._store.catalog.by_kind(group, kind)


def _require(request: Request, verb: str) -> None:
    if request.info.verb != verb:
        allowed = f"the server does not allow {request.info.verb} on {request.info.resource_path}; allowed: {verb}"
        raise MethodNotAllowed(allowed, kind=request.info.resource, name=request.info.name)


def _check_kind(raw: Raw, kind: str) -> None:
    if raw.get("kind") not in (None, "", kind):
        raise BadRequest(f"kind of the object ({raw['kind']!r:.100}) does not match the request ({kind})")


def _names_version(patch: Any, kind: PatchType) -> bool:
    """Whether a patch of a Scale says which version it is for: then it is no other's."""
    if kind is PatchType.JSON:
        return any(str(operation.get("path", "")).startswith("/metadata") for operation in patch if isinstance(operation, dict))
    return "resourceVersion" in _part(patch, "metadata")


def _check_applied(scale: Raw, name: str) -> None:
    """What an applied Scale has to say. One that states no replicas would give them up, and nobody means 0 by that."""
    if scale["apiVersion"] != SCALE_VERSION:
        raise BadRequest(f"apiVersion is {scale['apiVersion']!r:.100}; what is applied to scale is a Scale of {SCALE_VERSION}")
    given = _part(scale, "metadata").get("name", name)
    if given != name:
        raise BadRequest(f"the name of the object ({given!s:.100}) does not match the name on the URL ({name})")
    if _part(scale, "spec").get("replicas") is None:
        message = "Required value: state how many; to leave the number to others, apply nothing to scale"
        raise _invalid("Scale", name, "spec.replicas", message)


def _part(raw: Raw, key: str) -> Raw:
    """The object under `key`; empty where there is none."""
    value = raw.get(key)
    if value is not None and not isinstance(value, dict):
        raise _mistyped(key, value, "object")
    return value or {}


def _mistyped(field: str, value: Any, wanted: str) -> BadRequest:
    return BadRequest(f"{field}: Invalid value: {shown(value)}: must be of type {wanted}")


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise BadRequest("metadata.annotations must be a map of texts")
    return dict(value)


def _invalid(kind: str, name: str, field: str, message: str) -> Invalid:
    return Invalid(f'{kind} "{name}" is invalid: {field}: {message}', kind=kind, name=name, causes=[Cause(field, message)])
