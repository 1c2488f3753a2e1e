"""Where a pod may run: node and pod affinity, tolerations, spreading. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import ATOMIC_MAP, Native, Selector, Strings, between, one_of
from muster.objects.view import ATOMIC

Weight = Annotated[int, between(1, 100)]


class NodeSelectorRequirement(Native):
    """One condition on a node's labels or fields."""

    key: Annotated[str, "Label, or field such as `metadata.name`."]
    operator: Annotated[str, one_of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"), "How the values compare."]
    values: Annotated[Strings, "What to compare with: some for In and NotIn, one whole number for Gt and Lt, else none."] = []


class NodeSelectorTerm(Native):
    """All of its conditions must hold; an empty term matches no node."""

    __schema_extra__ = ATOMIC_MAP

    match_expressions: Annotated[list[NodeSelectorRequirement], ATOMIC, "Conditions on labels."] = []
    match_fields: Annotated[list[NodeSelectorRequirement], ATOMIC, "Conditions on fields of the node."] = []


class NodeSelector(Native):
    """A node fits when any of the terms does."""

    __schema_extra__ = ATOMIC_MAP

    node_selector_terms: Annotated[list[NodeSelectorTerm], ATOMIC, "Alternatives; at least one."]


class PreferredSchedulingTerm(Native):
    """Nodes that fit are liked better, by `weight`."""

    weight: Annotated[Weight, "How much, from 1 to 100."]
    preference: Annotated[NodeSelectorTerm, "Which nodes."]


class NodeAffinity(Native):
    """Which nodes the pod needs or likes."""

    required_during_scheduling_ignored_during_execution: Annotated[NodeSelector | None, "The pod runs on such nodes only."] = (
        None
    )
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredSchedulingTerm], ATOMIC, "Nodes to like better; weights of all that fit add up."
    ] = []


class PodAffinityTerm(Native):
    """A set of pods, and how far around them counts as near."""

    topology_key: Annotated[str, "Node label whose equal values count as the same place."]
    label_selector: Annotated[Selector | None, "The pods; absent means none."] = None
    namespaces: Annotated[Strings, "Where to look; with no selector of namespaces either, this pod's own."] = []
    namespace_selector: Annotated[Selector | None, "Where to look, by the namespaces' labels; empty means everywhere."] = None
    match_label_keys: Annotated[Strings, "Labels of this pod whose values the others must share."] = []
    mismatch_label_keys: Annotated[Strings, "Labels of this pod whose values the others must not share."] = []


class WeightedPodAffinityTerm(Native):
    """Places near such pods are liked better, by `weight`."""

    weight: Annotated[Weight, "How much, from 1 to 100."]
    pod_affinity_term: Annotated[PodAffinityTerm, "Which pods."]


class PodAffinity(Native):
    """Pods to be near to."""

    required_during_scheduling_ignored_during_execution: Annotated[
        list[PodAffinityTerm], ATOMIC, "The pod runs near these only."
    ] = []
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[WeightedPodAffinityTerm], ATOMIC, "Places near these are liked better."
    ] = []


class PodAntiAffinity(Native):
    """Pods to stay away from."""

    required_during_scheduling_ignored_during_execution: Annotated[
        list[PodAffinityTerm], ATOMIC, "The pod never runs near these."
    ] = []
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[WeightedPodAffinityTerm], ATOMIC, "Places away from these are liked better."
    ] = []


class Affinity(Native):
    """What draws a pod to places and what keeps it off."""

    node_affinity: Annotated[NodeAffinity | None, "By the nodes' labels."] = None
    pod_affinity: Annotated[PodAffinity | None, "By pods that are there already: be near."] = None
    pod_anti_affinity: Annotated[PodAntiAffinity | None, "By pods that are there already: stay away."] = None


class Toleration(Native):
    """Lets the pod onto nodes with a matching taint."""

    key: Annotated[str, "Taint key; empty, with Exists, matches every taint."] = ""
    operator: Annotated[str, one_of("", "Equal", "Exists", "Lt", "Gt"), "How `value` compares; Equal when absent."] = ""
    value: Annotated[str, "Taint value for Equal."] = ""
    effect: Annotated[str, one_of("", "NoSchedule", "PreferNoSchedule", "NoExecute"), "Taint effect; empty matches all."] = ""
    toleration_seconds: Annotated[int | None, "How long a NoExecute taint is borne; absent means for ever."] = None


class TopologySpreadConstraint(Native):
    """Spreads matching pods evenly over the values of a node label."""

    max_skew: Annotated[int, between(1), "How far two places may differ in their number of pods."]
    topology_key: Annotated[str, "Node label whose values are the places."]
    when_unsatisfiable: Annotated[str, one_of("DoNotSchedule", "ScheduleAnyway"), "Whether to wait or to place it anyhow."]
    label_selector: Annotated[Selector | None, "The pods that are counted."] = None
    min_domains: Annotated[int | None, between(1), "Count missing places as empty below this number of places."] = None
    node_affinity_policy: Annotated[
        str | None, one_of("Honor", "Ignore"), "Whether nodes outside the pod's node affinity count."
    ] = None
    node_taints_policy: Annotated[str | None, one_of("Honor", "Ignore"), "Whether nodes whose taints it can't bear count."] = (
        None
    )
    match_label_keys: Annotated[Strings, "Labels of this pod whose values the counted pods must share."] = []
