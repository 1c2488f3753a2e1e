"""The `config.json` of a container: what it sees, what it may do, what it gets. Pure: values in, a dictionary out.

Everything that a manifest's author could ask for too much of is refused here with the field and the way out: capabilities
beyond a short list, mounts over `/`, `/proc` or `/sys`, paths that climb.
"""

from __future__ import annotations

import posixpath
import stat
from typing import Any, Final

import msgspec

from muster.agent.cgroups import amounts
from muster.agent.contracts import AgentError, ContainerSpec, Image, Limits, Mount, Sandbox, Security
from muster.agent.runtimes import runc_seccomp
from muster.agent.runtimes.runc_users import IdRange, User

CAPABILITIES: Final = frozenset(
    {
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FOWNER",
        "CAP_FSETID",
        "CAP_KILL",
        "CAP_NET_BIND_SERVICE",
        "CAP_SETGID",
        "CAP_SETPCAP",
        "CAP_SETUID",
        "CAP_SYS_CHROOT",
    }
)
"""What root in a container has when nothing else is said. Other users have none."""
MAY_BE_ADDED: Final = frozenset(
    {"CAP_AUDIT_WRITE", "CAP_IPC_LOCK", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SYS_NICE", "CAP_SYS_PTRACE"}
)
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOFILE: Final = 1024 * 1024
SHM_BYTES: Final = 64 * 2**20
MASKED: Final = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_RESERVED: Final = ("/proc", "/sys", "/dev/pts", "/dev/mqueue")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device node of the host."""

    path: str
    mode: int
    major: int
    minor: int


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine and the agent add to what a container's spec says."""

    root: str
    sys: str
    """Where its /sys has been mounted."""
    cgroups_path: str
    user: User
    ids: tuple[IdRange, ...] = ()
    """Empty: no user namespace."""
    devices: tuple[Device, ...] = ()
    machine: str = "x86_64"
    has_seccomp: bool = True
    nofile_max: int = 1024
    """Open files of one process: what the agent itself may have, up to `NOFILE`."""


def config(sandbox: Sandbox, spec: ContainerSpec, image: Image, setting: Setting) -> dict[str, Any]:
    """AgentError `CreateContainerConfigError` for what can't or must not be."""
    capabilities = allowed_capabilities(spec.security)
    linux: dict[str, Any] = {
        "namespaces": _namespaces(sandbox, setting),
        "cgroupsPath": setting.cgroups_path,
        "resources": resources(spec.limits, setting.devices),
        "devices": [_device(d) for d in setting.devices],
        "maskedPaths": list(MASKED),
        "readonlyPaths": list(READ_ONLY),
        "rootfsPropagation": "private",
    }
    if setting.ids:
        maps = [{"containerID": r.inside, "hostID": r.outside, "size": r.count} for r in setting.ids]
        linux |= {"uidMappings": maps, "gidMappings": maps}
    seccomp = runc_seccomp.profile(setting.machine, capabilities) if setting.has_seccomp else None
    if seccomp is not None:
        linux["seccomp"] = seccomp
    return {
        "ociVersion": "1.0.2",
        "root": {"path": setting.root, "readonly": spec.security.read_only_root},
        "hostname": sandbox.hostname,
        "mounts": [*_own_mounts(setting), *(_mount(m) for m in spec.mounts)],
        "process": _process(sandbox, spec, image, setting, capabilities),
        "linux": linux,
    }


def command(spec: ContainerSpec, image: Image) -> list[str]:
    """As in Kubernetes: a command replaces the image's entry point and its arguments; arguments replace only those."""
    words = [*spec.command, *spec.args] if spec.command else [*image.entrypoint, *(spec.args or image.command)]
    if not words or not words[0]:
        raise _refused(spec, "command", "empty", f"the image {image.reference!r} has no entry point either; give a command")
    return words


def environment(sandbox: Sandbox, spec: ContainerSpec, image: Image) -> dict[str, str]:
    return {"PATH": DEFAULT_PATH, "HOSTNAME": sandbox.hostname, **dict(image.env), **dict(spec.env)}


def allowed_capabilities(security: Security) -> frozenset[str]:
    def full(name: str) -> str:
        upper = name.upper()
        return upper if upper.startswith("CAP_") else f"CAP_{upper}"

    dropped = {full(name) for name in security.drop_capabilities}
    added = {full(name) for name in security.add_capabilities}
    if refused := sorted(added - MAY_BE_ADDED - CAPABILITIES):
        allowed = ", ".join(sorted(name.removeprefix("CAP_") for name in MAY_BE_ADDED | CAPABILITIES))
        raise AgentError(
            "CreateContainerConfigError",
            f"securityContext.capabilities.add: {refused[0][:40]!r} is not granted on this node; these may be: {allowed}",
        )
    kept = frozenset() if "CAP_ALL" in dropped else CAPABILITIES - dropped
    return frozenset(kept | added)


def _process(
    sandbox: Sandbox, spec: ContainerSpec, image: Image, setting: Setting, capabilities: frozenset[str]
) -> dict[str, Any]:
    cwd = spec.cwd or image.cwd or "/"
    if not cwd.startswith("/") or "\0" in cwd:
        raise _refused(spec, "workingDir", cwd, "it is an absolute path")
    env = environment(sandbox, spec, image)
    words = command(spec, image)
    if any("\0" in text for text in (*words, *env, *env.values())) or any("=" in key for key in env):
        raise _refused(spec, "command, args or env", "a NUL or a name with '='", "no program can be given that")
    named = sorted(capabilities)
    # A user other than root has what a file or a set-user-id program could give it at most: the bounding set.
    user, nofile = setting.user, min(setting.nofile_max, NOFILE)
    held = named if user.uid == 0 else []
    return {
        "terminal": False,
        "user": {"uid": user.uid, "gid": user.gid, "additionalGids": list(user.groups), "umask": 0o022},
        "args": words,
        "env": [f"{key}={value}" for key, value in env.items()],
        "cwd": posixpath.normpath(cwd),
        "noNewPrivileges": not spec.security.may_gain_privileges,
        "capabilities": {"bounding": named, "effective": held, "permitted": held, "inheritable": [], "ambient": []},
        "rlimits": [
            {"type": "RLIMIT_NOFILE", "soft": nofile, "hard": nofile},
            {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
        ],
        "oomScoreAdj": 500,
    }


def _namespaces(sandbox: Sandbox, setting: Setting) -> list[dict[str, str]]:
    found = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
    if setting.ids:
        found.append({"type": "user"})
    if sandbox.netns:
        found.append({"type": "network", "path": sandbox.netns})
    return found


def _own_mounts(setting: Setting) -> list[dict[str, Any]]:
    quiet = ["nosuid", "noexec", "nodev"]
    # Made by `runc_enter`: the network namespace is not the container's, so it could not mount its own view of it.
    sys = {"destination": "/sys", "type": "bind", "source": setting.sys, "options": ["bind", *quiet, "ro"]}
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": quiet},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        },
        {
            "destination": "/dev/shm",  # noqa: S108 - the container's own
            "type": "tmpfs",
            "source": "shm",
            "options": [*quiet, "mode=1777", f"size={SHM_BYTES}"],
        },
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": quiet},
        sys,
    ]


def _mount(mount: Mount) -> dict[str, Any]:
    target = mount.target
    clean = posixpath.normpath(target)
    if not target.startswith("/") or "\0" in target or ".." in target.split("/"):
        raise _bad_mount(mount, "it is an absolute path without `..`")
    if clean in ("/", "//", "/dev") or any(clean == r or clean.startswith(r + "/") for r in _RESERVED):
        raise _bad_mount(mount, "/, /dev, /proc and /sys are the container's own; mount it elsewhere")
    access = ["ro"] if mount.read_only else ["rw"]
    if mount.kind == "tmpfs":
        size = [f"size={mount.size_bytes}"] if mount.size_bytes is not None else []
        options = ["nosuid", "nodev", "mode=1777", *size, *access]
        return {"destination": clean, "type": "tmpfs", "source": "tmpfs", "options": options}
    if not mount.source.startswith("/") or "\0" in mount.source:
        raise _bad_mount(mount, f"its source {mount.source[:80]!r} is not an absolute path")
    options = ["rbind", "rprivate", "nosuid", "nodev", *access]
    return {"destination": clean, "type": "bind", "source": mount.source, "options": options}


def resources(limits: Limits, devices: tuple[Device, ...]) -> dict[str, Any]:
    """The same figures that the container's cgroup has already."""
    cpu: dict[str, int] = {"shares": amounts.shares(limits.cpu_request_milli)}
    quota = amounts.quota_us(limits.cpu_limit_milli)
    if quota is not None:
        cpu |= {"quota": quota, "period": amounts.PERIOD_US}
    found: dict[str, Any] = {
        "cpu": cpu,
        "devices": [
            {"allow": False, "access": "rwm"},
            *({"allow": True, "type": _kind(d), "major": d.major, "minor": d.minor, "access": "rw"} for d in devices),
        ],
    }
    memory = amounts.memory_bytes(limits.memory_limit_bytes)
    if memory is not None:
        found["memory"] = {"limit": memory}
    if limits.pids_max is not None:
        found["pids"] = {"limit": limits.pids_max}
    return found


def _kind(device: Device) -> str:
    return "b" if stat.S_ISBLK(device.mode) else "c"


def _device(device: Device) -> dict[str, Any]:
    numbers = {"major": device.major, "minor": device.minor}
    return {"path": device.path, "type": _kind(device), **numbers, "fileMode": 0o666, "uid": 0, "gid": 0}


def _refused(spec: ContainerSpec, field: str, value: str, why: str) -> AgentError:
    return AgentError("CreateContainerConfigError", f"container {spec.name!r}: {field}: {value[:80]!r}: {why}")


def _bad_mount(mount: Mount, why: str) -> AgentError:
    return AgentError("CreateContainerConfigError", f"mountPath: {mount.target[:120]!r}: {why}")
