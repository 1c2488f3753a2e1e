"""Disruption budgets: which pods one selects, and how many of them may go now. Pure.

For evictions (`eviction.py`). A budget whose status a controller keeps is taken at that; otherwise the pods are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from muster.objects.conditions import is_true
from muster.objects.status import BadRequest, Raw
from muster.objects.time import parse_time
from muster.store.embedded.selection import query_of

_DISRUPTED_S = 120.0
"""How long an eviction that a budget granted counts against it, unless the pod is seen to go."""


def selects(budget: Raw, labels: Mapping[str, str]) -> bool:
    """A budget without a selector selects nothing, with an empty one everything in its namespace."""
    selector = (budget.get("spec") or {}).get("selector")
    return isinstance(selector, dict) and query_of(selector).matches(labels)


def has_status(budget: Raw) -> bool:
    """Whether some controller keeps the budget's status, for the budget as it is now."""
    observed = (budget.get("status") or {}).get("observedGeneration")
    return isinstance(observed, int) and observed > 0 and observed >= (budget["metadata"].get("generation") or 0)


def disruptions_allowed(budget: Raw, pods: Sequence[Raw]) -> int:
    """How many of `pods`, all that the budget selects, may go now. The pods there are stand for those that should be."""
    spec = budget.get("spec") or {}
    alive = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    healthy = sum(
        is_true((pod.get("status") or {}).get("conditions"), "Ready") and not pod["metadata"].get("deletionTimestamp")
        for pod in alive
    )
    expected = len(alive)
    if spec.get("maxUnavailable") is not None:
        desired = expected - _share(spec["maxUnavailable"], expected)
    elif spec.get("minAvailable") is not None:
        desired = _share(spec["minAvailable"], expected)
    else:
        desired = 1  # what Kubernetes takes for a budget that names neither
    return healthy - max(desired, 0)


def _share(amount: Any, total: int) -> int:
    """A number, or a percentage of `total` rounded up."""
    if isinstance(amount, int):
        return amount
    text = str(amount)
    try:
        return math.ceil(int(text.removesuffix("%")) * total / 100) if text.endswith("%") else int(text)
    except ValueError:
        raise BadRequest(f"{text!r} is neither a whole number nor a percentage like 50%") from None


def still_disrupted(pods: Any, now: float) -> Raw:
    """Evictions that were granted and may not have happened yet."""
    kept: Raw = {}
    for name, at in (pods or {}).items():
        try:
            if parse_time(at) + _DISRUPTED_S > now:
                kept[name] = at
        except ValueError:
            continue
    return kept


def is_free_to_go(pod: Raw) -> bool:
    """A pod that serves nobody yet or any more is not a disruption."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in ("Succeeded", "Failed", "Pending", None) or bool(pod["metadata"].get("deletionTimestamp"))
