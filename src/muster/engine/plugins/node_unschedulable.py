"""NodeUnschedulable: a cordoned node takes only pods that tolerate `node.kubernetes.io/unschedulable:NoSchedule`.

Pure: reads columns, returns a mask.
"""

from __future__ import annotations

from typing import Final

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.node_selectors import every_node, tolerates
from muster.engine.plugin import Plugin, Scope
from muster.objects.kinds.nodes import Taint
from muster.objects.reasons import Reason

CORDONED: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""The taint that Kubernetes puts on a cordoned node. `spec.unschedulable` alone means the same."""


class NodeUnschedulable(Plugin):
    name = "NodeUnschedulable"
    scope = Scope.NODE
    reason = Reason.NODE_UNSCHEDULABLE

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        if any(tolerates(toleration, CORDONED) for toleration in pods.shape.spec.tolerations):
            return every_node(nodes)
        mask: Mask = ~nodes.take(nodes.columns.unschedulable)
        return mask
