"""RunP: a container is a process tree of this machine, in namespaces and a cgroup of its own, as a user of its own. No image.

On the agent's event loop; what touches many files goes to a thread. What a run is to be is decided here and in `process_root`,
and written to `launch.json`; a shim makes it so.

Where the agent is not root, or the kernel lacks something, a run gets what is left, and `missing` says what that is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal as signals
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

import muster
from muster.agent.config import AgentConfig
from muster.agent.contracts import (
    AgentError,
    Cgroups,
    ContainerSpec,
    ExecResult,
    ExecSession,
    ExecWant,
    Image,
    Missing,
    Mount,
    RunRef,
    RunState,
    Sandbox,
    Started,
)  # fmt: skip
from muster.agent.layout import Layout
from muster.agent.removing import remove_tree
from muster.agent.runtimes import process_root as roots
from muster.agent.shim import files
from muster.agent.shim.client import Shims
from muster.agent.shim.launching import LAUNCH, TERMINATION, Launch

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAMESPACES: Final = ("mount", "pid", "ipc", "uts")
_SETTLE_S: Final = 10.0
_POLL_S: Final = 0.005
_OPAQUE: Final = "trusted.overlay.opaque"
"""On a directory of a writable layer: nothing of the layer below it shows through."""


class ProcessRuntime:
    name = "process"

    def __init__(self, layout: Layout, shims: Shims, cgroups: Cgroups, config: AgentConfig) -> None:
        self._layout = layout
        self._shims = shims
        self._cgroups = cgroups
        self._config = config
        self._absent: dict[str, str] = {}
        self._hidden: list[str] = []
        self._kept: list[str] = []
        self._shown: list[str] = []
        self._mount_table: TextIO | None = None
        self._mount_poll = select.poll()

    # -- opening ---------------------------------------------------------------------------------------------------------------

    def missing(self) -> Sequence[Missing]:
        so = {
            "user": "tasks run as the agent's own user, and can reach what it can reach",
            "mount": "tasks see the host's files as they are; a pod with volumes can't run",
            "pid": "tasks see the processes of the host",
            "ipc": "tasks share System V IPC and message queues with the host",
            "uts": "tasks see the name of the host",
        }
        return [Missing(feature=f"process runtime: {name}", why=why, so=so[name]) for name, why in self._absent.items()]

    async def open(self) -> None:
        self._find_directories()
        self._absent = await self._shims.probe(self._layout.data)

    def _find_directories(self) -> None:
        layout, config = self._layout, self._config
        secret = [os.path.realpath(path) for path in (str(layout.data), str(layout.run), *config.process.hide)]
        self._hidden = roots.hidden_directories(secret[0], secret[1], secret[2:])
        package = Path(muster.__file__).resolve().parents[1]
        prefixes = [os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, str(package))]
        self._kept = roots.kept_directories(prefixes, self._hidden, secret)

    async def close(self) -> None:
        """Everything that runs goes on running."""
        if self._mount_table is not None:
            self._mount_poll.unregister(self._mount_table)
            self._mount_table.close()
            self._mount_table = None

    async def image(self, reference: str, policy: str) -> Image:
        """Needs none: the programs of the machine are what there is."""
        return Image(reference=reference)

    # -- starting --------------------------------------------------------------------------------------------------------------

    async def start(self, sandbox: Sandbox, spec: ContainerSpec, image: Image) -> None:
        run_dir = self._layout.run_dir(sandbox.uid, spec.name, spec.attempt)
        found = self.observe(RunRef(sandbox.uid, spec.name, spec.attempt))
        if found is not None:
            return
        launch = self.plan(sandbox, spec, run_dir)
        user = sandbox.user if "user" not in self._absent else os.geteuid()
        self._prepare(run_dir, launch, user)  # a dozen short calls: handing them to a thread costs more than they do
        spaces = launch["namespaces"]
        await self._shims.launch(run_dir, has_own_pids="pid" in spaces, has_own_user="user" in spaces)

    def plan(self, sandbox: Sandbox, spec: ContainerSpec, run_dir: Path) -> Launch:
        """What the run is to be. AgentError for what can't be."""
        argv = [*spec.command, *spec.args]
        if not argv:
            raise AgentError(
                "CreateContainerConfigError",
                f"containers[{spec.name}].command: empty: the process runtime has no image to take one from; name a program",
            )
        if bad := [text for text in (*argv, *(f"{k}={v}" for k, v in spec.env), spec.cwd) if "\0" in text]:
            raise AgentError("CreateContainerConfigError", f"containers[{spec.name}]: a zero byte in {bad[0][:80]!r}")
        is_rooted = "mount" not in self._absent
        user = sandbox.user if "user" not in self._absent else os.geteuid()
        group = sandbox.user if "user" not in self._absent else os.getegid()
        keep = roots.check_security(spec.security, sandbox.user)
        cwd = spec.cwd or (roots.WORK_DIR if is_rooted else str(run_dir / "root" / "home"))
        if is_rooted:
            roots.check_target(cwd)
        home = roots.WORK_DIR if is_rooted else str(run_dir / "root" / "home")
        return {
            "argv": argv,
            "env": self._environment(sandbox, spec, home, is_rooted),
            "cwd": cwd,
            "user": user,
            "group": group,
            "groups": [],
            "hostname": sandbox.hostname,
            "netns": sandbox.netns if "user" not in self._absent else "",
            "namespaces": self._namespaces(),
            "root": self._root(run_dir, spec) if is_rooted else {"kind": "host"},
            "mounts": self._mounts(spec, run_dir, is_rooted),
            "hide": self._hidden,
            "cgroupProcs": list(self._cgroups.procs_files(sandbox.uid, spec.name)),
            "rlimits": {"core": [0, 0]},
            "readOnlyRoot": spec.security.read_only_root,
            "noNewPrivileges": True,
            "keepCapabilities": keep,
            "log": {"bytesMax": spec.log.bytes_max, "filesMax": spec.log.files_max},
            "oomFile": self._cgroups.oom_file(sandbox.uid, spec.name),
            "pidFile": "",
            "stopArgv": [],
        }

    def _namespaces(self) -> list[str]:
        """An agent without rights has them by way of a user namespace; where that is refused, none."""
        found = [name for name in _NAMESPACES if name not in self._absent]
        return ["user", *found] if found and "user" in self._absent else found

    def _root(self, run_dir: Path, spec: ContainerSpec) -> dict[str, Any]:
        own = run_dir / "root"
        late = [path for path in self._kept if any(roots.is_below(path, top) for top in roots.TEMPORARY)]
        return {
            "kind": "binds" if "user" in self._absent else "overlay",
            "lower": "/",
            "upper": str(own / "upper"),
            "work": str(own / "work"),
            "merged": str(own),
            "shown": self._shown_mounts(),
            "kept": [path for path in self._kept if path not in late],
            "keptLast": [path for path in late if not any(roots.is_below(path, mount.target) for mount in spec.mounts)],
        }

    def _shown_mounts(self) -> list[str]:
        """Mounts come and go: the kernel says whether any have since it was last asked."""
        if self._mount_table is None:
            self._mount_table = open("/proc/self/mountinfo", errors="surrogateescape")  # noqa: SIM115 - closed by `close`
            self._mount_poll.register(self._mount_table, select.POLLPRI)
            self._mount_poll.poll(0)
        elif not self._mount_poll.poll(0):
            return self._shown
        self._mount_table.seek(0)
        self._shown = roots.shown_mounts(self._mount_table.read(), self._hidden)
        return self._shown

    def _mounts(self, spec: ContainerSpec, run_dir: Path, is_rooted: bool) -> list[dict[str, Any]]:
        given = [roots.bind(mount, self._layout.pods) for mount in spec.mounts]
        if not is_rooted:
            needed = [mount.target for mount in spec.mounts if not self._is_agents(mount)]
            if needed:
                raise AgentError(
                    "CreateContainerConfigError",
                    f"containers[{spec.name}].volumeMounts: {needed}: this agent can't mount ({self._absent['mount']}); "
                    "run the agent as root, or this pod elsewhere",
                )
            return []
        mounts: list[dict[str, Any]] = [
            {"target": path, "source": path, "kind": "bind", "isPlain": True}
            for path in spec.limits.devices
            if roots.is_below(path, "/dev")
        ]
        targets = {mount["target"] for mount in given}
        if (path := spec.termination_message_path) and path not in targets:
            roots.check_target(path)
            given.append({"target": path, "source": str(run_dir / TERMINATION), "kind": "bind", "isPlain": True})
        return mounts + given

    def _is_agents(self, mount: Mount) -> bool:
        """Added by the agent, not asked for by the pod: a task can do without it where nothing can be mounted."""
        parts = Path(mount.source).relative_to(self._layout.pods).parts if self._is_ours(mount.source) else ()
        return len(parts) > 1 and parts[1] in ("etc", "report")

    def _is_ours(self, path: str) -> bool:
        return roots.is_below(path, str(self._layout.pods))

    def _environment(self, sandbox: Sandbox, spec: ContainerSpec, home: str, is_rooted: bool) -> list[list[str]]:
        env = {"PATH": PATH, "HOME": home, "HOSTNAME": sandbox.hostname, **dict(spec.env)}
        if not is_rooted:  # what would have been mounted is named where it is
            for mount in spec.mounts:
                for name, value in env.items():
                    if roots.is_below(value, mount.target):
                        env[name] = mount.source + value[len(mount.target) :]
        return [list(pair) for pair in env.items()]

    def _prepare(self, run_dir: Path, launch: Launch, user: int) -> None:
        """The writable layer, with its own empty /tmp and the place to work in. Few calls: disks are slow at these."""
        own = f"{run_dir}/root"
        is_rooted = launch["root"]["kind"] != "host"
        os.makedirs(own, mode=0o700 if is_rooted else 0o711, exist_ok=True)
        work = f"{own}/upper{roots.WORK_DIR}" if is_rooted else f"{own}/home"
        tmp = f"{own}/upper/tmp"
        for path in (f"{own}/upper", f"{own}/work", tmp, work) if is_rooted else (work,):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o755)
        if is_rooted:
            os.chmod(tmp, 0o1777)  # noqa: S103 - as /tmp is everywhere; the task's alone
            if launch["root"]["kind"] == "overlay":
                os.setxattr(tmp, _OPAQUE, b"y")
        message = f"{run_dir}/{TERMINATION}"
        os.close(os.open(message, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        if os.geteuid() == 0:
            os.chown(work, user, user)
            os.chown(message, user, user)
        self._shims.write_launch(run_dir, launch)

    # -- while it runs ---------------------------------------------------------------------------------------------------------

    def observe(self, ref: RunRef) -> RunState | None:
        run_dir = self._layout.run_dir(ref.uid, ref.container, ref.attempt)
        return self._shims.observe(run_dir, end=lambda: self._cgroups.kill(ref.uid, ref.container))

    async def signal(self, ref: RunRef, signal: int) -> None:
        started = await self._running(ref)
        if started is None:
            return
        if signal == signals.SIGKILL:
            self._kill(ref, started)
            return
        _send(started.pid, started.start_ticks, signal)

    def _kill(self, ref: RunRef, started: Started) -> None:
        """The shim ends what the first process leaves; where there is no shim any more, the cgroup knows them all."""
        _send(started.pid, started.start_ticks, signals.SIGKILL)
        self._cgroups.kill(ref.uid, ref.container)

    async def _running(self, ref: RunRef) -> Started | None:
        """A run that is being started is waited for; None when it has ended or never was."""
        for _ in range(int(_SETTLE_S / _POLL_S)):
            found = self.observe(ref)
            if found is None or found.state != "starting":
                return found.started if found is not None and found.state == "running" else None
            await asyncio.sleep(_POLL_S)
        raise AgentError("ShimError", f"container {ref.container} of pod {ref.uid}: still not started; try again")

    async def exec(self, ref: RunRef, argv: Sequence[str], timeout_s: float) -> ExecResult:
        launch, started = await self._beside(ref)
        return await self._shims.run_once({**launch, "argv": list(argv)}, timeout_s, started)

    async def open_exec(self, ref: RunRef, want: ExecWant) -> ExecSession:
        launch, started = await self._beside(ref)
        env = terminal_environment(launch["env"]) if want.has_tty else launch["env"]
        hold = {"launch": {**launch, "argv": list(want.argv), "env": env}, "join": msgspec.to_builtins(started)}
        return await self._shims.sessions.open(hold, want)

    async def _beside(self, ref: RunRef) -> tuple[Launch, Started]:
        """What a command beside it is like. AgentError `ExecFailed` when it does not run."""
        started = await self._running(ref)
        if started is None:
            raise AgentError("ExecFailed", f"container {ref.container} of pod {ref.uid} is not running")
        with _opened(self._layout.run_dir(ref.uid, ref.container, ref.attempt)) as dir_fd:
            launch = files.read_json(dir_fd, LAUNCH)
        if launch is None:
            raise AgentError("ExecFailed", f"container {ref.container} of pod {ref.uid}: its record is gone")
        return launch, started

    async def remove(self, sandbox: Sandbox, ref: RunRef) -> None:
        run_dir = self._layout.run_dir(ref.uid, ref.container, ref.attempt)
        if not run_dir.exists():
            return
        found = self.observe(ref)
        if found is None or found.state != "exited":
            await self._end(ref)
            self._shims.spend(run_dir, "removed before it was started")
        await remove_tree(run_dir / "root")

    async def _end(self, ref: RunRef) -> None:
        started = await self._running(ref)
        if started is not None:
            self._kill(ref, started)
        for _ in range(int(_SETTLE_S / _POLL_S)):
            found = self.observe(ref)
            if found is None or found.state == "exited":
                return
            await asyncio.sleep(_POLL_S)
        raise AgentError("ShimError", f"container {ref.container} of pod {ref.uid}: its processes do not end; try again")

    async def changed(self) -> AsyncIterator[RunRef]:
        async for run_dir in self._shims.changed():
            with contextlib.suppress(ValueError):
                uid, _, container, attempt = run_dir.relative_to(self._layout.pods).parts
                yield RunRef(uid, container, int(attempt))


def terminal_environment(env: list[list[str]]) -> list[list[str]]:
    """Programs ask TERM what their terminal can do."""
    return env if any(name == "TERM" for name, _ in env) else [*env, ["TERM", "xterm"]]


@contextlib.contextmanager
def _opened(path: Path) -> Any:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _send(pid: int, ticks: int, number: int) -> None:
    fd = files.open_process(pid, ticks)
    if fd is not None:
        try:
            with contextlib.suppress(ProcessLookupError):
                signals.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)
