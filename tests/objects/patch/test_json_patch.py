from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.objects.patch.strategies import anything, nested

from muster.objects.patch import apply_json_patch
from muster.objects.patch.json_patch import OPERATIONS_MAX, patch_document
from muster.objects.status import BadRequest, Invalid, RequestEntityTooLarge

Ops = list[Any]


@pytest.mark.parametrize(
    ("doc", "ops", "expected"),
    [
        pytest.param({"a": 1}, [], {"a": 1}, id="nothing to do"),
        pytest.param({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}, id="add a member"),
        pytest.param({"a": 1}, [{"op": "add", "path": "/a", "value": None}], {"a": None}, id="add replaces a member"),
        pytest.param(
            {"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}, id="add inserts into a list"
        ),
        pytest.param({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}, id="add appends to a list"),
        pytest.param({"a": [1]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2]}, id="add at the end of a list"),
        pytest.param({"a": 1}, [{"op": "add", "path": "", "value": {"b": 2}}], {"b": 2}, id="add at the root"),
        pytest.param({"": 1}, [{"op": "add", "path": "/", "value": 2}], {"": 2}, id="the empty name is a name"),
        pytest.param({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}, id="remove a member"),
        pytest.param({"a": [1, 2, 3]}, [{"op": "remove", "path": "/a/1"}], {"a": [1, 3]}, id="remove an item"),
        pytest.param({"a": {"b": 1}}, [{"op": "replace", "path": "/a/b", "value": [2]}], {"a": {"b": [2]}}, id="replace"),
        pytest.param({"a": [1]}, [{"op": "replace", "path": "/a/0", "value": 2}], {"a": [2]}, id="replace an item"),
        pytest.param({"a": 1}, [{"op": "replace", "path": "", "value": {}}], {}, id="replace the root"),
        pytest.param({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}, id="move"),
        pytest.param({"a": [1, 2, 3]}, [{"op": "move", "from": "/a/0", "path": "/a/2"}], {"a": [2, 3, 1]}, id="move in a list"),
        pytest.param({"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}, id="move onto itself"),
        pytest.param({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}, id="copy"),
        pytest.param(
            {"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/a/c"}], {"a": {"b": 1, "c": {"b": 1}}}, id="copy inside"
        ),
        pytest.param({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], {"a": 1}, id="numbers compare by value"),
        pytest.param({"a": None}, [{"op": "test", "path": "/a", "value": None}], {"a": None}, id="null is a value"),
        pytest.param({"a": 1}, [{"op": "test", "path": "/z", "value": None}], {"a": 1}, id="what is not there is null"),
        pytest.param({"a": [1, 2]}, [{"op": "add", "path": "/a/-1", "value": 9}], {"a": [1, 2, 9]}, id="add at the end"),
        pytest.param({"a": [1, 2]}, [{"op": "add", "path": "/a/-3", "value": 9}], {"a": [9, 1, 2]}, id="add from the end"),
        pytest.param({"a": [1, 2]}, [{"op": "remove", "path": "/a/-1"}], {"a": [1]}, id="remove the last"),
        pytest.param({"a": [1, 2]}, [{"op": "replace", "path": "/a/-2", "value": 9}], {"a": [9, 2]}, id="replace from the end"),
        pytest.param({"a": [1, 2]}, [{"op": "test", "path": "/a/-1", "value": 2}], {"a": [1, 2]}, id="test the last"),
        pytest.param({"a": [1, {"b": 2}]}, [{"op": "remove", "path": "/a/-1/b"}], {"a": [1, {}]}, id="into the last"),
        pytest.param({"a": [1, 2]}, [{"op": "move", "from": "/a/0", "path": "/a/-1"}], {"a": [2, 1]}, id="move to the end"),
        pytest.param({"a": [1, 2]}, [{"op": "remove", "path": "/a/01"}], {"a": [1]}, id="zeros before an index"),
        pytest.param(
            {"a": {"b": [1, {"c": 2}]}},
            [{"op": "test", "path": "/a", "value": {"b": [1, {"c": 2}]}}],
            {"a": {"b": [1, {"c": 2}]}},
            id="test compares deeply",
        ),
        pytest.param(
            {"a/b": 1, "m~n": 2}, [{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/m~0n"}], {}, id="escapes"
        ),
        pytest.param({"~1": 1}, [{"op": "test", "path": "/~01", "value": 1}], {"~1": 1}, id="escapes are read in order"),
        pytest.param(
            {"a": 1}, [{"op": "add", "path": "/b", "value": 1, "extra": True}], {"a": 1, "b": 1}, id="extra members are ignored"
        ),
    ],
)
def test_operations(doc: Any, ops: Ops, expected: Any) -> None:
    before = copy.deepcopy((doc, ops))
    assert apply_json_patch(doc, ops) == expected
    assert (doc, ops) == before


@pytest.mark.parametrize(
    ("ops", "pointer", "problem"),
    [
        ([{"op": "remove", "path": "/z"}], "/z", "no such member"),
        ([{"op": "replace", "path": "/z", "value": 1}], "/z", "no such member"),
        ([{"op": "replace", "path": "/list/3", "value": 1}], "/list/3", "out of bounds"),
        ([{"op": "add", "path": "/list/4", "value": 1}], "/list/4", "out of bounds"),
        ([{"op": "add", "path": "/list/-5", "value": 1}], "/list/-5", "out of bounds; the list has 4 places"),
        ([{"op": "remove", "path": "/list/-4"}], "/list/-4", "out of bounds; the list has 3 places"),
        ([{"op": "test", "path": "/list/-4/x", "value": 1}], "/list/-4", "out of bounds"),
        ([{"op": "add", "path": "/list/1e0", "value": 1}], "/list/1e0", "not an index"),
        ([{"op": "remove", "path": "/list/-"}], "/list/-", "not an index"),
        ([{"op": "add", "path": "/z/y", "value": 1}], "/z", "no such member"),
        ([{"op": "add", "path": "/n/y", "value": 1}], "/n/y", "neither an object nor a list"),
        ([{"op": "test", "path": "/n", "value": 6}], "/n", "test failed: it is 5, not 6"),
        ([{"op": "test", "path": "/n", "value": "5"}], "/n", "test failed"),
        ([{"op": "test", "path": "/one", "value": True}], "/one", "test failed"),
        ([{"op": "test", "path": "/z", "value": 0}], "/z", "no such member"),
        ([{"op": "test", "path": "/z/y", "value": None}], "/z", "no such member"),
        ([{"op": "test", "path": "/list/7", "value": None}], "/list/7", "out of bounds"),
        ([{"op": "move", "from": "/map", "path": "/map/x"}], "/map/x", "into itself"),
        ([{"op": "copy", "from": "/z", "path": "/y"}], "/z", "no such member"),
        ([{"op": "add", "path": "/ok", "value": 1}, {"op": "remove", "path": "/a~1b"}], "/a~1b", "operation 1 at"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_invalid_and_names_the_path(ops: Ops, pointer: str, problem: str) -> None:
    doc = {"n": 5, "one": 1, "list": [1, 2, 3], "map": {}}
    before = copy.deepcopy(doc)
    with pytest.raises(Invalid) as caught:
        apply_json_patch(doc, ops)
    assert problem in caught.value.message
    assert [cause.field for cause in caught.value.causes] == [pointer]
    assert doc == before


@pytest.mark.parametrize(
    "ops",
    [
        [{}], [{"op": "frobnicate", "path": "/a"}], [{"op": 5, "path": "/a"}],
        [{"op": "add", "path": "/a"}],
        [{"op": "add", "value": 1}], [{"op": "remove"}], [{"op": "move", "path": "/a"}], [{"op": "remove", "path": "a"}],
        [{"op": "remove", "path": 5}], [{"op": "remove", "path": "/a~2"}], [{"op": "remove", "path": "/a~"}],
        [{"op": "copy", "from": ["a"], "path": "/a"}], [{"op": "remove", "path": "/a" * 500}],
    ],
)  # fmt: skip
def test_what_is_no_operation_is_invalid(ops: Any) -> None:
    with pytest.raises(Invalid, match="JSON patch operation 0"):
        apply_json_patch({"a": 1}, ops)


@pytest.mark.parametrize("ops", [None, {}, "add", [None], [[]]])
def test_what_is_no_patch_is_a_bad_request(ops: Any) -> None:
    with pytest.raises(BadRequest):
        apply_json_patch({"a": 1}, ops)


@pytest.mark.parametrize(
    "ops",
    [[{"op": "remove", "path": ""}], [{"op": "replace", "path": "", "value": []}], [{"op": "move", "from": "/a", "path": ""}]],
)
def test_an_object_stays_an_object(ops: Ops) -> None:
    with pytest.raises(Invalid, match="where an object must be"):
        apply_json_patch({"a": 1}, ops)


def test_documents_of_any_kind() -> None:
    assert patch_document([1], [{"op": "add", "path": "/0", "value": 0}]) == [0, 1]
    assert patch_document("a", [{"op": "test", "path": "", "value": "a"}]) == "a"
    assert patch_document({}, [{"op": "remove", "path": ""}]) is None


def test_all_or_nothing() -> None:
    doc = {"a": [1]}
    with pytest.raises(Invalid):
        apply_json_patch(doc, [{"op": "add", "path": "/a/-", "value": 2}, {"op": "test", "path": "/a/0", "value": 9}])
    assert doc == {"a": [1]}


def test_limits() -> None:
    with pytest.raises(RequestEntityTooLarge, match="10000 operations; this one has 10001"):
        apply_json_patch({}, [{"op": "test", "path": "", "value": {}}] * (OPERATIONS_MAX + 1))
    doubling = [{"op": "add", "path": "/a", "value": ["x" * 1000]}] + [{"op": "copy", "from": "/a", "path": "/a/-"}] * 40
    with pytest.raises(RequestEntityTooLarge, match=r"operation 1[0-9]: .* copy less"):
        apply_json_patch({}, doubling)


def test_copies_of_a_growing_object_are_refused_early() -> None:
    growing = [{"op": "add", "path": "/x", "value": {"a": 0}}]
    growing += [{"op": "copy", "from": "/x", "path": f"/x/b{number}"} for number in range(40)]
    with pytest.raises(RequestEntityTooLarge, match=r"operation 1[0-9]: the copy operations add more than 4194304"):
        apply_json_patch({}, growing)


def test_one_large_copy_is_still_possible() -> None:
    doc = {"a": ["x" * 1000] * 1500}
    assert apply_json_patch(doc, [{"op": "copy", "from": "/a", "path": "/b"}]) == {**doc, "b": doc["a"]}


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([{"op": "add", "path": "/a/0", "value": 0}] * 100, id="inserts at the front"),
        pytest.param([{"op": "remove", "path": "/a/0"}] * 100, id="removals at the front"),
        pytest.param([{"op": "move", "from": "/a/0", "path": "/a/-"}] * 100, id="moves to the end"),
        pytest.param([{"op": "copy", "from": "/a/0", "path": "/a/0"}] * 100, id="copies to the front"),
    ],
)
def test_what_lists_shift_is_bounded(ops: Ops) -> None:
    with pytest.raises(RequestEntityTooLarge, match=r"operation (49|50) at '/a/0': .* 50000000 items"):
        apply_json_patch({"a": [0] * 1_000_000}, ops)


def test_work_at_the_end_of_a_list_shifts_nothing() -> None:
    at_the_end = [{"op": "add", "path": "/a/-", "value": 1}, {"op": "remove", "path": "/a/1000000"}] * 100
    assert apply_json_patch({"a": [0] * 1_000_000}, at_the_end) == {"a": [0] * 1_000_000}


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([{"op": "add", "path": "/a", "value": nested(5000)}], id="a deep value"),
        pytest.param([{"op": "test", "path": "/a", "value": nested(5000)}], id="a deep test"),
        pytest.param([{"op": "copy", "from": "", "path": "/a"}] * 500, id="copies into itself"),
        pytest.param(
            [{"op": "add", "path": "/b", "value": nested(60)}]
            + [step for _ in range(100) for step in (
                {"op": "copy", "from": "/b", "path": "/c"}, {"op": "move", "from": "/b", "path": "/c" + "/a" * 59},
                {"op": "move", "from": "/c", "path": "/b"})],
            id="moves below each other",
        ),
    ],
)  # fmt: skip
def test_nesting_is_bounded(ops: Ops) -> None:
    with pytest.raises(BadRequest, match="levels deep"):
        apply_json_patch({"a": {}}, ops)


def test_a_deep_document_is_refused() -> None:
    with pytest.raises(BadRequest, match="levels deep"):
        apply_json_patch(nested(5000), [])


paths = st.sampled_from(
    ["", "/spec", "/metadata", "/spec/items", "/spec/items/0", "/spec/items/-", "/spec/items/0/name", "/x", "/spec/~0", "z"]
)
operations = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "?"])},
    optional={"path": paths | anything, "from": paths, "value": anything},
)


@given(
    st.dictionaries(st.sampled_from(["spec", "metadata", "x"]), anything, max_size=3),
    st.lists(operations | anything, max_size=5),
)
def test_any_patch_applies_or_is_an_api_error_and_changes_no_argument(doc: dict[str, Any], ops: Ops) -> None:
    before = copy.deepcopy((doc, ops))
    with contextlib.suppress(BadRequest, Invalid, RequestEntityTooLarge):
        assert isinstance(apply_json_patch(doc, ops), dict)
    assert (doc, ops) == before


@given(anything, anything)
def test_replacing_what_was_added_leaves_only_the_last(first: Any, second: Any) -> None:
    ops = [{"op": "add", "path": "/a", "value": first}, {"op": "replace", "path": "/a", "value": second}]
    assert apply_json_patch({}, ops) == {"a": second}
    assert apply_json_patch({}, [*ops, {"op": "test", "path": "/a", "value": second}, {"op": "remove", "path": "/a"}]) == {}
