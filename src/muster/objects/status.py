"""Failures as the Kubernetes API reports them: one exception tree, one JSON shape.

Every layer that can refuse a request (store, server, client) raises `ApiError`; the server renders it with `to_status`, the
client rebuilds the same class from what it received with `from_status`. So a caller catches `Conflict` and does not care
whether the store was in its own process or behind HTTP.

Pure. Messages name the object, the field, the value and the way out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, ClassVar

import msgspec

Raw = dict[str, Any]
"""An object as JSON: what is stored, sent and received. Typed views (`muster.objects.view`) are decoded from it."""


_SHOWN_LEN_MAX = 80
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def shown(value: Any) -> str:
    """`value` as a message quotes it: JSON, cut when it is long. For anything at all, since what is wrong may be anything.

    However large `value` is, no more of it is put into words than is shown.
    """
    try:
        if type(value) is str:
            text = encode_basestring(value[:_SHOWN_LEN_MAX])
        elif type(value) is int:
            text = str(value)
        elif not isinstance(value, dict | list):
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        else:
            text = ""
            for piece in _encoder.iterencode(value):
                text += piece
                if len(text) > _SHOWN_LEN_MAX:
                    break
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _SHOWN_LEN_MAX else f"{text[: _SHOWN_LEN_MAX - 3]}..."


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing wrong with one field. `reason` is Kubernetes' vocabulary: FieldValueInvalid, FieldValueRequired, ..."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiError(Exception):
    """A request was refused. `code` is the HTTP status, `reason` the word that programs test."""

    code: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        kind: str = "",
        group: str = "",
        name: str = "",
        uid: str = "",
        causes: Sequence[Cause] = (),
        retry_after_s: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.group = group
        self.name = name
        self.uid = uid
        self.causes = tuple(causes)
        self.retry_after_s = retry_after_s

    def to_status(self) -> Raw:
        """The `Status` object that Kubernetes clients expect as the body of a failed request."""
        details: Raw = {}
        for key, value in (("name", self.name), ("group", self.group), ("kind", self.kind), ("uid", self.uid)):
            if value:
                details[key] = value
        if self.causes:
            details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in self.causes]
        if self.retry_after_s:
            details["retryAfterSeconds"] = self.retry_after_s
        status: Raw = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if details:
            status["details"] = details
        return status


class BadRequest(ApiError):
    code = 400
    reason = "BadRequest"


class Unauthorized(ApiError):
    code = 401
    reason = "Unauthorized"


class Forbidden(ApiError):
    code = 403
    reason = "Forbidden"


class NotFound(ApiError):
    code = 404
    reason = "NotFound"


class MethodNotAllowed(ApiError):
    code = 405
    reason = "MethodNotAllowed"


class NotAcceptable(ApiError):
    code = 406
    reason = "NotAcceptable"


class AlreadyExists(ApiError):
    code = 409
    reason = "AlreadyExists"


class Conflict(ApiError):
    """The object changed since it was read, or a precondition or field manager stands against the write."""

    code = 409
    reason = "Conflict"


class Expired(ApiError):
    """The resourceVersion or continue token is older than the history that is kept: list again."""

    code = 410
    reason = "Expired"


class Gone(ApiError):
    code = 410
    reason = "Gone"


class RequestEntityTooLarge(ApiError):
    code = 413
    reason = "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    code = 415
    reason = "UnsupportedMediaType"


class Invalid(ApiError):
    """The object breaks its schema or its rules; `causes` lists every field that does."""

    code = 422
    reason = "Invalid"


class TooManyRequests(ApiError):
    code = 429
    reason = "TooManyRequests"


class InternalError(ApiError):
    code = 500
    reason = "InternalError"


class ServiceUnavailable(ApiError):
    code = 503
    reason = "ServiceUnavailable"


class Timeout(ApiError):
    """The request was not answered in time; a write may or may not have happened."""

    code = 504
    reason = "Timeout"


class StorageFull(ApiError):
    """The disk under the store is full: nothing was written, reads go on."""

    code = 507
    reason = "InsufficientStorage"


_BY_REASON: Mapping[str, type[ApiError]] = {c.reason: c for c in ApiError.__subclasses__()}
_BY_CODE: Mapping[int, type[ApiError]] = {c.code: c for c in reversed(ApiError.__subclasses__())} | {409: Conflict}
"""For answers without a reason. Of two classes with one code the first counts; a bare 409 says only `Conflict`."""


def from_status(status: Mapping[str, Any], http_code: int = 0) -> ApiError:
    """The exception that `status` (a decoded body, perhaps not a Status at all) stands for."""
    details = status.get("details")
    details = details if isinstance(details, Mapping) else {}
    raw_causes = details.get("causes")
    causes = [
        Cause(field=str(c.get("field", "")), message=str(c.get("message", "")), reason=str(c.get("reason", "")))
        for c in (raw_causes if isinstance(raw_causes, list) else [])
        if isinstance(c, Mapping)
    ]
    code = status.get("code") or http_code
    cls = _BY_REASON.get(str(status.get("reason", ""))) or _BY_CODE.get(code if isinstance(code, int) else 0, InternalError)
    retry_after = details.get("retryAfterSeconds")
    return cls(
        str(status.get("message") or f"HTTP {code}"),
        kind=str(details.get("kind", "")),
        group=str(details.get("group", "")),
        name=str(details.get("name", "")),
        uid=str(details.get("uid", "")),
        causes=causes,
        retry_after_s=retry_after if isinstance(retry_after, int) else 0,
    )
