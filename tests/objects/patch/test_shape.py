"""Schemas as the patches read them: compiled once, whatever is wrong in them counts as absent."""

from __future__ import annotations

from typing import Any

import pytest
from tests.objects.patch.strategies import SCHEMA

from muster.objects.patch import shape as shapes
from muster.objects.patch.shape import ANY, Shape, root_shape
from muster.objects.status import Raw

TEXT = {"type": "string"}


def test_a_schema_is_compiled_once_and_only_where_it_is_used() -> None:
    schema: Raw = {"properties": {"spec": {"properties": {"a": TEXT}}, "unused": {"properties": {"b": TEXT}}}}
    root = root_shape(schema)
    assert root_shape(schema) is root
    assert root_shape(dict(schema)) is not root
    assert not root.members
    assert root.member("spec") is root.member("spec") is root.below["f:spec"]
    assert list(root.members) == ["spec"]


def test_entries_of_maps_are_not_kept() -> None:
    shape = Shape({"additionalProperties": {"nullable": True}})
    assert {shape.members[f"key-{i}"] == (f"f:key-{i}", shape.members.rest) for i in range(3)} == {True}
    assert shape.below["f:key-1"] is shape.members.rest
    assert shape.members.rest.is_nullable
    assert not shape.members
    assert not shape.below


def test_the_number_of_schemas_kept_is_bounded_and_forgotten_ones_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_ROOTS_MAX", 3)
    monkeypatch.setattr(shapes, "_roots", {})
    schemas: list[Raw] = [{"properties": {f"f{i}": TEXT}} for i in range(5)]
    for schema in [*schemas, *schemas]:
        (name,) = schema["properties"]
        assert root_shape(schema).members.is_named(name)
    assert len(shapes._roots) == 3


def test_without_a_schema_there_is_still_metadata() -> None:
    root = root_shape(None)
    assert root.member("spec") is ANY
    assert ANY.member("x") is ANY.items is ANY
    assert root.member("metadata").member("ownerReferences").list_keys == ("uid",)
    assert root.member("metadata").member("finalizers").is_set
    # Whatever a kind's own schema says of it.
    own = root_shape({"properties": {"metadata": {"x-kubernetes-map-type": "atomic"}}})
    assert not own.member("metadata").is_atomic_map


@pytest.mark.parametrize(
    ("schema", "keys", "is_set"),
    [
        pytest.param({}, (), False, id="nothing said"),
        pytest.param({"x-kubernetes-list-type": "set"}, (), True, id="set"),
        pytest.param({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"]}, ("a", "b"), False, id="map"),
        pytest.param({"x-kubernetes-list-type": "map"}, (), False, id="map without keys"),
        pytest.param({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": "ab"}, (), False, id="keys are no list"),
        pytest.param({"x-kubernetes-patch-strategy": "merge"}, (), True, id="merged values"),
        pytest.param(
            {"x-kubernetes-patch-strategy": "merge,retainKeys", "x-kubernetes-patch-merge-key": "a"}, ("a",), False, id="merged"
        ),
        pytest.param(
            {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-list-type": "atomic"}, (), False, id="the list type decides"
        ),
        pytest.param({"x-kubernetes-patch-strategy": 5, "x-kubernetes-list-type": {}}, (), False, id="nonsense"),
    ],
)
def test_how_lists_merge(schema: Raw, keys: tuple[str, ...], is_set: bool) -> None:
    shape = Shape(schema)
    assert (shape.list_keys, shape.is_set) == (keys, is_set)
    assert shape.is_atomic_list == (not keys and not is_set)


@pytest.mark.parametrize("nonsense", [None, 5, "x", [], True])
def test_what_is_of_the_wrong_type_counts_as_absent(nonsense: Any) -> None:
    shape = Shape({"properties": nonsense, "additionalProperties": nonsense, "items": nonsense})
    assert shape.member("a") is ANY
    assert shape.items is ANY
    assert Shape({"properties": {"a": nonsense}}).member("a") is ANY
    assert root_shape({"properties": nonsense}).member("spec") is ANY


def test_a_member_whose_schema_is_null_is_named_but_has_the_shape_of_the_others() -> None:
    shape = Shape({"properties": {"a": None}, "additionalProperties": {"nullable": True}})
    assert shape.members.is_named("a")
    assert shape.member("a").is_nullable


def test_a_deep_schema_costs_no_stack() -> None:
    schema: Raw = {}
    for _ in range(5000):
        schema = {"items": schema, "additionalProperties": schema, "properties": {"a": schema}}
    assert root_shape(schema).member("a").items.member("b") is not ANY


@pytest.mark.parametrize(
    ("items", "elements"),
    [
        pytest.param([{"port": 80}], ['k:{"port":80,"protocol":"TCP"}'], id="a key by default"),
        pytest.param([{"port": 80.0, "protocol": "UDP"}], ['k:{"port":80,"protocol":"UDP"}'], id="numbers by value"),
        pytest.param([{"port": 80}, {"port": 80, "protocol": None}], None, id="twice the same"),
        pytest.param([{"protocol": "TCP"}], None, id="no key"),
        pytest.param([{"port": [80]}], None, id="a list as key"),
        pytest.param(["x"], None, id="no object"),
        pytest.param([], [], id="empty"),
    ],
)
def test_items_by_their_keys(items: list[Any], elements: list[str] | None) -> None:
    found = root_shape(SCHEMA).member("spec").member("ports").keyed(items)
    assert (None if found is None else list(found)) == elements
