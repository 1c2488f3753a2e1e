"""What always holds for field ownership, whatever the objects are."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.objects.patch.ownership import LATER, NOW, apply, owned, thing, update
from tests.objects.patch.strategies import SCHEMA, anything, anything_like_an_object, nested, objects

from muster.objects.patch import apply_server_side, track_update
from muster.objects.status import ApiError, BadRequest, Conflict, Raw


@given(objects, objects, objects, st.booleans())
def test_applying_again_changes_nothing(first: Raw, second: Raw, third: Raw, use_schema: bool) -> None:
    schema = SCHEMA if use_schema else None
    live = update(None, first, "creator", schema=schema)
    live = apply(live, second, "one", force=True, schema=schema)
    with contextlib.suppress(Conflict):
        live = apply(live, third, "two", schema=schema)
    result = apply(live, third, "one", force=True, schema=schema)
    assert apply_server_side(result, third, "one", schema, LATER) == result


def _paths(raw: Raw) -> set[str]:
    return set().union(*owned(apply_server_side(None, raw, "m", SCHEMA, NOW)).values())


@given(objects, objects)
def test_managers_of_disjoint_fields_never_conflict(left: Raw, right: Raw) -> None:
    assume(not _paths(left) & _paths(right))
    live = apply(apply(None, left, "left"), right, "right")
    assert owned(live).get("left/Apply", set()) == _paths(left)
    assert owned(live).get("right/Apply", set()) == _paths(right)
    # And when one leaves, the other's part is untouched.
    rest = apply_server_side(live, thing(), "left", SCHEMA, NOW)
    assert owned(rest).get("right/Apply", set()) == _paths(right)
    assert owned(apply(rest, right, "right")) == owned(rest)


@given(objects, objects)
def test_a_forced_apply_gets_what_it_states(live: Raw, config: Raw) -> None:
    result = apply(update(None, live, "creator"), config, force=True)
    # Applying the result's own fields back changes nothing, so everything stated is there as stated.
    again = apply_server_side(result, config, "other", SCHEMA, NOW)
    assert again.get("spec") == result.get("spec")
    assert again["metadata"].get("labels") == result["metadata"].get("labels")


@given(objects, objects, objects)
def test_every_changed_field_has_an_owner(first: Raw, second: Raw, third: Raw) -> None:
    raw = update(None, first, "a")
    for writer, new in (("b", second), ("c", third)):
        metadata = {**new["metadata"], "managedFields": raw["metadata"].get("managedFields", [])}
        assume(metadata["managedFields"])
        raw = update(raw, {**new, "metadata": metadata}, writer)
    everything = set().union(*owned(raw).values()) if owned(raw) else set()
    assert {path for path in _paths(third) if not path.endswith("]")} <= everything


@given(anything_like_an_object | st.none(), anything_like_an_object, anything, st.booleans())
def test_any_input_gives_an_object_or_an_api_error(live: Raw | None, new: Raw, other: Any, force: bool) -> None:
    before = copy.deepcopy((live, new, other))
    for schema in (SCHEMA, None):
        with contextlib.suppress(ApiError):
            assert isinstance(track_update(live, new, "m", schema, NOW), dict)
        with contextlib.suppress(ApiError):
            assert isinstance(apply_server_side(live, new, "m", schema, NOW, force), dict)
        with contextlib.suppress(ApiError):
            apply_server_side(live, other, "kubectl", schema, NOW, force)
    assert (live, new, other) == before


@given(st.lists(anything, max_size=3), objects, objects)
def test_any_stored_entries_are_survived(entries: list[Any], live: Raw, config: Raw) -> None:
    stored: Raw = {**live, "metadata": {**live["metadata"], "managedFields": entries}}
    with contextlib.suppress(Conflict):
        apply(stored, config)
    assert isinstance(update(stored, config), dict)


def test_deep_objects_are_refused_not_crashed_on() -> None:
    deep = thing(nested(5000))
    for live, new in ((None, deep), (thing({"n": 1}), deep), (deep, deep)):
        with pytest.raises(BadRequest, match="levels deep"):
            track_update(live, new, "m", SCHEMA, NOW)
    with pytest.raises(BadRequest, match="levels deep"):
        apply_server_side(deep, thing({"n": 1}), "m", SCHEMA, NOW)
    assert track_update(None, thing(nested(98)), "m", SCHEMA, NOW)["spec"] == nested(98)
