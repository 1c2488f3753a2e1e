"""Connect to a port of a pod, from inside its network namespace. Standard library only.

A child of the zygote, for one connection: it enters the namespace, connects, and sends the socket to the agent (`beside`). A
socket belongs to the namespace in which it was made, whoever has it later.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import time

from muster.agent.shim import beside
from muster.agent.shim import namespaces as ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOOPBACK = ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1"))


def serve(wanted: dict[str, Any], channel: _socket.socket) -> None:
    deadline = time.monotonic() + wanted["timeout_s"]
    problems: list[OSError] = []
    try:
        if wanted["netns"]:
            fd = os.open(wanted["netns"], os.O_RDONLY | os.O_CLOEXEC)
            ns.setns(fd, ns.CLONE_NEWNET, "the pod's network namespace")
    except OSError as e:
        beside.tell(channel, {"error": e.strerror or str(e), "reason": "BadRequest"})
        return
    for family, address in _LOOPBACK:
        try:
            found = _connect(family, (address, wanted["port"]), deadline, channel)
        except OSError as e:
            problems.append(e)
        else:
            beside.tell(channel, {}, [found.fileno()])
            return
    # The second is of interest only where there is IPv6 and something of it has said so.
    told = next((e for e in problems if e.errno == errno.ETIMEDOUT), problems[0])
    beside.tell(channel, {"error": told.strerror or str(told), "reason": "ConnectionRefused"})


def _connect(family: int, address: tuple[str, int], deadline: float, channel: _socket.socket) -> _socket.socket:
    made = _socket.socket(family, _socket.SOCK_STREAM)
    made.setblocking(False)
    made.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    number = made.connect_ex(address)
    if number == errno.EINPROGRESS:
        _await(made, deadline, channel)
        number = made.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
    if number == 0 and made.getsockname() == made.getpeername():
        number = errno.ECONNREFUSED  # nobody listens there: it has met itself
    if number:
        made.close()
        raise OSError(number, os.strerror(number))
    return made


def _await(made: _socket.socket, deadline: float, channel: _socket.socket) -> None:
    poll = select.poll()
    poll.register(made.fileno(), select.POLLOUT)
    poll.register(channel.fileno(), select.POLLIN)
    ready = [fd for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)]
    if channel.fileno() in ready:
        os._exit(0)  # nobody wants it any more
    if not ready:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
