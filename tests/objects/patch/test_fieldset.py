from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.objects.patch import reference
from tests.objects.patch.strategies import shuffled

from muster.objects.patch import fieldset
from muster.objects.patch.fieldset import Fields, Path

elements = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"', "i:0"])
path_sets = st.sets(st.lists(elements, min_size=1, max_size=3).map(tuple), max_size=6)


def _set(paths: set[Path]) -> Fields:
    """Put together from sets of one path each, in an order of no meaning."""
    fields: Fields = {}
    for path in paths:
        single: Fields = {}
        for element in reversed(path):
            single = {element: single}
        fields = fieldset.union(fields, single)
    return fields


def _paths(fields: Fields) -> set[Path]:
    return set(fieldset.paths(fields))


def _has_no_dead_ends(fields: Fields) -> bool:
    """Nothing that only leads somewhere leads nowhere, and `.` alone is written as an empty node."""
    return all(
        node == {} if element == "." else node == {} or (set(node) != {"."} and _has_no_dead_ends(node))
        for element, node in fields.items()
    )


def _is_in_order(fields: Fields) -> bool:
    return list(fields) == sorted(fields) and all(_is_in_order(inner) for inner in fields.values())


@given(path_sets)
def test_a_set_holds_what_was_put_in_and_is_written_in_order(paths: set[Path]) -> None:
    fields = _set(paths)
    assert _paths(fields) == paths
    assert _has_no_dead_ends(fields)
    assert _is_in_order(fields)
    assert json.dumps(fields) == json.dumps(reference.to_fields(frozenset(paths)))


@given(path_sets, path_sets)
def test_operations_are_those_of_sets(left: set[Path], right: set[Path]) -> None:
    a, b = _set(left), _set(right)
    before = copy.deepcopy((a, b))
    results = {
        "union": (fieldset.union(a, b), left | right),
        "intersection": (fieldset.intersection(a, b), left & right),
        "difference": (fieldset.difference(a, b), left - right),
    }
    for name, (result, expected) in results.items():
        assert _paths(result) == expected, name
        assert _has_no_dead_ends(result), name
        assert _is_in_order(result), name
    assert (a, b) == before


@given(st.lists(path_sets, max_size=7))
def test_many_sets_are_joined_as_two_are(sets: list[set[Path]]) -> None:
    assert _paths(fieldset.union_all([_set(paths) for paths in sets])) == set().union(*sets)


class _Large(dict[str, Any]):
    """A set of many paths, of which one is asked for at a time."""

    def __iter__(self) -> Any:
        raise AssertionError("went through the whole of a large set")

    items = keys = values = __iter__


def test_a_small_set_less_a_large_one_costs_what_the_small_one_does() -> None:
    large = _Large({f"f:x{n}": {} for n in range(1000)})
    assert fieldset.difference({"f:x7": {}, "f:y": {}}, large) == {"f:y": {}}


@given(path_sets)
def test_what_does_not_change_stays_the_same_object(paths: set[Path]) -> None:
    fields = _set(paths)
    assert fieldset.difference(fields, {}) is fields
    assert fieldset.difference(fields, {"f:elsewhere": {}}) is fields
    assert fieldset.union(fields, {}) is fields
    assert fieldset.parse_fields(fields) is fields


@given(path_sets, st.data())
def test_sets_from_outside_are_put_in_order(paths: set[Path], data: st.DataObject) -> None:
    fields = _set(paths)
    mixed = shuffled(fields, data.draw)
    # Twice: what was seen before is not looked at again.
    for _ in range(2):
        parsed = fieldset.parse_fields(mixed)
        assert json.dumps(parsed) == json.dumps(fields)
        assert (parsed is mixed) == _is_in_order(mixed)


def test_elements_from_outside_are_put_in_canonical_form() -> None:
    raw = {'k:{"b": 1.0, "a":"x"}': {".": {"junk": {}}, "f:c": {}}, 'v: "y"': {}, "i:007": {}, "f:d": {"f:e": {}}}
    assert fieldset.parse_fields(raw) == {
        'k:{"a":"x","b":1}': {".": {}, "f:c": {}},
        'v:"y"': {},
        "i:7": {},
        "f:d": {"f:e": {}},
    }


@pytest.mark.parametrize(
    "raw",
    [None, [], "x", {"f:a": 1}, {"f:a": {"f:b": None}}, {"x:a": {}}, {"k:": {}}, {"k:[]": {}}, {'k:{"a":{}}': {}}, {"v:x": {}},
     {"i:x": {}}, {"": {}}, {"k:" + "[" * 5000: {}}],
)  # fmt: skip
def test_what_is_no_set_is_a_value_error(raw: Any) -> None:
    with pytest.raises(ValueError, match=r"fieldsV1|path element"):
        fieldset.parse_fields(raw)


def test_depth_is_bounded() -> None:
    deep: Fields = {}
    for _ in range(5000):
        deep = {"f:a": deep}
    with pytest.raises(ValueError, match="levels deep"):
        fieldset.parse_fields(deep)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("f:spec", "f:replicas"), ".spec.replicas"),
        (("f:spec", "f:containers", 'k:{"name":"x"}', "f:image"), '.spec.containers[name="x"].image'),
        (("f:ports", 'k:{"containerPort":80,"protocol":"TCP"}'), '.ports[containerPort=80,protocol="TCP"]'),
        (("f:finalizers", 'v:"a/b"'), '.finalizers[="a/b"]'),
        (("f:list", "i:3"), ".list[3]"),
    ],
)
def test_paths_as_messages_write_them(path: Path, text: str) -> None:
    assert fieldset.path_text(path) == text


@pytest.mark.parametrize(
    ("uids", "is_in_order"),
    [
        pytest.param(["a"], True, id="one owner"),
        pytest.param(["b"], True, id="another owner alone"),
        pytest.param(["a", "b"], True, id="two in order"),
        pytest.param(["b", "a"], False, id="two out of order"),
    ],
)
def test_owners_are_in_order_whichever_were_seen_before(uids: list[str], is_in_order: bool) -> None:
    """Sets that differ in the uid of their only owner are remembered as one; those with several are not."""
    keys = [f'k:{{"uid":"{uid * 8}-0000-4000-8000-{uid * 12}"}}' for uid in uids]
    owners: fieldset.Fields = {".": {}, **{key: {} for key in keys}}
    fields = {"f:metadata": {"f:ownerReferences": owners}}
    parsed = fieldset.parse_fields(fields)
    assert (parsed is fields) == is_in_order
    assert list(parsed["f:metadata"]["f:ownerReferences"]) == [".", *sorted(keys)]
