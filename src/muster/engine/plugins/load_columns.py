"""The load of each node in columns, kept up to date: what LoadAwareScheduling filters and scores by.

The load of a node is what its NodeMetric reported, plus what pods are expected to use that the report can't show yet: those
without a figure of their own, those that were placed less than a report interval before it, and those within a window that is
asked for; each with the part of its estimate that is above its reported use.

Pure; called by its plugin, from one thread. What time changes (a report expires, a window ends) is found by `event`, which
names the nodes it happened to; until then it counts as not having happened. Invariant: the columns equal what they would be if
made of the state from scratch; taking a pod away and putting it back changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from muster.engine.events import NodeMetricGone, NodeMetricSeen
from muster.engine.facts import NodeFacts
from muster.engine.plugins.keeping import Alarms, Kept
from muster.engine.plugins.load_args import LoadAwareArgs, Thresholds, parse_duration, thresholds_of
from muster.engine.plugins.load_report import (
    PROD,
    Amounts,
    Report,
    condition_time,
    estimate,
    own_seconds,
    priority_class,
    vector,
)
from muster.objects.labels import KoordinatorNode, KoordinatorPod

if TYPE_CHECKING:
    from muster.engine.events import AnyEvent
    from muster.engine.plugin import Plugin
    from muster.engine.pods import PodRecord
    from muster.engine.shapes import Shape
    from muster.engine.state import State

NO_METRIC, FRESH, EXPIRED = 0, 1, 2
"""Values of the column `status`."""
NO_LIMIT: Final = 2**62
_KNOWN_MAX: Final = 65_536


class _Load:
    """A node that reports: its report, and what each pod on it adds to that."""

    __slots__ = ("added", "only_estimates", "report", "times")

    def __init__(self, report: Report) -> None:
        self.report = report
        self.added: dict[str, Amounts] = {}
        self.times: dict[str, tuple[float, float | None]] = {}
        """When each pod was placed and initialized, as known when it was first looked at beside this report."""
        self.only_estimates = (False, False)
        """For filter and score: the window that is asked for is missing, so estimates stand for the use."""


class LoadColumns:
    def __init__(self, plugin: Plugin, state: State, args: LoadAwareArgs) -> None:
        self.state, self.args, self.resources = state, args, args.resources
        self._now = state.now
        count = self._count = len(self.resources)
        self.use = Kept(plugin, state, "use", 3 * count)
        """Rows: for filter, for prod pods, for score; each over the resources."""
        self.most = Kept(plugin, state, "most", 2 * count + 1)
        """Rows: the most that the thresholds allow to be used, that for prod pods, and whether there are any for prod pods."""
        self.allocatable = Kept(plugin, state, "allocatable", count)
        self.status = Kept(plugin, state, "status", 1)
        self._alarms = Alarms(plugin, state)
        self.loads = {name: _Load(Report(metric, self.resources)) for name, metric in state.metrics.items()}
        self.has_limits = False
        """Whether any node has a threshold."""
        self._estimates: dict[int, tuple[Amounts, bool]] = {}
        self._assigned: dict[str, float] = {}
        """When pods were placed of which no condition says so yet."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.use.name, self.most.name, self.allocatable.name, self.status.name, self._alarms.name)

    @property
    def next_look(self) -> float | None:
        return self._alarms.first

    def node_seen(self, slot: int, node: NodeFacts) -> None:
        self.allocatable.all[:, slot] = allocatable(node, self.resources)
        found = self.thresholds(node)
        total = self.allocatable.all[:, slot]
        usage, prod = ([words.get(name, 0) for name in self.resources] for words in (found.usage, found.prod))
        most = self.most.all
        most[: self._count, slot] = most_allowed(total, np.array(usage))
        most[self._count : -1, slot] = most_allowed(total, np.array(prod))
        most[-1, slot] = any(prod)
        self.has_limits = self.has_limits or any(usage) or any(prod)
        self._refresh(slot)

    def pod_added(self, pod: PodRecord, slot: int) -> None:
        load = self.loads.get(pod.node)
        if load is None:
            if condition_time(pod.facts, "PodScheduled") is None:
                self._remember(pod.uid)
            return
        self._subtract(load, pod.uid, slot)
        added = self._adds(load, pod, slot)
        if added is not None:
            load.added[pod.uid] = added
            self.use.all[:, slot] += added

    def pod_removed(self, pod: PodRecord, slot: int) -> None:
        load = self.loads.get(pod.node)
        if load is not None:
            self._subtract(load, pod.uid, slot)

    def event(self, event: AnyEvent) -> list[int]:
        """The slots of the nodes whose load changed by the event or by time."""
        self._now = self.state.now
        slots = self._alarms.ring(self._now)
        name = ""
        if isinstance(event, NodeMetricSeen):
            name = event.metric.metadata.name
            self.loads[name] = _Load(Report(event.metric, self.resources))
        elif isinstance(event, NodeMetricGone):
            name = event.name
            self.loads.pop(name, None)
        slot = self.state.nodes.slots.get(name)
        if slot is not None and slot not in slots:
            slots.append(slot)
        for one in slots:
            self._refresh(one)
        return slots

    def _refresh(self, slot: int) -> None:
        """Work out a node's columns from its report and the pods that count on it."""
        name, count = self.state.nodes.names[slot], self._count
        load = self.loads.get(name)
        self._alarms.set(slot, math.inf)
        self.use.all[:, slot] = 0
        if load is None:
            self.status.all[0, slot] = NO_METRIC
            return
        report, now = load.report, self._now
        expires = -math.inf if report.at is None else report.at + self.args.node_metric_expiration_seconds
        self.status.all[0, slot] = EXPIRED if now >= expires else FRESH if report.has_node else NO_METRIC
        if now < expires:
            self._alarms.set(slot, expires)
        found = self.thresholds(self.state.nodes.facts[slot])
        filtering = report.aggregated(found.aggregation, found.window_s) if found.aggregation else report.node
        scoring = self._score_use(report)
        load.only_estimates = (filtering is None, scoring is None)
        load.added.clear()
        prod = list(report.system) if self.args.prod_usage_include_sys else [0] * count
        for pod_use in report.pods.values():
            if pod_use.is_prod:
                prod = [a + b for a, b in zip(prod, pod_use.amounts, strict=True)]
        use = [*(filtering or [0] * count), *prod, *(scoring or [0] * count)]
        for pod in self.state.on_node.get(name, {}).values():
            if pod.index >= 0 and (added := self._adds(load, pod, slot)) is not None:
                load.added[pod.uid] = added
                use = [a + b for a, b in zip(use, added, strict=True)]
        self.use.all[:, slot] = use

    def thresholds(self, node: NodeFacts) -> Thresholds:
        return thresholds_of(self.args, node.metadata.annotations.get(KoordinatorNode.USAGE_THRESHOLDS))

    def _score_use(self, report: Report) -> Amounts | None:
        aggregated = self.args.aggregated
        if aggregated is None or not aggregated.score_aggregation_type:
            return report.node
        return report.aggregated(aggregated.score_aggregation_type, parse_duration(aggregated.score_aggregated_duration))

    def _adds(self, load: _Load, pod: PodRecord, slot: int) -> Amounts | None:
        """What a pod adds to the report, in the rows of `use`; None for nothing."""
        expected, is_prod = self.estimate(pod.shape)
        use = load.report.pods.get((pod.namespace, pod.name))
        part = nothing = (0,) * self._count
        if self._is_expected(load, pod, slot, is_reported=use is not None):
            part = expected if use is None else tuple(max(a - b, 0) for a, b in zip(expected, use.amounts, strict=True))
        for_prod = part if is_prod else nothing
        if use is not None and use.is_prod != is_prod:
            # The agent counted it as something else than what it is.
            sign = 1 if is_prod else -1
            for_prod = tuple(a + sign * b for a, b in zip(for_prod, use.amounts, strict=True))
        for_filter, for_score = load.only_estimates
        added = (*(expected if for_filter else part), *for_prod, *(expected if for_score else part))
        return added if any(added) else None

    def _subtract(self, load: _Load, uid: str, slot: int) -> None:
        added = load.added.pop(uid, None)
        if added is not None:
            self.use.all[:, slot] -= added

    def _is_expected(self, load: _Load, pod: PodRecord, slot: int, *, is_reported: bool) -> bool:
        """Whether the report can't show all that the pod uses. Sets an alarm for the end of a window."""
        report, times = load.report, load.times.get(pod.uid)
        if times is None:
            placed = condition_time(pod.facts, "PodScheduled")
            times = (self._remember(pod.uid) if placed is None else placed, condition_time(pod.facts, "Initialized"))
            load.times[pod.uid] = times
        if not is_reported or report.at is None or times[0] > report.at - report.interval_s:
            return True
        end = self._window_end(pod, *times)
        if end <= self._now:
            return False
        self._alarms.sooner(slot, end)
        return True

    def _window_end(self, pod: PodRecord, placed: float, started: float | None) -> float:
        """Until when the pod counts with its estimate in any case."""
        args = self.args
        after_placed, after_started = args.estimated_seconds_after_pod_scheduled, args.estimated_seconds_after_initialized
        if args.allow_customize_estimation:
            own_placed = own_seconds(pod.shape, KoordinatorPod.LOAD_ESTIMATED_SECONDS_AFTER_SCHEDULED)
            own_started = own_seconds(pod.shape, KoordinatorPod.LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED)
            after_placed = after_placed if own_placed is None else own_placed
            after_started = after_started if own_started is None else own_started
        ends = [-math.inf]
        if after_placed:
            ends.append(placed + after_placed)
        if after_started and started is not None:
            ends.append(started + after_started)
        return max(ends)

    def _remember(self, uid: str) -> float:
        found = self._assigned.get(uid)
        if found is None:
            if len(self._assigned) > 2 * len(self.state.pods) + _KNOWN_MAX:
                self._assigned = {key: when for key, when in self._assigned.items() if key in self.state.pods}
            found = self._assigned[uid] = self.state.now
        return found

    def estimate(self, shape: Shape) -> tuple[Amounts, bool]:
        """What a pod of the shape is expected to use, and whether it is a prod pod."""
        found = self._estimates.get(shape.number)
        if found is None:
            if len(self._estimates) >= _KNOWN_MAX:
                self._estimates.clear()
            args = self.args
            amounts = estimate(shape, self.resources, args.factors, is_customized=args.allow_customize_estimation)
            found = self._estimates[shape.number] = (amounts, priority_class(shape) == PROD)
        return found


def allocatable(node: NodeFacts, resources: Sequence[str]) -> Amounts:
    """Of a node whose figures were raised above what it has: what it really has."""
    amounts = node.status.allocatable
    raw = node.metadata.annotations.get(KoordinatorNode.RAW_ALLOCATABLE)
    if raw:
        try:
            amounts = {**amounts, **msgspec.json.decode(raw, type=dict[str, str | int | float])}
        except msgspec.MsgspecError:
            amounts = node.status.allocatable
    return vector(amounts, resources)


def most_allowed(total: Any, limit: Any) -> Any:
    """The most that may be used for its share of `total`, rounded to whole percents, halves up, not to be above `limit`."""
    most = (total // 200) * (2 * limit + 1) - (-(total % 200) * (2 * limit + 1)) // 200 - 1
    return np.where((limit > 0) & (total > 0), most, NO_LIMIT)
