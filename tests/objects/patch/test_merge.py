from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.objects.patch.strategies import anything, nested

from muster.objects.patch import apply_merge_patch
from muster.objects.status import BadRequest, Raw


@pytest.mark.parametrize(
    ("doc", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": 5}, {"a": {"b": 1, "c": None}}, {"a": {"b": 1}}),
        ({"a": 1}, {"a": [None, {"b": None}]}, {"a": [None, {"b": None}]}),
        ({"a": 1}, {}, {"a": 1}),
    ],
)
def test_merge(doc: Raw, patch: Raw, expected: Raw) -> None:
    before = copy.deepcopy((doc, patch))
    result = apply_merge_patch(doc, patch)
    assert result == expected
    assert (doc, patch) == before


@pytest.mark.parametrize("patch", [None, [], "x", 5, [{"op": "add"}]])
def test_a_patch_for_an_object_is_an_object(patch: Any) -> None:
    with pytest.raises(BadRequest, match="must be an object"):
        apply_merge_patch({}, patch)


def test_nesting_is_bounded() -> None:
    with pytest.raises(BadRequest, match="levels deep"):
        apply_merge_patch({}, nested(5000))
    with pytest.raises(BadRequest, match="levels deep"):
        apply_merge_patch(nested(5000), {})
    assert apply_merge_patch({}, nested(100)) == nested(100)


def test_the_result_shares_nothing_with_the_arguments() -> None:
    doc: Raw = {"a": {"b": [1]}}
    patch: Raw = {"c": {"d": [2]}, "e": [{}]}
    result = apply_merge_patch(doc, patch)
    result["a"]["b"].append(9)
    result["c"]["d"].append(9)
    result["e"][0]["x"] = 9
    assert doc == {"a": {"b": [1]}}
    assert patch == {"c": {"d": [2]}, "e": [{}]}


docs = st.dictionaries(st.sampled_from("abc"), anything, max_size=3)


def _has_null_member(value: Any) -> bool:
    return isinstance(value, dict) and any(v is None or _has_null_member(v) for v in value.values())


@given(docs, docs)
def test_merging_twice_is_merging_once(doc: Raw, patch: Raw) -> None:
    once = apply_merge_patch(doc, patch)
    assert apply_merge_patch(once, patch) == once
    assert all(key not in once for key, value in patch.items() if value is None)


@given(docs)
def test_a_patch_without_nulls_onto_nothing_is_itself(patch: Raw) -> None:
    if not _has_null_member(patch):
        assert apply_merge_patch({}, patch) == patch
