"""Field ownership on ordinary writes, and the way from client-side to server-side apply."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from tests.objects.patch.ownership import LATER, NOW, apply, conflicts, owned, thing, update
from tests.objects.patch.strategies import SCHEMA, nested

from muster.objects.patch import apply_server_side
from muster.objects.patch.managed import LAST_APPLIED
from muster.objects.patch.managers import UPDATE_MANAGERS_MAX
from muster.objects.status import Conflict, Raw


def test_create_owns_all_of_it() -> None:
    created = update(None, thing({"n": 1, "items": [{"name": "A"}]}, labels={"l": "x"}, uid="u"), "kubectl-create")
    assert owned(created) == {
        "kubectl-create/Update": {
            ".metadata.labels", ".metadata.labels.l", ".spec", ".spec.n", ".spec.items", '.spec.items[name="A"]',
            '.spec.items[name="A"].name',
        }
    }  # fmt: skip


def test_update_owns_what_changed_and_removal_frees() -> None:
    old = update(None, thing({"n": 1, "s": "x", "map": {"k": "x"}}), "creator")
    new = update(old, {**old, "spec": {"n": 2, "map": {"k": "x", "l": "y"}}}, "editor", now=LATER)
    assert owned(new) == {
        "creator/Update": {".spec", ".spec.map", ".spec.map.k"},
        "editor/Update": {".spec.n", ".spec.map.l"},
    }
    times = {entry["manager"]: entry["time"] for entry in new["metadata"]["managedFields"]}
    assert times == {"creator": "2001-09-09T01:46:40Z", "editor": "2033-05-18T03:33:20Z"}


def test_an_update_that_changes_nothing_changes_no_entry() -> None:
    old = update(None, thing({"n": 1}), "creator")
    assert update(old, copy.deepcopy(old), "editor", now=LATER) == old
    again = update(old, {**old, "spec": {"n": 2}}, "creator", now=LATER)
    assert [e["time"] for e in again["metadata"]["managedFields"]] == ["2001-09-09T01:46:40Z"]


def test_true_is_not_one() -> None:
    old = update(None, thing({"unknown": {"p": 1}}), "creator")
    new = update(old, {**old, "spec": {"unknown": {"p": True}}}, "editor")
    assert owned(new)["editor/Update"] == {".spec.unknown.p"}


def test_entries_that_a_write_does_not_touch_stay_as_they_were_written() -> None:
    """Whatever their order: other servers write sets in other orders, and a write is not to rewrite what it does not change."""
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v", "time": "", "fieldsType": "FieldsV1", "more": 1}
    fields: Raw = {"f:spec": {"f:s": {}, "f:n": {}}, "f:data": {}}
    old = thing({"n": 1, "s": "x"}, managedFields=[{**entry, "fieldsV1": fields}])
    untouched = update(old, {**old, "spec": {"n": 1, "s": "x", "map": {}}}, "editor")
    assert json.dumps(untouched["metadata"]["managedFields"][0]["fieldsV1"]) == json.dumps(fields)
    assert untouched["metadata"]["managedFields"][0]["more"] == 1
    changed = update(old, {**old, "spec": {"s": "x"}, "data": 1}, "editor")
    assert json.dumps(changed["metadata"]["managedFields"][0]["fieldsV1"]) == '{"f:spec": {"f:s": {}}}'


def test_an_item_may_be_nothing_but_its_default_key() -> None:
    items = {"properties": {"p": {"default": "TCP"}}}
    ports = {"items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["p"]}
    schema = {"properties": {"spec": {"properties": {"ports": ports}}}}
    for raw in (update(None, thing({"ports": [{}]}), schema=schema), apply(None, thing({"ports": [{}]}), schema=schema)):
        (entry,) = raw["metadata"]["managedFields"]
        assert entry["fieldsV1"]["f:spec"]["f:ports"]['k:{"p":"TCP"}'] == {}


def test_subresources_have_entries_of_their_own() -> None:
    old = update(None, thing({"n": 1}), "one")
    new = update(old, {**old, "status": {"phase": "Running"}}, "one", subresource="status")
    assert owned(new) == {"one/Update": {".spec", ".spec.n"}, "one/Update/status": {".status", ".status.phase"}}
    applied = apply_server_side(new, {**thing(), "status": {"phase": "Done"}}, "two", SCHEMA, NOW, True, subresource="status")
    assert owned(applied)["two/Apply/status"] == {".status.phase"}
    assert applied["spec"] == {"n": 1}


def test_clients_may_set_the_entries_themselves() -> None:
    old = update(None, thing({"n": 1, "s": "x"}), "creator")
    mine = [
        {"manager": "m", "operation": "Apply", "apiVersion": "v", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:n": {}}}}
    ]
    given_entries = thing({"n": 1, "s": "x"}, managedFields=mine)
    assert owned(update(old, given_entries, "editor")) == {"m/Apply": {".spec.n"}}
    # Through a subresource they may not.
    assert set(owned(update(old, given_entries, "editor", subresource="status"))) == {"creator/Update"}


@pytest.mark.parametrize(
    "entries", [None, "x", [5], [{"manager": "m"}], [{"operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"x": {}}}]]
)
def test_entries_that_make_no_sense_do_not_replace_the_stored_ones(entries: Any) -> None:
    old = update(None, thing({"n": 1}), "creator")
    assert update(old, thing({"n": 1}, managedFields=entries), "editor") == old


@pytest.mark.parametrize("entries", [[], [{}]])
def test_ownership_can_be_reset_and_the_next_apply_is_careful(entries: list[Raw]) -> None:
    old = update(None, thing({"n": 1}), "creator")
    reset = update(old, thing({"n": 1}, managedFields=entries), "editor")
    assert "managedFields" not in reset["metadata"]
    still = update(reset, thing({"n": 2}), "editor")
    assert "managedFields" not in still["metadata"]
    with pytest.raises(Conflict) as caught:
        apply(still, thing({"n": 3}), "me")
    assert conflicts(caught) == {".spec.n": 'conflict with "before-first-apply" using example.com/v1'}
    before = {".spec", ".spec.n"}
    assert owned(apply(still, thing({"n": 2}), "me")) == {"before-first-apply/Update": before, "me/Apply": {".spec.n"}}


def test_an_object_with_nothing_to_own_is_tracked_once_it_has() -> None:
    old = update(None, thing(), "creator")
    assert "managedFields" not in old["metadata"]
    new = update(old, thing(None, labels={"a": "b"}), "labeller")
    assert owned(new) == {"labeller/Update": {".metadata.labels", ".metadata.labels.a"}}


def test_the_entries_of_many_short_lived_clients_are_joined() -> None:
    raw = update(None, thing({"map": {"k0": "x"}}), "c0", now=0)
    for i in range(1, 30):
        raw = update(raw, {**raw, "spec": {"map": {**raw["spec"]["map"], f"k{i}": "x"}}}, f"c{i}", now=i)
    found = owned(raw)
    assert len(found) == UPDATE_MANAGERS_MAX
    assert {path for fields in found.values() for path in fields} >= {f".spec.map.k{i}" for i in range(30)}
    assert ".spec.map.k0" in found["ancient-changes/Update"]
    assert found["c29/Update"] == {".spec.map.k29"}


def _entry(manager: str, time: str, field: str) -> Raw:
    fields: Raw = {"f:spec": {"f:map": {f"f:{field}": {}}}}
    known = {"operation": "Update", "apiVersion": "example.com/v1", "fieldsType": "FieldsV1"}
    return {"manager": manager, "time": time, "fieldsV1": fields, **known}


@pytest.mark.parametrize("year", [2001, 2020, 2040])
def test_entries_are_joined_whatever_time_a_client_gives_to_the_joined_one(year: int) -> None:
    raw = thing({"map": {f"k{i}": "x" for i in range(30)}})
    entries = [_entry(f"c{i}", f"20{i + 10}-01-01T00:00:00Z", f"k{i}") for i in range(29)]
    entries.append(_entry("ancient-changes", f"{year}-01-01T00:00:00Z", "k29"))
    given = {**raw, "metadata": {**raw["metadata"], "managedFields": entries}}
    found = owned(update(raw, given))
    assert len(found) <= UPDATE_MANAGERS_MAX
    assert {path for fields in found.values() for path in fields} == {f".spec.map.k{i}" for i in range(30)}


def test_entries_of_one_manager_are_one() -> None:
    raw = thing({"map": {f"k{i}": "x" for i in range(5)}})
    entries = [_entry("c", "2020-01-01T00:00:00Z", f"k{i}") for i in range(5)]
    given = {**raw, "metadata": {**raw["metadata"], "managedFields": entries}}
    assert owned(update(raw, given)) == {"c/Update": {f".spec.map.k{i}" for i in range(5)}}


# --- from client-side apply to server-side apply --------------------------------------------------------------------------


def _client_side(spec: Raw) -> Raw:
    """What client-side kubectl apply leaves behind."""
    config = thing(spec)
    annotated = thing(spec, annotations={LAST_APPLIED: json.dumps(config) + "\n"})
    return update(None, annotated, "kubectl-client-side-apply")


def test_kubectl_takes_over_from_its_client_side() -> None:
    live = _client_side({"n": 1, "s": "x"})
    result = apply(live, thing({"n": 2, "s": "x"}), "kubectl")
    assert result["spec"] == {"n": 2, "s": "x"}
    assert owned(result)["kubectl/Apply"] == {".spec.n", ".spec.s"}
    assert ".spec.n" not in owned(result)["kubectl-client-side-apply/Update"]
    assert json.loads(result["metadata"]["annotations"][LAST_APPLIED]) == thing({"n": 2, "s": "x"})


def test_but_not_what_somebody_changed_since() -> None:
    live = _client_side({"n": 1, "s": "x"})
    live = update(live, {**live, "spec": {"n": 7, "s": "x"}}, "autoscaler")
    with pytest.raises(Conflict) as caught:
        apply(live, thing({"n": 2, "s": "y"}), "kubectl")
    assert conflicts(caught) == {".spec.n": 'conflict with "autoscaler" using example.com/v1'}


def test_and_nobody_else_may() -> None:
    with pytest.raises(Conflict) as caught:
        apply(_client_side({"n": 1}), thing({"n": 2}), "argo")
    assert conflicts(caught) == {".spec.n": 'conflict with "kubectl-client-side-apply" using example.com/v1'}


@pytest.mark.parametrize("annotation", ["", "{", "[]", "5", '{"apiVersion":"other/v1"}', "[" * 3000, json.dumps(nested(500))])
def test_a_spoilt_annotation_gives_no_rights(annotation: str) -> None:
    live = update(None, thing({"n": 1}, annotations={LAST_APPLIED: annotation}), "kubectl-client-side-apply")
    with pytest.raises(Conflict):
        apply(live, thing({"n": 2}), "kubectl")


def test_kubectls_own_migration_is_an_update_of_the_entries() -> None:
    """kubectl renames the client-side entry to its own Apply entry with a patch of managedFields, and applies again."""
    live = _client_side({"n": 1, "s": "x"})
    (entry,) = live["metadata"]["managedFields"]
    migrated = update(
        live,
        thing(
            live["spec"],
            annotations=live["metadata"]["annotations"],
            managedFields=[{**entry, "manager": "kubectl", "operation": "Apply"}],
        ),
        "kubectl",
    )
    assert set(owned(migrated)) == {"kubectl/Apply"}
    assert apply(migrated, thing({"n": 1}), "kubectl")["spec"] == {"n": 1}
