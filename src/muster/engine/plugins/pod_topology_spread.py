"""PodTopologySpread: pods of one kind spread evenly over zones, nodes or whatever a node label says, as kube-scheduler has it.

`DoNotSchedule` filters: a node will do when it has the label, and the matching pods in its domain, with this one if it matches
too, are at most `maxSkew` more than in the domain that has fewest (none, while there are fewer than `minDomains`). Domains
are those of nodes that have the labels of all constraints, that the pod's node affinity allows (`nodeAffinityPolicy`, Honor by
default) and whose taints it tolerates (`nodeTaintsPolicy`, Ignore by default).

`ScheduleAnyway` scores: the matching pods in the node's domain, times the logarithm of the number of domains, plus
`maxSkew - 1`; the fewer the better. Nodes without the labels get 0.

Counted are pods in the pod's own namespace that are not being deleted. An empty selector counts none, as in kube-scheduler.

`defaultConstraints` hold for pods that have none of their own and belong to a controller. kube-scheduler looks for the pods of
the same Service, ReplicaSet or StatefulSet; the engine does not see those kinds, and takes the pods with the same labels, apart
from labels that differ between replicas. `defaultingType: System` stands for kube-scheduler's own two defaults (zones and
nodes, both ScheduleAnyway); here they hold only when asked for, since they make every such pod look at all others.

Pure; called from one thread. Counts come from `PodIndex`. Between `score` and the `normalise` that follows, what was counted is
kept: the number of domains is that of the feasible nodes, which only `normalise` knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import ABSENT, Array, Column, Mask
from muster.engine.facts import PodFacts
from muster.engine.node_selectors import required_node_mask, tolerated_mask
from muster.engine.plugin import SCORE_MAX, Plugin, Scope, Wake
from muster.engine.pod_index import PodIndex, very_pod
from muster.engine.pod_terms import STAYING
from muster.engine.spreading import (
    HARD,
    HOSTNAME,
    SOFT,
    SYSTEM_DEFAULTS,
    Constraint,
    DefaultConstraint,
    Spread,
    default_spread,
    is_controlled,
    read_spread,
)
from muster.engine.topology import EVERYWHERE, Topology
from muster.objects.reasons import Reason, Shortfall, shortfall

if TYPE_CHECKING:
    from muster.engine.events import AnyEvent
    from muster.engine.shapes import Shape
    from muster.engine.state import State

IGNORED = -1
"""The raw score of nodes without the labels."""
_SPREADS_MAX = 4096
_LAYOUTS_MAX = 256


class PodTopologySpreadArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    default_constraints: Annotated[tuple[DefaultConstraint, ...], msgspec.Meta(max_length=16)] = ()
    defaulting_type: Literal["List", "System"] = "List"

    def __post_init__(self) -> None:
        if self.defaulting_type == "System" and self.default_constraints:
            raise ValueError("defaultConstraints need defaultingType: List; with System remove them")
        seen: set[tuple[str, str]] = set()
        for one in self.default_constraints:
            key = (one.topology_key, one.when_unsatisfiable)
            if key in seen:
                raise ValueError(f"defaultConstraints has {one.topology_key} with {one.when_unsatisfiable} twice; remove one")
            seen.add(key)


class Place(NamedTuple):
    """Where a constraint counts. `ids`: the domain of each node that counts, ABSENT for others; `domains`: those that exist."""

    topology: Topology
    ids: Array
    domains: Array


class Layout(NamedTuple):
    """The places of a shape's constraints, and the nodes that are looked at."""

    version: int
    places: tuple[Place, ...]
    complete: Mask


class Counted(NamedTuple):
    """What `score` found, by constraint: matching pods near each node, the node's domain, whether it has the label."""

    raw: Column
    constraints: tuple[Constraint, ...]
    counts: tuple[Array, ...]
    ids: tuple[Array, ...]
    ignored: Mask
    needs_all: bool


class PodTopologySpread(Plugin):
    name = "PodTopologySpread"
    scope = Scope.WIDE
    reason = Reason.TOPOLOGY_SPREAD_UNSATISFIED
    wakes_on = frozenset({Wake.POD, Wake.NODE})
    Args = PodTopologySpreadArgs
    args: PodTopologySpreadArgs

    def attach(self, state: State) -> None:
        super().attach(state)
        self._index = PodIndex.of(state)
        is_system = self.args.defaulting_type == "System"
        self._defaults = SYSTEM_DEFAULTS if is_system else self.args.default_constraints
        self.concerns_by_shape = not self._defaults
        self._spreads: dict[tuple[object, ...], Spread] = {}
        self._layouts: dict[tuple[int, str], Layout] = {}
        self._counted: Counted | None = None

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        return self._index.event(event)

    def concerns(self, pods: PodBlock) -> bool:
        if pods.shape.spec.topology_spread_constraints:
            return True
        return bool(self._defaults) and is_controlled(very_pod(pods))

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        spread = self._spread(pods)
        if not spread.hard:
            return EVERYWHERE  # type: ignore[return-value]
        mask: Mask | None = None
        for constraint, place in zip(spread.hard, self._layout(pods.shape, spread, HARD).places, strict=True):
            allowed = self._skews(constraint, place, very_pod(pods)) <= constraint.max_skew
            allowed[ABSENT] = False
            here = allowed[place.topology.ids]
            mask = here if mask is None else mask & here
        return EVERYWHERE if mask is None else nodes.take(mask)  # type: ignore[return-value]

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, Sequence[Shortfall]]:
        """For each constraint that refuses nodes: the least skew that any of them would lead to, against what is allowed."""
        spread = self._spread(pods)
        found: list[Shortfall] = []
        for constraint, place in zip(spread.hard, self._layout(pods.shape, spread, HARD).places, strict=True):
            skews = self._skews(constraint, place, very_pod(pods))
            ids = np.atleast_1d(nodes.take(place.topology.ids))
            least = skews[ids[ids != ABSENT]].min(initial=np.inf)
            if constraint.max_skew < least < np.inf:
                found.append(
                    shortfall(self.reason, want=least, best=constraint.max_skew, unit="count", resource=constraint.topology_key)
                )
        return self.reason, tuple(found)

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        self._counted = None
        spread = self._spread(pods)
        if not spread.soft:
            return np.int64(0)  # type: ignore[return-value]
        layout = self._layout(pods.shape, spread, SOFT)
        counts, ids = [], []
        for constraint, place in zip(spread.soft, layout.places, strict=True):
            counts.append(nodes.take(self._near(constraint, place)))
            ids.append(nodes.take(place.topology.ids))
        found = Counted(
            np.zeros(0, np.int64), spread.soft, tuple(counts), tuple(ids), ~nodes.take(layout.complete), spread.needs_all
        )
        everywhere: Mask = np.ones(len(nodes), np.bool_)
        self._counted = found._replace(raw=weighed(found, everywhere))
        return self._counted.raw

    def normalise(self, scores: Column, feasible: Mask) -> Column:
        found: Column = np.zeros(len(scores), np.int64)
        counted, self._counted = self._counted, None
        if counted is None:
            return found
        if counted.raw is scores:
            scores = weighed(counted, feasible)
        chosen = scores[feasible & (scores != IGNORED)]
        if len(chosen):
            low, high = int(chosen.min()), int(chosen.max())
            found = np.clip(SCORE_MAX * (high + low - scores) // high, 0, SCORE_MAX) if high else found + SCORE_MAX
            found[scores == IGNORED] = 0
        return found

    # -- inside -------------------------------------------------------------------------------------------------------------

    def _spread(self, pods: PodBlock) -> Spread:
        pod, shape = very_pod(pods), pods.shape
        own = shape.spec.topology_spread_constraints
        namespace, labels = pod.metadata.namespace, pod.metadata.labels
        if own:
            key: tuple[object, ...] = (shape.number, namespace, *(labels.get(k) for one in own for k in one.match_label_keys))
        else:
            key = (namespace, frozenset(labels.items()), is_controlled(pod))
        found = self._spreads.get(key)
        if found is None:
            if len(self._spreads) >= _SPREADS_MAX:
                self._spreads.clear()
            terms = self._index.terms
            found = read_spread(own, pod, terms) if own else default_spread(self._defaults, pod, terms)
            if self.args.defaulting_type == "System" and not own:
                found = found._replace(needs_all=False)
            self._spreads[key] = found
        if found.problem:
            raise ValueError(f"Pod {pod.key}: {found.problem}")
        return found

    def _layout(self, shape: Shape, spread: Spread, when: str) -> Layout:
        nodes = self.state.nodes
        key = (shape.number, when)
        found = self._layouts.get(key)
        if found is None or found.version != nodes.version:
            if len(self._layouts) >= _LAYOUTS_MAX:
                self._layouts.clear()
            constraints = spread.hard if when == HARD else spread.soft
            found = self._layouts[key] = self._laid_out(shape, constraints, spread.needs_all)
        return found

    def _laid_out(self, shape: Shape, constraints: tuple[Constraint, ...], needs_all: bool) -> Layout:
        block = NodeBlock(self.state.nodes)
        complete: Mask = np.ones(len(block), np.bool_)
        topologies = [self._index.topologies.of(one.topology_key) for one in constraints]
        if needs_all:
            for topology in topologies:
                complete = complete & topology.present
        affine = required_node_mask(shape, block) if any(one.honours_affinity for one in constraints) else None
        tolerated = tolerated_mask(shape.spec.tolerations, block) if any(one.honours_taints for one in constraints) else None
        places = []
        for one, topology in zip(constraints, topologies, strict=True):
            counts = complete & topology.present
            if one.honours_affinity and affine is not None:
                counts = counts & affine
            if one.honours_taints and tolerated is not None:
                counts = counts & tolerated
            ids = np.where(counts, topology.ids, ABSENT)
            domains = np.flatnonzero(np.bincount(ids, minlength=topology.size))
            places.append(Place(topology, ids, domains[domains != ABSENT]))
        return Layout(self.state.nodes.version, tuple(places), complete)

    def _sums(self, constraint: Constraint, place: Place) -> Array:
        """Matching pods by domain, on nodes that count."""
        if constraint.term is None:
            return np.zeros(place.topology.size, np.float64)
        counts = self._index.column(constraint.term)[STAYING]
        sums: Array = np.bincount(place.ids, weights=counts, minlength=place.topology.size)
        return sums

    def _skews(self, constraint: Constraint, place: Place, pod: PodFacts) -> Array:
        """By domain: how many more it would have than the emptiest, with this pod in it."""
        sums = self._sums(constraint, place)
        least = sums[place.domains].min() if len(place.domains) >= max(constraint.min_domains, 1) else 0
        term = constraint.term
        itself = constraint.means_itself if term is None else self._index.means(term, pod)
        skews: Array = sums + (int(itself) - least)
        return skews

    def _near(self, constraint: Constraint, place: Place) -> Array:
        """Matching pods near each node, as the score counts them: on the node itself where nodes are the domains."""
        if constraint.topology_key == HOSTNAME:
            if constraint.term is None:
                return np.zeros(len(self.state.nodes), np.float64)
            here: Array = self._index.column(constraint.term)[STAYING]
            return here
        found: Array = self._sums(constraint, place)[place.topology.ids]
        return found


def weighed(counted: Counted, feasible: Mask) -> Column:
    """Raw scores: counts times the logarithm of the number of domains among feasible nodes; IGNORED for incomplete nodes."""
    candidates = feasible & ~counted.ignored
    total = np.zeros(len(candidates), np.float64)
    for constraint, counts, ids in zip(counted.constraints, counted.counts, counted.ids, strict=True):
        if constraint.topology_key == HOSTNAME:
            domains = int(np.count_nonzero(candidates))
        else:
            domains = int(np.count_nonzero(np.bincount(ids[candidates])))
        share = counts * math.log(domains + 2) + (constraint.max_skew - 1)
        total += share if counted.needs_all else np.where(ids != ABSENT, share, 0)
    scores: Column = np.floor(total + 0.5).astype(np.int64)
    scores[counted.ignored] = IGNORED
    return scores
