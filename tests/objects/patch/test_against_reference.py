"""The fast ways through objects and schemas must give what the plain ones give, to the letter."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.objects.patch import reference
from tests.objects.patch.ownership import LATER, NOW
from tests.objects.patch.strategies import SCHEMA, objects, shuffled

from muster.objects.patch import track_update
from muster.objects.patch.fieldset import paths
from muster.objects.patch.shape import root_shape
from muster.objects.patch.typed import compare, field_set, merge, prune
from muster.objects.status import Raw

# Values that meet every branch: members of all shapes, lists with and without keys, doubles, nulls, true next to 1 and 1.0.
names = st.sampled_from(
    ["n", "s", "map", "whole", "items", "ports", "set", "list", "sub", "name", "port", "protocol", "unknown"]
)
leaves = st.none() | st.booleans() | st.integers(0, 1) | st.sampled_from([1.0, "x", "y", "TCP", 'a "quoted" é'])
values: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
metadata = st.dictionaries(
    st.sampled_from(["labels", "finalizers", "ownerReferences", "uid", "generation"]), values, max_size=3
)


def _thing(spec: Any, meta: Raw, rest: Raw) -> Raw:
    return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "thing", **meta}, "spec": spec, **rest}


loose = objects | st.builds(_thing, values, metadata, st.dictionaries(st.sampled_from(["status", "data"]), values, max_size=2))
schemas = st.sampled_from([SCHEMA, None, SCHEMA["properties"]["spec"]])
writes = st.lists(st.tuples(loose, st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "status"])), min_size=1, max_size=4)


@given(schemas, writes)
def test_updates(schema: Raw | None, steps: list[tuple[Raw, str, str]]) -> None:
    live: Raw | None = None
    for number, (new, manager, subresource) in enumerate(steps):
        fast = track_update(live, new, manager, schema, NOW + number, subresource)
        plain = reference.track_update(live, new, manager, schema, NOW + number, subresource)
        # As text, because equal sets must also be written alike.
        assert json.dumps(fast) == json.dumps(plain)
        live = fast


@given(objects, st.data())
def test_the_order_of_members_means_nothing(raw: Raw, data: st.DataObject) -> None:
    live, mixed = track_update(None, raw, "a", SCHEMA, NOW), shuffled(raw, data.draw)
    entries = [json.dumps(track_update(None, new, "a", SCHEMA, NOW)["metadata"].get("managedFields")) for new in (raw, mixed)]
    assert entries[0] == entries[1]
    sets = [json.dumps(field_set(new, root_shape(SCHEMA))) for new in (raw, mixed)]
    assert sets[0] == sets[1]
    assert track_update(live, shuffled(live, data.draw), "b", SCHEMA, LATER) == live


@given(schemas, loose, loose)
def test_comparisons(schema: Raw | None, old: Raw, new: Raw) -> None:
    changes = compare(old, new, root_shape(schema))
    written, removed = reference.changes(old, new, reference.rooted(schema))
    assert json.dumps(changes) == json.dumps([reference.to_fields(written), reference.to_fields(removed)])
    assert set(paths(changes.written)) == written


@given(schemas, loose, loose, loose, loose)
def test_pruning(schema: Raw | None, live: Raw, config: Raw, before: Raw, others: Raw) -> None:
    shape = root_shape(schema)
    merged = merge(live, config, shape)
    dropped, owned = field_set(before, shape), field_set(others, shape)
    expected = reference.prune(merged, reference.to_paths(dropped), reference.to_paths(owned), reference.rooted(schema))
    assert json.dumps(prune(merged, dropped, owned, shape)) == json.dumps(expected)
