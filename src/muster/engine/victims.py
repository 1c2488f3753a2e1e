"""The one victim selector: where to make room for a pod, and who must go. Preemption by priority, preemption by policy and
reclaim of quota all use it; they differ in whom they may evict (`eligible`) and what an eviction costs (`cost`).

`select` works in three steps:

1. In vectors over all nodes: where would the pod fit if all that is eligible were gone? Nodes are put in order of a lower bound
   (how costly the most costly victim must be at least, how many victims there must be at least).
2. For the best `candidates_max` of them (kube-scheduler's bound: a tenth of the nodes, at least 100) the exact victims, PORTION
   nodes side by side (see `reprieve`), until no other node could be better but by the start times of its victims. Only while
   each breaks a disruption budget, WIDER times as many are looked at.
3. In order of cost, `feasible` is asked: would the pod pass every filter there with these victims gone? Where it says no, the
   node's victims are found again with `feasible` asked at each one, as rules between pods may want other pods gone.

Of all that is found, the node wins with the fewest broken budgets, then the lowest highest cost, then the smallest sum of
costs, the fewest victims, the latest start of its most important victim, the first name: kube-scheduler's order. (Budgets
broken are counted over the victims themselves, not over all that could have been.)

A pod that is on its way out is no victim. Its room counts as free: a node where that is enough is chosen without any victim.

Pure; no state is kept. `feasible` may take pods out while it tries, and leaves everything as it was.
Bounded: by `candidates_max`, and by `CHECKS_PER_CANDIDATE` calls of `feasible` for each of them on average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from muster.engine.blocks import PodBlock
from muster.engine.budgets import Budgets
from muster.engine.columns import Array, Column, Mask, nonzero
from muster.engine.pods import PodRecord
from muster.engine.reprieve import COST_SHIFT, NO_COST, Items, Key, Outcome, all_amounts, amounts, started
from muster.engine.whole_units import WholeUnit, is_shared, whole_units

if TYPE_CHECKING:
    from muster.engine.state import State

Feasible = Callable[[int, Sequence[PodRecord]], bool]
"""Whether the pod passes every filter on the node (its slot) with these pods gone."""

CANDIDATES_PERCENT = 10
CANDIDATES_MIN = 100
PORTION = 64
"""So many nodes are looked at side by side."""
WIDER = 10
"""While nothing is found that keeps every budget, up to so many times as many nodes are looked at."""
CHECKS_PER_CANDIDATE = 4
STEPS_MAX = 16
"""So many of the lowest costs the lower bound tells apart; what is above is divided into as many spans."""
FAR = 4 * STEPS_MAX


class Room(msgspec.Struct, frozen=True):
    """Evict `victims` (most important first) and the pod fits on `node`, once those that are `ending` have gone too."""

    slot: int
    node: str
    victims: tuple[PodRecord, ...]
    violating: tuple[PodRecord, ...]
    """Those of the victims whose disruption budget is broken by it."""
    ending: tuple[PodRecord, ...]
    """Pods on that node that were on their way out already."""
    key: Key


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `select` is asked with, but the pod."""

    eligible: Mask
    """By index in `PodColumns`: who may be evicted."""
    cost: Column
    """By index too: whole numbers, for instance priorities."""
    nodes: Mask | None = None
    """Where the pod could be at all: what no eviction would change."""
    feasible: Feasible | None = None
    """None: only resources count."""
    budgets: Budgets | None = None
    whole_units: bool = False
    """Whoever evicts one member of a unit of several pods evicts all, or none if one of them is not eligible."""
    candidates_max: int = 0
    """0: a tenth of the nodes, at least 100."""
    free: Array | None = None
    """Free amounts (rows, nodes) to start from, those that are ending taken out (`free_ahead`); None for the state's."""


def candidates_for(nodes: int, percent: int = CANDIDATES_PERCENT, least: int = CANDIDATES_MIN) -> int:
    """How many nodes are looked at closely."""
    return max(min(max(nodes * percent // 100, least), nodes), 1)


def select(state: State, pods: PodBlock, ask: Ask) -> Room | None:
    """The best way to make room for one pod; None when evicting all that may be evicted would not help."""
    found = select_alike(state, pods, ask, 1)
    return found[0] if found else None


def select_alike(state: State, pods: PodBlock, ask: Ask, count: int) -> list[Room]:
    """The best way to make room for one pod, and other nodes that could be had for the same cost: up to `count`, best first."""
    search = _Search(state, pods, ask)
    best: list[Room] = []
    if not search.can_help:
        return best
    for examined, portion in search.portions():
        if best and not best[0].key[0] and (examined >= search.candidates_max or search.bound(portion[0]) >= best[0].key):
            break
        rooms = search.examine(portion, count)
        if rooms and (not best or rooms[0].key < best[0].key):
            best = rooms
    return best


class _Search:
    def __init__(self, state: State, pods: PodBlock, ask: Ask) -> None:
        self._state, self._ask = state, ask
        placed, count = state.placed, len(state.nodes)
        free = state.nodes.free if ask.free is None else ask.free
        self._rows = rows = np.flatnonzero(pods.request)
        self.candidates_max = ask.candidates_max or candidates_for(count)
        self._checks_left = CHECKS_PER_CANDIDATE * self.candidates_max
        self._steps: list[int] = []
        self._bounds: dict[int, tuple[int, int]] = {}
        self.can_help = bool(count) and (not len(rows) or int(rows[-1]) < len(free))
        if not self.can_help:
            return
        is_placed = placed.node >= 0
        self._ending = np.flatnonzero(placed.ending & is_placed)
        self._able = np.flatnonzero(ask.eligible[: len(placed.node)] & is_placed & ~placed.ending)
        self._units: dict[str, WholeUnit] | None = None
        # By how much the pod fits: as it is (with those gone that are going anyway), and with all gone that may be evicted.
        self._slack: Array = free[rows] - pods.request[rows][:, None]
        self._ending_on_slot: Array = placed.node[self._ending]
        if ask.free is None:
            add_at(self._slack, self._ending_on_slot, amounts(placed, rows, self._ending))
        self._cleared: Array = self._slack.copy()
        held, on = amounts(placed, rows, self._able), placed.node[self._able]
        add_at(self._cleared, on, held)
        fits = _is_enough(self._cleared)
        self._fits = fits if ask.nodes is None else fits & ask.nodes
        useful = np.flatnonzero(self._fits[on])
        # `take` keeps rows contiguous, which fancy indexing does not.
        self._able, self._on, self._held = self._able[useful], on[useful], held.take(useful, axis=1)

    # -- 1. in which order to look -------------------------------------------------------------------------------------------

    def portions(self) -> Iterator[tuple[int, Array]]:
        """The nodes worth a look, best bound first, in portions; with each, how many came before it."""
        level = self._levels()
        slots = np.flatnonzero(self._fits)
        count = self._least_count(slots)
        order = np.lexsort((slots, count, level[slots]))
        self._bounds = {}
        for begin in range(0, min(len(slots), self.candidates_max * WIDER), PORTION):
            portion = order[begin : begin + PORTION]
            first = int(slots[portion[0]])
            self._bounds[first] = (int(level[first]), int(count[portion[0]]))
            yield begin, slots[portion]

    def bound(self, slot: int) -> Key:
        """No node from this one on has a smaller key, but for the start times of its victims."""
        level, count = self._bounds[int(slot)]
        highest = self._steps[min(level, len(self._steps) - 1)] if level >= 0 and self._steps else NO_COST
        least = (highest + COST_SHIFT) + (count - 1) * (self._steps[0] + COST_SHIFT) if count > 0 and self._steps else 0
        return (0, highest, least, count, 0, 0)

    def _levels(self) -> Column:
        """By node: the lowest step of cost so that evicting everything up to it is enough. -1 where nobody must go; FAR where
        the walk ended before, as there are enough candidates."""
        enough = _is_enough(self._slack)
        level: Column = np.where(enough, -1, FAR)
        # Where it is not resources that are lacking somebody must go, at least the cheapest, unless somebody goes anyway.
        is_ruled: Mask = np.zeros(len(enough), np.bool_)
        if self._ask.feasible is not None:
            is_ruled |= enough
            is_ruled[self._ending_on_slot] = False
            level[is_ruled] = FAR
        found, missing = int((level < FAR).sum()), self._fits & ~enough
        costs, slack = self._ask.cost[self._able], self._slack.copy()
        highest = int(costs.max()) if len(costs) else 0
        for step, (low, high) in enumerate(_cost_steps(costs)):
            self._steps.append(low)
            if found >= self.candidates_max and not self._ask.budgets:
                break
            chosen = np.flatnonzero((costs >= low) & (costs <= high)) if high < highest or is_ruled.any() else None
            if chosen is None or high >= highest:
                slack = self._cleared
            else:
                add_at(slack, self._on[chosen], self._held.take(chosen, axis=1))
            done = missing & _is_enough(slack)
            if chosen is not None and is_ruled.any():
                there: Mask = np.zeros(len(enough), np.bool_)
                there[self._on[chosen]] = True
                done |= is_ruled & there & (level == FAR)
            level[done] = step
            missing &= ~done
            found += int(done.sum())
        return level

    def _least_count(self, slots: Array) -> Column:
        """A lower bound on the number of victims: what is missing, in the largest pods there are."""
        if not len(self._able) or not len(self._rows):
            return np.zeros(len(slots), np.int64)
        largest = np.maximum(self._held.max(axis=1), 1)
        missing = np.maximum(-self._slack.take(slots, axis=1), 0)
        found: Column = (-(-missing // largest[:, None])).max(axis=0)
        return found

    # -- 2. and 3. look -----------------------------------------------------------------------------------------------------

    def examine(self, slots: Array, count: int) -> list[Room]:
        """The best of these nodes; after it, up to `count` in all, others whose victims cost no more than the best's."""
        outcome = self._outcome(slots)
        ending = self._ending_on(outcome.slots)
        found: list[tuple[Key, int, list[int]]] = []
        for node in outcome.order():
            key = outcome.keys[node]
            if found and (found[0][0] <= key and (len(found) >= count or key[:4] > found[0][0][:4])):
                break
            chosen = self._verify(outcome, node, ending.get(int(outcome.slots[node]), ()))
            if chosen is not None:
                found.append((outcome.key_of(node, chosen), node, chosen))
                found.sort(key=lambda one: one[0])
            elif self._checks_left <= 0:
                break
        return [
            self._room(outcome, node, chosen, ending.get(int(outcome.slots[node]), ()))
            for key, node, chosen in found[:count]
            if key[:4] == found[0][0][:4]
        ]

    def _outcome(self, slots: Array) -> Outcome:
        """Who must go from each of the nodes, as far as resources say."""
        place: Array = np.full(len(self._fits), -1, np.int64)
        place[slots] = np.arange(len(slots))
        at = place[self._on]
        chosen = np.flatnonzero(at >= 0)
        at, slack = at[chosen], self._cleared.take(slots, axis=1)
        records = self._records(chosen)
        units: dict[str, WholeUnit] = {}
        if self._ask.whole_units and any(is_shared(unit) for unit in {pod.unit[:4] for pod in records}):
            units = self._whole_units()
            goes = np.array([pod.unit not in units or units[pod.unit].can_go for pod in records])
            # Nothing is gained from units that must stay, and a node that would need that is out.
            add_at(slack, at[~goes], -self._held.take(chosen[~goes], axis=1))
            is_left = _is_enough(slack)
            goes &= is_left[at]
            at, chosen = (np.cumsum(is_left) - 1)[at[goes]], chosen[goes]
            slots, slack = slots[is_left], slack.compress(is_left, axis=1)
            records = self._records(chosen)
        items = Items(at, self._held.take(chosen, axis=1), self._ask.cost[self._able[chosen]], records)
        items.join(units)
        items.sort(self._ask.budgets)
        return Outcome(items, slots, slack)

    def _records(self, chosen: Array) -> list[PodRecord]:
        records = self._state.placed.records
        return [pod for index in self._able[chosen].tolist() if (pod := records[index]) is not None]

    def _whole_units(self) -> dict[str, WholeUnit]:
        if self._units is None:
            self._units = whole_units(self._state, self._ask.eligible, self._ask.cost)
        return self._units

    def _verify(self, outcome: Outcome, node: int, ending: Sequence[PodRecord]) -> list[int] | None:
        """The items that must go from the node: those that resources name, if that is enough; else found step by step."""
        chosen = outcome.victims(node)
        slot = int(outcome.slots[node])
        if self._asks(outcome, slot, chosen, ending):
            return chosen
        everything = list(outcome.everything(node))
        if everything == chosen or not self._asks(outcome, slot, everything, ending):
            return None
        slack = outcome.slack[:, node].copy()
        gone = everything
        for item in everything:
            request = outcome.items.request[:, item]
            rest = [other for other in gone if other != item]
            # Begun on a node, it is gone through with: what is left unasked would go for nothing.
            if (slack >= request).all() and self._asks(outcome, slot, rest, ending, is_begun=True):
                slack -= request
                gone = rest
        return gone

    def _asks(
        self, outcome: Outcome, slot: int, chosen: Sequence[int], ending: Sequence[PodRecord], *, is_begun: bool = False
    ) -> bool:
        if self._ask.feasible is None:
            return True
        if self._checks_left <= 0 and not is_begun:
            return False
        self._checks_left -= 1
        return self._ask.feasible(slot, [*ending, *_pods(outcome, chosen)])

    def _ending_on(self, slots: Array) -> dict[int, tuple[PodRecord, ...]]:
        is_asked: Mask = np.zeros(len(self._fits), np.bool_)
        is_asked[slots] = True
        there = np.flatnonzero(is_asked[self._ending_on_slot])
        found: dict[int, tuple[PodRecord, ...]] = {}
        for index, slot in zip(self._ending[there].tolist(), self._ending_on_slot[there].tolist(), strict=True):
            pod = self._state.placed.records[index]
            if pod is not None:
                found[slot] = (*found.get(slot, ()), pod)
        return found

    def _room(self, outcome: Outcome, node: int, chosen: list[int], ending: Sequence[PodRecord]) -> Room:
        pods = _pods(outcome, chosen)
        budgets = self._ask.budgets
        violating = tuple(budgets.violating(pods)) if budgets else ()
        victims = tuple(sorted(pods, key=lambda pod: (-pod.priority, started(pod), pod.uid)))
        slot = int(outcome.slots[node])
        key = outcome.key_of(node, chosen)
        by_uid = tuple(sorted(ending, key=lambda pod: pod.uid))
        return Room(slot, self._state.nodes.names[slot], victims, violating, by_uid, key)


def free_ahead(state: State, promised: Iterable[tuple[str, PodRecord]] = ()) -> Array:
    """What is free on each node once those that are ending have gone, and without what is promised to others (node, pod)."""
    free: Array = state.nodes.free.copy()
    placed = state.placed
    ending = nonzero(placed.ending & (placed.node >= 0))
    if len(ending):
        add_at(free, placed.node[ending], all_amounts(placed, len(free), ending))
    # Pods of one shape share what they request: few requests stand for many pods.
    alike: dict[int, tuple[Array, list[int]]] = {}
    known = state.nodes.slots
    for node, pod in promised:
        if node in known:
            alike.setdefault(id(pod.request), (pod.request, []))[1].append(known[node])
    for request, slots in alike.values():
        height = min(len(request), len(free))
        there, times = np.unique(np.array(slots), return_counts=True)
        free[:height, there] -= request[:height, None] * times
    return free


def add_at(target: Array, nodes: Array, held: Array) -> None:
    """Add amounts (rows, pods) to a block (rows, nodes), where each pod is."""
    if target.shape[1] == 1:
        target[:, 0] += np.add.reduce(held, axis=1)
        return
    for row in nonzero(np.logical_or.reduce(held, axis=1)).tolist():
        np.add.at(target[row], nodes, held[row])


def _cost_steps(costs: Array) -> Iterator[tuple[int, int]]:
    """Spans (lowest, highest) that cover all costs, in order. Few are asked for as a rule, so each is found when it is."""
    for _ in range(STEPS_MAX):
        if not len(costs):
            return
        low = int(costs.min())
        yield low, low
        costs = costs[costs > low]
    for span in np.array_split(np.unique(costs), STEPS_MAX):
        if len(span):
            yield int(span[0]), int(span[-1])


def _is_enough(slack: Array) -> Mask:
    """By node: whether nothing is lacking in any row."""
    mask: Mask = np.ones(slack.shape[1], np.bool_)
    for row in slack:
        mask &= row >= 0
    return mask


def _pods(outcome: Outcome, chosen: Sequence[int]) -> list[PodRecord]:
    return [pod for item in chosen for pod in outcome.items.members(item)]
