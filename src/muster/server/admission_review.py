"""AdmissionReview, the question and the answer between an API server and an admission webhook, from both sides. Pure.

`webhook.py` reads questions (on a real cluster Muster is the webhook); `webhooks.py` asks them (here Muster is the API server).
What is asked is `admission.k8s.io/v1`, or v1beta1 of a webhook that prefers it.

Invariant: `read_answer` takes any JSON value at all, and either gives an answer that has been checked or raises `BadAnswer`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.objects.status import ApiError, Cause, Raw
from muster.store.embedded.admission import Actor

GROUP: Final = "admission.k8s.io"
API_VERSION: Final = f"{GROUP}/v1"
JSON_PATCH: Final = "JSONPatch"
IN_PROCESS: Final = Actor("system:muster", groups=("system:authenticated",))
"""Who webhooks are told wrote something when Muster itself did, in the server's own process."""
_MESSAGE_CHARS_MAX: Final = 16 * 1024
_CAUSES_MAX: Final = 64
_AUDIT_MAX: Final = 32
"""Annotations of one answer that are kept."""
_AUDIT_CHARS_MAX: Final = 1024


class KindName(msgspec.Struct):
    group: str = ""
    version: str = ""
    kind: str = ""


class ResourceName(msgspec.Struct):
    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(msgspec.Struct, omit_defaults=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class Question(msgspec.Struct, rename="camel", kw_only=True):
    """`request` of an AdmissionReview."""

    uid: str
    kind: KindName | None = None
    resource: ResourceName
    sub_resource: str = ""
    request_kind: KindName | None = None
    request_resource: ResourceName | None = None
    request_sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str
    user_info: UserInfo = msgspec.field(default_factory=UserInfo)
    object: Raw | None = None
    old_object: Raw | None = None
    dry_run: bool | None = None
    options: Raw | None = None


class BadAnswer(Exception):
    """What a webhook sent is no answer to what it was asked; the text says why."""


class Answer(msgspec.Struct, kw_only=True):
    """`response` of an AdmissionReview, checked. `patch` is a JSON patch as text, b"" for none."""

    allowed: bool
    status: Raw
    warnings: list[str]
    audit: dict[str, str]
    patch: bytes = b""
    patch_type: str = ""


class Denied(ApiError):
    """A webhook said no. It chooses code and reason itself, within what is a refusal."""

    def __init__(self, message: str, *, code: int, reason: str, causes: list[Cause], retry_after_s: int = 0) -> None:
        super().__init__(message, causes=causes, retry_after_s=retry_after_s)
        self.code = code  # type: ignore[misc]  # of this one, not of the class
        self.reason = reason  # type: ignore[misc]

    def to_status(self) -> Raw:
        return {key: value for key, value in super().to_status().items() if key != "reason" or value}


def user_info(actor: Actor | None) -> UserInfo:
    who = actor or IN_PROCESS
    extra = {key: list(values) for key, values in who.extra.items()}
    return UserInfo(username=who.user, uid=who.uid, groups=list(who.groups), extra=extra or None)


_FIELDS: Final = tuple((field.name, field.encode_name) for field in msgspec.structs.fields(Question))
_ALWAYS_THERE: Final = frozenset({"object", "old_object", "dry_run"})
"""Where there is no object, webhooks expect a null."""


def review(question: Question, version: str) -> bytes:
    request = {key: value for name, key in _FIELDS if (value := getattr(question, name)) or name in _ALWAYS_THERE}
    return msgspec.json.encode({"kind": "AdmissionReview", "apiVersion": f"{GROUP}/{version}", "request": request})


def read_answer(document: Any, *, uid: str, version: str, is_mutating: bool) -> Answer:
    """What `document` answers to the question `uid`. Of v1beta1, Kubernetes lets uid, version and patch type be anything."""
    if not isinstance(document, dict):
        raise BadAnswer("couldn't get version/kind; the answer is no JSON object")
    response = document.get("response")
    if version == "v1":
        found = (document.get("apiVersion"), document.get("kind"))
        if isinstance(response, dict) and response.get("uid") != uid:
            raise BadAnswer(f'expected response.uid="{uid}", got {_quoted(response.get("uid", ""))}')
        if found != (API_VERSION, "AdmissionReview"):
            shown = f"{_plain(found[0])}, Kind={_plain(found[1])}"
            raise BadAnswer(f"expected webhook response of {API_VERSION}, Kind=AdmissionReview, got {shown}")
    if response is None:
        raise BadAnswer("webhook response was absent")
    if not isinstance(response, dict):
        raise BadAnswer("response is no object")
    allowed = response.get("allowed", False)
    if not isinstance(allowed, bool):
        raise BadAnswer(f"response.allowed is {_quoted(allowed)}, not true or false")
    patch, patch_type = _patch(response, version, is_mutating=is_mutating)
    status = response.get("status")
    return Answer(
        allowed=allowed,
        status=status if isinstance(status, dict) else {},
        warnings=[text for text in _list(response.get("warnings")) if isinstance(text, str)],
        audit=_audit(response.get("auditAnnotations")),
        patch=patch,
        patch_type=patch_type,
    )


def _patch(response: Mapping[str, Any], version: str, *, is_mutating: bool) -> tuple[bytes, str]:
    text, type_ = response.get("patch"), response.get("patchType")
    if text is not None and not isinstance(text, str):
        raise BadAnswer("response.patch is no text: it is a JSON patch in base64")
    try:
        patch = base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        raise BadAnswer("response.patch is not base64") from None
    if version == "v1beta1":
        return (patch, JSON_PATCH if patch else "") if is_mutating else (b"", "")
    if not is_mutating:
        if patch:
            raise BadAnswer("validating webhook may not return response.patch")
        if type_ is not None:
            raise BadAnswer("validating webhook may not return response.patchType")
        return b"", ""
    if patch and type_ is None:
        raise BadAnswer("webhook returned response.patch but not response.patchType")
    if type_ is not None and not patch:
        raise BadAnswer("webhook returned response.patchType but not response.patch")
    if type_ is not None and (not isinstance(type_, str) or not type_):
        raise BadAnswer(f"webhook returned invalid response.patchType of {_quoted(type_)}")
    if patch and type_ != JSON_PATCH:
        raise BadAnswer(f"unsupported patch type {_quoted(type_)}")
    return patch, type_ or ""


def _audit(annotations: Any) -> dict[str, str]:
    if not isinstance(annotations, dict):
        return {}
    texts = [(key, value) for key, value in annotations.items() if isinstance(value, str)]
    return {key[:_AUDIT_CHARS_MAX]: value[:_AUDIT_CHARS_MAX] for key, value in texts[:_AUDIT_MAX]}


def denial(webhook: str, status: Mapping[str, Any]) -> Denied:
    """The refusal that the client hears, in Kubernetes' words."""
    denied_by = f'admission webhook "{webhook}" denied the request'
    message, reason, code = status.get("message"), status.get("reason"), status.get("code")
    reason = reason if isinstance(reason, str) else ""
    details = status.get("details")
    details = details if isinstance(details, dict) else {}
    causes = [
        Cause(field=_plain(c.get("field")), message=_plain(c.get("message")), reason=_plain(c.get("reason")))
        for c in _list(details.get("causes"))[:_CAUSES_MAX]
        if isinstance(c, dict)
    ]
    if isinstance(message, str) and message:
        said = f"{denied_by}: {message[:_MESSAGE_CHARS_MAX]}"
    else:
        said = f"{denied_by}: {reason}" if reason else f"{denied_by} without explanation"
    is_refusal = isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599
    wait = details.get("retryAfterSeconds")
    return Denied(
        said,
        code=code if is_refusal and isinstance(code, int) else 400,
        reason=reason[:_AUDIT_CHARS_MAX],
        causes=causes,
        retry_after_s=wait if isinstance(wait, int) and not isinstance(wait, bool) and 0 < wait <= 3600 else 0,
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _plain(value: Any) -> str:
    return value[:_AUDIT_CHARS_MAX] if isinstance(value, str) else ""


def _quoted(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()[:200]
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__
