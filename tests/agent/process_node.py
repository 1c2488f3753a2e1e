"""A node with the process runtime for tests: real shims, real cgroups, everything taken away afterwards, and proof of it.

Each node has a directory, a range of users and cgroups of its own, so that tests may run beside each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent.cgroups import PodCgroups, open_cgroups
from muster.agent.config import AgentConfig
from muster.agent.contracts import ContainerSpec, Exited, Image, Limits, LogQuery, RunRef, RunState, Sandbox
from muster.agent.layout import Layout
from muster.agent.log_files import read_log
from muster.agent.runtimes.process import ProcessRuntime
from muster.agent.shim.client import Shims
from tests.waiting import WAIT_S

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, other users, cgroups")
MEMORY = 256 * 2**20


class ProcessNode:
    def __init__(self, data: Path, config: AgentConfig | None = None) -> None:
        self.layout = Layout(data, data / "run")
        self.config = config or AgentConfig()
        self.cgroups: PodCgroups = open_cgroups(self.layout.id, journal=data / "kernel-changes.jsonl")
        self.first_user = 2_000_100_000 + int(self.layout.id, 16) % 50_000 * 100
        self.sandboxes: dict[str, Sandbox] = {}
        self.refs: dict[RunRef, Sandbox] = {}
        self.shims = Shims(self.layout)
        self.runtime = ProcessRuntime(self.layout, self.shims, self.cgroups, self.config)

    async def open(self) -> None:
        await self.shims.open()
        await self.runtime.open()

    async def again(self) -> None:
        """Another agent on the same directory; the first is closed in order."""
        await self.shims.close()
        self.shims = Shims(self.layout)
        self.runtime = ProcessRuntime(self.layout, self.shims, self.cgroups, self.config)
        await self.open()

    def sandbox(self, uid: str = "pod-1", **more: Any) -> Sandbox:
        if uid not in self.sandboxes:
            user = self.first_user + len(self.sandboxes)
            self.sandboxes[uid] = Sandbox(uid=uid, namespace="alice", name=uid, hostname=uid, user=user, **more)
        return self.sandboxes[uid]

    async def start(self, *argv: str, uid: str = "pod-1", name: str = "main", attempt: int = 0, **more: Any) -> RunRef:
        sandbox = self.sandbox(uid)
        limits = more.pop("limits", Limits(memory_limit_bytes=MEMORY, pids_max=200))
        self.cgroups.create_pod(uid, Limits())
        self.cgroups.create_container(uid, name, limits)
        ref = RunRef(uid, name, attempt)
        self.refs[ref] = sandbox
        await self.runtime.start(
            sandbox, ContainerSpec(name=name, attempt=attempt, command=argv, limits=limits, **more), Image()
        )
        return ref

    def run_dir(self, ref: RunRef) -> Path:
        return self.layout.run_dir(ref.uid, ref.container, ref.attempt)

    async def reaches(self, ref: RunRef, *states: str) -> RunState:
        async with asyncio.timeout(WAIT_S):
            while True:
                found = self.runtime.observe(ref)
                if found is not None and found.state in states:
                    return found
                await asyncio.sleep(0.01)

    async def ended(self, ref: RunRef) -> Exited:
        found = (await self.reaches(ref, "exited")).exited
        assert found is not None
        return found

    async def log(self, ref: RunRef, **query: Any) -> bytes:
        asked = LogQuery(namespace="alice", pod=ref.uid, container=ref.container, **query)
        return b"".join([chunk async for chunk in read_log(self.run_dir(ref), asked, lambda: self._is_over(ref))])

    def _is_over(self, ref: RunRef) -> bool:
        found = self.runtime.observe(ref)
        return found is None or found.state == "exited"

    async def output(self, *argv: str, **more: Any) -> str:
        """Run to the end; what it printed."""
        ref = await self.start(*argv, **more)
        await self.ended(ref)
        return (await self.log(ref)).decode()

    async def prints(self, ref: RunRef, text: bytes) -> None:
        async with asyncio.timeout(WAIT_S):
            while text not in await self.log(ref):
                await asyncio.sleep(0.02)

    def processes(self) -> list[str]:
        """Whatever runs as one of this node's users, or was forked from its zygote."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(OSError, ValueError):
                user = entry.stat().st_uid
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if not command:
                    continue  # ended, and about to be reaped by someone else
                if 0 <= user - self.first_user < 100 or str(self.layout.run) in command:
                    found.append(f"{entry.name} {user} {command}")
        return found

    async def close(self) -> None:
        """Everything is ended and removed; what is left in spite of that fails the test."""
        try:
            for ref, sandbox in self.refs.items():
                await self.runtime.remove(sandbox, ref)
            for uid in self.sandboxes:
                self.cgroups.remove(uid)
        finally:
            await self.shims.close()
            self.cgroups.teardown()
        async with asyncio.timeout(WAIT_S):
            while left := self.processes():
                if not any(line.split()[2:] for line in left):
                    break
                await asyncio.sleep(0.05)
        assert str(self.layout.data) not in Path("/proc/self/mountinfo").read_text()
        shutil.rmtree(self.layout.data)


def a_directory() -> Path:
    path = Path("/tmp") / f"muster-test-{uuid.uuid4().hex[:10]}"
    path.mkdir(mode=0o711)
    return path


@contextlib.asynccontextmanager
async def a_process_node(config: AgentConfig | None = None) -> AsyncIterator[ProcessNode]:
    node = ProcessNode(a_directory(), config)
    await node.open()
    try:
        yield node
    finally:
        await node.close()


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
