"""Topology spread constraints, read: what a pod's own, or the defaults of a profile, ask for.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import msgspec

from muster.engine.facts import PodFacts
from muster.engine.pod_terms import Labels, Part, Term, TermTable, read_selector, with_labels
from muster.objects.labels import Kubernetes
from muster.objects.selectors import NOTHING, LabelQuery, Operator, from_labels

if TYPE_CHECKING:
    from muster.objects.kinds.affinity import TopologySpreadConstraint

HOSTNAME: Final = Kubernetes.HOSTNAME
ZONE: Final = Kubernetes.ZONE
HARD: Final = "DoNotSchedule"
SOFT: Final = "ScheduleAnyway"
PER_REPLICA: Final = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
        "statefulset.kubernetes.io/pod-name",
    }
)
"""Labels in which the replicas of one controller differ."""

Policy = Literal["Honor", "Ignore"]


class DefaultConstraint(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    max_skew: Annotated[int, msgspec.Meta(ge=1)]
    topology_key: Annotated[str, msgspec.Meta(min_length=1)]
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    min_domains: Annotated[int, msgspec.Meta(ge=1)] | None = None
    node_affinity_policy: Policy | None = None
    node_taints_policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.min_domains is not None and self.when_unsatisfiable != HARD:
            raise ValueError(
                f"minDomains of {self.topology_key} needs whenUnsatisfiable: {HARD}; change it or remove minDomains"
            )


SYSTEM_DEFAULTS: Final = (DefaultConstraint(3, HOSTNAME, SOFT), DefaultConstraint(5, ZONE, SOFT))


class Constraint(NamedTuple):
    """A constraint as it is worked with. No `term`: no pod is counted, and `means_itself` alone says whether this one is."""

    topology_key: str
    max_skew: int
    min_domains: int
    term: Term | None
    means_itself: bool
    honours_affinity: bool
    honours_taints: bool


class Spread(NamedTuple):
    """All constraints of a pod. `needs_all`: a node must have the labels of all of them to be looked at."""

    hard: tuple[Constraint, ...] = ()
    soft: tuple[Constraint, ...] = ()
    needs_all: bool = True
    problem: str = ""


def read_spread(constraints: Sequence[TopologySpreadConstraint], pod: PodFacts, terms: TermTable) -> Spread:
    """The constraints of a pod. What can't be read is told in `problem`, never raised."""
    found: dict[str, list[Constraint]] = {HARD: [], SOFT: []}
    labels = pod.metadata.labels
    for index, one in enumerate(constraints):
        try:
            query = read_selector(one.label_selector, f"spec.topologySpreadConstraints[{index}].labelSelector")
        except ValueError as error:
            return Spread(problem=str(error))
        if query is not NOTHING:
            query = with_labels(query, Operator.IN, one.match_label_keys, labels)
        if one.when_unsatisfiable in found:
            found[one.when_unsatisfiable].append(_constraint(one, query, pod.metadata.namespace, terms))
    return Spread(tuple(found[HARD]), tuple(found[SOFT]))


def default_spread(constraints: Sequence[DefaultConstraint], pod: PodFacts, terms: TermTable) -> Spread:
    """The default constraints for a pod that has none of its own: nothing unless it has a controller and labels."""
    query = fellows(pod.metadata.labels)
    if query.is_everything or not is_controlled(pod):
        return Spread()
    namespace = pod.metadata.namespace
    hard = tuple(_constraint(one, query, namespace, terms) for one in constraints if one.when_unsatisfiable == HARD)
    soft = tuple(_constraint(one, query, namespace, terms) for one in constraints if one.when_unsatisfiable == SOFT)
    return Spread(hard, soft)


def fellows(labels: Labels) -> LabelQuery:
    """Selects the replicas that a pod with these labels is one of."""
    return from_labels({key: value for key, value in labels.items() if key not in PER_REPLICA})


def _constraint(
    one: TopologySpreadConstraint | DefaultConstraint, query: LabelQuery, namespace: str, terms: TermTable
) -> Constraint:
    counts = not query.is_everything and query is not NOTHING
    return Constraint(
        one.topology_key,
        one.max_skew,
        one.min_domains or 1,
        terms.term([Part(frozenset((namespace,)), NOTHING, query)]) if counts else None,
        query.is_everything,
        one.node_affinity_policy != "Ignore",
        one.node_taints_policy == "Honor",
    )


def is_controlled(pod: PodFacts) -> bool:
    return any(owner.controller for owner in pod.metadata.owner_references)
