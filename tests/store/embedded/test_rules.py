"""What becomes of a client's object: pure, so the tables say it all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.catalog import CATALOG
from muster.objects.resources import Resource
from muster.objects.status import ApiError, BadRequest, Conflict, Forbidden, Invalid, NotFound, Raw
from muster.store.contract import Preconditions
from muster.store.embedded import rules
from tests.store.embedded.support import CONFIG_MAPS, DEPLOYMENTS, NODES, PODS, record

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(a=JSON, b=JSON)
def test_sameness_is_an_equivalence_finer_than_pythons(a: Any, b: Any) -> None:
    assert rules.same(a, a)
    assert rules.same(a, b) == rules.same(b, a)
    if rules.same(a, b):
        assert a == b


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        pytest.param({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, id="order of keys"),
        pytest.param([1, 2], [2, 1], False, id="order of a list"),
        pytest.param({"a": True}, {"a": 1}, False, id="true is not 1"),
        pytest.param({"a": 0}, {"a": False}, False, id="false is not 0"),
        pytest.param({"a": None}, {}, False, id="null is not absent"),
    ],
)
def test_sameness(a: Any, b: Any, same: bool) -> None:
    assert rules.same(a, b) is same


def test_conform_copies_what_will_be_changed() -> None:
    sent: Raw = {"metadata": {"name": "a", "labels": {}, "creationTimestamp": None, "managedFields": []}, "data": {"x": "y"}}
    raw = rules.conform(CONFIG_MAPS, sent)
    assert raw == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "managedFields": []},
        "data": {"x": "y"},
    }
    raw["metadata"]["uid"] = "set"
    raw["status"] = {}
    assert sent["metadata"].keys() == {"name", "labels", "creationTimestamp", "managedFields"}
    assert "status" not in sent


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param([], id="a list"),
        pytest.param({"kind": "Pod"}, id="another kind"),
        pytest.param({"apiVersion": "v2"}, id="another version"),
        pytest.param({"metadata": []}, id="metadata that is a list"),
    ],
)
def test_what_does_not_conform(obj: Any) -> None:
    with pytest.raises(BadRequest):
        rules.conform(CONFIG_MAPS, obj)


@pytest.mark.parametrize(
    ("resource", "given", "asked", "chosen"),
    [
        pytest.param(CONFIG_MAPS, None, "a", "a", id="the request's"),
        pytest.param(CONFIG_MAPS, "a", None, "a", id="the object's"),
        pytest.param(CONFIG_MAPS, "a", "a", "a", id="both"),
        pytest.param(CONFIG_MAPS, "a", "b", BadRequest, id="they differ"),
        pytest.param(CONFIG_MAPS, None, None, BadRequest, id="neither"),
        pytest.param(CONFIG_MAPS, 7, "a", BadRequest, id="a number"),
        pytest.param(NODES, None, None, "", id="none for a cluster-wide kind"),
        pytest.param(NODES, "a", None, BadRequest, id="one for a cluster-wide kind"),
        pytest.param(NODES, None, "a", BadRequest, id="one in the request for a cluster-wide kind"),
    ],
)
def test_namespace_of_a_write(resource: Any, given: Any, asked: str | None, chosen: str | type[ApiError]) -> None:
    raw: Raw = {"metadata": {} if given is None else {"namespace": given}}
    if isinstance(chosen, str):
        assert rules.check_namespace(resource, raw, asked) == chosen
        assert raw["metadata"].get("namespace", "") == chosen
    else:
        with pytest.raises(chosen):
            rules.check_namespace(resource, raw, asked)


@pytest.mark.parametrize(
    ("meta", "required", "refusal"),
    [
        pytest.param({"resourceVersion": "5"}, True, None, id="current"),
        pytest.param({"resourceVersion": "4"}, False, Conflict, id="stale"),
        pytest.param({"resourceVersion": "05"}, False, Conflict, id="nearly"),
        pytest.param({}, False, None, id="none, and none is needed"),
        pytest.param({}, True, Invalid, id="none, and one is needed"),
        pytest.param({"resourceVersion": 5}, False, BadRequest, id="a number"),
        pytest.param({"uid": "uid-a"}, False, None, id="its uid"),
        pytest.param({"uid": "other"}, False, Conflict, id="another uid"),
    ],
)
def test_versions(meta: Raw, required: bool, refusal: type[ApiError] | None) -> None:
    if refusal is None:
        rules.check_version(CONFIG_MAPS, {"metadata": meta}, record("a", 5), required=required)
    else:
        with pytest.raises(refusal):
            rules.check_version(CONFIG_MAPS, {"metadata": meta}, record("a", 5), required=required)


def test_preconditions() -> None:
    there = record("a", 5)
    for good in (None, Preconditions(), Preconditions(uid="uid-a"), Preconditions(uid="uid-a", resource_version="5")):
        rules.check_preconditions(CONFIG_MAPS, there, good)
    for bad in (Preconditions(uid="x"), Preconditions(resource_version="4")):
        with pytest.raises(Conflict, match=r"in the precondition \((x|4)\) does not match"):
            rules.check_preconditions(CONFIG_MAPS, there, bad)


def test_content_of_a_namespace() -> None:
    rules.check_content_allowed(CONFIG_MAPS, "a", record("n", 5), "n")
    with pytest.raises(NotFound, match='namespaces "n" not found'):
        rules.check_content_allowed(CONFIG_MAPS, "a", None, "n")
    with pytest.raises(Forbidden, match="because it is being terminated"):
        rules.check_content_allowed(CONFIG_MAPS, "a", record("n", 5, deletionTimestamp="2026-01-01T00:00:00Z"), "n")


def stored(**parts: Any) -> Raw:
    meta = {"name": "a", "uid": "u", "resourceVersion": "5", "creationTimestamp": "t", "generation": 3}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {"replicas": 1},
        "status": {"x": 1},
        **parts,
    }


def test_a_replacement_keeps_what_is_the_stores() -> None:
    sent: Raw = {
        "metadata": {"name": "a", "generation": 9, "deletionTimestamp": "now", "uid": "u"},
        "spec": {},
        "status": {"x": 2},
    }
    result = rules.replace(DEPLOYMENTS, stored(), rules.conform(DEPLOYMENTS, sent))
    assert result["metadata"] == stored()["metadata"]
    assert result["spec"] == {}
    assert result["status"] == {"x": 1}


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        pytest.param(CATALOG.by_kind("muster.dev", "Queue"), {"labels", "annotations", "generation"}, id="custom"),
        pytest.param(DEPLOYMENTS, {"labels", "generation"}, id="Deployment"),
        pytest.param(CATALOG.by_kind("apps", "ReplicaSet"), {"generation"}, id="ReplicaSet"),
    ],
)
def test_a_status_write_keeps_the_rest(kind: Resource, kept: set[str]) -> None:
    before = stored()
    theirs = {"labels": {"l": "1"}, "annotations": {"a": "1"}, "generation": 9}
    sent = rules.conform(kind, {"metadata": {**before["metadata"], **theirs}, "spec": {}, "status": {"x": 2}})
    result = rules.replace_status(kind, before, sent)
    assert {**result, "metadata": {}} == {**stored(status={"x": 2}), "metadata": {}}
    taken = {field: value for field, value in theirs.items() if field not in kept}
    assert result["metadata"] == {**stored()["metadata"], **taken}
    assert before == stored()
    del sent["status"]
    assert "status" not in rules.replace_status(kind, before, sent)


@pytest.mark.parametrize(
    ("resource", "change", "generation"),
    [
        pytest.param(DEPLOYMENTS, {}, 3, id="nothing"),
        pytest.param(DEPLOYMENTS, {"status": {"x": 2}}, 3, id="status"),
        pytest.param(DEPLOYMENTS, {"spec": {"replicas": 2}}, 4, id="spec"),
        pytest.param(DEPLOYMENTS, {"spec": {"replicas": True}}, 4, id="a type"),
        pytest.param(DEPLOYMENTS, {"other": 1}, 4, id="a field besides spec"),
        pytest.param(CONFIG_MAPS, {"spec": {"replicas": 2}}, 3, id="a kind whose generation nobody counts"),
    ],
)
def test_generation(resource: Any, change: Raw, generation: int) -> None:
    after = stored(**change)
    after["metadata"] = {**after["metadata"], "labels": {"l": "1"}}
    rules.advance_generation(resource, stored(), after)
    assert after["metadata"]["generation"] == generation


def test_the_generation_of_a_deployment_counts_annotations_but_for_those_that_come_with_its_status() -> None:
    after = stored()
    after["metadata"] = {**after["metadata"], "annotations": {"a": "1"}}
    rules.advance_generation(DEPLOYMENTS, stored(), after, is_status=True)
    assert after["metadata"]["generation"] == 3
    rules.advance_generation(DEPLOYMENTS, stored(), after)
    assert after["metadata"]["generation"] == 4


def test_times_of_managers_alone_are_no_change() -> None:
    def managed(time: str, manager: str = "m") -> Raw:
        raw = stored()
        raw["metadata"] = {**raw["metadata"], "managedFields": [{"manager": manager, "time": time}]}
        return raw

    assert rules.is_unchanged(managed("t1"), managed("t2"))
    assert not rules.is_unchanged(managed("t1"), managed("t1", "other"))
    assert not rules.is_unchanged(stored(), stored(spec={"replicas": True}))
    assert not rules.is_unchanged(stored(), managed("t1"))


def test_a_new_object_gets_its_own() -> None:
    raw = rules.conform(
        PODS, {"metadata": {"name": "a", "uid": "sent", "deletionTimestamp": "x"}, "status": {"phase": "Running"}}
    )
    rules.stamp_new(PODS, raw, uid="u", now_text="t", drop_status=True)
    assert raw["metadata"].pop("generation", 1) == 1
    assert raw["metadata"] == {"name": "a", "uid": "u", "creationTimestamp": "t"}
    assert "status" not in raw
    with pytest.raises(BadRequest, match="resourceVersion should not be set"):
        rules.stamp_new(PODS, {"metadata": {"resourceVersion": "7"}}, uid="u", now_text="t", drop_status=True)
