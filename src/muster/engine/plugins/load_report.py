"""What LoadAwareScheduling reads: a NodeMetric as vectors over its resources, and what a pod is expected to use. Pure.

Amounts are those of the columns (thousandths of a core, bytes), cut to AMOUNT_MAX so that percents of them can't overflow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster.engine.facts import NodeMetricFacts, PodFacts
from muster.engine.plugins.load_args import parse_duration
from muster.engine.shapes import Shape
from muster.objects.amounts import amount_of
from muster.objects.labels import Koordinator, KoordinatorPod
from muster.objects.time import parse_time
from muster.objects.view import Quantities

Amounts = tuple[int, ...]
"""In the order of the resources. Plain numbers: there are few, and arrays of two are slow."""
AMOUNT_MAX: Final = 2**55
ESTIMATE_MAX: Final = 2**45
"""Of one pod, expected or reported: those of a hundred thousand pods still add up within 64 bits."""
REPORT_INTERVAL_S: Final = 60
DEFAULT_ESTIMATES: Final[Mapping[str, int]] = {"cpu": 250, "memory": 200 * 1024 * 1024}
"""For a pod that neither asks for the resource nor limits it."""

PROD, MID, BATCH, FREE = "koord-prod", "koord-mid", "koord-batch", "koord-free"
_BANDS: Final = ((9000, PROD), (7000, MID), (5000, BATCH), (3000, FREE))
_TRANSLATED: Final[Mapping[str, Mapping[str, str]]] = {
    BATCH: {"cpu": Koordinator.RESOURCE_BATCH_CPU, "memory": Koordinator.RESOURCE_BATCH_MEMORY},
    MID: {"cpu": Koordinator.RESOURCE_MID_CPU, "memory": Koordinator.RESOURCE_MID_MEMORY},
}
_factors = msgspec.json.Decoder(dict[str, int])


# -- pods -------------------------------------------------------------------------------------------------------------------


def priority_class(shape: Shape) -> str:
    """By label, else by the band of its priority, else by QoS: best effort is batch, everything else is prod."""
    label = shape.labels.get(KoordinatorPod.PRIORITY_CLASS, "")
    if label in (PROD, MID, BATCH, FREE):
        return label
    for start, name in _BANDS:
        if start <= shape.priority < start + 1000:
            return name
    qos = shape.labels.get(KoordinatorPod.QOS_CLASS, "")
    if qos:
        return BATCH if qos == "BE" else PROD
    asked, limited = shape.requests.amounts, shape.requests.limits
    return PROD if any(asked.get(name) or limited.get(name) for name in ("cpu", "memory")) else BATCH


def estimate(shape: Shape, resources: Sequence[str], factors: Mapping[str, int], *, is_customized: bool) -> Amounts:
    """What a pod of the shape is expected to use: its share of the larger of request and limit, rounded to the nearest."""
    own = _own_factors(shape) if is_customized else {}
    names = _TRANSLATED.get(priority_class(shape), {})
    amounts = []
    for name in resources:
        actual = names.get(name, name)
        request, limit = shape.requests.amounts.get(actual, 0), shape.requests.limits.get(actual, 0)
        most = max(request, limit)
        if most == 0:
            amounts.append(DEFAULT_ESTIMATES.get(name, 0))
            continue
        amount = (most * own.get(name, factors.get(name, 100)) + 50) // 100
        amounts.append(min(amount, limit or amount, ESTIMATE_MAX))
    return tuple(amounts)


def _own_factors(shape: Shape) -> dict[str, int]:
    text = shape.annotations.get(KoordinatorPod.LOAD_ESTIMATED_SCALING_FACTORS)
    if not text:
        return {}
    try:
        found = _factors.decode(text)
    except msgspec.MsgspecError:
        return {}
    return {name: factor for name, factor in found.items() if 1 <= factor <= 100}


def own_seconds(shape: Shape, annotation: str) -> int | None:
    """A window that the pod asks for itself; None without one that can be read."""
    text = shape.annotations.get(annotation, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 7 else None


def condition_time(pod: PodFacts, kind: str) -> float | None:
    """Since when the condition is true; None while it is not, or nobody says."""
    for condition in pod.status.conditions:
        if condition.type == kind and condition.status == "True":
            try:
                return parse_time(condition.last_transition_time)
            except ValueError:
                return None
    return None


# -- nodes ------------------------------------------------------------------------------------------------------------------


class PodUse(msgspec.Struct, frozen=True):
    amounts: Amounts
    is_prod: bool
    """As the agent says."""


class Report:
    """A NodeMetric, read once. `at` is None when it does not say when it was made."""

    def __init__(self, metric: NodeMetricFacts, resources: Sequence[str]) -> None:
        status = metric.status
        try:
            self.at: float | None = parse_time(status.update_time)
        except ValueError:
            self.at = None
        policy = metric.spec.metric_collect_policy
        seconds = policy.report_interval_seconds if policy is not None else None
        self.interval_s: float = seconds if seconds is not None and seconds > 0 else REPORT_INTERVAL_S
        self.pods = {
            (pod.namespace, pod.name): PodUse(vector(pod.pod_usage.resources, resources, ESTIMATE_MAX), pod.priority == PROD)
            for pod in status.pods_metric
        }
        node = status.node_metric
        self.has_node = node is not None
        self.node = vector(node.node_usage.resources if node is not None else {}, resources)
        self.system = vector(node.system_usage.resources if node is not None else {}, resources)
        self._windows: list[tuple[float, dict[str, Amounts]]] = []
        for window in node.aggregated_node_usages if node is not None else ():
            try:
                length_s = parse_duration(window.duration)
            except ValueError:
                continue
            uses = {kind: vector(usage.resources, resources) for kind, usage in window.usage.items() if usage.resources}
            self._windows.append((length_s, uses))

    def aggregated(self, kind: str, window_s: float) -> Amounts | None:
        """Use by percentile. A window of 0: the longest that has it, else the last report. None: that very window lacks it."""
        having = [(length_s, uses[kind]) for length_s, uses in self._windows if kind in uses]
        if window_s > 0:
            return next((use for length_s, use in having if length_s == window_s), None)
        return max(having, key=lambda one: one[0])[1] if having else self.node


def vector(quantities: Quantities, resources: Sequence[str], amount_max: int = AMOUNT_MAX) -> Amounts:
    """Amounts in the order of `resources`; 0 for what is missing or can't be read."""
    return tuple(_amount(name, quantities[name], amount_max) if name in quantities else 0 for name in resources)


def _amount(name: str, value: str | int | float, amount_max: int) -> int:
    try:
        return min(amount_of(name, value), amount_max)
    except ValueError:
        return 0
