from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.counts import examples
from tests.objects.native.case import Case, Change, pod, whole
from tests.objects.native.tables import CASES, CHANGES, DEFAULTED, EMPTY, POINTERS, WRITTEN_OTHERWISE

from muster.objects.catalog import CATALOG
from muster.objects.kinds.defaults import apply_defaults
from muster.objects.schema import schema_of
from muster.objects.status import Cause, Raw
from muster.objects.structural import Structural
from muster.objects.validation import validate_object


@functools.cache
def structural(group: str, kind: str) -> Structural:
    view = CATALOG.by_kind(group, kind).view
    assert view is not None
    return Structural(schema_of(view))


def admitted(group: str, kind: str, raw: Raw, old: Raw | None = None) -> tuple[Raw, list[Cause]]:
    """`raw` the way a server takes it: defaults, schema, rules."""
    resource = CATALOG.by_kind(group, kind)
    schema = structural(group, kind)
    full = apply_defaults(resource, schema.default(raw), old)
    return full, schema.validate(full) or validate_object(resource, full, old)


def key(case: Case | Change) -> str:
    return f"{case.kind}: {case.id}"


@pytest.mark.parametrize("case", CASES, ids=key)
def test_new_objects(case: Case) -> None:
    _, causes = admitted(case.group, case.kind, whole(case.group, case.kind, case.body))
    fields = [cause.field for cause in causes]
    assert (case.refused in fields) if case.refused else fields == [], causes


@pytest.mark.parametrize("case", CHANGES, ids=key)
def test_changes(case: Change) -> None:
    before, causes = admitted(case.group, case.kind, whole(case.group, case.kind, case.before))
    assert causes == []
    _, causes = admitted(case.group, case.kind, whole(case.group, case.kind, case.after), before)
    fields = [cause.field for cause in causes]
    assert (case.refused in fields) if case.refused else fields == [], causes


@pytest.mark.parametrize(("group", "kind", "body"), EMPTY, ids=[f"{kind}-{i}" for i, (_, kind, _) in enumerate(EMPTY)])
def test_an_empty_text_is_an_unset_one(group: str, kind: str, body: Raw) -> None:
    full, causes = admitted(group, kind, whole(group, kind, body))
    assert causes == []
    assert full == admitted(group, kind, without_empty(whole(group, kind, body)))[0]


def without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_empty(inner) for key, inner in value.items() if inner != ""}
    return [without_empty(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("group", "kind", "body"), POINTERS, ids=[kind for _, kind, _ in POINTERS])
def test_an_empty_text_behind_a_pointer_is_a_wrong_value(group: str, kind: str, body: Raw) -> None:
    assert admitted(group, kind, whole(group, kind, body))[1]


@pytest.mark.parametrize(("group", "kind", "body"), WRITTEN_OTHERWISE)
def test_quantities_are_kept_in_one_spelling(group: str, kind: str, body: Raw) -> None:
    full, causes = admitted(group, kind, whole(group, kind, body))
    assert causes == []
    assert structural(group, kind).default(full) is full


def test_how_the_amounts_of_a_pod_are_kept() -> None:
    resources = {"requests": {"cpu": 0.5, "memory": "1024Mi"}, "limits": {"cpu": 2, "memory": "2.5Gi"}}
    full, causes = admitted("", "Pod", whole("", "Pod", pod(containers=[{"name": "c", "image": "x", "resources": resources}])))
    assert causes == []
    assert full["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "500m", "memory": "1Gi"},
        "limits": {"cpu": "2", "memory": "2560Mi"},
    }


def test_the_amounts_of_a_node_are_texts() -> None:
    amounts = {"cpu": 4, "memory": "16384Mi", "pods": 110}
    full, causes = admitted("", "Node", whole("", "Node", {"status": {"capacity": amounts, "allocatable": amounts}}))
    assert causes == []
    expected = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    assert (full["status"]["capacity"], full["status"]["allocatable"]) == (expected, expected)


def test_a_custom_kind_keeps_its_amounts_as_they_were_sent() -> None:
    view = CATALOG.by_kind("slo.koordinator.sh", "NodeMetric").view
    assert view is not None
    raw = {"status": {"nodeMetric": {"nodeUsage": {"resources": {"cpu": 0.5, "memory": "1024Mi"}}}}}
    filled = Structural(schema_of(view)).default(raw)
    assert filled["status"]["nodeMetric"]["nodeUsage"]["resources"] == {"cpu": 0.5, "memory": "1024Mi"}


def test_everything_wrong_is_reported_at_once() -> None:
    body = {
        "metadata": {"labels": {"a": "b c"}},
        "spec": {"containers": [{"name": "A", "image": "", "resources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}]},
    }
    _, causes = admitted("", "Pod", whole("", "Pod", body))
    assert {cause.field for cause in causes} == {
        "metadata.labels",
        "spec.containers[0].name",
        "spec.containers[0].image",
        "spec.containers[0].resources.requests",
    }


def test_status_writes_are_not_held_against_the_spec() -> None:
    resource = CATALOG.by_kind("", "Pod")
    before, _ = admitted("", "Pod", whole("", "Pod", pod()))
    after = {**before, "spec": {}, "status": {"phase": "Running"}}
    assert validate_object(resource, after, before, "status") == []
    assert validate_object(resource, after, before) != []


def test_finalizers_may_not_be_added_while_deleting() -> None:
    resource = CATALOG.by_kind("", "ConfigMap")
    old = {"metadata": {"name": "a", "deletionTimestamp": "2026-11-15T20:05:41Z", "finalizers": ["a.b/c"]}}
    new = {"metadata": {"name": "a", "deletionTimestamp": "2026-11-15T20:05:41Z", "finalizers": ["a.b/c", "a.b/d"]}}
    assert [cause.field for cause in validate_object(resource, new, old)] == ["metadata.finalizers"]
    assert validate_object(resource, {"metadata": {"name": "a", "finalizers": []}}, old) == []


def test_reviews_need_no_name() -> None:
    resource = CATALOG.by_kind("authorization.k8s.io", "SelfSubjectAccessReview")
    review: Raw = {"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    assert validate_object(resource, review) == []
    assert [cause.field for cause in validate_object(resource, {**review, "spec": {}})] == ["spec.resourceAttributes"]


def test_custom_kinds_have_the_rules_for_metadata() -> None:
    resource = CATALOG.custom[0]
    assert [cause.field for cause in validate_object(resource, {"metadata": {"name": "No"}})] == ["metadata.name"]


odd: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "None", "a b", "1"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "spec", "a", "kind", "type"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def mutated(raw: Any, draw: st.DrawFn) -> Any:
    """`raw` with one value somewhere inside replaced by anything."""
    if isinstance(raw, dict) and raw and draw(st.booleans()):
        at = draw(st.sampled_from(sorted(raw)))
        return {**raw, at: mutated(raw[at], draw)}
    if isinstance(raw, list) and raw and draw(st.booleans()):
        index = draw(st.integers(0, len(raw) - 1))
        return [mutated(item, draw) if i == index else item for i, item in enumerate(raw)]
    return draw(odd)


ANY = [*CASES, *(Case(f"default {i}", group, kind, body) for i, (group, kind, body) in enumerate(DEFAULTED))]


@st.composite
def broken(draw: st.DrawFn) -> tuple[Case, Raw]:
    case = draw(st.sampled_from(ANY))
    raw = mutated(whole(case.group, case.kind, case.body), draw)
    return case, raw if isinstance(raw, dict) else {}


@given(broken())
@settings(max_examples=examples(100))
def test_no_input_crashes_a_rule_or_a_default(given_case: tuple[Case, Raw]) -> None:
    case, raw = given_case
    resource = CATALOG.by_kind(case.group, case.kind)
    kept = msgspec.json.encode(raw)
    once = apply_defaults(resource, structural(case.group, case.kind).default(raw))
    assert apply_defaults(resource, structural(case.group, case.kind).default(once)) == once
    validate_object(resource, once)
    validate_object(resource, once, once)
    validate_object(resource, whole(case.group, case.kind, case.body), once)
    assert msgspec.json.encode(raw) == kept
