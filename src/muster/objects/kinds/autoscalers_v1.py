"""Kubernetes' `autoscaling/v1` of HorizontalPodAutoscaler, which is kept as `v2` has it. Pure.

`v1` knows the use of CPU, as a percentage, and nothing else. What else an object has is in annotations when it is read as `v1`,
and is taken from there when it is written: so nothing gets lost that a client of `v1` sends back. Metrics have a form of their
own in those annotations. As in Kubernetes, the metric that is the percentage comes after the others when `v1` has been written,
and an annotation that is no JSON counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec

from muster.objects.kinds.autoscalers import AUTOSCALER, METRIC_SOURCES, CrossVersionObjectReference, fill_autoscaler
from muster.objects.kinds.base import AGE, Native, NativeObject, default
from muster.objects.resources import Column, Conversion, Resource
from muster.objects.status import Raw
from muster.objects.time import Timestamp
from muster.objects.view import Int32

_PREFIX: Final = "autoscaling.alpha.kubernetes.io/"
METRICS: Final = f"{_PREFIX}metrics"
BEHAVIOR: Final = f"{_PREFIX}behavior"
CURRENT_METRICS: Final = f"{_PREFIX}current-metrics"
CONDITIONS: Final = f"{_PREFIX}conditions"
_TARGET: Final = "targetCPUUtilizationPercentage"
_CURRENT: Final = "currentCPUUtilizationPercentage"
_ALL: Final = (METRICS, BEHAVIOR, CURRENT_METRICS, CONDITIONS)

_encode = msgspec.json.Encoder().encode


class HorizontalPodAutoscalerSpecV1(Native):
    """What is scaled, between which bounds, by the use of CPU."""

    scale_target_ref: Annotated[CrossVersionObjectReference, "What is scaled."]
    max_replicas: Annotated[Int32, "No more pods than this."]
    min_replicas: Annotated[Int32 | None, default(1), "No fewer pods than this."] = None
    target_cpu_utilization_percentage: Annotated[
        Int32 | None, "Use of CPU that is aimed at, in percent of what the pods request."
    ] = msgspec.field(name="targetCPUUtilizationPercentage", default=None)


class HorizontalPodAutoscalerStatusV1(Native):
    """What it has done."""

    current_replicas: Annotated[Int32, "How many pods it last saw."] = 0
    desired_replicas: Annotated[Int32, "How many pods it last asked for."] = 0
    observed_generation: Annotated[int | None, "The generation that this speaks of."] = None
    last_scale_time: Annotated[Timestamp | None, "When it last changed the number."] = None
    current_cpu_utilization_percentage: Annotated[Int32 | None, "Use of CPU, in percent of what the pods request."] = (
        msgspec.field(name="currentCPUUtilizationPercentage", default=None)
    )


class HorizontalPodAutoscalerV1(NativeObject):
    """How many pods something should have, by the CPU that they use."""

    spec: Annotated[HorizontalPodAutoscalerSpecV1 | None, "What is scaled, and how."] = None
    status: Annotated[HorizontalPodAutoscalerStatusV1 | None, "What it has done."] = None


# --- from v2


def from_v2(raw: Raw) -> Raw:
    result = dict(raw)
    notes: dict[str, str] = {}
    spec, status = raw.get("spec"), raw.get("status")
    if isinstance(spec, dict):
        result["spec"] = _spec_from_v2(spec, notes)
    if isinstance(status, dict):
        result["status"] = _status_from_v2(status, notes)
    metadata = raw.get("metadata")
    if isinstance(metadata, dict):
        result["metadata"] = _annotated(metadata, notes)
    return result


def _spec_from_v2(spec: Raw, notes: dict[str, str]) -> Raw:
    seen = _without(spec, "metrics", "behavior", _TARGET)
    metrics = list(_items(spec, "metrics"))
    # The last of several, which on the way back comes last again: their order would change with each look at v1.
    for index in range(len(metrics) - 1, -1, -1):
        if (percent := _cpu_percent(metrics[index], "target")) is not None:
            seen[_TARGET] = percent
            del metrics[index]
            break
    others = [_metric_from_v2(metric, "target") for metric in metrics]
    if others:
        notes[METRICS] = _text(others)
    if spec.get("behavior") is not None:
        notes[BEHAVIOR] = _text(_named(spec["behavior"], str.upper))
    return seen


def _status_from_v2(status: Raw, notes: dict[str, str]) -> Raw:
    seen = _without(status, "currentMetrics", "conditions", _CURRENT)
    metrics = _items(status, "currentMetrics")
    percents = (percent for metric in metrics if (percent := _cpu_percent(metric, "current")) is not None)
    if (percent := next(percents, None)) is not None:
        seen[_CURRENT] = percent
    if metrics:
        # The percentage alone would not tell what it is a percentage of.
        notes[CURRENT_METRICS] = _text([_metric_from_v2(metric, "current") for metric in metrics])
    if status.get("conditions"):
        notes[CONDITIONS] = _text(status["conditions"])
    return seen


def _cpu_percent(metric: Any, word: str) -> Any:
    """The percentage that `v1` has a field for; None when this metric is something else."""
    resource = _object(metric, "resource")
    is_cpu = isinstance(metric, dict) and metric.get("type") == "Resource" and resource.get("name") == "cpu"
    return _object(resource, word).get("averageUtilization") if is_cpu else None


def _annotated(metadata: Raw, notes: Mapping[str, str]) -> Raw:
    """With these annotations and no others of ours: what is not in the object must not look as if it were."""
    own = _object(metadata, "annotations")
    kept = {name: value for name, value in own.items() if name not in _ALL}
    if len(kept) == len(own) and not notes:
        return metadata
    result = {name: value for name, value in metadata.items() if name != "annotations"}
    return {**result, "annotations": {**kept, **notes}} if kept or notes else result


# --- to v2


def to_v2(raw: Raw) -> Raw:
    result = dict(raw)
    metadata = raw.get("metadata")
    notes: Raw = {}
    if isinstance(metadata, dict):
        notes = {name: _read(value) for name, value in _object(metadata, "annotations").items() if name in _ALL}
        result["metadata"] = _annotated(metadata, {})
    spec, status = raw.get("spec"), raw.get("status")
    if isinstance(spec, dict):
        result["spec"] = _spec_to_v2(spec, notes)
    conditions, metrics = notes.get(CONDITIONS), _items(notes, CURRENT_METRICS)
    if isinstance(status, dict) or conditions or metrics:
        result["status"] = _status_to_v2(status if isinstance(status, dict) else {}, metrics, conditions)
    fill_autoscaler(result)
    return result


def _spec_to_v2(spec: Raw, notes: Raw) -> Raw:
    result = _without(spec, "metrics", "behavior", _TARGET)
    metrics = [_metric_to_v2(metric, "target") for metric in _items(notes, METRICS)]
    if (percent := spec.get(_TARGET)) is not None:
        target = {"type": "Utilization", "averageUtilization": percent}
        metrics.append({"type": "Resource", "resource": {"name": "cpu", "target": target}})
    if metrics:
        result["metrics"] = metrics
    behavior = _named(notes.get(BEHAVIOR), str.lower)
    if isinstance(behavior, dict):
        result["behavior"] = behavior
    return result


def _status_to_v2(status: Raw, metrics: list[Any], conditions: Any) -> Raw:
    result = _without(status, "currentMetrics", "conditions", _CURRENT)
    percent = status.get(_CURRENT)
    if metrics:
        result["currentMetrics"] = [_metric_to_v2(metric, "current") for metric in metrics]
    elif percent is not None:
        current = {"averageUtilization": percent}
        result["currentMetrics"] = [{"type": "Resource", "resource": {"name": "cpu", "current": current}}]
    if isinstance(conditions, list) and conditions:
        result["conditions"] = conditions
    return result


# --- one metric, as its annotation has it

_NAMED: Final = {
    "object": ("metricName", "selector", "Value", "averageValue"),
    "pods": ("metricName", "selector", "", "AverageValue"),
    "external": ("metricName", "metricSelector", "Value", "AverageValue"),
}
"""What `v1` calls the metric, its selector, its value and its average. Names with a capital follow `target` or `current`."""


def _metric_from_v2(metric: Any, word: str) -> Any:
    """`word` is `target` in a spec and `current` in a status."""
    source = _source_of(metric)
    about = _object(metric, source)
    if not about:
        return metric
    amounts = _object(about, word)
    seen: Raw
    if source in ("resource", "containerResource"):
        seen = {"name": about.get("name")}
        _copy(amounts, seen, {"averageUtilization": f"{word}AverageUtilization", "averageValue": f"{word}AverageValue"})
        _copy(about, seen, {"container": "container"})
    else:
        name, selector, value, average = (_spelled(one, word) for one in _NAMED[source])
        seen = {"target": about["describedObject"]} if "describedObject" in about else {}
        _copy(_object(about, "metric"), seen, {"name": name, "selector": selector})
        _copy(amounts, seen, {"value": value, "averageValue": average})
        if source == "object" and value not in seen:
            seen[value] = "0"  # it must have one in `v1`
    return {"type": metric["type"], source: seen}


def _metric_to_v2(metric: Any, word: str) -> Any:
    source = _source_of(metric)
    about = _object(metric, source)
    if not about:
        return metric
    amounts: Raw = {}
    result: Raw
    if source in ("resource", "containerResource"):
        result = {"name": about.get("name")}
        _copy(about, result, {"container": "container"})
        _copy(about, amounts, {f"{word}AverageUtilization": "averageUtilization", f"{word}AverageValue": "averageValue"})
    else:
        name, selector, value, average = (_spelled(one, word) for one in _NAMED[source])
        result = {"describedObject": about["target"]} if "target" in about else {}
        result["metric"] = identifier = dict[str, Any]()
        _copy(about, identifier, {name: "name", selector: "selector"})
        _copy(about, amounts, {value: "value", average: "averageValue"})
        if source == "object" and word == "target" and "averageValue" in amounts:
            amounts.pop("value", None)
    if word == "target":
        types = {"averageUtilization": "Utilization", "averageValue": "AverageValue"}
        amounts = {"type": next((types[name] for name in types if name in amounts), "Value"), **amounts}
    return {"type": metric["type"], source: {**result, word: amounts}}


def _source_of(metric: Any) -> str:
    kind = metric.get("type") if isinstance(metric, dict) else None
    return METRIC_SOURCES.get(kind, "") if isinstance(kind, str) else ""


def _spelled(name: str, word: str) -> str:
    return f"{word}{name}" if name[:1].isupper() else name


def _copy(source: Raw, target: Raw, names: Mapping[str, str]) -> None:
    for old, new in names.items():
        if old and new and source.get(old) is not None:
            target[new] = source[old]


def _named(value: Any, first: Callable[[str], str]) -> Any:
    """`value` with all its names beginning as `first` says, without what is null: Kubernetes writes this annotation with
    capitals, and reads it either way."""
    if isinstance(value, dict):
        return {first(name[:1]) + name[1:]: _named(part, first) for name, part in value.items() if part is not None}
    return [_named(part, first) for part in value] if isinstance(value, list) else value


def _without(raw: Raw, *names: str) -> Raw:
    """What the two versions have in common: a field of the one means nothing in the other."""
    return {name: value for name, value in raw.items() if name not in names}


def _object(parent: Any, key: str) -> Raw:
    value = parent.get(key) if isinstance(parent, dict) else None
    return value if isinstance(value, dict) else {}


def _items(parent: Raw, key: str) -> list[Any]:
    value = parent.get(key)
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return _encode(value).decode()


def _read(value: Any) -> Any:
    try:
        return msgspec.json.decode(value) if isinstance(value, str) else None
    except (msgspec.DecodeError, RecursionError):
        return None


RESOURCES: tuple[Resource, ...] = (
    msgspec.structs.replace(
        AUTOSCALER,
        version="v1",
        view=HorizontalPodAutoscalerV1,
        columns=(
            Column(name="Reference", path=".spec.scaleTargetRef.name"),
            Column(name="Targets", path=".spec.targetCPUUtilizationPercentage", type="integer"),
            Column(name="MinPods", path=".spec.minReplicas"),
            Column(name="MaxPods", path=".spec.maxReplicas", type="integer"),
            Column(name="Replicas", path=".status.currentReplicas", type="integer"),
            AGE,
        ),
        conversion=Conversion(stored_group=AUTOSCALER.group, from_stored=from_v2, to_stored=to_v2),
    ),
)
