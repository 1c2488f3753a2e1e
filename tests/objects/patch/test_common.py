from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.objects.patch.strategies import anything, nested, shuffled

from muster.objects.patch.common import DEPTH_MAX, check_depth, clone, holds_null, is_same_json, json_equal
from muster.objects.status import BadRequest


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _in_lists(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = ["x", value, {}]
    return value


@given(anything, st.integers(0, 6))
def test_depth_is_counted_exactly(value: Any, depth_max: int) -> None:
    if _depth(value) <= depth_max:
        check_depth(value, "it", depth_max)
    else:
        with pytest.raises(BadRequest, match=f"it is nested more than {depth_max} levels deep"):
            check_depth(value, "it", depth_max)


@pytest.mark.parametrize("build", [nested, _in_lists], ids=["objects", "lists"])
def test_the_limit_holds_to_the_level_and_needs_no_stack(build: Any) -> None:
    check_depth(build(DEPTH_MAX), "it")
    for depth in (DEPTH_MAX + 1, 50_000):
        with pytest.raises(BadRequest, match="flatten it"):
            check_depth(build(depth), "it")


@given(anything, anything, st.data())
def test_the_quick_comparison_is_the_plain_one(left: Any, right: Any, data: st.DataObject) -> None:
    assert is_same_json(left, right) == json_equal(left, right)
    assert is_same_json(left, shuffled(left, data.draw))


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        pytest.param({"a": 1}, {"a": True}, False, id="true is not 1"),
        pytest.param([0], [False], False, id="false is not 0"),
        pytest.param({"a": [1]}, {"a": [1.0]}, True, id="1 is 1.0"),
        pytest.param({"a": 2**70}, {"a": 2**70}, True, id="more than 64 bits"),
        pytest.param({"a": "\ud800"}, {"a": "\ud800"}, True, id="half a character"),
        pytest.param({}, [], False, id="an object is no list"),
        pytest.param({"a": None}, {}, False, id="null is not nothing"),
    ],
)
def test_what_counts_as_the_same(left: Any, right: Any, same: bool) -> None:
    assert is_same_json(left, right) is same
    assert is_same_json(right, left) is same


@given(anything)
def test_nulls_are_found_at_any_depth(value: Any) -> None:
    def search(node: Any) -> bool:
        parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
        return any(part is None or search(part) for part in parts)

    assert holds_null(value) == search(value)


@given(anything)
def test_a_clone_is_equal_and_shares_nothing(value: Any) -> None:
    def containers(node: Any) -> list[int]:
        parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
        return [] if parts is None else [id(node), *(inner for part in parts for inner in containers(part))]

    copied = clone(value)
    assert copied == value
    assert not set(containers(copied)) & set(containers(value))
