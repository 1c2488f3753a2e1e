"""NodePool: a pod that names pools goes to nodes of these only; an exclusive pool takes only pods that name it.

A pod names its pool by the label `muster.dev/pool`, or several by the annotation `muster.dev/pools`, with commas. Its queue may
name pools too (`spec.pools`, else those of the nearest queue above that has some; a pod that names no queue is in the default
one). Then a node must be in a pool of each: a queue's pools bind its jobs, and a job may choose among them.

A pool's nodes are those that its selector matches and those that it lists. A node may be in several pools; one exclusive pool
of them is enough to keep out pods that do not name that very pool, nor their queue. A pool that does not exist has no nodes.

Pure. Membership is worked out from label columns when it is asked for; only the last version of each pool and queue is kept, to
know which nodes a change of it is about. Pods of queues that have pools are of shapes of their own (`ShapeNames.queues`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.events import AnyEvent, PoolGone, PoolSeen, QueueGone, QueueSeen
from muster.engine.facts import PoolFacts, QueueFacts
from muster.engine.node_selectors import every_node, matches_label_selector, named_nodes_mask, no_node
from muster.engine.plugin import Plugin, Scope
from muster.engine.shapes import Shape
from muster.engine.state import State
from muster.objects.labels import Muster
from muster.objects.reasons import Reason, Shortfall, shortfall

_NAMED_MAX: Final = 64
"""Pools that one pod may name; more are not read."""
_DEPTH_MAX: Final = 64
"""Queues above each other that are asked for pools."""


class NodePool(Plugin):
    name = "NodePool"
    scope = Scope.NODE
    reason = Reason.NODE_POOL_MISMATCH
    shape_labels = (Muster.POOL,)

    def attach(self, state: State) -> None:
        super().attach(state)
        self._known: dict[str, PoolFacts] = dict(state.pools)
        seen = [event.queue for event in state.order_objects.values() if isinstance(event, QueueSeen)]
        self._queues: dict[str, QueueFacts] = {queue.metadata.name: queue for queue in seen}
        self._queue_pools: dict[str, tuple[str, ...]] = {}
        self._look_up_queues()

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        """A pool came, changed or went: the nodes that were in it or are now. A queue is bound to others: all nodes."""
        after: PoolFacts | None = None
        if isinstance(event, PoolSeen):
            name, after = event.pool.metadata.name, event.pool
        elif isinstance(event, PoolGone):
            name = event.name
        else:
            return self._queue_event(event)
        before = self._known.pop(name, None)
        if after is not None:
            self._known[name] = after
        nodes = NodeBlock(self.state.nodes)
        return _slots(pool_mask(before, nodes) | pool_mask(after, nodes))

    def _queue_event(self, event: AnyEvent) -> Sequence[int] | None:
        if isinstance(event, QueueSeen):
            before = self._queues.get(event.queue.metadata.name)
            self._queues[event.queue.metadata.name] = event.queue
            if _binds_alike(before, event.queue):
                return None
        elif not isinstance(event, QueueGone) or self._queues.pop(event.name, None) is None:
            return None
        if not self._queue_pools and not (isinstance(event, QueueSeen) and event.queue.spec.pools):
            return None  # no queue has pools, so none can have them from another
        return _slots(every_node(NodeBlock(self.state.nodes))) if self._look_up_queues() else None

    def _look_up_queues(self) -> bool:
        """Find again which pools each queue is bound to; whether that has changed."""
        found = {name: pools for name in self._queues if (pools := self._bound_to(name))}
        default = min((name for name, queue in self._queues.items() if queue.spec.is_default), default="")
        if default in found:
            found[""] = found[default]
        for name in found:
            self.state.shapes.names.set_queue_apart(name)
        has_changed, self._queue_pools = found != self._queue_pools, found
        return has_changed

    def _bound_to(self, queue: str) -> tuple[str, ...]:
        """Its own pools, or those of the nearest queue above it that has some."""
        for _ in range(_DEPTH_MAX):
            one = self._queues.get(queue)
            if one is None or one.spec.pools:
                return tuple(one.spec.pools[:_NAMED_MAX]) if one is not None else ()
            queue = one.spec.parent
        return ()

    def _lists(self, shape: Shape) -> list[tuple[str, ...]]:
        """The pools that it names and those of its queue: it needs a node that is in one of each list."""
        queue = self._queue_pools.get(shape.queue, ()) if shape.queue is not None else ()
        return [names for names in (pools_named(shape), queue) if names]

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        pools, lists = self.state.pools, self._lists(pods.shape)
        mask = every_node(nodes)
        for names in lists:
            mask = mask & any_pool_mask([pools.get(name) for name in names], nodes)
        wanted = {name for names in lists for name in names}
        for name, pool in pools.items():
            if pool.spec.exclusive and name not in wanted:
                mask = mask & ~pool_mask(pool, nodes)
        return mask

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, list[Shortfall]]:
        """Says so when the pools that were named have no node at all, or do not exist."""
        everywhere = NodeBlock(self.state.nodes)
        for names in self._lists(pods.shape):
            pools = [self.state.pools.get(name) for name in names]
            if any_pool_mask(pools, everywhere).any():
                continue
            missing = [name for name, pool in zip(names, pools, strict=True) if pool is None]
            what = f"NodePool {missing[0]}, which does not exist" if missing else f"nodes of NodePool {', '.join(names)}"
            return self.reason, [shortfall(self.reason, want=1, best=0, unit="count", resource=what)]
        return self.reason, []


def _binds_alike(before: QueueFacts | None, after: QueueFacts) -> bool:
    """Whether nothing changed that decides which pools a queue is bound to, and those below it."""
    if before is None:
        return False
    old, new = before.spec, after.spec
    return old.pools == new.pools and old.parent == new.parent and old.is_default == new.is_default


def pools_named(shape: Shape) -> tuple[str, ...]:
    """By the annotation or the label; none when empty."""
    text = shape.annotations.get(Muster.POOLS) or shape.labels.get(Muster.POOL, "")
    if "," not in text:
        return (text,) if text else ()
    return tuple(word for part in text.split(",", _NAMED_MAX)[:_NAMED_MAX] if (word := part.strip()))


def any_pool_mask(pools: Collection[PoolFacts | None], nodes: NodeBlock) -> Mask:
    mask = no_node(nodes)
    for pool in pools:
        mask = mask | pool_mask(pool, nodes)
    return mask


def pool_mask(pool: PoolFacts | None, nodes: NodeBlock) -> Mask:
    """The nodes of the pool."""
    if pool is None:
        return no_node(nodes)
    mask = matches_label_selector(pool.spec.selector, nodes)
    return mask | named_nodes_mask(pool.spec.nodes, nodes) if pool.spec.nodes else mask


def _slots(mask: Mask) -> list[int]:
    found: list[int] = np.flatnonzero(mask).tolist()
    return found
