"""TaintToleration: a taint that the pod does not tolerate refuses the node (NoSchedule, NoExecute) or costs it score.

The raw score of a node is the number of its PreferNoSchedule taints that are not tolerated; the feasible node with most gets 0,
one without any 100. Worked out once per distinct set of taints, then looked up. Pure. The numeric operators `Gt` and `Lt` of
tolerations are those of Kubernetes 1.35; older ones never send them.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Column, Mask
from muster.engine.node_selectors import HARD_EFFECTS, intolerable, intolerable_count, tolerated_mask
from muster.engine.plugin import Plugin, Scope
from muster.engine.scaling import scale_to_largest
from muster.objects.kinds.nodes import Taint
from muster.objects.reasons import Reason, Shortfall, shortfall

SOFT_EFFECTS: Final = ("PreferNoSchedule",)
_TAINTS_SHOWN_MAX: Final = 3


class TaintToleration(Plugin):
    name = "TaintToleration"
    scope = Scope.NODE
    reason = Reason.TAINT_NOT_TOLERATED

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        return tolerated_mask(pods.shape.spec.tolerations, nodes)

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, list[Shortfall]]:
        """Which tolerations are missing, those first that would open most nodes."""
        sets = np.bincount(np.atleast_1d(nodes.take(nodes.columns.taint_set))).tolist()
        found: Counter[str] = Counter()
        for number, count in enumerate(sets):
            if count:
                for taint in intolerable(pods.shape.spec.tolerations, nodes.columns.taint_sets[number], HARD_EFFECTS):
                    found[taint_text(taint)] += count
        shown = sorted(found, key=lambda text: (-found[text], text))[:_TAINTS_SHOWN_MAX]
        return self.reason, [shortfall(self.reason, want=1, best=0, resource=f"toleration of {text}") for text in shown]

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        return intolerable_count(pods.shape.spec.tolerations, nodes, SOFT_EFFECTS)

    def normalise(self, scores: Column, feasible: Mask) -> Column:
        return scale_to_largest(scores, feasible, reverse=True)


def taint_text(taint: Taint) -> str:
    """As `kubectl taint` writes it."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
