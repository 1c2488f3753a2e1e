"""Finds what the machine and the agent's rights allow, and opens the groups of pods on it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from muster.agent.cgroups.driver import Driver
from muster.agent.cgroups.killing import Killer
from muster.agent.cgroups.pods import PodCgroups
from muster.agent.cgroups.trees import Trees, detect
from muster.agent.cgroups.v1 import V1
from muster.agent.cgroups.v2 import V2
from muster.agent.contracts import AgentError, Missing
from muster.agent.executor import Executor

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def open_cgroups(
    layout_id: str, root: Path = CGROUP_ROOT, proc: Path = PROC, journal: Path | None = None, executor: Executor | None = None
) -> PodCgroups:
    """`journal`: where old values are kept across restarts (a file in the agent's data directory). Never fails for what the
    machine lacks: that is `missing()`."""
    return open_trees(layout_id, detect(root), proc, executor or Executor(root, journal))


def open_trees(layout_id: str, trees: Trees, proc: Path, executor: Executor) -> PodCgroups:
    missing: list[Missing] = []
    probe = f"muster-{layout_id}"
    writable: set[Path] = set()
    for tree in trees.every:
        why = _why_not(executor, tree, tree / probe)
        if why is None:
            writable.add(tree)
        else:
            missing.append(Missing(f"cgroups in {tree}", why, "what this hierarchy limits is not limited for pods"))
    v2 = trees.v2 if trees.v2 in writable else None
    v1 = {name: path for name, path in trees.v1.items() if path in writable}
    driver: Driver | None = None
    if not writable:
        why = missing[0].why if missing else f"there are none under {trees.root}"
        missing = [Missing("cgroups", why, "nothing is limited by them, and pods are not measured; run the agent as root")]
    elif trees.is_unified and v2 is not None:
        driver = V2(executor, v2, trees.v2_controllers)
    else:
        driver = V1(executor, v1, v2)
    if driver is not None:
        missing += driver.missing()
    every = [tree for tree in trees.every if tree in writable]
    return PodCgroups(
        layout_id,
        executor,
        driver,
        Killer(executor, v2, v1.get("freezer"), proc),
        every=every,
        missing=missing,
        counting_tree=None if "perf_event" in trees.v1 else v2,
    )


def _why_not(executor: Executor, tree: Path, probe: Path) -> str | None:
    """None when groups can be made in the tree."""
    try:
        if executor.make(probe):
            executor.unmake(probe)
    except AgentError as e:
        return e.message
    with suppress(OSError):
        if not (tree / "cgroup.procs").exists():
            return f"{tree} has no cgroup.procs"
    return None
