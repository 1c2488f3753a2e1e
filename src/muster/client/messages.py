"""One request and one answer, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

JSON = "application/json"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is already quoted; `body` is sent as it is."""

    method: str
    path: str
    params: Sequence[tuple[str, str]] = ()
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    retry_refusals: bool = True
    """False where 429 is an answer for the caller, as with an eviction that a budget forbids."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Response(msgspec.Struct, frozen=True):
    code: int
    headers: Mapping[str, str]
    body: bytes
