from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects import meta
from muster.objects.meta import ObjectMeta, OwnerReference
from muster.objects.status import Raw
from muster.objects.view import to_raw, view_of, write_back

POD: Raw = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-0",
        "namespace": "alice",
        "uid": "u-1",
        "resourceVersion": "7",
        "generation": 3,
        "labels": {"app": "web"},
        "annotations": {"a": "b"},
        "finalizers": ["x/y"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1"},
            {"apiVersion": "v1", "kind": "B", "name": "b", "uid": "2", "controller": True},
        ],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    },
}


def test_helpers_read_what_is_there() -> None:
    assert meta.name_of(POD) == "web-0"
    assert meta.namespace_of(POD) == "alice"
    assert meta.uid_of(POD) == "u-1"
    assert meta.resource_version_of(POD) == "7"
    assert meta.generation_of(POD) == 3
    assert meta.labels_of(POD) == {"app": "web"}
    assert meta.annotations_of(POD) == {"a": "b"}
    assert meta.finalizers_of(POD) == ["x/y"]
    assert [o["uid"] for o in meta.owners_of(POD)] == ["1", "2"]
    assert (meta.controller_of(POD) or {})["uid"] == "2"
    assert meta.is_controlled_by(POD, {"metadata": {"uid": "2"}})
    assert not meta.is_controlled_by(POD, {"metadata": {"uid": "1"}})
    assert not meta.is_controlled_by({}, {})
    assert meta.is_deleting(POD)
    assert meta.describe(POD) == "Pod alice/web-0"
    assert meta.describe({}) == "object (unnamed)"


def test_helpers_hand_out_copies() -> None:
    before = copy.deepcopy(POD)
    meta.labels_of(POD)["x"] = "y"
    meta.finalizers_of(POD).clear()
    meta.owners_of(POD).clear()
    assert before == POD


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "name",
    "namespace",
    "uid",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "deletionTimestamp",
    "generation",
]


@given(st.dictionaries(st.sampled_from(FIELDS), json_values) | json_values)
def test_helpers_never_raise(metadata: Any) -> None:
    raw: Raw = {"metadata": metadata}
    for helper in (meta.name_of, meta.namespace_of, meta.uid_of, meta.resource_version_of, meta.describe):
        assert isinstance(helper(raw), str)
    assert all(isinstance(v, str) for v in {**meta.labels_of(raw), **meta.annotations_of(raw)}.values())
    assert all(isinstance(f, str) for f in meta.finalizers_of(raw))
    assert all(isinstance(o, dict) for o in meta.owners_of(raw))
    assert isinstance(meta.generation_of(raw), int)
    assert meta.is_deleting(raw) in (True, False)
    meta.controller_of(raw)


def test_owner_reference() -> None:
    assert meta.owner_reference(POD) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "web-0",
        "uid": "u-1",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert "controller" not in meta.owner_reference(POD, controller=False, block=False)
    assert view_of(OwnerReference, meta.owner_reference(POD)).controller is True


def test_an_object_that_was_never_stored_owns_nothing() -> None:
    with pytest.raises(ValueError, match="Pod 'x' can't own others: it has no uid"):
        meta.owner_reference({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}})


def test_view_keeps_what_it_does_not_know() -> None:
    raw = {**POD["metadata"], "futureField": {"a": 1}, "creationTimestamp": None}
    before = view_of(ObjectMeta, raw)
    assert before.owner_references[1].controller is True
    after = view_of(ObjectMeta, {**to_raw(before), "labels": {"app": "other"}})
    written = write_back(raw, before, after)
    assert written["futureField"] == {"a": 1}
    assert written["labels"] == {"app": "other"}


def test_view_reads_managed_fields_whole() -> None:
    entry = {"manager": "m", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:a": {}}}}
    assert to_raw(view_of(ObjectMeta, {"managedFields": [entry]})) == {"managedFields": [entry]}
