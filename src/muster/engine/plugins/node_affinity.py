"""NodeAffinity: the pod's `nodeSelector` and required node affinity refuse nodes; its preferred terms score them.

The profile may add an affinity to that of every pod (`addedAffinity`): both must hold, and both are counted. The raw score of a
node is the sum of the weights of the preferred terms that match it; the best feasible node gets 100, the others their share.
Pure: reads label columns, returns masks and sums. Same meaning as in kube-scheduler, whose versions agree here.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Column, Mask
from muster.engine.node_selectors import (
    is_sound_term,
    matches_node_selector,
    node_labels_mask,
    preferred_nodes,
    required_node_mask,
)
from muster.engine.plugin import Plugin, Scope
from muster.engine.scaling import scale_to_largest
from muster.engine.shapes import Shape
from muster.objects.kinds.affinity import NodeAffinity as AffinitySpec
from muster.objects.kinds.affinity import NodeSelector, PreferredSchedulingTerm
from muster.objects.reasons import Reason, Shortfall

WEIGHT_MAX = 100


class NodeAffinityArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    added_affinity: AffinitySpec | None = None
    """Holds for every pod of the profile, beside its own."""

    def __post_init__(self) -> None:
        if self.added_affinity is not None:
            _check(self.added_affinity)


class NodeAffinity(Plugin):
    name = "NodeAffinity"
    scope = Scope.NODE
    reason = Reason.NODE_AFFINITY_MISMATCH
    Args = NodeAffinityArgs

    def __init__(self, args: NodeAffinityArgs | None = None) -> None:
        super().__init__(args)
        added: AffinitySpec = self.args.added_affinity or AffinitySpec()
        self._required: NodeSelector | None = added.required_during_scheduling_ignored_during_execution
        self._preferred = tuple(added.preferred_during_scheduling_ignored_during_execution)

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        mask = required_node_mask(pods.shape, nodes)
        return mask if self._required is None else mask & matches_node_selector(self._required, nodes)

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, list[Shortfall]]:
        """The selector is named when it alone refuses at least half of the nodes; otherwise the affinity is."""
        labels = pods.shape.spec.node_selector
        if labels and np.mean(node_labels_mask(labels, nodes)) <= 0.5:
            return Reason.NODE_SELECTOR_MISMATCH, []
        return self.reason, []

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        total: Any = np.int64(0) if nodes.is_one else np.zeros(len(nodes), np.int64)
        for term in (*self._preferred, *preferred_terms(pods.shape)):
            found = preferred_nodes(term.preference, nodes) if term.weight else None
            if found is not None:
                total = total + term.weight * found
        scores: Column = total
        return scores

    def normalise(self, scores: Column, feasible: Mask) -> Column:
        return scale_to_largest(scores, feasible)


def preferred_terms(shape: Shape) -> list[PreferredSchedulingTerm]:
    """What the pod itself prefers."""
    affinity = shape.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return []
    return affinity.node_affinity.preferred_during_scheduling_ignored_during_execution


def _check(added: AffinitySpec) -> None:
    required, preferred = (
        added.required_during_scheduling_ignored_during_execution,
        added.preferred_during_scheduling_ignored_during_execution,
    )
    if required is None and not preferred:
        raise ValueError("addedAffinity: has neither required nor preferred terms; add some, or leave addedAffinity out")
    if required is not None:
        where = "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        if not required.node_selector_terms:
            raise ValueError(f"{where}: is empty, so that no node would match; add a term")
        for index, term in enumerate(required.node_selector_terms):
            if not is_sound_term(term):
                raise ValueError(f"{where}[{index}]: {_shown(term)} matches no node; correct its keys, operators and values")
    for index, one in enumerate(preferred):
        where = f"addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        if not 1 <= one.weight <= WEIGHT_MAX:
            raise ValueError(f"{where}.weight: {one.weight} is not from 1 to {WEIGHT_MAX}")
        if not is_sound_term(one.preference):
            raise ValueError(f"{where}.preference: {_shown(one.preference)} matches no node; correct it")


def _shown(term: msgspec.Struct) -> str:
    return msgspec.json.encode(term).decode()[:200]
