"""Every node that an agent of Muster's keeps has a range of addresses for its pods (`spec.podCIDR`), its own among all nodes.

Nodes without label `muster.dev/agent` are left alone, but what they have is respected: on a real cluster somebody else may give
ranges to the others. A range that a node has never changes; the API server would refuse it.

`plan` is pure. The controller has one worker, and remembers what it gave until the cache shows it: two nodes that come at once
get different ranges.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

import msgspec

from muster.controllers.actions import Action, Emit, Patch, Target
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.objects.labels import Muster
from muster.objects.view import View
from muster.store.cache import Cached, ObjectKey

POD_RANGE: Final = "10.244.0.0/16"
NODE_PREFIX: Final = 24
_PREFIX_MAX: Final = 30
_RETRY_S: Final = 60.0
REASON_EXHAUSTED: Final = "PodRangeExhausted"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class NodeSpec(View):
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: list[str] = msgspec.field(default_factory=list, name="podCIDRs")


class NodeView(View):
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)


def networks_of(spec: NodeSpec) -> list[Network]:
    """The ranges that a node has; what is none is skipped."""
    found: list[Network] = []
    for text in {spec.pod_cidr, *spec.pod_cidrs} - {""}:
        try:
            found.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            continue
    return found


def next_free(whole: ipaddress.IPv4Network, prefix: int, taken: Iterable[Network]) -> ipaddress.IPv4Network | None:
    """The first part of `whole` of that size that overlaps none of `taken`."""
    size = 1 << (32 - prefix)
    first, last = int(whole.network_address), int(whole.broadcast_address)
    busy = sorted(
        (int(one.network_address), int(one.broadcast_address))
        for one in taken
        if isinstance(one, ipaddress.IPv4Network) and one.overlaps(whole)
    )
    candidate = first
    for begin, end in busy:
        if begin >= candidate + size:
            break
        if end >= candidate:
            candidate = -(-(end + 1) // size) * size
    return ipaddress.IPv4Network((candidate, prefix)) if candidate + size - 1 <= last else None


def plan(
    node: Target, whole: ipaddress.IPv4Network, prefix: int, taken: Iterable[Network]
) -> tuple[list[Action], ipaddress.IPv4Network | None]:
    """What to do for a node that lacks a range, and the range that it is given by that."""
    free = next_free(whole, prefix, taken)
    if free is None:
        nodes_max = 1 << (prefix - whole.prefixlen)
        why = (
            f"node {node.name} gets no addresses for its pods: all {nodes_max} parts (/{prefix}) of {whole} are taken; "
            "delete nodes that are gone, or give the node's agent its own network.podCIDR"
        )
        regarding = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name, "uid": node.uid}}
        return [Emit(regarding, "Warning", REASON_EXHAUSTED, why)], None
    return [Patch(node, {"spec": {"podCIDR": str(free), "podCIDRs": [str(free)]}})], free


def _lacks_range(node: Cached) -> bool:
    spec = node.view(NodeView).spec
    return Muster.AGENT in node.labels and not node.deleting and not (spec.pod_cidr or spec.pod_cidrs)


def _keys(node: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    return (node.key,) if _lacks_range(node) else ()


NODES = Watch(group="", kind="Node", view=NodeView, keep="nothing", keys=_keys)


class NodeAddresses(Controller):
    """Keys are nodes."""

    name = "node-addresses"
    watches = (NODES,)

    def __init__(self, pod_range: str = POD_RANGE, prefix: int = NODE_PREFIX) -> None:
        """ValueError when the range can't be divided so."""
        self._whole = ipaddress.IPv4Network(pod_range)
        if not self._whole.prefixlen <= prefix <= _PREFIX_MAX:
            raise ValueError(
                f"{pod_range} can't be divided into parts of /{prefix}: from /{self._whole.prefixlen} to /{_PREFIX_MAX}"
            )
        self._prefix = prefix
        self._given: dict[str, ipaddress.IPv4Network] = {}
        """By uid: what was given and is not in the cache yet."""

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        actions, given = self._decide(caches[NODES].get(key), caches)
        return Plan(actions, _RETRY_S if actions and given is None else None)

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        node = context.caches[NODES].get(key)
        actions, given = self._decide(node, context.caches)
        await context.executor.apply(actions)
        if node is not None and given is not None:
            self._given[node.uid] = given
        return _RETRY_S if actions and given is None else None

    def _decide(self, node: Cached | None, caches: Caches) -> tuple[list[Action], ipaddress.IPv4Network | None]:
        waiting = {one.uid for one in caches[NODES] if _lacks_range(one)}
        self._given = {uid: given for uid, given in self._given.items() if uid in waiting}
        if node is None or not _lacks_range(node) or node.uid in self._given:
            return [], None
        known = [network for one in caches[NODES] for network in networks_of(one.view(NodeView).spec)]
        target = Target("", "Node", node.key.name, "", node.uid, node.resource_version)
        return plan(target, self._whole, self._prefix, [*known, *self._given.values()])
