"""What is read of an object without decoding it whole is what decoding it whole would give."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.store.embedded.facts import facts_of
from muster.store.embedded.records import FieldPaths, decode, encode, record_of

_WORDS = ("spec", "status", "metadata", "nodeName", "phase", "labels", "uid", "type", "名")
_LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5) | st.floats(-1e9, 1e9)
_VALUES = st.recursive(
    _LEAVES,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), below, max_size=4),
    max_leaves=12,
)
_PATHS = st.lists(st.lists(st.sampled_from(_WORDS), min_size=1, max_size=3).map(".".join), max_size=5, unique=True)


def _paths(*paths: str) -> FieldPaths:
    return tuple((path, tuple(path.split("."))) for path in paths)


@st.composite
def _objects(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = draw(st.dictionaries(st.sampled_from(_WORDS), _VALUES, max_size=4))
    meta = draw(st.dictionaries(st.sampled_from(_WORDS), _VALUES, max_size=3))
    meta["labels"] = draw(st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u", "controller": True, "else": 1}
    meta["ownerReferences"] = draw(st.none() | st.just([owner]))
    meta["finalizers"] = draw(st.none() | st.just(["a/b"]))
    return {**found, "apiVersion": "v1", "metadata": meta, "much": {"more": [1, {"x": None}]}}


@given(obj=_objects(), paths=_PATHS)
def test_the_record_is_the_same(obj: dict[str, Any], paths: list[str]) -> None:
    field_paths, value = _paths(*paths), encode(obj)
    whole = record_of(decode.decode(value), ("n", "a"), 1, field_paths, value)
    assert record_of(facts_of(value, field_paths), ("n", "a"), 1, field_paths, value) == whole


def test_the_rest_is_not_decoded() -> None:
    value = encode({"metadata": {"uid": "u", "annotations": {"a": "b"}}, "spec": {"nodeName": "n", "containers": [{}]}})
    assert facts_of(value, _paths("spec.nodeName", "status.phase")) == {"metadata": {"uid": "u"}, "spec": {"nodeName": "n"}}


def test_a_path_above_another_is_decoded_whole() -> None:
    value = encode({"metadata": {}, "spec": {"a": {"b": 1, "c": 2}}})
    for paths in (_paths("spec.a", "spec.a.b"), _paths("spec.a.b", "spec.a")):
        assert facts_of(value, paths) == {"metadata": {}, "spec": {"a": {"b": 1, "c": 2}}}


@pytest.mark.parametrize("value", [b"", b"{", b'{"metadata":{}', b'{"metadata":{},"spec":[}', b'{"metadata":{}}x'])
def test_what_is_no_json_is_refused(value: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        facts_of(value, _paths("status.phase"))
