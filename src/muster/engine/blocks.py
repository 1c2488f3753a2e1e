"""Blocks: what a plugin sees of pods and nodes. The same expression works on one shape over many nodes and on many over one.

    nodes.free[CPU] >= pods.request[CPU]

is a column over nodes when `pods` is one shape, and a column over shapes when `nodes` is one node: NumPy broadcasts. So a
plugin writes its rule once, and the engine turns it whichever way is cheaper. Use plain element-wise arithmetic, `np.where`,
`np.minimum` and the like; to go over several resources at once use `fits`.

Pure and for reading only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muster.engine.columns import Array, Columns, Mask
from muster.engine.facts import PodFacts
from muster.engine.shapes import Shape


class PodBlock:
    """One shape, or all shapes of a profile. `request`, `need`, `scoring` are indexed by row first."""

    __slots__ = ("_asked", "_needs", "_shape", "features", "need", "pod", "priority", "request", "scoring")

    def __init__(
        self,
        request: Array,
        need: Array,
        scoring: Array,
        priority: Any,
        *,
        shape: Shape | None = None,
        features: Mapping[str, Array] | None = None,
    ) -> None:
        self.request = request
        self.need = need
        """As `request`, with "not asked for" so low that it fits everywhere."""
        self.scoring = scoring
        """CPU (milli) and memory as scoring counts them."""
        self.priority = priority
        self.features: Mapping[str, Array] = features or {}
        """By plugin name: what its `features(shape)` returned, one row per figure."""
        self._shape = shape
        self._asked: frozenset[int] | None = None
        self._needs: dict[tuple[int, ...], tuple[Array, Array]] = {}
        self.pod: PodFacts | None = None
        """The very pod, where the question is about one; labels and namespace come from it."""

    @property
    def shape(self) -> Shape:
        """The one shape. Plugins of scope LOCAL must do without it: they are asked about many at once."""
        if self._shape is None:
            raise LookupError("this block has many shapes; a plugin that needs the shape itself has scope NODE or WIDE")
        return self._shape

    @property
    def is_many(self) -> bool:
        return self._shape is None

    @property
    def asked(self) -> frozenset[int]:
        """Rows that any of the shapes asks for: a plugin about one resource may have nothing to do."""
        if self._asked is None:
            amounts = self.request.max(axis=1) if self.is_many and self.request.size else self.request
            self._asked = frozenset(np.flatnonzero(amounts).tolist())
        return self._asked

    def needs(self, leave_out: tuple[int, ...]) -> tuple[Array, Array]:
        """The rows that are asked for, in order, and `need` in those rows."""
        found = self._needs.get(leave_out)
        if found is None:
            rows = np.array(sorted(self.asked - set(leave_out)), np.intp)
            found = self._needs[leave_out] = (rows, self.need[rows])
        return found


class NodeBlock:
    """All nodes, some, or one. Amounts are indexed by row first: `free[CPU]`."""

    __slots__ = ("_totals", "capacity", "columns", "divisor", "free", "is_one", "scoring_used", "slots")

    def __init__(self, columns: Columns, slots: Any = None) -> None:
        """`slots`: None for all, an int for one, an array of ints for some."""
        self.columns = columns
        self.slots = slots
        self.is_one = isinstance(slots, int)
        self._totals: tuple[PodBlock, Array] | None = None
        if slots is None:
            self.capacity, self.divisor, self.free = columns.capacity, columns.divisor, columns.free
            self.scoring_used = columns.scoring_used
        else:
            self.capacity, self.divisor = columns.capacity[:, slots], columns.divisor[:, slots]
            self.free = columns.free[:, slots]
            self.scoring_used = columns.scoring_used[:, slots]

    def __len__(self) -> int:
        return len(self.columns) if self.slots is None else 1 if self.is_one else len(self.slots)

    @property
    def used(self) -> Array:
        return self.capacity - self.free

    def take(self, column: Array) -> Any:
        """The part of a column over all nodes that belongs to this block."""
        return column if self.slots is None else column[..., self.slots]

    def own(self, name: str, dtype: type[np.generic] = np.int64, rows: int = 1) -> Any:
        """A plugin's own columns (see `Columns.own`), this block's part."""
        return self.take(self.columns.own(name, dtype, rows))

    def scoring_totals(self, pods: PodBlock) -> tuple[Array, Array, Array]:
        """CPU and memory as scoring would count them with the pod there, capacity, and divisor: two rows each. Worked out once
        for all plugins that ask."""
        if self._totals is None or self._totals[0] is not pods:
            used = self.scoring_used[:, None] if self.is_one else self.scoring_used
            more = pods.scoring if pods.is_many else pods.scoring[:, None]
            self._totals = (pods, used + more)
        if self.is_one:
            return self._totals[1], self.capacity[:2, None], self.divisor[:2, None]
        return self._totals[1], self.capacity[:2], self.divisor[:2]

    def names(self) -> list[str]:
        if self.slots is None:
            return self.columns.names
        return [self.columns.names[self.slots]] if self.is_one else [self.columns.names[slot] for slot in self.slots]

    def name_at(self, place: int) -> str:
        """The name of one of them, by its place in the block."""
        return self.columns.names[place if self.slots is None else self.slots if self.is_one else int(self.slots[place])]

    def changed(self, free: Array, scoring_used: Array | None = None) -> NodeBlock:
        """The same nodes with other free amounts: what transformers and what-if questions hand on."""
        twin = NodeBlock.__new__(NodeBlock)
        twin.columns, twin.slots, twin.is_one = self.columns, self.slots, self.is_one
        twin.capacity, twin.divisor, twin._totals = self.capacity, self.divisor, None
        twin.free = free
        twin.scoring_used = self.scoring_used if scoring_used is None else scoring_used
        return twin


def one_shape(shape: Shape, features: Mapping[str, Array] | None = None) -> PodBlock:
    return PodBlock(shape.request, shape.need, shape.scoring, shape.priority, shape=shape, features=features)


def fits(pods: PodBlock, nodes: NodeBlock, leave_out: tuple[int, ...] = ()) -> Any:
    """Whether what is free covers what is asked for, in every resource but those in `leave_out`."""
    rows, needs = pods.needs(leave_out)
    if nodes.is_one:
        return np.bitwise_and.reduce(nodes.free[rows][:, None] >= needs) if pods.is_many else (nodes.free[rows] >= needs).all()
    if pods.is_many:
        raise ValueError("many shapes over many nodes is not a block")
    if not len(rows):
        return np.ones(len(nodes), np.bool_)
    mask: Mask = nodes.free[rows[0]] >= needs[0]
    for row, need in zip(rows[1:], needs[1:], strict=True):
        mask &= nodes.free[row] >= need
    return mask
