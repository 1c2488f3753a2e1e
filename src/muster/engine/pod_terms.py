"""Rules between pods, read: which pods a term means, and what a pod's affinity and anti-affinity ask for.

A `Term` says which pods are meant: by namespace, by the namespace's labels, by their own labels. Equal terms are one object
(`TermTable`), so that what is counted for a term is counted once, however many pods carry it.

Pure. Terms, label classes and carriers are made and changed by `PodIndex` only; what a term means never changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from muster.engine.columns import Array
from muster.objects.kinds.affinity import Affinity, PodAffinity, PodAffinityTerm, PodAntiAffinity
from muster.objects.selectors import (
    EVERYTHING,
    NOTHING,
    LabelQuery,
    LabelSelector,
    Operator,
    Requirement,
    from_label_selector,
    label_query,
)

Labels = Mapping[str, str]

ALL, STAYING = 0, 1
"""Rows of a term's column: every placed pod, and those that are not on their way out."""
ANTI, HARD, SOFT = 0, 1, 2
"""What a carrier's pods carry: a required anti-affinity, a required affinity, a preference."""


class Part(NamedTuple):
    """Pods that `query` selects, in one of `namespaces` or in a namespace that `namespace_query` selects."""

    namespaces: frozenset[str]
    namespace_query: LabelQuery
    query: LabelQuery

    def matches(self, namespace: str, labels: Labels, namespace_labels: Labels) -> bool:
        return (namespace in self.namespaces or self.namespace_query.matches(namespace_labels)) and self.query.matches(labels)


class Term:
    """The pods that every part selects; usually there is one part."""

    __slots__ = ("__weakref__", "anchor", "carriers", "classes", "column", "follows_namespaces", "parts")

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        exact = {pair: None for part in parts for pair in part.query.exact().items()}
        self.anchor: tuple[str, str] | None = next(iter(exact), None)
        """A label that every pod of the term has: where an index looks for it."""
        self.follows_namespaces = any(part.namespace_query not in (EVERYTHING, NOTHING) for part in parts)
        # What PodIndex keeps:
        self.classes: dict[LabelClass, None] | None = None
        """The label classes that match; None while the term is not registered."""
        self.column: Array | None = None
        self.carriers: dict[tuple[int, str, int], Carrier] = {}

    def matches(self, namespace: str, labels: Labels, namespace_labels: Labels) -> bool:
        return all(part.matches(namespace, labels, namespace_labels) for part in self.parts)


class LabelClass:
    """Pods that no selector can tell apart."""

    __slots__ = ("carried", "carried_at", "labels", "members", "namespace", "terms")

    def __init__(self, namespace: str, labels: Labels) -> None:
        self.namespace = namespace
        self.labels = labels
        self.members: dict[str, Entry] = {}
        """Placed pods, by uid."""
        self.terms: list[Term] = []
        self.carried: tuple[Carrier, ...] = ()
        self.carried_at = -1


class Entry:
    """How a placed pod was counted, so that it is taken out the same way."""

    __slots__ = ("carriers", "is_ending", "label_class", "node")

    def __init__(self, label_class: LabelClass, node: str, is_ending: bool, carriers: tuple[Carrier, ...]) -> None:
        self.label_class = label_class
        self.node = node
        self.is_ending = is_ending
        self.carriers = carriers


class Carrier:
    """Placed pods that carry one rule, per node. `weight` is that of a preference, negative to stay away."""

    __slots__ = ("column", "nodes", "role", "term", "topology_key", "weight")

    def __init__(self, term: Term, role: int, topology_key: str, weight: int) -> None:
        self.term = term
        self.role = role
        self.topology_key = topology_key
        self.weight = weight
        self.nodes: dict[str, int] = {}
        self.column: Array | None = None

    def count(self, node: str, slot: int, sign: int) -> None:
        left = self.nodes.get(node, 0) + sign
        if left:
            self.nodes[node] = left
        else:
            self.nodes.pop(node, None)
        if self.column is not None:
            self.column[ALL, slot] += sign


class TermTable:
    """Equal terms are one object for as long as anybody holds it."""

    def __init__(self) -> None:
        self._terms: weakref.WeakValueDictionary[tuple[Part, ...], Term] = weakref.WeakValueDictionary()

    def term(self, parts: Iterable[Part]) -> Term:
        key = tuple(dict.fromkeys(parts))
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = Term(key)
        return found


class Rule(NamedTuple):
    """Pods of `term` matter to nodes that share the value of label `topology_key` with theirs."""

    term: Term
    topology_key: str
    weight: int = 0
    """Of a preference: negative to stay away."""


class Rules(NamedTuple):
    """What one pod asks of others. `together`: the pods that all required affinity terms mean at once."""

    affinity: tuple[Rule, ...] = ()
    together: Term | None = None
    anti_affinity: tuple[Rule, ...] = ()
    preferred: tuple[Rule, ...] = ()
    problem: str = ""
    """What could not be read; then all else is empty."""


NO_RULES = Rules()
WEIGHT_MAX = 100


def has_rules(affinity: Affinity | None) -> bool:
    """Whether there is any rule between pods in it."""
    if affinity is None:
        return False
    return any(
        side is not None
        and (
            side.required_during_scheduling_ignored_during_execution
            or side.preferred_during_scheduling_ignored_during_execution
        )
        for side in (affinity.pod_affinity, affinity.pod_anti_affinity)
    )


def label_keys(affinity: Affinity) -> tuple[str, ...]:
    """Labels of the pod itself that its terms speak of."""
    found: dict[str, None] = {}
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if side is not None:
            terms = list(side.required_during_scheduling_ignored_during_execution)
            terms += [w.pod_affinity_term for w in side.preferred_during_scheduling_ignored_during_execution]
            for term in terms:
                found.update(dict.fromkeys([*term.match_label_keys, *term.mismatch_label_keys]))
    return tuple(found)


def read_rules(affinity: Affinity, namespace: str, labels: Labels, table: TermTable) -> Rules:
    """The rules of a pod in `namespace` with `labels`. What can't be read is told in `problem`, never raised."""
    reader = _Reader(namespace, labels, table)
    near, away = affinity.pod_affinity, affinity.pod_anti_affinity
    try:
        required = reader.required(near, "podAffinity")
        anti = reader.required(away, "podAntiAffinity")
        preferred = (*reader.preferred(near, "podAffinity", 1), *reader.preferred(away, "podAntiAffinity", -1))
    except ValueError as error:
        return Rules(problem=str(error))
    together = table.term(part for rule in required for part in rule.term.parts) if required else None
    return Rules(required, together, anti, preferred)


class _Reader:
    """Reads the terms of one pod."""

    def __init__(self, namespace: str, labels: Labels, table: TermTable) -> None:
        self._namespace = frozenset((namespace,))
        self._labels = labels
        self._table = table

    def required(self, side: PodAffinity | PodAntiAffinity | None, name: str) -> tuple[Rule, ...]:
        terms = [] if side is None else side.required_during_scheduling_ignored_during_execution
        where = f"spec.affinity.{name}.requiredDuringSchedulingIgnoredDuringExecution"
        return tuple(self._rule(term, f"{where}[{index}]") for index, term in enumerate(terms))

    def preferred(self, side: PodAffinity | PodAntiAffinity | None, name: str, sign: int) -> Iterator[Rule]:
        terms = [] if side is None else side.preferred_during_scheduling_ignored_during_execution
        where = f"spec.affinity.{name}.preferredDuringSchedulingIgnoredDuringExecution"
        for index, weighted in enumerate(terms):
            rule = self._rule(weighted.pod_affinity_term, f"{where}[{index}].podAffinityTerm")
            # The API takes no other weight; one that came another way must not break the sums of everybody.
            yield rule._replace(weight=sign * min(max(weighted.weight, 0), WEIGHT_MAX))

    def _rule(self, term: PodAffinityTerm, where: str) -> Rule:
        namespaces = frozenset(term.namespaces)
        if not namespaces and term.namespace_selector is None:
            namespaces = self._namespace
        namespace_query = read_selector(term.namespace_selector, f"{where}.namespaceSelector")
        query = read_selector(term.label_selector, f"{where}.labelSelector")
        if term.label_selector is not None:
            query = with_labels(query, Operator.IN, term.match_label_keys, self._labels)
            query = with_labels(query, Operator.NOT_IN, term.mismatch_label_keys, self._labels)
        return Rule(self._table.term([Part(namespaces, namespace_query, query)]), term.topology_key)


def read_selector(selector: LabelSelector | None, where: str) -> LabelQuery:
    """ValueError names the field that is wrong, `where` it is."""
    try:
        return from_label_selector(selector)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{where}: {error}; correct the selector") from None


def with_labels(query: LabelQuery, operator: Operator, keys: Sequence[str], labels: Labels) -> LabelQuery:
    """`query`, and the pod's own value of each of `keys` that it has (IN) or has not (NOT_IN)."""
    added = [Requirement(key, operator, frozenset((labels[key],))) for key in keys if key in labels]
    return label_query([*query.requirements, *added]) if added else query
