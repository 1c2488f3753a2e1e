"""Which pods are where, by their labels: what rules between pods ask, kept up pod by pod instead of looked for.

Placed pods with equal namespace and labels form a *label class*. A *term* (see `pod_terms`) knows the classes that match it,
and a class its terms: a pod that comes or goes changes the columns of its class's terms, and nothing else is looked at.
The reverse is kept too: a *carrier* counts, per node, the placed pods that carry one same rule (term, topology key, weight).

A change that may let a pod fit that was refused is a `Wake.POD` of the state: a pod came that some term means, a node came,
went or changed a label that a rule looks at. (That a pod went is always one.)

As long as no pod has asked and no placed pod carries a rule, nothing is kept at all: the index wakes with the first.
One index per `State`, shared by all plugins (`PodIndex.of`), an observer of the state. Pure, single-threaded.

Invariant: a column equals what counting all placed pods anew would give (`check_invariants`).

| bounded | by |
|---|---|
| label classes | twice the placed pods, and some thousands for pods that wait |
| carriers | the distinct rules of placed pods |
| columns | `columns_max`; the one not asked for longest goes, and is counted anew when it is asked for again |
| terms | those with a column, and those of carriers |
| rules that were read | `_RULES_MAX` shapes; then reading starts anew |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from muster.engine.blocks import PodBlock
from muster.engine.columns import Array
from muster.engine.events import AnyEvent, NamespaceGone, NamespaceSeen
from muster.engine.facts import NodeFacts, PodFacts
from muster.engine.plugin import Plugin, Wake
from muster.engine.pod_terms import (
    ALL,
    ANTI,
    HARD,
    NO_RULES,
    SOFT,
    STAYING,
    Carrier,
    Entry,
    LabelClass,
    Labels,
    Rules,
    Term,
    TermTable,
    has_rules,
    label_keys,
    read_rules,
)
from muster.engine.topology import Topologies

if TYPE_CHECKING:
    from muster.engine.pods import PodRecord
    from muster.engine.shapes import Shape
    from muster.engine.state import State

_COLUMNS_MAX = 1024
_COLUMN_BYTES_MAX = 64 * 1024 * 1024
_COLUMNS_MIN = 64
_RULES_MAX = 4096
_SPARE_CLASSES = 4096
_KEY = "pod_index"
_NO_LABELS: dict[str, str] = {}


class PodIndex(Plugin):
    """See the module. An observer; no profile names it."""

    name = "PodIndex"

    def __init__(self, state: State, columns_max: int | None = None) -> None:
        super().__init__()
        self.state = state
        self.terms = TermTable()
        self._nodes = state.nodes
        self._columns_max = columns_max
        self._classes: dict[tuple[str, frozenset[tuple[str, str]]], LabelClass] = {}
        self._by_label: dict[tuple[str, str], dict[LabelClass, None]] = {}
        self._entries: dict[str, Entry] = {}
        self._anchored: dict[tuple[str, str], dict[Term, None]] = {}
        self._unanchored: dict[Term, None] = {}
        self._following: dict[Term, None] = {}
        """Registered terms that depend on namespaces' labels."""
        self._columns: OrderedDict[Term | Carrier, None] = OrderedDict()
        """What has a column, the one not asked for longest first."""
        self._carriers_len = 0
        self._version = 0
        """Moves when the set of carriers, or what a term matches, changes."""
        self._namespaces_changed = False
        self._rules: dict[tuple[object, ...], Rules] = {}
        self._label_keys: dict[int, tuple[str, ...] | None] = {}
        self.topologies = Topologies(state.nodes)
        self._last: tuple[PodFacts, LabelClass] | None = None
        self._has_shed = False
        """Whether terms were dropped that a waiting pod may still depend on."""
        self._is_awake = False
        if any(
            pod.index >= 0 and has_rules(pod.shape.spec.affinity) for pods in state.on_node.values() for pod in pods.values()
        ):
            self._wake()
        state.observe(self)
        state.nodes.movers.append(self._move)

    @staticmethod
    def of(state: State) -> PodIndex:
        """The index of this state, made and attached if there is none yet."""
        found = state.extras.get(_KEY)
        if not isinstance(found, PodIndex):
            found = state.extras[_KEY] = PodIndex(state)
        return found

    # -- observing ----------------------------------------------------------------------------------------------------------

    def pod_added(self, pod: PodRecord, slot: int) -> None:
        if not self._is_awake:
            if pod.shape.spec.affinity is None or not has_rules(pod.shape.spec.affinity):
                return
            self._wake()
        uid, meta = pod.uid, pod.facts.metadata
        if uid in self._entries:
            self.pod_removed(pod, self._nodes.slots[self._entries[uid].node])
        found = self._class(meta.namespace, meta.labels)
        carriers = () if pod.shape.spec.affinity is None else self._carriers(pod.shape, pod.facts)
        entry = Entry(found, self._nodes.names[slot], bool(meta.deletion_timestamp), carriers)
        self._entries[uid] = found.members[uid] = entry
        self._count(entry, slot, 1)
        if found.terms or self._has_shed:
            self.state.woken.add(Wake.POD)  # a pod that somebody asked about

    def pod_removed(self, pod: PodRecord, slot: int) -> None:
        entry = self._entries.pop(pod.uid, None)
        if entry is None:
            return
        del entry.label_class.members[pod.uid]
        self._count(entry, slot, -1)
        for carrier in entry.carriers:
            if not carrier.nodes:
                self._drop_carrier(carrier)
        if len(self._classes) > 2 * len(self._entries) + _SPARE_CLASSES:
            self._sweep()

    def node_seen(self, slot: int, node: NodeFacts) -> None:
        if self._columns and self.topologies.differ(slot):
            self.state.woken.add(Wake.POD)

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        if isinstance(event, (NamespaceSeen, NamespaceGone)):
            self._namespaces_changed = True  # looked at when next asked: by then the state has taken it in
        return None

    # -- questions ------------------------------------------------------------------------------------------------------------

    def class_of(self, pod: PodFacts) -> LabelClass:
        """The label class of a pod, placed or not."""
        if self._last is not None and self._last[0] is pod:
            return self._last[1]
        found = self._class(pod.metadata.namespace, pod.metadata.labels)
        self._last = (pod, found)
        return found

    def carried(self, pod: PodFacts) -> tuple[Carrier, ...]:
        """The rules of placed pods that mean this pod."""
        if not self._carriers_len:
            return ()
        if self._namespaces_changed:
            self._follow_namespaces()
        found = self.class_of(pod)
        if found.carried_at != self._version:
            found.carried = tuple(carrier for term in found.terms for carrier in term.carriers.values())
            found.carried_at = self._version
        return found.carried

    def has_rules(self, shape: Shape) -> bool:
        """Whether pods of this shape ask anything of others."""
        return self._keys(shape) is not None

    def rules(self, shape: Shape, pod: PodFacts) -> Rules:
        """What the pod asks of others. A pod whose rules can't be read has a `problem` and asks for nothing."""
        keys = self._keys(shape)
        affinity = shape.spec.affinity
        if keys is None or affinity is None:
            return NO_RULES
        number = shape.number
        namespace, labels = pod.metadata.namespace, pod.metadata.labels
        key = (number, namespace, *(labels.get(name) for name in keys)) if keys else (number, namespace)
        found = self._rules.get(key)
        if found is None:
            if len(self._rules) >= _RULES_MAX:
                self._rules.clear()
            found = self._rules[key] = read_rules(affinity, namespace, labels, self.terms)
        return found

    def column(self, owner: Term | Carrier) -> Array:
        """Counts per node, int32: rows ALL and STAYING of a term, row ALL of a carrier. For reading, until the next change."""
        if self._namespaces_changed:
            self._follow_namespaces()
        column = owner.column
        if column is None:
            column = owner.column = self._counted(owner)
            self._columns[owner] = None
            self._shed()
        else:
            self._columns.move_to_end(owner)
        return column

    def means(self, term: Term, pod: PodFacts) -> bool:
        """Whether the term means this pod."""
        if term.classes is None:
            namespace = pod.metadata.namespace
            return term.matches(namespace, pod.metadata.labels, self._namespace_labels(namespace))
        return self.class_of(pod) in term.classes

    def _keys(self, shape: Shape) -> tuple[str, ...] | None:
        """The labels that the rules of the shape speak of; None when it has no rules."""
        number = shape.number
        if number in self._label_keys:
            return self._label_keys[number]
        affinity = shape.spec.affinity
        keys = label_keys(affinity) if affinity is not None and has_rules(affinity) else None
        if len(self._label_keys) >= _RULES_MAX:
            self._label_keys.clear()
        self._label_keys[number] = keys
        return keys

    def _wake(self) -> None:
        self._is_awake = True
        for pods in self.state.on_node.values():
            for pod in pods.values():
                if pod.index >= 0:
                    self.pod_added(pod, self._nodes.slots[pod.node])

    # -- classes and terms --------------------------------------------------------------------------------------------------

    def _namespace_labels(self, namespace: str) -> Labels:
        found = self.state.namespaces.get(namespace)
        return _NO_LABELS if found is None else found.metadata.labels

    def _class(self, namespace: str, labels: Labels) -> LabelClass:
        key = (namespace, frozenset(labels.items()))
        found = self._classes.get(key)
        if found is None:
            if len(self._classes) > 2 * len(self._entries) + 2 * _SPARE_CLASSES:
                self._sweep()  # pods that only wait have classes too
            found = self._classes[key] = LabelClass(namespace, labels)
            of_namespace = self._namespace_labels(namespace)
            candidates = list(self._unanchored)
            for pair in labels.items():
                self._by_label.setdefault(pair, {})[found] = None
                candidates += self._anchored.get(pair, ())
            for term in candidates:
                if term.classes is not None and term.matches(namespace, labels, of_namespace):
                    term.classes[found] = None
                    found.terms.append(term)
        return found

    def _sweep(self) -> None:
        """Forget classes that no placed pod has."""
        self._last = None
        for key, found in [(key, found) for key, found in self._classes.items() if not found.members]:
            del self._classes[key]
            for pair in found.labels.items():
                classes = self._by_label[pair]
                del classes[found]
                if not classes:
                    del self._by_label[pair]
            for term in found.terms:
                if term.classes is not None:
                    del term.classes[found]

    def _register(self, term: Term) -> dict[LabelClass, None]:
        """Find the classes of a term, and have new ones found as they come."""
        if not self._is_awake:
            self._wake()
        candidates: Iterable[LabelClass]
        if term.anchor is None:
            self._unanchored[term] = None
            candidates = self._classes.values()
        else:
            self._anchored.setdefault(term.anchor, {})[term] = None
            candidates = self._by_label.get(term.anchor, ())
        if term.follows_namespaces:
            self._following[term] = None
        classes = term.classes = {
            one: None for one in candidates if term.matches(one.namespace, one.labels, self._namespace_labels(one.namespace))
        }
        for one in classes:
            one.terms.append(term)
        return classes

    def _unregister(self, term: Term) -> None:
        for one in term.classes or ():
            one.terms.remove(term)
        term.classes = None
        self._following.pop(term, None)
        if term.anchor is None:
            del self._unanchored[term]
        else:
            terms = self._anchored[term.anchor]
            del terms[term]
            if not terms:
                del self._anchored[term.anchor]

    def _follow_namespaces(self) -> None:
        """Namespaces changed: terms that look at their labels are matched and counted anew."""
        self._namespaces_changed = False
        for term in list(self._following):
            self._unregister(term)
            self._columns.pop(term, None)
            term.column = None
            if term.carriers:
                self._register(term)
        self._version += 1

    # -- counting -----------------------------------------------------------------------------------------------------------

    def _count(self, entry: Entry, slot: int, sign: int) -> None:
        for term in entry.label_class.terms:
            column = term.column
            if column is not None:
                column[ALL, slot] += sign
                if not entry.is_ending:
                    column[STAYING, slot] += sign
        for carrier in entry.carriers:
            carrier.count(entry.node, slot, sign)

    def _counted(self, owner: Term | Carrier) -> Array:
        slots, count = self._nodes.slots, len(self._nodes)
        if isinstance(owner, Carrier):
            column: Array = np.zeros((1, count), np.int32)
            for node, pods in owner.nodes.items():
                column[ALL, slots[node]] = pods
            return column
        classes = self._register(owner) if owner.classes is None else owner.classes
        column = np.zeros((2, count), np.int32)
        staying = [slots[e.node] for one in classes for e in one.members.values() if not e.is_ending]
        ending = [slots[e.node] for one in classes for e in one.members.values() if e.is_ending]
        if staying:
            column[:] = np.bincount(staying, minlength=count)
        if ending:
            column[ALL] += np.bincount(ending, minlength=count).astype(np.int32)
        return column

    @property
    def columns_max(self) -> int:
        if self._columns_max is not None:
            return self._columns_max
        return min(_COLUMNS_MAX, max(_COLUMNS_MIN, _COLUMN_BYTES_MAX // (8 * max(len(self._nodes), 1))))

    def _shed(self) -> None:
        while len(self._columns) > max(self.columns_max, 1):
            self._has_shed = True
            owner, _ = self._columns.popitem(last=False)
            owner.column = None
            if isinstance(owner, Term) and not owner.carriers:
                self._unregister(owner)

    def _move(self, target: Array, source: Array, count: int) -> None:
        if self._columns:
            self.state.woken.add(Wake.POD)  # domains came or went
        for owner in self._columns:
            assert owner.column is not None
            moved: Array = np.zeros((len(owner.column), count), np.int32)
            moved[:, target] = owner.column[:, source]
            owner.column = moved

    # -- carriers -------------------------------------------------------------------------------------------------------------

    def _carriers(self, shape: Shape, pod: PodFacts) -> tuple[Carrier, ...]:
        rules = self.rules(shape, pod)
        found = [self._carrier(rule.term, ANTI, rule.topology_key, 0) for rule in rules.anti_affinity]
        found += [self._carrier(rule.term, HARD, rule.topology_key, 0) for rule in rules.affinity]
        found += [self._carrier(rule.term, SOFT, rule.topology_key, rule.weight) for rule in rules.preferred]
        return tuple(found)

    def _carrier(self, term: Term, role: int, topology_key: str, weight: int) -> Carrier:
        key = (role, topology_key, weight)
        found = term.carriers.get(key)
        if found is None:
            if term.classes is None:
                self._register(term)
            found = term.carriers[key] = Carrier(term, role, topology_key, weight)
            self._carriers_len += 1
            self._version += 1
        return found

    def _drop_carrier(self, carrier: Carrier) -> None:
        term, key = carrier.term, (carrier.role, carrier.topology_key, carrier.weight)
        if term.carriers.get(key) is not carrier:
            return
        del term.carriers[key]
        self._columns.pop(carrier, None)
        carrier.column = None
        self._carriers_len -= 1
        self._version += 1
        if not term.carriers and term.column is None:
            self._unregister(term)

    # -- checking -------------------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Every column equals one that is counted anew, from the pods of the state."""
        placed = {uid: pod for uid, pod in self.state.pods.items() if pod.index >= 0}
        assert not self._is_awake or placed.keys() == self._entries.keys(), (
            "the pods that are counted are not those that are placed"
        )
        for owner in list(self._columns):
            assert owner.column is not None, "what has no column is listed as if it had"
            if isinstance(owner, Carrier):
                assert np.array_equal(owner.column, self._counted(owner)), "the column of a carrier is off"
                continue
            fresh = np.zeros((2, len(self._nodes)), np.int32)
            for pod in placed.values():
                meta = pod.facts.metadata
                if owner.matches(meta.namespace, meta.labels, self._namespace_labels(meta.namespace)):
                    fresh[ALL, self._nodes.slots[pod.node]] += 1
                    fresh[STAYING, self._nodes.slots[pod.node]] += not meta.deletion_timestamp
            assert np.array_equal(owner.column, fresh), "the column of a term is off"


def very_pod(pods: PodBlock) -> PodFacts:
    """The pod itself, whose labels and namespace decide."""
    if pods.pod is None:
        raise LookupError("rules between pods are about a very pod; set PodBlock.pod")
    return pods.pod
