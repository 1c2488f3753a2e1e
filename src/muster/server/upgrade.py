"""The two heads of an upgrade: what an agent is asked, and what it answers.

Pure; no I/O. Of what a client sent, only the headers of the protocol that it wants to speak go on to an agent; of what an agent
answers, only those come back. Credentials are in neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import httptools
from yarl import URL

Headers = Iterable[tuple[bytes, bytes]]

WEBSOCKET: Final = "websocket"
SPDY: Final = "spdy/3.1"
HEADERS_MAX: Final = 100
_PREFIX: Final = b"sec-websocket-"
_PROTOCOL: Final = b"sec-websocket-protocol"
_BEARER: Final = b"base64url.bearer.authorization.k8s.io."
"""How a browser sends the user's token to an API server: as one of the protocols that it offers."""


class BadAnswer(Exception):
    """Bytes that are no answer of HTTP; the message says what is wrong with them."""


def wanted(connection: str, upgrade: str) -> str:
    """The protocol that a request wants to go on with, from its two headers; "" for an ordinary request."""
    tokens = {token.strip().lower() for token in connection.split(",")}
    return upgrade.strip().lower() if "upgrade" in tokens else ""


def question(url: URL, headers: Headers) -> bytes:
    """What the agent is asked, with the client's `headers`."""
    lines = [
        b"GET " + url.raw_path_qs.encode("ascii") + b" HTTP/1.1",
        b"Host: " + url.raw_authority.encode("ascii"),
        b"Connection: Upgrade",
        b"Upgrade: websocket",
    ]
    for name, value in headers:
        passed = _without_token(value) if name.lower() == _PROTOCOL else value
        if name.lower().startswith(_PREFIX) and passed:
            lines.append(name + b": " + passed)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def agreement(headers: Headers) -> bytes:
    """What the client is told when the agent has agreed with these."""
    lines = [b"HTTP/1.1 101 Switching Protocols", b"Connection: Upgrade", b"Upgrade: websocket"]
    lines += [name + b": " + value for name, value in headers if name.lower().startswith(_PREFIX)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _without_token(value: bytes) -> bytes:
    kept = [part for part in (part.strip() for part in value.split(b",")) if part and not part.startswith(_BEARER)]
    return b", ".join(kept)


class Answer:
    """The answer of an agent, fed with its bytes as they come. What follows a head that agrees is not HTTP: do not feed it."""

    def __init__(self, body_bytes_max: int) -> None:
        self.code = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        """Of one that refuses, as much as is kept."""
        self.is_complete = False
        self._body_bytes_max = body_bytes_max
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raises BadAnswer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_complete = True
        except httptools.HttpParserError as error:
            raise BadAnswer(" ".join(str(error.__context__ or error).split())[:200]) from None

    @property
    def agrees(self) -> bool:
        return self.code == 101

    # --- the parser's callbacks

    def on_message_begin(self) -> None:
        if self.code:
            raise ValueError("two answers to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))
        if len(self.headers) > HEADERS_MAX:
            raise ValueError(f"more than {HEADERS_MAX} headers")

    def on_headers_complete(self) -> None:
        self.code = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body[: self._body_bytes_max - len(self.body)]
        self.is_complete = self.is_complete or len(self.body) >= self._body_bytes_max

    def on_message_complete(self) -> None:
        self.is_complete = True
