"""Bringing raw scores to the common scale, the way most of kube-scheduler's plugins do: relative to the largest.

Pure. What nodes that are not feasible get does not matter; it stays within the scale.
"""

from __future__ import annotations

import numpy as np

from muster.engine.columns import Column, Mask
from muster.engine.plugin import SCORE_MAX


def scale_to_largest(scores: Column, feasible: Mask, *, reverse: bool = False) -> Column:
    """Scores from 0 up as shares of the largest feasible one, in whole percent, rounded down. `reverse`: the more, the worse.

    When all are 0, they stay 0; with `reverse`, all are as good as can be.
    """
    largest = int(scores[feasible].max(initial=0))
    if largest == 0:
        return np.full(len(scores), SCORE_MAX if reverse else 0, np.int64)
    shares: Column = np.minimum(scores, largest) * SCORE_MAX // largest
    return SCORE_MAX - shares if reverse else shares
