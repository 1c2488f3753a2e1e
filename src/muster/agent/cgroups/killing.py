"""Ending everything in a group, also what forks meanwhile; and taking the group away.

By what the kernel offers: `cgroup.kill` (v2, 5.14 on) ends a whole tree at once and for certain. Otherwise the group is frozen
while every process gets its signal. Otherwise signals are sent round after round until none is left: each round must kill
faster than the group forks, so the rounds are bounded, and the pids limit should hold such a group.

Called on the event loop. Waiting is bounded by `WAIT_MAX_S` in all.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from muster.agent.cgroups.driver import text_of
from muster.agent.contracts import AgentError
from muster.agent.executor import Executor, KernelFileError

OWNER: Final = "kill"
ROUNDS_MAX: Final = 200
WAIT_MAX_S: Final = 0.25
"""A process that is dead but not yet reaped keeps its group for so long at most; then the caller tries again later."""
DEPTH_MAX: Final = 16


def processes(group: Path | str) -> set[int]:
    """In the group and all groups inside."""
    found: set[int] = set()
    for directory in inside(group):
        text = text_of(f"{directory}/cgroup.procs")
        found.update(int(line) for line in text.split() if line != "0")
    return found


def inside(group: Path | str, depth: int = 0) -> Iterator[str]:
    """The group and all groups inside, innermost first. Nothing when it is gone."""
    try:
        with os.scandir(group) as entries:
            children = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    if depth < DEPTH_MAX:
        for child in children:
            yield from inside(child, depth + 1)
    yield str(group)


class Killer:
    def __init__(self, executor: Executor, v2: Path | None, freezer: Path | None, proc: Path) -> None:
        self._executor = executor
        self._v2 = v2
        self._freezer = freezer
        self._proc = proc

    def kill(self, group: str, trees: Sequence[Path]) -> int:
        """SIGKILL to all that is in `group` of any tree. How many there were at first."""
        groups = [f"{tree}/{group}" for tree in trees]
        first = {pid for one in groups for pid in processes(one)}
        if not first:
            return 0
        try:
            self._kill(group, groups, first)
        finally:
            self._thaw(group)
        return len(first)

    def _kill(self, group: str, groups: Sequence[str], first: set[int]) -> None:
        if self._v2 is not None:
            doomed = processes(f"{self._v2}/{group}")
            if self._kill_tree(f"{self._v2}/{group}") and first <= doomed:
                return  # What they fork is inside as well.
        self._freeze(group)
        for _ in range(ROUNDS_MAX):
            left = self._stragglers(groups)
            if not left:
                return
            _signal(left, groups)

    def remove(self, group: str, trees: Sequence[Path], known: Collection[str] = ()) -> None:
        """Kill what is left and take the group away from every tree. AgentError `CgroupBusy` when the kernel keeps it.

        `known`: groups that are inside for all the caller knows; looking for others is worth it only if there are."""
        left = [f"{tree}/{group}" for tree in trees]
        for one in left if known else ():
            for name in known:
                self._executor.unmake(f"{one}/{name}")
        waited_s, pause_s = 0.0, 0.0005
        while left := [one for one in left if not self._remove_tree(one)]:
            if waited_s >= WAIT_MAX_S:
                pids = sorted({pid for one in left for pid in processes(one)})
                raise AgentError(
                    "CgroupBusy",
                    f"{left[0]} can't be removed yet: the kernel has not let go of "
                    f"{f'processes {pids[:5]}' if pids else 'what ran there'}; it is tried again",
                )
            self.kill(group, trees)
            time.sleep(pause_s)
            waited_s += pause_s
            pause_s = min(pause_s * 2, 0.02)

    def _remove_tree(self, group: str) -> bool:
        """True when it is gone."""
        # Mostly there is nothing inside; only otherwise it is worth looking.
        return self._executor.unmake(group) or all(self._executor.unmake(directory) for directory in inside(group))

    def _kill_tree(self, group: str) -> bool:
        try:
            self._executor.command(f"{group}/cgroup.kill", "1", OWNER)
        except KernelFileError:
            return False
        return True

    def _stragglers(self, groups: Sequence[str]) -> set[int]:
        """Processes that nobody has killed yet."""
        return {pid for one in groups for pid in processes(one) if not self._is_dying(pid)}

    def _is_dying(self, pid: int) -> bool:
        """A SIGKILL is on its way, or it is dead already and only waits to be reaped."""
        text = text_of(f"{self._proc}/{pid}/status")
        for line in text.splitlines():
            if line.startswith("State:") and line.split()[1] in "ZX":
                return True
            if line.startswith(("SigPnd:", "ShdPnd:")) and int(line.split()[1], 16) & (1 << (signal.SIGKILL - 1)):
                return True
        return not text

    def _freeze(self, group: str) -> None:
        """Nothing forks while every process gets its signal."""
        if self._v2 is not None:
            with suppress(KernelFileError):
                self._executor.command(self._v2 / group / "cgroup.freeze", "1", OWNER)
        elif self._freezer is not None:
            state = self._freezer / group / "freezer.state"
            for _ in range(20):
                try:
                    self._executor.command(state, "FROZEN", OWNER)
                except KernelFileError:
                    return
                if text_of(str(state)) == "FROZEN":
                    return
                time.sleep(0.001)

    def _thaw(self, group: str) -> None:
        """Also what somebody else froze, such as a container runtime that died on its way: under v1, what is frozen does not
        die."""
        if self._v2 is not None and text_of(f"{self._v2}/{group}/cgroup.freeze") == "1":
            with suppress(KernelFileError):
                self._executor.command(self._v2 / group / "cgroup.freeze", "0", OWNER)
        if self._freezer is not None:
            for directory in inside(self._freezer / group):
                if text_of(f"{directory}/freezer.state") not in ("", "THAWED"):
                    with suppress(KernelFileError):
                        self._executor.command(f"{directory}/freezer.state", "THAWED", OWNER)


def _signal(pids: set[int], groups: Sequence[str]) -> None:
    """By pidfd, and only to those that are still inside once it is open: a number may have been given to another process."""
    held: list[tuple[int, int]] = []
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                held.append((pid, os.pidfd_open(pid)))
        still = {pid for one in groups for pid in processes(one)}
        for pid, fd in held:
            if pid in still:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        for _, fd in held:
            os.close(fd)
