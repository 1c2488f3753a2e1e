"""HorizontalPodAutoscalers in `autoscaling/v1` and in the version that knows all metrics: one object, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from muster.objects.catalog import CATALOG
from muster.objects.resources import Resource
from muster.objects.status import Conflict, Invalid, Raw
from muster.store.contract import PatchType, Store, WriteOptions
from tests.store.conformance.support import watching

_V1 = CATALOG.by_plural("autoscaling", "v1", "horizontalpodautoscalers")
_V2 = CATALOG.by_kind("autoscaling", "HorizontalPodAutoscaler")
_PREFIX = "autoscaling.alpha.kubernetes.io/"

_REFERENCE = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "shop"}


def _cpu(percent: int) -> Raw:
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


_CPU = _cpu(50)
_METRICS: list[Raw] = [
    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 70}}},
    {
        "type": "Pods",
        "pods": {
            "metric": {"name": "hits", "selector": {"matchLabels": {"a": "b"}}},
            "target": {"type": "AverageValue", "averageValue": "10"},
        },
    },
    {
        "type": "Object",
        "object": {"describedObject": _REFERENCE, "metric": {"name": "m"}, "target": {"type": "Value", "value": "5"}},
    },
    {
        "type": "External",
        "external": {
            "metric": {"name": "queue", "selector": {"matchLabels": {"q": "1"}}},
            "target": {"type": "AverageValue", "averageValue": "30"},
        },
    },
    {"type": "External", "external": {"metric": {"name": "other"}, "target": {"type": "Value", "value": "3"}}},
]


async def versions(store: Store) -> tuple[Resource, Resource]:
    """`v1` and the newest that this server has; `v2` and `v2beta2` have the same shape."""
    newest = "v2" if await store.minor_version() >= 23 else "v2beta2"
    assert _V1 is not None
    return _V1, msgspec.structs.replace(_V2, version=newest)


def autoscaler(version: str, **spec: Any) -> Raw:
    return {
        "apiVersion": f"autoscaling/{version}",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "a"},
        "spec": {"scaleTargetRef": _REFERENCE, "maxReplicas": 3, **spec},
    }


def notes(raw: Raw) -> Raw:
    """What `v1` keeps in annotations, decoded."""
    found = raw["metadata"].get("annotations") or {}
    return {name.removeprefix(_PREFIX): json.loads(text) for name, text in found.items() if name.startswith(_PREFIX)}


async def test_the_percentage_is_a_metric(store: Store, namespace: str) -> None:
    one, two = await versions(store)
    made = await store.create(one, autoscaler("v1", targetCPUUtilizationPercentage=50), namespace)
    assert (made["apiVersion"], made["spec"]["targetCPUUtilizationPercentage"]) == ("autoscaling/v1", 50)
    seen = await store.get(two, "a", namespace)
    assert (seen["apiVersion"], seen["spec"]["metrics"]) == (two.api_version, [_CPU])
    assert "targetCPUUtilizationPercentage" not in seen["spec"]
    await store.patch(two, "a", {"spec": {"metrics": [_cpu(70)]}}, namespace)
    assert (await store.get(one, "a", namespace))["spec"]["targetCPUUtilizationPercentage"] == 70


async def test_without_a_percentage_there_is_the_usual_one(store: Store, namespace: str) -> None:
    one, two = await versions(store)
    made = await store.create(one, autoscaler("v1"), namespace)
    assert made["spec"] == {**autoscaler("v1")["spec"], "minReplicas": 1, "targetCPUUtilizationPercentage": 80}
    (metric,) = (await store.get(two, "a", namespace))["spec"]["metrics"]
    assert metric["resource"]["target"] == {"type": "Utilization", "averageUtilization": 80}


async def test_other_metrics_travel_in_an_annotation(store: Store, namespace: str) -> None:
    one, two = await versions(store)
    rules = {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}], "selectPolicy": "Min"}
    behavior = {"scaleDown": {**rules, "stabilizationWindowSeconds": 100}}
    made = await store.create(two, autoscaler(two.version, metrics=[*_METRICS, _CPU], behavior=behavior), namespace)
    seen = await store.get(one, "a", namespace)
    assert seen["spec"] == {**autoscaler("v1")["spec"], "minReplicas": 1, "targetCPUUtilizationPercentage": 50}
    assert notes(seen)["metrics"] == [
        {"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}},
        {"type": "Resource", "resource": {"name": "memory", "targetAverageUtilization": 70}},
        {
            "type": "Pods",
            "pods": {"metricName": "hits", "targetAverageValue": "10", "selector": {"matchLabels": {"a": "b"}}},
        },
        {"type": "Object", "object": {"target": _REFERENCE, "metricName": "m", "targetValue": "5"}},
        {
            "type": "External",
            "external": {
                "metricName": "queue",
                "metricSelector": {"matchLabels": {"q": "1"}},
                "targetAverageValue": "30",
            },
        },
        {"type": "External", "external": {"metricName": "other", "targetValue": "3"}},
    ]
    # Kubernetes writes this one with capitals.
    assert notes(seen)["behavior"]["ScaleDown"] == {
        "StabilizationWindowSeconds": 100,
        "SelectPolicy": "Min",
        "Policies": [{"Type": "Pods", "Value": 1, "PeriodSeconds": 60}],
    }
    # What is sent back as it was read is no change.
    assert (await store.update(one, seen, namespace))["metadata"]["resourceVersion"] == seen["metadata"]["resourceVersion"]
    changed = await store.patch(one, "a", {"spec": {"targetCPUUtilizationPercentage": 60}}, namespace)
    assert notes(changed) == notes(seen)
    after = await store.get(two, "a", namespace)
    assert after["spec"]["metrics"][:-1] == made["spec"]["metrics"][:-1]
    assert after["spec"]["behavior"] == made["spec"]["behavior"]
    assert not after["metadata"].get("annotations")
    await store.patch(one, "a", {"metadata": {"annotations": {f"{_PREFIX}metrics": None}}}, namespace)
    assert len((await store.get(two, "a", namespace))["spec"]["metrics"]) == 1


async def test_the_status_travels_too_and_is_not_for_others_to_write(store: Store, namespace: str) -> None:
    one, two = await versions(store)
    await store.create(two, autoscaler(two.version, metrics=[_CPU]), namespace)
    now = {"averageUtilization": 40, "averageValue": "400m"}
    condition = {
        "type": "AbleToScale",
        "status": "True",
        "reason": "ReadyForNewScale",
        "message": "fine",
        "lastTransitionTime": "2026-05-04T10:00:00Z",
    }
    status = {
        "currentReplicas": 2,
        "desiredReplicas": 3,
        "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": now}}],
        "conditions": [condition],
    }
    await store.patch(two, "a", {"status": status}, namespace, subresource="status")
    seen = await store.get(one, "a", namespace)
    assert seen["status"] == {"currentReplicas": 2, "desiredReplicas": 3, "currentCPUUtilizationPercentage": 40}
    (metric,) = notes(seen)["current-metrics"]
    assert metric == {
        "type": "Resource",
        "resource": {"name": "cpu", "currentAverageUtilization": 40, "currentAverageValue": "400m"},
    }
    assert notes(seen)["conditions"] == [condition]
    # The annotation is how the status is shown, not a way to write it.
    false = json.dumps([{**condition, "status": "False"}])
    await store.patch(one, "a", {"metadata": {"annotations": {f"{_PREFIX}conditions": false, "x": "y"}}}, namespace)
    after = await store.get(two, "a", namespace)
    assert [one["status"] for one in after["status"]["conditions"]] == ["True"]
    assert after["metadata"]["annotations"] == {"x": "y"}
    await store.patch(one, "a", {"status": {"desiredReplicas": 1}}, namespace, subresource="status")
    after = await store.get(two, "a", namespace)
    assert (after["status"]["desiredReplicas"], after["status"]["currentMetrics"]) == (1, status["currentMetrics"])


async def test_watchers_of_both_see_it_in_their_version(store: Store, namespace: str) -> None:
    one, two = await versions(store)
    start = (await store.list(one, namespace)).resource_version
    await store.create(one, autoscaler("v1", targetCPUUtilizationPercentage=50), namespace)
    await store.patch(two, "a", {"spec": {"maxReplicas": 7}}, namespace)
    for resource, word in ((one, "targetCPUUtilizationPercentage"), (two, "metrics")):
        async with watching(store, resource, namespace, resource_version=start) as watch:
            events = await watch.take(2)
            assert [event.object["spec"]["maxReplicas"] for event in events] == [3, 7]
            assert all(word in event.object["spec"] for event in events)
        (item,) = (await store.list(resource, namespace)).items
        assert word in item["spec"]


async def test_who_set_what_holds_across_versions(store: Store, namespace: str) -> None:
    one, two = await versions(store)
    first, second = WriteOptions(field_manager="first"), WriteOptions(field_manager="second")
    await store.create(one, autoscaler("v1", targetCPUUtilizationPercentage=50), namespace, first)
    changed = await store.patch(two, "a", {"spec": {"metrics": _METRICS[:1]}}, namespace, second)
    managers = {entry["manager"]: entry for entry in changed["metadata"]["managedFields"]}
    assert managers["first"]["apiVersion"] == "autoscaling/v1"
    assert "f:targetCPUUtilizationPercentage" not in managers["first"]["fieldsV1"]["f:spec"]
    assert "f:maxReplicas" in managers["first"]["fieldsV1"]["f:spec"]
    assert managers["second"]["fieldsV1"] == {"f:spec": {"f:metrics": {}}}


async def test_applies_of_both_versions_meet_in_one_object(store: Store, namespace: str) -> None:
    one, two = await versions(store)
    first, second = WriteOptions(field_manager="first"), WriteOptions(field_manager="second")

    async def apply(resource: Resource, raw: Raw, options: WriteOptions) -> Raw:
        return await store.patch(resource, "a", raw, namespace, options, patch_type=PatchType.APPLY)

    await apply(one, autoscaler("v1", targetCPUUtilizationPercentage=50, minReplicas=2), first)
    head = {**autoscaler(two.version), "spec": {}}
    with pytest.raises(Conflict, match='conflict with "first"'):
        await apply(two, {**head, "spec": {"maxReplicas": 9}}, second)
    with pytest.raises(Conflict, match='conflict with "first"'):
        await apply(two, {**head, "spec": {"metrics": [_cpu(70)]}}, second)
    applied = await apply(two, {**head, "metadata": {"name": "a", "labels": {"x": "y"}}}, second)
    assert applied["spec"]["metrics"] == [_CPU]
    assert {entry["manager"] for entry in applied["metadata"]["managedFields"]} == {"first", "second"}
    # The first goes on in the other version: what it leaves out now and said before goes, though it said it in v1.
    after = await apply(two, autoscaler(two.version, metrics=[_CPU]), first)
    assert (after["spec"]["minReplicas"], after["metadata"]["labels"]) == (1, {"x": "y"})
    owners = {entry["manager"]: entry["apiVersion"] for entry in after["metadata"]["managedFields"]}
    assert owners == {"first": two.api_version, "second": two.api_version}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"targetCPUUtilizationPercentage": 0}, id="no percentage"),
        pytest.param({"minReplicas": 0}, id="none"),
        pytest.param({"maxReplicas": 0}, id="at most none"),
        pytest.param({"minReplicas": 5}, id="bounds the wrong way round"),
        pytest.param({"scaleTargetRef": {"kind": "Deployment"}}, id="nothing to scale"),
    ],
)
async def test_what_is_wrong_in_one_version_is_wrong_in_the_other(store: Store, namespace: str, spec: Raw) -> None:
    one, _ = await versions(store)
    with pytest.raises(Invalid):
        await store.create(one, autoscaler("v1", **spec), namespace)
