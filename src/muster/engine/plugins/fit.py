"""NodeResourcesFit: a node will do while its free amounts cover the pod's requests; the emptier (or fuller) scores higher.

Bandwidth is left to the plugin of that name, which also knows links and reclaimed shares. Scores follow kube-scheduler:
whole numbers, what containers do not ask for counted with its defaults for CPU and memory.

Pure. Invariant: exact fit counts; a resource that is not asked for is not looked at, even where it is overdrawn.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock, fits
from muster.engine.columns import Array, Column, Mask
from muster.engine.plugin import SCORE_MAX, Plugin, Scope
from muster.engine.resources import CPU, EGRESS, INGRESS, MEMORY
from muster.objects.reasons import Reason, Shortfall, shortfall

ELSEWHERE = (EGRESS, INGRESS)


class ResourceWeight(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class ShapePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At `utilization` percent the score is `score`, of 10."""

    utilization: Annotated[int, msgspec.Meta(ge=0, le=100)]
    score: Annotated[int, msgspec.Meta(ge=0, le=10)]


class RatioParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shape: tuple[ShapePoint, ...] = ()


class ScoringStrategy(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    type: Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"] = "LeastAllocated"
    resources: tuple[ResourceWeight, ...] = (ResourceWeight("cpu"), ResourceWeight("memory"))
    requested_to_capacity_ratio: RatioParam = RatioParam()

    def __post_init__(self) -> None:
        if not self.resources:
            raise ValueError("resources: at least one resource must be weighed")
        points = self.requested_to_capacity_ratio.shape
        if self.type == "RequestedToCapacityRatio":
            if not points:
                raise ValueError("requestedToCapacityRatio.shape: at least one point is needed")
            if any(b.utilization <= a.utilization for a, b in itertools.pairwise(points)):
                raise ValueError("requestedToCapacityRatio.shape: utilization must grow from point to point")


class FitArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    scoring_strategy: ScoringStrategy = ScoringStrategy()

    def __post_init__(self) -> None:
        for group in self.ignored_resource_groups:
            if "/" in group:
                raise ValueError(f"ignoredResourceGroups: {group!r} is a group, so it has no '/'")


class Fit(Plugin):
    name = "NodeResourcesFit"
    scope = Scope.LOCAL
    reason = Reason.RESOURCES_INSUFFICIENT
    Args = FitArgs

    def __init__(self, args: FitArgs | None = None) -> None:
        super().__init__(args)
        self._strategy = self.args.scoring_strategy
        self._weight_sum = sum(r.weight for r in self._strategy.resources)
        self._is_usual = self._strategy.resources == ScoringStrategy().resources and self._strategy.type == "LeastAllocated"
        self._ignores = bool(self.args.ignored_resources or self.args.ignored_resource_groups)

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        mask: Mask = fits(pods, nodes, self._left_out())
        return mask

    def _left_out(self) -> tuple[int, ...]:
        if not self._ignores:
            return ELSEWHERE
        names, groups = self.args.ignored_resources, self.args.ignored_resource_groups
        table = self.state.table
        ignored = (row for row, name in enumerate(table.names) if name in names or name.partition("/")[0] in groups)
        return (*ELSEWHERE, *ignored)

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        if self._is_usual:
            requested, capacity, divisor = nodes.scoring_totals(pods)
            each = least_allocated(requested, capacity, divisor)
            usual: Column = (each[0] + each[1]) >> 1
            return usual
        rows = self.state.table.rows
        total: Any = 0
        for resource in self._strategy.resources:
            row = rows.get(resource.name)
            if row is None:
                continue
            requested, capacity = scoring_amounts(pods, nodes, row)
            total = total + resource.weight * self._one(requested, capacity)
        scores: Column = total // self._weight_sum if self._weight_sum > 1 else total
        return scores

    def _one(self, requested: Any, capacity: Any) -> Any:
        match self._strategy.type:
            case "LeastAllocated":
                return least_allocated(requested, capacity, np.maximum(capacity, 1))
            case "MostAllocated":
                return most_allocated(requested, capacity)
            case _:
                return ratio_score(requested, capacity, self._strategy.requested_to_capacity_ratio.shape)

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, list[Shortfall]]:
        return explain_rows(self, pods, nodes, pods.needs(self._left_out())[0])

    def reasons(self, pods: PodBlock, nodes: NodeBlock) -> list[tuple[Reason, Mask]]:
        return reasons_by_row(self, pods, nodes, pods.needs(self._left_out())[0])


def reasons_by_row(plugin: Plugin, pods: PodBlock, nodes: NodeBlock, rows: Array) -> list[tuple[Reason, Mask]]:
    """Each refused node under the first resource that it is short of."""
    left: Mask = np.ones(len(nodes), np.bool_)
    found: list[tuple[Reason, Mask]] = []
    for row in rows.tolist():
        short = left & (nodes.free[row] < pods.request[row])
        found.append((plugin.state.table.reason(row), short))
        left &= ~short
    return found


def explain_rows(plugin: Plugin, pods: PodBlock, nodes: NodeBlock, rows: Array) -> tuple[Reason, list[Shortfall]]:
    """What is missing, resource by resource: the best of these nodes for each, and the code of the scarcest."""
    table = plugin.state.table
    found: list[tuple[float, Shortfall]] = []
    for row in rows.tolist():
        want, free = int(pods.request[row]), np.atleast_1d(nodes.free[row])
        short = free < want
        if not short.any():
            continue
        best = int(free.argmax())
        share = float(short.mean())
        found.append(
            (
                share,
                shortfall(
                    table.reason(row),
                    want=want,
                    best=free[best],
                    unit=table.unit(row),
                    resource=table.names[row],
                    where=nodes.name_at(best),
                ),
            )
        )
    found.sort(key=lambda pair: (-pair[0], pair[1].resource))
    shortfalls = [one for _, one in found]
    nowhere = [one for one in shortfalls if one.missing > 0]
    if not nowhere:
        return (shortfalls[0].reason if len(shortfalls) == 1 else plugin.reason), shortfalls
    return nowhere[0].reason, [*nowhere, *(one for one in shortfalls if one.missing <= 0)]


def scoring_amounts(pods: PodBlock, nodes: NodeBlock, row: int) -> tuple[Any, Any]:
    """What would be requested with the pod, and the capacity, in the row; CPU and memory with scoring's defaults."""
    if row == CPU:
        return nodes.scoring_used[0] + pods.scoring[0], nodes.capacity[CPU]
    if row == MEMORY:
        return nodes.scoring_used[1] + pods.scoring[1], nodes.capacity[MEMORY]
    return nodes.capacity[row] - nodes.free[row] + pods.request[row], nodes.capacity[row]


def least_allocated(requested: Any, capacity: Any, divisor: Any) -> Any:
    """The free share with the pod, in percent; 0 where it does not fit.

    Divided as floats, which is faster, and for capacities below 2**46 gives the same whole numbers.
    """
    free = capacity - requested
    free *= SCORE_MAX
    return np.maximum(free / divisor, 0).astype(np.int32)


def most_allocated(requested: Any, capacity: Any) -> Any:
    """The used share with the pod, in percent; 0 where it does not fit or there is no such resource."""
    return np.where(requested <= capacity, requested * SCORE_MAX // np.maximum(capacity, 1), 0)


def ratio_score(requested: Any, capacity: Any, points: tuple[ShapePoint, ...]) -> Any:
    """The user's curve over the used share, straight lines between its points."""
    used = np.where((capacity > 0) & (requested <= capacity), requested * 100 // np.maximum(capacity, 1), 100)
    x = [point.utilization for point in points]
    y = [point.score * 10 for point in points]
    return np.interp(used, x, y).astype(np.int64)
