"""Pods in networks of their own: addresses, traffic that is counted, and nothing left."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from muster.agent.cgroups import open_cgroups
from muster.agent.config import AgentConfig
from muster.agent.pods import LocalPods
from muster.agent.pods_watching import Pace
from muster.agent.runtimes.process import ProcessRuntime
from muster.agent.shim.client import Shims
from muster.objects.status import NotFound, Raw
from muster.objects.time import wall_clock
from muster.store.embedded import EmbeddedStore
from tests.agent.network.machine import Machine, a_machine, needs_namespaces
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


def pod(name: str, program: str, *args: str) -> Raw:
    container = {"name": "main", "image": "none", "command": ["python3", "-c", program, *args]}
    metadata = {"name": name, "namespace": "default", "annotations": {"kubernetes.io/egress-bandwidth": "100M"}}
    spec = {"restartPolicy": "Never", "nodeName": "n1", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@needs_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_two_pods_talk_and_what_they_send_is_counted(tmp_path: Path) -> None:
    async with a_machine(tmp_path) as machine:
        await _talk(machine, tmp_path)


async def _talk(machine: Machine, tmp_path: Path) -> None:
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
    )
    running = asyncio.create_task(carrier.run())
    pods = await store.resource("", "Pod")

    async def when(name: str, phase: str) -> Raw:
        async def is_there() -> bool:
            return bool((await store.get(pods, name, "default"))["status"].get("phase") == phase)

        await until(is_there)
        return await store.get(pods, name, "default")

    try:
        await store.create(pods, pod("server", SERVER), "default")
        address = (await when("server", "Running"))["status"]["podIP"]
        await store.create(pods, pod("client", CLIENT, address), "default")
        client, server = await when("client", "Succeeded"), await when("server", "Succeeded")
        assert client["status"]["podIP"] != address
        assert client["status"]["hostIP"] == "192.0.2.1"

        async def is_counted() -> bool:
            found = (await store.get(pods, "client", "default"))["metadata"]["annotations"].get("muster.dev/traffic")
            return found is not None and json.loads(found)["sentBytes"] > 1_000_000

        await until(is_counted)
        assert server["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
        assert await networks.list() == set()
    finally:
        for name in ("client", "server"):
            try:
                await store.delete(pods, name, "default", grace_period_s=0)
            except NotFound:
                continue

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
