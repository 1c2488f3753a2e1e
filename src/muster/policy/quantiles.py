"""What predictions and forecasts have in common: the part that they speak for, and quantiles of what was kept. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

HIGH: Final = 0.9
"""Nine in ten: of run times that end sooner than the high one, and of starts that fall into their interval."""
HIGH_LOGIT: Final = math.log(HIGH / (1.0 - HIGH))


def quantile(ordered: Sequence[float], level: float) -> float:
    """Between the two nearest."""
    at = level * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def plain(number: float) -> float | None:
    """As JSON can hold it."""
    return number if math.isfinite(number) else None
