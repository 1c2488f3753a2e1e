"""Admission webhooks for a real cluster: the checks that the embedded store makes, as AdmissionReview v1 over TLS.

    POST /mutate     defaults that a CRD's schema cannot say, and what hooks add; answered as a JSON patch
    POST /validate   schema, rules of the kind, and hooks; answered as allowed or refused with every cause

Of Kubernetes' own kinds, pods are judged: those that say something to Muster, or are for its schedulers; by the hooks alone, as
the API server itself knows their schema and defaults. All others pass untouched.

Who asked for what, and what was said to it, is told to a listener as entries of an audit log, which a cluster's API server does
not hand out. `code` is 0 for what was let pass: how the request ended the API server does not tell. A request that a webhook or
the schema has refused earlier, and a read, never come here.

Concurrency: on the event loop; one task per request; hooks must not act on the world, since a request may be repeated or come
to nothing. Invariants: whatever the body is, the answer is an AdmissionReview or a 4xx `Status`; a kind that is not Muster's
is let pass with a warning, since refusing what one does not know would stop a cluster.
"""

from __future__ import annotations

import asyncio
import base64
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from prometheus_client import Counter

from muster.objects.catalog import CATALOG, Catalog
from muster.objects.kinds.defaults import apply_defaults
from muster.objects.meta import annotations_of, labels_of, name_of
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
    ServiceUnavailable,
    Timeout,
)
from muster.objects.structural import Structural
from muster.objects.time import Clock, format_micro_time, wall_clock
from muster.objects.validation import validate_object
from muster.server.admission_review import API_VERSION, Question
from muster.server.audit import NOTES
from muster.server.decoding import decode_json
from muster.server.logs import logger
from muster.store.embedded.admission import Actor, Admission, AdmissionOperation, AdmissionRequest, Admissions
from muster.store.embedded.rules import conform, invalid

log = logger(__name__)

REVIEWS = Counter("muster_webhook_reviews", "Admission reviews answered.", ["path", "operation", "resource", "result"])
BODY_BYTES_MAX = 16 << 20
"""An object and its predecessor, each at most 3 MiB at the API server, with room for the envelope."""
DEPTH_MAX = 140
TIMEOUT_S = 8.0
"""Less than the ten seconds that the webhook configurations allow, so that the answer says what took so long."""
WARNINGS_MAX = 20
WARNING_CHARS_MAX = 200
NATIVE: Final = frozenset({("", "Pod")})
"""Kinds that are Kubernetes' own, and judged by hooks all the same."""
_SAME_S: Final = 2.0
_TOLD_MAX: Final = 256
_VERBS: Final = {"CREATE": "create", "UPDATE": "update", "DELETE": "delete"}
_OPERATIONS: dict[str, AdmissionOperation] = {"CREATE": "CREATE", "UPDATE": "UPDATE", "DELETE": "DELETE", "CONNECT": "CONNECT"}

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Webhook:
    """The ASGI application. `hooks` are the same that a Muster server takes as `extra_hooks`; `listener` is handed an entry for
    every write that was judged, as the listener of a server's audit log is. `is_ours`: whether a pod is for a scheduler of
    Muster's."""

    def __init__(
        self,
        *,
        catalog: Catalog = CATALOG,
        hooks: Sequence[Admission] = (),
        listener: Callable[[Raw], None] | None = None,
        unheard: frozenset[str] = frozenset(),
        is_ours: Callable[[Raw], bool] = lambda pod: True,
        not_ready: Callable[[], str] = lambda: "",
        clock: Clock = wall_clock,
    ) -> None:
        """`unheard`: whose writes the listener is not told of. `not_ready`: why nothing can be judged yet, while that is so.
        Until then there are no answers: what must be judged is refused by the API server, what need not be passes."""
        self._catalog = catalog
        self._hooks = Admissions(hooks)
        self._listener = listener
        self._unheard = unheard
        self._is_ours = is_ours
        self._not_ready = not_ready
        self._clock = clock
        self._told: dict[int, float] = {}
        """Of the last reviews that the listener heard of: what they were about, and when."""

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
            if why := self._not_ready():
                raise ServiceUnavailable(f"the webhook can't judge yet: {why}; try again", retry_after_s=1)
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
        if resource is None or not (resource.is_custom or (resource.group, resource.kind) in NATIVE):
            warnings.append(f"{review.resource.resource}.{review.resource.group} is not a kind of Muster: not checked")
        elif not review.sub_resource and review.operation in _VERBS and (resource.is_custom or self._is_judged(review)):
            notes: dict[str, str] = {}
            noting = NOTES.set(notes)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._judge(path, review, resource, response, warnings)
            except TimeoutError:
                result, response = "refused", _refusal(review, Timeout(f"not checked within {TIMEOUT_S:g} s; try again"))
            except ApiError as error:
                result, response = "refused", _refusal(review, error)
            finally:
                NOTES.reset(noting)
            self._tell(path, review, response, notes)
        if warnings:
            response["warnings"] = [text[:WARNING_CHARS_MAX] for text in dict.fromkeys(warnings)][:WARNINGS_MAX]
        REVIEWS.labels(path, review.operation, resource.qualified if resource else "", result).inc()
        return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}

    def _is_judged(self, review: Question) -> bool:
        """Of a pod: whether it is Muster's business, or was."""
        return any(_says_something(raw) or self._is_ours(raw) for raw in (review.object, review.old_object) if raw is not None)

    def _tell(self, path: str, review: Question, response: Raw, notes: dict[str, str]) -> None:
        """Once for a request: when it is validated, which comes last, or when it is refused before that."""
        if self._listener is None or review.dry_run or (path != "/validate" and response["allowed"]):
            return
        if review.user_info.username in self._unheard:
            return
        status = response.get("status") or {}
        if self._was_told(review, status):
            return
        name = review.name or name_of(review.object or review.old_object or {})
        self._listener(
            {
                "stage": "complete",
                "time": format_micro_time(self._clock()),
                "verb": _VERBS[review.operation],
                "user": review.user_info.username,
                "groups": review.user_info.groups or [],
                "object": {
                    "group": review.resource.group,
                    "resource": review.resource.resource,
                    "namespace": review.namespace,
                    "name": name,
                },
                "code": status.get("code", 0),
                "reason": status.get("reason", ""),
                "notes": notes,
            }
        )

    def _was_told(self, review: Question, status: Raw) -> bool:
        """An API server asks again when it had an old copy of the object: for the same user about the same change."""
        now = self._clock()
        who, what = review.user_info.username, (review.operation, review.resource.resource, review.namespace, review.name)
        key = hash((who, *what, status.get("code"), msgspec.json.encode([review.object, review.old_object], order="sorted")))
        self._told = {one: at for one, at in self._told.items() if 0 <= now - at < _SAME_S}
        is_known = key in self._told
        if len(self._told) < _TOLD_MAX:
            self._told[key] = now
        return is_known

    async def _judge(self, path: str, review: Question, resource: Resource, response: Raw, warnings: list[str]) -> None:
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
        if raw is not None and resource.is_custom:
            causes = structural_of(resource).validate(raw) or validate_object(resource, raw, review.old_object)
            if causes:
                raise invalid(resource, request.name, causes)
        await self._hooks.validate(request)

    async def _mutate(self, request: AdmissionRequest, raw: Raw) -> Raw:
        # The API server fills in the schema's defaults itself; only what a schema cannot say is left to do.
        shaped = apply_defaults(request.resource, raw, request.old) if request.resource.is_custom else raw
        changed = await self._hooks.mutate(msgspec.structs.replace(request, object=shaped))
        return shaped if changed is None else changed


def _says_something(pod: Raw) -> bool:
    """Whether a pod has a label or annotation of Muster's."""
    return any(key.startswith("muster.dev/") for key in (*labels_of(pod), *annotations_of(pod)))


@functools.lru_cache(maxsize=256)
def structural_of(resource: Resource) -> Structural:
    assert resource.view is not None, resource.qualified
    return Structural(schema_of(resource.view))


def _parse(body: bytes) -> Question:
    document = decode_json(body, depth_max=DEPTH_MAX)
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise BadRequest("the body is no AdmissionReview")
    if document.get("apiVersion") != API_VERSION:
        raise BadRequest(f"apiVersion {document.get('apiVersion')!r:.80} is not served; this webhook speaks {API_VERSION}")
    try:
        review = msgspec.convert(document.get("request"), Question)
    except msgspec.ValidationError as error:
        raise BadRequest(f"request: {error}") from None
    if review.operation not in _OPERATIONS:
        raise BadRequest(f"request.operation: {review.operation!r:.80} is none of {', '.join(_OPERATIONS)}")
    return review


def _request(review: Question, resource: Resource, raw: Raw | None, warnings: list[str]) -> AdmissionRequest:
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


def _refusal(review: Question, error: ApiError) -> Raw:
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
