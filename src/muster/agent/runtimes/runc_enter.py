"""Puts the container's root file system together, in a mount namespace of its own, and becomes runc. Standard library only.

In a child of the run's shim (`become`), or as `python -I -S runc_enter.py KEY=VALUE... -- runc ...`, for trying what works.
What is mounted here is seen by runc and the container, and by nobody else: when both are gone the kernel takes it away, so
nothing can be left behind on the host.

    lower                        the image's file system
    layer                        the run's own directory with `upper` and `work`
    point                        where it is put together, a directory that anyone may pass through
    uids, gids                   lines of a user namespace's maps: the image's files are shown with these ids; empty: as is
    netns                        whose interfaces its /sys shows, put at point/sys; empty: the host's
    disk                         a file with a file system for upper and work, so that they can't outgrow it; empty: none
    owner                        uid:gid of the upper directory of a fresh disk
    bind                         several: NUMBER, the length of ROOT, and ROOT + PATH, a line each: what is at PATH, found
                                 without leaving ROOT, is shown at point/NUMBER
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_CLONE_VM = 0x00000100
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE, _MS_SLAVE = (
    0x1,
    0x2,
    0x4,
    0x8,
    0x1000,
    0x4000,
    1 << 18,
    1 << 19,
)
_SIGCHLD = 17
_STACK_BYTES = 64 * 1024
_WAIT_S = 30
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOUNT_ATTR_IDMAP = 0x00100000
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_EMPTY_PATH, _AT_FDCWD = 0x1000, -100
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    encoded = (None if text is None else os.fsencode(text) for text in (source, target, kind))
    _checked(_libc.mount(*encoded, ctypes.c_ulong(flags), None if data is None else os.fsencode(data)), f"mount {target}")


def _user_namespace(uids: str, gids: str) -> int:
    """A descriptor of a user namespace with these maps. The process that made it is gone again.

    It shares this one's memory, on a stack of its own, and does nothing but wait (`sleep` of the C library), not long should
    this one be killed meanwhile: a copy of the whole interpreter would cost more than the namespace."""
    stack = ctypes.create_string_buffer(_STACK_BYTES)
    top = (ctypes.addressof(stack) + _STACK_BYTES) & ~15
    sleep, flags = ctypes.cast(_libc.sleep, ctypes.c_void_p), _CLONE_VM | _CLONE_NEWUSER | _SIGCHLD
    child = _checked(_libc.clone(sleep, ctypes.c_void_p(top), flags, ctypes.c_void_p(_WAIT_S)), "a user namespace")
    try:
        for name, lines in (("uid_map", uids), ("gid_map", gids)):
            fd = os.open(f"/proc/{child}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            os.write(fd, lines.encode())
            os.close(fd)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def _show_with_ids(source: str, target: str, uids: str, gids: str) -> None:
    namespace = _user_namespace(uids, gids)
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
    tree = _checked(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags), f"open_tree {source}")
    attr = _MountAttr(_MOUNT_ATTR_IDMAP, 0, 0, namespace)
    size = ctypes.sizeof(attr)
    _checked(_libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attr), size), f"id-mapping of {source}")
    moved = _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    _checked(moved, f"move_mount {target}")
    os.close(tree)
    os.close(namespace)


def _attach_disk(disk: str, target: str, owner: str) -> None:
    pid = os.posix_spawnp("mount", ["mount", "-o", "loop,nosuid,nodev", disk, target], os.environ)
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError(f"{disk} can't be mounted")
    os.mkdir(f"{target}/upper", 0o755)
    os.mkdir(f"{target}/work", 0o700)
    uid, _, gid = owner.partition(":")
    os.chown(f"{target}/upper", int(uid), int(gid))


def _show_sys(target: str, netns: str) -> None:
    """A fresh one: without what the host has mounted below its own, and with the interfaces of the pod. The container could
    not make it, since the network namespace is not of its user namespace."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if netns:
        there = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        _checked(_libc.setns(there, _CLONE_NEWNET), f"entering {netns}")
        os.close(there)
    _mount("sysfs", target, "sysfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)
    if netns:
        _checked(_libc.setns(own, _CLONE_NEWNET), "leaving it again")
    os.close(own)


def _open_beneath(root: str, path: str) -> int:
    """Links are followed as long as they stay inside; one that leaves is an error. Nobody can change that in between. From
    `/`, where everything is inside, no link is followed at all."""
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if not path:
        return root_fd
    try:
        resolve = _RESOLVE_NO_SYMLINKS if root == "/" else _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS
        how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, resolve)
        found = _libc.syscall(_OPENAT2, root_fd, os.fsencode(path), how, ctypes.sizeof(how))
        return _checked(found, f"{path} in {root}")
    finally:
        os.close(root_fd)


def _bind(word: str, point: str) -> None:
    number, length, text = word.split("\n", 2)
    fd = _open_beneath(text[: int(length)], text[int(length) :])
    target = f"{point}/{number}"
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.mkdir(target, 0o755)
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    _mount(f"/proc/self/fd/{fd}", target, None, _MS_BIND | _MS_REC, None)
    os.close(fd)


def enter(words: list[str]) -> None:
    given = dict(word.split("=", 1) for word in words)
    point = given["point"]
    _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
    _mount("none", "/", None, _MS_REC | _MS_SLAVE, None)
    _mount("muster", point, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=0711")
    _mount("none", point, None, _MS_PRIVATE, None)
    lower, merged = f"{point}/lower", f"{point}/merged"
    for word in words:
        if word.startswith("bind="):
            _bind(word[5:], point)
    layer = f"{point}/layer"  # Whatever characters the real path has, this one has none that an option could not.
    for path in (lower, merged, layer, f"{point}/sys"):
        os.mkdir(path, 0o755)
    _show_sys(f"{point}/sys", given.get("netns", ""))
    if given.get("disk"):
        _attach_disk(given["disk"], layer, given["owner"])
    else:
        _mount(given["layer"], layer, None, _MS_BIND, None)
    if given.get("uids"):
        _show_with_ids(given["lower"], lower, given["uids"], given["gids"])
    else:
        _mount(given["lower"], lower, None, _MS_BIND, None)
    _mount("overlay", merged, "overlay", _MS_NODEV, f"lowerdir={lower},upperdir={layer}/upper,workdir={layer}/work")


def become(words: list[str], argv: list[str], streams: tuple[int, int, int] | None = None) -> NoReturn:
    """Enter, and execute `argv` with these streams. What goes wrong is written to the file `log=`, where the shim looks."""
    try:
        if streams is not None:
            os.setsid()
            for number, fd in enumerate(streams):
                os.dup2(fd, number)
        enter(words)
        os.execv(argv[0], argv)  # noqa: S606 - no shell is wanted
    except BaseException as e:  # noqa: BLE001 - a child must not return into its parent's code
        log = next((word[4:] for word in words if word.startswith("log=")), "/dev/stderr")
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, f"the root file system can't be put together: {e}\n".encode())
    finally:
        os._exit(1)


if __name__ == "__main__":
    split = sys.argv.index("--")
    become(sys.argv[1:split], sys.argv[split + 1 :])
