"""Kernel features: privileges, namespaces, cgroups, network shaping.

Nothing is guessed from version numbers: namespaces are entered, cgroups are made and removed, an HTB class is added in a
network namespace of its own. Every try runs in a child process that ends with it, so this process is never changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from muster.cli.doctor.model import Finding, ok, warning

PROBE_TIMEOUT_S = 10.0
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_SETUID": 7, "CAP_KILL": 5}
NAMESPACES = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
}
CGROUP_NEEDS = {
    "cpu": "CPU limits and shares of tasks are not enforced",
    "memory": "memory limits are not enforced: one task can starve the machine",
    "pids": "a task may fork without bound",
    "cpuset": "tasks cannot be pinned to cores",
    "freezer": "tasks cannot be paused",
}

# ---------------------------------------------------------------------------------------------------------- privileges


def capabilities(status_text: str) -> frozenset[str]:
    """The effective capabilities named in /proc/self/status."""
    for line in status_text.splitlines():
        if line.startswith("CapEff:"):
            mask = int(line.split()[1], 16)
            return frozenset(name for name, bit in CAPABILITIES.items() if mask >> bit & 1)
    return frozenset()


def judge_privileges(uid: int, held: frozenset[str]) -> Finding:
    missing = sorted(set(CAPABILITIES) - held)
    if uid == 0 and not missing:
        return ok("privileges", "root with full capabilities", uid=uid)
    if uid == 0:
        return warning(
            "privileges",
            f"root without {', '.join(missing)}",
            "the node agent cannot do what these capabilities stand for (namespaces, network shaping, other users' processes)",
            "run the container privileged, or with --cap-add for each of them",
            uid=uid,
            missing=missing,
        )
    return warning(
        "privileges",
        f"user {uid}, not root",
        "tasks run as this same user, without bandwidth limits, and with cgroup limits only in a cgroup that is delegated",
        "run 'muster up' as root, or accept this for trying things out",
        uid=uid,
        missing=missing,
    )


def probe_privileges() -> Finding:
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    return judge_privileges(os.geteuid(), capabilities(text))


# ---------------------------------------------------------------------------------------------------------- namespaces

_UNSHARE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for flags in map(int, sys.argv[1:]):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.unshare(flags) == 0 else min(ctypes.get_errno() or 255, 255))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def try_namespaces() -> dict[str, str]:
    """For each kind of namespace: `direct`, `inside a user namespace`, or `no`."""
    flags = list(NAMESPACES.values())
    nested = [f | NAMESPACES["user"] for f in flags]
    try:
        done = subprocess.run(  # noqa: S603 - fixed text, no user input
            [sys.executable, "-c", _UNSHARE, *map(str, flags + nested)],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
        codes = [int(word) for word in done.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return dict.fromkeys(NAMESPACES, "no")
    half = len(flags)
    return {
        name: "direct" if codes[i] == 0 else "inside a user namespace" if codes[half + i] == 0 else "no"
        for i, name in enumerate(NAMESPACES)
    }


def judge_namespaces(kinds: Mapping[str, str]) -> Finding:
    missing = [name for name, how in kinds.items() if how == "no"]
    nested = [name for name, how in kinds.items() if how == "inside a user namespace"]
    costs = {
        "net": "tasks share the machine's network: no bandwidth limit and no port of their own",
        "mount": "no container runtime (runc, crun); tasks see the machine's files",
        "pid": "tasks see each other's processes",
        "user": "root inside a task is root outside it",
    }
    lost = [costs[name] for name in missing if name in costs]
    if missing and lost:
        return warning(
            "namespaces",
            f"not allowed: {', '.join(missing)}",
            "; ".join(lost),
            "run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000)",
            kinds=dict(kinds),
        )
    how = f"; {', '.join(nested)} inside a user namespace" if nested else ""
    return ok("namespaces", f"{', '.join(name for name in kinds if name not in missing)} work{how}", kinds=dict(kinds))


def probe_namespaces() -> Finding:
    return judge_namespaces(try_namespaces())


# ------------------------------------------------------------------------------------------------------------- cgroups


class Cgroups(msgspec.Struct, frozen=True):
    """`mode` is v1, v2, hybrid or none. `writable` are the controllers in which a group could really be made."""

    mode: str
    writable: tuple[str, ...] = ()
    present: tuple[str, ...] = ()


def read_cgroups(mounts: str, own: str) -> Cgroups:
    """From the texts of /proc/self/mounts and /proc/self/cgroup. Makes and removes one empty group per controller."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mounts.splitlines():
        _, target, kind, options, *_ = [*line.split(), "", "", "", ""]
        if kind == "cgroup2":
            v2 = v2 or Path(target)
        elif kind == "cgroup":
            v1 |= {option: Path(target) for option in options.split(",") if option in CGROUP_NEEDS}
    paths = {controller: path.lstrip("/") for _, names, path in _own_lines(own) for controller in names.split(",")}
    v2_controllers = _v2_controllers(v2 / paths.get("", "")) if v2 else frozenset[str]()
    writable = {c for c, root in v1.items() if _can_make(root / paths.get(c, ""))}
    if v2 and _can_make(v2 / paths.get("", "")):
        # Freezing is part of every v2 group (cgroup.freeze); it is not a controller of its own.
        writable |= {"freezer"} | (v2_controllers & set(CGROUP_NEEDS))
    mode = "hybrid" if v1 and v2 else "v2" if v2 else "v1" if v1 else "none"
    present = set(v1) | (v2_controllers & set(CGROUP_NEEDS)) | ({"freezer"} if v2 else set())
    return Cgroups(mode, tuple(sorted(writable)), tuple(sorted(present)))


def _own_lines(own: str) -> list[tuple[str, str, str]]:
    found = []
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        found.append((number, names, path))
    return found


def _v2_controllers(group: Path) -> frozenset[str]:
    try:
        return frozenset((group / "cgroup.controllers").read_text(encoding="ascii").split())
    except OSError:
        return frozenset()


def _can_make(parent: Path) -> bool:
    probe = parent / f"muster-doctor-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def judge_cgroups(groups: Cgroups) -> Finding:
    if groups.mode == "none":
        return warning(
            "cgroups",
            "no cgroup file system is mounted",
            "nothing limits the CPU, memory or processes of a task",
            "mount one: mount -t cgroup2 none /sys/fs/cgroup",
            mode="none",
        )
    missing = [c for c in CGROUP_NEEDS if c not in groups.writable]
    facts = {"mode": groups.mode, "writable": list(groups.writable), "present": list(groups.present)}
    if not missing:
        return ok("cgroups", f"{groups.mode}; writable: {', '.join(groups.writable)}", **facts)
    return warning(
        "cgroups",
        f"{groups.mode}; writable: {', '.join(groups.writable) or 'none'}; not: {', '.join(missing)}",
        "; ".join(CGROUP_NEEDS[c] for c in missing),
        "run as root, or delegate a cgroup to the user (systemd-run --user --scope -p Delegate=yes muster up)",
        **facts,
    )


def probe_cgroups() -> Finding:
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return judge_cgroups(Cgroups("none"))
    return judge_cgroups(read_cgroups(mounts, own))
