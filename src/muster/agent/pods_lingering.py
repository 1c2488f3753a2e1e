"""What a task has sent when it ends must still arrive: its network stays until that is delivered, for a moment at most.

A task may end right after its last `send`; the kernel then owns what is on its way, in sockets that close by themselves. If the
network went at once, the peer would wait for the rest for ever. Blocking: called in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from muster.agent.contracts import AgentError
from muster.agent.network.namespaces import NamespaceThread

LINGER_S = 5.0
_POLL_S = 0.02
_SENDING = frozenset({"04", "09", "0B"})
"""FIN_WAIT1, LAST_ACK, CLOSING: closed here, and the other side has not confirmed everything yet."""


def linger(netns: str, timeout_s: float = LINGER_S) -> None:
    """Return when nothing of what was sent in this network namespace is on its way any more, or after `timeout_s`."""
    thread = NamespaceThread(netns)
    try:
        thread.open()
        thread.run(lambda: _wait(lambda: any(_is_sending(name) for name in ("tcp", "tcp6")), timeout_s))
    except (AgentError, OSError):
        return  # it is gone already
    finally:
        thread.close()


def _wait(is_busy: Callable[[], bool], timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while is_busy() and time.monotonic() < until_s:
        time.sleep(_POLL_S)


def _is_sending(name: str) -> bool:
    try:
        lines = Path(f"/proc/thread-self/net/{name}").read_text(encoding="ascii", errors="replace").splitlines()[1:]
    except OSError:
        return False
    return any(len(fields := line.split()) > 3 and fields[3] in _SENDING for line in lines)
