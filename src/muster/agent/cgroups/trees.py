"""Which cgroup hierarchies the machine has. Reads directories only.

unified    the root itself is a v2 tree (it has `cgroup.controllers`)
v1         one directory per hierarchy below the root, named by its controllers (`cpu,cpuacct`); links are followed once
hybrid     v1, and a v2 tree in `unified`, often without controllers, but with `cgroup.kill` and pressure files
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from muster.agent.executor import read_text

CONTROLLERS: Final = frozenset(
    {
        "cpu",
        "cpuacct",
        "cpuset",
        "memory",
        "pids",
        "devices",
        "freezer",
        "blkio",
        "net_cls",
        "net_prio",
        "perf_event",
        "hugetlb",
    }
    | {"rdma", "misc", "systemd", "name=systemd", "elogind"}
)
"""Names of directories that can be hierarchies of v1."""


class Trees(msgspec.Struct, frozen=True, kw_only=True):
    root: Path
    v1: Mapping[str, Path] = msgspec.field(default_factory=dict)
    """By controller; controllers that are mounted together share a path."""
    v2: Path | None = None
    v2_controllers: frozenset[str] = frozenset()

    @property
    def is_unified(self) -> bool:
        return self.v2 == self.root

    @property
    def every(self) -> tuple[Path, ...]:
        """Each hierarchy once."""
        found = dict.fromkeys(self.v1.values())
        if self.v2 is not None:
            found[self.v2] = None
        return tuple(found)


def detect(root: Path) -> Trees:
    """No trees when there are none, or none that can be read."""
    controllers = _v2_controllers(root)
    if controllers is not None:
        return Trees(root=root, v2=root, v2_controllers=controllers)
    v1: dict[str, Path] = {}
    v2: Path | None = None
    v2_controllers: frozenset[str] = frozenset()
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return Trees(root=root)
    for name in names:
        path = root / name
        controllers = _v2_controllers(path)
        if controllers is not None:
            v2, v2_controllers = path, controllers
        elif not path.is_symlink() and set(name.split(",")) <= CONTROLLERS and (path / "cgroup.procs").exists():
            v1.update(dict.fromkeys(name.split(","), path))
    return Trees(root=root, v1=v1, v2=v2, v2_controllers=v2_controllers)


def _v2_controllers(path: Path) -> frozenset[str] | None:
    try:
        return frozenset(read_text(path / "cgroup.controllers").split())
    except OSError:
        return None
