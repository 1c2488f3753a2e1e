"""NodeName: a pod that names its node goes to no other.

A pod with `spec.nodeName` counts as placed as soon as it is seen, so this decides only about pods that are tried on paper.
Pure: reads names, returns a mask.
"""

from __future__ import annotations

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.node_selectors import every_node, named_nodes_mask
from muster.engine.plugin import Plugin, Scope
from muster.objects.reasons import Reason


class NodeName(Plugin):
    name = "NodeName"
    scope = Scope.NODE
    reason = Reason.NODE_NAME_MISMATCH

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        wanted = pods.shape.spec.node_name
        return named_nodes_mask([wanted], nodes) if wanted else every_node(nodes)
