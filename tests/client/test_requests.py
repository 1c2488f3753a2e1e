from __future__ import annotations

import datetime
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client import requests
from muster.objects.requests import DEFAULT_WRITE, PatchType, Preconditions, WriteOptions
from muster.objects.resources import Resource
from muster.objects.status import BadRequest

PODS = Resource(group="", version="v1", kind="Pod", plural="pods")
ROLES = Resource(group="rbac.authorization.k8s.io", version="v1", kind="ClusterRole", plural="clusterroles", namespaced=False)


@pytest.mark.parametrize(
    ("resource", "name", "namespace", "subresource", "path"),
    [
        (PODS, "a", "n", "", "/api/v1/namespaces/n/pods/a"),
        (PODS, "a", "n", "status", "/api/v1/namespaces/n/pods/a/status"),
        (ROLES, "system:node", None, "", "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node"),
        (ROLES, "x", "ignored", "", "/apis/rbac.authorization.k8s.io/v1/clusterroles/x"),
        (ROLES, "a b?c#d", None, "", "/apis/rbac.authorization.k8s.io/v1/clusterroles/a%20b%3Fc%23d"),
    ],
)
def test_object_path(resource: Resource, name: str, namespace: str | None, subresource: str, path: str) -> None:
    assert requests.object_path(resource, name, namespace, subresource) == path


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a%2fb", "../../secrets", "\ud800"])
def test_names_that_would_address_something_else(name: str) -> None:
    with pytest.raises(BadRequest, match="cannot be part of a path"):
        requests.object_path(PODS, name, "n")
    with pytest.raises(BadRequest):
        requests.object_path(PODS, "a", name)


@given(st.text(st.characters(), max_size=30), st.text(st.characters(), max_size=30))
def test_a_path_always_has_the_same_number_of_segments(name: str, namespace: str) -> None:
    try:
        path = requests.object_path(PODS, name, namespace, "status")
    except BadRequest:
        return
    parts = path.split("/")
    assert len(parts) == 8
    assert (unquote(parts[4]), unquote(parts[6])) == (namespace, name)
    assert not set("?# ") & set(path)


@pytest.mark.parametrize("namespace", [None, ""])
def test_namespaced_kinds_need_a_namespace(namespace: str | None) -> None:
    with pytest.raises(BadRequest, match="pods live in namespaces"):
        requests.object_path(PODS, "a", namespace)
    with pytest.raises(BadRequest, match="pods live in namespaces"):
        requests.collection_path(PODS, namespace, is_write=True)


def test_an_empty_namespace_does_not_mean_all() -> None:
    assert requests.collection_path(PODS, None) == "/api/v1/pods"
    with pytest.raises(BadRequest):
        requests.collection_path(PODS, "")


@pytest.mark.parametrize(
    ("options", "is_apply", "params"),
    [
        (DEFAULT_WRITE, False, {"fieldManager": "muster", "fieldValidation": "Ignore"}),
        (WriteOptions(field_manager="", dry_run=True), False, {"fieldValidation": "Ignore", "dryRun": "All"}),
        (WriteOptions(force=True), False, {"fieldManager": "muster", "fieldValidation": "Ignore"}),
        (WriteOptions(force=True), True, {"fieldManager": "muster", "fieldValidation": "Ignore", "force": "true"}),
        (WriteOptions(field_validation="Strict"), False, {"fieldManager": "muster", "fieldValidation": "Strict"}),
    ],
)
def test_write_params(options: WriteOptions, is_apply: bool, params: dict[str, str]) -> None:
    assert dict(requests.write_params(options, is_apply=is_apply)) == params


@pytest.mark.parametrize(
    ("patch", "patch_type", "is_fine"),
    [
        ({"a": 1}, PatchType.MERGE, True),
        ({"a": 1}, PatchType.STRATEGIC, True),
        ({"a": 1}, PatchType.APPLY, True),
        ([{"op": "remove", "path": "/a"}], PatchType.JSON, True),
        ({"a": 1}, PatchType.JSON, False),
        ([{"a": 1}], PatchType.MERGE, False),
    ],
)
def test_patches_have_the_shape_of_their_type(patch: Any, patch_type: PatchType, is_fine: bool) -> None:
    if is_fine:
        request = requests.patch_request("/x", patch, patch_type, DEFAULT_WRITE)
        assert request.content_type == patch_type.value
    else:
        with pytest.raises(BadRequest, match="PATCH /x"):
            requests.patch_request("/x", patch, patch_type, DEFAULT_WRITE)


def test_delete_options() -> None:
    assert requests.delete_options() == {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert requests.delete_options(
        propagation="Orphan", grace_period_s=0, preconditions=Preconditions(uid="u", resource_version="7"), dry_run=True
    ) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Orphan",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "dryRun": ["All"],
    }
    assert "preconditions" not in requests.delete_options(preconditions=Preconditions())


def test_type_is_filled_in_where_it_is_missing() -> None:
    typed = {"apiVersion": "v1", "kind": "Pod", "metadata": {}}
    assert requests.with_type({"metadata": {}}, PODS) == typed
    assert requests.with_type(typed, PODS) is typed
    assert requests.with_type({"kind": "Other", "apiVersion": None, "metadata": {}}, PODS)["kind"] == "Other"


@pytest.mark.parametrize(
    "bad", [object(), {"t": datetime.timedelta}, {(1, 2): 3}], ids=["an object", "a type", "a tuple as key"]
)
def test_what_json_cannot_say(bad: Any) -> None:
    with pytest.raises(BadRequest, match="JSON"):
        requests.encode({"a": bad})


@pytest.mark.parametrize("obj", [{}, {"metadata": None}, {"metadata": []}, {"metadata": "x"}], ids=str)
def test_objects_without_metadata(obj: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="metadata must be a mapping"):
        requests.namespace_for(obj, PODS, None)
