"""Pods in networks of their own: addresses, traffic that is counted, and nothing left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.agent.cgroups import open_cgroups
from muster.agent.config import AgentConfig
from muster.agent.contracts import AgentError, StreamTarget
from muster.agent.network import PodNetworks
from muster.agent.pods import LocalPods
from muster.agent.pods_watching import Pace
from muster.agent.runtimes.process import ProcessRuntime
from muster.agent.shim import sessions
from muster.agent.shim.client import Shims
from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from tests.agent.network.machine import Machine, a_machine, needs_namespaces
from tests.agent.talking import descriptors, gone, read_all, write
from tests.waiting import until

SERVER = (
    "import socket,time; s=socket.create_server(('0.0.0.0', 80)); c,_=s.accept(); n=0\n"
    "while (d:=c.recv(65536)): n+=len(d)\n"
    "print(n, flush=True)"
)
CLIENT = (
    "import socket,sys,time\n"
    "for _ in range(600):\n"
    "    try: c=socket.create_connection((sys.argv[1], 80)); break\n"
    "    except OSError: time.sleep(0.1)\n"
    "c.sendall(b'x'*1000000); c.close()"
)

ECHO = (
    "import socket,sys,threading\n"
    "a=sys.argv[1]; s=socket.create_server((a, 7000), family=socket.AF_INET6 if ':' in a else socket.AF_INET)\n"
    "def serve(c):\n"
    "    while (d:=c.recv(65536)): c.sendall(d)\n"
    "    c.close()\n"
    "while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()"
)
DEAF = "import socket,time; s=socket.create_server(('127.0.0.1', 7000), backlog=1); time.sleep(1000)"


def pod(name: str, program: str, *args: str) -> Raw:
    container = {"name": "main", "image": "none", "command": ["python3", "-c", program, *args]}
    metadata = {"name": name, "namespace": "default", "annotations": {"kubernetes.io/egress-bandwidth": "100M"}}
    spec = {"restartPolicy": "Never", "nodeName": "n1", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


pytestmark = [needs_namespaces, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


class World:
    """A store, and a carrier whose pods have networks of their own on a machine of their own."""

    def __init__(self, store: Store, pods: Resource, carrier: LocalPods, networks: PodNetworks, machine: Machine) -> None:
        self.store = store
        self.pods = pods
        self.carrier = carrier
        self.networks = networks
        self.machine = machine

    async def create(self, name: str, program: str, *args: str) -> None:
        await self.store.create(self.pods, pod(name, program, *args), "default")

    async def get(self, name: str) -> Raw:
        return await self.store.get(self.pods, name, "default")

    async def when(self, name: str, phase: str) -> Raw:
        async def is_there() -> bool:
            return bool((await self.get(name))["status"].get("phase") == phase)

        await until(is_there)
        return await self.get(name)

    async def dial(self, name: str, port: int) -> socket.socket:
        return await self.carrier.dial(StreamTarget(namespace="default", pod=name), port)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_machine(tmp_path) as machine, _a_world(machine, tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def _a_world(machine: Machine, tmp_path: Path) -> AsyncIterator[World]:
    store = await EmbeddedStore.open(tmp_path / "store", clock=wall_clock)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    await store.create(await store.resource("", "Namespace"), body)
    networks = machine.networks()
    await networks.open()
    layout = networks.layout
    layout.data.mkdir(exist_ok=True, parents=True)
    cgroups = open_cgroups(layout.id, journal=layout.data / "kernel-changes.jsonl")
    shims, config = Shims(layout), AgentConfig()
    await shims.open()
    runtime = ProcessRuntime(layout, shims, cgroups, config)
    await runtime.open()
    carrier = LocalPods(
        store,
        layout,
        config,
        "n1",
        runtime=runtime,
        cgroups=cgroups,
        networks=networks,
        clock=wall_clock,
        host_ip="192.0.2.1",
        pace=Pace(tick_s=0.1),
        dial=shims.sessions.dial,
    )
    running = asyncio.create_task(carrier.run())
    pods = await store.resource("", "Pod")

    try:
        yield World(store, pods, carrier, networks, machine)
    finally:
        for one in (await store.list(pods, "default")).items:
            await store.delete(pods, one["metadata"]["name"], "default", grace_period_s=0)

        async def is_clean() -> bool:
            return not carrier.sandboxes and not cgroups.list()

        await until(is_clean)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await runtime.close()
        await shims.close()
        await networks.teardown()
        await networks.close()
        cgroups.teardown()
        await store.close()


async def test_two_pods_talk_and_what_they_send_is_counted(world: World) -> None:
    await world.create("server", SERVER)
    address = (await world.when("server", "Running"))["status"]["podIP"]
    await world.create("client", CLIENT, address)
    client, server = await world.when("client", "Succeeded"), await world.when("server", "Succeeded")
    assert client["status"]["podIP"] != address
    assert client["status"]["hostIP"] == "192.0.2.1"

    async def is_counted() -> bool:
        found = (await world.get("client"))["metadata"]["annotations"].get("muster.dev/traffic")
        return found is not None and json.loads(found)["sentBytes"] > 1_000_000

    await until(is_counted)
    assert server["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert await world.networks.list() == set()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0"])
async def test_a_connection_into_a_pod(world: World, address: str) -> None:
    await world.create("echo", ECHO, address)
    ours = await _connected(world, "echo", 7000)
    try:
        assert not ours.getblocking()
        await write(ours.fileno(), b"x" * 50_000)
        ours.shutdown(socket.SHUT_WR)
        assert await read_all(ours.fileno()) == b"x" * 50_000
    finally:
        ours.close()
    with pytest.raises(AgentError, match=r"port 7001 of pod default/echo: Connection refused") as e:
        await world.dial("echo", 7001)
    assert e.value.reason == "ConnectionRefused"


async def _connected(world: World, name: str, port: int) -> socket.socket:
    """As soon as it listens."""
    found: list[socket.socket] = []

    async def is_there() -> bool:
        with contextlib.suppress(AgentError):
            found.append(await world.dial(name, port))
        return bool(found)

    await until(is_there)
    return found[0]


async def test_no_port_of_the_node_is_reached(world: World) -> None:
    """Neither on its loopback, nor on all of its addresses, nor where the agent itself is."""
    world.machine.sink(world.machine.netns, 7002)
    await world.create("echo", ECHO, "127.0.0.1")
    (await _connected(world, "echo", 7000)).close()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for port in (7002, listener.getsockname()[1]):
            with pytest.raises(AgentError) as e:
                await world.dial("echo", port)
            assert e.value.reason == "ConnectionRefused"


async def test_nobody_waits_for_a_connection_any_more(world: World) -> None:
    await world.create("echo", ECHO, "127.0.0.1")
    (await _connected(world, "echo", 7000)).close()
    before, tasks = descriptors(), asyncio.all_tasks()

    for turns in range(12):
        asking = asyncio.create_task(world.dial("echo", 7000))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    await gone(lambda: asyncio.all_tasks() - tasks)
    await gone(lambda: {one for one in descriptors() - before if "socket:" in one})


async def test_a_port_that_does_not_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue is full: the kernel drops what comes."""
    monkeypatch.setattr(sessions, "_DIAL_TIMEOUT_S", 0.3)
    await world.create("deaf", DEAF)
    opened = [await _connected(world, "deaf", 7000)]

    async def is_full() -> bool:
        try:
            opened.append(await world.dial("deaf", 7000))
        except AgentError as e:
            return (e.reason, "timed out" in e.message) == ("ConnectionRefused", True)
        return False

    await until(is_full)
    for one in opened:
        one.close()
