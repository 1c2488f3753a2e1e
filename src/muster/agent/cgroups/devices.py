"""Device files that a container may use (cgroup v1): a list that starts closed.

Always open: null, zero, full, random, urandom, tty, ptmx and the pseudo-terminals; making device nodes is left to
capabilities. Pods are not limited, only containers: a runtime may open further devices for its own container.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from muster.agent.cgroups.driver import OWNER, text_of
from muster.agent.contracts import AgentError
from muster.agent.executor import Executor

USUAL: Final = (
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
)
EVERYTHING: Final = "a *:* rwm"
DEVICES_MAX: Final = 256


def rule(path: str) -> str:
    """`c 195:0 rwm` for a device node. AgentError names the path and what is wrong."""
    try:
        found = os.stat(path)
    except OSError as e:
        raise AgentError(
            "DeviceNotFound", f"device {path!r}: {e.strerror}; name a device node of this machine, or choose another node"
        ) from e
    kind = "c" if stat.S_ISCHR(found.st_mode) else "b" if stat.S_ISBLK(found.st_mode) else ""
    if not kind:
        raise AgentError("DeviceNotFound", f"device {path!r} is no device node; name one, such as /dev/nvidia0")
    return f"{kind} {os.major(found.st_rdev)}:{os.minor(found.st_rdev)} rwm"


def rules(paths: Sequence[str]) -> list[str]:
    if len(paths) > DEVICES_MAX:
        raise AgentError("DeviceNotFound", f"{len(paths)} devices for one container; at most {DEVICES_MAX}")
    return [*USUAL, *(one for one in map(rule, paths) if one not in USUAL)]


def apply(executor: Executor, group: Path | str, paths: Sequence[str], *, is_fresh: bool = False) -> None:
    """Close what is open and not wanted, open what is wanted and closed. Does nothing when the list is right."""
    wanted = rules(paths)
    now = [EVERYTHING] if is_fresh else text_of(f"{group}/devices.list").splitlines()
    if EVERYTHING in now:
        executor.command(f"{group}/devices.deny", "a", OWNER)
        now = []
    for one in now:
        if one not in wanted:
            executor.command(f"{group}/devices.deny", one, OWNER)
    for one in wanted:
        if one not in now:
            executor.command(f"{group}/devices.allow", one, OWNER)
