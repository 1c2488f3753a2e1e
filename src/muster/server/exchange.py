"""One HTTP exchange as the handlers see it: a parsed request in, a response or a stream out.

Concurrency: a `Request` belongs to the one task that serves it. Handlers never touch ASGI messages; `app.py` does.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from muster.objects.status import BadRequest
from muster.server.config import ServerLimits
from muster.server.paths import RequestInfo
from muster.server.priority import PIECE_COST
from muster.server.tunnel import Tunnel
from muster.store.embedded.admission import Actor

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

Turn = Callable[[], Awaitable[None]]
"""Waits until the one who asks may use the loop again for a piece of work of about a millisecond."""

_TRUE = frozenset({"", "1", "t", "true"})
_FALSE = frozenset({"0", "f", "false"})
_QUERY_FIELDS_MAX = 500
"""Each word of a command that is to run in a pod is one."""


class Query:
    """The query string, read by type; a value that does not fit is a BadRequest naming the parameter."""

    def __init__(self, raw: bytes) -> None:
        self._values: dict[str, str] = {}
        self._pairs: list[tuple[str, str]] = []
        if not raw:
            return
        try:
            self._pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX, errors="strict")
        except (ValueError, UnicodeDecodeError) as error:
            raise BadRequest(f"the query string can't be read: {error}") from None
        for key, value in self._pairs:
            self._values.setdefault(key, value)  # the first wins, as in Kubernetes

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def texts(self, name: str) -> list[str]:
        """Every value of a parameter that may stand there more than once."""
        return [value for key, value in self._pairs if key == name] if name in self._values else []

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if value is None or value.lower() in _FALSE:
            return False
        if value.lower() in _TRUE:
            return True
        raise BadRequest(f"{name}={value[:80]!r} is not a boolean; use true or false")

    def integer(self, name: str) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"[+-]?[0-9]{1,40}", value) or not -(2**63) <= (number := int(value)) < 2**63:
            raise BadRequest(f"{name}={value[:80]!r} is not an integer of 64 bits; leave it out or give a number")
        return number

    def choice(self, name: str, choices: tuple[str, ...], default: str = "") -> str:
        value = self._values.get(name, "")
        if value == "":
            return default
        if value not in choices:
            raise BadRequest(f"{name}={value[:80]!r} is not supported; use one of: {', '.join(choices)}")
        return value


class Request:
    """What handlers get. `warnings` become Warning headers; `notes` is what the audit line adds.

    Whoever has more to do than a millisecond's work does it in pieces and awaits `turn` between them.
    """

    def __init__(
        self,
        *,
        method: str,
        info: RequestInfo,
        query: Query,
        headers: Mapping[str, str],
        actor: Actor,
        request_id: str,
        limits: ServerLimits,
        body: bytes = b"",
        turn: Turn,
        pace: Turn,
        client: str = "",
        only: str = "",
    ) -> None:
        self.method = method
        self.info = info
        self.query = query
        self.headers = headers
        self.actor = actor
        self.request_id = request_id
        self.limits = limits
        self.turn = turn
        self.pace = pace
        """Of a stream: waits until the client has read enough of what it was sent, and then for a turn."""
        self.client = client
        self.only = only
        """A label selector: lists and watches find no more than this, whatever else they ask for."""
        self.warnings: list[str] = []
        self.notes: dict[str, str] = {}
        self._body = body

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    async def body(self) -> bytes:
        """The whole body, which was read before the request took its seat."""
        return self._body


class Response(msgspec.Struct, kw_only=True):
    """A complete answer."""

    code: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: list[tuple[str, str]] = []
    reason: str = ""
    """The `reason` of a Status, for the audit log."""
    pieces: Iterator[bytes] | None = None
    """Instead of `body`, of a long answer: made one by one, each in a turn of its own, while it is being sent."""
    piece_cost: float = PIECE_COST
    """Of each of `pieces`, in turns."""
    size_bytes: int = 0
    """Of `pieces`: what they hold in memory until the last is sent."""
    is_exact: bool = False
    """Whether `size_bytes` is the length of the answer."""
    is_slow: bool = False
    """Whether pieces take so long that they are made beside the loop."""


class Stream(msgspec.Struct, kw_only=True, eq=False):
    """An answer of unknown length: `chunks` is read until it ends; `close` makes it end soon."""

    chunks: AsyncIterator[bytes]
    close: Callable[[], None]
    content_type: str = "application/json"
    code: int = 200


Answer = Response | Stream | Tunnel
Handler = Callable[[Request], Awaitable[Answer]]
