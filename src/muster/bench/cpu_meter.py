"""CPU time of a measurement with everything that it starts, whether it stays in its group or is moved to an agent's.

Wall clocks say little on a machine that has other things to do; this says the same there as on a quiet one. By cgroups: what
nobody waits for, as shims, is in no count of a parent's. For one process; root.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from muster.agent.cgroups.opening import CGROUP_ROOT
from muster.agent.cgroups.pods import TOP
from muster.agent.cgroups.trees import detect

_EMPTY_TRIES: Final = 100


class CpuMeter:
    """While it is entered, this process and its children are in a group of their own."""

    def __init__(self, layout_id: str) -> None:
        """`layout_id`: the agent whose pods count too. Its group must be there from the first reading to the last."""
        trees = detect(CGROUP_ROOT)
        tree = trees.v1.get("cpuacct") or (trees.v2 if trees.is_unified else None)
        self._tree, self._is_v1 = tree, "cpuacct" in trees.v1
        self._own = f"bench-{os.getpid()}"
        self._pods = TOP + layout_id

    def __enter__(self) -> CpuMeter:
        if self._tree is not None:
            try:
                (self._tree / self._own).mkdir()
                (self._tree / self._own / "cgroup.procs").write_text("0")
            except OSError:
                self._tree = None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._tree is None:
            return
        (self._tree / "cgroup.procs").write_text("0")
        for _ in range(_EMPTY_TRIES):  # what it has started may be ending
            with suppress(OSError):
                (self._tree / self._own).rmdir()
                return
            time.sleep(0.02)

    def read_ms(self) -> float | None:
        """None where the machine does not count."""
        if self._tree is None:
            return None
        return sum(self._group_ms(self._tree / name) for name in (self._own, self._pods))

    def _group_ms(self, group: Path) -> float:
        if self._is_v1:
            return int((group / "cpuacct.usage").read_text()) / 1e6
        return int((group / "cpu.stat").read_text().split()[1]) / 1e3


def per_task_ms(before: float | None, after: float | None, count: int) -> float | None:
    return None if before is None or after is None else round((after - before) / count, 1)
