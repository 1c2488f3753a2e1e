"""Who has, holds and uses bandwidth, worked out from objects as the scheduler would: for `muster top bandwidth`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from muster.engine import events as ev
from muster.engine.facts import LinkFacts, NodeFacts, NodeMetricFacts, PodFacts, PoolFacts
from muster.engine.machine import Engine
from muster.engine.plugins.bandwidth import Bandwidth
from muster.engine.plugins.link_bandwidth import LinkBandwidth, lanes_of
from muster.engine.profile import Profile
from muster.engine.resources import EGRESS, INGRESS
from muster.objects.amounts import amount_of
from muster.objects.meta import describe
from muster.objects.status import Raw

DIRECTIONS = (("egress", EGRESS), ("ingress", INGRESS))
F = TypeVar("F", bound=msgspec.Struct)


class NodeUse(msgspec.Struct, frozen=True, rename="camel"):
    """One direction of one node, in bits per second; `used` is measured, None where nobody reports it."""

    node: str
    direction: str
    capacity_bps: int
    reserved_bps: int
    free_bps: int
    used_bps: int | None = None


class PodUse(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    pod: str
    node: str
    direction: str
    reserved_bps: int
    used_bps: int | None = None


class LinkUse(msgspec.Struct, frozen=True, rename="camel"):
    link: str
    source: str
    target: str
    capacity_bps: int
    reserved_bps: int
    free_bps: int
    problem: str = ""


class Objects(msgspec.Struct):
    nodes: Sequence[Raw] = ()
    pods: Sequence[Raw] = ()
    links: Sequence[Raw] = ()
    pools: Sequence[Raw] = ()
    metrics: Sequence[Raw] = ()


class BandwidthUse:
    """`problems` names the objects that could not be read, which are left out."""

    def __init__(self, objects: Objects) -> None:
        self.problems: list[str] = []
        self.metrics = {metric.metadata.name: metric for metric in self._read(objects.metrics, NodeMetricFacts)}
        self._links = self._read(objects.links, LinkFacts)
        self._by_link = LinkBandwidth()
        engine = Engine([Profile("none", [Bandwidth(), self._by_link])])
        engine.step(
            [
                *(ev.NodeSeen(one) for one in self._read(objects.nodes, NodeFacts)),
                *(ev.PoolSeen(one) for one in self._read(objects.pools, PoolFacts)),
                *(ev.LinkSeen(one) for one in self._links),
                *(ev.PodSeen(one) for one in self._read(objects.pods, PodFacts)),
            ],
            0.0,
            units_max=0,
        )
        self.state = engine.state

    def _read(self, raws: Iterable[Raw], facts: type[F]) -> list[F]:
        found: list[F] = []
        for raw in raws:
            try:
                found.append(msgspec.convert(raw, facts))
            except msgspec.ValidationError as error:
                self.problems.append(f"{describe(raw)} is left out: {error}")
        return found

    def by_node(self) -> list[NodeUse]:
        nodes = self.state.nodes
        found = []
        for slot, name in enumerate(nodes.names):
            metric = self.metrics.get(name)
            usage = metric.status.node_metric.node_usage.resources if metric and metric.status.node_metric else {}
            for word, row in DIRECTIONS:
                capacity, free = int(nodes.capacity[row, slot]), int(nodes.free[row, slot])
                found.append(NodeUse(name, word, capacity, capacity - free, max(free, 0), _measured(usage, word)))
        return found

    def by_pod(self) -> list[PodUse]:
        used: dict[tuple[str, str], Mapping[str, Any]] = {}
        for metric in self.metrics.values():
            for one in metric.status.pods_metric:
                used[one.namespace, one.name] = one.pod_usage.resources
        found = []
        for pod in sorted(self.state.pods.values(), key=lambda pod: (pod.namespace, pod.name)):
            usage = used.get((pod.namespace, pod.name), {})
            for word, row in DIRECTIONS:
                reserved, measured = int(pod.request[row]), _measured(usage, word)
                if pod.node and (reserved or measured):
                    found.append(PodUse(pod.namespace, pod.name, pod.node, word, reserved, measured))
        return found

    def by_link(self) -> list[LinkUse]:
        found = []
        for link in sorted(self._links, key=lambda link: link.metadata.name):
            for lane in lanes_of(link):
                held = self._by_link.used_bps(lane.way.link, reverse=lane.way.is_reverse)
                free = max(lane.capacity_bps - held, 0)
                found.append(
                    LinkUse(lane.way.link, str(lane.source), str(lane.target), lane.capacity_bps, held, free, lane.problem)
                )
        return found


def _measured(usage: Mapping[str, Any], direction: str) -> int | None:
    value = usage.get(f"bandwidth-{direction}")
    if value is None:
        return None
    try:
        return amount_of("bandwidth", value)
    except ValueError:
        return None
