"""cgroup v2: one tree for all controllers; a group that has groups inside hands its controllers down.

Invariant: processes are only in the innermost groups, as the kernel asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from muster.agent.cgroups import amounts
from muster.agent.cgroups.driver import OWNER, Setting, keyed_number, number_of, pressure, text_of
from muster.agent.contracts import AgentError, CgroupUsage, Limits, Missing
from muster.agent.executor import Executor

SUBTREE: Final = "cgroup.subtree_control"

_SO: Final = {
    "cpu": "CPU requests and limits of pods are not enforced",
    "memory": "memory limits of pods are not enforced, and kills for memory are not told apart",
    "pids": "a pod may start any number of processes",
}


def settings(limits: Limits, *, is_container: bool) -> list[Setting]:
    quota = amounts.quota_us(limits.cpu_limit_milli)
    memory = amounts.memory_bytes(limits.memory_limit_bytes)
    found = [
        Setting("cpu", "cpu.weight", str(amounts.weight(amounts.shares(limits.cpu_request_milli))), default="100"),
        Setting(
            "cpu", "cpu.max", f"{'max' if quota is None else quota} {amounts.PERIOD_US}", default=f"max {amounts.PERIOD_US}"
        ),
        Setting("memory", "memory.max", "max" if memory is None else str(memory), default="max"),
        Setting("memory", "memory.swap.max", "max" if memory is None else "0", default="max"),
        Setting("pids", "pids.max", amounts.pids(limits.pids_max), default="max"),
    ]
    if is_container:
        # All of a container or nothing: a half-killed one is worse than a dead one.
        found.append(Setting("memory", "memory.oom.group", "1", default="0"))
    return found


class V2:
    def __init__(self, executor: Executor, tree: Path, offered: frozenset[str]) -> None:
        """`offered`: the controllers of the tree's root."""
        self._executor = executor
        self._tree = tree
        self.trees: Sequence[Path] = (tree,)
        self._controllers: frozenset[str] = frozenset()
        self._missing: list[Missing] = [
            Missing(
                "device limits", "on cgroup v2 they need a BPF program", "device files are guarded by their permissions only"
            )
        ]
        for name, so in _SO.items():
            if name not in offered:
                self._missing.append(Missing(f"cgroup controller {name}", "the kernel does not offer it here", so))
                continue
            try:
                executor.add_words(tree / SUBTREE, [name], OWNER)
            except AgentError as e:
                self._missing.append(Missing(f"cgroup controller {name}", e.message, so))
            else:
                self._controllers |= {name}

    def missing(self) -> Sequence[Missing]:
        return self._missing

    def prepare(self, group: str) -> None:
        if self._controllers:
            path = self._tree / group / SUBTREE
            absent = sorted(self._controllers - set(text_of(str(path)).split()))
            if absent:
                self._executor.command(path, " ".join("+" + name for name in absent), OWNER)

    def apply(self, group: str, limits: Limits, *, is_fresh: bool, is_container: bool) -> None:
        for one in settings(limits, is_container=is_container):
            if one.controller not in self._controllers or (is_fresh and one.value == one.default):
                continue
            path = self._tree / group / one.file
            if one.file == "memory.swap.max" and not path.exists():
                continue  # A kernel without swap has no such file, and nothing to limit.
            self._executor.put(path, one.value, OWNER, is_fresh=is_fresh)

    def usage(self, group: str) -> CgroupUsage | None:
        at = f"{self._tree}/{group}"
        cpu = text_of(at + "/cpu.stat")
        if not cpu:
            return None
        cached_bytes = number_of(at + "/memory.current")
        inactive = keyed_number(text_of(at + "/memory.stat"), "inactive_file")
        return CgroupUsage(
            cpu_ns=keyed_number(cpu, "usage_usec") * 1000,
            memory_bytes=max(cached_bytes - inactive, 0),
            memory_with_cache_bytes=cached_bytes,
            pids=number_of(at + "/pids.current"),
            throttled_ns=keyed_number(cpu, "throttled_usec") * 1000,
            pressure=pressure(at),
        )

    def throttled_ns(self, group: str) -> int:
        return keyed_number(text_of(f"{self._tree}/{group}/cpu.stat"), "throttled_usec") * 1000

    def oom_file(self, group: str) -> str:
        return f"{self._tree}/{group}/memory.events" if "memory" in self._controllers else ""
