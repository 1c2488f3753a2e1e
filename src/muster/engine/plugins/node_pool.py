"""NodePool: a pod that names a pool goes to nodes of that pool only; an exclusive pool takes only pods that name it.

A pod names its pool by the label `muster.dev/pool`: one name, since a label can't hold a list. A pool's nodes are those that
its selector matches and those that it lists. A node may be in several pools; one exclusive pool of them is enough to keep out
pods that do not name that very pool. A pool that does not exist has no nodes.

Pure. Membership is worked out from label columns when it is asked for; only the last version of each pool is kept, to know
which nodes a change of it is about.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.events import AnyEvent, PoolGone, PoolSeen
from muster.engine.facts import PoolFacts
from muster.engine.node_selectors import every_node, matches_label_selector, named_nodes_mask, no_node
from muster.engine.plugin import Plugin, Scope
from muster.engine.state import State
from muster.objects.labels import Muster
from muster.objects.reasons import Reason, Shortfall, shortfall


class NodePool(Plugin):
    name = "NodePool"
    scope = Scope.NODE
    reason = Reason.NODE_POOL_MISMATCH
    shape_labels = (Muster.POOL,)

    def attach(self, state: State) -> None:
        super().attach(state)
        self._known: dict[str, PoolFacts] = dict(state.pools)

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        """A pool came, changed or went: the nodes that were in it or are now."""
        after: PoolFacts | None = None
        if isinstance(event, PoolSeen):
            name, after = event.pool.metadata.name, event.pool
        elif isinstance(event, PoolGone):
            name = event.name
        else:
            return None
        before = self._known.pop(name, None)
        if after is not None:
            self._known[name] = after
        nodes = NodeBlock(self.state.nodes)
        mask = pool_mask(before, nodes) | pool_mask(after, nodes)
        slots: list[int] = np.flatnonzero(mask).tolist()
        return slots

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        wanted = pods.shape.labels.get(Muster.POOL, "")
        pools = self.state.pools
        mask = pool_mask(pools.get(wanted), nodes) if wanted else every_node(nodes)
        for name, pool in pools.items():
            if pool.spec.exclusive and name != wanted:
                mask = mask & ~pool_mask(pool, nodes)
        return mask

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, list[Shortfall]]:
        """Says so when the pool that was named has no node at all, or does not exist."""
        wanted = pods.shape.labels.get(Muster.POOL, "")
        pool = self.state.pools.get(wanted)
        if not wanted or pool_mask(pool, NodeBlock(self.state.nodes)).any():
            return self.reason, []
        what = f"nodes of NodePool {wanted}" if pool is not None else f"NodePool {wanted}, which does not exist"
        return self.reason, [shortfall(self.reason, want=1, best=0, unit="count", resource=what)]


def pool_mask(pool: PoolFacts | None, nodes: NodeBlock) -> Mask:
    """The nodes of the pool."""
    if pool is None:
        return no_node(nodes)
    mask = matches_label_selector(pool.spec.selector, nodes)
    return mask | named_nodes_mask(pool.spec.nodes, nodes) if pool.spec.nodes else mask
