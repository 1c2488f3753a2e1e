"""Where a process's main thread spends its time, by sampling its stack from a thread beside it.

Cheap enough to stay on while something is measured: a sample every few milliseconds. Each sample is put down under two names:
who works (the first of Muster's modules on the stack, counted from the bottom: whose task or callback it is) and on what (the
package of the innermost one). Wall clock, so a thread that waits for its turn counts as where it stands; time in the event
loop itself, waiting included, counts as `loop`.

Concurrency: one thread of its own between `start` and `stop`; the tables are read after `stop`.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Final

PERIOD_S: Final = 0.02
_PACKAGE: Final = "muster."
_MEASURES: Final = "muster.bench."
_LOOP: Final = "loop"


class Sampler:
    """`owners` names the modules that count as somebody's own work, and as whose; the rest is told by module."""

    def __init__(self, owners: Mapping[str, str], thread_id: int) -> None:
        self.by_owner: Counter[str] = Counter()
        self.by_package: Counter[str] = Counter()
        self._owners = owners
        self._thread_id = thread_id
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def shares(self, counts: Counter[str]) -> dict[str, float]:
        total = sum(counts.values())
        return {name: count / total for name, count in counts.most_common()} if total else {}

    def _run(self) -> None:
        while not self._over.wait(PERIOD_S):
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None:
                owner, package = self._where(frame)
                self.by_owner[owner] += 1
                self.by_package[package] += 1

    def _where(self, frame: FrameType | None) -> tuple[str, str]:
        modules: list[str] = []
        while frame is not None:
            name = str(frame.f_globals.get("__name__", ""))
            if name.startswith(_PACKAGE) and not name.startswith(_MEASURES):
                modules.append(name.removeprefix(_PACKAGE))
            frame = frame.f_back
        if not modules:
            return _LOOP, _LOOP
        package = modules[0].split(".", 1)[0]
        for module in reversed(modules):
            owner = self._owners.get(module)
            if owner:
                return owner, package
        return modules[-1], package
