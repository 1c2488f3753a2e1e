"""Nodes as columns: one contiguous row per resource over all nodes, and label, taint and plugin columns beside them.

A node's *slot* is its place in the alphabet of all node names, so equal clusters have equal columns, however they came to be,
and "the first of equals" means the same on every machine. Nodes come and go in batches (`replace`), which moves slots; between
batches slots are stable. Everything that is kept per node in an array is moved along.

Pure, single-threaded. Only `State` changes these; plugins read them through blocks.

Invariant: `capacity - free`, row by row, is the sum over the pods that `State` has placed on the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from muster.engine.facts import NodeFacts
from muster.engine.resources import EGRESS, INGRESS, ResourceTable
from muster.engine.vectors import Vector, widened
from muster.objects.amounts import AMOUNT_MAX, amount_of
from muster.objects.bandwidth import node_bandwidth
from muster.objects.kinds.nodes import Taint
from muster.objects.labels import Kuscia

Array = np.ndarray[Any, np.dtype[Any]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
Column = np.ndarray[tuple[int], np.dtype[np.int64]]

_SPARE_KEYS = 1_024
_SPARE_TAINT_SETS = 64


def nonzero(column: Array) -> Array:
    """Where a column of one dimension is not zero, or true. `np.flatnonzero` costs three times as much on short columns, which
    most are."""
    found: Array = column.nonzero()[0]
    return found


ABSENT = 0
"""The value id of a node that lacks the label."""


class Columns:
    def __init__(self, table: ResourceTable) -> None:
        self.table = table
        self.names: list[str] = []
        self.slots: dict[str, int] = {}
        self.facts: list[NodeFacts] = []
        self.capacity: Array = np.zeros((len(table), 0), np.int64)
        self.divisor: Array = np.zeros((len(table), 0), np.int64)
        """`capacity`, at least 1: what shares are worked out with."""
        self.free: Array = np.zeros((len(table), 0), np.int64)
        self.scoring_used: Array = np.zeros((2, 0), np.int64)
        """CPU (milli) and memory in use as scoring counts them: a container that asks for nothing counts for something."""
        self.unschedulable: Array = np.zeros(0, np.bool_)
        self.taint_set: Array = np.zeros(0, np.int32)
        """Which of `taint_sets` each node has: what holds for the set holds for all its nodes."""
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self.problems: dict[str, tuple[str, ...]] = {}
        """By node: what of its description could not be read."""
        self.version = 0
        """Moves whenever slots move or a node's own description changes."""
        self._taint_ids: dict[bytes, int] = {b"": 0}
        self._labels: dict[str, _LabelColumn] = {}
        self._keys: set[str] = set()
        """Labels that nodes have, and some that they had."""
        self._keys_max = _SPARE_KEYS
        self._own: dict[str, Array] = {}
        self.movers: list[Callable[[Array, Array, int], None]] = []
        """Called when slots move, with the new slots of the nodes that stay, their old slots, and how many there are now."""

    def __len__(self) -> int:
        return len(self.names)

    # -- reading -----------------------------------------------------------------------------------------------------------

    @property
    def used(self) -> Array:
        """What the pods on each node ask for, together."""
        return self.capacity - self.free

    def label_ids(self, key: str) -> Array:
        """int32 per node: the id of its value of label `key`, ABSENT without one. Made when first asked for, then kept up."""
        column = self._labels.get(key)
        if column is None:
            # Anybody may ask for a label, and there is no end of labels: for one that no node has, no node is looked at.
            if key not in self._keys:
                return np.zeros(len(self.names), np.int32)
            column = _LabelColumn(key)
            column.fill(self.facts)
            if column.values:
                self._labels[key] = column
            else:
                self._keys.discard(key)
        return column.ids

    def label_values(self, key: str) -> Mapping[str, int]:
        """The ids of the values of label `key`. An id keeps its meaning for as long as the engine lives."""
        column = self._labels.get(key)
        if column is None and key in self._keys:
            self.label_ids(key)
            column = self._labels.get(key)
        return column.values if column is not None else {}

    def own(self, name: str, dtype: type[np.generic] = np.int64, rows: int = 1) -> Array:
        """A plugin's own columns, shape (rows, nodes), zero until the plugin writes them; they move with their nodes."""
        array = self._own.get(name)
        if array is None:
            array = self._own[name] = np.zeros((rows, len(self.names)), dtype)
        return array

    # -- changing (State only) ---------------------------------------------------------------------------------------------

    def replace(self, seen: Mapping[str, NodeFacts], gone: Iterable[str]) -> list[int]:
        """Take in nodes that were seen and drop those that are gone; the slots whose nodes are new or changed."""
        gone_set = {name for name in gone if name in self.slots and name not in seen}
        new = [name for name in seen if name not in self.slots]
        if new or gone_set:
            self._move(sorted([*(name for name in self.names if name not in gone_set), *new]), seen)
        changed = sorted(self.slots[name] for name in seen)
        for slot in changed:
            node = seen[self.names[slot]]
            try:
                self._describe(slot, node)
            except Exception as error:  # noqa: BLE001 - one node that can't be understood costs nobody the others
                self._void(slot, f"can't be understood: {type(error).__name__}: {error}")
        if changed or gone_set:
            self.version += 1
            self._forget_keys()
        return changed

    def grow(self) -> None:
        """Add rows for resources that the table has got since."""
        missing = len(self.table) - len(self.capacity)
        if missing > 0:
            self.capacity, self.free = (
                np.concatenate([array, np.zeros((missing, len(self.names)), np.int64)]) for array in (self.capacity, self.free)
            )
            self.divisor = np.maximum(self.capacity, 1)

    def add(self, slot: int, request: Vector, scoring_cpu: int, scoring_memory: int, sign: int) -> None:
        """Count a pod in (+1) or out (-1)."""
        if len(request) != len(self.free):
            request = widened(request, len(self.free))
        if sign > 0:
            self.free[:, slot] -= request
        else:
            self.free[:, slot] += request
        self.scoring_used[0, slot] += sign * scoring_cpu
        self.scoring_used[1, slot] += sign * scoring_memory

    def set_capacity(self, slot: int, row: int, amount: int) -> None:
        self.free[row, slot] += amount - self.capacity[row, slot]
        self.capacity[row, slot] = amount
        self.divisor[row, slot] = max(amount, 1)

    def copy(self) -> Columns:
        """A copy whose amounts can be changed; descriptions, which nobody changes in a copy, are shared."""
        twin = Columns.__new__(Columns)
        twin.__dict__.update(self.__dict__)
        twin.capacity, twin.free = self.capacity.copy(), self.free.copy()
        twin.scoring_used, twin.divisor = self.scoring_used.copy(), self.divisor.copy()
        twin._own = {name: array.copy() for name, array in self._own.items()}
        twin.movers = []
        return twin

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _move(self, names: list[str], seen: Mapping[str, NodeFacts]) -> None:
        kept = [(new, self.slots[name]) for new, name in enumerate(names) if name in self.slots]
        target = np.fromiter((new for new, _ in kept), np.intp, len(kept))
        source = np.fromiter((old for _, old in kept), np.intp, len(kept))

        def moved(array: Array) -> Array:
            result = np.zeros((*array.shape[:-1], len(names)), array.dtype)
            result[..., target] = array[..., source]
            return result

        self.capacity, self.free = moved(self.capacity), moved(self.free)
        self.scoring_used = moved(self.scoring_used)
        self.divisor = np.maximum(self.capacity, 1)
        self.unschedulable, self.taint_set = moved(self.unschedulable), moved(self.taint_set)
        self._own = {name: moved(array) for name, array in self._own.items()}
        for column in self._labels.values():
            column.ids = moved(column.ids)
        self.facts = [self.facts[self.slots[name]] if name in self.slots else seen[name] for name in names]
        for name in self.slots.keys() - set(names):
            self.problems.pop(name, None)
        self.names = names
        self.slots = {name: slot for slot, name in enumerate(names)}
        for mover in self.movers:
            mover(target, source, len(names))

    def _describe(self, slot: int, node: NodeFacts) -> None:
        name = self.names[slot]
        self.facts[slot] = node
        self._keys.update(node.metadata.labels)
        problems: list[str] = []
        amounts: dict[int, int] = {}
        for resource, value in node.status.allocatable.items():
            if resource == Kuscia.RESOURCE_BANDWIDTH:
                continue
            try:
                amounts[self.table.row(resource)] = amount_of(resource, value)
            except ValueError as error:
                problems.append(f"status.allocatable.{resource}: {error}")
        bandwidth = node_bandwidth(node.metadata.annotations, node.status.allocatable, node.status.capacity)
        problems.extend(map(str, bandwidth.problems))
        if bandwidth.usable is not None:
            amounts[EGRESS] = min(bandwidth.usable.egress_bps, AMOUNT_MAX)
            amounts[INGRESS] = min(bandwidth.usable.ingress_bps, AMOUNT_MAX)
        self.grow()
        used = self.capacity[:, slot] - self.free[:, slot]
        self.capacity[:, slot] = 0
        for row, amount in amounts.items():
            self.capacity[row, slot] = amount
        self.divisor[:, slot] = np.maximum(self.capacity[:, slot], 1)
        self.free[:, slot] = self.capacity[:, slot] - used
        self.unschedulable[slot] = node.spec.unschedulable
        self.taint_set[slot] = self._taints(node.spec.taints)
        for column in self._labels.values():
            column.ids[slot] = column.id(node)
        if problems:
            self.problems[name] = tuple(problems)
        else:
            self.problems.pop(name, None)

    def _void(self, slot: int, problem: str) -> None:
        """Offer nothing on the node; what is on it stays counted."""
        self.free[:, slot] -= self.capacity[:, slot]
        self.capacity[:, slot] = 0
        self.divisor[:, slot] = 1
        self.unschedulable[slot] = True
        self.problems[self.names[slot]] = (problem,)

    def _forget_keys(self) -> None:
        """Some labels come with every node and never again: now and then, those that nodes have are gathered anew."""
        if len(self._keys) > self._keys_max:
            self._keys = {key for node in self.facts for key in node.metadata.labels}
            self._keys_max = 2 * len(self._keys) + _SPARE_KEYS

    def _taints(self, taints: list[Taint]) -> int:
        if not taints:
            return 0
        ordered = tuple(sorted(taints, key=lambda t: (t.key, t.effect, t.value)))
        key = "\0".join(f"{t.key}\1{t.value}\1{t.effect}" for t in ordered).encode()
        found = self._taint_ids.get(key)
        if found is None:
            if len(self.taint_sets) > 2 * len(self.names) + _SPARE_TAINT_SETS:
                self._forget_taints()
            found = self._taint_ids[key] = len(self.taint_sets)
            self.taint_sets.append(ordered)
        return found

    def _forget_taints(self) -> None:
        """Number the taint sets anew that nodes have. Some taints carry a time as their value, and never come again."""
        kept = np.unique(np.append(self.taint_set, 0))
        numbers: Array = np.zeros(len(self.taint_sets), np.int32)
        numbers[kept] = np.arange(len(kept))
        self.taint_set = numbers[self.taint_set]
        self.taint_sets = [self.taint_sets[number] for number in kept.tolist()]
        in_use = set(kept.tolist())
        self._taint_ids = {key: int(numbers[number]) for key, number in self._taint_ids.items() if number in in_use}


class _LabelColumn:
    def __init__(self, key: str) -> None:
        self.key = key
        self.values: dict[str, int] = {}
        self.ids: Array = np.zeros(0, np.int32)

    def id(self, node: NodeFacts) -> int:
        value = node.metadata.labels.get(self.key)
        if value is None:
            return ABSENT
        return self.values.setdefault(value, len(self.values) + 1)

    def fill(self, nodes: list[NodeFacts]) -> None:
        self.ids = np.fromiter((self.id(node) for node in nodes), np.int32, len(nodes))
