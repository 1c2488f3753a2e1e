"""LinkBandwidth: the links between parties and pools carry no more than their capacity, in each direction.

A pod says in the annotation `muster.dev/bandwidth-to` what it sends to which peers (`objects.bandwidth_peers`). It counts on
every Link that leads from one of its own ends to that peer: from its domain, which is its namespace, wherever it runs; and from
each pool of the node that it lands on. A Link is used forward (`from` to `to`) or backward (`reverse`), whichever way the pod
sends. So a link between domains lets all nodes or none, one between pools depends on the node.

Pods are counted as they are placed, assumed ones included, so that one decision sees all earlier ones. Lowering a capacity ends
nothing; it lets nothing new in. A capacity that can't be read counts as none.

Pure; called from one thread. Invariant: `used` of a direction is the sum of what is charged to the pods that are placed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.events import LinkGone, LinkSeen, PoolGone, PoolSeen
from muster.engine.facts import LinkEndFacts, LinkFacts, NodeFacts, PodFacts, PoolFacts
from muster.engine.plugin import Plugin, Scope, Wake
from muster.engine.plugins.bandwidth import HOLDERS_MAX
from muster.engine.plugins.node_pool import pool_mask
from muster.objects.bandwidth import parse_bandwidth
from muster.objects.bandwidth_peers import Peer, Sent, parse_peers
from muster.objects.labels import Muster
from muster.objects.reasons import Holder, Reason, Shortfall, Verdict, shortfall

if TYPE_CHECKING:
    from muster.engine.events import AnyEvent
    from muster.engine.pods import PodRecord
    from muster.engine.state import State
    from muster.engine.units import Unit

FIELD = f"metadata.annotations[{Muster.BANDWIDTH_TO}]"


class Way(NamedTuple):
    """One direction of a link."""

    link: str
    is_reverse: bool


class Lane(NamedTuple):
    """A way, where it starts, and how much may pass."""

    way: Way
    source: Peer
    target: Peer
    capacity_bps: int
    problem: str


class LinkBandwidth(Plugin):
    name = "LinkBandwidth"
    scope = Scope.WIDE
    reason = Reason.LINK_BANDWIDTH_INSUFFICIENT
    wakes_on = frozenset({Wake.LINK, Wake.NODE})
    shape_annotations = (Muster.BANDWIDTH_TO,)
    concerns_by_shape = True

    def attach(self, state: State) -> None:
        super().attach(state)
        self._links: dict[str, LinkFacts] = dict(state.links)
        self._pools: dict[str, PoolFacts] = dict(state.pools)
        self._lanes: dict[Peer, list[Lane]] = {}
        """By the peer that they lead to."""
        self._senders: dict[str, PodRecord] = {}
        self._charged: dict[str, list[tuple[Way, int]]] = {}
        self._used: dict[Way, int] = {}
        self._draw_lanes()

    # -- counting ------------------------------------------------------------------------------------------------------------

    def pod_added(self, pod: PodRecord, slot: int) -> None:
        if Muster.BANDWIDTH_TO in pod.facts.metadata.annotations:
            self._discharge(pod.uid)
            self._senders[pod.uid] = pod
            self._charge(pod, slot)

    def pod_removed(self, pod: PodRecord, slot: int) -> None:
        if self._senders.pop(pod.uid, None) is not None and self._discharge(pod.uid):
            self.state.woken.add(Wake.LINK)

    def node_seen(self, slot: int, node: NodeFacts) -> None:
        """Its labels may have moved it to other pools."""
        if not self._senders or not self._pools:
            return
        for uid in self.state.on_node.get(node.metadata.name, {}):
            if uid in self._senders:
                self._discharge(uid)
                self._charge(self._senders[uid], slot)

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        match event:
            case LinkSeen():
                self._links[event.link.metadata.name] = event.link
            case LinkGone():
                self._links.pop(event.name, None)
            case PoolSeen():
                self._pools[event.pool.metadata.name] = event.pool
            case PoolGone():
                self._pools.pop(event.name, None)
            case _:
                return None
        self._draw_lanes()
        self._used.clear()
        self._charged.clear()
        for pod in self._senders.values():
            self._charge(pod, self.state.nodes.slots[pod.node])
        self.state.woken.add(Wake.LINK)
        return None

    def used_bps(self, link: str, *, reverse: bool = False) -> int:
        """What is promised on a link, in one direction."""
        return self._used.get(Way(link, reverse), 0)

    def _draw_lanes(self) -> None:
        self._lanes = {}
        for name in sorted(self._links):
            for lane in lanes_of(self._links[name]):
                self._lanes.setdefault(lane.target, []).append(lane)

    def _charge(self, pod: PodRecord, slot: int) -> None:
        sent, _ = sent_by(pod.facts)
        node = NodeBlock(self.state.nodes, np.array([slot]))
        charges = []
        for lane, bps in self._asked(pod.facts, sent):
            if lane.source.kind == "domain" or self._members(lane.source.name, node)[0]:
                charges.append((lane.way, bps))
                self._used[lane.way] = self._used.get(lane.way, 0) + bps
        if charges:
            self._charged[pod.uid] = charges

    def _discharge(self, uid: str) -> bool:
        charges = self._charged.pop(uid, ())
        for way, bps in charges:
            self._used[way] -= bps
            if not self._used[way]:
                del self._used[way]
        return bool(charges)

    def _asked(self, pod: PodFacts, sent: Sent) -> list[tuple[Lane, int]]:
        """Lanes that the pod would use: from its domain, and from any pool."""
        domain = pod.metadata.namespace
        return [
            (lane, bps)
            for peer, bps in sent.items()
            if bps
            for lane in self._lanes.get(peer, ())
            if lane.source.kind == "pool" or lane.source.name == domain
        ]

    # -- deciding ------------------------------------------------------------------------------------------------------------

    def concerns(self, pods: PodBlock) -> bool:
        return Muster.BANDWIDTH_TO in pods.shape.annotations

    def prefilter(self, unit: Unit, pods: PodBlock, now: float) -> Verdict | None:
        if pods.pod is None:
            return None
        _, problem = sent_by(pods.pod)
        if not problem:
            return None
        return Verdict(
            reason=Reason.UNIT_INVALID, subject=f"Pod {pods.pod.key}", message=f"{FIELD}: {problem}", plugin=self.name
        )

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        mask: Mask = np.ones(len(nodes), np.bool_)
        for lane, _, _ in self._full(pods):
            if lane.source.kind == "domain":
                mask[:] = False
                break
            mask &= ~self._members(lane.source.name, nodes)
        return mask

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, Sequence[Shortfall]]:
        found = []
        for lane, want, free in self._full(pods):
            if lane.source.kind == "domain" or self._members(lane.source.name, nodes).any():
                where = f"Link {lane.way.link} from {lane.source} to {lane.target}"
                found.append(
                    shortfall(
                        self.reason,
                        want=want,
                        best=max(free, 0),
                        unit="bps",
                        resource="link-bandwidth",
                        where=f"{where} ({lane.problem})" if lane.problem else where,
                        holders=self._holders(lane.way),
                    )
                )
        return self.reason, sorted(found, key=lambda one: (-one.missing, one.where))

    def _full(self, pods: PodBlock) -> list[tuple[Lane, int, int]]:
        """Lanes that can't take the pod: what it wants there, and what is free."""
        if pods.pod is None:
            return []
        sent, _ = sent_by(pods.pod)
        free = ((lane, bps, lane.capacity_bps - self._used.get(lane.way, 0)) for lane, bps in self._asked(pods.pod, sent))
        return [(lane, bps, left) for lane, bps, left in free if bps > left]

    def _holders(self, way: Way) -> tuple[Holder, ...]:
        amounts = (
            (bps, self._senders[uid].key, self._senders[uid].node)
            for uid, charges in self._charged.items()
            for used, bps in charges
            if used == way
        )
        largest = sorted(amounts, key=lambda one: (-one[0], one[1]))[:HOLDERS_MAX]
        return tuple(Holder("Pod", key, bps, node) for bps, key, node in largest)

    def _members(self, pool: str, nodes: NodeBlock) -> Mask:
        members: Mask = np.atleast_1d(pool_mask(self._pools.get(pool), nodes))
        return members


def sent_by(pod: PodFacts) -> tuple[Sent, str]:
    """What the pod says it sends, and what is wrong with the way it says so. One that can't be read sends nothing."""
    text = pod.metadata.annotations.get(Muster.BANDWIDTH_TO)
    return ({}, "") if text is None else _read(text)


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> tuple[Sent, str]:
    """For reading only: the answer is shared."""
    try:
        return parse_peers(text), ""
    except ValueError as error:
        return {}, str(error)


def lanes_of(link: LinkFacts) -> list[Lane]:
    """Both directions of a link; none when it does not say between whom."""
    spec, name = link.spec, link.metadata.name
    start, end = _end(spec.from_), _end(spec.to)
    if start is None or end is None or start == end:
        return []
    reserved, reserved_problem = _amount("reserved", spec.reserved)
    forward, forward_problem = _amount("capacity", spec.capacity)
    back, back_problem = (forward, forward_problem) if spec.reverse is None else _amount("reverse", spec.reverse)
    return [
        Lane(
            Way(name, is_reverse),
            source,
            target,
            0 if problem or reserved_problem else max(capacity - reserved, 0),
            problem or reserved_problem,
        )
        for is_reverse, source, target, capacity, problem in (
            (False, start, end, forward, forward_problem),
            (True, end, start, back, back_problem),
        )
    ]


def _end(end: LinkEndFacts) -> Peer | None:
    if bool(end.domain) == bool(end.pool):
        return None
    return Peer("domain", end.domain) if end.domain else Peer("pool", end.pool)


def _amount(word: str, value: str | int | float | None) -> tuple[int, str]:
    if value is None:
        return 0, ""
    try:
        return parse_bandwidth(value), ""
    except ValueError as error:
        return 0, f"spec.{word}: {error}"
