"""InterPodAffinity: pods that want to be near others, or away from them, as kube-scheduler has it.

A node will do when
1. it has every topology label of the required affinity terms, and in each of those places is a pod that all the terms mean
   at once; or no pod anywhere is meant, and the terms mean the pod itself: the first of a group that stays together;
2. no pod in its places is meant by a required anti-affinity term;
3. no pod in its places has a required anti-affinity term that means this pod.

The score adds up, over the pods in the node's places, the weights of the preferences of this pod that mean them, and of their
preferences that mean this pod (`hardPodAffinityWeight` for each of their required affinity terms); away counts negative.
`normalise` stretches what the feasible nodes have over 0..100. Pods that are being deleted count like others.

Pure; called from one thread. Counts come from `PodIndex`; a pod without rules that nobody's rule means costs a look-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Array, Column, Mask
from muster.engine.facts import PodFacts
from muster.engine.plugin import SCORE_MAX, Plugin, Scope, Wake
from muster.engine.pod_index import PodIndex, very_pod
from muster.engine.pod_terms import ALL, ANTI, HARD, SOFT, Rules
from muster.engine.topology import EVERYWHERE
from muster.objects.reasons import Reason, Shortfall

if TYPE_CHECKING:
    from muster.engine.events import AnyEvent
    from muster.engine.state import State


class InterPodAffinityArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    hard_pod_affinity_weight: Annotated[int, msgspec.Meta(ge=0, le=100)] = 1
    """What a placed pod's required affinity to this one is worth in the score."""
    ignore_preferred_terms_of_existing_pods: bool = False
    """Leave out the rules of placed pods when this pod has no preferences of its own."""


class InterPodAffinity(Plugin):
    name = "InterPodAffinity"
    scope = Scope.WIDE
    reason = Reason.POD_AFFINITY_UNSATISFIED
    wakes_on = frozenset({Wake.POD, Wake.NODE, Wake.NAMESPACE})
    Args = InterPodAffinityArgs
    args: InterPodAffinityArgs

    def attach(self, state: State) -> None:
        super().attach(state)
        self._index = PodIndex.of(state)

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        return self._index.event(event)

    def concerns(self, pods: PodBlock) -> bool:
        index, pod = self._index, very_pod(pods)
        if pods.shape.spec.affinity is not None and index.has_rules(pods.shape):
            return True
        return bool(index.carried(pod))

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        mask: Mask | None = None
        for _, refused in self._refusals(pods):
            mask = ~refused if mask is None else mask & ~refused
        return EVERYWHERE if mask is None else nodes.take(mask)  # type: ignore[return-value]

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, Sequence[Shortfall]]:
        """The reason of most nodes; each counts for the first rule that refuses it."""
        left: Mask = np.ones(len(nodes), np.bool_)
        counts: dict[Reason, int] = {}
        for reason, refused in self._refusals(pods):
            here = nodes.take(refused) & left
            counts[reason] = counts.get(reason, 0) + int(np.count_nonzero(here))
            left &= ~here
        return max(counts, key=counts.__getitem__, default=self.reason), ()

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        pod = very_pod(pods)
        wanted = list(self._preferences(pod, self._rules(pods, pod)))
        if not wanted:
            return np.int64(0)  # type: ignore[return-value]
        scores: Column = nodes.take(self._index.topologies.near(wanted))
        return scores

    def normalise(self, scores: Column, feasible: Mask) -> Column:
        chosen = scores[feasible]
        if not len(chosen):
            return np.zeros(len(scores), np.int64)
        low, high = int(chosen.min()), int(chosen.max())
        if low == high:
            return np.zeros(len(scores), np.int64)
        share: Array = (scores - low) / (high - low)
        found: Column = np.clip(SCORE_MAX * share, 0, SCORE_MAX).astype(np.int64)
        return found

    # -- inside -------------------------------------------------------------------------------------------------------------

    def _rules(self, pods: PodBlock, pod: PodFacts) -> Rules:
        rules = self._index.rules(pods.shape, pod)
        if rules.problem:
            raise ValueError(f"Pod {pod.key}: {rules.problem}")
        return rules

    def _refusals(self, pods: PodBlock) -> Iterator[tuple[Reason, Mask]]:
        """Masks over all nodes of those that a required rule refuses."""
        pod, index = very_pod(pods), self._index
        rules = self._rules(pods, pod)
        if rules.together is not None:
            yield Reason.POD_AFFINITY_UNSATISFIED, ~self._together(rules, pod)
        for rule in rules.anti_affinity:
            counts = index.column(rule.term)[ALL]
            if counts.any():
                yield Reason.POD_ANTI_AFFINITY_CONFLICT, index.topologies.of(rule.topology_key).is_near(counts)
        by_key: dict[str, Array] = {}
        for carrier in index.carried(pod):
            if carrier.role == ANTI:
                counts, key = index.column(carrier)[ALL], carrier.topology_key
                by_key[key] = by_key[key] + counts if key in by_key else counts
        for key, counts in by_key.items():
            yield Reason.POD_ANTI_AFFINITY_CONFLICT, index.topologies.of(key).is_near(counts)

    def _together(self, rules: Rules, pod: PodFacts) -> Mask:
        """Nodes that satisfy the required affinity."""
        assert rules.together is not None
        index = self._index
        counts = index.column(rules.together)[ALL]
        topologies = [index.topologies.of(key) for key in dict.fromkeys(rule.topology_key for rule in rules.affinity)]
        met = [topology.is_near(counts) for topology in topologies]
        if not any(mask.any() for mask in met) and index.means(rules.together, pod):
            met = [topology.present for topology in topologies]
        mask: Mask = np.logical_and.reduce(met)
        return mask

    def _preferences(self, pod: PodFacts, rules: Rules) -> Iterator[tuple[str, Array, int]]:
        """Topology key, counts per node and weight of all that scores."""
        index = self._index
        for rule in rules.preferred:
            yield rule.topology_key, index.column(rule.term)[ALL], rule.weight
        if self.args.ignore_preferred_terms_of_existing_pods and not rules.preferred:
            return
        for carrier in index.carried(pod):
            weight = carrier.weight if carrier.role == SOFT else self.args.hard_pod_affinity_weight
            if carrier.role in (HARD, SOFT) and weight:
                yield carrier.topology_key, index.column(carrier)[ALL], weight
