"""NodeResourcesBalancedAllocation: nodes score higher where the used shares of the resources stay close to each other.

As kube-scheduler has it: the standard deviation of the shares, turned round. Pure. Shares are quantised to whole percents of
the score, so that equal inputs give equal choices on any CPU.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Column
from muster.engine.plugin import SCORE_MAX, Plugin, Scope
from muster.engine.plugins.fit import ResourceWeight, scoring_amounts


class BalancedArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    resources: tuple[ResourceWeight, ...] = (ResourceWeight("cpu"), ResourceWeight("memory"))

    def __post_init__(self) -> None:
        if len(self.resources) < 2:
            raise ValueError("resources: at least two are needed to compare")


class BalancedAllocation(Plugin):
    name = "NodeResourcesBalancedAllocation"
    scope = Scope.LOCAL
    Args = BalancedArgs

    def __init__(self, args: BalancedArgs | None = None) -> None:
        super().__init__(args)
        self._is_usual = self.args == BalancedArgs()

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        if self._is_usual:
            requested, _, divisor = nodes.scoring_totals(pods)
            both = np.minimum(requested / divisor, 1.0)
            return balance_of_two(both[0], both[1])
        table = self.state.table.rows
        rows = [row for r in self.args.resources if (row := table.get(r.name)) is not None]
        shares = [share(*scoring_amounts(pods, nodes, row)) for row in rows]
        if len(shares) == 2:
            return balance_of_two(*shares)
        spread = np.std(np.broadcast_arrays(*shares), axis=0) * SCORE_MAX
        scores: Column = (SCORE_MAX - spread).astype(np.int64)
        return scores


def balance_of_two(one: Any, other: Any) -> Column:
    """The standard deviation of two is half their distance."""
    distance = one - other
    np.abs(distance, out=distance)
    distance *= -SCORE_MAX / 2
    distance += SCORE_MAX
    scores: Column = distance.astype(np.int64)
    return scores


def share(requested: Any, capacity: Any) -> Any:
    """The used share with the pod, at most 1; 1 where there is no such resource."""
    return np.minimum(requested / np.maximum(capacity, 1), 1.0)
