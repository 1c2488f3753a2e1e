"""LoadAwareScheduling: keeps pods off nodes that are measured busy, and prefers those that are measured idle.

Filter and score follow Koordinator, with its arguments and its node annotation. What counts as the load of a node is kept in
`load_columns`; the pod to be placed counts with its estimate on top. A node without a NodeMetric is never refused and scores 0.
DaemonSet pods are never refused. Resources that the arguments do not name are not limited, also if a node's annotation names
them.

Pure; called from one thread. Scope LOCAL, since `event` names the nodes that time alone has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Array, Column, Mask
from muster.engine.facts import NodeFacts
from muster.engine.plugin import SCORE_MAX, Plugin, Scope, Wake
from muster.engine.plugins.load_args import RESOURCES_MAX, LoadAwareArgs
from muster.engine.plugins.load_columns import EXPIRED, FRESH, NO_METRIC, LoadColumns
from muster.engine.resources import PODS
from muster.objects.labels import KoordinatorPod
from muster.objects.reasons import Reason, Shortfall, Unit, shortfall

if TYPE_CHECKING:
    from muster.engine.events import AnyEvent
    from muster.engine.pods import PodRecord
    from muster.engine.shapes import Shape
    from muster.engine.state import State

IS_DAEMON, IS_PROD = 1, 2
"""Bits of the first feature of a shape; its estimates follow."""


class LoadAware(Plugin):
    name = "LoadAwareScheduling"
    scope = Scope.LOCAL
    reason = Reason.NODE_OVERLOADED
    wakes_on = frozenset({Wake.NODE})  # `event` names the nodes that a report has changed, which is more exact than METRIC
    Args = LoadAwareArgs
    features_len = 1 + RESOURCES_MAX
    shape_annotations = (
        KoordinatorPod.LOAD_ESTIMATED_SCALING_FACTORS,
        KoordinatorPod.LOAD_ESTIMATED_SECONDS_AFTER_SCHEDULED,
        KoordinatorPod.LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED,
    )
    shape_labels = (KoordinatorPod.PRIORITY_CLASS, KoordinatorPod.QOS_CLASS)

    def __init__(self, args: LoadAwareArgs | None = None) -> None:
        super().__init__(args)
        given: LoadAwareArgs = self.args
        self._resources = given.resources
        self._count = len(self._resources)
        self._weighed = [(self._resources.index(name), weight) for name, weight in given.weights.items()]
        self._weight_sum = sum(given.weights.values()) + given.dominant_resource_weight
        self._refuses_expired = given.filter_expired_node_metrics and not given.enable_schedule_when_node_metrics_expired

    # -- observing -----------------------------------------------------------------------------------------------------------

    def attach(self, state: State) -> None:
        super().attach(state)
        self.columns = LoadColumns(self, state, self.args)

    @property
    def kept_names(self) -> tuple[str, ...]:
        return self.columns.names

    def node_seen(self, slot: int, node: NodeFacts) -> None:
        self.columns.node_seen(slot, node)

    def pod_added(self, pod: PodRecord, slot: int) -> None:
        self.columns.pod_added(pod, slot)

    def pod_removed(self, pod: PodRecord, slot: int) -> None:
        self.columns.pod_removed(pod, slot)

    def next_look(self) -> float | None:
        return self.columns.next_look

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        return self.columns.event(event)

    # -- deciding --------------------------------------------------------------------------------------------------------------

    def concerns(self, pods: PodBlock) -> bool:
        return bool(self.columns.loads)

    def features(self, shape: Shape) -> Sequence[int]:
        amounts, is_prod = self.columns.estimate(shape)
        flags = (IS_DAEMON if shape.is_daemon else 0) | (IS_PROD if is_prod else 0)
        return [flags, *amounts, *[0] * (RESOURCES_MAX - self._count)]

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        if not self.columns.loads or not (self.columns.has_limits or self._refuses_expired):
            return np.True_  # type: ignore[return-value]
        features, status = pods.features[self.name], self.columns.status.of(nodes)[0]
        refused: Any = self._over(features, nodes)
        if self.args.filter_expired_node_metrics:
            refused = refused & (status == FRESH)
            if self._refuses_expired:
                refused = refused | (status == EXPIRED)
        else:
            refused = refused & (status != NO_METRIC)
        mask: Mask = ~refused | ((features[0] & IS_DAEMON) > 0)
        return mask

    def _over(self, features: Array, nodes: NodeBlock) -> Any:
        """Where any resource would be above its threshold."""
        count, pods = self._count, 1 + imagined(nodes)
        left = self.columns.most.of(nodes)[:-1] - self.columns.use.of(nodes)[: 2 * count]
        over = self._is_short(features, left[:count], pods)
        has_prod = self.columns.most.of(nodes)[-1] > 0
        if has_prod.any():
            by_prod = ((features[0] & IS_PROD) > 0) & has_prod
            over = np.where(by_prod, self._is_short(features, left[count:], pods), over)
        return over

    def _is_short(self, features: Array, left: Array, pods: Any) -> Any:
        """Whether any of `left` is less than so many pods are expected to use."""
        short: Any = False
        for row in range(self._count):
            short = short | (features[1 + row] * pods > left[row])
        return short

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        if not self.columns.loads or not self._weight_sum:
            return np.int64(0)  # type: ignore[return-value]
        status = self.columns.status.of(nodes)[0]
        if nodes.is_one and status != FRESH:
            return np.int64(0)  # type: ignore[return-value]
        features, count, placed = pods.features[self.name], self._count, 1 + imagined(nodes)
        use, total = self.columns.use.of(nodes), self.columns.allocatable.of(nodes)
        dominant = self.args.dominant_resource_weight
        by_prod = (features[0] & IS_PROD) > 0
        scores: Any = 0
        least: Any = SCORE_MAX
        for row, weight in self._weighed:
            used = use[2 * count + row]
            if self.args.score_according_prod_usage:
                used = np.where(by_prod, use[count + row], used)
            one = np.maximum(total[row] - used - features[1 + row] * placed, 0) * SCORE_MAX // np.maximum(total[row], 1)
            scores = scores + weight * one
            if dominant:
                least = np.minimum(least, one)
        scores = (scores + dominant * least) // self._weight_sum if dominant else scores // self._weight_sum
        found: Column = scores if nodes.is_one else np.where(status == FRESH, scores, 0)
        return found

    # -- explaining ----------------------------------------------------------------------------------------------------------

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, Sequence[Shortfall]]:
        """By resource, what the pod is expected to use, and what is left below the threshold of the best of these nodes."""
        status = np.atleast_1d(self.columns.status.of(nodes)[0])
        is_judged = status == FRESH if self.args.filter_expired_node_metrics else status != NO_METRIC
        features, count, names = pods.features[self.name], self._count, nodes.names()
        use, most = self.columns.use.of(nodes), self.columns.most.of(nodes)
        is_prod = bool(features[0] & IS_PROD) & (np.atleast_1d(most[-1]) > 0)
        found = []
        for row, name in enumerate(self._resources):
            left = np.where(is_prod, most[count + row] - use[count + row], most[row] - use[row])
            short = (left < features[1 + row]) & is_judged
            if short.any():
                best = int(np.where(short, left, np.iinfo(np.int64).min).argmax())
                limits = self.columns.thresholds(self.state.nodes.facts[self.state.nodes.slots[names[best]]])
                limit = (limits.prod if is_prod[best] else limits.usage)[name]
                found.append(
                    shortfall(
                        self.reason,
                        want=features[1 + row],
                        best=max(int(left[best]), 0),
                        unit=_unit(name),
                        resource=name,
                        where=f"{names[best]} below {limit}%",
                    )
                )
        return (self.reason if found else Reason.NODE_METRIC_EXPIRED), found


def imagined(nodes: NodeBlock) -> Any:
    """How many pods more than there are the block counts on each node: answers about several pods at once ask that way."""
    columns = nodes.columns
    if nodes.used is columns.used:
        return 0
    return np.maximum(nodes.used[PODS] - nodes.take(columns.used[PODS]), 0)


def _unit(name: str) -> Unit:
    return "milli" if name == "cpu" else "bytes" if "memory" in name or "storage" in name else "count"
