"""Carriers for the contract suite. Adding one is one class here and one name in `CARRIERS`.

A carrier takes pods that are bound to node `self.node` in `self.store` (a real embedded store), and is judged by what it
reports there and by the logs that it gives. It has:

    async start()     carry pods; what an earlier start left is taken back
    async stop()      end in order; what runs in pods goes on
    async kill()      end as a crash does: nothing is closed or said
    async close()     nothing of it is left on the machine; called once, at the end
    logs(query)       as in `PodCarrier`; likewise open_exec(target, want) and dial(target, port)
    async leftovers() what is on the machine and should not be, as text; asked after the last pod is gone
    volumes(name)     where the volumes of this name of its pods are on this machine
    image             what containers name as their image: with `sh` and the usual small commands
    flags             what it can do; a test that needs a flag is skipped by name where it is missing

A carrier that needs something which this machine does not have raises `Unavailable` in `start`.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import shutil
import signal
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

from muster.agent.cgroups import open_cgroups
from muster.agent.config import AgentConfig, Runc
from muster.agent.contracts import AgentError, ContainerRuntime, ExecSession, ExecWant, LogQuery, StreamTarget
from muster.agent.layout import Layout
from muster.agent.pods import LocalPods
from muster.agent.pods_watching import Pace
from muster.agent.runtimes.process import ProcessRuntime
from muster.agent.shim.client import Shims
from muster.objects.time import wall_clock
from muster.store.contract import Store
from tests.agent.carrier.images import busybox_archive


class Unavailable(Exception):
    """Why this carrier can't run here."""


class CarrierUnderTest(abc.ABC):
    image: str = "none"
    flags: ClassVar[frozenset[str]] = frozenset()
    """Of: `limits` (memory and pids are enforced), `disk` (ephemeral-storage is), `reports` (MUSTER_REPORT), `records`
    (an agent that comes later knows what ran, from its own disk), `hostpath`, `python` (the machine's programs are seen),
    `events` (of probes and mounts), `refresh` (a changed config map reaches what runs), `labels` (a file with all labels
    has the pod's own only)."""

    def __init__(self, store: Store, tmp_path: Path) -> None:
        self.store = store
        self.tmp_path = tmp_path
        self.node = f"node-{uuid.uuid4().hex[:8]}"
        self.was_killed = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._task is not None and not self._task.done()

    @abc.abstractmethod
    async def start(self) -> None: ...

    @abc.abstractmethod
    async def stop(self) -> None: ...

    @abc.abstractmethod
    async def kill(self) -> None: ...

    @abc.abstractmethod
    async def close(self) -> None: ...

    @abc.abstractmethod
    def logs(self, query: LogQuery) -> AsyncIterator[bytes]: ...

    @abc.abstractmethod
    async def open_exec(self, target: StreamTarget, want: ExecWant) -> ExecSession: ...

    @abc.abstractmethod
    async def dial(self, target: StreamTarget, port: int) -> socket.socket: ...

    @abc.abstractmethod
    async def leftovers(self) -> list[str]: ...

    @abc.abstractmethod
    def volumes(self, name: str) -> list[Path]: ...


class LocalCarrier(CarrierUnderTest):
    """The agent's own carrier over a runtime of this machine, in the host's network."""

    flags: ClassVar[frozenset[str]] = frozenset(
        {"limits", "disk", "reports", "records", "hostpath", "events", "refresh", "labels"}
    )

    def __init__(self, store: Store, tmp_path: Path) -> None:
        super().__init__(store, tmp_path)
        if os.geteuid() != 0:
            raise Unavailable("needs root")
        self.layout = Layout(tmp_path / "agent", tmp_path / "run")
        self.allowed = tmp_path / "allowed"
        for directory in (self.layout.data, self.layout.run, self.allowed):
            directory.mkdir()
        self.config = self.make_config()
        self.pods: LocalPods | None = None
        self._shims: Shims | None = None
        self._runtime: ContainerRuntime | None = None

    def make_config(self, **more: Any) -> AgentConfig:
        return AgentConfig(allowed_host_paths=[str(self.allowed)], **more)

    @abc.abstractmethod
    def make_runtime(self, shims: Shims, cgroups: Any) -> ContainerRuntime: ...

    async def start(self) -> None:
        self.cgroups = open_cgroups(self.layout.id, journal=self.layout.data / "kernel-changes.jsonl")
        self._shims = Shims(self.layout)
        await self._shims.open()
        self._runtime = self.make_runtime(self._shims, self.cgroups)
        try:
            await self._runtime.open()
        except AgentError as e:
            raise Unavailable(str(e)) from e
        self.pods = LocalPods(
            self.store,
            self.layout,
            self.config,
            self.node,
            runtime=self._runtime,
            cgroups=self.cgroups,
            networks=None,
            clock=wall_clock,
            host_ip="127.0.0.1",
            pace=Pace(tick_s=0.1, disk_s=0.3, refresh_s=0.3),
            dial=self._shims.sessions.dial,
        )
        self._task = asyncio.create_task(self.pods.run())

    async def stop(self) -> None:
        await self._end_task()
        if self._runtime is not None and self._shims is not None:
            await self._runtime.close()
            await self._shims.close()
        self._runtime = self._shims = None

    async def kill(self) -> None:
        """The loop is shared with the test, so a crash is: the zygote dies, and every task ends where it stands."""
        self.was_killed = True
        if self._shims is not None and self._shims.zygote_pid is not None:
            os.kill(self._shims.zygote_pid, signal.SIGKILL)
        await self.stop()

    async def close(self) -> None:
        await self.stop()
        self.cgroups.teardown()

    def logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        assert self.pods is not None
        return self.pods.logs(query)

    async def open_exec(self, target: StreamTarget, want: ExecWant) -> ExecSession:
        assert self.pods is not None
        return await self.pods.open_exec(target, want)

    async def dial(self, target: StreamTarget, port: int) -> socket.socket:
        assert self.pods is not None
        return await self.pods.dial(target, port)

    def volumes(self, name: str) -> list[Path]:
        return [path for pod in self.layout.pods.iterdir() if (path := self.layout.volume(pod.name, name)).is_dir()]

    async def leftovers(self) -> list[str]:
        found = [f"directory {path}" for path in self.layout.pods.iterdir()] if self.layout.pods.is_dir() else []
        found += [f"cgroup {uid}" for uid in self.cgroups.list()]
        mounts = Path("/proc/self/mounts").read_text()
        found += [f"mount {line}" for line in mounts.splitlines() if str(self.layout.pods) in line]
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes()
                    if str(self.layout.pods).encode() in command:
                        found.append(f"process {entry.name}: {command!r}")
        return found

    async def _end_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class ProcessCarrier(LocalCarrier):
    flags = LocalCarrier.flags | {"python"}

    def make_runtime(self, shims: Shims, cgroups: Any) -> ContainerRuntime:
        return ProcessRuntime(self.layout, shims, cgroups, self.config)


class RuncCarrier(LocalCarrier):
    def __init__(self, store: Store, tmp_path: Path) -> None:
        if not any(shutil.which(binary) for binary in ("runc", "crun")):
            raise Unavailable("neither runc nor crun is installed")
        archive = busybox_archive()
        if archive is None:
            raise Unavailable("no static busybox to make an image of")
        super().__init__(store, tmp_path)
        self.image = f"oci-archive:{archive}"
        self.config = self.make_config(runc=Runc(image_directories=[str(archive.parent)]), runtime="runc")

    def make_runtime(self, shims: Shims, cgroups: Any) -> ContainerRuntime:
        from muster.agent.runtimes.runc import RuncRuntime

        made = RuncRuntime(self.layout, shims, cgroups, self.config)
        made.store._is_durable = False  # a sync of the whole disk for each test is not what is tested
        return made


CARRIERS: dict[str, type[CarrierUnderTest]] = {"process": ProcessCarrier, "runc": RuncCarrier}
