"""Bandwidth: a node will do while its free bandwidth covers the pod's request, in each direction.

NodeResourcesFit leaves both directions to this plugin: a profile without it does not look at bandwidth at all. A node that
nobody has given a capacity offers none.

Scores (`strategy: Spread|Pack`) look at the tighter of the directions that the pod asks for; a pod that asks for none gets 0
everywhere, so it is placed as if the plugin were not there.

Lending (`reclaim`, off by default; the rules are in `bandwidth_reclaim`) adds what is reserved and steadily unused to what is
free. It needs a NodeMetric with `bandwidth-egress` and `bandwidth-ingress` (bits per second) in `nodeUsage.resources` and in
`podUsage.resources` of each pod. Invariant: with anything lent, what is offered, the measured use and the requests of pods that
the report does not know yet are together never more than the capacity.

Pure; called from one thread. The own columns say what may be lent on each node; `free` of the columns stays what it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Column, Mask
from muster.engine.events import NodeMetricGone, NodeMetricSeen
from muster.engine.facts import NodeFacts, NodeMetricFacts
from muster.engine.plugin import SCORE_MAX, Plugin, Scope, Wake
from muster.engine.plugins.bandwidth_reclaim import Measured, Quiet, ReclaimArgs, lent_bps, measured, watch
from muster.engine.plugins.keeping import Alarms, Kept
from muster.engine.resources import EGRESS, INGRESS
from muster.objects.bandwidth import BANDWIDTH_MAX_BPS
from muster.objects.reasons import Holder, Reason, Shortfall, shortfall

if TYPE_CHECKING:
    from muster.engine.events import AnyEvent
    from muster.engine.pods import PodRecord
    from muster.engine.shapes import Shape
    from muster.engine.state import State

DIRECTIONS = (EGRESS, INGRESS)
HOLDERS_MAX = 5
"""So many of those who hold a node's bandwidth are named, largest first."""

Watched = dict[str, tuple[tuple[int, int], tuple[Quiet | None, Quiet | None]]]
"""By uid: what the pod had reserved at the last report, and how quiet each direction is."""


class BandwidthArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    strategy: Literal["Spread", "Pack"] = "Spread"
    reclaim: ReclaimArgs = ReclaimArgs()


class Bandwidth(Plugin):
    name = "Bandwidth"
    scope = Scope.LOCAL
    reason = Reason.BANDWIDTH_INSUFFICIENT
    wakes_on = frozenset({Wake.NODE})
    Args = BandwidthArgs

    def __init__(self, args: BandwidthArgs | None = None) -> None:
        super().__init__(args)
        self._reclaim: ReclaimArgs = self.args.reclaim
        self._is_packing = self.args.strategy == "Pack"
        self._lent: Kept | None = None
        self._alarms: Alarms | None = None
        self._measured: dict[str, Measured] = {}
        self._watched: dict[str, Watched] = {}
        if self._reclaim.enabled:
            # What is lent is no part of `free`, so a freed node alone does not tell who fits now.
            self.wakes_on = frozenset({Wake.NODE, Wake.METRIC})  # type: ignore[misc]

    # -- filtering and scoring ---------------------------------------------------------------------------------------------

    def concerns(self, pods: PodBlock) -> bool:
        return EGRESS in pods.asked or INGRESS in pods.asked

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        if pods.asked.isdisjoint(DIRECTIONS):
            return np.True_  # type: ignore[return-value]
        egress, ingress = self._offered(nodes)
        mask: Mask = (egress >= pods.need[EGRESS]) & (ingress >= pods.need[INGRESS])
        return mask

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        if pods.asked.isdisjoint(DIRECTIONS):
            return np.int64(0)  # type: ignore[return-value]
        used: Any = 0
        for row, free in zip(DIRECTIONS, self._offered(nodes), strict=True):
            request = pods.request[row]
            share = used_percent(nodes.capacity[row], free, request)
            used = np.maximum(used, np.where(request > 0, share, 0))
        asks = (pods.request[EGRESS] > 0) | (pods.request[INGRESS] > 0)
        scores: Column = np.where(asks, used if self._is_packing else SCORE_MAX - used, 0)
        return scores

    def _offered(self, nodes: NodeBlock) -> tuple[Any, Any]:
        if self._lent is None:
            return nodes.free[EGRESS], nodes.free[INGRESS]
        lent = self._lent.of(nodes)
        return nodes.free[EGRESS] + lent[0], nodes.free[INGRESS] + lent[1]

    # -- explaining ----------------------------------------------------------------------------------------------------------

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, Sequence[Shortfall]]:
        """The node that lacks least, each direction in which it does, and who holds the most there."""
        want = [int(pods.request[row]) for row in DIRECTIONS]
        offered = [np.atleast_1d(column) for column in self._offered(nodes)]
        lacking = [np.where(w > 0, np.maximum(w - free, 0), 0) for w, free in zip(want, offered, strict=True)]
        best = int((lacking[0] + lacking[1]).argmin())
        node = nodes.name_at(best)
        found = [
            shortfall(
                self.reason,
                want=want[i],
                best=max(int(offered[i][best]), 0),
                unit="bps",
                resource=self.state.table.names[row],
                where=node,
                holders=holders(self.state.on_node.get(node, {}).values(), row, node),
            )
            for i, row in enumerate(DIRECTIONS)
            if lacking[i][best] > 0
        ]
        return self.reason, sorted(found, key=lambda one: -one.missing)

    # -- lending ---------------------------------------------------------------------------------------------------------------

    @property
    def kept_names(self) -> tuple[str, ...]:
        return (self._lent.name, self._alarms.name) if self._lent is not None and self._alarms is not None else ()

    def attach(self, state: State) -> None:
        super().attach(state)
        if self._reclaim.enabled:
            self._lent = Kept(self, state, "lent", 2)
            self._alarms = Alarms(self, state)
            for metric in state.metrics.values():
                self._take(metric)

    def node_seen(self, slot: int, node: NodeFacts) -> None:
        self._lend(slot)

    def follows(self, shape: Shape) -> bool:
        return self._lent is not None

    def pod_added(self, pod: PodRecord, slot: int) -> None:
        if self._lent is not None and (pod.request[EGRESS] or pod.request[INGRESS]):
            self._lend(slot)

    def pod_removed(self, pod: PodRecord, slot: int) -> None:
        if self._lent is not None and (pod.request[EGRESS] or pod.request[INGRESS]):
            self._lend(slot)
            if self._lent.all[:, slot].any():
                # The free amounts do not show what is offered here, so they do not show whom this helps either.
                self.state.woken.add(Wake.METRIC)

    def next_look(self) -> float | None:
        return None if self._alarms is None else self._alarms.first

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        if self._alarms is None:
            return None
        slots = self._alarms.ring(self.state.now)
        name = ""
        if isinstance(event, NodeMetricSeen):
            name = event.metric.metadata.name
            self._take(event.metric)
        elif isinstance(event, NodeMetricGone):
            name = event.name
            self._measured.pop(name, None)
            self._watched.pop(name, None)
        slot = self.state.nodes.slots.get(name)
        if slot is not None and slot not in slots:
            slots.append(slot)
        for one in slots:
            self._lend(one)
        return slots

    def _take(self, metric: NodeMetricFacts) -> None:
        """A report: how quiet is each reservation now?"""
        name = metric.metadata.name
        report = measured(metric)
        before, after = self._watched.pop(name, {}), Watched()
        if report is None:
            self._measured.pop(name, None)
            return
        self._measured[name] = report
        for uid, pod in self.state.on_node.get(name, {}).items():
            reserved = _reserved(pod)
            use = report.pods.get((pod.namespace, pod.name))
            if use is None or reserved == (0, 0):
                continue
            old = before.get(uid)
            quiet = old[1] if old is not None and old[0] == reserved else (None, None)
            after[uid] = (
                reserved,
                (
                    watch(quiet[0], use.egress_bps, reserved[0], report.at, self._reclaim),
                    watch(quiet[1], use.ingress_bps, reserved[1], report.at, self._reclaim),
                ),
            )
        if after:
            self._watched[name] = after

    def _lend(self, slot: int) -> None:
        """Work out what may be lent on the node. Depends on nothing but what is there now, so it may be repeated at will."""
        if self._lent is None or self._alarms is None:
            return
        columns = self.state.nodes
        name = columns.names[slot]
        report = self._measured.get(name)
        expires = report.at + self._reclaim.expire_seconds if report is not None else math.inf
        watched = self._watched.get(name)
        if report is None or watched is None or self.state.now >= expires:
            self._lent.all[:, slot] = 0
            self._alarms.set(slot, math.inf)
            return
        lendable, unmeasured = [0, 0], [0, 0]
        for uid, pod in self.state.on_node.get(name, {}).items():
            reserved = _reserved(pod)
            known = watched.get(uid)
            for i in (0, 1):
                if known is None or known[0] != reserved:
                    unmeasured[i] += reserved[i]
                else:
                    lendable[i] += lent_bps(known[1][i], reserved[i], self._reclaim)
        for i, (row, use) in enumerate(zip(DIRECTIONS, (report.node.egress_bps, report.node.ingress_bps), strict=True)):
            unused = int(columns.capacity[row, slot]) - use - unmeasured[i]
            self._lent.all[i, slot] = max(min(lendable[i], unused - int(columns.free[row, slot])), 0)
        self._alarms.set(slot, expires)


def _reserved(pod: PodRecord) -> tuple[int, int]:
    return int(pod.request[EGRESS]), int(pod.request[INGRESS])


def used_percent(capacity: Any, free: Any, request: Any) -> Any:
    """The used share with the pod in whole percent, 0 to 100; 100 where there is no capacity. Cut so that it can't overflow."""
    total = np.clip(capacity, 0, BANDWIDTH_MAX_BPS)
    used = np.clip(capacity - free + request, 0, total)
    return np.where(total > 0, used * SCORE_MAX // np.maximum(total, 1), SCORE_MAX)


def holders(pods: Iterable[PodRecord], row: int, node: str) -> tuple[Holder, ...]:
    """Who holds the most of a resource."""
    amounts = ((int(pod.request[row]), pod.key) for pod in pods if row < len(pod.request) and pod.request[row])
    largest = sorted(amounts, key=lambda pair: (-pair[0], pair[1]))[:HOLDERS_MAX]
    return tuple(Holder("Pod", key, amount, node) for amount, key in largest)
