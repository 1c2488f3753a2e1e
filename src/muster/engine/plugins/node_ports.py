"""NodePorts: a host port that is taken on a node refuses it to pods that want the same.

Ports clash when number and protocol are the same and the addresses meet: `0.0.0.0` (or none) meets every address, any other
only itself. Counted are containers and init containers that keep running (`restartPolicy: Always`), as newer versions of
kube-scheduler do; older ones leave the latter out.

Keeps who holds which port, by port and node; only pods with host ports cost anything. Called from the engine's one thread.
Scope WIDE although a port is a node's own: what-if answers about several copies of a pod change free amounts only, and two
copies with the same port never fit on one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.facts import PodSpecFacts
from muster.engine.plugin import Plugin, Scope
from muster.engine.pods import PodRecord
from muster.engine.shapes import Shape
from muster.objects.reasons import Holder, Reason, Shortfall, shortfall

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - compared with, never bound to
_HOLDERS_SHOWN_MAX: Final = 3

Port = tuple[str, int]
"""Protocol and number."""


class HostPort(msgspec.Struct, frozen=True):
    address: str
    port: Port

    def clashes(self, address: str) -> bool:
        """Whether it can't be had beside the same port on `address`."""
        return address == self.address or ANY_ADDRESS in (address, self.address)

    def __str__(self) -> str:
        where = "" if self.address == ANY_ADDRESS else f"{self.address}:"
        return f"host port {where}{self.port[1]}/{self.port[0]}"


class _Held(msgspec.Struct, frozen=True):
    uid: str
    pod: str
    address: str


class NodePorts(Plugin):
    name = "NodePorts"
    concerns_by_shape = True
    scope = Scope.WIDE
    reason = Reason.PORT_CONFLICT

    def __init__(self, args: object = None) -> None:
        super().__init__(args)
        self._holders: dict[Port, dict[str, list[_Held]]] = {}
        """By port and node name."""
        self._counted: dict[str, tuple[str, tuple[HostPort, ...]]] = {}
        """By uid: node and ports, so that what goes is exactly what came."""

    def follows(self, shape: Shape) -> bool:
        return next(host_ports(shape.spec), None) is not None

    def pod_added(self, pod: PodRecord, slot: int) -> None:
        ports = tuple(dict.fromkeys(host_ports(pod.shape.spec)))
        if not ports:
            return
        self._counted[pod.uid] = (pod.node, ports)
        for one in ports:
            held = _Held(pod.uid, pod.key, one.address)
            self._holders.setdefault(one.port, {}).setdefault(pod.node, []).append(held)

    def pod_removed(self, pod: PodRecord, slot: int) -> None:
        node, ports = self._counted.pop(pod.uid, ("", ()))
        for one in ports:
            nodes = self._holders[one.port]
            nodes[node] = [held for held in nodes[node] if held.uid != pod.uid or held.address != one.address]
            if not nodes[node]:
                del nodes[node]
            if not nodes:
                del self._holders[one.port]

    def concerns(self, pods: PodBlock) -> bool:
        return next(host_ports(pods.shape.spec), None) is not None

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        slots = nodes.columns.slots
        taken = {slots[node] for node, _ in self._clashes(host_ports(pods.shape.spec)) if node in slots}
        mask: Mask = np.ones(len(nodes.columns), np.bool_)
        mask[list(taken)] = False
        found: Mask = nodes.take(mask)
        return found

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, list[Shortfall]]:
        """Each port that is taken on these nodes, and by whom."""
        here = set(nodes.names())
        found: list[Shortfall] = []
        for wanted in dict.fromkeys(host_ports(pods.shape.spec)):
            holders = sorted({(node, held.pod) for node, held in self._clashes([wanted]) if node in here})
            if holders:
                shown = tuple(Holder("Pod", pod, 1, node) for node, pod in holders[:_HOLDERS_SHOWN_MAX])
                found.append(shortfall(self.reason, want=1, best=0, unit="count", resource=str(wanted), holders=shown))
        return self.reason, found

    def _clashes(self, wanted: Iterable[HostPort]) -> Iterator[tuple[str, _Held]]:
        for one in wanted:
            for node, helds in self._holders.get(one.port, {}).items():
                for held in helds:
                    if one.clashes(held.address):
                        yield node, held


def host_ports(spec: PodSpecFacts) -> Iterator[HostPort]:
    """The host ports that the pod holds while it runs."""
    for container in spec.containers:
        for port in container.ports:
            if port.host_port > 0:
                yield HostPort(port.host_ip or ANY_ADDRESS, (port.protocol or "TCP", port.host_port))
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            for port in container.ports:
                if port.host_port > 0:
                    yield HostPort(port.host_ip or ANY_ADDRESS, (port.protocol or "TCP", port.host_port))
