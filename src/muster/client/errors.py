"""What can go wrong between this process and the server, as members of the one tree of `ApiError`.

The server's own refusals arrive as `muster.objects.status` classes. These stand for what no server said: it could not be
reached or trusted, it did not answer, what answered was no API server or said too much, the credentials could not be had.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from muster.objects.status import (
    ApiError,
    Conflict,
    Expired,
    Gone,
    InternalError,
    NotFound,
    ServiceUnavailable,
    Timeout,
    TooManyRequests,
    Unauthorized,
    from_status,
)

_SNIPPET_CHARS_MAX = 300
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


class Unreachable(ServiceUnavailable):
    """No connection came about: the request certainly did not reach the server, so sending it again is safe."""


class Untrusted(Unreachable):
    """The TLS handshake failed: the server's certificate does not fit, or it refused ours. Trying again will not help."""


class ClientBusy(TooManyRequests):
    """This client's own bounds are reached; nothing was sent. Slow down, or raise the bound in `TransportLimits`."""


class OutcomeUnknown(Timeout):
    """The request was sent and no whole answer came back: a write may or may not have happened."""


class BadResponse(ApiError):
    """What answered is not a Kubernetes-style API: a proxy's page, broken JSON, or a body over the limit."""

    code = 502
    reason = "BadGateway"


class NotAnApi(BadResponse):
    """A redirect, or a code that no API server uses: something else listens there, and asking again will not change it."""


class ResponseTooLarge(BadResponse):
    """The answer is larger than this client accepts; ask for less (a `limit`, a selector) or raise the limit."""


class PathNotServed(NotFound):
    """The server has no such path: the kind, or this version of it, is not there. A missing object is a plain NotFound."""


class CredentialError(Unauthorized):
    """This side could not produce credentials: an exec plugin failed, a token file is gone."""


def error_from_answer(code: int, headers: Mapping[str, str], body: bytes, *, request: str) -> ApiError:
    """The exception for an answer with a failure `code`; `request` ("GET https://...") names what was asked."""
    status = _as_status(body)
    if status is not None:
        error = from_status(status, code)
        if isinstance(error, NotFound) and not error.name and not error.kind:
            error = PathNotServed(error.message)
    else:
        message = f"{request} was answered with HTTP {code} and no Status: {snippet(body) or 'an empty body'}"
        error = from_status({"message": message}, code)
        if isinstance(error, NotFound):
            error = PathNotServed(f"{message}; the server does not serve this path (is the kind installed?)")
        elif code == Conflict.code:
            error = Conflict(message)
        elif isinstance(error, InternalError) and code != InternalError.code:
            error = BadResponse(message) if code > InternalError.code else NotAnApi(message)
    if not error.retry_after_s:
        error.retry_after_s = retry_after_s(headers)
    return error


def retry_after_s(headers: Mapping[str, str]) -> int:
    """The Retry-After header in seconds; 0 when there is none or it is a date (Kubernetes sends seconds only)."""
    text = headers.get("Retry-After", "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


def expired(error: ApiError) -> ApiError:
    """`error`, with every spelling of 410 as Expired: older servers say Gone for a compacted resourceVersion."""
    if isinstance(error, Gone):
        return Expired(error.message, kind=error.kind, group=error.group, name=error.name, causes=error.causes)
    return error


def snippet(body: bytes) -> str:
    """The readable beginning of a body that was not what we asked for: tags and white space squeezed out."""
    text = body[: 20 * _SNIPPET_CHARS_MAX].decode("utf-8", "replace")
    text = " ".join(_TAG.sub(" ", text).split())
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= _SNIPPET_CHARS_MAX else text[:_SNIPPET_CHARS_MAX] + "…"


def _as_status(body: bytes) -> Mapping[str, object] | None:
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    return decoded if isinstance(decoded, dict) and decoded.get("kind") == "Status" else None
