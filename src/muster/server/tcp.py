"""What the kernel knows of the other side of a connection, and how it finds out. Where it does not say, nothing is assumed.

For connections that last and may be silent for hours. Concurrency: system calls that wait for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

_IDLE_S: Final = 60
_INTERVAL_S: Final = 15
_PROBES: Final = 4
_ESTABLISHED: Final = 1
"""The first byte of `TCP_INFO` while neither side has closed."""


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Two minutes after the other machine has vanished without a word, the connection is lost."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    with contextlib.suppress(OSError):  # it may be lost by now
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _INTERVAL_S), ("TCP_KEEPCNT", _PROBES)):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether the other side sends no more; also seen while nothing is read, when the loop would not notice."""
    connection = transport.get_extra_info("socket")
    if connection is None or not hasattr(socket, "TCP_INFO"):
        return transport.is_closing()
    try:
        return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED)
    except OSError:
        return True
