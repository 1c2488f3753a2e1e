"""Topology: nodes by the value of a label, and what is nearby by it: the sums over the nodes that share a value.

Pure, single-threaded. A `Topology` never changes; `Topologies` makes a new one when nodes came, went or changed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from muster.engine.columns import ABSENT, Array, Column, Columns, Mask

EVERYWHERE = np.bool_(True)
"""A mask that leaves all nodes."""
_TOPOLOGIES_MAX = 64


class Topology:
    """Nodes by the value of one label. `ids` are fit for indexing; ABSENT (0) stands for nodes without the label."""

    __slots__ = ("domains", "ids", "is_everywhere", "is_unique", "present", "size")

    def __init__(self, ids: Array, size: int) -> None:
        self.ids: Array = ids.astype(np.intp)
        self.size = size
        self.present: Mask = ids != ABSENT
        self.is_everywhere = bool(self.present.all())
        nodes = np.bincount(self.ids, minlength=size)
        nodes[ABSENT] = 0
        self.domains: Array = np.flatnonzero(nodes)
        self.is_unique = bool(len(nodes) == 0 or nodes.max() <= 1)
        """Every value on one node only, as host names are: what is near is what is there."""

    def sums(self, counts: Array) -> Array:
        """Per domain: the sum over its nodes; nothing for nodes without the label."""
        found: Array = np.bincount(self.ids, weights=counts, minlength=self.size)
        found[ABSENT] = 0
        return found

    def near(self, counts: Array) -> Array:
        """Per node: the sum over all nodes of its domain."""
        if self.is_unique:
            return counts if self.is_everywhere else np.where(self.present, counts, 0)
        found: Array = self.sums(counts)[self.ids]
        return found

    def is_near(self, counts: Array) -> Mask:
        """Per node: whether there is any in its domain."""
        if self.is_unique:
            here: Mask = counts > 0
            return here if self.is_everywhere else here & self.present
        found: Mask = (self.sums(counts) > 0)[self.ids]
        return found


class Topologies:
    """By label. Bounded: past a number of labels it starts anew."""

    def __init__(self, nodes: Columns) -> None:
        self._nodes = nodes
        self._found: dict[str, tuple[int, Topology]] = {}

    def of(self, key: str) -> Topology:
        """Nodes by their value of label `key`, as of now: ask again after any change of nodes."""
        version = self._nodes.version
        found = self._found.get(key)
        if found is None or found[0] != version:
            if len(self._found) >= _TOPOLOGIES_MAX:
                self._found.clear()
            ids = self._nodes.label_ids(key)
            found = self._found[key] = (version, Topology(ids, len(self._nodes.label_values(key)) + 1))
        return found[1]

    def differ(self, slot: int) -> bool:
        """Whether the node has other labels now, of those that were asked for, than when they were."""
        count = len(self._nodes)
        return any(
            len(found.ids) != count or found.ids[slot] != self._nodes.label_ids(key)[slot]
            for key, (_, found) in self._found.items()
        )

    def near(self, wanted: Iterable[tuple[str, Array, int]]) -> Column:
        """Per node: the weighted sum of counts nearby, over (topology key, counts, weight)."""
        by_key: dict[str, Array] = {}
        for key, counts, weight in wanted:
            weighted: Array = np.multiply(counts, weight, dtype=np.int64)
            by_key[key] = by_key[key] + weighted if key in by_key else weighted
        total: Column = np.zeros(len(self._nodes), np.int64)
        for key, weighted in by_key.items():
            total += self.of(key).near(weighted).astype(np.int64)
        return total
