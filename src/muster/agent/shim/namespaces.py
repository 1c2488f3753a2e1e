"""The system calls that Python 3.11 has no functions for: namespaces, mounts, capabilities. Standard library only.

Every function either does what it says or raises OSError with the step in its text. Called by shims and their children, which
have one thread each.
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUTS: Final = 0x0400_0000
CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000
CLONE_NEWNET: Final = 0x4000_0000
_CLONE_INTO_CGROUP = 0x2_0000_0000

FLAGS: Final = {"mount": CLONE_NEWNS, "pid": CLONE_NEWPID, "ipc": CLONE_NEWIPC, "uts": CLONE_NEWUTS, "user": CLONE_NEWUSER}
"""By the names that a launch uses."""

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x4_0000
MNT_DETACH: Final = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CLONE3, _OPENAT2 = 435, 437
_SIGCHLD = 17
_RESOLVE_NO_MAGICLINKS, _RESOLVE_BENEATH, _RESOLVE_IN_ROOT = 0x02, 0x08, 0x10
_KEYCTL_JOIN_SESSION_KEYRING = 1
_KEYCTL: Final = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "loongarch64": 219}.get(os.uname().machine)

CAPABILITIES: Final = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO",
    "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME",
    "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip
"""In the kernel's order: the place is the number."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.syscall.restype = ctypes.c_long
_python = ctypes.PyDLL(None, use_errno=True)
_python.syscall.restype = ctypes.c_long


def _check(result: int, step: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")


def _last_capability() -> int:
    try:
        with open("/proc/sys/kernel/cap_last_cap", "rb") as f:
            return int(f.read())
    except (OSError, ValueError):
        return len(CAPABILITIES) - 1


_LAST_CAPABILITY: Final = _last_capability()


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def unshare_user(flags: int) -> None:
    """A user namespace, and others in it, in which this process has all rights and keeps its user and group."""
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as f:
            f.write(text)


def fork_into(cgroup_fd: int) -> int:
    """As `os.fork`, for a process of one thread; the child is in this cgroup (v2) from its birth. OSError where it can't be.

    Without what Python does around a fork for the sake of other threads: there are none. The lock that threads would share is
    held throughout (`PyDLL`), so the child has it."""
    arguments = struct.pack("11Q", _CLONE_INTO_CGROUP, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, cgroup_fd)
    pid = int(_python.syscall(_CLONE3, arguments, len(arguments)))
    _check(pid, "fork into a cgroup")
    return pid


def setns(fd: int, flags: int, what: str) -> None:
    _check(_libc.setns(fd, flags), f"enter {what}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    result = _libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None)
    _check(result, f"mount {kind or source} at {target}")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    _check(_libc.umount2(target.encode(), flags), f"unmount {target}")


def pivot_here() -> None:
    """The working directory, a mount point, becomes the root; the old root is gone from sight."""
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    umount(".")
    os.chdir("/")


def open_inside(root_fd: int, path: str, *, is_confined: bool) -> int:
    """A descriptor (O_PATH) of `path` for one whose root is `root_fd`. is_confined: EXDEV instead, when it leads out of there.

    ENOSYS where the kernel is older than 5.6."""
    resolve = _RESOLVE_NO_MAGICLINKS | (_RESOLVE_BENEATH if is_confined else _RESOLVE_IN_ROOT)
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, resolve)
    fd = int(_libc.syscall(_OPENAT2, root_fd, (path.encode() or b"."), how, len(how)))
    _check(fd, path)
    return fd


def set_hostname(name: str) -> None:
    data = name.encode()
    _check(_libc.sethostname(data, len(data)), f"set the host name {name}")


def _prctl(option: int, a: int = 0, b: int = 0, *, step: str) -> None:
    _check(_libc.prctl(option, a, b, 0, 0), step)


def die_with_parent(signal: int = 9) -> None:
    """Lost when this process changes its user: a process that does so is to be watched by one that does not."""
    _prctl(_PR_SET_PDEATHSIG, signal, step="prctl(PDEATHSIG)")


def become_subreaper() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, step="prctl(CHILD_SUBREAPER)")


def forbid_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, step="prctl(NO_NEW_PRIVS)")


def set_name(name: str) -> None:
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(buffer), step="prctl(NAME)")


def new_session_keyring() -> None:
    """Keys of whoever started the agent are none of the task's business. Where the kernel has no keys there are none to see."""
    if _KEYCTL is not None:
        _libc.syscall(_KEYCTL, _KEYCTL_JOIN_SESSION_KEYRING, None)


def capability_numbers(names: list[str]) -> list[int]:
    """Of names with or without `CAP_`. ValueError names what is unknown."""
    plain = [name.upper().removeprefix("CAP_") for name in names]
    if unknown := [name for name in plain if name not in CAPABILITIES]:
        raise ValueError(f"unknown capabilities: {', '.join(unknown)}")
    return [CAPABILITIES.index(name) for name in plain]


def _capset(mask: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFF_FFFF, mask >> 32
    data = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)
    _check(_libc.capset(header, data), "capset")


def become(user: int, group: int, groups: list[int], keep: list[str]) -> None:
    """Another user for good, with the capabilities `keep` and no others, now and after every exec."""
    numbers = capability_numbers(keep)
    if os.geteuid() == 0:
        prctl = _libc.prctl
        for number in range(_LAST_CAPABILITY + 1):
            if number not in numbers and prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
                _check(-1, f"drop capability {number}")
        if numbers:
            _prctl(_PR_SET_KEEPCAPS, 1, step="prctl(KEEPCAPS)")
        os.setgroups(groups)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    if numbers or user == 0:
        _capset(sum(1 << number for number in numbers))
    for number in numbers:
        _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0), f"keep capability {number}")


def drop_capabilities() -> None:
    """This process keeps its user and loses all else."""
    _capset(0)
