"""A runc runtime with everything real around it, and a look at what is left when it is over."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from muster.agent.cgroups import PodCgroups, open_cgroups
from muster.agent.config import AgentConfig, Runc
from muster.agent.contracts import AgentError, ContainerSpec, Exited, Image, Limits, RunRef, RunState, Sandbox, Security
from muster.agent.layout import Layout
from muster.agent.runtimes.runc import RuncRuntime
from muster.agent.runtimes.runc_probe import RUN
from muster.agent.shim.client import Shims
from tests.agent.images_building import busybox, busybox_layer, oci_files, write_directory

IMAGE = "busybox:1"
FIRST_USER = 2_000_050_000


def why_not() -> str | None:
    """What this machine lacks for containers; in CI that is a failure."""
    lacking = [name for name in ("runc", "mkfs.ext4") if shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") is None]
    if os.geteuid() != 0:
        return "needs root"
    if lacking or busybox() is None:
        return f"not installed: {', '.join(lacking) or 'busybox-static'} (tools/agent-tools installs it)"
    return None


def need_runc() -> None:
    why = why_not()
    if why is not None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the container tests: {why}")
        pytest.skip(why)


class Node:
    """Short for starting a container and seeing how it ends. `stop` and `begin` are a restart of the agent."""

    def __init__(self, directory: Path, config: AgentConfig) -> None:
        name = uuid.uuid4().hex[:8]
        self.layout = Layout(directory / f"data-{name}", directory / f"run-{name}")
        self.config = config
        self.cgroups: PodCgroups = open_cgroups(self.layout.id)
        self.sandboxes: list[Sandbox] = []
        self.refs: list[RunRef] = []
        self.shims: Shims
        self.runtime: RuncRuntime

    async def begin(self) -> None:
        self.layout.pods.mkdir(parents=True, exist_ok=True, mode=0o711)
        self.shims = Shims(self.layout)
        await self.shims.open()
        self.runtime = RuncRuntime(self.layout, self.shims, self.cgroups, self.config)
        self.runtime.store._is_durable = False  # a sync of the whole disk for each test is not what is tested
        await self.runtime.open()

    async def stop(self) -> None:
        await self.runtime.close()
        await self.shims.close()

    def load(self, settings: dict[str, Any] | None = None, name: str = IMAGE, *more: bytes) -> Image:
        source = write_directory(
            oci_files([busybox_layer(), *more], settings, compressed=False), self.layout.data / f"source-{uuid.uuid4().hex}"
        )
        self.runtime.store.load(f"oci:{source}", name)
        image = self.runtime.store.find(_parsed(name))
        assert image is not None
        return image

    def sandbox(self, **more: Any) -> Sandbox:
        uid = str(uuid.uuid4())
        user = FIRST_USER + len(self.sandboxes)
        sandbox = Sandbox(uid=uid, namespace="test", name=f"pod-{uid[:4]}", hostname="box", user=user, **more)
        self.cgroups.create_pod(uid, Limits())
        self.sandboxes.append(sandbox)
        return sandbox

    async def start(
        self, sandbox: Sandbox, image: Image, *command: str, attempt: int = 0, limits: Limits | None = None, **more: Any
    ) -> RunRef:
        limits = limits or Limits(memory_limit_bytes=64 * 2**20, pids_max=64)
        spec = ContainerSpec(name="main", attempt=attempt, command=tuple(command), limits=limits, **more)
        self.cgroups.create_container(sandbox.uid, spec.name, limits)
        ref = RunRef(sandbox.uid, spec.name, attempt)
        self.refs.append(ref)
        await self.runtime.start(sandbox, spec, image)
        return ref

    async def run(self, image: Image, *command: str, sandbox: Sandbox | None = None, **more: Any) -> tuple[Exited, str]:
        """To its end; how it ended, and what it printed."""
        ref = await self.start(sandbox or self.sandbox(), image, *command, **more)
        return await self.end(ref), self.log(ref)

    async def shell(self, image: Image, script: str, **more: Any) -> tuple[Exited, str]:
        return await self.run(image, "/bin/sh", "-c", script, **more)

    async def state(self, ref: RunRef, wanted: str) -> RunState:
        while True:
            found = self.runtime.observe(ref)
            assert found is not None
            if found.state == wanted or found.exited is not None:
                return found
            await asyncio.sleep(0.01)

    async def end(self, ref: RunRef) -> Exited:
        found = await self.state(ref, "exited")
        assert found.exited is not None
        return found.exited

    async def printed(self, ref: RunRef, text: str) -> None:
        """Until the container has printed this."""
        while text not in self.log(ref):
            found = self.runtime.observe(ref)
            assert found is None or found.exited is None, f"ended without printing {text!r}: {found} {self.log(ref)}"
            await asyncio.sleep(0.01)

    def run_dir(self, ref: RunRef) -> Path:
        return self.layout.run_dir(ref.uid, ref.container, ref.attempt)

    def log(self, ref: RunRef) -> str:
        lines = []
        for path in sorted((self.run_dir(ref) / "log").glob("0.log*"), reverse=True):
            lines += [line.split(" ", 3)[3] for line in path.read_text().splitlines()]
        return "\n".join(lines)

    def left(self) -> dict[str, Sequence[str]]:
        """Whatever of this node is still there."""
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.layout.data) in line]
        mounts += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.layout.run) in line]
        groups = [str(p) for p in Path("/sys/fs/cgroup").glob(f"*/muster-{self.layout.id}")]
        state = self.layout.run / "runc" / "state"
        loops = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=False).stdout.splitlines()
        found = {
            "mounts": mounts,
            "cgroups": groups,
            "runc state": os.listdir(state) if state.exists() else [],
            "processes": _processes(str(self.layout.data)),
            "loops": [line for line in loops if str(self.layout.data) in line],
            "bundles": [str(p) for p in self.layout.pods.glob("*/containers/*/*/root")],
        }
        return {key: value for key, value in found.items() if value}

    async def finish(self) -> None:
        for ref in self.refs:
            sandbox = next(s for s in self.sandboxes if s.uid == ref.uid)
            with suppress(AgentError):
                await self.runtime.remove(sandbox, ref)
        await self.stop()
        self.cgroups.teardown()


def _parsed(name: str) -> Any:
    from muster.agent.images_names import parse

    return parse(name)


def _processes(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in line:
                found.append(line)
    return found


@asynccontextmanager
async def a_node(directory: Path, config: Runc | None = None) -> AsyncIterator[Node]:
    """Everything is taken away at the end, and it is an error if something is left."""
    need_runc()
    node = Node(directory, AgentConfig(runtime="runc", runc=config or Runc()))
    await node.begin()
    try:
        yield node
    finally:
        await node.finish()
        left = node.left()
        for _ in range(200):  # a zygote's child may take a moment to be gone
            if not left:
                break
            await asyncio.sleep(0.05)
            left = node.left()
        shutil.rmtree(node.layout.data, ignore_errors=True)
        shutil.rmtree(node.layout.run, ignore_errors=True)
        shutil.rmtree(RUN / node.layout.id, ignore_errors=True)
    assert left == {}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


ROOT_ONLY = Security(user=0)
