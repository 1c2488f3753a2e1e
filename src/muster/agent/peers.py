"""Where the pods of other nodes are: from Node objects to routes.

Every node that an agent keeps has a range of pod addresses (`spec.podCIDR`) and an address of its own. `peers_of` is pure;
`PeerKeeper` follows the nodes on the agent's event loop and tells the network when something has changed.

Agents of one machine need no route to each other's pods: their bridges are in one namespace, which knows the way. The network
finds that out by the address, which is then one of the machine's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from muster.agent.contracts import AgentError, Networks
from muster.objects.labels import Muster
from muster.objects.status import ApiError
from muster.objects.view import View
from muster.store.backoff import Backoff
from muster.store.contract import Store
from muster.store.hub import InformerHub
from muster.store.informer import Informer

log = logging.getLogger(__name__)

_DEBOUNCE_S: Final = 0.5
_RETRY: Final = Backoff(base_s=1.0, max_s=60.0)


class NodeAddress(View):
    type: str = ""
    address: str = ""


class NodeSpec(View):
    pod_cidr: str = msgspec.field(default="", name="podCIDR")


class NodeStatus(View):
    addresses: list[NodeAddress] = msgspec.field(default_factory=list)


class NodeView(View):
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


def peers_of(nodes: Iterable[tuple[str, NodeView]], own: str) -> dict[str, str]:
    """Pod CIDR to node address, of all nodes but `own`. A range that two nodes claim is the first one's, by name."""
    peers: dict[str, str] = {}
    for name, node in sorted(nodes, key=lambda one: one[0]):
        address = next((one.address for one in node.status.addresses if one.type == "InternalIP"), "")
        if name != own and node.spec.pod_cidr and address:
            peers.setdefault(node.spec.pod_cidr, address)
    return peers


class PeerKeeper:
    def __init__(self, store: Store, networks: Networks, node: str) -> None:
        self._hub = InformerHub(store)
        self._networks = networks
        self._node = node
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            informer = await self._follow()
            await informer.wait_synced()
            informer.add_handler(lambda _change: self._changed.set())
            told: Mapping[str, str] | None = None
            failures = 0
            while True:
                self._changed.clear()
                peers = peers_of(((node.key.name, node.view(NodeView)) for node in informer.cache), self._node)
                try:
                    if peers != told:
                        await self._networks.set_peers(peers)
                        told, failures = peers, 0
                except AgentError as error:
                    log.warning("routes to the pods of other nodes can't be set: %s", error.message)
                    await asyncio.sleep(_RETRY.delay_s(failures, self._node))
                    failures += 1
                    continue
                await self._changed.wait()
                await asyncio.sleep(_DEBOUNCE_S)
        finally:
            await self._hub.stop()

    async def _follow(self) -> Informer:
        attempt = 0
        while True:
            try:
                informer = await self._hub.informer("", "Node", label_selector=Muster.AGENT, view=NodeView, keep="nothing")
                self._hub.start()
                return informer
            except ApiError as error:
                log.warning("the nodes of the cluster can't be listed yet: %s", error)
                await asyncio.sleep(_RETRY.delay_s(attempt, self._node))
                attempt += 1
