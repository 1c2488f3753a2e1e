"""What the cgroups around this process leave to it: an agent in a container has the container's CPU and memory, not the host's.

Reads only, on both versions of cgroups. A limit holds for everything below it, so the least on the way to the mount point
counts. Functions without state; what can't be read counts as no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

_NO_LIMIT_FROM: Final = 1 << 60
"""cgroup v1 writes no limit as a number of pages near the top of the range."""
_DEPTH_MAX: Final = 64


class CgroupLimits(msgspec.Struct, frozen=True, kw_only=True):
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    """In the cgroup whose limit counts, without what the kernel could drop at once."""


class _Mount(msgspec.Struct, frozen=True):
    is_v2: bool
    controllers: frozenset[str]
    root: str
    point: Path


def limits_of(proc: Path, sys: Path) -> CgroupLimits:
    memory, used = None, None
    for directory, is_v2 in _ancestors(proc, sys, "memory"):
        most = _number(directory / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
        if most is not None and most < _NO_LIMIT_FROM and (memory is None or most < memory):
            memory, used = most, _memory_used(directory, is_v2)
    cpus = [milli for directory, is_v2 in _ancestors(proc, sys, "cpu") if (milli := _cpu_milli(directory, is_v2)) is not None]
    return CgroupLimits(cpu_milli=min(cpus, default=None), memory_bytes=memory, memory_used_bytes=used)


def pids_limit(proc: Path, sys: Path) -> tuple[int, int] | None:
    """How many threads there are and may be, in the cgroup that is nearest to its limit; None without one."""
    found = []
    for directory, _ in _ancestors(proc, sys, "pids"):
        most, now = _number(directory / "pids.max"), _number(directory / "pids.current")
        if most and now is not None:
            found.append((now, most))
    return max(found, key=lambda pair: pair[0] / pair[1], default=None)


def _cpu_milli(directory: Path, is_v2: bool) -> int | None:
    if is_v2:
        quota, _, period = _text(directory / "cpu.max").strip().partition(" ")
    else:
        quota, period = _text(directory / "cpu.cfs_quota_us").strip(), _text(directory / "cpu.cfs_period_us").strip()
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) * 1000 // int(period)


def _memory_used(directory: Path, is_v2: bool) -> int | None:
    used = _number(directory / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
    stat = dict(line.split() for line in _text(directory / "memory.stat").splitlines() if line.count(" ") == 1)
    inactive = stat.get("inactive_file" if is_v2 else "total_inactive_file", "0")
    return None if used is None else max(0, used - int(inactive))


def _ancestors(proc: Path, sys: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The directories of this process's cgroup that have this controller, from its own up to the mount point."""
    own = _own_paths(proc)
    for mount in _mounts(proc, sys):
        path = own.get("" if mount.is_v2 else controller)
        if path is None or (not mount.is_v2 and controller not in mount.controllers):
            continue
        # In a container the mount may show a part of the hierarchy only; the path is then relative to that part.
        inside = path.removeprefix(mount.root.rstrip("/")) if path.startswith(mount.root) else path
        directory = mount.point / inside.strip("/")
        if not directory.is_dir():
            directory = mount.point
        for _ in range(_DEPTH_MAX):
            yield directory, mount.is_v2
            if directory == mount.point or mount.point not in directory.parents:
                break
            directory = directory.parent


def _own_paths(proc: Path) -> dict[str, str]:
    """By controller; the one of version 2 under the empty name."""
    found = {}
    for line in _text(proc / "self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, colon, path = rest.partition(":")
        if colon and number.isdigit():
            found.update(dict.fromkeys(names.split(","), path))
    return found


def _mounts(proc: Path, sys: Path) -> list[_Mount]:
    found = []
    for line in _text(proc / "self/mountinfo").splitlines():
        before, dash, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or len(kinds) < 3 or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        point = Path(fields[4])
        if point.is_relative_to("/sys"):
            point = sys / point.relative_to("/sys")
        found.append(_Mount(kinds[0] == "cgroup2", frozenset(kinds[2].split(",")), fields[3], point))
    return found


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""
