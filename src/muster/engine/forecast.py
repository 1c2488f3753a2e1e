"""Looking ahead: when will there be room for a unit, if what runs now ends when it is said to?

`Forecast` is made once from the state and the expected releases, and then asked about any number of units: it keeps the
releases in order of time, and finds in one pass over them how much room each of them makes. Only free amounts are copied; the
state is never touched.

Resources only: `feasible` says where a shape could be at all. Pure, single-threaded, for use within one step.

Invariant: the answer is `now` or the time of a release; with everything released by then the unit fits, and (for one shape, or
within SCAN_MAX releases of the first possible time) with everything released before then it does not.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from muster.engine.blocks import one_shape
from muster.engine.columns import Array, Mask, nonzero
from muster.engine.counting import COPIES_MAX, Group, copies, copies_in_all, groups_of, place_groups
from muster.engine.reprieve import all_amounts
from muster.engine.shapes import Shape
from muster.engine.victims import Ask, Room, add_at, free_ahead, select

if TYPE_CHECKING:
    from muster.engine.state import State

SCAN_MAX = 256
"""With several shapes the search is greedy, and more room can make it fail: so many times are tried one after the other."""


class Release(msgspec.Struct, frozen=True, order=True):
    """A placed pod is expected to end at `time`."""

    time: float
    uid: str


class Forecast:
    def __init__(self, state: State, releases: Iterable[Release], now: float) -> None:
        """Releases in the past count as now; those of pods that are not placed, or that end already, count for nothing. Of two
        for the same pod the earlier one counts."""
        self._state = state
        self._start = free_ahead(state)
        first: dict[int, float] = {}
        for release in releases:
            pod = state.pods.get(release.uid)
            if pod is not None and pod.index >= 0 and not state.placed.ending[pod.index]:
                first[pod.index] = min(max(release.time, now), first.get(pod.index, math.inf))
        times = np.fromiter(first.values(), np.float64, len(first))
        indices = np.fromiter(first, np.intp, len(first))
        self._load(times, state.placed.node[indices], all_amounts(state.placed, len(self._start), indices), now)

    @classmethod
    def of(cls, state: State, free: Array, times: Array, nodes: Array, held: Array, now: float) -> Forecast:  # noqa: PLR0917 - columns
        """From columns: what is free (rows, nodes), and what is given back when (`times`), where (slots) and how much (`held`:
        rows, releases). Nothing of it is changed."""
        found = cls.__new__(cls)
        found._state, found._start = state, free
        found._load(np.maximum(times, now), nodes, held, now)
        return found

    def _load(self, times: Array, nodes: Array, held: Array, now: float) -> None:
        order = times.argsort(kind="stable")
        self._times: Array = times[order]
        self._nodes: Array = nodes[order]
        self._held: Array = held.take(order, axis=1)
        self._now = now

    def earliest_start(self, members: Sequence[Shape], feasible: Callable[[Shape], Mask] | None = None) -> float | None:
        """When all `members` first fit together; None if they do not even when everything has ended."""
        return self.earliest(groups_of(members, feasible))

    def earliest(self, groups: Sequence[Group]) -> float | None:
        """`earliest_start` of pods that are counted already, one group for each shape."""
        if any(group.shape.height > len(self._start) for group in groups):
            return None
        first = 0
        for group in groups:
            count = self._first(group)
            if count is None:
                return None
            # As more room never hurts one group, all fit, each for itself, when the last of them does.
            first = max(first, count)
        if len(groups) > 1:
            step = self._scan(bisect_left(self._counts, first), groups)
            if step is None:
                return None
            first = self._count(step)
        return self._now if first == 0 else float(self._times[first - 1])

    def free_at(self, time: float) -> Array:
        """Free amounts (rows, nodes) when everything that ends by then has ended. A copy."""
        free = self._start.copy()
        self._release(free, 0, int(self._times.searchsorted(time, "right")))
        return free

    # -- inside: step 0 is now before any release, step k after all of the k-th of the different times -----------------------

    @functools.cached_property
    def _counts(self) -> list[int]:
        """By step: how many releases there have been."""
        times = self._times
        is_last: Mask = np.ones(len(times), np.bool_)
        np.not_equal(times[1:], times[:-1], out=is_last[:-1])
        return [0, *(nonzero(is_last) + 1).tolist()]

    def _count(self, step: int) -> int:
        return self._counts[step]

    def _release(self, free: Array, begin: int, end: int) -> None:
        if end > begin:
            add_at(free, self._nodes[begin:end], self._held[:, begin:end])

    def _first(self, group: Group) -> int | None:
        """After how many releases there is room for a group; None if there never is. All releases at once: after each, how many
        more pods its node has room for than before it, added up in the order of time."""
        if self._start.shape[1] == 1:
            return self._first_of_one(group)
        room = copies(group.shape, self._start, group.mask)
        missing = group.count - int(np.add.reduce(room))
        if missing <= 0:
            return 0
        if not len(self._nodes):
            return None
        by_node, first, lengths = self._by_node
        nodes = self._nodes[by_node]
        after: Array = np.full(len(nodes), COPIES_MAX, np.int64)
        for row, amount in group.shape.asks:
            held = self._held[row][by_node]
            freed = held.cumsum()
            if len(first) > 1:
                freed -= (freed[first] - held[first]).repeat(lengths)
            np.minimum(after, (self._start[row][nodes] + freed) // amount, out=after)
        np.maximum(after, 0, out=after)
        if group.mask is not None:
            after *= group.mask[nodes]
        before: Array = np.empty(len(nodes), np.int64)
        before[1:] = after[:-1]
        before[first] = room[nodes[first]]
        more: Array = np.empty(len(nodes), np.int64)
        more[by_node] = after - before
        reached = more.cumsum() >= missing
        at = int(reached.argmax())
        return at + 1 if reached[at] else None

    def _first_of_one(self, group: Group) -> int | None:
        """The same where there is one node: when it has room for all."""
        if copies_in_all(group.shape, self._start, group.mask) >= group.count:
            return 0
        if not len(self._nodes) or (group.mask is not None and not group.mask[0]):
            return None
        last = 0
        for row, amount in group.shape.asks:
            missing = amount * group.count - self._start.item(row, 0)
            if missing > 0:
                # Amounts that are given back are none below zero, so their sum only grows.
                last = max(last, int(self._held[row].cumsum().searchsorted(missing)))
        return last + 1 if last < len(self._nodes) else None

    @functools.cached_property
    def _by_node(self) -> tuple[Array, Array, Array]:
        """The releases node by node, each node's in order of time; where each node's begin, and how many they are."""
        order = self._nodes.argsort(kind="stable")
        nodes = self._nodes[order]
        is_first: Mask = np.ones(len(nodes), np.bool_)
        np.not_equal(nodes[1:], nodes[:-1], out=is_first[1:])
        first = nonzero(is_first)
        lengths: Array = np.empty(len(first), np.int64)
        lengths[:-1] = first[1:] - first[:-1]
        lengths[-1:] = len(nodes) - first[-1:]
        return order, first, lengths

    def _scan(self, first: int, groups: Sequence[Group]) -> int | None:
        """The first step from `first` on at which the greedy search places every group."""
        capacity, last = self._state.nodes.capacity, len(self._counts) - 1
        free = self._start.copy()
        self._release(free, 0, self._count(first))
        for step in range(first, min(first + SCAN_MAX, last + 1)):
            if place_groups(free.copy(), groups, capacity) is not None:
                return step
            if step < last:
                self._release(free, self._count(step), self._count(step + 1))
        if first + SCAN_MAX > last:
            return None
        rest = self._bisect_from(first + SCAN_MAX, free, groups)
        return rest

    def _bisect_from(self, low: int, free: Array, groups: Sequence[Group]) -> int | None:
        """Past the scan: halve, as if more room never hurt. What is found fits; something earlier might too."""
        capacity, high = self._state.nodes.capacity, len(self._counts) - 1
        everything = free.copy()
        self._release(everything, self._count(low), self._count(high))
        if place_groups(everything, groups, capacity) is None:
            return None
        if place_groups(free.copy(), groups, capacity) is not None:
            return low
        while high - low > 1:
            middle = (low + high) // 2
            later = free.copy()
            self._release(later, self._count(low), self._count(middle))
            if place_groups(later.copy(), groups, capacity) is not None:
                high = middle
            else:
                low, free = middle, later
        return high


def earliest_start(
    state: State,
    members: Sequence[Shape],
    releases: Iterable[Release],
    now: float,
    feasible: Callable[[Shape], Mask] | None = None,
) -> float | None:
    """When a unit of these shapes first fits. For many units make one `Forecast` and ask that."""
    return Forecast(state, releases, now).earliest_start(members, feasible)


def which_must_end(state: State, shape: Shape, mask: Mask | None = None) -> Room | None:
    """The least running work whose end would let a pod of the shape start: lowest priority first, then the fewest pods; whoever
    is ending anyway costs nothing. None when nothing would help. For explanations: nobody is evicted."""
    everybody: Mask = np.ones(len(state.placed.node), np.bool_)
    return select(state, one_shape(shape), Ask(eligible=everybody, cost=state.placed.priority, nodes=mask))
