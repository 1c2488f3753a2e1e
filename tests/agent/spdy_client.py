"""SPDY/3.1 as a client writes and reads it, for tests of the server's side."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

from muster.agent.streaming_spdy_frames import FIN
from muster.agent.streaming_spdy_headers import DICTIONARY, HeaderWriter


def control(kind: int, body: bytes, *, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(body)) + body


def data(stream: int, payload: bytes = b"", *, is_last: bool = False) -> bytes:
    return struct.pack(">II", stream, (FIN if is_last else 0) << 24 | len(payload)) + payload


def reset(stream: int) -> bytes:
    return control(3, struct.pack(">II", stream, 5))


def ping(number: int) -> bytes:
    return control(6, struct.pack(">I", number))


def leave() -> bytes:
    return control(7, bytes(8))


class SpdyClient:
    """Writes streams' beginnings; reads whatever the server says."""

    def __init__(self) -> None:
        self._headers = HeaderWriter()
        self._replies = zlib.decompressobj(zdict=DICTIONARY)
        self._rest = b""
        self.replied: list[int] = []
        self.resets: dict[int, int] = {}
        self.data: dict[int, bytes] = {}
        self.ended: list[int] = []
        self.pings: list[int] = []
        self.left: list[tuple[int, int]] = []

    def open(self, stream: int, headers: Mapping[str, str], *, flags: int = 0) -> bytes:
        return control(1, struct.pack(">IIH", stream, 0, 0) + self._headers.write(headers), flags=flags)

    def pair(self, first: int, port: int) -> bytes:
        """An error stream and a data stream, as kubectl opens them."""
        headers = {"port": str(port), "requestid": str(first)}
        error = self.open(first, {**headers, "streamtype": "error"})
        return error + data(first, is_last=True) + self.open(first + 2, {**headers, "streamtype": "data"})

    def hear(self, message: bytes) -> None:
        self._rest += message
        while len(self._rest) >= 8:
            first, second = struct.unpack_from(">II", self._rest)
            size = second & 0xFFFFFF
            if len(self._rest) < 8 + size:
                return
            body, self._rest = self._rest[8 : 8 + size], self._rest[8 + size :]
            if first & 0x80000000:
                self._control(first & 0xFFFF, body)
            else:
                self.data[first] = self.data.get(first, b"") + body
                if second >> 24 & FIN:
                    self.ended.append(first)

    def _control(self, kind: int, body: bytes) -> None:
        numbers = struct.unpack_from(f">{min(len(body) // 4, 2)}I", body)
        if kind == 2:
            assert self._replies.decompress(body[4:]) == bytes(4)
            self.replied.append(numbers[0])
        elif kind == 3:
            assert numbers[0] not in self.resets, "it knows no such stream any more"
            self.resets[numbers[0]] = numbers[1]
        elif kind == 6:
            self.pings.append(numbers[0])
        else:
            assert kind == 7
            self.left.append((numbers[0], numbers[1]))
