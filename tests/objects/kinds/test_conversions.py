"""Kinds that are served in a version that no object is kept in: there and back nothing is lost, whatever is in the object."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.catalog import CATALOG
from muster.objects.kinds.autoscalers_v1 import BEHAVIOR, CONDITIONS, CURRENT_METRICS, METRICS, from_v2, to_v2
from muster.objects.kinds.events import renamed
from muster.objects.resources import Resource
from muster.objects.status import Raw

CONVERTED = [resource for resource in CATALOG if resource.conversion is not None]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_NAMES = st.sampled_from(
    [
        *("kind", "metadata", "annotations", "spec", "status", "metrics", "behavior", "conditions", "currentMetrics", "type"),
        *("resource", "object", "pods", "external", "target", "current", "name", "cpu", "averageUtilization", "message"),
        *("targetCPUUtilizationPercentage", "note", "involvedObject", "regarding", METRICS, BEHAVIOR, CONDITIONS),
        CURRENT_METRICS,
    ]
)
_TEXTS = st.sampled_from(
    ["Resource", "Pods", "Object", "External", "cpu", "Utilization", "[]", '[{"type":"Pods","pods":{}}]', "{"]
)
_ODD = st.recursive(
    _JSON | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=12,
)


def test_there_are_some() -> None:
    assert {resource.api_version for resource in CONVERTED} == {"events.k8s.io/v1", "autoscaling/v1"}


@pytest.mark.parametrize("resource", CONVERTED, ids=lambda resource: resource.api_version)
@given(raw=st.dictionaries(_NAMES, _ODD, max_size=5))
def test_any_object_is_taken_and_left_as_it_is(resource: Resource, raw: Raw) -> None:
    assert resource.conversion is not None
    for convert in (resource.conversion.from_stored, resource.conversion.to_stored):
        before = copy.deepcopy(raw)
        once = convert(raw)
        assert raw == before
        msgspec.json.encode(once)


@given(st.dictionaries(_NAMES, _ODD, max_size=8))
def test_an_event_comes_back_as_it_was(raw: Raw) -> None:
    assert renamed(renamed(raw)) == raw


_amounts = st.sampled_from(["10", "500m", "1Gi"])
_selectors = st.none() | st.just({"matchLabels": {"a": "b"}})


def _without_none(raw: Raw) -> Raw:
    return {name: value for name, value in raw.items() if value is not None}


@st.composite
def metrics(draw: st.DrawFn) -> Raw:
    """Any metric that the rules of `v2` let pass."""
    kind = draw(st.sampled_from(["Resource", "ContainerResource", "Pods", "Object", "External"]))
    types = {"Pods": ["AverageValue"], "Object": ["Value", "AverageValue"], "External": ["Value", "AverageValue"]}
    type_ = draw(st.sampled_from(types.get(kind, ["Utilization", "AverageValue"])))
    word = {"Utilization": "averageUtilization", "AverageValue": "averageValue", "Value": "value"}[type_]
    target = {"type": type_, word: draw(st.integers(1, 99) if type_ == "Utilization" else _amounts)}
    identifier = _without_none({"name": "m", "selector": draw(_selectors)})
    source: Raw = {"target": target}
    if kind in ("Resource", "ContainerResource"):
        source["name"] = draw(st.sampled_from(["cpu", "memory"]))
        source |= {"container": "c"} if kind == "ContainerResource" else {}
    else:
        source["metric"] = identifier
        source |= {"describedObject": {"kind": "Service", "name": "s"}} if kind == "Object" else {}
    return {"type": kind, kind[0].lower() + kind[1:]: source}


@given(st.lists(metrics(), min_size=1, max_size=4))
def test_every_metric_comes_back(wanted: list[Raw]) -> None:
    raw: Raw = {"metadata": {"name": "a"}, "spec": {"maxReplicas": 3, "minReplicas": 1, "metrics": wanted}}
    back = to_v2(from_v2(raw))
    assert sorted(map(repr, map(_ordered, back["spec"]["metrics"]))) == sorted(map(repr, map(_ordered, wanted)))
    assert back["metadata"] == raw["metadata"]
    assert to_v2(from_v2(back)) == back, "and stays in its order from then on"


def test_of_two_percentages_of_cpu_each_keeps_its_place() -> None:
    def percent(number: int) -> Raw:
        target = {"type": "Utilization", "averageUtilization": number}
        return {"type": "Resource", "resource": {"name": "cpu", "target": target}}

    raw: Raw = {"metadata": {"name": "a"}, "spec": {"maxReplicas": 3, "metrics": [percent(1), percent(2)]}}
    assert to_v2(from_v2(raw))["spec"]["metrics"] == raw["spec"]["metrics"]


def _ordered(value: Any) -> Any:
    return {name: _ordered(value[name]) for name in sorted(value)} if isinstance(value, dict) else value


@pytest.mark.parametrize("text", ["{", "[1]", "7", '"text"', "[{}]", '[{"type":[]}]', "null", "[" * 5000])
def test_annotations_that_make_no_sense_do_no_harm(text: str) -> None:
    notes = dict.fromkeys((METRICS, BEHAVIOR, CURRENT_METRICS, CONDITIONS), text)
    raw: Raw = {"metadata": {"name": "a", "annotations": {**notes, "own": "kept"}}, "spec": {"maxReplicas": 3}}
    back = to_v2(raw)
    assert back["metadata"]["annotations"] == {"own": "kept"}
    assert back["spec"]["metrics"], "the usual one, where there is no other"


def test_nothing_is_made_up_for_v1() -> None:
    raw: Raw = {"metadata": {"name": "a", "annotations": {METRICS: "[]"}}, "spec": {"maxReplicas": 3}}
    assert from_v2(raw) == {"metadata": {"name": "a"}, "spec": {"maxReplicas": 3}}
