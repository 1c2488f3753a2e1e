"""Rules between pods, worked out the slow way: loops over pods and nodes, written from Kubernetes' documentation.

An oracle for the plugins InterPodAffinity and PodTopologySpread. It shares nothing with them but the objects it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from muster.engine.facts import NodeFacts, PodFacts
from muster.objects.kinds.affinity import PodAffinityTerm, TopologySpreadConstraint
from muster.objects.selectors import LabelSelector

HOSTNAME = "kubernetes.io/hostname"
Labels = Mapping[str, str]


class Cluster:
    """Nodes by name, placed pods with the name of their node, labels of namespaces."""

    def __init__(
        self, nodes: Mapping[str, NodeFacts], pods: Sequence[tuple[PodFacts, str]], namespaces: Mapping[str, Labels]
    ) -> None:
        self.nodes = {name: nodes[name] for name in sorted(nodes)}
        self.pods = [(pod, self.nodes[node].metadata.labels) for pod, node in pods if node in nodes]
        self.on = {name: [pod for pod, node in pods if node == name] for name in nodes}
        self.namespaces = namespaces

    # -- terms --------------------------------------------------------------------------------------------------------------

    def means(self, term: PodAffinityTerm, owner: PodFacts, other: PodFacts) -> bool:
        """Whether the term of `owner` is about `other`."""
        namespace = other.metadata.namespace
        if term.namespaces or term.namespace_selector is not None:
            by_labels = selects(term.namespace_selector, self.namespaces.get(namespace, {}))
            if namespace not in term.namespaces and not by_labels:
                return False
        elif namespace != owner.metadata.namespace:
            return False
        mine, theirs = owner.metadata.labels, other.metadata.labels
        return (
            selects(term.label_selector, theirs)
            and all(theirs.get(key) == mine[key] for key in term.match_label_keys if key in mine)
            and all(theirs.get(key) != mine[key] for key in term.mismatch_label_keys if key in mine)
        )

    def near(self, labels: Labels, key: str, wanted: Callable[[PodFacts], bool]) -> list[PodFacts]:
        """Placed pods that are wanted, on nodes with the same value of `key` as `labels` have."""
        return [pod for pod, there in self.pods if key in labels and there.get(key) == labels[key] and wanted(pod)]

    # -- InterPodAffinity ---------------------------------------------------------------------------------------------------

    def affinity_allows(self, pod: PodFacts) -> list[bool]:
        return [self._affinity_allows(pod, node.metadata.labels) for node in self.nodes.values()]

    def _affinity_allows(self, pod: PodFacts, labels: Labels) -> bool:
        terms = required(pod, "pod_affinity")

        def is_meant(other: PodFacts) -> bool:
            return all(self.means(term, pod, other) for term in terms)

        if any(term.topology_key not in labels for term in terms):
            return False
        if not all(self.near(labels, term.topology_key, is_meant) for term in terms):
            anywhere = any(is_meant(other) and term.topology_key in there for other, there in self.pods for term in terms)
            if anywhere or not is_meant(pod):
                return False
        for term in required(pod, "pod_anti_affinity"):
            if self.near(labels, term.topology_key, lambda other, term=term: self.means(term, pod, other)):  # type: ignore[misc]
                return False
        return not any(
            key in labels and there.get(key) == labels[key] and self.means(term, other, pod)
            for other, there in self.pods
            for term in required(other, "pod_anti_affinity")
            for key in (term.topology_key,)
        )

    def affinity_scores(self, pod: PodFacts, hard_weight: int = 1) -> list[int]:
        return [self._affinity_score(pod, node.metadata.labels, hard_weight) for node in self.nodes.values()]

    def _affinity_score(self, pod: PodFacts, labels: Labels, hard_weight: int) -> int:
        score = 0
        for other, there in self.pods:

            def is_near(key: str, there: Labels = there) -> bool:
                return key in labels and there.get(key) == labels[key]

            for weight, term in preferred(pod):
                score += weight * (is_near(term.topology_key) and self.means(term, pod, other))
            for weight, term in preferred(other):
                score += weight * (is_near(term.topology_key) and self.means(term, other, pod))
            for term in required(other, "pod_affinity"):
                score += hard_weight * (is_near(term.topology_key) and self.means(term, other, pod))
        return score

    # -- PodTopologySpread --------------------------------------------------------------------------------------------------

    def spread_allows(self, pod: PodFacts) -> list[bool]:
        constraints = [c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == "DoNotSchedule"]
        return [
            all(self._is_even(pod, c, constraints, node.metadata.labels) for c in constraints) for node in self.nodes.values()
        ]

    def _is_even(
        self, pod: PodFacts, one: TopologySpreadConstraint, constraints: Sequence[TopologySpreadConstraint], labels: Labels
    ) -> bool:
        if one.topology_key not in labels:
            return False
        domains: dict[str, int] = {}
        for name, node in self.nodes.items():
            if self._counts(pod, one, constraints, node):
                value = node.metadata.labels[one.topology_key]
                domains[value] = domains.get(value, 0) + self._matching(pod, one, name)
        least = min(domains.values(), default=0) if len(domains) >= (one.min_domains or 1) else 0
        itself = spread_selects(one, pod, pod.metadata.labels)
        return domains.get(labels[one.topology_key], 0) + itself - least <= one.max_skew

    def _counts(
        self, pod: PodFacts, one: TopologySpreadConstraint, constraints: Sequence[TopologySpreadConstraint], node: NodeFacts
    ) -> bool:
        """Whether the node's pods count. Of node affinity the oracle knows `nodeSelector` only, of tolerations none."""
        labels = node.metadata.labels
        wanted = pod.spec.node_selector.items()
        return (
            all(c.topology_key in labels for c in constraints)
            and (one.node_affinity_policy == "Ignore" or wanted <= labels.items())
            and (one.node_taints_policy != "Honor" or not node.spec.taints)
        )

    def _matching(self, pod: PodFacts, one: TopologySpreadConstraint, name: str) -> int:
        """An empty selector counts nothing; so kube-scheduler has it."""
        selector = one.label_selector
        if selector is None or (
            not selector.match_labels
            and not selector.match_expressions
            and not any(key in pod.metadata.labels for key in one.match_label_keys)
        ):
            return 0
        return sum(
            other.metadata.namespace == pod.metadata.namespace
            and not other.metadata.deletion_timestamp
            and spread_selects(one, pod, other.metadata.labels)
            for other in self.on[name]
        )

    def spread_scores(self, pod: PodFacts, feasible: Sequence[bool]) -> list[int]:
        """Normalised, for the feasible nodes; 0 for others."""
        constraints = [c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == "ScheduleAnyway"]
        names = [name for name, fits in zip(self.nodes, feasible, strict=True) if fits]
        scored = [n for n in names if all(c.topology_key in self.nodes[n].metadata.labels for c in constraints)]
        if not constraints or not scored:
            return [0] * len(self.nodes)
        raw: dict[str, int] = {}
        for name in scored:
            total = 0.0
            for one in constraints:
                values = {n: self.nodes[n].metadata.labels[one.topology_key] for n in scored}
                size = len(scored) if one.topology_key == HOSTNAME else len(set(values.values()))
                if one.topology_key == HOSTNAME:
                    count = self._matching(pod, one, name)
                else:
                    count = sum(
                        self._matching(pod, one, n)
                        for n, node in self.nodes.items()
                        if node.metadata.labels.get(one.topology_key) == values[name]
                        and self._counts(pod, one, constraints, node)
                    )
                total += count * math.log(size + 2) + one.max_skew - 1
            raw[name] = math.floor(total + 0.5)
        low, high = min(raw.values()), max(raw.values())
        return [0 if n not in raw else 100 if not high else 100 * (high + low - raw[n]) // high for n in self.nodes]


def selects(selector: LabelSelector | None, labels: Labels) -> bool:
    if selector is None or not selector.match_labels.items() <= labels.items():
        return False
    for one in selector.match_expressions:
        value = labels.get(one.key)
        fits = {
            "In": value in one.values,
            "NotIn": value not in one.values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not fits[one.operator]:
            return False
    return True


def spread_selects(one: TopologySpreadConstraint, pod: PodFacts, labels: Labels) -> bool:
    mine = pod.metadata.labels
    return selects(one.label_selector, labels) and all(labels.get(k) == mine[k] for k in one.match_label_keys if k in mine)


def required(pod: PodFacts, side: str) -> list[PodAffinityTerm]:
    found = getattr(pod.spec.affinity, side, None)
    return list(found.required_during_scheduling_ignored_during_execution) if found is not None else []


def preferred(pod: PodFacts) -> list[tuple[int, PodAffinityTerm]]:
    affinity = pod.spec.affinity
    if affinity is None:
        return []
    near = affinity.pod_affinity.preferred_during_scheduling_ignored_during_execution if affinity.pod_affinity else []
    away = affinity.pod_anti_affinity.preferred_during_scheduling_ignored_during_execution if affinity.pod_anti_affinity else []
    return [(w.weight, w.pod_affinity_term) for w in near] + [(-w.weight, w.pod_affinity_term) for w in away]
