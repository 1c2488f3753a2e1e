"""Counting copies: how many pods of a shape fit now, where, and what would be the largest that does.

Everything here works on free amounts in columns and looks at resources only; `mask` says which nodes the other rules allow.
Pure; `place_groups` is the one function that changes an array, the one it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock
from muster.engine.columns import Array, Column, Mask, nonzero
from muster.engine.shapes import Shape

COPIES_MAX = 2**31
"""More than this per node is not told apart: sums over all nodes stay within the column."""


class Group(msgspec.Struct, frozen=True):
    """So many pods of one shape, on the nodes of `mask` (None: on any)."""

    shape: Shape
    count: int
    mask: Mask | None = None


class Taken(msgspec.Struct, frozen=True):
    """Where a group went: slots, and how many of its pods on each."""

    group: Group
    slots: Array
    counts: Array


def groups_of(shapes: Iterable[Shape], feasible: Callable[[Shape], Mask] | None = None) -> list[Group]:
    """Shapes counted, in the order in which they first appear."""
    counts: dict[int, int] = {}
    first: dict[int, Shape] = {}
    for shape in shapes:
        counts[shape.number] = counts.get(shape.number, 0) + 1
        first.setdefault(shape.number, shape)
    return [Group(shape, counts[number], feasible(shape) if feasible else None) for number, shape in first.items()]


def copies(shape: Shape, free: Array, mask: Mask | None = None) -> Column:
    """How many pods of the shape each node has room for now. `free` is indexed by row first, then by node."""
    found: Column | None = None
    for row, amount in shape.asks:
        if row >= len(free):
            # A resource that no node has: the columns have no row for it yet.
            return np.zeros(free.shape[1], np.int64)
        room = free[row] // amount
        found = room if found is None else np.minimum(found, room, out=found)
    if found is None:
        found = np.full(free.shape[1], COPIES_MAX, np.int64)
    else:
        np.minimum(found, COPIES_MAX, out=found)
        np.maximum(found, 0, out=found)
    if mask is not None:
        found *= mask
    return found


def copies_in_all(shape: Shape, free: Array, mask: Mask | None = None) -> int:
    """The sum of `copies` over all nodes."""
    if free.shape[1] != 1:
        return int(np.add.reduce(copies(shape, free, mask)))
    # Of one node numbers will do, which cost a tenth of columns that are one long.
    if (mask is not None and not mask[0]) or shape.height > len(free):
        return 0
    room = COPIES_MAX
    for row, amount in shape.asks:
        room = min(room, free.item(row, 0) // amount)
    return max(room, 0)


def capacity_for(shape: Shape, nodes: NodeBlock, mask: Mask | None = None) -> int:
    """How many pods of the shape all these nodes have room for together, now."""
    free = nodes.free[:, None] if nodes.is_one else nodes.free
    return copies_in_all(shape, free, mask)


def largest_fitting(shape: Shape, nodes: NodeBlock, mask: Mask | None = None) -> dict[str, int]:
    """For each resource that the shape asks for: the largest request of it that some node could grant now, the others as they
    are. 0 where no node could, whatever the amount."""
    free = nodes.free[:, None] if nodes.is_one else nodes.free
    names = nodes.columns.table.names
    rows = nonzero(shape.request)
    known = rows[rows < len(free)]
    if len(known) < len(rows):
        return {names[row]: 0 for row in rows}
    lacks = free[known] < shape.request[known][:, None]
    lacking = lacks.sum(axis=0)
    found: dict[str, int] = {}
    for place, row in enumerate(known):
        others_fit = lacking == lacks[place]
        if mask is not None:
            others_fit &= mask
        offered = free[row][others_fit]
        found[names[row]] = max(int(offered.max()), 0) if len(offered) else 0
    return found


def place_groups(free: Array, groups: Sequence[Group], capacity: Array) -> list[Taken] | None:
    """Take room for all pods of all groups out of `free`; None, with `free` as it was, when they do not all fit this way.

    Greedy and deterministic: the group with the largest pods (as a share of the largest node) first, and each where the fewest
    more would fit, so that large gaps stay. With one group the answer is exact; with several it may miss a way that exists.
    """
    before = free.copy() if len(groups) > 1 else None
    taken: list[Taken] = []
    for group in sorted(groups, key=largest_first(capacity)) if len(groups) > 1 else groups:
        took = _take(free, group)
        if took is None:
            if before is not None:
                free[:] = before
            return None
        taken.append(took)
    return taken


def largest_first(capacity: Array) -> Callable[[Group], tuple[float, int]]:
    """A key to sort groups by: the one whose pods take the largest part of the largest node comes first."""
    return lambda group: (-_share(group.shape, capacity), group.shape.number)


def _take(free: Array, group: Group) -> Taken | None:
    if free.shape[1] == 1 and group.count:
        if copies_in_all(group.shape, free, group.mask) < group.count:
            return None
        for row, amount in group.shape.asks:
            free[row, 0] -= amount * group.count
        return Taken(group, np.zeros(1, np.int64), np.array([group.count]))
    room = copies(group.shape, free, group.mask)
    if int(np.add.reduce(room)) < group.count:
        return None
    slots = nonzero(room)
    slots = slots[room[slots].argsort(kind="stable")]
    up_to = room[slots].cumsum()
    used = int(up_to.searchsorted(group.count)) + 1 if group.count else 0
    slots, counts = slots[:used], room[slots[:used]]
    if used:
        counts[-1] -= int(up_to[used - 1]) - group.count
        for row, amount in group.shape.asks:
            free[row, slots] -= amount * counts
    return Taken(group, slots, counts)


def _share(shape: Shape, capacity: Array) -> float:
    """The largest part of the largest node, over all resources, that one pod takes."""
    if not capacity.shape[1]:
        return 0.0
    asks = [(row, amount) for row, amount in shape.asks if row < len(capacity)]
    return max((float(amount) / max(float(capacity[row].max()), 1.0) for row, amount in asks), default=0.0)
