"""Kernel settings of a namespace that the agent changes, through the one executor, which remembers and puts back.

Its journal is the alias of the agent's bridge, so what was there is known after a restart and forgotten with the namespace.
Agents of one machine may need the same setting: each remembers what was there before the first of them, and only the last one
to leave puts it back. `alone` keeps them apart while they come and go.

Concurrency: called in the network's thread; /proc/sys/net shows the namespace of the thread that reads it.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from muster.agent.contracts import AgentError
from muster.agent.executor import Executor, Note

PORTS_FOR_ALL: Final = "net/ipv4/ip_unprivileged_port_start"
_ROOT: Final = Path("/proc/sys")
_OWNER: Final = "network"
_LOCK: Final = "\0muster-agent-settings"
_LOCK_PAUSE_S: Final = 0.01
_LOCK_TRIES: Final = 1_000


def forwarding(interface: str) -> str:
    return f"net/ipv4/conf/{interface}/forwarding"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """No other agent of this network namespace is in here at the same time.

    The lock is an address that only one can have: it belongs to the namespace, and is free when its holder dies.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as lock:
        for left in reversed(range(_LOCK_TRIES)):
            try:
                lock.bind(_LOCK)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not left:
                    raise
                time.sleep(_LOCK_PAUSE_S)
        yield


class Memory:
    """What the bridge's alias says: `last=<offset of the address given out last> <setting>=<what it was>...`

    `keep` writes the alias; it is called before the setting is written that it is about.
    """

    def __init__(self, alias: str = "", keep: Callable[[str], object] = lambda _alias: None, root: Path = _ROOT) -> None:
        self.last = 0
        self.before: dict[str, str] = {}
        for word in alias.split():
            key, _, value = word.partition("=")
            if key == "last":
                self.last = int(value) if value.isdecimal() else 0
            elif "/" in key and value:
                self.before[key] = value
        self._keep = keep
        self._root = root
        self._executor = Executor(root, self, reason="NetworkNotReady")

    def __str__(self) -> str:
        return " ".join([f"last={self.last}", *(f"{key}={value}" for key, value in sorted(self.before.items()))])

    def put(self, key: str, value: str) -> None:
        """A setting of what the agent made itself, an interface or a namespace, and which goes with that."""
        self._executor.put(self._root / key, value, _OWNER)

    def change(self, key: str, value: str, others: Iterable[Mapping[str, str]]) -> None:
        """A setting of the machine's. `others` is what other agents remember."""
        before = next((other[key] for other in others if key in other), None)
        self._executor.change(self._root / key, value, _OWNER, before=before)

    def restore(self, others: Iterable[Mapping[str, str]]) -> list[AgentError]:
        """Put back what no other agent needs; what could not be put back. An interface that is gone has nothing to."""
        return self._executor.restore(leave={self._root / key for other in others for key in other})

    # -- Journal ---------------------------------------------------------------------------------------------------------------

    def load(self) -> list[Note]:
        return [Note(key, _OWNER, value) for key, value in self.before.items()]

    def append(self, note: Note) -> None:
        if note.is_done:
            self.before.pop(note.file, None)
        else:
            self.before[note.file] = note.old
        self._keep(str(self))
