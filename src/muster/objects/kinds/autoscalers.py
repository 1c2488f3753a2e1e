"""Kubernetes' `autoscaling/v2`: HorizontalPodAutoscaler. Pure.

Kept, checked and defaulted as in Kubernetes, so that charts which bring one can be installed; nothing here scales.
"""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated, Any, Final

from muster.objects.conditions import Conditions
from muster.objects.kinds.base import AGE, Native, NativeObject, Selector, between, default, one_of
from muster.objects.resources import Column, Resource
from muster.objects.status import Raw
from muster.objects.time import Timestamp
from muster.objects.view import ATOMIC, Int32, QuantityValue

CPU_TARGET_PERCENT: Final = 80
"""What is aimed at when no metric is given."""
METRIC_SOURCES: Final = {
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "External": "external",
}
"""The types of metrics, and the field in which each is described."""
_SELECT = one_of("Max", "Min", "Disabled")


class CrossVersionObjectReference(Native):
    """What is scaled, or described by a metric."""

    kind: Annotated[str, "Its kind."]
    name: Annotated[str, "Its name."]
    api_version: Annotated[str, "Its group and version."] = ""


class MetricIdentifier(Native):
    """Which metric."""

    name: Annotated[str, "Its name."]
    selector: Annotated[Selector | None, "Which of its series."] = None


class MetricTarget(Native):
    """What the metric should be; one of the three values, as the type says."""

    type: Annotated[str, one_of("Utilization", "Value", "AverageValue"), "How the target is given."]
    value: Annotated[QuantityValue | None, "The metric itself."] = None
    average_value: Annotated[QuantityValue | None, "The metric divided by the number of pods."] = None
    average_utilization: Annotated[Int32 | None, "Percent of what the pods request."] = None


class MetricValueStatus(Native):
    """What the metric is."""

    value: Annotated[QuantityValue | None, "The metric itself."] = None
    average_value: Annotated[QuantityValue | None, "The metric divided by the number of pods."] = None
    average_utilization: Annotated[Int32 | None, "Percent of what the pods request."] = None


class ResourceMetricSource(Native):
    """Use of a resource by the pods."""

    name: Annotated[str, "The resource."]
    target: Annotated[MetricTarget, "What it should be."]


class ContainerResourceMetricSource(Native):
    """Use of a resource by one container of each pod."""

    name: Annotated[str, "The resource."]
    target: Annotated[MetricTarget, "What it should be."]
    container: Annotated[str, "The container."]


class PodsMetricSource(Native):
    """A metric of each pod."""

    metric: Annotated[MetricIdentifier, "Which metric."]
    target: Annotated[MetricTarget, "What it should be on average."]


class ObjectMetricSource(Native):
    """A metric of one object."""

    described_object: Annotated[CrossVersionObjectReference, "The object."]
    target: Annotated[MetricTarget, "What it should be."]
    metric: Annotated[MetricIdentifier, "Which metric."]


class ExternalMetricSource(Native):
    """A metric of no object of the cluster."""

    metric: Annotated[MetricIdentifier, "Which metric."]
    target: Annotated[MetricTarget, "What it should be."]


class MetricSpec(Native):
    """One metric that the number of pods follows."""

    type: Annotated[str, one_of("Object", "Pods", "Resource", "ContainerResource", "External"), "Which of the others is set."]
    object: Annotated[ObjectMetricSource | None, "A metric of one object."] = None
    pods: Annotated[PodsMetricSource | None, "A metric of each pod."] = None
    resource: Annotated[ResourceMetricSource | None, "Use of a resource by the pods."] = None
    container_resource: Annotated[ContainerResourceMetricSource | None, "Use by one container of each."] = None
    external: Annotated[ExternalMetricSource | None, "A metric from outside."] = None


class HPAScalingPolicy(Native):
    """How many pods may change within a time."""

    type: Annotated[str, one_of("Pods", "Percent"), "Unit of the value."]
    value: Annotated[int, between(1), "How many."]
    period_seconds: Annotated[int, between(1, 1800), "Within which time, in seconds."]


class HPAScalingRules(Native):
    """How fast it may go in one direction."""

    stabilization_window_seconds: Annotated[int | None, between(0, 3600), "How far back wishes are looked at, in seconds."] = (
        None
    )
    select_policy: Annotated[str | None, _SELECT, "Which of the policies counts."] = None
    policies: Annotated[list[HPAScalingPolicy], ATOMIC, "How many pods may change within a time."] = []
    tolerance: Annotated[QuantityValue | None, "How far from the target is near enough, as a share."] = None


class HorizontalPodAutoscalerBehavior(Native):
    """How fast it may go."""

    scale_up: Annotated[HPAScalingRules | None, "To more pods."] = None
    scale_down: Annotated[HPAScalingRules | None, "To fewer pods."] = None


class HorizontalPodAutoscalerSpec(Native):
    """What is scaled, between which bounds, by which metrics."""

    scale_target_ref: Annotated[CrossVersionObjectReference, "What is scaled."]
    max_replicas: Annotated[Int32, "No more pods than this."]
    min_replicas: Annotated[Int32 | None, default(1), "No fewer pods than this."] = None
    metrics: Annotated[list[MetricSpec], ATOMIC, "What the number of pods follows: the largest of their answers."] = []
    behavior: Annotated[HorizontalPodAutoscalerBehavior | None, "How fast it may go."] = None


class ResourceMetricStatus(Native):
    """Use of a resource by the pods now."""

    name: Annotated[str, "The resource."]
    current: Annotated[MetricValueStatus, "What it is."]


class ContainerResourceMetricStatus(Native):
    """Use of a resource by one container of each pod now."""

    name: Annotated[str, "The resource."]
    current: Annotated[MetricValueStatus, "What it is."]
    container: Annotated[str, "The container."]


class PodsMetricStatus(Native):
    """A metric of each pod now."""

    metric: Annotated[MetricIdentifier, "Which metric."]
    current: Annotated[MetricValueStatus, "What it is."]


class ObjectMetricStatus(Native):
    """A metric of one object now."""

    metric: Annotated[MetricIdentifier, "Which metric."]
    current: Annotated[MetricValueStatus, "What it is."]
    described_object: Annotated[CrossVersionObjectReference, "The object."]


class ExternalMetricStatus(Native):
    """A metric from outside now."""

    metric: Annotated[MetricIdentifier, "Which metric."]
    current: Annotated[MetricValueStatus, "What it is."]


class MetricStatus(Native):
    """What one metric is now."""

    type: Annotated[str, "Which of the others is set."]
    object: Annotated[ObjectMetricStatus | None, "A metric of one object."] = None
    pods: Annotated[PodsMetricStatus | None, "A metric of each pod."] = None
    resource: Annotated[ResourceMetricStatus | None, "Use of a resource by the pods."] = None
    container_resource: Annotated[ContainerResourceMetricStatus | None, "Use by one container of each."] = None
    external: Annotated[ExternalMetricStatus | None, "A metric from outside."] = None


class HorizontalPodAutoscalerStatus(Native):
    """What it has done."""

    desired_replicas: Annotated[Int32, "How many pods it last asked for."] = 0
    current_replicas: Annotated[Int32, "How many pods it last saw."] = 0
    observed_generation: Annotated[int | None, "The generation that this speaks of."] = None
    last_scale_time: Annotated[Timestamp | None, "When it last changed the number."] = None
    current_metrics: Annotated[list[MetricStatus], ATOMIC, "What the metrics were."] = []
    conditions: Annotated[Conditions, "Facts about it."] = []


class HorizontalPodAutoscaler(NativeObject):
    """How many pods something should have, by what they use."""

    spec: Annotated[HorizontalPodAutoscalerSpec | None, "What is scaled, and how."] = None
    status: Annotated[HorizontalPodAutoscalerStatus | None, "What it has done."] = None


def fill_autoscaler(raw: Raw) -> None:
    """The metric that is followed when none is given, and the speeds that are left open once one of them is given."""
    spec = raw.get("spec")
    if not isinstance(spec, dict):
        return
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": CPU_TARGET_PERCENT}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    behavior = spec.get("behavior")
    if isinstance(behavior, dict):
        for word, policies in (("scaleUp", [("Pods", 4), ("Percent", 100)]), ("scaleDown", [("Percent", 100)])):
            rules = behavior.get(word)
            if rules is None:
                rules = behavior[word] = {}
            if isinstance(rules, dict):
                _fill_rules(rules, policies, 0 if word == "scaleUp" else None)


def _fill_rules(rules: dict[str, Any], policies: list[tuple[str, int]], window_s: int | None) -> None:
    rules.setdefault("selectPolicy", "Max")
    if window_s is not None:
        rules.setdefault("stabilizationWindowSeconds", window_s)
    if rules.get("policies") is None:
        rules["policies"] = [{"type": kind, "value": value, "periodSeconds": 15} for kind, value in policies]


AUTOSCALER: Final = Resource(
    group="autoscaling",
    version="v2",
    kind="HorizontalPodAutoscaler",
    plural="horizontalpodautoscalers",
    short_names=("hpa",),
    categories=("all",),
    subresources=frozenset({"status"}),
    view=HorizontalPodAutoscaler,
    columns=(
        Column(name="Reference", path=".spec.scaleTargetRef.name"),
        Column(name="Targets", path=".spec.metrics"),
        Column(name="MinPods", path=".spec.minReplicas"),
        Column(name="MaxPods", path=".spec.maxReplicas", type="integer"),
        Column(name="Replicas", path=".status.currentReplicas", type="integer"),
        AGE,
    ),
)

RESOURCES: tuple[Resource, ...] = (AUTOSCALER,)
