"""Containers from images, by runc (or crun). Implements `ContainerRuntime`.

On the agent's event loop; unpacking and large removals go to threads. A run: mark the image as used, write the bundle, hand it
to a shim, which has `runc_enter` put the root together in a mount namespace of its own and become `runc create`, notes the
start, and lets the task go with `runc start`. Nothing is ever mounted where the host sees it.

Invariants: a bundle lies in the run's directory and holds nothing that another run needs; the container's id is made from the
agent's, the pod's, the container's name and the attempt, so a new agent finds it; an image's files are never written to.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import resource
import shutil
import signal as signals
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from muster.agent import trees
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
)
from muster.agent.images import ImageStore
from muster.agent.images_pulling import Images
from muster.agent.images_unpack import read_inside
from muster.agent.layout import Layout
from muster.agent.runtimes import runc_bundle, runc_enter, runc_exec, runc_probe, runc_users
from muster.agent.runtimes.runc_bundle import Device, Setting
from muster.agent.shim.client import Shims
from muster.agent.shim.files import open_process
from muster.agent.shim.launching import TERMINATION, Launch

DISK_BYTES_MIN: Final = 4 * 2**20
START_LOG: Final = "start.log"
_MESSAGE: Final = re.compile(r'msg="((?:[^"\\]|\\.)*)"')


class RuncRuntime:
    name = "runc"

    def __init__(self, layout: Layout, shims: Shims, cgroups: Cgroups, config: AgentConfig) -> None:
        self._layout = layout
        self._shims = shims
        self._cgroups = cgroups
        self._config = config.runc
        self._state = layout.run / "runc" / "state"
        self._found: runc_probe.Found | None = None
        self._point = ""
        self.store = ImageStore(layout.images, layout.pods)
        self._images = Images(self.store, config.runc)

    # -- what there is -------------------------------------------------------------------------------------------------------

    def missing(self) -> Sequence[Missing]:
        found = list(self._images.missing())
        if self._found is None:
            return [*found, Missing("runc", "not opened yet", "no container can be started")]
        if not self._found.has_user_namespace:
            tried = "; ".join(self._found.failures) or "the agent's configuration says runc.userNamespace: never"
            found.append(Missing("user namespaces", tried, "root in a container is root of the host, with few capabilities"))
        if not self._found.has_seccomp:
            found.append(
                Missing("seccomp", f"no list of calls for {os.uname().machine}", "containers may make any system call")
            )
        if shutil.which("mkfs.ext4") is None:
            found.append(
                Missing("disk limits", "mkfs.ext4 is not installed", "a container's own files are measured, not bounded")
            )
        return found

    async def open(self) -> None:
        self._point = await asyncio.to_thread(runc_probe.mount_point, self._layout.run, self._layout.id)
        binaries = [self._config.binary] if self._config.binary else ["runc", "crun"]
        self._found = await runc_probe.probe(binaries, self._config.user_namespace, self._enter(), self._point, self._state)

    async def close(self) -> None:
        """Everything that runs goes on running; the place where roots are put together goes if nothing does."""
        if self._point and not _has_entries(self._state):
            runc_probe.remove_mount_point(self._point)

    async def image(self, reference: str, policy: str) -> Image:
        return await self._images.get(reference, policy)

    # -- starting ------------------------------------------------------------------------------------------------------------

    async def start(self, sandbox: Sandbox, spec: ContainerSpec, image: Image) -> None:
        if not image.root:
            raise AgentError("InvalidImageName", f"container {spec.name!r}: it has no image; the runc runtime needs one")
        ref = RunRef(sandbox.uid, spec.name, spec.attempt)
        if self.observe(ref) is not None:
            return
        run_dir = self._run_dir(ref)
        launch = await asyncio.to_thread(self._prepare, sandbox, spec, image, run_dir)
        if spec.limits.disk_limit_bytes is not None:
            await self._make_disk(run_dir / "root" / "disk", spec.limits.disk_limit_bytes)
        self._shims.write_launch(run_dir, launch)
        await self._shims.launch(run_dir)

    def _prepare(self, sandbox: Sandbox, spec: ContainerSpec, image: Image, run_dir: Path) -> Launch:
        """The bundle on disk. In a thread."""
        user = runc_users.resolve(
            image.user,
            spec.security,
            read_inside(Path(image.root), "/etc/passwd", runc_users.FILE_BYTES_MAX),
            read_inside(Path(image.root), "/etc/group", runc_users.FILE_BYTES_MAX),
        )
        found = self._ready()
        ids = runc_users.mappings(sandbox, (user.uid, user.gid, *user.groups)) if found.has_user_namespace else ()
        setting = Setting(
            root=f"{self._point}/merged",
            sys=f"{self._point}/sys",
            cgroups_path=self._cgroups.oci_path(sandbox.uid, spec.name),
            user=user,
            ids=ids,
            devices=tuple(_device(path) for path in spec.limits.devices),
            machine=os.uname().machine,
            nofile_max=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            has_seccomp=found.has_seccomp,
        )
        mounts, guarded = self._mounts(sandbox, spec, run_dir)
        config = runc_bundle.config(sandbox, msgspec.structs.replace(spec, mounts=mounts), image, setting)
        run_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        bundle = run_dir / "root"
        with suppress(OSError):
            trees.remove(bundle)  # Of a start that was interrupted before it was on record.
        bundle.mkdir(mode=0o700)
        self.store.hold(image, bundle)
        (bundle / "config.json").write_bytes(msgspec.json.encode(config))
        owner = runc_users.outside(ids, 0)
        for name in ("upper", "work"):
            (bundle / name).mkdir(mode=0o755)
        os.chown(bundle / "upper", owner, owner)
        message = run_dir / TERMINATION
        message.touch(mode=0o600)
        os.chown(message, runc_users.outside(ids, user.uid), runc_users.outside(ids, user.gid))
        disk = [f"disk={bundle / 'disk'}", f"owner={owner}:{owner}"] if spec.limits.disk_limit_bytes is not None else []
        words = [
            f"point={self._point}",
            f"lower={image.root}",
            f"layer={bundle}",
            *runc_probe.enter_ids(config),
            *disk,
            *guarded,
        ]
        return self._launch(RunRef(sandbox.uid, spec.name, spec.attempt), spec, run_dir, words)

    def _mounts(self, sandbox: Sandbox, spec: ContainerSpec, run_dir: Path) -> tuple[tuple[Mount, ...], list[str]]:
        """The container's mounts, and the words for those whose source is in a volume or elsewhere on the host. Containers
        write there, and could put a link in the way: `runc_enter` opens these without leaving the volume, and without
        following any link of the host."""
        mounts: list[Mount] = []
        words: list[str] = []
        volumes = self._layout.pod(sandbox.uid) / "volumes"
        for mount in spec.mounts:
            source = Path(mount.source)
            if mount.kind != "bind" or not source.is_absolute():
                mounts.append(mount)
                continue
            if not os.path.lexists(source) or ".." in source.parts:
                why = "climbs with `..`" if ".." in source.parts else "does not exist"
                raise AgentError("CreateContainerConfigError", f"mountPath {mount.target!r}: {source} {why}")
            root = ""
            if volumes in source.parents:
                root = str(volumes / source.relative_to(volumes).parts[0])
            elif self._layout.data not in source.parents:
                root = "/"
            if root:
                words.append(
                    f"bind={len(words)}\n{len(root)}\n{root}{source.relative_to(root) if source != Path(root) else ''}"
                )
                source = Path(self._point, str(len(words) - 1))
            mounts.append(msgspec.structs.replace(mount, source=str(source)))
        if spec.termination_message_path:
            mounts.append(Mount(target=spec.termination_message_path, source=str(run_dir / TERMINATION)))
        return tuple(mounts), words

    def _launch(self, ref: RunRef, spec: ContainerSpec, run_dir: Path, words: list[str]) -> Launch:
        bundle, log = run_dir / "root", run_dir / START_LOG
        create = ["--log", str(log), "create", "--bundle", str(bundle), "--pid-file", str(bundle / "pid")]
        return {
            "argv": self._runc(*create, self._id(ref)),
            "enter": [f"log={log}", *words],
            "startArgv": self._runc("--log", str(log), "start", self._id(ref)),
            "stopArgv": self._runc("--log", str(log), "delete", "-f", self._id(ref)),
            "stateDir": str(self._state / self._id(ref)),
            "pidFile": str(bundle / "pid"),
            "env": [],
            "cwd": "/",
            "log": {"bytesMax": spec.log.bytes_max, "filesMax": spec.log.files_max},
            "oomFile": self._cgroups.oom_file(ref.uid, ref.container),
        }

    async def _make_disk(self, path: Path, bytes_max: int) -> None:
        """A file system in a file that takes no room until it is written to, and never more than the limit."""
        mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if mkfs is None:
            raise AgentError("CreateContainerError", "limits ephemeral-storage: mkfs.ext4 is not installed (Debian: e2fsprogs)")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, max(bytes_max, DISK_BYTES_MIN))
        os.close(fd)
        options = ["-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1,root_owner=0:0"]
        null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(mkfs, *options, str(path), stdin=null, stdout=null, stderr=pipe)
        _, errors = await process.communicate()
        if process.returncode != 0:
            raise AgentError(
                "CreateContainerError", f"limits ephemeral-storage: {errors.decode(errors='replace').strip()[-300:]}"
            )

    # -- running -------------------------------------------------------------------------------------------------------------

    def observe(self, ref: RunRef) -> RunState | None:
        state = self._shims.observe(self._run_dir(ref), lambda: self._end(ref))
        if state is not None and state.exited is not None and state.exited.reason == "StartError":
            exited = msgspec.structs.replace(state.exited, message=plain_message(state.exited.message))
            return msgspec.structs.replace(state, exited=exited)
        return state

    async def signal(self, ref: RunRef, signal: int) -> None:
        if signal == signals.SIGKILL:
            await asyncio.to_thread(self._cgroups.kill, ref.uid, ref.container)
        state = self._shims.observe(self._run_dir(ref), lambda: self._end(ref))
        if state is None or state.started is None or state.exited is not None:
            return
        fd = open_process(state.started.pid, state.started.start_ticks)
        if fd is not None:
            try:
                with suppress(ProcessLookupError):
                    signals.pidfd_send_signal(fd, signal)
            finally:
                os.close(fd)

    async def exec(self, ref: RunRef, argv: Sequence[str], timeout_s: float) -> ExecResult:
        self._check_running(ref, argv)
        pid_file = self._run_dir(ref) / "root" / f"exec-{os.urandom(6).hex()}.pid"
        words = self._runc("exec", "--pid-file", str(pid_file), self._id(ref), *argv)
        try:
            return await runc_exec.run(words, pid_file, timeout_s)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(pid_file)

    async def open_exec(self, ref: RunRef, want: ExecWant) -> ExecSession:
        self._check_running(ref, want.argv)
        bundle = self._run_dir(ref) / "root"
        has_term, user, group = await asyncio.to_thread(runc_exec.beside, bundle / "config.json")
        env = ["TERM=xterm"] if want.has_tty and not has_term else []
        names = {"runc": self._runc(), "id": self._id(ref), "work": str(bundle)}
        hold = {**names, "env": env, "user": user, "group": group}
        try:
            return await self._shims.sessions.open(hold, want)
        except AgentError as e:
            raise AgentError(e.reason, plain_message(e.message)) from e

    def _check_running(self, ref: RunRef, argv: Sequence[str]) -> None:
        state = self.observe(ref)
        if state is None or state.state != "running" or not argv:
            what = state.state if state is not None else "not there"
            raise AgentError("ExecFailed", f"container {ref.container!r} is {what}: no command can be run in it")

    async def remove(self, sandbox: Sandbox, ref: RunRef) -> None:
        run_dir = self._run_dir(ref)
        bundle = run_dir / "root"
        if not bundle.exists():
            return
        state = self._shims.observe(run_dir, lambda: self._end(ref))
        if state is not None and state.exited is None:
            await asyncio.to_thread(self._cgroups.kill, ref.uid, ref.container)
            state = await self._await_end(ref)
        if (self._state / self._id(ref)).exists():
            await asyncio.to_thread(self._end, ref)
        await asyncio.to_thread(trees.remove, bundle)

    async def _await_end(self, ref: RunRef) -> RunState:
        """The shim writes the end down once everything is dead; it is not torn away from under it."""
        for _ in range(600):
            state = self.observe(ref)
            if state is None or state.exited is not None:
                return state or RunState(state="exited")
            await asyncio.sleep(0.02)
            self._cgroups.kill(ref.uid, ref.container)
        raise AgentError(
            "KillError", f"container {ref.container!r} of pod {ref.uid} has not ended after SIGKILL; it is tried again"
        )

    async def changed(self) -> AsyncIterator[RunRef]:
        async for path in self._shims.changed():
            if (ref := self._ref(path)) is not None:
                yield ref

    async def collect_images(self) -> Sequence[str]:
        """Take away pulled images that nothing uses, down to the configured size."""
        return await self._images.collect()

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _ready(self) -> runc_probe.Found:
        if self._found is None:
            raise AgentError("RuntimeNotReady", "the runc runtime is not open")
        return self._found

    def _runc(self, *words: str) -> list[str]:
        return [self._ready().binary, "--root", str(self._state), *words]

    @staticmethod
    def _enter() -> list[str]:
        return [sys.executable, "-I", "-S", runc_enter.__file__]

    def _run_dir(self, ref: RunRef) -> Path:
        return self._layout.run_dir(ref.uid, ref.container, ref.attempt)

    def _id(self, ref: RunRef) -> str:
        """Short, since it becomes part of paths; unique to the run."""
        text = f"{self._layout.id}/{ref.uid}/{ref.container}/{ref.attempt}"
        return f"muster-{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    def _ref(self, path: Path) -> RunRef | None:
        try:
            uid, containers, container, attempt = path.relative_to(self._layout.pods).parts
        except ValueError:
            return None
        return RunRef(uid, container, int(attempt)) if containers == "containers" and attempt.isdecimal() else None

    def _end(self, ref: RunRef) -> None:
        """Nothing of the container runs, and runc has forgotten it."""
        self._cgroups.kill(ref.uid, ref.container)
        argv = self._runc("delete", "-f", self._id(ref))
        pid = os.posix_spawn(argv[0], argv, dict(os.environ), file_actions=_QUIET)
        os.waitpid(pid, 0)


_QUIET: Final = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]


def _has_entries(directory: Path) -> bool:
    try:
        return bool(os.listdir(directory))
    except FileNotFoundError:
        return False


def _device(path: str) -> Device:
    try:
        found = os.stat(path)
    except OSError as e:
        raise AgentError("CreateContainerConfigError", f"device {path}: {e.strerror}") from e
    if not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
        raise AgentError("CreateContainerConfigError", f"device {path}: not a device node")
    return Device(path=path, mode=found.st_mode, major=os.major(found.st_rdev), minor=os.minor(found.st_rdev))


def plain_message(text: str) -> str:
    """What runc says, without its log's decoration."""
    found = _MESSAGE.findall(text)
    return found[-1].replace('\\"', '"').replace("\\\\", "\\") if found else text
