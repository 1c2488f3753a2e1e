"""The file system that a run sees: made inside its own mount namespace, so that all of it is gone when its last process is.

Runs as root in the container's first process, before anything of the task's. Paths that a task may have had its hands in are
walked one part at a time and without following links out of where they belong: a mount's target stays inside the new root, a
source inside its volume (`sourceRoot`). What is mounted is named by file descriptor from then on.
"""

from __future__ import annotations

import errno
import os
import stat

from muster.agent.shim import namespaces as ns
from muster.agent.shim.light import ignoring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

_LINKS_MAX: Final = 40
_PATH_FLAGS: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DEVICES: Final = {
    "null": os.makedev(1, 3),
    "zero": os.makedev(1, 5),
    "full": os.makedev(1, 7),
    "random": os.makedev(1, 8),
    "urandom": os.makedev(1, 9),
    "tty": os.makedev(5, 0),
}
_QUIET: Final = ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC
_OWN: Final = ("proc", "sys", "dev", "tmp", "run")
SHM_BYTES: Final = 64 * 2**20


class Outside(OSError):
    """A path that leads out of where it has to stay."""


def walk(root_fd: int, path: str, *, make: str = "", is_confined: bool = False, owner: tuple[int, int] | None = None) -> int:
    """A descriptor (O_PATH) of `path` as seen by someone whose root is `root_fd`: links and `..` end at that root.

    make: "dir" or "file" makes what is missing (as `owner`, else root's). is_confined: a link that would leave the root is an
    error (`Outside`) instead of ending there.
    """
    todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    stack = [os.dup(root_fd)]
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part == "..":
                if len(stack) > 1:
                    os.close(stack.pop())
                elif is_confined:
                    raise Outside(errno.EXDEV, f"{path} leads out of its volume")
                continue
            try:
                fd = os.open(part, _PATH_FLAGS, dir_fd=stack[-1])
            except FileNotFoundError:
                if not make:
                    raise
                fd = _make(stack[-1], part, make if not todo else "dir", owner)
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                stack.append(fd)
                continue
            links += 1
            text = os.readlink("", dir_fd=fd)
            os.close(fd)
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, f"{path} has more than {_LINKS_MAX} links")
            if text.startswith("/"):
                if is_confined:
                    raise Outside(errno.EXDEV, f"{path} leads out of its volume")
                while len(stack) > 1:
                    os.close(stack.pop())
            todo += [piece for piece in reversed(text.split("/")) if piece not in ("", ".")]
        return os.dup(stack[-1])
    finally:
        for fd in stack:
            os.close(fd)


def find(root_fd: int, path: str, *, make: str = "", is_confined: bool = False, owner: tuple[int, int] | None = None) -> int:
    """`walk`, by the kernel where it can: one call instead of three for each part of the path."""
    try:
        return ns.open_inside(root_fd, path, is_confined=is_confined)
    except OSError as e:
        if e.errno == errno.EXDEV:
            raise Outside(errno.EXDEV, f"{path} leads out of its volume") from e
        if e.errno not in (errno.ENOENT, errno.ENOSYS, errno.EPERM) or (e.errno == errno.ENOENT and not make):
            raise
    return walk(root_fd, path, make=make, is_confined=is_confined, owner=owner)


def _make(dir_fd: int, name: str, kind: str, owner: tuple[int, int] | None) -> int:
    if kind == "dir":
        with ignoring(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=dir_fd)
            if owner:
                os.chown(name, *owner, dir_fd=dir_fd, follow_symlinks=False)
    else:
        with ignoring(FileExistsError):
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=dir_fd))
    return os.open(name, _PATH_FLAGS, dir_fd=dir_fd)


def build(launch: dict[str, Any]) -> None:
    """Everything that the launch asks for is in place, and this process stands in its new root."""
    os.umask(0)
    ns.mount("none", "/", flags=ns.MS_REC | ns.MS_PRIVATE)
    root = launch["root"]
    merged = root["merged"]
    if root["kind"] == "binds":
        _bind_all(root)
    else:
        options = f"lowerdir={_escape(root['lower'])},upperdir={_escape(root['upper'])},workdir={_escape(root['work'])}"
        ns.mount("overlay", merged, "overlay", ns.MS_NODEV | ns.MS_NOSUID, options)
    root_fd = os.open(merged, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in root.get("shown", []):
            _bind(root_fd, path, {"target": path, "source": path, "readOnly": True}, launch)
        for path in launch["hide"]:
            _hide(root_fd, path)
        for path in root.get("kept", []):
            _bind(root_fd, path, {"target": path, "source": path, "readOnly": True}, launch)
        _system(root_fd, launch)
        for each in launch["mounts"]:
            _mount(root_fd, each, launch)
        for path in root.get("keptLast", []):
            _bind(root_fd, path, {"target": path, "source": path, "readOnly": True}, launch)
        if launch.get("cwd"):
            os.close(find(root_fd, launch["cwd"], make="dir", owner=(launch["user"], launch["group"])))
        os.fchdir(root_fd)
    finally:
        os.close(root_fd)
    ns.pivot_here()
    if launch.get("readOnlyRoot"):
        ns.mount("none", "/", flags=ns.MS_REMOUNT | ns.MS_BIND | ns.MS_RDONLY | ns.MS_NODEV | ns.MS_NOSUID)


def _bind_all(root: dict[str, Any]) -> None:
    """Without rights there is no overlay of `/`: a directory of its own, in which those of the host are shown read-only."""
    ns.mount(root["upper"], root["merged"], flags=ns.MS_BIND)
    root_fd = os.open(root["merged"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with os.scandir(root["lower"]) as entries:
        for entry in entries:
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), entry.name, dir_fd=root_fd)
            elif entry.is_dir() and entry.name not in _OWN:
                os.mkdir(entry.name, 0o755, dir_fd=root_fd)
                ns.mount(entry.path, f"{root['merged']}/{entry.name}", flags=ns.MS_BIND | ns.MS_REC)
                _remount(root_fd, entry.name, ns.MS_NOSUID | ns.MS_RDONLY)
    os.close(root_fd)


def _escape(path: str) -> str:
    return path.replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")


def _system(root_fd: int, launch: dict[str, Any]) -> None:
    """/proc and /sys of its own namespaces, and a /dev with little in it."""
    if "pid" in launch["namespaces"]:
        # Its own processes only: the first one in there is the shim, whose mounts and arguments are the host's.
        try:
            _over(root_fd, "/proc", "proc", _QUIET, "hidepid=2")
        except OSError:
            _over(root_fd, "/proc", "proc", _QUIET, "")
    else:
        _bind(root_fd, "/proc", {"target": "/proc", "source": "/proc"}, launch)
    with ignoring(OSError):  # without a user namespace's network it is not ours to mount: then there is none
        _over(root_fd, "/sys", "sysfs", _QUIET | ns.MS_RDONLY, "")
    _over(root_fd, "/dev", "tmpfs", ns.MS_NOSUID | ns.MS_NOEXEC, "mode=0755,size=64k")
    dev_fd = find(root_fd, "/dev")
    try:
        for name, number in _DEVICES.items():
            try:
                os.mknod(name, stat.S_IFCHR | 0o666, number, dir_fd=dev_fd)
            except PermissionError:  # not this agent's to make; the host's own can still be shown
                _bind(dev_fd, name, {"target": name, "source": f"/dev/{name}", "isPlain": True}, launch)
        for name, text in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            os.symlink(text, name, dir_fd=dev_fd)
        os.mkdir("shm", dir_fd=dev_fd)
        os.mkdir("pts", dir_fd=dev_fd)
        _over(dev_fd, "shm", "tmpfs", _QUIET, f"mode=1777,size={SHM_BYTES}")
        with ignoring(OSError):
            _over(dev_fd, "pts", "devpts", ns.MS_NOSUID | ns.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
            os.symlink("pts/ptmx", "ptmx", dir_fd=dev_fd)
    finally:
        os.close(dev_fd)


def _over(root_fd: int, path: str, kind: str, flags: int, data: str) -> None:
    fd = find(root_fd, path, make="dir")
    try:
        ns.mount(kind, f"/proc/self/fd/{fd}", kind, flags, data)
    finally:
        os.close(fd)


def _hide(root_fd: int, path: str) -> None:
    """Nothing is to be seen there. Root's, so that the task can't write to it; mounts may still be made below it."""
    try:
        fd = find(root_fd, path)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            ns.mount("tmpfs", f"/proc/self/fd/{fd}", "tmpfs", _QUIET, "mode=0711,size=64k")
        else:
            ns.mount("/dev/null", f"/proc/self/fd/{fd}", flags=ns.MS_BIND)
    finally:
        os.close(fd)


def _remount(root_fd: int, path: str, flags: int) -> None:
    """`path` is walked again: only so does one get hold of what was just mounted there."""
    fd = find(root_fd, path)
    try:
        flags |= os.fstatvfs(fd).f_flag & (_QUIET | ns.MS_RDONLY)  # what was forbidden stays so; the numbers are the same
        ns.mount("none", f"/proc/self/fd/{fd}", flags=ns.MS_REMOUNT | ns.MS_BIND | flags)
    finally:
        os.close(fd)


def _mount(root_fd: int, mount: dict[str, Any], launch: dict[str, Any]) -> None:
    target = mount["target"]
    if mount["kind"] == "bind":
        _bind(root_fd, target, mount, launch)
        return
    size = f",size={mount['sizeBytes']}" if mount.get("sizeBytes") else ""
    flags = ns.MS_NOSUID | ns.MS_NODEV | (ns.MS_RDONLY if mount.get("readOnly") else 0)
    _over(root_fd, target, "tmpfs", flags, f"mode=0700,uid={launch['user']},gid={launch['group']}{size}")


def _bind(root_fd: int, target: str, mount: dict[str, Any], launch: dict[str, Any]) -> None:
    source_fd = open_source(mount)
    try:
        kind = "dir" if stat.S_ISDIR(os.fstat(source_fd).st_mode) else "file"
        target_fd = find(root_fd, target, make=kind)
        try:
            ns.mount(f"/proc/self/fd/{source_fd}", f"/proc/self/fd/{target_fd}", flags=ns.MS_BIND)
        except OSError as e:
            raise OSError(e.errno, f"mount {mount['source']} at {target}: {os.strerror(e.errno or 0)}") from e
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)
    if mount.get("isPlain"):
        return
    _remount(root_fd, target, ns.MS_NOSUID | ns.MS_NODEV | (ns.MS_RDONLY if mount.get("readOnly") else 0))


def open_source(mount: dict[str, Any]) -> int:
    """The source, which does not lead out of `sourceRoot` where one is given, and with `noLinks` leads nowhere but there."""
    source, top = mount["source"], mount.get("sourceRoot", "")
    try:
        if not top and not mount.get("noLinks"):
            return os.open(source, os.O_PATH | os.O_CLOEXEC)
        top_fd = os.open(top or "/", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return find(top_fd, os.path.relpath(source, top), is_confined=True) if top else _open_plain(top_fd, source)
        finally:
            os.close(top_fd)
    except OSError as e:
        text = e.strerror if isinstance(e, Outside) else os.strerror(e.errno or 0)
        raise OSError(e.errno, f"mount {source} at {mount['target']}: {text}") from e


def _open_plain(root_fd: int, path: str) -> int:
    """Every part is what it is called."""
    fd = os.dup(root_fd)
    for part in (part for part in path.split("/") if part not in ("", ".")):
        try:
            if part == "..":
                raise Outside(errno.EXDEV, "it contains `..`")
            below = os.open(part, _PATH_FLAGS, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            os.close(fd)
            raise Outside(errno.ELOOP, f"{part} is a link")
    return fd
