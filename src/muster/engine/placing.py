"""Finding nodes for a whole unit: as many pods as can, at least as many as must, or nothing.

Pods of one shape that no rule between pods concerns are placed all at once: of k pods, only the k best nodes can ever take one,
and what a node is worth with one more pod on it is worked out for all of them together. The result is the same, pod by pod, as
placing one after the other, and such pods are placed whenever there is any way to place them. Mixed units are placed group by
group, and if that fails, once more with the hardest group first; a bounded search, which may give up although there is a way
(`NotFound`).

Pure: takes from the state while it works, gives everything back when it fails.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock
from muster.engine.columns import Array
from muster.engine.evaluate import Evaluator
from muster.engine.pods import Phase, PodRecord
from muster.engine.state import State
from muster.engine.units import Group, Unit
from muster.engine.vectors import widened
from muster.objects.reasons import Reason, Verdict


class Placed(msgspec.Struct, frozen=True):
    pod: PodRecord
    slot: int
    score: int


class Shortage(msgspec.Struct, frozen=True):
    """Not enough: `placed` of the `wanted` pods of a group found a node; `stuck` is the first that did not, and `verdict` says
    why, with the others in their places."""

    group: Group
    placed: int
    wanted: int
    stuck: PodRecord
    verdict: Verdict
    is_search_bounded: bool = False
    """Every group would fit alone: that they do not fit together was not proved."""


Explain = Callable[[PodRecord], Verdict]


def place_unit(unit: Unit, evaluator: Evaluator, state: State, explain: Explain) -> list[Placed] | Shortage:
    """Assume nodes for the unit's pods. On shortage nothing stays assumed, nor when a plugin fails."""
    try:
        return _search(unit, evaluator, state, explain)
    except Exception:
        _give_back_all(unit, evaluator, state)
        raise


def place_some(unit: Unit, evaluator: Evaluator, state: State) -> list[Placed]:
    """Assume nodes for as many of the unit's pods as find one, whether that is enough or not."""
    found: list[Placed] = []
    try:
        for group in unit.groups:
            if group.controlled and group.pods:
                found += _place_group([state.pods[uid] for uid in group.pods], evaluator, state)[0]
    except Exception:
        _give_back_all(unit, evaluator, state)
        raise
    return found


def _give_back_all(unit: Unit, evaluator: Evaluator, state: State) -> None:
    assumed = [pod for uid in unit.pods if (pod := state.pods[uid]).phase is Phase.ASSUMED]
    _give_back([Placed(pod, state.nodes.slots[pod.node], 0) for pod in assumed], state, evaluator)


def _search(unit: Unit, evaluator: Evaluator, state: State, explain: Explain) -> list[Placed] | Shortage:
    groups = [group for group in unit.groups if group.controlled and group.pods]
    first = _try(unit, groups, evaluator, state, explain)
    if isinstance(first, list) or len(groups) == 1:
        return first
    hardest = sorted(groups, key=lambda group: (_room(group, evaluator, state), group.party, group.role))
    if hardest != groups:
        second = _try(unit, hardest, evaluator, state, explain)
        if isinstance(second, list):
            return second
    is_open = _fits_alone(first.group, evaluator, state) and not _exceeds_sum(unit, state)
    return msgspec.structs.replace(first, is_search_bounded=is_open)


def _fits_alone(group: Group, evaluator: Evaluator, state: State) -> bool:
    found, _ = _place_group([state.pods[uid] for uid in group.pods], evaluator, state)
    _give_back(found, state, evaluator)
    return len(found) >= max(group.missing, 1)


def _exceeds_sum(unit: Unit, state: State) -> bool:
    """Whether more is needed than is free in all, so that there is no way, however cleverly one looks."""
    groups = [group for group in unit.groups if group.controlled and group.missing]
    if unit.min_groups < len(unit.groups):
        return False
    free = np.maximum(state.nodes.free, 0).sum(axis=1)
    needed = np.zeros(len(free), np.int64)
    for group in groups:
        requests = np.array([widened(state.pods[uid].request, len(free))[: len(free)] for uid in group.pods])
        needed += np.sort(requests, axis=0)[: group.missing].sum(axis=0)
    return bool((needed > free).any())


def _try(unit: Unit, groups: Sequence[Group], evaluator: Evaluator, state: State, explain: Explain) -> list[Placed] | Shortage:
    taken: list[Placed] = []
    shortages: list[Shortage] = []
    rest: list[PodRecord] = []
    whole = sum(1 for group in unit.groups if not group.controlled)
    for group in groups:
        pods = [state.pods[uid] for uid in group.pods]
        if len(pods) < group.missing:
            shortages.append(Shortage(group, 0, group.missing, pods[0], _incomplete(group)))
            continue
        # What each group must have comes before what any may have.
        found, stuck = _place_group(pods, evaluator, state, group.missing or len(pods) if len(groups) > 1 else len(pods))
        is_whole = len(found) >= group.missing
        # A group that runs already must not place any more; when it can't, what is left of it waits all the same.
        if stuck is not None and not shortages and not (is_whole and found):
            shortages.append(Shortage(group, len(found), max(group.missing, 1), stuck, explain(stuck)))
        if is_whole:
            taken += found
            whole += 1
            if len(found) < len(pods) and len(groups) > 1 and group.missing:
                placed = {one.pod.uid for one in found}
                rest += [pod for pod in pods if pod.uid not in placed]
        else:
            _give_back(found, state, evaluator)
    settled = sum(1 for group in unit.groups if group.controlled and not group.pods and group.bound >= group.min)
    if whole + settled >= min(unit.min_groups, len(unit.groups)) and (taken or not shortages):
        return [*taken, *_place_group(rest, evaluator, state)[0]]
    _give_back(taken, state, evaluator)
    return shortages[0]


def _incomplete(group: Group) -> Verdict:
    message = f"{len(group.pods) + group.bound} of the {group.min} pods that must start together exist"
    return Verdict(reason=Reason.GANG_INCOMPLETE, message=message)


def _place_group(
    pods: Sequence[PodRecord], evaluator: Evaluator, state: State, limit: int | None = None
) -> tuple[list[Placed], PodRecord | None]:
    """As many of the pods as fit, up to `limit`, and the first that did not. Runs of pods that nothing tells apart go
    together."""
    found: list[Placed] = []
    stuck: PodRecord | None = None
    index = 0
    left = len(pods) if limit is None else limit
    while index < len(pods) and left > 0:
        first = pods[index]
        end = index + 1
        while end < len(pods) and end - index < left and pods[end].shape is first.shape and pods[end].labels == first.labels:
            end += 1
        run = pods[index:end]
        if len(run) > 1 and not evaluator.nominations and evaluator.is_plain(first) and not evaluator.has_late(first.shape):
            placed = place_alike(run, evaluator, state)
        else:
            placed = _one_by_one(run, evaluator, state)
        found += placed
        left -= len(placed)
        if len(placed) < len(run) and stuck is None:
            stuck = run[len(placed)]
        index = end
    return found, stuck


def _one_by_one(pods: Sequence[PodRecord], evaluator: Evaluator, state: State) -> list[Placed]:
    found: list[Placed] = []
    for pod in pods:
        choice = evaluator.choose(pod)
        if choice is None:
            break
        state.assume(pod, state.nodes.names[choice.slot])
        evaluator.touch(choice.slot)
        found.append(Placed(pod, choice.slot, choice.score))
    return found


def place_alike(pods: Sequence[PodRecord], evaluator: Evaluator, state: State) -> list[Placed]:
    """Pods of one shape that only the shape decides about."""
    shape = pods[0].shape
    slots, scores = spread_copies(evaluator, shape_row(evaluator, pods[0]), pods[0], len(pods))
    chosen = pods[: len(slots)]
    if not chosen:
        return []
    array = np.array(slots, np.intp)
    state.assume_many(chosen, array, shape)
    for slot in dict.fromkeys(slots):
        evaluator.touch(slot)
    return [Placed(pod, slot, score) for pod, slot, score in zip(chosen, slots, scores, strict=True)]


def shape_row(evaluator: Evaluator, pod: PodRecord) -> Array:
    return evaluator.base_row(pod.shape)


def spread_copies(evaluator: Evaluator, row: Array, pod: PodRecord, count: int) -> tuple[list[int], list[int]]:
    """Slots and scores of `count` copies, in the order in which they would be placed one by one; fewer if fewer fit."""
    candidates = best_slots(row, count)
    if not len(candidates):
        return [], []
    levels = _Levels(evaluator, pod, row, candidates, count)
    heap = [
        (-score, slot, index, 0)
        for index, (slot, score) in enumerate(zip(candidates.tolist(), row[candidates].tolist(), strict=True))
    ]
    heapq.heapify(heap)
    slots: list[int] = []
    scores: list[int] = []
    while heap and len(slots) < count:
        score, slot, index, level = heap[0]
        slots.append(slot)
        scores.append(-score)
        following = levels.score(index, level + 1) if len(slots) < count else -1
        if following >= 0:
            heapq.heapreplace(heap, (-following, slot, index, level + 1))
        else:
            heapq.heappop(heap)
    return slots, scores


def best_slots(row: Array, count: int) -> Array:
    """The `count` best feasible slots, earlier ones first among equals, in order of slot."""
    feasible = np.flatnonzero(row >= 0)
    if len(feasible) <= count:
        return feasible
    values = row[feasible]
    least = _threshold(values, count)
    above = values > least
    equal = np.flatnonzero(values == least)[: count - int(np.count_nonzero(above))]
    above[equal] = True
    return feasible[above]


def _threshold(values: Array, count: int) -> int:
    """The `count`-th largest of the values, which are not negative. Scores are small numbers, so counting them is quickest."""
    top = int(values.max())
    if top > _COUNTED_MAX:
        return int(np.partition(values, len(values) - count)[len(values) - count])
    at_least = np.cumsum(np.bincount(values)[::-1])
    return top - int(np.searchsorted(at_least, count))


_COUNTED_MAX = 65_536


class _Levels:
    """What each candidate is worth with 1, 2, 3 ... copies on it; worked out a few levels at a time, for all at once."""

    def __init__(self, evaluator: Evaluator, pod: PodRecord, row: Array, candidates: Array, count: int) -> None:
        self._evaluator = evaluator
        self._block = evaluator.block(pod)
        self._candidates = candidates
        self._static = evaluator.static_part(pod.shape, candidates)
        self._known: list[list[int]] = [row[candidates].tolist()]
        self._count = count

    def score(self, index: int, level: int) -> int:
        while level >= len(self._known):
            self._deepen()
        return self._known[level][index]

    def _deepen(self) -> None:
        start = len(self._known)
        # One level at first, then twice as many each time: spreading needs one, packing needs all.
        levels = np.arange(start, max(min(2 * start, self._count + 1), start + 1))
        copies = np.repeat(levels, len(self._candidates))
        nodes = NodeBlock(self._evaluator.state.nodes, np.tile(self._candidates, len(levels)))
        free = nodes.free - self._block.request[:, None] * copies
        imagined = nodes.changed(free, nodes.scoring_used + self._block.scoring[:, None] * copies)
        local = self._evaluator.ask.local(self._block, imagined).reshape(len(levels), -1)
        self._known += np.where(local >= 0, local + self._static, -1).tolist()


def _give_back(placed: Sequence[Placed], state: State, evaluator: Evaluator) -> None:
    for one in reversed(placed):
        state.forget(one.pod)
        evaluator.touch(one.slot)


def _room(group: Group, evaluator: Evaluator, state: State) -> int:
    """How many nodes could take a pod of the group: fewer is harder."""
    first = state.pods[group.pods[0]]
    return int(np.count_nonzero(evaluator.scores(first) >= 0))
