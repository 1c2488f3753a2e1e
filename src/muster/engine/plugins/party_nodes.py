"""PartyNodes: the nodes of a party take work of that party only, whatever the work tolerates.

A node belongs to a party by its label `kuscia.secretflow/namespace`; the party of a pod is its namespace. A pod goes to nodes
of its own party and to nodes of none. The taint that agents of a party put on their nodes keeps out what does not tolerate it;
this keeps out what tolerates everything, and comes first, so that nobody is told to do what would not help: to tolerate a
taint, to uncordon or bring back a node.

Pure: reads the label's column, returns a mask. Pods of a namespace that any node was ever set apart for have shapes of their
own (`ShapeNames.namespaces`); all others are alike here, since no node is theirs alone.
"""

from __future__ import annotations

import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import ABSENT, Mask
from muster.engine.facts import NodeFacts
from muster.engine.plugin import Plugin, Scope
from muster.objects.labels import KusciaLabel
from muster.objects.reasons import Reason, Shortfall, shortfall

LABEL = KusciaLabel.NODE_NAMESPACE


class PartyNodes(Plugin):
    name = "PartyNodes"
    scope = Scope.NODE
    reason = Reason.PARTY_MISMATCH

    def node_seen(self, slot: int, node: NodeFacts) -> None:
        if party := node.metadata.labels.get(LABEL):
            self.state.shapes.names.set_apart(party)

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        return open_to(pods.shape.namespace, nodes)

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, list[Shortfall]]:
        """Says so when there is no node of the pod's party and none of no party at all."""
        party = pods.pod.metadata.namespace if pods.pod is not None else pods.shape.namespace
        if np.any(open_to(party, NodeBlock(self.state.nodes))):
            return self.reason, []
        what = f"nodes for namespace {party} or of no party"
        return self.reason, [shortfall(self.reason, want=1, best=0, unit="count", resource=what)]


def open_to(party: str, nodes: NodeBlock) -> Mask:
    """The nodes of the party, and those of none."""
    columns = nodes.columns
    ids, known = nodes.take(columns.label_ids(LABEL)), columns.label_values(LABEL)
    mask: Mask = ids == ABSENT
    for value in {"", party}:
        if value in known:
            mask = mask | (ids == known[value])
    return mask
