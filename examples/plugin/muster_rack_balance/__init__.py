"""RackBalance: GPU work goes to the rack with the largest share of free GPUs, and some GPUs of each rack stay free.

A rack is what a node label says. A node without the label is a rack of its own. What is kept free is a spare: when a machine of
the rack breaks down, its work finds a place near its data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import ABSENT, Array, Column, Mask
from muster.engine.plugin import SCORE_MAX, Plugin, Scope, Wake
from muster.objects.reasons import Reason, Shortfall, shortfall


class RackBalanceArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What a profile may set, in camelCase: `keepFree: 2`."""

    label: str = "example.com/rack"
    resource: str = "nvidia.com/gpu"
    keep_free: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("label: name the node label that says which rack a node is in")


class RackBalance(Plugin):
    name = "RackBalance"
    scope = Scope.WIDE  # the answer for a node depends on the other nodes of its rack
    wakes_on = frozenset({Wake.NODE, Wake.POD})
    reason = Reason.GPU_INSUFFICIENT
    Args = RackBalanceArgs

    def concerns(self, pods: PodBlock) -> bool:
        """Work without GPUs is none of our business: the engine does not ask us about it again."""
        row = self._row()
        return row is not None and row in pods.asked

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        mask: Mask = self._left_over(pods, nodes) >= self.args.keep_free
        return mask

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, Sequence[Shortfall]]:
        left = np.atleast_1d(self._left_over(pods, nodes))
        best = int(left.argmax())
        return self.reason, [
            shortfall(
                self.reason,
                want=self.args.keep_free,
                best=left[best],
                unit="count",
                resource=f"{self.args.resource} left free in the rack",
                where=nodes.names()[best],
            )
        ]

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        row = self._row()
        free, capacity = self._per_rack(nodes.columns.free[row]), self._per_rack(nodes.columns.capacity[row])
        scores: Column = nodes.take(np.clip(free * SCORE_MAX // np.maximum(capacity, 1), 0, SCORE_MAX))
        return scores

    def _row(self) -> int | None:
        """The row of the columns that counts our resource; None until a node or pod has it."""
        return self.state.table.rows.get(self.args.resource)

    def _left_over(self, pods: PodBlock, nodes: NodeBlock) -> Any:
        """GPUs that would stay free in each node's rack once the pod is there."""
        row = self._row()
        return nodes.take(self._per_rack(nodes.columns.free[row])) - pods.request[row]

    def _per_rack(self, amounts: Array) -> Array:
        """For each node the sum over its rack: one pass over all nodes, whatever the number of racks."""
        racks = self.state.nodes.label_ids(self.args.label)
        sums = np.zeros(int(racks.max(initial=0)) + 1, np.int64)
        np.add.at(sums, racks, amounts)
        return np.where(racks == ABSENT, amounts, sums[racks])
