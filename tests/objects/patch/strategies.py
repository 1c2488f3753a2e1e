"""Hypothesis strategies for objects, patches and the schema that the patch tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from muster.objects.status import Raw


def keyed_list(key: str, properties: Raw) -> Raw:
    """The schema of a list whose items are told apart by `key`, for apply and for strategic merge alike."""
    return {
        "type": "array",
        "items": {"type": "object", "properties": properties},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
        "x-kubernetes-patch-merge-key": key,
        "x-kubernetes-patch-strategy": "merge",
    }


TEXT: Raw = {"type": "string"}
NUMBER: Raw = {"type": "integer"}
SCHEMA: Raw = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "n": NUMBER,
                "s": TEXT,
                "maybe": {"type": "string", "nullable": True},
                "map": {"type": "object", "additionalProperties": TEXT},
                "whole": {"type": "object", "additionalProperties": TEXT, "x-kubernetes-map-type": "atomic"},
                "items": keyed_list("name", {"name": TEXT, "v": NUMBER, "w": NUMBER, "set": {"type": "array", "items": TEXT}}),
                "ports": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"port": NUMBER, "protocol": {"type": "string", "default": "TCP"}, "name": TEXT},
                    },
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["port", "protocol"],
                },
                "set": {
                    "type": "array",
                    "items": TEXT,
                    "x-kubernetes-list-type": "set",
                    "x-kubernetes-patch-strategy": "merge",
                },
                "list": {"type": "array", "items": TEXT},
                "sub": {"type": "object", "properties": {"a": TEXT, "b": TEXT}},
                "fresh": {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "x-kubernetes-patch-strategy": "replace"},
            },
        },
        "status": {"type": "object", "properties": {"phase": TEXT}},
    },
}

words = st.sampled_from(["x", "y", "z"])
numbers = st.integers(0, 3)
maps = st.dictionaries(st.sampled_from(["k", "l", "m"]), words, max_size=3)


def _item(name: str, rest: Raw) -> Raw:
    return {"name": name, **rest}


items = st.lists(
    st.builds(
        _item,
        st.sampled_from("ABC"),
        st.fixed_dictionaries({}, optional={"v": numbers, "w": numbers, "set": st.lists(words, max_size=2)}),
    ),
    max_size=3,
    unique_by=lambda item: str(item["name"]),
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "n": numbers,
        "s": words,
        "map": maps,
        "whole": maps,
        "items": items,
        "set": st.lists(words, max_size=3, unique=True),
        "list": st.lists(words, max_size=3),
        "sub": st.dictionaries(st.sampled_from(["a", "b"]), words, max_size=2),
        "unknown": st.dictionaries(st.sampled_from(["p", "q"]), st.integers(0, 1) | maps, max_size=2),
    },
)


def _object(spec: Raw, labels: Raw) -> Raw:
    raw: Raw = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "thing"}, "spec": spec}
    if labels:
        raw["metadata"]["labels"] = labels
    return raw


objects = st.builds(_object, specs, maps)
"""Objects that fit `SCHEMA`."""

anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "metadata", "items", "name", "set", "managedFields", "labels", "$patch", "$retainKeys"])
            | st.sampled_from(["$setElementOrder/items", "$deleteFromPrimitiveList/set", "annotations", "finalizers", "kind"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)
"""JSON that fits nothing in particular."""

anything_like_an_object = st.builds(
    lambda head, body: {**body, **head},
    st.fixed_dictionaries({}, optional={"apiVersion": st.just("example.com/v1"), "kind": st.just("Thing")}),
    st.dictionaries(st.sampled_from(["spec", "metadata", "status", "x"]), anything, max_size=4),
)


def shuffled(value: Any, draw: Callable[[st.SearchStrategy[list[str]]], list[str]]) -> Any:
    """The same JSON with the members of its objects in another order."""
    if isinstance(value, list):
        return [shuffled(item, draw) for item in value]
    if isinstance(value, dict):
        return {key: shuffled(value[key], draw) for key in draw(st.permutations(list(value)))}
    return value


def nested(depth: int, key: str = "a") -> Raw:
    """`{"a": {"a": ...}}`, made without recursion."""
    value: Raw = {}
    for _ in range(depth - 1):
        value = {key: value}
    return value
