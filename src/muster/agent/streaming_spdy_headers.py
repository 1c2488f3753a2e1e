"""SPDY/3's header blocks: names and values, compressed by zlib with a dictionary of likely words that both sides know.

Pure, one of each for a connection: every block continues the compression of the one before. What a block becomes is bounded
before it is unpacked.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

HEADER_BYTES_MAX: Final = 4 * 1024
"""Of one block, uncompressed."""
HEADERS_MAX: Final = 32
"""In one block; clients send three or four. A block of thousands takes a hundred bytes, and its reading milliseconds."""

_NAMES: Final = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length content-location "
    "content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match "
    "if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range "
    "referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning "
    "www-authenticate method get status"
)
_MORE_NAMES: Final = "version HTTP/1.1 url public set-cookie keep-alive origin"
_TEXT: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,public"
    "privatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


class SpdyError(Exception):
    """The peer does not speak SPDY/3.1, or says more than is allowed; the connection can't go on."""


def _sized(word: bytes) -> bytes:
    return len(word).to_bytes(4, "big") + word


DICTIONARY: Final = b"".join(
    [*(_sized(name.encode()) for name in [*_NAMES.split(" "), "200 OK", *_MORE_NAMES.split(" ")]), _TEXT.encode()]
)
"""As the specification has it."""


class HeaderWriter:
    def __init__(self) -> None:
        self._zlib = zlib.compressobj(zdict=DICTIONARY)

    def write(self, headers: Mapping[str, str]) -> bytes:
        plain = len(headers).to_bytes(4, "big") + b"".join(
            _sized(name.encode("latin-1")) + _sized(value.encode("latin-1")) for name, value in headers.items()
        )
        return self._zlib.compress(plain) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


class HeaderReader:
    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)

    def read(self, block: bytes) -> dict[str, str]:
        """Of a name with several values, the first. SpdyError."""
        try:
            plain = self._zlib.decompress(block, HEADER_BYTES_MAX + 1)
        except zlib.error as error:
            raise SpdyError(f"headers that can't be uncompressed: {error}") from error
        if len(plain) > HEADER_BYTES_MAX:
            raise SpdyError(f"more than {HEADER_BYTES_MAX} bytes of headers")
        if self._zlib.eof:
            raise SpdyError("compression of headers that ends in the middle of a connection")
        return _parse(plain)


def _parse(plain: bytes) -> dict[str, str]:
    left = _Left(plain)
    headers: dict[str, str] = {}
    if (count := left.number()) > HEADERS_MAX:
        raise SpdyError(f"{count} headers; there may be {HEADERS_MAX}")
    for _ in range(count):
        name, value = left.word(), left.word()
        if not name or name != name.lower() or name in headers:
            raise SpdyError(f"a header named {name[:40]!r}: empty, not in lower case, or there already")
        headers[name] = value.partition("\x00")[0]
    if not left.is_empty:
        raise SpdyError("bytes after the last header")
    return headers


class _Left:
    """What of a block is not read yet."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data)

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def word(self) -> str:
        return self._take(self.number()).decode("latin-1")

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise SpdyError("headers that end too early")
        taken, self._at = self._data[self._at : end], end
        return taken
