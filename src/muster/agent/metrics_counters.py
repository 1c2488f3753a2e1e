"""The processor's own counters for each pod: cycles per instruction, cache misses; and the machine's cache by resctrl.

A pod is counted through its cgroup: one group of events on each CPU, opened at one sample, read and closed at the next. Open
files are bounded (`FILES_MAX`), so pods take turns. Where the machine has no counters (most virtual ones), `missing()` says so,
and nothing is opened.

Called on the agent's event loop. Every file that was opened is closed by `close`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from muster.agent.cgroups.driver import text_of
from muster.agent.contracts import Missing

FILES_MAX: Final = 256
HARDWARE: Final = ((0, 0), (0, 1), (0, 2), (0, 3))
"""Type and number of events: cycles, instructions, cache references, cache misses."""
SOFTWARE: Final = ((1, 1), (1, 3))
"""Task clock and context switches: every kernel has them, so that the way of counting can be tried anywhere."""

_CALL: Final = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}.get(platform.machine())
_OF_CGROUP: Final = 4
_CLOEXEC: Final = 8
_READ: Final = 1 | 2 | 8
"""Time enabled, time running, the whole group."""
_WHY: Final = {
    errno.ENOENT: "the processor (or the virtual machine) has no such counters",
    errno.ENODEV: "the processor (or the virtual machine) has no such counters",
    errno.EOPNOTSUPP: "the processor (or the virtual machine) has no such counters",
    errno.EACCES: "the agent may not count; run it as root, or lower kernel.perf_event_paranoid",
    errno.EPERM: "the agent may not count; run it as root, or lower kernel.perf_event_paranoid",
    errno.ENOSYS: "the kernel was built without performance events",
    errno.EBADF: "there is no cgroup tree by which pods could be counted",
}


class Counted(msgspec.Struct, frozen=True):
    """What was counted in one turn, in the order of the events, scaled to the whole time."""

    values: tuple[float, ...]

    @property
    def cpi(self) -> float | None:
        """Cycles per instruction."""
        return self.values[0] / self.values[1] if len(self.values) > 1 and self.values[1] > 0 else None

    @property
    def cache_miss_ratio(self) -> float | None:
        return self.values[3] / self.values[2] if len(self.values) > 3 and self.values[2] > 0 else None


class CpuCounters:
    def __init__(self, tree: Path | None, cpus: Sequence[int], events: Sequence[tuple[int, int]] = HARDWARE) -> None:
        """`tree`: the hierarchy of the perf_event controller, usually the v2 tree."""
        self._tree = tree
        self._cpus = cpus
        self._events = events
        self._open: dict[str, list[list[int]]] = {}
        self._turn: deque[str] = deque()
        self.figures: dict[str, Counted] = {}
        """By group: of its last turn."""
        self._why = self._probe()

    def missing(self) -> list[Missing]:
        if not self._why:
            return []
        return [Missing("cycles per instruction and cache misses", self._why, "they are unavailable in reports")]

    def step(self, groups: Iterable[str]) -> None:
        """End the turn of those that are being counted, and begin that of the next ones."""
        if self._why:
            return
        wanted = dict.fromkeys(groups)
        for group in list(self._open):
            found = self._end(group)
            if found is not None:
                self.figures[group] = found
        self.figures = {group: found for group, found in self.figures.items() if group in wanted}
        self._turn = deque(group for group in self._turn if group in wanted)
        self._turn.extend(group for group in wanted if group not in set(self._turn))
        room = max(FILES_MAX // max(len(self._cpus) * len(self._events), 1), 1)
        for _ in range(min(room, len(self._turn))):
            group = self._turn.popleft()
            self._turn.append(group)
            self._begin(group)

    def close(self) -> None:
        for group in list(self._open):
            self._end(group)

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _probe(self) -> str:
        if _CALL is None:
            return f"not known how to count on {platform.machine()}"
        if self._tree is None or not self._cpus:
            return _WHY[errno.EBADF]
        try:
            for fd in reversed(self._open_on("", self._cpus[0])):
                os.close(fd)
        except OSError as e:
            return _WHY.get(e.errno or 0, f"the kernel refused: {os.strerror(e.errno or 0)}")
        return ""

    def _begin(self, group: str) -> None:
        files: list[list[int]] = []
        self._open[group] = files
        try:
            for cpu in self._cpus:
                files.append(self._open_on(group, cpu))  # noqa: PERF401 - what was opened must be in the list when one fails
        except OSError:
            self._end(group)  # The group is gone, or files are short: another time.

    def _end(self, group: str) -> Counted | None:
        """Read and close. None when nothing ran."""
        totals = [0.0] * len(self._events)
        has_run = False
        for files in self._open.pop(group, []):
            try:
                data = os.read(files[0], 8 * (3 + len(self._events)))
                count, enabled, running, *values = struct.unpack(f"{len(data) // 8}Q", data)
                if running and count == len(self._events):
                    has_run = True
                    totals = [total + value * (enabled / running) for total, value in zip(totals, values, strict=True)]
            except (OSError, struct.error, ValueError):
                continue
            finally:
                for fd in reversed(files):
                    os.close(fd)
        return Counted(tuple(totals)) if has_run else None

    def _open_on(self, group: str, cpu: int) -> list[int]:
        """All events on one CPU as one group, so that they are counted over the same time. OSError."""
        directory = os.open(f"{self._tree}/{group}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        files: list[int] = []
        try:
            for kind, number in self._events:
                files.append(_perf_event_open(kind, number, directory, cpu, files[0] if files else -1))
        except OSError:
            for fd in reversed(files):
                os.close(fd)
            raise
        finally:
            os.close(directory)
        return files


def _perf_event_open(kind: int, number: int, directory: int, cpu: int, leader: int) -> int:
    """The first 64 bytes of the kernel's `perf_event_attr`; the rest is 0 by its size."""
    attributes = struct.pack("IIQQQQQIIQ", kind, 64, number, 0, 0, _READ, 0, 0, 0, 0)
    buffer = ctypes.create_string_buffer(attributes, 64)
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.syscall
    call.restype = ctypes.c_long
    fd = call(
        ctypes.c_long(_CALL or -1),
        buffer,
        ctypes.c_int(directory),
        ctypes.c_int(cpu),
        ctypes.c_int(leader),
        ctypes.c_ulong(_OF_CGROUP | _CLOEXEC),
    )
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)


def cache_figures(resctrl: Path) -> Mapping[str, int]:
    """`llc_occupancy`, `mbm_total_bytes` and `mbm_local_bytes` of the machine, over all caches; empty where there is none."""
    totals: dict[str, int] = {}
    for domain in sorted(resctrl.glob("mon_data/mon_L3_*")):
        for name in ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"):
            text = text_of(str(domain / name))
            if text.isdigit():
                totals[name] = totals.get(name, 0) + int(text)
    return totals


def cache_missing(resctrl: Path) -> list[Missing]:
    if cache_figures(resctrl):
        return []
    why = "the processor does not count its cache" if resctrl.is_dir() else "resctrl is not mounted, or the processor has none"
    return [Missing("use of the last-level cache and of memory bandwidth", why, "they are unavailable in reports")]
