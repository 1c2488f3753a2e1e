"""What a process task sees of the machine: which root, which mounts, what is hidden. Pure.

The task's root is the host's own files under a writable layer of its own. Shown are the file systems that hold programs and
libraries. Not shown: whatever the agent keeps (`Layout`), what runs on the host (/run, /tmp), root's home, and what the
configuration names. What a task may read is then what any unprivileged user of the machine may read of the rest.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from muster.agent.contracts import AgentError, Mount, Security

DISK_KINDS: Final = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "squashfs", "erofs", "overlay", "nfs", "nfs4", "ceph")
)
"""File systems that hold files of people, as against those through which the kernel shows itself."""
NEVER_SHOWN: Final = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/boot")  # noqa: S108 - the task has its own
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - the task's
HIDDEN: Final = ("/run", "/root", "/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet")
WORK_DIR: Final = "/task"
"""Where a task works that names no directory; its home."""
SAFE_CAPABILITIES: Final = frozenset({"NET_BIND_SERVICE"})
PATH_BYTES_MAX: Final = 4096
_NOT_TARGETS: Final = ("/proc", "/sys")


def is_below(path: str, top: str) -> bool:
    """Also when they are the same."""
    return path == top or path.startswith(top.rstrip("/") + "/")


def shown_mounts(mountinfo: str, hidden: Sequence[str]) -> list[str]:
    """The host's further file systems, which an overlay of `/` does not include; parents before children."""
    found: set[str] = set()
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or after.split(" ")[0] not in DISK_KINDS:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        if point != "/" and not any(is_below(point, top) for top in (*NEVER_SHOWN, *hidden)):
            found.add(point)
    return sorted(found)


def hidden_directories(data: str, run: str, more: Iterable[str]) -> list[str]:
    """All paths real (no links): parents before children, each once."""
    return sorted({data, run, *more, *HIDDEN})


def kept_directories(prefixes: Iterable[str], hidden: Sequence[str], secret: Sequence[str]) -> list[str]:
    """Of the directories that tasks need (the agent's own Python), those that hiding, or a task's own `/tmp`, would take away.

    Never one that has, or lies in, something that is hidden for a reason of its own."""
    return sorted(
        {
            prefix
            for prefix in prefixes
            if any(is_below(prefix, top) for top in (*hidden, *TEMPORARY))
            and not any(is_below(top, prefix) or is_below(prefix, top) for top in secret)
        }
    )


def check_target(target: str) -> None:
    """AgentError unless something can be mounted there."""
    problem = ""
    if not target.startswith("/"):
        problem = "it is not absolute"
    elif ".." in target.split("/"):
        problem = "it contains `..`"
    elif "\0" in target or len(target.encode(errors="replace")) > PATH_BYTES_MAX:
        problem = f"it contains a zero byte, or has more than {PATH_BYTES_MAX} bytes"
    elif posixpath.normpath(target) in ("/", "//"):
        problem = "the root can't be mounted over"
    elif any(is_below(posixpath.normpath(target), top) for top in _NOT_TARGETS):
        problem = "/proc and /sys are the kernel's"
    if problem:
        raise AgentError("CreateContainerConfigError", f"mountPath: {target[:200]!r}: {problem}; choose another path")


def bind(mount: Mount, pods: Path) -> dict[str, Any]:
    """The mount as a launch has it. A source in a volume never leads out of that volume; one of the host, which was found to be
    allowed, is that very path: no part of it may have become a link meanwhile."""
    check_target(mount.target)
    result: dict[str, Any] = {
        "target": mount.target,
        "source": mount.source,
        "kind": mount.kind,
        "readOnly": mount.read_only,
        "sizeBytes": mount.size_bytes,
    }
    if mount.kind == "bind":
        top = _source_root(mount.source, str(pods))
        result |= {"sourceRoot": top} if top else {"noLinks": True}
    return result


def _source_root(source: str, pods: str) -> str:
    if not is_below(source, pods) or source == pods:
        return ""
    parts = source[len(pods.rstrip("/")) + 1 :].split("/")
    if ".." in parts:
        raise AgentError("CreateContainerConfigError", f"subPath: {source!r} contains `..`; name a path inside the volume")
    # <uid>/volumes/<name> where it is a volume, else the pod's own directory, which tasks can't write to
    depth = 3 if len(parts) >= 3 and parts[1] == "volumes" else 1
    return "/".join((pods.rstrip("/"), *parts[:depth]))


def check_security(security: Security, user: int) -> list[str]:
    """The capabilities to keep. AgentError for what a process task can't be given: its files are the host's."""
    way_out = f"leave it out (the task runs as user {user}, which is its own), or run this pod on a node with runtime runc"
    for name, value in (("runAsUser", security.user), ("runAsGroup", security.group)):
        if value is not None and value != user:
            raise AgentError("CreateContainerConfigError", f"securityContext.{name}: {value}: {way_out}")
    if others := [group for group in security.groups if group != user]:
        raise AgentError("CreateContainerConfigError", f"securityContext.supplementalGroups: {others}: {way_out}")
    wanted = {name.upper().removeprefix("CAP_") for name in security.add_capabilities}
    if refused := sorted(wanted - SAFE_CAPABILITIES):
        raise AgentError("CreateContainerConfigError", f"securityContext.capabilities.add: {refused}: {way_out}")
    dropped = {name.upper().removeprefix("CAP_") for name in security.drop_capabilities}
    return [] if "ALL" in dropped and not wanted else sorted(wanted - dropped)
