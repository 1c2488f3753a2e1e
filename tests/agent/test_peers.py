"""Routes to other nodes' pods, from Node objects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from muster.agent.contracts import AgentError
from muster.agent.network import NoNetworks
from muster.agent.peers import NodeView, PeerKeeper, peers_of
from muster.objects.labels import Muster
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.sim.clock import virtual
from tests.store.stores import memory_store


def node(cidr: str = "", address: str = "", kind: str = "InternalIP") -> NodeView:
    raw: Raw = {"spec": {"podCIDR": cidr}, "status": {"addresses": [{"type": kind, "address": address}]}}
    return view_of(NodeView, raw)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param({}, {}, id="nobody"),
        pytest.param({"n2": node("10.1.0.0/24", "192.0.2.2")}, {"10.1.0.0/24": "192.0.2.2"}, id="another"),
        pytest.param({"me": node("10.1.0.0/24", "192.0.2.2")}, {}, id="itself"),
        pytest.param({"n2": node("", "192.0.2.2")}, {}, id="no range yet"),
        pytest.param({"n2": node("10.1.0.0/24", "n2", "Hostname")}, {}, id="no address"),
        pytest.param(
            {"n3": node("10.1.0.0/24", "192.0.2.3"), "n2": node("10.1.0.0/24", "192.0.2.2")},
            {"10.1.0.0/24": "192.0.2.2"},
            id="claimed twice",
        ),
    ],
)
def test_peers_of(nodes: dict[str, NodeView], expected: dict[str, str]) -> None:
    assert peers_of(nodes.items(), "me") == expected


class Recording(NoNetworks):
    def __init__(self) -> None:
        super().__init__("a test")
        self.told: list[dict[str, str]] = []
        self.failures = 1

    async def set_peers(self, peers: Mapping[str, str]) -> None:
        if self.failures:
            self.failures -= 1
            raise AgentError("NetworkNotReady", "not now")
        self.told.append(dict(peers))


@virtual
async def test_the_network_is_told_of_changes_only() -> None:
    async with memory_store() as store:
        networks = Recording()
        keeper = asyncio.create_task(PeerKeeper(store, networks, "me").run())
        try:
            nodes = await store.resource("", "Node")
            for name, labels in (("n2", {Muster.AGENT: "1"}), ("stranger", {})):
                made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
                await store.create(nodes, {**made, "spec": {"podCIDR": f"10.1.{len(name)}.0/24"}})
                status = {"addresses": [{"type": "InternalIP", "address": "192.0.2.2"}]}
                await store.patch(nodes, name, {"status": status}, subresource="status")
            await asyncio.sleep(5)
            assert networks.told[-1:] == [{"10.1.2.0/24": "192.0.2.2"}]
            told = len(networks.told)
            await store.patch(nodes, "n2", {"metadata": {"annotations": {"x": "y"}}})
            await store.delete(nodes, "n2")
            await asyncio.sleep(5)
            assert networks.told[-1:] == [{}]
            assert len(networks.told) == told + 1
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
