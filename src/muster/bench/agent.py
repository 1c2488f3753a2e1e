"""How quickly a node starts and reaps short tasks: runtimes alone, with the pods' network, and whole pods through the store.

Beside each stands the bare thing in the same run: fork and exec of the same program for `process`, `runc run` of a plain
bundle with the same root for `runc`. A task is `true`: what is measured is everything around it, from the request until its end
is known.

Each line is measured in a process of its own, in network and mount namespaces of its own, so that nothing of the machine's is
touched. Needs root; `runc` needs runc and a static busybox. What it makes it removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from muster.agent.cgroups import PodCgroups, open_cgroups
from muster.agent.config import AgentConfig, Network, Runc
from muster.agent.contracts import ContainerRuntime, ContainerSpec, Image, Limits, NetworkWant, RunRef, Sandbox
from muster.agent.layout import Layout
from muster.agent.network.networks import PodNetworks
from muster.agent.pods import LocalPods
from muster.agent.removing import remove_tree
from muster.agent.runtimes.process import ProcessRuntime
from muster.agent.runtimes.runc import RuncRuntime
from muster.agent.shim import namespaces
from muster.agent.shim.client import Shims
from muster.bench.cpu_meter import CpuMeter, per_task_ms
from muster.bench.lines import Say
from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.store.embedded import EmbeddedStore

What = Literal["process", "process+network", "runc", "pods", "pods+network"]
WHATS: tuple[What, ...] = ("process", "process+network", "runc", "pods", "pods+network")
LATENCY_TASKS = 100
RATE_TASKS = 400
CONCURRENCY = 32
_NODE = "bench"
_KEEPER = "keeper"
"""A pod without anything in it: while it is there, so is the group around all pods, and its count."""
_FIRST_USER = 2_000_000_000
_LIMITS = Limits(cpu_request_milli=10, cpu_limit_milli=1000, memory_limit_bytes=64 * 2**20, pids_max=64)


class NotPossible(RuntimeError):
    """What this machine lacks for a line."""


class AgentLine(msgspec.Struct, frozen=True, kw_only=True):
    """Times are medians, from the request until the end of the task is known. CPU time is that of all processes together, per
    task, while many run; None where the machine does not count it. Of pods there is no bare counterpart."""

    what: What
    bare_ms: float | None = None
    ours_ms: float
    over_ms: float | None = None
    bare_per_s: float | None = None
    tasks_per_s: float
    bare_cpu_ms: float | None = None
    cpu_ms: float | None = None


def measure(what: What, *, scale: float = 1.0, say: Say) -> AgentLine:
    """In a process of its own. NotPossible says what is missing."""
    if os.geteuid() != 0:
        raise NotPossible("needs root: namespaces, cgroups and other users")
    if what == "runc" and (shutil.which("runc") is None or shutil.which("busybox") is None):
        raise NotPossible("needs runc and a static busybox (tools/agent-tools installs them)")
    say(f"agent: {what}")
    done = subprocess.run([sys.executable, "-m", "muster.bench.agent", what, str(scale)], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise NotPossible(f"the measurement of {what} failed; see above")
    return msgspec.json.decode(done.stdout, type=AgentLine)


# -- in the process of its own -------------------------------------------------------------------------------------------------


class Node:
    """The parts of an agent that start something, and what was made with them."""

    def __init__(self, what: What, directory: Path) -> None:
        self.layout = Layout(directory / "data", directory / "run")
        self.layout.data.mkdir(mode=0o711)
        self.config = AgentConfig(runc=Runc(image_directories=[str(directory)]))
        self.cgroups: PodCgroups = open_cgroups(self.layout.id, journal=directory / "kernel-changes.jsonl")
        self.meter = CpuMeter(self.layout.id)
        self.shims = Shims(self.layout)
        made = RuncRuntime if what == "runc" else ProcessRuntime
        self.runtime: ContainerRuntime = made(self.layout, self.shims, self.cgroups, self.config)
        self.networks: PodNetworks | None = None
        if what.endswith("+network"):
            self.networks = PodNetworks(self.layout, Network(masquerade=False), "10.244.0.0/20", uplink_egress_bps=10**9)
        self.image = Image()
        self.ended: dict[RunRef, asyncio.Event] = {}
        self._users = 0

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Node]:
        with self.meter:
            await self.shims.open()
            await self.runtime.open()
            if self.networks is not None:
                await self.networks.open()
            try:
                yield self
            finally:
                await self.runtime.close()
                await self.shims.close()
                if self.networks is not None:
                    await self.networks.teardown()
                self.cgroups.teardown()

    async def listen(self) -> None:
        async for ref in self.runtime.changed():
            event = self.ended.get(ref)
            found = self.runtime.observe(ref)
            if event is not None and found is not None and found.state == "exited":
                event.set()

    async def task(self, argv: tuple[str, ...]) -> float:
        """One pod of one container, from nothing to nothing; milliseconds until its end was known."""
        uid = str(uuid.uuid4())
        self._users += 1
        ref = RunRef(uid, "main", 0)
        event = self.ended[ref] = asyncio.Event()
        began_s = time.perf_counter()
        self.cgroups.create_pod(uid, _LIMITS)
        self.cgroups.create_container(uid, "main", _LIMITS)
        netns = ""
        if self.networks is not None:
            netns = (await self.networks.ensure(NetworkWant(uid=uid, egress_limit_bps=10**8, egress_request_bps=10**6))).netns
        user = _FIRST_USER + self._users
        sandbox = Sandbox(uid=uid, namespace="bench", name=uid, hostname="bench", user=user, netns=netns)
        spec = ContainerSpec(name="main", attempt=0, command=argv, limits=_LIMITS)
        await self.runtime.start(sandbox, spec, self.image)
        await event.wait()
        took_ms = 1e3 * (time.perf_counter() - began_s)
        found = self.runtime.observe(ref)
        assert found is not None
        assert found.exited is not None
        if found.exited.code:
            raise NotPossible(f"a task failed: {found.exited.reason} {found.exited.message}")
        await self.runtime.remove(sandbox, ref)
        if self.networks is not None:
            await self.networks.release(uid)
        self.cgroups.remove(uid)
        await remove_tree(self.layout.pod(uid))
        del self.ended[ref]
        return took_ms


async def _many(one: Callable[[], Awaitable[Any]], count: int, at_once: int) -> float:
    """How many a second."""
    slots = asyncio.Semaphore(at_once)

    async def run() -> None:
        async with slots:
            await one()

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(run())
    return count / (time.perf_counter() - began_s)


async def _bare(argv: list[str]) -> float:
    began_s = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL)
    if await process.wait():
        raise NotPossible(f"{argv[0]} failed")
    return 1e3 * (time.perf_counter() - began_s)


async def _runtime(what: What, directory: Path, scale: float) -> AgentLine:
    node = Node(what, directory)
    argv, bare = ("/bin/true",), ["/bin/true"]
    async with node.opened():
        node.cgroups.create_pod(_KEEPER, _LIMITS)
        if what == "runc":
            root = _root_with_busybox(directory)
            node.image = await node.runtime.image(f"dir:{root}", "IfNotPresent")
            bare = ["runc", "--root", str(directory / "bare"), "run", "--bundle", str(_bundle(directory, root)), "{}"]
        listening = asyncio.create_task(node.listen())

        def bare_task() -> Awaitable[float]:
            return _bare([word.format(uuid.uuid4().hex[:12]) for word in bare])

        def our_task() -> Awaitable[float]:
            return node.task(argv)

        try:
            await our_task()
            bare_ms, our_ms = [], []
            for _ in range(round(LATENCY_TASKS * scale)):  # in turn: the machine is not equally busy all the time
                bare_ms.append(await bare_task())
                our_ms.append(await our_task())
            count = round(RATE_TASKS * scale)
            spent_ms = [node.meter.read_ms()]
            bare_per_s = await _many(bare_task, count, CONCURRENCY)
            spent_ms.append(node.meter.read_ms())
            per_s = await _many(our_task, count, CONCURRENCY)
            spent_ms.append(node.meter.read_ms())
        finally:
            listening.cancel()
    bare_median, our_median = statistics.median(bare_ms), statistics.median(our_ms)
    return AgentLine(
        what=what,
        bare_ms=round(bare_median, 1),
        ours_ms=round(our_median, 1),
        over_ms=round(our_median - bare_median, 1),
        bare_per_s=round(bare_per_s, 1),
        tasks_per_s=round(per_s, 1),
        bare_cpu_ms=per_task_ms(spent_ms[0], spent_ms[1], count),
        cpu_ms=per_task_ms(spent_ms[1], spent_ms[2], count),
    )


def _root_with_busybox(directory: Path) -> Path:
    root = directory / "root"
    (root / "bin").mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    (root / "bin" / "true").symlink_to("busybox")
    return root


def _bundle(directory: Path, root: Path) -> Path:
    bundle = directory / "bundle"
    bundle.mkdir()
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    config = msgspec.json.decode((bundle / "config.json").read_bytes())
    config["root"] = {"path": str(root), "readonly": True}
    config["process"] |= {"terminal": False, "args": ["/bin/true"]}
    (bundle / "config.json").write_bytes(msgspec.json.encode(config))
    return bundle


def _pod(name: str) -> Raw:
    container = {"name": "main", "image": "none", "command": ["/bin/true"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": _NODE, "restartPolicy": "Never", "containers": [container]},
    }


async def _pods(what: What, directory: Path, scale: float) -> AgentLine:
    """Pods that are bound already, in a store on disk: until it says that they have succeeded."""
    node = Node(what, directory)
    store = await EmbeddedStore.open(directory / "store.sqlite", clock=wall_clock)
    pods = await store.resource("", "Pod")
    await store.create(
        await store.resource("", "Namespace"), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    )
    async with node.opened():
        carrier = LocalPods(
            store, node.layout, node.config, _NODE,
            runtime=node.runtime, cgroups=node.cgroups, networks=node.networks, clock=wall_clock,
        )  # fmt: skip
        carrying = asyncio.create_task(carrier.run())
        seen = _Seen()
        following = asyncio.create_task(seen.follow(store, pods))

        async def one() -> float:
            name = f"p-{uuid.uuid4().hex[:12]}"
            event = seen.events[name] = asyncio.Event()
            began_s = time.perf_counter()
            await store.create(pods, _pod(name), "default")
            await event.wait()
            return 1e3 * (time.perf_counter() - began_s)

        try:
            await one()
            times_ms = [await one() for _ in range(round(LATENCY_TASKS * scale))]
            per_s = await _many(one, round(RATE_TASKS * scale), CONCURRENCY)
            for name in list(seen.events):
                await store.delete(pods, name, "default")
            await seen.gone()
        finally:
            for task in (following, carrying):
                task.cancel()
            await asyncio.gather(following, carrying, return_exceptions=True)
    await store.close()
    return AgentLine(what=what, ours_ms=round(statistics.median(times_ms), 1), tasks_per_s=round(per_s, 1))


class _Seen:
    """What the store says of pods, as a client that watches learns it."""

    def __init__(self) -> None:
        self.events: dict[str, asyncio.Event] = {}
        self._left = asyncio.Event()

    async def follow(self, store: EmbeddedStore, pods: Any) -> None:
        version = (await store.list(pods)).resource_version
        async for event in store.watch(pods, resource_version=version):
            name = event.object["metadata"]["name"]
            if event.type == "DELETED":
                self.events.pop(name, None)
                if not self.events:
                    self._left.set()
            elif (event.object.get("status") or {}).get("phase") == "Succeeded" and name in self.events:
                self.events[name].set()

    async def gone(self) -> None:
        await self._left.wait()


def main(what: What, scale: float) -> AgentLine:
    namespaces.unshare(namespaces.CLONE_NEWNET | namespaces.CLONE_NEWNS)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    directory = Path(tempfile.mkdtemp(prefix="muster-bench-", dir="/var/tmp"))
    directory.chmod(0o711)
    try:
        measured = _pods if what.startswith("pods") else _runtime
        return asyncio.run(measured(what, directory, scale))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _, what_, scale_ = sys.argv
    sys.stdout.buffer.write(msgspec.json.encode(main(msgspec.convert(what_, What), float(scale_))))
