"""The container's side of a start: from the fork up to the exec. Standard library only.

The child enters its namespaces, builds its file system, enters its cgroups, gives up its rights, and says that it is ready. It
executes only after the shim has said go: nothing of the user's runs before the start is on record.
"""

from __future__ import annotations

import errno
import os
import resource

from muster.agent.shim import namespaces as ns
from muster.agent.shim import rooting
from muster.agent.shim.light import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable
    from typing import Any, NoReturn

    from muster.agent.shim.grouping import Groups

READY, GO = b"ready", b"go"
"""Said by the task, and to it."""


class Streams:
    """Descriptors that the task is given. What is written to `control` reaches the parent; it is gone with the exec."""

    def __init__(self, control: socket, stdin: int, stdout: int, stderr: int) -> None:
        self.control = control
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr


def become_task(launch: dict[str, Any], streams: Streams, groups: Groups) -> NoReturn:
    guarded(streams, lambda: _start(launch, streams, groups))


def _start(launch: dict[str, Any], streams: Streams, groups: Groups) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    if launch.get("netns"):
        fd = os.open(launch["netns"], os.O_RDONLY | os.O_CLOEXEC)
        ns.setns(fd, ns.CLONE_NEWNET, f"network namespace {launch['netns']}")
        os.close(fd)
    if flags := sum(ns.FLAGS[name] for name in launch["namespaces"] if name not in ("pid", "user")):
        ns.unshare(flags)
    if launch.get("hostname") and "uts" in launch["namespaces"]:
        ns.set_hostname(launch["hostname"])
    if launch["root"]["kind"] != "host":
        rooting.build(launch)
    groups.enter()
    put_streams(streams.stdin, streams.stdout, streams.stderr, launch["user"], launch["group"])
    prepare(launch)
    streams.control.send(READY)
    if streams.control.recv(16) != GO:
        os._exit(1)
    execute(launch)


def put_streams(stdin: int, stdout: int, stderr: int, user: int, group: int) -> None:
    """The pipes are the task's own, so that it can open them again as /dev/stdout."""
    for number, fd in enumerate((stdin, stdout, stderr)):
        if number and os.geteuid() == 0:
            os.fchown(fd, user, group)
        os.dup2(fd, number)


def prepare(launch: dict[str, Any]) -> None:
    """Limits, rights and the place to work in: everything between the namespaces and the exec."""
    os.umask(0o022)
    for name, (soft, hard) in launch.get("rlimits", {}).items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (soft, hard))
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    ns.new_session_keyring()
    if launch.get("noNewPrivileges", True):
        ns.forbid_new_privileges()
    if os.geteuid() == 0 or launch["user"] != os.geteuid():
        ns.become(launch["user"], launch["group"], list(launch["groups"]), list(launch.get("keepCapabilities", [])))
    ns.die_with_parent()  # only now: a change of user takes it away
    try:
        os.chdir(launch["cwd"] or "/")
    except OSError as e:
        raise OSError(e.errno, f"working directory {launch['cwd']}: {os.strerror(e.errno or 0)}") from e


def execute(launch: dict[str, Any]) -> None:
    """Raises OSError when there is no such program; otherwise never returns."""
    argv, env = launch["argv"], dict(launch["env"])
    # Not os.execvpe: that imports a module first, which this user may not be able to read.
    places = [""] if "/" in argv[0] else env.get("PATH", os.defpath).split(":")
    problem = errno.ENOENT
    for place in places:
        try:
            os.execve(os.path.join(place, argv[0]), argv, env)  # noqa: S606 - what is executed is the user's own command
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as e:
            if problem == errno.ENOENT and e.errno:
                problem = e.errno
    raise OSError(problem, f"execute {argv[0]!r}: {os.strerror(problem)}")


def guarded(streams: Streams, do: Callable[[], None]) -> NoReturn:
    """Whatever goes wrong is told to the parent, as `errno text`, and ends this process."""
    try:
        do()
    except BaseException as e:  # noqa: BLE001 - a forked child must never run on in its parent's code
        number = e.errno if isinstance(e, OSError) and e.errno else 0
        text = e.strerror if isinstance(e, OSError) and e.strerror else f"{type(e).__name__}: {e}"
        try:
            streams.control.send(f"{number} {text}".encode()[:4000])
        finally:
            os._exit(1)
    os._exit(1)
