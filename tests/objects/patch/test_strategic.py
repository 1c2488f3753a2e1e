from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from tests.objects.patch.strategies import SCHEMA, anything, anything_like_an_object, nested, objects, specs

from muster.objects.patch import apply_merge_patch, apply_strategic, strategic
from muster.objects.status import BadRequest, Raw


def _items(*names: str) -> list[Raw]:
    return [{"name": name} for name in names]


def _spec(doc: Raw, patch: Raw) -> Raw:
    """The patched `spec`, after checking that nobody's argument was changed."""
    before = copy.deepcopy((doc, patch))
    result = apply_strategic({"spec": doc}, {"spec": patch}, SCHEMA)["spec"]
    assert (doc, patch) == before
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    ("doc", "patch", "expected"),
    [
        pytest.param({"n": 1}, {"s": "x"}, {"n": 1, "s": "x"}, id="members merge"),
        pytest.param({"n": 1, "s": "x"}, {"n": None}, {"s": "x"}, id="null removes"),
        pytest.param({}, {"sub": {"a": "x", "b": None}}, {"sub": {"a": "x"}}, id="nulls do not enter a new object"),
        pytest.param({"list": ["x"]}, {"list": ["y"]}, {"list": ["y"]}, id="a list without strategy is replaced"),
        pytest.param({"set": ["x", "y"]}, {"set": ["y", "z"]}, {"set": ["x", "y", "z"]}, id="plain values merge"),
        pytest.param({"fresh": {"a": "x"}}, {"fresh": {"b": "y"}}, {"fresh": {"b": "y"}}, id="strategy replace"),
        pytest.param({"sub": {"a": "x"}}, {"sub": 5}, {"sub": 5}, id="another type replaces"),
        pytest.param(
            {"items": [{"name": "A", "v": 1}, {"name": "B"}]},
            {"items": [{"name": "B", "w": 2}, {"name": "C"}]},
            {"items": [{"name": "A", "v": 1}, {"name": "B", "w": 2}, {"name": "C"}]},
            id="items merge by key",
        ),
        pytest.param(
            {"items": [{"name": "A", "v": 1}]},
            {"items": [{"name": "A", "v": None}]},
            {"items": [{"name": "A"}]},
            id="null in an item",
        ),
        pytest.param(
            {"items": _items("A", "B", "C")},
            {"items": [{"name": "C", "v": 1}, {"name": "A", "v": 2}]},
            {"items": [{"name": "B"}, {"name": "C", "v": 1}, {"name": "A", "v": 2}]},
            id="the patch's order wins, the others keep their place",
        ),
        pytest.param(
            {"items": _items("A", "B")},
            {"items": [{"$patch": "delete", "name": "A"}]},
            {"items": _items("B")},
            id="delete an item",
        ),
        pytest.param(
            {"items": _items("A")},
            {"items": [{"$patch": "delete", "name": "Z"}]},
            {"items": _items("A")},
            id="delete what is not there",
        ),
        pytest.param(
            {}, {"items": [{"$patch": "delete", "name": "A"}, {"name": "B"}]}, {"items": _items("B")}, id="delete in a new list"
        ),
        pytest.param(
            {"items": [{"name": "A", "v": 1}]},
            {"items": [{"name": "B"}, {"$patch": "replace"}]},
            {"items": _items("B")},
            id="replace the list",
        ),
        pytest.param(
            {"items": [{"name": "A", "v": 1}]},
            {"items": [{"name": "A", "w": 1, "$patch": "merge"}]},
            {"items": [{"name": "A", "v": 1, "w": 1}]},
            id="merge is the default",
        ),
        pytest.param(
            {"sub": {"a": "x"}}, {"sub": {"$patch": "replace", "b": "y"}}, {"sub": {"b": "y"}}, id="replace an object"
        ),
        pytest.param({"sub": {"a": "x"}}, {"sub": {"$patch": "delete"}}, {"sub": {}}, id="empty an object"),
        pytest.param(
            {"set": ["x", "y", "z"]}, {"$deleteFromPrimitiveList/set": ["y"]}, {"set": ["x", "z"]}, id="take values out"
        ),
        pytest.param(
            {"set": ["x"]}, {"set": ["y"], "$deleteFromPrimitiveList/set": ["x"]}, {"set": ["y"]}, id="add and take out"
        ),
        pytest.param({}, {"$deleteFromPrimitiveList/set": ["x"]}, {}, id="take out of nothing"),
        pytest.param(
            {"items": _items("A", "B", "C")},
            {"$setElementOrder/items": [{"name": "C"}, {"name": "A"}]},
            {"items": _items("B", "C", "A")},
            id="order alone",
        ),
        pytest.param(
            {"items": _items("A", "B")},
            {"items": [{"name": "C"}], "$setElementOrder/items": [{"name": "C"}, {"name": "B"}, {"name": "A"}]},
            {"items": _items("C", "B", "A")},
            id="order with a new item",
        ),
        pytest.param(
            {"items": _items("A", "B")},
            {"items": [{"$patch": "delete", "name": "A"}], "$setElementOrder/items": [{"name": "B"}]},
            {"items": _items("B")},
            id="order with a deletion",
        ),
        pytest.param(
            {"set": ["x", "y", "z"]}, {"$setElementOrder/set": ["z", "x"]}, {"set": ["y", "z", "x"]}, id="order of values"
        ),
        pytest.param({}, {"$setElementOrder/items": [{"name": "A"}]}, {}, id="order of nothing"),
        pytest.param(
            {"sub": {"a": "x", "b": "y"}}, {"sub": {"$retainKeys": ["a"], "a": "z"}}, {"sub": {"a": "z"}}, id="retain keys"
        ),
        pytest.param(
            {"sub": {"a": "x", "b": "y"}}, {"sub": {"$retainKeys": ["b"]}}, {"sub": {"b": "y"}}, id="retain keys alone"
        ),
    ],
)
def test_patch(doc: Raw, patch: Raw, expected: Raw) -> None:
    assert _spec(doc, patch) == expected


def test_a_patch_of_many_deletions_goes_through_the_list_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    key_of = strategic._key_of

    def counted(item: Any, key: str) -> str | None:
        nonlocal looks
        looks += 1
        return key_of(item, key)

    monkeypatch.setattr(strategic, "_key_of", counted)
    owners = [{"uid": str(n)} for n in range(300)]
    gone = [{"uid": str(n), "$patch": "delete"} for n in range(299)]
    done = apply_strategic({"metadata": {"ownerReferences": owners}}, {"metadata": {"ownerReferences": gone}}, None)
    assert done == {"metadata": {"ownerReferences": [{"uid": "299"}]}}
    assert looks < 10 * 300


def test_metadata_merges_for_every_kind() -> None:
    doc = {"metadata": {"finalizers": ["a"], "ownerReferences": [{"uid": "1", "name": "x"}], "labels": {"k": "v"}}}
    patch = {
        "metadata": {
            "finalizers": ["b"],
            "ownerReferences": [{"uid": "2"}, {"uid": "1", "$patch": "delete"}],
            "labels": {"l": "w"},
        }
    }
    assert apply_strategic(doc, patch, None)["metadata"] == {
        "finalizers": ["b", "a"],  # what is new and stands nowhere between live items comes first, as in Kubernetes
        "ownerReferences": [{"uid": "2"}],
        "labels": {"k": "v", "l": "w"},
    }


@pytest.mark.parametrize(
    ("patch", "where", "problem"),
    [
        ({"items": [{"v": 1}]}, "spec.items[0]", "has no 'name'"),
        ({"items": [{"$patch": "delete"}]}, "spec.items[0]", "has no 'name'"),
        ({"items": [{"name": "A"}, 5]}, "spec.items", "all objects or all plain values"),
        ({"items": [{"name": "A", "$patch": "explode"}]}, "spec.items[0]", "must be merge, replace or delete"),
        ({"sub": {"$patch": "explode"}}, "spec.sub", "must be merge, replace or delete"),
        ({"sub": {"$retainKeys": "a"}}, "spec.sub", "list of member names"),
        ({"sub": {"$retainKeys": ["a"], "b": "x"}}, "spec.sub", "does not contain"),
        ({"$deleteFromPrimitiveList/set": "x"}, "spec.$deleteFromPrimitiveList/set", "must be a list"),
        ({"$setElementOrder/items": 5}, "spec.$setElementOrder/items", "must be a list"),
        ({"$setElementOrder/items": [5]}, "spec.$setElementOrder/items", "must be an object with 'name'"),
        (
            {"items": [{"name": "C"}], "$setElementOrder/items": [{"name": "A"}]},
            "spec.$setElementOrder/items",
            "not in this list",
        ),
        (
            {"items": [{"name": "A"}, {"name": "C"}], "$setElementOrder/items": [{"name": "C"}, {"name": "A"}]},
            "spec.$setElementOrder/items",
            "in the same order",
        ),
        ({"set": [{"a": 1}]}, "spec.set", "names no key"),
    ],
)
def test_a_patch_that_contradicts_itself_is_a_bad_request(patch: Raw, where: str, problem: str) -> None:
    doc: Raw = {"spec": {"items": _items("A", "B"), "sub": {"a": "x"}, "set": ["x"]}}
    before = copy.deepcopy(doc)
    with pytest.raises(BadRequest, match="strategic merge patch at") as caught:
        apply_strategic(doc, {"spec": patch}, SCHEMA)
    assert caught.value.causes[0].field == where
    assert problem in caught.value.message
    assert doc == before


def test_a_patch_is_an_object_of_bounded_depth() -> None:
    not_objects: list[Any] = [None, [], "x", 5]
    for patch in not_objects:
        with pytest.raises(BadRequest, match="must be an object"):
            apply_strategic({}, patch, SCHEMA)
    with pytest.raises(BadRequest, match="levels deep"):
        apply_strategic({}, nested(5000), None)


def test_items_whose_keys_are_numbers_of_any_kind() -> None:
    schema = {"properties": {"p": {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "port"}}}
    doc = {"p": [{"port": 80, "a": 1}, {"port": "80"}, {"port": True}]}
    assert apply_strategic(doc, {"p": [{"port": 80.0, "b": 2}]}, schema)["p"] == [
        {"port": 80.0, "a": 1, "b": 2},
        {"port": "80"},
        {"port": True},
    ]


@given(objects, specs)
def test_without_a_schema_it_is_a_merge_patch(doc: Raw, patch: Raw) -> None:
    assert apply_strategic(doc, {"spec": patch}, None) == apply_merge_patch(doc, {"spec": patch})


@given(objects, objects)
def test_patching_twice_is_patching_once(doc: Raw, patch: Raw) -> None:
    once = apply_strategic(doc, patch, SCHEMA)
    assert apply_strategic(once, patch, SCHEMA) == once


@given(objects)
def test_patching_with_itself_changes_nothing(doc: Raw) -> None:
    assert apply_strategic(doc, doc, SCHEMA) == doc


@given(anything_like_an_object, anything)
def test_any_patch_applies_or_is_a_bad_request_and_changes_no_argument(doc: Raw, patch: Any) -> None:
    before = copy.deepcopy((doc, patch))
    for schema in (SCHEMA, None):
        with contextlib.suppress(BadRequest):
            assert isinstance(apply_strategic(doc, patch, schema), dict)
    assert (doc, patch) == before
