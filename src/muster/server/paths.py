"""From a URL to what is asked of which object: Kubernetes' `RequestInfo`.

Pure. The raw path is split before it is unquoted, so an escaped slash can never move a name into another position, and every
segment is checked once, here: names that come out of this module can't be `.`, `..`, empty, or hold a slash, a percent sign
or a control character.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

import msgspec

from muster.objects.status import BadRequest

NAME_CHARS_MAX = 512
_PLAIN = re.compile(rb"[A-Za-z0-9/._:~-]*")
_VERBS_ONE = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_VERBS_MANY = {"GET": "list", "HEAD": "list", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "deletecollection"}
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


class RequestInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a request wants. `verb` is RBAC's word for resources, the lower-case HTTP method for other paths."""

    verb: str
    path: str
    is_resource: bool = False
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    rest: str = ""
    """What follows the subresource: the path behind `proxy/`."""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""
    """Of lists and watches, as the client wrote them."""

    @property
    def qualified(self) -> str:
        """`pods` or `deployments.apps`, as messages name it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def resource_path(self) -> str:
        """`pods/log`: how RBAC rules name a subresource."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    @property
    def is_write(self) -> bool:
        return self.verb not in ("get", "list", "watch", "head", "options")


def request_info(
    method: str,
    raw_path: bytes,
    *,
    is_watch: bool = False,
    only_name: str = "",
    field_selector: str = "",
    label_selector: str = "",
) -> RequestInfo:
    """Read `raw_path` (still percent-encoded). `only_name` is the name that a `metadata.name=` field selector asks for.

    Raises BadRequest for segments that no object can have.
    """
    if not raw_path.startswith(b"/"):
        raise BadRequest("the request target must be a path that begins with '/'")
    if len(raw_path) <= NAME_CHARS_MAX and b"/." not in raw_path and _PLAIN.fullmatch(raw_path):
        path = raw_path.decode()  # nearly all requests: nothing to unquote, nothing to refuse
        segments = path.split("/")[1:]
    else:
        segments = [_segment(part) for part in raw_path.split(b"/")[1:]]
        path = "/" + "/".join(segments)
    plain = RequestInfo(verb=method.lower(), path=path)
    if segments[0] == "api" and len(segments) >= 3:
        group, version, rest = "", segments[1], segments[2:]
    elif segments[0] == "apis" and len(segments) >= 4:
        group, version, rest = segments[1], segments[2], segments[3:]
    else:
        return plain
    if rest and rest[-1] == "":
        rest = rest[:-1]  # a trailing slash means nothing
    if rest and rest[0] == "watch" and len(rest) > 1:
        is_watch, rest = True, rest[1:]  # the old form of ?watch=true
    if not rest or "" in rest or not version or (segments[0] == "apis" and not group):
        return plain
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest = rest[1], rest[2:]
        if rest[0] == "namespaces":
            return plain  # no namespace is in another one: what may be done in that says nothing about this
    elif rest[0] == "namespaces" and len(rest) >= 2:
        # For RBAC a Namespace lives in itself: a Role inside it may allow reading it.
        namespace = rest[1]
    name = rest[1] if len(rest) > 1 else ""
    verb = (_VERBS_ONE if name else _VERBS_MANY).get(method, method.lower())
    if verb in ("get", "list") and is_watch:
        verb = "watch"
    if verb in ("list", "watch", "deletecollection") and not name:
        name = only_name if _is_plain_name(only_name) else ""
    return RequestInfo(
        verb=verb,
        path=path,
        is_resource=True,
        group=group,
        version=version,
        resource=rest[0],
        subresource=rest[2] if len(rest) > 2 else "",
        rest="/".join(rest[3:]),
        namespace=namespace,
        name=name,
        field_selector=field_selector,
        label_selector=label_selector,
    )


def _segment(part: bytes) -> str:
    try:
        text = (unquote_to_bytes(part) if b"%" in part else part).decode()
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8 after percent-decoding; encode it as UTF-8") from None
    if text in (".", "..") or "/" in text or "%" in text or not text.isprintable():
        raise BadRequest(f"the path segment {text!r} may not be '.' or '..' or hold '/', '%' or control characters")
    if len(text) > NAME_CHARS_MAX:
        raise BadRequest(f"a path segment of {len(text)} characters is too long; names have at most {NAME_CHARS_MAX}")
    return text


def _is_plain_name(name: str) -> bool:
    return 0 < len(name) <= NAME_CHARS_MAX and name.isprintable() and "/" not in name and "%" not in name
