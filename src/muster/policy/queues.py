"""The tree of queues, and one line out of many: who is next when several queues want the same room.

Among the queues beside each other a higher level goes first; of equal levels the one goes first that has least of its share:
what its subtree uses now, and what of it stands before in the line, as the dominant share of the cluster, over its weight.
(Weighted fair queueing: each unit gets the tag at which its turn comes, and the queues are merged by tags.) A queue that has
both work of its own and queues below it counts as if its own work were in one more queue below it, of level 0 and weight 1.

A parent that does not exist, or a circle of parents, makes a top queue: a mistake in one object never takes others out of the
line. So does a tree that is too deep, at every DEPTH_MAX levels: admission refuses those, and what is worked out for each level
stays bounded whoever let them in. What is stopped above, and pools, hold below such a cut as well.

Pure, single-threaded. Shares are compared as whole numbers, so equal inputs give equal lines on any CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from muster.engine.columns import Array
from muster.engine.facts import QueueFacts
from muster.policy.table import Names

DEPTH_MAX: Final = 32
"""Levels of queues in one tree; admission allows half as many."""
SHARE_UNIT: Final = 2.0**30
"""A share of 1 as a whole number."""
_LEVEL_LOWEST: Final = -(10**6)
"""Of work whose queue does not exist: it is not let go, so it stands behind all."""


class QueueTree:
    def __init__(self) -> None:
        self.queues: dict[str, QueueFacts] = {}
        self.version = 0
        """Grows with every change."""
        self._chains: dict[str, tuple[str, ...]] = {}
        self._depths: dict[str, int] = {}
        """Of each queue that was asked for: how many it stands under, itself included; 1 for a member of a circle."""
        self._layout: Layout | None = None

    def put(self, queue: QueueFacts) -> None:
        self.queues[queue.metadata.name] = queue
        self._changed()

    def drop(self, name: str) -> None:
        self.queues.pop(name, None)
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._chains.clear()
        self._depths.clear()
        self._layout = None

    @property
    def default(self) -> str:
        """The queue of work that names none; "" when there is none. The first by name of several."""
        return min((name for name, queue in self.queues.items() if queue.spec.is_default), default="")

    def chain(self, name: str) -> tuple[str, ...]:
        """The queue and those above it, the top one last; nothing for one that does not exist."""
        found = self._chains.get(name)
        if found is None:
            found = self._chains[name] = tuple(self._walk(name))
        return found

    def _walk(self, name: str) -> Iterator[str]:
        depth = self._depth(name)
        for _ in range((depth - 1) % DEPTH_MAX + 1 if depth else 0):
            yield name
            name = self.queues[name].spec.parent

    def _depth(self, name: str) -> int:
        """See `_depths`; 0 of one that does not exist."""
        path: dict[str, None] = {}
        while name in self.queues and name not in path and name not in self._depths:
            path[name] = None
            name = self.queues[name].spec.parent
        depth = self._depths.get(name, 0)
        way = list(path)
        if name in path:
            # A circle: each of its members is a top queue of its own.
            at = way.index(name)
            self._depths.update(dict.fromkeys(way[at:], 1))
            way, depth = way[:at], 1
        for each in reversed(way):
            depth += 1
            self._depths[each] = depth
        return depth if way else self._depths.get(name, 0)

    def _upwards(self, name: str) -> Iterator[str]:
        """The queue and all above it, whatever the depth."""
        while chain := self.chain(name):
            yield from chain
            if self._depth(chain[-1]) == 1:
                return
            name = self.queues[chain[-1]].spec.parent

    def stopped_by(self, name: str) -> str:
        """The queue, itself or above it, that starts nothing; "" when it may start work."""
        return next((each for each in self._upwards(name) if self.queues[each].spec.state == "Stopped"), "")

    def pools(self, name: str) -> tuple[str, ...]:
        """Node pools of the nearest queue upwards that names any."""
        return next((tuple(pools) for each in self._upwards(name) if (pools := self.queues[each].spec.pools)), ())

    def key(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Work of one key waits for the same room, in one line: the top queue, and the pools."""
        chain = self.chain(name)
        return (chain[-1] if chain else name, self.pools(name))

    def layout(self, names: Names) -> Layout:
        """The tree as columns, for queues numbered as in `names`."""
        found = self._layout
        if found is None or found.made_of != (id(names), names.version):
            found = self._layout = Layout(self, names)
        return found


class Layout:
    """The tree in columns. A node is a queue, or the own work of a queue that has others below it."""

    def __init__(self, tree: QueueTree, names: Names) -> None:
        self.made_of = (id(names), names.version)
        chains = {name: tree.chain(name)[::-1] for name in tree.queues}
        parents = {chain[-2] for chain in chains.values() if len(chain) > 1}
        nodes = sorted(tree.queues)
        number = {name: index for index, name in enumerate(nodes)}
        level = [tree.queues[name].spec.level for name in nodes]
        weight = [max(tree.queues[name].spec.weight, 1) for name in nodes]
        paths = [[number[each] for each in chains[name]] for name in nodes]
        leaf = dict(number)
        for name in sorted(parents):
            leaf[name] = len(level)
            level.append(0)
            weight.append(1)
            paths.append([*paths[number[name]], leaf[name]])
        self.missing = len(level)
        level.append(_LEVEL_LOWEST)
        weight.append(1)
        paths.append([self.missing])
        self.depth = max(len(path) for path in paths)
        self.level: Array = np.array(level, np.int64)
        self.weight: Array = np.array(weight, np.float64)
        # Above its own depth a node stands for itself.
        self.above: Array = np.array([path + [path[-1]] * (self.depth - len(path)) for path in paths], np.int64).T
        """By depth: who of the nodes stands above each node there."""
        self.leaf: Array = np.array([leaf.get(name, self.missing) for name in names.names] or [self.missing], np.int64)
        """By the number of a queue: the node of its own work."""
        self.queue_level: Array = np.array(
            [float(tree.queues[name].spec.level) if name in tree.queues else 0.0 for name in names.names], np.float64
        )

    def uses(self, queue: Array, dominant: Array) -> Array:
        """What each node and all below it use: whole numbers, by depth and node. `queue` and `dominant` are of what runs."""
        own: Array = np.zeros(len(self.level), np.int64)
        np.add.at(own, self.leaf[queue], _whole(dominant))
        found: Array = np.zeros((self.depth, len(self.level)), np.int64)
        for depth in range(self.depth):
            np.add.at(found[depth], self.above[depth], own)
        return found

    def shares(self, uses: Array) -> Array:
        """Use over weight, of each node."""
        deepest: Array = uses.max(axis=0)
        return deepest / self.weight

    def merge(self, queue: Array, dominant: Array, age: Array, uses: Array) -> Array:
        """One line: the places in it of units that are in order within each queue. `age` tells equals apart."""
        leaf = self.leaf[queue]
        if not len(leaf) or (leaf == leaf[0]).all():
            return np.arange(len(leaf))
        line = np.argsort(leaf, kind="stable")
        size = _whole(dominant)
        for depth in range(self.depth - 1, -1, -1):
            node = self.above[depth][leaf[line]]
            upper = self.above[depth - 1][leaf[line]] if depth else None
            if depth and (node == upper).all():
                continue
            amounts = size[line]
            before = np.cumsum(amounts) - amounts
            first = np.flatnonzero(np.append(True, node[1:] != node[:-1]))
            before -= np.repeat(before[first], np.diff(np.append(first, len(node))))
            tag = (uses[depth][node] + before) / self.weight[node]
            level = self.level[node]
            keys: list[Array] = [age[line], tag]
            if (level != level[0]).any():
                keys.append(-level)
            if upper is not None and (upper != upper[0]).any():
                keys.append(upper)
            line = line[np.lexsort(keys)]
        return line


def _whole(shares: Array) -> Array:
    return np.rint(np.nan_to_num(shares, nan=0.0, posinf=1.0) * SHARE_UNIT).astype(np.int64)


def common(first: Sequence[str], second: Sequence[str]) -> tuple[str, str]:
    """Where two chains part: the queue of each just below what they share; "" for one that ends there."""
    mine, theirs = list(first[::-1]), list(second[::-1])
    at = 0
    while at < len(mine) and at < len(theirs) and mine[at] == theirs[at]:
        at += 1
    return (mine[at] if at < len(mine) else "", theirs[at] if at < len(theirs) else "")
