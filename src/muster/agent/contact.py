"""When the control plane was last reached: what the fencing deadline counts from, also across restarts of the agent.

The clock is the time since boot, sleep included, so that neither a changed wall clock nor a suspended machine stretches the
deadline. The moment that counts is the one before a request was sent: the control plane has seen the node no later than that.

The file `contact.json` outlives the agent. After a reboot it says nothing any more, and nothing needs to be fenced then: what
ran is gone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

FILE = "contact.json"


class _Record(msgspec.Struct):
    boot_id: str
    at_s: float
    fence_s: int = 0


def since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Contact:
    """One per agent, on its event loop. Writing a few bytes does not wait for the disk: they need not survive a reboot."""

    def __init__(self, directory: Path, boot_id: str, now_s: Callable[[], float] = since_boot_s, fence_s: int = 0) -> None:
        self._path = directory / FILE
        self._boot_id = boot_id
        self.now_s = now_s
        self.fence_s = fence_s
        """For the guard, which reads the same file."""
        self.last_s = self._read()

    def _read(self) -> float:
        """Of an earlier agent in this boot; now, when there was none."""
        try:
            record = msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except (OSError, msgspec.DecodeError):
            return self.now_s()
        return min(record.at_s, self.now_s()) if record.boot_id == self._boot_id else self.now_s()

    @property
    def silent_s(self) -> float:
        return self.now_s() - self.last_s

    def note(self, at_s: float) -> None:
        """The control plane has answered a request that was sent at this moment."""
        self.last_s = max(self.last_s, at_s)
        self.write()

    def write(self) -> None:
        scratch = self._path.with_name(f".{FILE}.{os.getpid()}")
        # A full disk must not stop the heartbeat; the deadline of a later agent then begins earlier, which is safe.
        with contextlib.suppress(OSError):
            scratch.write_bytes(msgspec.json.encode(_Record(self._boot_id, self.last_s, self.fence_s)))
            scratch.replace(self._path)
