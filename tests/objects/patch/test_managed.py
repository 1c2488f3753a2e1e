"""Server-side apply. The cases follow what a kube-apiserver does with the same requests."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.objects.patch.ownership import LATER, NOW, apply, conflicts, owned, thing, update
from tests.objects.patch.strategies import SCHEMA, TEXT, keyed_list, nested

from muster.objects.patch import apply_server_side
from muster.objects.status import BadRequest, Conflict, Invalid, Raw

# --- what an apply owns ---------------------------------------------------------------------------------------------------


def test_applying_creates_and_owns_what_it_states() -> None:
    config = thing(
        {
            "n": 1,
            "map": {"k": "x"},
            "whole": {"k": "x"},
            "list": ["x"],
            "set": ["x"],
            "items": [{"name": "A", "v": 1}],
            "ports": [{"port": 80}],
            "sub": {},
        },
        labels={"l": "y"},
        finalizers=["f"],
        ownerReferences=[{"uid": "u", "name": "o"}],
    )
    result = apply(None, config)
    assert {k: v for k, v in result.items() if k != "metadata"} == {k: v for k, v in config.items() if k != "metadata"}
    assert owned(result) == {
        "me/Apply": {
            ".metadata.labels.l",
            '.metadata.finalizers[="f"]',
            '.metadata.ownerReferences[uid="u"]',
            ".spec.n",
            ".spec.map.k",
            ".spec.whole",
            ".spec.list",
            '.spec.set[="x"]',
            '.spec.items[name="A"]',
            '.spec.items[name="A"].name',
            '.spec.items[name="A"].v',
            '.spec.ports[port=80,protocol="TCP"]',
            '.spec.ports[port=80,protocol="TCP"].port',
            ".spec.sub",
        }
    }
    (entry,) = result["metadata"]["managedFields"]
    assert {k: v for k, v in entry.items() if k != "fieldsV1"} == {
        "manager": "me",
        "operation": "Apply",
        "apiVersion": "example.com/v1",
        "time": "2001-09-09T01:46:40Z",
        "fieldsType": "FieldsV1",
    }
    assert entry["fieldsV1"]["f:spec"]["f:items"] == {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:v": {}}}


def test_identity_and_what_the_store_sets_belong_to_nobody() -> None:
    config = thing(None, namespace="ns", creationTimestamp=None, uid="", labels={"a": "b"})
    assert owned(apply(None, config)) == {"me/Apply": {".metadata.labels.a"}}
    live = apply(None, thing({"n": 1}))
    live["metadata"].update({"uid": "u", "resourceVersion": "5", "creationTimestamp": "2001-09-09T01:46:40Z", "generation": 2})
    result = apply(live, thing({"n": 2}, creationTimestamp="1999-01-01T00:00:00Z", generation=9))
    for name in ("uid", "resourceVersion", "creationTimestamp", "generation"):
        assert result["metadata"][name] == live["metadata"][name]


def test_without_a_schema_objects_merge_and_lists_are_whole() -> None:
    live = apply(None, thing({"a": {"b": 1}, "list": [1, 2]}), "one", schema=None)
    result = apply(live, thing({"a": {"c": 2}}), "two", schema=None)
    assert result["spec"] == {"a": {"b": 1, "c": 2}, "list": [1, 2]}
    with pytest.raises(Conflict) as caught:
        apply(result, thing({"list": [1]}), "two", schema=None)
    assert list(conflicts(caught)) == [".spec.list"]


# --- what an apply removes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param({"n": 1, "s": "x"}, {"n": 1}, {"n": 1}, id="a member"),
        pytest.param(
            {"n": 1, "map": {"k": "x", "l": "y"}}, {"n": 1, "map": {"l": "y"}}, {"n": 1, "map": {"l": "y"}}, id="a map's entry"
        ),
        pytest.param({"n": 1, "sub": {"a": "x"}}, {"n": 1}, {"n": 1}, id="an object with its last member"),
        pytest.param(
            {"items": [{"name": "A"}, {"name": "B"}]}, {"items": [{"name": "B"}]}, {"items": [{"name": "B"}]}, id="an item"
        ),
        pytest.param(
            {"items": [{"name": "A", "v": 1}]}, {"items": [{"name": "A"}]}, {"items": [{"name": "A"}]}, id="in an item"
        ),
        pytest.param({"n": 1, "items": [{"name": "A"}]}, {"n": 1}, {"n": 1}, id="a list with its last item"),
        pytest.param({"set": ["x", "y"]}, {"set": ["y"]}, {"set": ["y"]}, id="a value"),
        pytest.param({"list": ["x"], "whole": {"k": "x"}, "n": 1}, {"n": 1}, {"n": 1}, id="what is whole"),
        pytest.param({"list": ["x", "y"]}, {"list": ["y"]}, {"list": ["y"]}, id="a whole list changes as a whole"),
        pytest.param({"n": 1, "unknown": {"p": {"q": 1}}}, {"n": 1}, {"n": 1}, id="what no schema knows"),
    ],
)
def test_what_is_left_out_is_removed(first: Raw, second: Raw, expected: Raw) -> None:
    assert apply(apply(None, thing(first)), thing(second))["spec"] == expected


def test_what_somebody_else_owns_stays() -> None:
    live = apply(None, thing({"n": 1, "map": {"k": "x"}, "items": [{"name": "A", "v": 1}]}), "one")
    live = apply(live, thing({"n": 1, "map": {"k": "x"}, "items": [{"name": "A", "w": 2}]}), "two")
    result = apply(live, thing({}), "one")
    assert result["spec"] == {"n": 1, "map": {"k": "x"}, "items": [{"name": "A", "w": 2}]}
    assert owned(result) == {
        "one/Apply": {".spec"},
        "two/Apply": {
            ".spec.n",
            ".spec.map.k",
            '.spec.items[name="A"]',
            '.spec.items[name="A"].name',
            '.spec.items[name="A"].w',
        },
    }


def test_an_item_goes_with_the_one_who_put_it_there() -> None:
    """Somebody who changed a field in it does not hold the item: without its key it would be none."""
    live = apply(None, thing({"items": [{"name": "A"}]}), "one")
    live = update(live, {**live, "spec": {"items": [{"name": "A", "v": 1}]}})
    result = apply(live, thing({"n": 1}), "one")
    assert result["spec"] == {"n": 1}
    assert owned(result) == {"one/Apply": {".spec.n"}}


def test_what_nobody_stated_stays() -> None:
    live = apply(None, thing({"n": 1}))
    live["status"] = {"phase": "Running"}
    live["spec"]["s"] = "default"
    result = apply(live, thing({"n": 2}))
    assert result["spec"] == {"n": 2, "s": "default"}
    assert result["status"] == {"phase": "Running"}


def test_a_manager_that_owns_nothing_is_gone() -> None:
    live = apply(apply(None, thing({"n": 1}), "one"), thing({"n": 1, "s": "x"}), "two")
    result = apply_server_side(live, thing(), "one", SCHEMA, LATER)
    assert set(owned(result)) == {"two/Apply"}
    last = apply_server_side(result, thing(), "two", SCHEMA, LATER)
    assert last == thing()


# --- conflicts ------------------------------------------------------------------------------------------------------------


def test_another_value_for_what_somebody_owns_is_a_conflict() -> None:
    live = apply(None, thing({"n": 1, "s": "x"}), "one")
    before = copy.deepcopy(live)
    with pytest.raises(Conflict) as caught:
        apply(live, thing({"n": 2, "s": "x"}), "two")
    assert conflicts(caught) == {".spec.n": 'conflict with "one"'}
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "one": .spec.n'
    assert (caught.value.code, caught.value.reason, caught.value.kind, caught.value.name) == (409, "Conflict", "Thing", "thing")
    assert live == before


def test_all_conflicts_are_listed() -> None:
    live = apply(None, thing({"n": 1, "items": [{"name": "A", "v": 1}], "list": ["x"]}), "one")
    live = update(live, {**live, "spec": {**live["spec"], "s": "x"}}, "editor")
    with pytest.raises(Conflict) as caught:
        apply(live, thing({"n": 2, "s": "y", "items": [{"name": "A", "v": 2}], "list": ["y"]}), "two")
    assert conflicts(caught) == {
        ".spec.n": 'conflict with "one"',
        ".spec.list": 'conflict with "one"',
        '.spec.items[name="A"].v': 'conflict with "one"',
        ".spec.s": 'conflict with "editor" using example.com/v1',
    }
    assert caught.value.message.startswith("Apply failed with 4 conflicts: ")


def test_a_thousand_conflicts_make_a_message_of_bounded_size() -> None:
    many = {f"k{i}": "x" for i in range(1000)}
    live = apply(None, thing({"map": many}), "one")
    with pytest.raises(Conflict) as caught:
        apply(live, thing({"map": dict.fromkeys(many, "y")}), "two")
    assert len(caught.value.causes) == 100
    assert "Apply failed with 1000 conflicts" in caught.value.message
    assert "and 900 more" in caught.value.message


def test_the_same_value_is_owned_together() -> None:
    live = apply(apply(None, thing({"n": 1}), "one"), thing({"n": 1}), "two")
    assert owned(live) == {"one/Apply": {".spec.n"}, "two/Apply": {".spec.n"}}
    with pytest.raises(Conflict):
        apply(live, thing({"n": 2}), "one")


def test_force_takes_over() -> None:
    live = apply(None, thing({"n": 1, "s": "x"}), "one")
    result = apply(live, thing({"n": 2}), "two", force=True)
    assert result["spec"] == {"n": 2, "s": "x"}
    assert owned(result) == {"one/Apply": {".spec.s"}, "two/Apply": {".spec.n"}}


def test_an_edit_takes_fields_from_the_applier_who_then_meets_a_conflict() -> None:
    live = apply(None, thing({"n": 1, "s": "x"}), "one")
    edited = update(live, {**live, "spec": {"n": 5, "s": "x"}}, "editor")
    assert owned(edited) == {"one/Apply": {".spec.s"}, "editor/Update": {".spec.n"}}
    with pytest.raises(Conflict) as caught:
        apply(edited, thing({"n": 1, "s": "x"}), "one")
    assert list(conflicts(caught)) == [".spec.n"]
    assert apply(edited, thing({"s": "x"}), "one")["spec"] == {"n": 5, "s": "x"}


# --- order, null, empty ---------------------------------------------------------------------------------------------------


def test_lists_take_the_appliers_order_and_live_items_keep_their_places() -> None:
    live = apply(None, thing({"items": [{"name": n} for n in "ABCD"]}), "one")
    result = apply(live, thing({"items": [{"name": "C"}, {"name": "E"}, {"name": "A"}]}), "two")
    assert [item["name"] for item in result["spec"]["items"]] == ["C", "B", "E", "A", "D"]


def test_null_unsets_and_conflicts_like_any_value() -> None:
    live = apply(None, thing({"n": 1, "s": "x"}), "one")
    with pytest.raises(Conflict):
        apply(live, thing({"s": None}), "two")
    result = apply(live, thing({"s": None}), "two", force=True)
    assert result["spec"] == {"n": 1}
    assert apply(None, thing({"maybe": None, "s": None, "sub": {"a": None}}))["spec"] == {"maybe": None, "sub": {}}
    apply(result, thing({"s": None}), "three")


def test_an_empty_object_is_stated_and_does_not_empty_what_is_there() -> None:
    live = apply(None, thing({"sub": {"a": "x"}, "items": [{"name": "A"}]}), "one")
    result = apply(live, thing({"sub": {}, "items": [], "map": {}}), "two")
    assert result["spec"] == {"sub": {"a": "x"}, "items": [{"name": "A"}], "map": {}}


# --- schemas that change ---------------------------------------------------------------------------------------------------


def _with_list_type(list_type: str) -> Raw:
    schema: Raw = copy.deepcopy(SCHEMA)
    schema["properties"]["spec"]["properties"]["items"]["x-kubernetes-list-type"] = list_type
    return schema


def test_a_list_that_became_keyed_still_loses_what_is_left_out() -> None:
    live = apply(None, thing({"items": [{"name": "A"}, {"name": "B"}]}), schema=_with_list_type("atomic"))
    assert apply(live, thing({"items": [{"name": "B"}]}))["spec"] == {"items": [{"name": "B"}]}


def test_a_list_that_became_atomic_still_conflicts() -> None:
    live = apply(None, thing({"items": [{"name": "A"}, {"name": "B"}]}), "one")
    with pytest.raises(Conflict) as caught:
        apply(live, thing({"items": [{"name": "B"}]}), "two", schema=_with_list_type("atomic"))
    assert list(conflicts(caught)) == [".spec.items"]


NONSENSE: Raw = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": 5, "items": []}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": []},
        {"properties": {"spec": "x"}},
        {"properties": {"spec": {"properties": {"items": NONSENSE}}}},
    ],
)
def test_a_nonsensical_schema_counts_as_none(schema: Any) -> None:
    live = apply(None, thing({"items": [{"name": "A"}]}), schema=schema)
    assert apply(live, thing({"items": [{"name": "B"}]}), schema=schema)["spec"] == {"items": [{"name": "B"}]}


# --- what can't be applied -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "must be an object"),
        ([], "must be an object"),
        ({}, "apiVersion"),
        ({"apiVersion": "example.com/v1"}, "kind is null"),
        ({"apiVersion": 5, "kind": "Thing"}, "apiVersion"),
        ({"apiVersion": "other/v1", "kind": "Thing"}, 'apiVersion is "other/v1", but the object has "example.com/v1"'),
        ({"apiVersion": "example.com/v1", "kind": "Other"}, "kind"),
        ({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": 5}, "metadata is 5"),
        (thing({}, managedFields=[]), "managedFields must be nil"),
        (thing(nested(5000)), "levels deep"),
    ],
)
def test_bad_configurations(config: Any, message: str) -> None:
    live = apply(None, thing({"n": 1}))
    with pytest.raises(BadRequest, match=message):
        apply_server_side(live, config, "me", SCHEMA, NOW)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"items": [{"v": 1}]}, ".spec.items[0]"),
        ({"items": [{"name": "A"}, 5]}, ".spec.items[1]"),
        ({"items": [{"name": "A"}, {"name": "A"}]}, ".spec.items[1]"),
        ({"items": [{"name": None}]}, ".spec.items[0]"),
        ({"set": ["x", "x"]}, ".spec.set[1]"),
        ({"set": [{}]}, ".spec.set[0]"),
        ({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}, ".spec.ports[1]"),
    ],
)
def test_lists_that_can_not_be_merged_name_the_item(spec: Raw, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        apply_server_side(None, thing(spec), "me", SCHEMA, NOW)
    assert [cause.field for cause in caught.value.causes] == [field]


def test_but_what_is_stored_already_never_makes_a_write_fail() -> None:
    twice: Raw = {"items": [{"name": "A", "v": 1}, {"name": "A", "v": 2}, {}], "set": [{}, {}]}
    live = update(None, thing(twice), "creator")
    assert ".spec.items" in owned(live)["creator/Update"]
    changed = update(live, {**live, "spec": {**twice, "n": 1}}, "editor")
    assert owned(changed)["editor/Update"] == {".spec.n"}
    assert apply(changed, thing({"items": [{"name": "B"}]}), force=True)["spec"]["items"] == [{"name": "B"}]


@pytest.mark.parametrize("manager", ["", "a" * 129, "a\nb"])
def test_a_manager_needs_a_name(manager: str) -> None:
    with pytest.raises(BadRequest, match="manager"):
        apply_server_side(None, thing(), manager, SCHEMA, NOW)


def test_a_version_or_uid_in_the_configuration_must_match() -> None:
    live = apply(None, thing({"n": 1}))
    live["metadata"].update(resourceVersion="5", uid="u")
    assert apply_server_side(live, thing({"n": 2}, resourceVersion="5", uid="u"), "me", SCHEMA, NOW)["spec"] == {"n": 2}
    with pytest.raises(Conflict, match="resourceVersion"):
        apply_server_side(live, thing({"n": 2}, resourceVersion="4"), "me", SCHEMA, NOW)
    with pytest.raises(Conflict, match="uid"):
        apply_server_side(live, thing({"n": 2}, uid="other"), "me", SCHEMA, NOW)


# --- what is empty --------------------------------------------------------------------------------------------------------


_SUB: Raw = {"type": "object", "properties": {"a": TEXT, "b": TEXT}}
_WITH_SUBS = {
    "type": "object",
    "properties": {
        "spec": {"type": "object", "properties": {"items": keyed_list("name", {"name": TEXT, "sub": _SUB}), "sub": _SUB}}
    },
}


@pytest.mark.parametrize("count", [1, 20])
def test_an_empty_object_that_is_stated_again_takes_nothing_with_it(count: int) -> None:
    """Defaults and hooks have filled it, and nobody owns that: who states the same again changes nothing."""
    names = [f"n{number}" for number in range(count)]
    config = thing({"sub": {}, "items": [{"name": name, "sub": {}} for name in names]})
    live = apply(None, config, schema=_WITH_SUBS)
    for part in (live["spec"], *live["spec"]["items"]):
        part["sub"] = {"a": "x"}
    assert apply(live, config, now=LATER, schema=_WITH_SUBS) == live
    fewer = apply(live, thing({"items": [{"name": name} for name in names]}), now=LATER, schema=_WITH_SUBS)
    assert fewer["spec"] == {"items": [{"name": name} for name in names]}, "what is stated no more goes with what is in it"
