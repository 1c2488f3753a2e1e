"""The groups of this node's pods: `muster-<id>/pod<uid>/<container>` in every hierarchy that is used.

Called on the agent's event loop; `kill` also from a thread, since it changes nothing here. Nothing is kept here that the kernel
does not have: a new agent finds the groups of an earlier one by listing, and every method may be repeated.

Invariants: names come from `safe_part`; the group of a pod is made before those of its containers; a group that could not be
given its limits is taken away again; when the last pod goes, so does the group around all of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from muster.agent.cgroups.driver import Driver, keyed_number, text_of
from muster.agent.cgroups.killing import Killer
from muster.agent.contracts import AgentError, CgroupUsage, Limits, Missing
from muster.agent.executor import Executor, KernelFileError
from muster.agent.layout import safe_part
from muster.objects.quantity import Quantity

POD = "pod"
TOP = "muster-"
GROUP_PARTS_MAX = 32


def node_limits(allocatable: Mapping[str, str]) -> Limits:
    """For `limit_node`: all pods together weigh as much CPU as the node offers, and have no more memory than that."""
    cpu, memory = allocatable.get("cpu"), allocatable.get("memory")
    return Limits(
        cpu_request_milli=Quantity.parse(cpu).milli() if cpu else 0,
        memory_limit_bytes=Quantity.parse(memory).value() if memory else None,
    )


class PodCgroups:
    """Implements `Cgroups`. Made by `open_cgroups`."""

    def __init__(
        self,
        layout_id: str,
        executor: Executor,
        driver: Driver | None,
        killer: Killer,
        *,
        every: Sequence[Path],
        missing: Sequence[Missing],
        counting_tree: Path | None = None,
    ) -> None:
        """`every`: all hierarchies, also those that only a container runtime uses: groups are listed and removed there too.
        Without a driver nothing is limited, and nothing fails. `counting_tree`: where the kernel counts events by group."""
        self.executor = executor
        self.counting_tree = counting_tree
        self._top = TOP + safe_part(layout_id)
        self._driver = driver
        self._killer = killer
        self._trees: Sequence[Path] = driver.trees if driver is not None else ()
        self._every = tuple(dict.fromkeys((*self._trees, *every)))
        self._missing = tuple(missing)
        self._node_limits: Limits | None = None
        self._known: dict[str, set[str]] = {}
        """Pods whose groups were made here, with their containers: where to look first when they go. A hint, and no more."""

    def missing(self) -> Sequence[Missing]:
        return self._missing

    # -- making ----------------------------------------------------------------------------------------------------------------

    def limit_node(self, limits: Limits | None) -> None:
        """What all pods together may have: the node's allocatable (`node_limits`). None: no limit of their own.

        Their CPU request is their weight against the rest of the machine; without one it is that of one core, a new group's.
        """
        wanted = limits or Limits()
        self._node_limits = msgspec.structs.replace(wanted, cpu_request_milli=wanted.cpu_request_milli or 1000)
        if self._driver is not None and any((tree / self._top).is_dir() for tree in self._trees):
            self._driver.apply(self._top, self._node_limits, is_fresh=False, is_container=False)

    def create_pod(self, uid: str, limits: Limits) -> None:
        group = self._pod(uid)
        if self._driver is None:
            return
        if self._make(self._top):
            self._apply(self._top, self._node_limits, is_fresh=True, is_container=False)
        self._driver.prepare(self._top)
        is_fresh = self._make(group)
        self._apply(group, limits, is_fresh=is_fresh, is_container=False)
        self._driver.prepare(group)
        self._known.setdefault(uid, set())

    def create_container(self, uid: str, container: str, limits: Limits) -> None:
        group = self._container(uid, container)
        if self._driver is None:
            return
        try:
            is_fresh = self._make(group)
        except KernelFileError as e:
            if e.errno == errno.ENOENT:
                raise AgentError(
                    "CgroupError", f"pod {uid} has no group yet; create it before its container {container!r}"
                ) from e
            raise
        self._apply(group, limits, is_fresh=is_fresh, is_container=True)
        self._known.setdefault(uid, set()).add(container)

    def update(self, uid: str, container: str | None, limits: Limits) -> None:
        group = self._group(uid, container)
        if self._driver is None:
            return
        if not any((tree / group).is_dir() for tree in self._trees):
            raise AgentError("CgroupError", f"{group} does not exist; create it before it is updated")
        self._apply(group, limits, is_fresh=False, is_container=container is not None)

    # -- asking ----------------------------------------------------------------------------------------------------------------

    def procs_files(self, uid: str, container: str) -> Sequence[str]:
        group = self._container(uid, container)
        return [f"{tree}/{group}/cgroup.procs" for tree in self._trees]

    def pod_path(self, uid: str) -> str:
        """From the root of a hierarchy."""
        return self._pod(uid)

    def oci_path(self, uid: str, container: str) -> str:
        return "/" + self._container(uid, container)

    def oom_file(self, uid: str, container: str) -> str:
        """Has a line `oom_kill N`; empty where the kernel does not tell."""
        group = self._container(uid, container)
        return self._driver.oom_file(group) if self._driver is not None else ""

    def oom_kills(self, uid: str, container: str) -> int:
        return keyed_number(text_of(self.oom_file(uid, container)), "oom_kill")

    def usage(self, uid: str, container: str | None = None) -> CgroupUsage | None:
        """None when there is no such group. A pod's throttled time is that of its containers and its own."""
        group = self._group(uid, container)
        found = self._driver.usage(group) if self._driver is not None else None
        if found is None or container is not None or self._driver is None:
            return found
        inside_ns = sum(self._driver.throttled_ns(f"{group}/{name}") for name in self._children(self._trees[0] / group))
        return msgspec.structs.replace(found, throttled_ns=found.throttled_ns + inside_ns) if inside_ns else found

    def usage_at(self, group: str) -> CgroupUsage | None:
        """Of any group of this machine, by its path from the root; None when it is not there. ValueError for a bad path."""
        parts = [part for part in group.split("/") if part]
        if not parts or len(parts) > GROUP_PARTS_MAX or any(part in (".", "..") or "\0" in part for part in parts):
            raise ValueError(f"{group[:200]!r} is no path of a cgroup; write it like system.slice/nginx.service")
        return self._driver.usage("/".join(parts)) if self._driver is not None else None

    def agents(self) -> Sequence[str]:
        """The groups around the pods of every agent of this machine, this one's included."""
        if not self._trees:
            return []
        return [name for name in self._children(self._trees[0]) if name.startswith(TOP)]

    def list(self) -> set[str]:
        return {
            name.removeprefix(POD) for tree in self._every for name in self._children(tree / self._top) if name.startswith(POD)
        }

    # -- ending ----------------------------------------------------------------------------------------------------------------

    def kill(self, uid: str, container: str | None = None) -> int:
        return self._killer.kill(self._group(uid, container), self._every)

    def remove(self, uid: str, container: str | None = None) -> None:
        self._killer.remove(self._group(uid, container), self._every, self._known.get(uid, ()) if container is None else ())
        if container is not None:
            self._known.get(uid, set()).discard(container)
            return
        self._known.pop(uid, None)
        if not self._known:
            for tree in self._every:
                # Not while there are other pods: the kernel refuses it.
                self.executor.unmake(f"{tree}/{self._top}")

    def teardown(self) -> Sequence[AgentError]:
        """Kill and remove everything of this agent's, and put back what was changed. What could not be done."""
        problems: list[AgentError] = []
        for uid in self.list():
            try:
                self.remove(uid)
            except AgentError as e:
                problems.append(e)
        try:
            self._killer.remove(self._top, self._every)
        except AgentError as e:
            problems.append(e)
        return [*problems, *self.executor.restore()]

    # -- inside ----------------------------------------------------------------------------------------------------------------

    def _pod(self, uid: str) -> str:
        return f"{self._top}/{POD}{safe_part(uid)}"

    def _container(self, uid: str, container: str) -> str:
        return f"{self._pod(uid)}/{safe_part(container)}"

    def _group(self, uid: str, container: str | None) -> str:
        return self._pod(uid) if container is None else self._container(uid, container)

    def _make(self, group: str) -> bool:
        """True when it is new in every hierarchy, so that its files say what new ones say."""
        made = [tree for tree in self._trees if self.executor.make(f"{tree}/{group}")]
        return len(made) == len(self._trees)

    def _apply(self, group: str, limits: Limits | None, *, is_fresh: bool, is_container: bool) -> None:
        if self._driver is None or limits is None:
            return
        try:
            self._driver.apply(group, limits, is_fresh=is_fresh, is_container=is_container)
        except AgentError:
            if is_fresh:
                with suppress(AgentError):
                    self._killer.remove(group, self._trees)
            raise

    @staticmethod
    def _children(directory: Path) -> Sequence[str]:
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []
