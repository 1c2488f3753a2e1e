"""Who must go from each of several nodes: kube-scheduler's reprieve, for all the nodes at once.

On each node all that may be evicted is thought away; then, one after the other, each is given back its place if the pod still
fits beside it. Those that would break a disruption budget come first, then the most important. What remains are the victims.
The nodes are walked side by side: step k treats the k-th of every node in one operation.

An *item* is what is evicted together: one pod, or, when units are evicted whole, all pods of the unit, wherever they are.

Pure. Resources only; rules between pods are `victims.select`'s to check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from muster.engine.budgets import Budgets, excess
from muster.engine.columns import Array
from muster.engine.pods import PodColumns, PodRecord

if TYPE_CHECKING:
    from muster.engine.whole_units import WholeUnit

Key = tuple[int, int, int, int, int, int]
"""What is compared, smallest first: broken budgets, highest cost, sum of costs, how many, minus the start of the most important
(the later it started the better), slot (that is: name) of the node."""

COST_SHIFT = 2**31
"""Added to each cost in a sum, as kube-scheduler does, so that one more victim never makes a sum smaller."""
NO_COST = -(2**62)
NOT_STARTED = 10**15


class Items:
    """What could be evicted from some nodes, in columns. One per pod, until `join` puts members of units together."""

    def __init__(self, at: Array, request: Array, cost: Array, records: list[PodRecord]) -> None:
        self.at = at
        """Which of the nodes, as a number from 0."""
        self.request = request
        self.cost = cost
        self.weight: Array = cost + COST_SHIFT
        self.size: Array = np.ones(len(at), np.int64)
        self.start = _starts(records)
        self.charges: Array = np.zeros((0, len(at)), np.int64)
        """(budgets, items): how many of an item's pods each disruption budget counts."""
        self.allowed: Array = np.zeros(0, np.int64)
        self._records = records
        self._origin: Array = np.arange(len(at))
        self._whole: dict[int, tuple[PodRecord, ...]] = {}

    def members(self, item: int) -> tuple[PodRecord, ...]:
        origin = int(self._origin[item])
        return self._whole.get(origin) or (self._records[origin],)

    def join(self, units: Mapping[str, WholeUnit]) -> None:
        """Members of one unit on one node become one item, which stands for the whole unit."""
        if not units:
            return
        first: dict[tuple[int, str], int] = {}
        keep: Array = np.ones(len(self.at), np.bool_)
        for place, (pod, node) in enumerate(zip(self._records, self.at.tolist(), strict=True)):
            unit = units.get(pod.unit)
            if unit is None:
                continue
            leader = first.setdefault((node, pod.unit), place)
            if leader != place:
                self.request[:, leader] += self.request[:, place]
                keep[place] = False
                continue
            self._whole[place] = unit.members
            self.cost[place], self.weight[place], self.start[place] = unit.cost, unit.weight, unit.start
            self.size[place] = len(unit.members)
        if not keep.all():
            self._reorder(np.flatnonzero(keep))

    def sort(self, budgets: Budgets | None) -> None:
        """Into the order in which they are given back: by node, budget breakers first, most important first."""
        uids = [self._records[origin].uid for origin in self._origin.tolist()]
        rank: Array = np.empty(len(uids), np.int64)
        rank[sorted(range(len(uids)), key=uids.__getitem__)] = np.arange(len(uids))
        self._reorder(np.lexsort((rank, self.start, -self.cost, self.at)))
        if budgets and uids:
            self.allowed, self.charges = budgets.allowed, self._charges(budgets)
            breaks = excess(self.charges, self.allowed, np.searchsorted(self.at, self.at)) > 0
            if breaks.any():
                order = np.lexsort((~breaks, self.at))
                self.charges = self.charges[:, order]
                self._reorder(order)

    def _reorder(self, order: Array) -> None:
        self.at, self.cost, self.weight = self.at[order], self.cost[order], self.weight[order]
        self.size, self.start, self.request = self.size[order], self.start[order], self.request.take(order, axis=1)
        self._origin = self._origin[order]

    def _charges(self, budgets: Budgets) -> Array:
        members = [self.members(item) for item in range(len(self.at))]
        by_pod = budgets.charges([pod for pods in members for pod in pods])
        if by_pod.shape[1] == len(members):
            return by_pod
        ends = np.cumsum([len(pods) for pods in members])
        by_item: Array = np.add.reduceat(by_pod, np.concatenate([[0], ends[:-1]]), axis=1)
        return by_item


class Outcome:
    """The victims on each node, and how the nodes compare."""

    def __init__(self, items: Items, slots: Array, slack: Array) -> None:
        """`slack` (rows, nodes): by how much the pod fits when everything is away."""
        self.items = items
        self.slots = slots
        nodes = np.arange(len(slots))
        self.first: Array = np.searchsorted(items.at, nodes)
        self.counts: Array = np.bincount(items.at, minlength=len(slots))
        self.slack = slack
        self.is_victim = _walk(items, self.first, self.counts, slack.copy())
        self.keys = self._keys()

    def order(self) -> list[int]:
        return sorted(range(len(self.slots)), key=self.keys.__getitem__)

    def victims(self, node: int) -> list[int]:
        """Items, in the order in which they were looked at."""
        begin = int(self.first[node])
        return [begin + int(i) for i in np.flatnonzero(self.is_victim[begin : begin + int(self.counts[node])])]

    def everything(self, node: int) -> range:
        begin = int(self.first[node])
        return range(begin, begin + int(self.counts[node]))

    def key_of(self, node: int, chosen: Sequence[int]) -> Key:
        """The key of a node if these items went."""
        items = self.items
        if not chosen:
            return (0, NO_COST, 0, 0, -NOT_STARTED, int(self.slots[node]))
        places = np.array(chosen)
        over = int(excess(items.charges[:, places], items.allowed, np.zeros(len(places), np.intp)).sum())
        cost = items.cost[places]
        start = int(items.start[places][cost == cost.max()].min())
        weight, size = int(items.weight[places].sum()), int(items.size[places].sum())
        return (over, int(cost.max()), weight, size, -start, int(self.slots[node]))

    def _keys(self) -> list[Key]:
        items, chosen = self.items, np.flatnonzero(self.is_victim)
        at, cost = items.at[chosen], items.cost[chosen]
        size = len(self.slots)
        highest: Array = np.full(size, NO_COST, np.int64)
        np.maximum.at(highest, at, cost)
        start: Array = np.full(size, NOT_STARTED, np.int64)
        top = cost == highest[at]
        np.minimum.at(start, at[top], items.start[chosen][top])
        over, weight, count = (np.zeros(size, np.int64) for _ in range(3))
        np.add.at(weight, at, items.weight[chosen])
        np.add.at(count, at, items.size[chosen])
        if len(items.charges) and len(chosen):
            np.add.at(over, at, excess(items.charges[:, chosen], items.allowed, np.searchsorted(at, at)))
        columns = (over, highest, weight, count, -start, self.slots)
        return list(zip(*(column.tolist() for column in columns), strict=True))


def amounts(placed: PodColumns, rows: Array, indices: Array) -> Array:
    """What these pods hold of these resources: (rows, pods). A copy."""
    request = placed.request
    found: Array = np.zeros((len(rows), len(indices)), np.int64)
    for place, row in enumerate(rows.tolist()):
        if row < len(request):
            found[place] = request[row][indices]
    return found


def all_amounts(placed: PodColumns, height: int, indices: Array) -> Array:
    """`amounts` of the first `height` resources."""
    found: Array = placed.request[:height].take(indices, axis=1)
    missing = height - len(found)
    return np.concatenate([found, np.zeros((missing, len(indices)), np.int64)]) if missing else found


def started(pod: PodRecord) -> int:
    """When it started, as the digits of its start time; NOT_STARTED when it has not, or nobody can tell."""
    return _moment(pod.facts.status.start_time)


def _moment(text: str) -> int:
    digits = text[:4] + text[5:7] + text[8:10] + text[11:13] + text[14:16] + text[17:19]
    return int(digits) if len(digits) == 14 and digits.isdecimal() else NOT_STARTED


def _starts(records: list[PodRecord]) -> Array:
    texts = [pod.facts.status.start_time for pod in records]
    moments = {text: _moment(text) for text in set(texts)}
    return np.array([moments[text] for text in texts], np.int64)


def _walk(items: Items, first: Array, counts: Array, slack: Array) -> Array:
    if len(counts) == 1:
        return np.array(_walk_one(slack[:, 0].tolist(), items.request.T.tolist()), np.bool_)
    is_victim: Array = np.zeros(len(items.at), np.bool_)
    for step in range(int(counts.max()) if len(counts) else 0):
        nodes = np.flatnonzero(counts > step)
        places = first[nodes] + step
        after = slack.take(nodes, axis=1) - items.request.take(places, axis=1)
        stays = (after >= 0).all(axis=0)
        slack[:, nodes[stays]] = after.compress(stays, axis=1)
        is_victim[places[~stays]] = True
    return is_victim


def _walk_one(slack: list[int], requests: list[list[int]]) -> list[bool]:
    """The same on one node, where numbers cost less than columns that are one long."""
    found: list[bool] = []
    for request in requests:
        after = [left - amount for left, amount in zip(slack, request, strict=True)]
        stays = all(left >= 0 for left in after)
        if stays:
            slack = after
        found.append(not stays)
    return found
