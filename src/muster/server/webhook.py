"""Admission webhooks for a real cluster: the checks that the embedded store makes, as AdmissionReview v1 over TLS.

    POST /mutate     defaults that a CRD's schema cannot say, and what hooks add; answered as a JSON patch
    POST /validate   schema, rules of the kind, and hooks; answered as allowed or refused with every cause

Concurrency: on the event loop; one task per request; hooks must not act on the world, since a request may be repeated or come
to nothing. Invariants: whatever the body is, the answer is an AdmissionReview or a 4xx `Status`; a kind that is not Muster's
is let pass with a warning, since refusing what one does not know would stop a cluster.
"""

from __future__ import annotations

import asyncio
import base64
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from prometheus_client import Counter

from muster.objects.catalog import CATALOG, Catalog
from muster.objects.kinds.defaults import apply_defaults
from muster.objects.resources import Resource
from muster.objects.schema import schema_of
from muster.objects.status import (
    ApiError,
    BadRequest,
    InternalError,
    MethodNotAllowed,
    NotFound,
    Raw,
    RequestEntityTooLarge,
    Timeout,
)
from muster.objects.structural import Structural
from muster.objects.validation import validate_object
from muster.server.decoding import decode_json
from muster.server.logs import logger
from muster.store.embedded.admission import Actor, Admission, AdmissionOperation, AdmissionRequest, Admissions
from muster.store.embedded.rules import conform, invalid

log = logger(__name__)

REVIEWS = Counter("muster_webhook_reviews", "Admission reviews answered.", ["path", "operation", "resource", "result"])
API_VERSION = "admission.k8s.io/v1"
BODY_BYTES_MAX = 16 << 20
"""An object and its predecessor, each at most 3 MiB at the API server, with room for the envelope."""
DEPTH_MAX = 140
TIMEOUT_S = 8.0
"""Less than the ten seconds that the webhook configurations allow, so that the answer says what took so long."""
WARNINGS_MAX = 20
WARNING_CHARS_MAX = 200
_OPERATIONS: dict[str, AdmissionOperation] = {"CREATE": "CREATE", "UPDATE": "UPDATE", "DELETE": "DELETE", "CONNECT": "CONNECT"}

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class _Kind(msgspec.Struct):
    group: str = ""
    version: str = ""
    resource: str = ""


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _Review(msgspec.Struct, rename="camel"):
    """The part of an AdmissionRequest that is used."""

    uid: str
    resource: _Kind
    operation: str
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    object: Raw | None = None
    old_object: Raw | None = None
    user_info: _User = msgspec.field(default_factory=_User)
    dry_run: bool | None = None


class Webhook:
    """The ASGI application. `hooks` are the same that a Muster server takes as `extra_hooks`."""

    def __init__(self, *, catalog: Catalog = CATALOG, hooks: Sequence[Admission] = ()) -> None:
        self._catalog = catalog
        self._hooks = Admissions(hooks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        code, answer = await self._answer(scope, receive)
        body = msgspec.json.encode(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, Raw]:
        path = scope["path"]
        try:
            if path not in ("/mutate", "/validate"):
                raise NotFound(f"no webhook at {path[:200]!r}; there are /mutate and /validate")
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{path} takes POST, not {scope['method']}")
            return 200, await self.review(path, await _read(receive))
        except ApiError as error:
            return error.code, error.to_status()
        except Exception as error:  # the root of a request: answered, and logged with its trace
            log.error("webhook failed", path=path, exc_info=error)
            return 500, InternalError("the webhook failed; its log has the details").to_status()

    async def review(self, path: str, body: bytes) -> Raw:
        """The AdmissionReview that answers `body`. BadRequest when that is no AdmissionReview."""
        review = _parse(body)
        resource = self._catalog.by_plural(review.resource.group, review.resource.version, review.resource.resource)
        warnings: list[str] = []
        response: Raw = {"uid": review.uid, "allowed": True}
        result = "allowed"
        if resource is None or not resource.is_custom:
            warnings.append(f"{review.resource.resource}.{review.resource.group} is not a kind of Muster: not checked")
        elif not review.sub_resource and review.operation in ("CREATE", "UPDATE", "DELETE"):
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._judge(path, review, resource, response, warnings)
            except TimeoutError:
                result, response = "refused", _refusal(review, Timeout(f"not checked within {TIMEOUT_S:g} s; try again"))
            except ApiError as error:
                result, response = "refused", _refusal(review, error)
        if warnings:
            response["warnings"] = [text[:WARNING_CHARS_MAX] for text in dict.fromkeys(warnings)][:WARNINGS_MAX]
        REVIEWS.labels(path, review.operation, resource.qualified if resource else "", result).inc()
        return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}

    async def _judge(self, path: str, review: _Review, resource: Resource, response: Raw, warnings: list[str]) -> None:
        raw = conform(resource, review.object) if review.object is not None else None
        request = _request(review, resource, raw, warnings)
        if path == "/mutate":
            if raw is None:
                return
            # Against `raw`, not what came in: nulls that stand for nothing (creationTimestamp) are no change worth sending.
            patch = json_patch(raw, await self._mutate(request, raw))
            if patch:
                response["patchType"] = "JSONPatch"
                response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
            return
        if raw is not None:
            causes = structural_of(resource).validate(raw) or validate_object(resource, raw, review.old_object)
            if causes:
                raise invalid(resource, request.name, causes)
        await self._hooks.validate(request)

    async def _mutate(self, request: AdmissionRequest, raw: Raw) -> Raw:
        # The API server fills in the schema's defaults itself; only what a schema cannot say is left to do.
        shaped = apply_defaults(request.resource, raw, request.old)
        changed = await self._hooks.mutate(msgspec.structs.replace(request, object=shaped))
        return shaped if changed is None else changed


@functools.lru_cache(maxsize=256)
def structural_of(resource: Resource) -> Structural:
    assert resource.view is not None, resource.qualified
    return Structural(schema_of(resource.view))


def _parse(body: bytes) -> _Review:
    document = decode_json(body, depth_max=DEPTH_MAX)
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise BadRequest("the body is no AdmissionReview")
    if document.get("apiVersion") != API_VERSION:
        raise BadRequest(f"apiVersion {document.get('apiVersion')!r:.80} is not served; this webhook speaks {API_VERSION}")
    try:
        review = msgspec.convert(document.get("request"), _Review)
    except msgspec.ValidationError as error:
        raise BadRequest(f"request: {error}") from None
    if review.operation not in _OPERATIONS:
        raise BadRequest(f"request.operation: {review.operation!r:.80} is none of {', '.join(_OPERATIONS)}")
    return review


def _request(review: _Review, resource: Resource, raw: Raw | None, warnings: list[str]) -> AdmissionRequest:
    meta = (raw or review.old_object or {}).get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    user = review.user_info
    return AdmissionRequest(
        operation=_OPERATIONS[review.operation],
        resource=resource,
        namespace=review.namespace,
        name=review.name or str(meta.get("name") or ""),
        old=review.old_object,
        object=raw,
        actor=Actor(
            user=user.username,
            uid=user.uid,
            groups=tuple(user.groups or ()),
            extra={key: tuple(values) for key, values in (user.extra or {}).items()},
        ),
        dry_run=bool(review.dry_run),
        warn=warnings.append,
    )


def _refusal(review: _Review, error: ApiError) -> Raw:
    """The API server shows `status.message` to the user, after the name of the webhook."""
    return {"uid": review.uid, "allowed": False, "status": error.to_status()}


def json_patch(before: Any, after: Any, path: str = "") -> list[Raw]:
    """The JSON patch from `before` to `after`. Lists that differ are replaced whole."""
    if isinstance(before, dict) and isinstance(after, dict):
        gone = sorted(before.keys() - after.keys())
        operations: list[Raw] = [{"op": "remove", "path": f"{path}/{_escaped(key)}"} for key in gone]
        for key, value in after.items():
            below = f"{path}/{_escaped(key)}"
            if key not in before:
                operations.append({"op": "add", "path": below, "value": value})
            else:
                operations += json_patch(before[key], value, below)
        return operations
    if type(before) is type(after) and before == after:
        return []
    return [{"op": "replace", "path": path, "value": after}]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the client went away before its request was whole")
        size += len(message.get("body", b""))
        if size > BODY_BYTES_MAX:
            raise RequestEntityTooLarge(f"the body is larger than {BODY_BYTES_MAX} bytes")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
