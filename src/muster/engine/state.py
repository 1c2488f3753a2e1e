"""The engine's picture of the cluster: nodes in columns, pods in records, and the smaller kinds by name.

Events come in through `apply`; the cycle takes and gives back through `assume` and `forget`. Whatever changes leaves its trace
in `touched` (slots whose answers may differ), `freed` (slots that offer more than before) and `woken` (kinds of change), which
the machine drains.

Pure, single-threaded. Invariants: a pod counts on exactly one node or on none; the columns equal the sum of what counts on
them; a state that is built from the same objects in any order is equal (`equals`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from muster.engine import events as ev
from muster.engine.columns import Array, Columns
from muster.engine.facts import (
    BudgetFacts,
    ClaimFacts,
    LinkFacts,
    NamespaceFacts,
    NodeFacts,
    NodeMetricFacts,
    PersistentVolumeFacts,
    PodFacts,
    PodGroupFacts,
    PoolFacts,
    QuotaFacts,
    StorageClassFacts,
    TaskGroupFacts,
)
from muster.engine.plugin import Plugin, Wake, overrides
from muster.engine.pods import Phase, PodColumns, PodRecord
from muster.engine.resources import ResourceTable
from muster.engine.shapes import Shape, ShapeTable
from muster.engine.trial import Trial
from muster.engine.vectors import Vector, widened

_FOLLOWERS_MAX = 10_000
_FAULTS_MAX = 100
K = TypeVar("K")
V = TypeVar("V")
Key = tuple[str, str]
"""Namespace and name."""


class State:
    def __init__(self) -> None:
        self.table = ResourceTable()
        self.shapes = ShapeTable(self.table)
        self.nodes = Columns(self.table)
        self.pods: dict[str, PodRecord] = {}
        """By uid."""
        self.on_node: dict[str, dict[str, PodRecord]] = {}
        """Pods by node name and uid, whether the node is known or not."""
        self.placed = PodColumns(len(self.table))
        self.nodes.movers.append(self.placed.move)
        self.namespaces: dict[str, NamespaceFacts] = {}
        self.claims: dict[Key, ClaimFacts] = {}
        self.volumes: dict[str, PersistentVolumeFacts] = {}
        self.storage_classes: dict[str, StorageClassFacts] = {}
        self.pools: dict[str, PoolFacts] = {}
        self.links: dict[str, LinkFacts] = {}
        self.quotas: dict[str, QuotaFacts] = {}
        """By party, which is a namespace."""
        self.budgets: dict[Key, BudgetFacts] = {}
        self.metrics: dict[str, NodeMetricFacts] = {}
        self.groups: dict[Key, PodGroupFacts] = {}
        self.task_groups: dict[str, TaskGroupFacts] = {}
        self.order_objects: dict[Key, ev.AnyEvent] = {}
        """By kind and name: what only the order of work reads (queues, policies, users), as last seen; for checkpoints."""
        self.nominations: dict[str, tuple[str, PodRecord]] = {}
        """By uid: room that was made by preemption is kept for whom it was made (node, pod), whatever the others' profile."""
        self.now = 0.0
        self.touched: dict[int, None] = {}
        self.freed: dict[int, None] = {}
        self.woken: set[Wake] = set()
        self.observers: list[Plugin] = []
        self.listeners: list[Plugin] = []
        """Those that want to hear of other events than those of pods."""
        self.lookers: list[Plugin] = []
        """Those that may want to be asked at a certain time, and hear of it when time has passed."""
        self._pod_observers: list[Plugin] = []
        """Those that want to hear of pods: most do not, and pods are many."""
        self._followers_of: dict[int, tuple[Plugin, ...]] = {}
        """By shape: which of them follow its pods."""
        self.extras: dict[str, object] = {}
        """Indexes that plugins share, by name."""
        self.faults: dict[str, str] = {}
        """What was left undone because it failed, by plugin or object; for whoever looks after the scheduler."""
        self._seen_nodes: dict[str, NodeFacts] = {}
        self._gone_nodes: dict[str, None] = {}

    # -- events ------------------------------------------------------------------------------------------------------------

    def apply_node(self, event: ev.NodeSeen | ev.NodeGone) -> None:
        """Remember a change of a node. Nodes are taken in together by `flush_nodes`: slots move once, not once per node."""
        if isinstance(event, ev.NodeSeen):
            name = event.node.metadata.name
            self._gone_nodes.pop(name, None)
            self._seen_nodes[name] = event.node
        else:
            self._seen_nodes.pop(event.name, None)
            self._gone_nodes[event.name] = None

    @property
    def has_unflushed_nodes(self) -> bool:
        return bool(self._seen_nodes or self._gone_nodes)

    def flush_nodes(self) -> None:
        seen, gone = self._seen_nodes, self._gone_nodes
        if not seen and not gone:
            return
        self._seen_nodes, self._gone_nodes = {}, {}
        for name in gone:
            if name in self.nodes.slots:
                for pod in self.on_node.get(name, {}).values():
                    self._uncount(pod, self.nodes.slots[name])
        before = self.nodes.slots
        old_touched = [self.nodes.names[slot] for slot in self.touched]
        old_freed = [self.nodes.names[slot] for slot in self.freed]
        changed = self.nodes.replace(seen, gone)
        slots = self.nodes.slots
        self.touched = {slots[name]: None for name in old_touched if name in slots}
        self.freed = {slots[name]: None for name in old_freed if name in slots}
        self.woken.add(Wake.NODE)
        for slot in changed:
            name = self.nodes.names[slot]
            for observer in self.observers:
                self.tell(observer, "node_seen", slot, self.nodes.facts[slot])
            if name not in before:
                for pod in self.on_node.get(name, {}).values():
                    self._count(pod, slot)
            self.touched[slot] = None
            self.freed[slot] = None

    def see_pod(self, pod: PodFacts) -> PodRecord:
        """Take in a pod as it is now; its record. What it counts for follows its node, phase and requests."""
        uid = pod.metadata.uid
        record = self.pods.get(uid)
        if record is None:
            record = self.pods[uid] = PodRecord(pod, self.shapes.shape_of_seen(pod))
            if pod.spec.node_name and not pod.is_finished:
                self._put(record, pod.spec.node_name, Phase.BOUND)
            return record
        before = record.facts
        record.facts = record.seen = pod
        record.is_ending = bool(pod.metadata.deletion_timestamp)
        self.placed.note(record)
        record.nominated = pod.status.nominated_node_name
        if before.spec is not pod.spec or before.metadata.annotations != pod.metadata.annotations:
            self._reshape(record)
        is_ending_now = record.is_ending and not before.metadata.deletion_timestamp
        if before.metadata.labels != pod.metadata.labels or is_ending_now:
            self._relabel(record, before)
        node = "" if pod.is_finished else pod.spec.node_name
        if node and node == record.node:
            record.phase = Phase.BOUND
        elif node:
            if record.node:
                self._take_away(record)
            self._put(record, node, Phase.BOUND)
        elif record.node and pod.is_finished:
            # Seen without a node it may only be an older view than what its binding told: no pod ever loses its node.
            self._take_away(record)
        return record

    def remove_pod(self, uid: str) -> PodRecord | None:
        record = self.pods.pop(uid, None)
        if record is not None and record.node:
            self._take_away(record)
        return record

    # -- the cycle ---------------------------------------------------------------------------------------------------------

    def assume(self, pod: PodRecord, node: str, request: Vector | None = None) -> None:
        """Count a waiting pod on a node."""
        if request is not None:
            pod.request = request
        self._put(pod, node, Phase.ASSUMED)

    def forget(self, pod: PodRecord) -> None:
        """Give back what was assumed."""
        pod.is_held = False
        self._take_away(pod)
        pod.request = pod.shape.request

    def mark_held(self, pod: PodRecord, is_held: bool) -> None:
        """What is assumed for the pod is held for a permit or for others (or is not any more): it is nobody's victim."""
        pod.is_held = is_held
        self.placed.note(pod)

    def news(self) -> tuple[dict[int, None], set[Wake]]:
        """What would wake others, as it stands."""
        return dict(self.freed), set(self.woken)

    def restore_news(self, news: tuple[dict[int, None], set[Wake]]) -> None:
        """Something was tried and undone: nobody has more than before, so nobody is to be woken for it."""
        self.freed, self.woken = news

    def replace_waiting(self, pod: PodRecord, facts: PodFacts) -> None:
        """Schedule a waiting pod as if it were `facts`, until it is seen again."""
        pod.facts = facts
        pod.shape = self.shapes.shape_of(facts)
        pod.request, pod.priority = pod.shape.request, facts.spec.priority or 0
        pod.scoring_cpu, pod.scoring_memory = pod.shape.requests.scoring_cpu, pod.shape.requests.scoring_memory

    def assume_many(self, pods: Sequence[PodRecord], slots: Array, shape: Shape) -> None:
        """Count waiting pods of one shape on nodes, one slot each; what `assume` does one by one, at once."""
        if len(shape.request) != len(self.nodes.free):
            self.nodes.grow()
            shape.widen(len(self.nodes.free))
        counts = np.bincount(slots, minlength=1)
        touched = np.flatnonzero(counts)
        copies = counts[touched]
        self.nodes.free[:, touched] -= shape.request[:, None] * copies
        self.nodes.scoring_used[:, touched] += shape.scoring[:, None] * copies
        names, on_node, placed = self.nodes.names, self.on_node, self.placed
        for pod, slot in zip(pods, slots.tolist(), strict=True):
            node = pod.node = names[slot]
            pod.phase = Phase.ASSUMED
            pod.request = shape.request
            there = on_node.get(node)
            if there is None:
                there = on_node[node] = {}
            there[pod.uid] = pod
            placed.add(pod, slot)
        self.touched.update(dict.fromkeys(touched.tolist()))
        for observer in self._followers(shape):
            for pod, slot in zip(pods, slots.tolist(), strict=True):
                self.tell(observer, "pod_added", pod, slot)

    @contextmanager
    def without(self, pods: Sequence[PodRecord]) -> Iterator[None]:
        """For a question: as if these placed pods were gone. Afterwards all is as it was, and nobody is woken for it."""
        places = [(pod, pod.node, pod.phase) for pod in pods]
        orders = {node: list(self.on_node[node]) for _, node, _ in places}
        touched, freed, woken = dict(self.touched), dict(self.freed), set(self.woken)
        for pod, _, _ in places:
            self._take_away(pod)
        try:
            yield
        finally:
            # Backwards, so that each gets its own place in the columns again.
            for pod, node, phase in reversed(places):
                self._put(pod, node, phase)
            for node, order in orders.items():
                there = self.on_node[node]
                self.on_node[node] = {uid: there[uid] for uid in order}
            self.touched, self.freed, self.woken = touched, freed, woken

    def observe(self, plugin: Plugin) -> None:
        """Tell the plugin of everything from now on."""
        self.observers.append(plugin)
        self._sort_observers()
        if overrides(plugin, "pod_added") or overrides(plugin, "pod_removed"):
            self._pod_observers.append(plugin)
            self._followers_of.clear()

    def unobserve(self, plugin: Plugin) -> None:
        self.observers.remove(plugin)
        self._sort_observers()
        if plugin in self._pod_observers:
            self._pod_observers.remove(plugin)
            self._followers_of.clear()

    def _sort_observers(self) -> None:
        self.listeners = [plugin for plugin in self.observers if overrides(plugin, "event")]
        self.lookers = [plugin for plugin in self.observers if overrides(plugin, "next_look")]

    def tell(self, plugin: Plugin, point: str, *arguments: Any) -> Any:
        """Tell an observer. One that raises fails alone, and what it keeps may be off from then on: that is in `faults`."""
        try:
            return getattr(plugin, point)(*arguments)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self.note_fault(f"plugin {plugin.name}", f"failed at {point}: {type(error).__name__}: {error}")
            return None

    def note_fault(self, what: str, why: str) -> None:
        if what in self.faults or len(self.faults) < _FAULTS_MAX:
            self.faults[what] = why[:500]

    def _followers(self, shape: Shape) -> tuple[Plugin, ...]:
        found = self._followers_of.get(shape.number)
        if found is None:
            if len(self._followers_of) > _FOLLOWERS_MAX:
                self._followers_of.clear()
            found = self._followers_of[shape.number] = tuple(
                p for p in self._pod_observers if (follows := self.tell(p, "follows", shape)) is None or follows
            )
        return found

    def mark_victim(self, pod: PodRecord, is_victim: bool = True) -> None:
        """The pod was chosen to make way (or could not be evicted after all): it is nobody else's victim, its room will be
        free. Holds until the pod is gone."""
        pod.is_victim = is_victim
        self.placed.note(pod)

    def nominate(self, pod: PodRecord, node: str) -> None:
        """Room is being made for a waiting pod on the node: keep it from others."""
        self.withdraw(pod.uid, settled_on=node)
        self.nominations[pod.uid] = (node, pod)

    def withdraw(self, uid: str, *, settled_on: str = "") -> None:
        """Keep no room for the pod any more. Unless it is there now (`settled_on`), others may have it."""
        kept = self.nominations.pop(uid, None)
        slot = self.nodes.slots.get(kept[0]) if kept is not None and kept[0] != settled_on else None
        if slot is not None:
            self.freed[slot] = None

    # -- the smaller kinds -------------------------------------------------------------------------------------------------

    def keep(self, book: dict[K, V], key: K, value: V | None, wake: Wake) -> None:
        if value is None:
            book.pop(key, None)
        else:
            book[key] = value
        self.woken.add(wake)

    # -- copies and comparison ---------------------------------------------------------------------------------------------

    def fork(self) -> Trial:
        """A cheap copy to try things on: only the free amounts are its own."""
        return Trial(self)

    def clone(self) -> State:
        """A whole copy: pods and amounts are its own, descriptions are shared. Observers stay with the original."""
        twin = copy.copy(self)
        twin.nodes = self.nodes.copy()
        twin.touched, twin.freed, twin.woken = {}, {}, set()
        twin.observers, twin.listeners, twin.lookers, twin._pod_observers, twin._followers_of = [], [], [], [], {}
        twin.extras = {}
        twin.pods = {uid: copy.copy(pod) for uid, pod in self.pods.items()}
        twin.on_node = {node: {uid: twin.pods[uid] for uid in pods} for node, pods in self.on_node.items()}
        twin.nominations = {uid: (node, twin.pods.get(uid, pod)) for uid, (node, pod) in self.nominations.items()}
        twin.placed = PodColumns(len(self.table))
        for pods in twin.on_node.values():
            for pod in pods.values():
                if pod.index >= 0:
                    twin.placed.add(pod, twin.nodes.slots[pod.node])
        return twin

    def equals(self, other: State) -> bool:
        """Whether both describe the same cluster; rows of resources may be in another order."""
        mine, theirs = self.nodes, other.nodes
        if mine.names != theirs.names or self._placements() != other._placements():
            return False
        names = set(self.table.names) | set(other.table.names)
        return all(
            np.array_equal(_row(self, array, name), _row(other, array, name))
            for name in names
            for array in ("capacity", "used", "free")
        ) and np.array_equal(mine.scoring_used, theirs.scoring_used)

    def _placements(self) -> dict[str, str]:
        return {uid: pod.node for uid, pod in self.pods.items()}

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _put(self, pod: PodRecord, node: str, phase: Phase) -> None:
        pod.node = node
        pod.phase = phase
        pods = self.on_node.get(node)
        if pods is None:
            pods = self.on_node[node] = {}
        pods[pod.uid] = pod
        slot = self.nodes.slots.get(node)
        if slot is not None:
            self._count(pod, slot)

    def _take_away(self, pod: PodRecord) -> None:
        node, pod.node = pod.node, ""
        pod.phase = Phase.WAITING
        pods = self.on_node[node]
        del pods[pod.uid]
        if not pods:
            del self.on_node[node]
        slot = self.nodes.slots.get(node)
        if slot is not None and pod.index >= 0:
            pod.node = node
            self._uncount(pod, slot)
            pod.node = ""
            self.freed[slot] = None

    def _count(self, pod: PodRecord, slot: int) -> None:
        if len(pod.request) != len(self.nodes.free):
            self._widen(pod)
        self.nodes.add(slot, pod.request, pod.scoring_cpu, pod.scoring_memory, 1)
        self.placed.add(pod, slot)
        self.touched[slot] = None
        for observer in self._followers(pod.shape):
            self.tell(observer, "pod_added", pod, slot)

    def _uncount(self, pod: PodRecord, slot: int) -> None:
        self.nodes.add(slot, pod.request, pod.scoring_cpu, pod.scoring_memory, -1)
        self.placed.remove(pod)
        self.touched[slot] = None
        self.woken.add(Wake.POD)
        for observer in self._followers(pod.shape):
            self.tell(observer, "pod_removed", pod, slot)

    def _widen(self, pod: PodRecord) -> None:
        self.nodes.grow()
        rows = len(self.nodes.free)
        pod.shape.widen(rows)
        pod.request = widened(pod.request, rows)

    def _reshape(self, pod: PodRecord) -> None:
        shape = self.shapes.shape_of_seen(pod.facts)
        if shape is pod.shape:
            return
        node, phase = pod.node, pod.phase
        if node:
            self._take_away(pod)
        pod.shape, pod.request, pod.priority = shape, shape.request, pod.facts.spec.priority or 0
        pod.scoring_cpu, pod.scoring_memory = shape.requests.scoring_cpu, shape.requests.scoring_memory
        if node:
            self._put(pod, node, phase)

    def _relabel(self, pod: PodRecord, before: PodFacts) -> None:
        """Observers that count labels, or pods that stay, are told as if the pod had gone and come back."""
        slot = self.nodes.slots.get(pod.node) if pod.node else None
        if slot is not None:
            after = pod.facts
            pod.facts = before
            for observer in self._pod_observers:
                self.tell(observer, "pod_removed", pod, slot)
            pod.facts = after
            for observer in self._pod_observers:
                self.tell(observer, "pod_added", pod, slot)
            self.touched[slot] = None
        self.woken.add(Wake.POD)


def _row(state: State, array: str, name: str) -> Array:
    row = state.table.rows.get(name)
    values = getattr(state.nodes, array)
    found: Array = values[row] if row is not None and row < len(values) else np.zeros(len(state.nodes), np.int64)
    return found
