"""NodeReady: a node whose Ready condition is there and not True takes no new pods.

kube-scheduler has no such plugin: a controller of Kubernetes taints such nodes, and TaintToleration reads the taint. Here no
controller may be running, so the condition itself is read, and means what the taint would: pods that tolerate
`node.kubernetes.io/not-ready:NoSchedule` (Ready is False) or `node.kubernetes.io/unreachable:NoSchedule` (anything else) may
come. A node that reports no Ready condition is taken as ready. Pure; keeps one own column.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.facts import NodeFacts
from muster.engine.node_selectors import tolerates
from muster.engine.plugin import Plugin, Scope
from muster.objects.kinds.nodes import Taint
from muster.objects.reasons import Reason

_READY: Final = 0
_TAINTS: Final = (
    Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"),
    Taint(key="node.kubernetes.io/unreachable", effect="NoSchedule"),
)
"""By the column's value less one."""


class NodeReady(Plugin):
    name = "NodeReady"
    scope = Scope.NODE
    reason = Reason.NODE_NOT_READY

    def node_seen(self, slot: int, node: NodeFacts) -> None:
        self.state.nodes.own(self.name, np.int8)[0, slot] = readiness(node)

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        tolerations = pods.shape.spec.tolerations
        table = np.array([True, *(any(tolerates(t, taint) for t in tolerations) for taint in _TAINTS)])
        mask: Mask = table[nodes.own(self.name, np.int8)[0]]
        return mask


def readiness(node: NodeFacts) -> int:
    """0 for ready, 1 for not ready, 2 for unknown."""
    for condition in node.status.conditions:
        if condition.type == "Ready":
            return {"True": _READY, "False": 1}.get(condition.status, 2)
    return _READY
