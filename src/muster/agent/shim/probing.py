"""What this machine, and the rights of this agent, allow: tried out, not guessed. Standard library only.

Each trial runs in a child of its own, so that nothing of it is left; the mounts are in a namespace that ends with the child.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable

from muster.agent.shim import namespaces as ns


def probe(scratch: str) -> dict[str, str]:
    """By feature (`user`, `mount`, `pid`, `ipc`, `uts`) why it is not to be had; empty when everything is.

    Without rights, what a user namespace makes possible counts as possible; `user` is missing all the same."""
    if os.geteuid() != 0:
        why = _try(_in_user_namespace)
        absent = {} if not why else dict.fromkeys(("mount", "pid", "ipc", "uts"), why)
        return {"user": _try(_user), **absent}
    trials: dict[str, Callable[[], None]] = {
        "user": _user,
        "mount": lambda: _overlay(scratch),
        "pid": _pid,
        "ipc": lambda: ns.unshare(ns.CLONE_NEWIPC),
        "uts": lambda: ns.unshare(ns.CLONE_NEWUTS),
    }
    found = {name: _try(trial) for name, trial in trials.items()}
    return {name: why for name, why in found.items() if why}


def _try(trial: Callable[[], None]) -> str:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            trial()
        except BaseException as e:  # noqa: BLE001 - a forked child must never run on in its parent's code
            text = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
            os.write(writer, (text or type(e).__name__).encode()[:1000])
        finally:
            os._exit(0)
    os.close(writer)
    try:
        return os.read(reader, 1000).decode(errors="replace")
    finally:
        os.close(reader)
        os.waitpid(pid, 0)


def _user() -> None:
    if os.geteuid() != 0:
        raise OSError(1, f"the agent is not root (it is user {os.geteuid()})")
    ns.become(65534, 65534, [], [])


def _pid() -> None:
    ns.unshare(ns.CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _in_user_namespace() -> None:
    """The whole of it: the last step is the one that is most often forbidden."""
    ns.unshare_user(ns.CLONE_NEWPID | ns.CLONE_NEWIPC | ns.CLONE_NEWUTS)
    problem = _try(_bind_and_proc)
    if problem:
        raise OSError(1, f"the agent is not root, and in a user namespace: {problem}")


def _bind_and_proc() -> None:
    ns.unshare(ns.CLONE_NEWNS)
    ns.mount("none", "/", flags=ns.MS_REC | ns.MS_PRIVATE)
    ns.mount("tmpfs", "/tmp", "tmpfs", 0, "size=64k")  # noqa: S108 - in a namespace that ends with this process
    os.mkdir("/tmp/usr")  # noqa: S108
    ns.mount("/usr", "/tmp/usr", flags=ns.MS_BIND | ns.MS_REC)  # noqa: S108
    ns.mount("proc", "/proc", "proc", 0, "")


def _overlay(scratch: str) -> None:
    top = tempfile.mkdtemp(prefix="probe-", dir=scratch)
    try:
        ns.unshare(ns.CLONE_NEWNS)
        ns.mount("none", "/", flags=ns.MS_REC | ns.MS_PRIVATE)
        for name in ("upper", "work", "merged"):
            os.mkdir(os.path.join(top, name))
        merged = os.path.join(top, "merged")
        ns.mount("overlay", merged, "overlay", 0, f"lowerdir=/,upperdir={top}/upper,workdir={top}/work")
        ns.umount(merged)
    finally:
        shutil.rmtree(top, ignore_errors=True)
