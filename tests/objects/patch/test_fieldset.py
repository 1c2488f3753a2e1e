from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.patch import fieldset
from muster.objects.patch.fieldset import Fields, Path

elements = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"', "i:0"])
path_sets = st.sets(st.lists(elements, min_size=1, max_size=3).map(tuple), max_size=6)


def _set(paths: set[Path]) -> Fields:
    fields: Fields = {}
    for path in sorted(paths):
        fieldset.insert(fields, path)
    return fields


def _paths(fields: Fields) -> set[Path]:
    return set(fieldset.paths(fields))


def _has_no_dead_ends(fields: Fields) -> bool:
    """Nothing that only leads somewhere leads nowhere, and `.` alone is written as an empty node."""
    return all(
        node == {} if element == "." else node == {} or (set(node) != {"."} and _has_no_dead_ends(node))
        for element, node in fields.items()
    )


@given(path_sets)
def test_a_set_holds_what_was_put_in_in_any_order(paths: set[Path]) -> None:
    forwards = _set(paths)
    backwards: Fields = {}
    for path in sorted(paths, reverse=True):
        fieldset.insert(backwards, path)
    assert _paths(forwards) == _paths(backwards) == paths
    assert fieldset.sorted_copy(forwards) == fieldset.sorted_copy(backwards)
    assert _has_no_dead_ends(forwards)


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
    assert (a, b) == before


@given(path_sets)
def test_what_does_not_change_stays_the_same_object(paths: set[Path]) -> None:
    fields = _set(paths)
    assert fieldset.difference(fields, {}) is fields
    assert fieldset.difference(fields, {"f:elsewhere": {}}) is fields
    assert fieldset.union(fields, {}) is fields
    assert fieldset.parse_fields(fields) is fields


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
