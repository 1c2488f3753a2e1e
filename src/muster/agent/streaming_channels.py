"""Kubernetes' channel protocol: several streams on one WebSocket, told apart by the first byte of each message.

    0 stdin    1 stdout    2 stderr    3 error: how it ended    4 the terminal's size    255 (v5) the next byte's channel ends

Pure. Of the `base64.` variants, whose messages are text, the first character is the channel's digit.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
ERROR: Final = 3
RESIZE: Final = 4
CLOSE: Final = 255

PROTOCOLS: Final = (
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "base64.channel.k8s.io",
)
PORT_PROTOCOLS: Final = ("v4.channel.k8s.io", "v4.base64.channel.k8s.io")
OLDEST: Final = ""
"""Offered by nobody and spoken by clients that offer nothing: binary, and as `channel.k8s.io`."""


class Codec:
    """One protocol's messages."""

    def __init__(self, protocol: str) -> None:
        self.is_text = "base64." in protocol
        self.has_close = protocol.startswith("v5.")
        self.has_status = protocol.startswith(("v4.", "v5."))
        """Otherwise the error channel says nothing of success, and of a failure only the sentence."""

    def pack(self, channel: int, data: bytes) -> bytes:
        if self.is_text:
            return b"%d" % channel + base64.b64encode(data)
        return bytes((channel,)) + data

    def unpack(self, message: bytes) -> tuple[int, bytes] | None:
        """None: it belongs to no channel. Kubernetes skips such messages, and so does this."""
        if not message:
            return None
        if not self.is_text:
            return message[0], message[1:]
        channel = message[0] - ord("0")
        if not 0 <= channel <= 9:
            return None
        try:
            return channel, base64.b64decode(message[1:], validate=True)
        except binascii.Error:
            return None

    def pack_end(self, code: int) -> bytes | None:
        """How a command ended; None: its success is not told."""
        if self.has_status:
            return self.pack(ERROR, ended_status(code))
        return self.pack(ERROR, ended_sentence(code).encode()) if code else None

    def pack_failure(self, sentence: str) -> bytes:
        return self.pack(ERROR, failed_status(sentence) if self.has_status else sentence.encode())


def choose(offered: str, known: tuple[str, ...]) -> str | None:
    """The first that the client offers and we know; None: there is none."""
    names = [name.strip() for name in offered.split(",")]
    return next((name for name in names if name in known), None)


def ended_sentence(code: int) -> str:
    return f"command terminated with non-zero exit code: exit status {code}"


def ended_status(code: int) -> bytes:
    if code == 0:
        return msgspec.json.encode({"metadata": {}, "status": "Success"})
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return _failure(ended_sentence(code), "NonZeroExitCode", {"causes": causes})


def failed_status(sentence: str) -> bytes:
    return _failure(sentence, "InternalError", {"causes": [{"message": sentence}]}, code=500)


def _failure(message: str, reason: str, details: dict[str, Any], **more: Any) -> bytes:
    return msgspec.json.encode(
        {"metadata": {}, "status": "Failure", "message": message, "reason": reason, "details": details, **more}
    )


class _Size(msgspec.Struct):
    width: int = msgspec.field(name="Width")
    height: int = msgspec.field(name="Height")


def read_size(data: bytes) -> tuple[int, int] | None:
    """Columns and rows; None: no size of a terminal."""
    try:
        size = msgspec.json.decode(data, type=_Size)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return (size.width, size.height) if 0 < size.width < 2**16 and 0 < size.height < 2**16 else None
