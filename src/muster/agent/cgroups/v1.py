"""cgroup v1: one hierarchy per controller, and a v2 tree beside for killing and pressure where there is one.

Invariant: a memory limit is a limit of memory and swap together (`memsw`), so that a task can't evade it into swap.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from muster.agent.cgroups import amounts, devices
from muster.agent.cgroups.driver import OWNER, Setting, keyed_number, number_of, pressure, text_of
from muster.agent.contracts import CgroupUsage, Limits, Missing
from muster.agent.executor import Executor

UNLIMITED: Final = str(2**63 // amounts.PAGE_BYTES * amounts.PAGE_BYTES - amounts.PAGE_BYTES)
"""How `-1` reads in the memory files."""
MEMORY, MEMSW = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"

_SO: Final = {
    "cpu": "CPU requests and limits of pods are not enforced",
    "cpuacct": "CPU use of pods is not measured",
    "memory": "memory limits of pods are not enforced, and kills for memory are not told apart",
    "pids": "a pod may start any number of processes",
    "devices": "device files are guarded by their permissions only",
}


def settings(limits: Limits) -> list[Setting]:
    """Everything but memory, whose order matters, and devices."""
    quota = amounts.quota_us(limits.cpu_limit_milli)
    return [
        Setting("cpu", "cpu.shares", str(amounts.shares(limits.cpu_request_milli)), default="1024"),
        Setting("cpu", "cpu.cfs_period_us", str(amounts.PERIOD_US), default=str(amounts.PERIOD_US)),
        Setting("cpu", "cpu.cfs_quota_us", str(-1 if quota is None else quota), default="-1"),
        Setting("pids", "pids.max", amounts.pids(limits.pids_max), default="max"),
    ]


def memory_settings(limits: Limits, memsw_now_bytes: int | None) -> list[Setting]:
    """Memory with swap is never below memory alone, so the one that makes room is written first. `memsw_now_bytes`: None
    where the kernel does not count swap."""
    limit = amounts.memory_bytes(limits.memory_limit_bytes)
    value = str(-1 if limit is None else limit)
    reads_as = UNLIMITED if limit is None else value
    memory = Setting("memory", MEMORY, value, reads_as, UNLIMITED)
    if memsw_now_bytes is None:
        return [memory]
    memsw = Setting("memory", MEMSW, value, reads_as, UNLIMITED)
    return [memsw, memory] if limit is None or limit > memsw_now_bytes else [memory, memsw]


class V1:
    def __init__(self, executor: Executor, trees: Mapping[str, Path], beside: Path | None) -> None:
        """`trees`: by controller, those that can be written. `beside`: the v2 tree."""
        self._executor = executor
        self._by_controller = {name: trees[name] for name in _SO if name in trees}
        self._beside = beside
        self._has_memsw: bool | None = None
        used = dict.fromkeys(self._by_controller.values())
        if beside is not None:
            used[beside] = None
        elif "freezer" in trees:
            used[trees["freezer"]] = None  # Stops forking while everything is killed.
        self.trees: Sequence[Path] = tuple(used)

    def missing(self) -> Sequence[Missing]:
        found = [
            Missing(f"cgroup controller {name}", "the machine has none that this agent may write", so)
            for name, so in _SO.items()
            if name not in self._by_controller
        ]
        if self._beside is None:
            found.append(Missing("pressure (PSI) of pods", "there is no cgroup v2 tree", "only the machine's own is reported"))
        return found

    def prepare(self, group: str) -> None:
        pass

    def apply(self, group: str, limits: Limits, *, is_fresh: bool, is_container: bool) -> None:
        if is_container and "devices" in self._by_controller:
            devices.apply(self._executor, f"{self._by_controller['devices']}/{group}", limits.devices, is_fresh=is_fresh)
        wanted = settings(limits)
        if memory := self._by_controller.get("memory"):
            wanted += memory_settings(limits, self._memsw_bytes(f"{memory}/{group}", is_fresh=is_fresh))
        for one in wanted:
            tree = self._by_controller.get(one.controller)
            if tree is None or (is_fresh and one.value in (one.default, "-1")):
                continue
            self._executor.put(f"{tree}/{group}/{one.file}", one.value, OWNER, reads_as=one.reads_as, is_fresh=is_fresh)

    def _memsw_bytes(self, group: str, *, is_fresh: bool) -> int | None:
        """The limit of memory with swap; None where the kernel does not count swap, which one group tells for all."""
        if self._has_memsw is False:
            return None
        if is_fresh and self._has_memsw:
            return int(UNLIMITED)
        memsw = text_of(f"{group}/{MEMSW}")
        if is_fresh:
            self._has_memsw = memsw.isdigit()
        return int(memsw) if memsw.isdigit() else None

    def usage(self, group: str) -> CgroupUsage | None:
        if not self.trees or not os.path.isdir(f"{self.trees[0]}/{group}"):
            return None
        at = {name: f"{tree}/{group}" for name, tree in self._by_controller.items()}
        memory_bytes = cached_bytes = pids = cpu_ns = 0
        if "memory" in at:
            cached_bytes = number_of(at["memory"] + "/memory.usage_in_bytes")
            inactive = keyed_number(text_of(at["memory"] + "/memory.stat"), "total_inactive_file")
            memory_bytes = max(cached_bytes - inactive, 0)
        if "cpuacct" in at:
            cpu_ns = number_of(at["cpuacct"] + "/cpuacct.usage")
        if "pids" in at:
            pids = number_of(at["pids"] + "/pids.current")
        return CgroupUsage(
            cpu_ns=cpu_ns,
            memory_bytes=memory_bytes,
            memory_with_cache_bytes=cached_bytes,
            pids=pids,
            throttled_ns=self.throttled_ns(group),
            pressure=pressure(f"{self._beside}/{group}") if self._beside is not None else {},
        )

    def throttled_ns(self, group: str) -> int:
        tree = self._by_controller.get("cpu")
        return keyed_number(text_of(f"{tree}/{group}/cpu.stat"), "throttled_time") if tree is not None else 0

    def oom_file(self, group: str) -> str:
        tree = self._by_controller.get("memory")
        return f"{tree}/{group}/memory.oom_control" if tree is not None else ""
