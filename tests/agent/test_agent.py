"""The assembled agent on a real server: start, parts that fail, a second one, what a failed start leaves."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent import agent as module
from muster.agent.agent import Agent, Options, Startable, join_request, run_dir_of
from muster.agent.claim import Taken, holder_of
from muster.agent.config import AgentConfig, Capacity, Network, Runc, Serving
from muster.agent.ending import end_everything
from muster.agent.images import ImageStore
from muster.agent.images_names import LocalPath
from muster.agent.joining import JoinError, Trust
from muster.agent.layout import Layout
from muster.agent.user_ranges import users_of
from muster.client.api import ApiClient
from muster.client.kubeconfig import load
from muster.objects.conditions import find_condition
from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.store.backoff import Backoff
from muster.store.kubernetes import KubernetesStore
from tests.agent.images_building import LayerTar, oci_files, write_directory
from tests.agent.runc_node import need_runc
from tests.e2e.agent_world import leftovers
from tests.server.running import RunningServer, running
from tests.waiting import until

HOST_NETWORK = Network(enabled="never")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("agent")) as made:
        yield made


class Rig:
    def __init__(self, server: RunningServer, directory: Path) -> None:
        self.client = load(server.server.kubeconfig_path)
        self.store = KubernetesStore(ApiClient(self.client))
        self.directory = directory
        self.layout = Layout(directory, run_dir_of(directory))
        self.said: list[str] = []
        self._made: list[Agent] = []

    def agent(self, name: str, **config: Any) -> Agent:
        whole = AgentConfig(name=name, **{"network": HOST_NETWORK} | config)
        ca = self.client.tls.ca
        options = Options(server=self.client.server, ca=ca if isinstance(ca, bytes) else None)
        made = Agent(whole, self.store, self.layout, options, clock=wall_clock, say=self.said.append)
        self._made.append(made)
        return made

    async def node(self, name: str) -> Raw:
        return await self.store.get(await self.store.resource("", "Node"), name)

    async def ready(self, name: str) -> Raw:
        return find_condition((await self.node(name))["status"]["conditions"], "Ready") or {}

    async def close(self) -> None:
        for made in self._made:
            await made.stop()
        await self.store.close()
        await end_everything(self.layout)
        assert leftovers(self.layout) == []


@pytest.fixture
async def rig(server: RunningServer, tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(server, tmp_path / "data")
    try:
        yield made
    finally:
        await made.close()


async def test_it_starts_and_stops_in_order(rig: Rig) -> None:
    agent = rig.agent("a1")
    await agent.start()
    ready = await rig.ready("a1")
    assert ready["reason"] in ("AgentReady", "AgentNotReady")

    async def is_ready() -> bool:
        return bool((await rig.ready("a1"))["reason"] == "AgentReady")

    await until(is_ready)
    node = await rig.node("a1")
    assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == agent.port
    assert "network namespaces" in node["metadata"]["annotations"]["muster.dev/agent-missing"]
    assert agent.config.process.user_range == users_of(rig.directory)
    with pytest.raises(Taken, match="runs an agent on it"):
        await rig.agent("a1").start()
    await agent.stop()
    assert (await rig.ready("a1"))["reason"] == "AgentStopped"
    assert holder_of(rig.layout.lock) is None
    assert [one for one in leftovers(rig.layout) if one != str(rig.layout.run)] == [], "nothing runs, so nothing is left"


async def test_images_that_nothing_uses_go_from_a_node_with_containers(rig: Rig, tmp_path: Path) -> None:
    need_runc()
    images = ImageStore(rig.layout.images, rig.layout.pods, is_durable=False)
    for name, origin in (("old:1", "pulled"), ("mine:1", "loaded")):
        layer = LayerTar().file("f", name.encode()).bytes()
        source = write_directory(oci_files([layer]), tmp_path / origin)
        made = images.unpack(LocalPath(kind="oci", path=str(source)), [name], origin)  # type: ignore[arg-type]
        os.utime(Path(made.root).parent / "image.json", (0, 0))
    agent = rig.agent("a9", runtime="runc", runc=Runc(images_unused_seconds=3600))
    await agent.start()

    async def is_gone() -> bool:
        return [name for one in images.list() for name in one.names] == ["mine:1"]

    await until(is_gone)
    await agent.stop()


class Part:
    """Fails in its first run, when it is told to."""

    def __init__(self) -> None:
        self.fails = asyncio.Event()
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        if self.runs == 1:
            await self.fails.wait()
            raise OSError("the cable is out")
        await asyncio.get_running_loop().create_future()


async def test_a_part_that_fails_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RESTART", Backoff(base_s=3600, max_s=3600))
    agent, part = rig.agent("a2"), Part()
    await agent.start()
    agent._begin("extra", part.run)
    part.fails.set()

    async def is_named() -> bool:
        return "extra failed and is started again: the cable is out" in (await rig.ready("a2"))["message"]

    await until(is_named)


async def test_a_part_that_fails_is_started_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RESTART", Backoff(base_s=0.01, max_s=0.02))
    agent, part = rig.agent("a6"), Part()
    await agent.start()
    agent._begin("extra", part.run)
    part.fails.set()

    async def is_well() -> bool:
        assert agent.keeper is not None
        agent.keeper.poke()
        return bool(part.runs == 2 and not agent.problem() and (await rig.ready("a6"))["status"] == "True")

    await until(is_well)


async def test_another_share_while_it_runs(rig: Rig) -> None:
    agent = rig.agent("a3")
    await agent.start()
    later = agent.reload(AgentConfig(name="other", network=HOST_NETWORK, capacity=Capacity(cpu="250m")))
    assert later == ["name"], "what needs a restart is said"

    async def is_smaller() -> bool:
        return bool((await rig.node("a3"))["status"]["capacity"]["cpu"] == "250m")

    await until(is_smaller)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param({"serving": Serving(listen="127.0.0.1:{taken}")}, "serving.listen", id="a port that is taken"),
        pytest.param({"network": Network(enabled="always")}, "network.enabled is always", id="a network that can't be"),
    ],
)
async def test_a_start_that_fails_names_the_part_and_leaves_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(module, "POD_CIDR_WAIT_S", 0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        if "serving" in config:
            config = {"serving": Serving(listen=f"127.0.0.1:{taken.getsockname()[1]}")}
        agent = rig.agent("a4", **config)
        with pytest.raises(Startable, match=words):
            await agent.start()
    assert holder_of(rig.layout.lock) is None


async def test_a_directory_that_cannot_be_made(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(Startable, match="--data-dir"):
        await rig.agent("a5").start()
    (tmp_path / "data").unlink()


def test_what_is_asked_for_when_joining() -> None:
    request = join_request(AgentConfig(domain="alice", name="n1", serving=Serving(address="192.0.2.4")), "head:6443", Trust())
    assert (request.server, request.name, request.domain) == ("https://head:6443", "n1", "alice")
    assert request.names[-1] == "192.0.2.4"
    with pytest.raises(JoinError, match="--join"):
        join_request(AgentConfig(), "ftp://head", Trust())
