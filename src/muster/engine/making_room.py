"""Making room for a unit of several pods: victims over several nodes so that all its pods fit, or nothing.

Pods of one shape go together, the largest shape first. Those that fit without a victim take their place; for the others
`victims.select_alike` finds the cheapest nodes, and whatever else of the shape fits there then goes there too. In the end, a
victim that turns out not to be needed is spared.

Pure, and only a proposal: nothing in the state changes. Greedy, so it may find nothing where a cleverer search would; never the
other way round. Bounded by SELECTIONS_MAX nodes to make room on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from muster.engine.blocks import PodBlock, one_shape
from muster.engine.columns import Array, Mask
from muster.engine.counting import Group, copies, groups_of, largest_first
from muster.engine.pods import PodRecord
from muster.engine.reprieve import started
from muster.engine.victims import Ask, Room, free_ahead, select_alike

if TYPE_CHECKING:
    from muster.engine.state import State

SELECTIONS_MAX = 512

Where = Callable[[PodBlock], Mask]
"""Where a pod could be at all: what no eviction would change."""
FeasiblePod = Callable[[PodBlock, int, Sequence[PodRecord]], bool]
"""Whether a pod passes every filter on the node (its slot) with these pods gone. Other pods of the unit are not there yet."""


class UnitRoom(msgspec.Struct, frozen=True):
    """Evict `victims` (most important first), and each of `places` (uid, node) fits."""

    places: tuple[tuple[str, str], ...]
    victims: tuple[PodRecord, ...]
    violating: tuple[PodRecord, ...]


def make_room(
    state: State,
    members: Sequence[PodRecord],
    ask: Ask,
    *,
    where: Where | None = None,
    feasible: FeasiblePod | None = None,
    block_of: Callable[[PodRecord], PodBlock] | None = None,
) -> UnitRoom | None:
    """Room for all `members` together; None when it can't be found. `ask` is as for `select`; its `nodes` and `feasible` are
    not used, as they differ by shape."""
    making = _Making(state, ask, where, feasible)
    shapes = {member.shape.number: member for member in reversed(members)}
    for group in sorted(groups_of(member.shape for member in members), key=largest_first(state.nodes.capacity)):
        first = shapes[group.shape.number]
        block = block_of(first) if block_of else one_shape(first.shape)
        if not making.place(group, block, [m for m in members if m.shape is group.shape]):
            return None
    return making.result()


class _Making:
    def __init__(self, state: State, ask: Ask, where: Where | None, feasible: FeasiblePod | None) -> None:
        self._state, self._ask, self._where, self._feasible = state, ask, where, feasible
        self._free = free_ahead(state) if ask.free is None else ask.free.copy()
        self._eligible = ask.eligible.copy()
        self._victims: dict[str, PodRecord] = {}
        self._places: dict[str, int] = {}
        self._on: dict[int, list[PodBlock]] = {}
        """By slot: who comes there, for asking whether a victim may stay."""
        self._ending: dict[str, list[PodRecord]] = {}
        for index in np.flatnonzero(state.placed.ending & (state.placed.node >= 0)).tolist():
            if (pod := state.placed.records[index]) is not None:
                self._ending.setdefault(pod.node, []).append(pod)
        self._selections_left = SELECTIONS_MAX

    def place(self, group: Group, block: PodBlock, members: list[PodRecord]) -> bool:
        """Room for all members, which are of one shape; False when there is none."""
        mask = self._where(block) if self._where else np.ones(len(self._state.nodes), np.bool_)
        left = self._fill(group, block, list(members), mask)
        while left:
            rooms = self._select(block, mask, len(left))
            if not rooms:
                return False
            for room in rooms:
                if left:
                    self._evict(room)
                    left = self._put(group, block, left, room.slot)
        return True

    def _fill(self, group: Group, block: PodBlock, left: list[PodRecord], mask: Mask) -> list[PodRecord]:
        """Put as many as fit where nobody must go (but those who are going), tightest nodes first; the others."""
        room = copies(group.shape, self._free, mask)
        slots = np.flatnonzero(room)
        for slot in slots[np.argsort(room[slots], kind="stable")].tolist():
            if not left:
                break
            if self._feasible is None or self._feasible(block, slot, self._gone(slot)):
                left = self._put(group, block, left, slot)
        return left

    def _put(self, group: Group, block: PodBlock, left: list[PodRecord], slot: int) -> list[PodRecord]:
        count = min(int(copies(group.shape, self._free[:, [slot]])[0]), len(left))
        self._on.setdefault(slot, []).append(block)
        self._free[: len(group.shape.request), slot] -= count * group.shape.request[: len(self._free)]
        self._places.update((member.uid, slot) for member in left[:count])
        return left[count:]

    def _select(self, block: PodBlock, mask: Mask, count: int) -> list[Room]:
        """The best node to make room on; with it, others that cost no more, where taking one does not change the others."""
        if self._selections_left <= 0:
            return []
        self._selections_left -= 1
        feasible = self._feasible
        asked = None if feasible is None else lambda slot, gone: feasible(block, slot, [*self._chosen(slot), *gone])
        ask = msgspec.structs.replace(self._ask, eligible=self._eligible, nodes=mask, feasible=asked, free=self._free)
        is_apart = not ask.budgets and not ask.whole_units
        return select_alike(self._state, block, ask, count if is_apart else 1)

    def _evict(self, room: Room) -> None:
        for victim in room.victims:
            self._victims[victim.uid] = victim
            self._eligible[victim.index] = False
            self._give(victim, 1)

    def _chosen(self, slot: int) -> list[PodRecord]:
        """Victims so far on the node."""
        name = self._state.nodes.names[slot]
        return [victim for victim in self._victims.values() if victim.node == name]

    def _gone(self, slot: int) -> list[PodRecord]:
        return [*self._ending.get(self._state.nodes.names[slot], ()), *self._chosen(slot)]

    def _give(self, victim: PodRecord, sign: int) -> None:
        slot = self._state.nodes.slots[victim.node]
        self._free[: len(victim.request), slot] += sign * victim.request[: len(self._free)]

    def result(self) -> UnitRoom:
        self._spare()
        names = self._state.nodes.names
        victims = sorted(self._victims.values(), key=_importance)
        budgets = self._ask.budgets
        violating = tuple(budgets.violating(victims)) if budgets else ()
        return UnitRoom(tuple((uid, names[slot]) for uid, slot in self._places.items()), tuple(victims), violating)

    def _spare(self) -> None:
        """Give back, most important first, whoever is not needed after all. Members of whole units go or stay together."""
        for together in self._together():
            slots = {self._state.nodes.slots[pod.node] for pod in together}
            for pod in together:
                self._give(pod, -1)
            if all(self._holds(slot, together) for slot in slots):
                for pod in together:
                    del self._victims[pod.uid]
            else:
                for pod in together:
                    self._give(pod, 1)

    def _together(self) -> list[list[PodRecord]]:
        found: dict[str, list[PodRecord]] = {}
        for victim in sorted(self._victims.values(), key=_importance):
            is_whole = self._ask.whole_units and victim.unit and not victim.unit.startswith("Pod/")
            found.setdefault(victim.unit if is_whole else victim.uid, []).append(victim)
        return list(found.values())

    def _holds(self, slot: int, back: Sequence[PodRecord]) -> bool:
        """Whether those that come to the node still can, with these back."""
        rows: Array = np.zeros(len(self._free), np.bool_)
        for block in self._on.get(slot, ()):
            rows |= block.request[: len(rows)] > 0
        if (self._free[rows, slot] < 0).any():
            return False
        gone = [pod for pod in self._gone(slot) if pod not in back]
        return self._feasible is None or all(self._feasible(block, slot, gone) for block in self._on.get(slot, ()))


def _importance(pod: PodRecord) -> tuple[int, int, str]:
    return -pod.priority, started(pod), pod.uid
