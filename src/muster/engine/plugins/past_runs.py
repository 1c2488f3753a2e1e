"""PastRuns: nodes where work of this kind ran well score higher; those where it ran slowly or failed score lower.

What is known about places comes from whoever keeps the order of work, through `state.extras[ADVICE]` (an `Advice`); it rests on
events alone, so a log replays it. Where nothing is known of the pod's kind, the plugin has no part in the decision.

A node's figure is what a run takes there until it ends well, against elsewhere (`Leaning.cost`); the strongest of the leanings
that hold for a node counts. The best feasible node gets 100, one where work takes twice as long 50.

It refuses nothing, and is never stronger than what the pod itself prefers: points go only to nodes that are best by the pod's
own preferred node affinity, and none at all where the pod has preferences about other pods. Pure; scope WIDE, as kinds are not
in the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Column, Mask
from muster.engine.node_selectors import matches_node_selector_term
from muster.engine.plugin import SCORE_MAX, Plugin, Scope
from muster.engine.plugins.node_affinity import preferred_terms
from muster.engine.shapes import Shape

ADVICE: Final = "PastRuns"
"""The key in `state.extras`."""
NODE: Final = "metadata.name"
"""As a label key: the node itself, as in a node affinity's `matchFields`."""
COST_MIN: Final = 0.1
COST_MAX: Final = 10.0
_WHOLE: Final = 1_000
"""The figure of a place that is like any other."""
_TIER: Final = 1 << 20
"""Larger than any figure: what the pod itself prefers stands above it."""


class Leaning(msgspec.Struct, frozen=True):
    """How work of a kind does on nodes with this label, or on this node (`key` is NODE)."""

    key: str
    value: str
    cost: float
    """How long a run takes until one ends well, against elsewhere: below 1 is better. From COST_MIN to COST_MAX, rounded."""
    grounds: str = ""

    @property
    def strength(self) -> float:
        return max(self.cost, 1.0 / self.cost)


class Advice(Protocol):
    def of_pod(self, uid: str) -> Sequence[Leaning]:
        """What is known of the pod's kind, the strongest last; nothing without grounds. Asked at every decision: cheap."""


class PastRuns(Plugin):
    name = "PastRuns"
    scope = Scope.WIDE

    def concerns(self, pods: PodBlock) -> bool:
        return bool(self._leanings(pods)) and not _prefers_pods(pods.shape)

    def _leanings(self, pods: PodBlock) -> Sequence[Leaning]:
        advice: Any = self.state.extras.get(ADVICE)
        return advice.of_pod(pods.pod.metadata.uid) if advice is not None and pods.pod is not None else ()

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        figures: Column = np.full(len(nodes), _WHOLE, np.int64)
        for leaning in self._leanings(pods):
            figures[_holds(leaning, nodes)] = round(_WHOLE / min(max(leaning.cost, COST_MIN), COST_MAX))
        for term in preferred_terms(pods.shape):
            if term.weight:
                figures += _TIER * term.weight * matches_node_selector_term(term.preference, nodes)
        return figures

    def normalise(self, scores: Column, feasible: Mask) -> Column:
        tiers, figures = np.divmod(scores, _TIER)
        is_best = feasible & (tiers == tiers[feasible].max(initial=0))
        largest = max(int(figures[is_best].max(initial=0)), 1)
        found: Column = np.where(is_best, np.minimum(figures, largest) * SCORE_MAX // largest, 0)
        return found


def _holds(leaning: Leaning, nodes: NodeBlock) -> Any:
    """True where the leaning is about the node."""
    columns = nodes.columns
    if leaning.key == NODE:
        slots = np.arange(len(columns)) if nodes.slots is None else np.atleast_1d(nodes.slots)
        return slots == columns.slots.get(leaning.value, -1)
    number = columns.label_values(leaning.key).get(leaning.value)
    if number is None:
        return np.zeros(len(nodes), np.bool_)
    return np.atleast_1d(nodes.take(columns.label_ids(leaning.key))) == number


def _prefers_pods(shape: Shape) -> bool:
    affinity = shape.spec.affinity
    return affinity is not None and any(
        terms is not None and terms.preferred_during_scheduling_ignored_during_execution
        for terms in (affinity.pod_affinity, affinity.pod_anti_affinity)
    )
