"""SPDY/3.1's frames, as a server reads and writes them. Pure: bytes in, events out; bytes out.

Of one connection there is one `FrameReader` and one `FrameWriter`. The reader holds at most one control frame; what is in a
data frame is handed on as it comes. Frames of kinds that nobody here knows are skipped, as the specification wants.

Flow control: Kubernetes' own implementation sends no WINDOW_UPDATE and heeds none, so neither does this; a stream whose other
end does not read is held up by not reading the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from muster.agent.streaming_spdy_headers import HeaderReader, HeaderWriter, SpdyError

CONTROL_BYTES_MAX: Final = 32 * 1024
VERSION: Final = 3
SYN_STREAM: Final = 1
SYN_REPLY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PING: Final = 6
GOAWAY: Final = 7
HEADERS: Final = 8
WINDOW_UPDATE: Final = 9

FIN: Final = 0x01
UNIDIRECTIONAL: Final = 0x02

PROTOCOL_ERROR: Final = 1
REFUSED_STREAM: Final = 3
CANCEL: Final = 5

_HEAD: Final = struct.Struct(">II")
_CONTROL: Final = 1 << 31
_ID: Final = 2**31 - 1
_LENGTH: Final = 2**24 - 1


class Opened(msgspec.Struct, frozen=True):
    stream: int
    headers: dict[str, str]
    is_last: bool
    """The peer will send nothing on it."""
    is_one_way: bool
    """And we must not."""


class Data(msgspec.Struct, frozen=True):
    stream: int
    data: bytes
    is_last: bool


class Reset(msgspec.Struct, frozen=True):
    stream: int


class Pinged(msgspec.Struct, frozen=True):
    number: int


class Leaving(msgspec.Struct, frozen=True):
    """The peer opens no more streams."""


Event = Opened | Data | Reset | Pinged | Leaving


class FrameReader:
    def __init__(self) -> None:
        self._rest = bytearray()
        self._headers = HeaderReader()
        self._data: tuple[int, bool, int] | None = None
        """The data frame that is being read: its stream, whether it is the last, and how many bytes are still to come."""

    def feed(self, data: bytes) -> Iterator[Event]:
        """SpdyError, after which nothing more can be read. To be read to its end before more is fed."""
        self._rest += data
        while True:
            if self._data is None:
                if (frame := self._take()) is None:
                    return
                if (event := self._control(*frame)) is not None:
                    yield event
            elif self._rest or not self._data[2]:
                yield self._part()
            else:
                return

    def _part(self) -> Data:
        assert self._data is not None
        stream, is_last, left = self._data
        part = bytes(self._rest[:left])
        del self._rest[:left]
        left -= len(part)
        self._data = (stream, is_last, left) if left else None
        return Data(stream, part, is_last and not left)

    def _take(self) -> tuple[int, int, bytes] | None:
        """The next frame's kind, flags and body: of one of data, whose body comes later, the kind is 0. None: not all there."""
        if len(self._rest) < _HEAD.size:
            return None
        first, second = _HEAD.unpack_from(self._rest)
        flags, length = second >> 24, second & _LENGTH
        if not first & _CONTROL:
            del self._rest[: _HEAD.size]
            self._data = (first, bool(flags & FIN), length)
            return 0, 0, b""
        version = (first >> 16) & 0x7FFF
        if version != VERSION:
            raise SpdyError(f"SPDY version {version}; {VERSION} is spoken here")
        if length > CONTROL_BYTES_MAX:
            raise SpdyError(f"a control frame of {length} bytes; there may be {CONTROL_BYTES_MAX}")
        if len(self._rest) < _HEAD.size + length:
            return None
        body = bytes(self._rest[_HEAD.size : _HEAD.size + length])
        del self._rest[: _HEAD.size + length]
        return first & 0xFFFF, flags, body

    def _control(self, kind: int, flags: int, body: bytes) -> Event | None:
        if kind == SYN_STREAM:
            stream = _number(body, 0) & _ID
            headers = self._headers.read(_after(body, 10))
            return Opened(stream, headers, bool(flags & FIN), bool(flags & UNIDIRECTIONAL))
        if kind in (SYN_REPLY, HEADERS):
            raise SpdyError("a reply, or further headers, from a client")
        if kind == RST_STREAM:
            return Reset(_number(body, 0) & _ID)
        if kind == PING:
            return Pinged(_number(body, 0))
        return Leaving() if kind == GOAWAY else None


class FrameWriter:
    """Replies must be sent in the order in which they were made."""

    def __init__(self) -> None:
        self._headers = HeaderWriter()

    def reply(self, stream: int) -> bytes:
        return _control_frame(SYN_REPLY, stream.to_bytes(4, "big") + self._headers.write({}))

    @staticmethod
    def data(stream: int, data: bytes, *, is_last: bool = False) -> bytes:
        return _HEAD.pack(stream, (FIN if is_last else 0) << 24 | len(data)) + data

    @staticmethod
    def reset(stream: int, status: int) -> bytes:
        return _control_frame(RST_STREAM, _HEAD.pack(stream, status))

    @staticmethod
    def ping(number: int) -> bytes:
        return _control_frame(PING, number.to_bytes(4, "big"))

    @staticmethod
    def leave(last_stream: int, status: int) -> bytes:
        return _control_frame(GOAWAY, _HEAD.pack(last_stream, status))


def _control_frame(kind: int, body: bytes) -> bytes:
    return _HEAD.pack(_CONTROL | VERSION << 16 | kind, len(body)) + body


def _number(body: bytes, at: int) -> int:
    if len(body) < at + 4:
        raise SpdyError("a control frame that is too short")
    return int.from_bytes(body[at : at + 4], "big")


def _after(body: bytes, count: int) -> bytes:
    if len(body) < count:
        raise SpdyError("a control frame that is too short")
    return body[count:]
