"""A trial: a cheap copy of the free amounts to try things on, without touching the state. What `State.fork()` returns.

Only the free amounts are copied; nodes, pods and descriptions are the state's, for reading. What was tried is kept as a small
set of changes on top. A trial is for use within one step of the engine: once the state has changed, it describes nothing.

Resources only; other rules are asked through `nodes()`, a block that every filter of scope NODE or LOCAL understands.
Pure, single-threaded. Invariant: `free` is the state's, minus what was placed, plus what was released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from muster.engine.blocks import NodeBlock, fits, one_shape
from muster.engine.columns import Array, Mask
from muster.engine.counting import copies, groups_of, place_groups
from muster.engine.shapes import Shape

if TYPE_CHECKING:
    from muster.engine.state import State


class Trial:
    def __init__(self, state: State, free: Array | None = None) -> None:
        self.state = state
        self.free: Array = (state.nodes.free if free is None else free).copy()
        self._released: set[str] = set()
        self._placed: list[tuple[Shape, int]] = []

    @property
    def released(self) -> frozenset[str]:
        """uids of the pods that were taken out."""
        return frozenset(self._released)

    @property
    def placed(self) -> tuple[tuple[Shape, str], ...]:
        """What was put where, in order."""
        names = self.state.nodes.names
        return tuple((shape, names[slot]) for shape, slot in self._placed)

    def fork(self) -> Trial:
        """A trial on top of this one: it begins with what was tried here, and leaves this one alone."""
        twin = Trial(self.state, self.free)
        twin._released, twin._placed = set(self._released), list(self._placed)
        return twin

    # -- asking ----------------------------------------------------------------------------------------------------------------

    def nodes(self) -> NodeBlock:
        """All nodes with the free amounts of the trial."""
        return NodeBlock(self.state.nodes).changed(self.free)

    def fits(self, shape: Shape) -> Mask:
        """Where one pod of the shape would fit."""
        if self._is_unknown(shape):
            return np.zeros(len(self.state.nodes), np.bool_)
        mask: Mask = fits(one_shape(shape), self.nodes())
        return mask

    def capacity_for(self, shape: Shape, mask: Mask | None = None) -> int:
        return int(copies(shape, self.free, mask).sum())

    # -- trying ----------------------------------------------------------------------------------------------------------------

    def place(self, shape: Shape, node: str) -> bool:
        """Put a pod of the shape on the node; False, and nothing changes, when it does not fit. KeyError for a node that is
        not there."""
        slot = self.state.nodes.slots[node]
        if self._is_unknown(shape) or copies(shape, self.free[:, [slot]])[0] < 1:
            return False
        self._add(shape.request, slot, -1)
        self._placed.append((shape, slot))
        return True

    def place_all(self, shapes: Sequence[Shape], feasible: Callable[[Shape], Mask] | None = None) -> bool:
        """Put pods of all these shapes somewhere; False, and nothing changes, when they are not found to fit together."""
        taken = place_groups(self.free, groups_of(shapes, feasible), self.state.nodes.capacity)
        if taken is None:
            return False
        for took in taken:
            for slot, count in zip(took.slots.tolist(), took.counts.tolist(), strict=True):
                self._placed += [(took.group.shape, slot)] * count
        return True

    def release(self, uid: str) -> bool:
        """Take a placed pod out; False when it is on no known node, or was taken out before."""
        pod = self.state.pods.get(uid)
        if pod is None or pod.index < 0 or uid in self._released:
            return False
        self._released.add(uid)
        self._add(pod.request, self.state.nodes.slots[pod.node], 1)
        return True

    def _is_unknown(self, shape: Shape) -> bool:
        """Whether the shape asks for a resource that has no row yet: nobody has it."""
        return bool(shape.request[len(self.free) :].any())

    def _add(self, request: Array, slot: int, sign: int) -> None:
        self.free[: len(request), slot] += sign * request[: len(self.free)]
