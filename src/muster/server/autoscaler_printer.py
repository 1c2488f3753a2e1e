"""How a HorizontalPodAutoscaler is shown: what it scales, and each metric as it is and as it should be.

Pure. Nothing here scales, so what a metric is stays `<unknown>` unless somebody's controller writes the status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from muster.objects.kinds.autoscalers import METRIC_SOURCES
from muster.objects.status import Raw
from muster.server.cells import NONE, Printer, age, column, items, number, part, text

_TARGETS_SHOWN_MAX: Final = 2
_UNKNOWN: Final = "<unknown>"


def _cells(raw: Raw, now: float) -> Sequence[Any]:
    spec, status = part(raw, "spec"), part(raw, "status")
    target = part(spec, "scaleTargetRef")
    return [
        f"{text(target, 'kind')}/{text(target, 'name')}",
        _targets(items(spec, "metrics"), items(status, "currentMetrics")),
        str(number(spec, "minReplicas")) if spec.get("minReplicas") is not None else "<unset>",
        number(spec, "maxReplicas"),
        number(status, "currentReplicas"),
        age(raw, now),
    ]


def _targets(metrics: list[Raw], current: list[Raw]) -> str:
    shown = []
    for index, metric in enumerate(metrics):
        source = METRIC_SOURCES.get(text(metric, "type"), "")
        is_now = current[index] if index < len(current) and current[index].get("type") == metric.get("type") else {}
        wanted = _value(part(metric, source, "target")) or "<auto>"
        name = text(part(metric, source), "name")
        found = f"{_value(part(is_now, source, 'current')) or _UNKNOWN}/{wanted}"
        shown.append(f"{name}: {found}" if name else found)
    more = len(shown) - _TARGETS_SHOWN_MAX
    return ", ".join(shown[:_TARGETS_SHOWN_MAX]) + (f" + {more} more..." if more > 0 else "") if shown else NONE


def _value(amounts: Raw) -> str:
    """The one that is given, the way kubectl writes it."""
    if amounts.get("averageUtilization") is not None:
        return f"{number(amounts, 'averageUtilization')}%"
    return text(amounts, "averageValue") or text(amounts, "value")


AUTOSCALER_PRINTER = Printer(
    (
        column("Reference"),
        column("Targets"),
        column("MinPods"),
        column("MaxPods", "integer"),
        column("Replicas", "integer"),
        column("Age", "date"),
    ),
    _cells,
)
