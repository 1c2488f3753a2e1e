"""A small netlink socket: messages out in batches, answers and acknowledgements back. The one place that knows the wire.

Why not a library: starting a pod's network takes some twenty messages. Sent in three datagrams they cost a fraction of a
millisecond; through a general library each costs as much as all of them here.

Concurrency: a socket belongs to one thread, and to the network namespace in which that thread opened it. Calls block, at most
`TIMEOUT_S` for each answer.

Invariant: when a call returns or raises, no answer to it is left in the socket.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

ROUTE: Final = 0
NETFILTER: Final = 12

REQUEST: Final = 0x001
ACK: Final = 0x004
DUMP: Final = 0x300
REPLACE: Final = 0x100
EXCLUSIVE: Final = 0x200
CREATE: Final = 0x400
APPEND: Final = 0x800

TIMEOUT_S: Final = 10.0
_NESTED: Final = 0x8000
_TYPE_MASK: Final = 0x3FFF
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ERROR: Final = 2
_DONE: Final = 3
_INTERRUPTED: Final = 0x10
_SOL_NETLINK: Final = 270
_CAP_ACK: Final = 10
_EXT_ACK: Final = 11
_TLVS: Final = 0x200
_CAPPED: Final = 0x100
_RECEIVE_BYTES: Final = 1 << 17
_DUMP_TRIES: Final = 8


class NetlinkError(OSError):
    """The kernel has refused a message. `index` is its place in the batch."""

    def __init__(self, code: int, text: str, what: str, index: int) -> None:
        super().__init__(code, f"{what}: {text or os.strerror(code)}")
        self.index = index


class Message(msgspec.Struct, frozen=True):
    """One request. `what` is for errors; codes in `fine` are taken for success."""

    type: int
    flags: int
    body: bytes
    what: str = ""
    fine: tuple[int, ...] = ()
    is_answered: bool = True
    """False for the marks around a batch, of which the kernel speaks only when all of it has failed."""


class Answer(msgspec.Struct, frozen=True):
    type: int
    body: bytes


def attribute(kind: int, data: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(data)
    return _ATTRIBUTE.pack(size, kind) + data + b"\0" * (-size % 4)


def nested(kind: int, *parts: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(parts))


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=B", value))


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def be32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("!I", value))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def attributes(data: bytes) -> dict[int, bytes]:
    """By kind; of several of one kind the last."""
    return dict(each_attribute(data))


def each_attribute(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, offset)
        if size < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[offset + _ATTRIBUTE.size : offset + size]
        offset += (size + 3) & ~3


def string(data: bytes | None) -> str:
    return (data or b"").split(b"\0", 1)[0].decode(errors="replace")


class Netlink:
    def __init__(self, family: int = ROUTE) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
        self._seq = 1
        try:
            for option in (_CAP_ACK, _EXT_ACK):
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
            self._socket.settimeout(TIMEOUT_S)
            self._socket.bind((0, 0))
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, messages: Sequence[Message]) -> list[Answer]:
        """All of them in one datagram, done in their order, each also when one before it was refused; answers other than
        acknowledgements. The first refusal is raised."""
        if not messages:
            return []
        first = self._seq
        self._seq += len(messages)
        self._socket.send(
            b"".join(
                _packed(message, message.flags | REQUEST | (ACK if message.is_answered else 0), first + n)
                for n, message in enumerate(messages)
            )
        )
        waiting = {first + n for n, message in enumerate(messages) if message.is_answered}
        answers: list[Answer] = []
        failure: NetlinkError | None = None
        while waiting:
            for kind, flags, seq, body in self._receive():
                if not first <= seq < first + len(messages):
                    continue
                if kind != _ERROR:
                    answers.append(Answer(kind, body))
                    continue
                message = messages[seq - first]
                if message.is_answered:
                    waiting.discard(seq)
                else:
                    waiting.clear()
                code, why = _refusal(body, flags)
                if code and code not in message.fine and failure is None:
                    failure = NetlinkError(code, why, message.what or f"netlink message {message.type}", seq - first)
        if failure is not None:
            raise failure
        return answers

    def dump(self, kind: int, body: bytes) -> list[Answer]:
        """Everything of a kind. Begun again when it changed meanwhile."""
        for _ in range(_DUMP_TRIES):
            found, is_whole = self._dump_once(kind, body)
            if is_whole:
                break
        return found

    def _dump_once(self, kind: int, body: bytes) -> tuple[list[Answer], bool]:
        seq, self._seq = self._seq, self._seq + 1
        self._socket.send(_packed(Message(kind, 0, body), REQUEST | DUMP, seq))
        answers: list[Answer] = []
        is_whole, failure = True, None
        while True:
            for type_, flags, answered, data in self._receive():
                if answered != seq:
                    continue
                is_whole = is_whole and not flags & _INTERRUPTED
                if type_ == _ERROR:
                    code, why = _refusal(data, flags)
                    failure = NetlinkError(code, why, f"netlink dump {kind}", 0)
                elif type_ != _DONE:
                    answers.append(Answer(type_, data))
                    continue
                if failure is not None:
                    raise failure
                return answers, is_whole

    def _receive(self) -> Iterator[tuple[int, int, int, bytes]]:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError as error:
            raise NetlinkError(errno.ETIMEDOUT, "the kernel did not answer", "netlink", 0) from error
        offset = 0
        while offset + _HEADER.size <= len(data):
            size, kind, flags, seq, _pid = _HEADER.unpack_from(data, offset)
            if size < _HEADER.size:
                return
            yield kind, flags, seq, data[offset + _HEADER.size : offset + size]
            offset += (size + 3) & ~3


def _packed(message: Message, flags: int, seq: int) -> bytes:
    size = _HEADER.size + len(message.body)
    return _HEADER.pack(size, message.type, flags, seq, 0) + message.body + b"\0" * (-size % 4)


def _refusal(body: bytes, flags: int) -> tuple[int, str]:
    """Code and text of an acknowledgement; 0 for success."""
    code = -struct.unpack_from("=i", body)[0]
    if not code or not flags & _TLVS:
        return code, ""
    (size,) = struct.unpack_from("=I", body, 4)
    offset = 4 + _HEADER.size if flags & _CAPPED else 4 + ((size + 3) & ~3)
    return code, string(attributes(body[offset:]).get(1))
