"""Server-side apply: ownership of fields, conflicts, giving up, taking over."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.resources import Resource
from muster.objects.status import BadRequest, Conflict, Raw
from muster.store.contract import PatchType, Store, WriteOptions
from tests.store.conformance.support import config_map, custom_kind, pod, widget


async def apply(
    store: Store, resource: Resource, obj: Raw, namespace: str, manager: str, *, force: bool = False, dry_run: bool = False
) -> Raw:
    return await store.patch(
        resource,
        obj["metadata"]["name"],
        {"apiVersion": resource.api_version, "kind": resource.kind, **obj},
        namespace,
        WriteOptions(field_manager=manager, force=force, dry_run=dry_run),
        patch_type=PatchType.APPLY,
    )


def managers(obj: Raw) -> dict[str, str]:
    return {entry["manager"]: entry["operation"] for entry in obj["metadata"]["managedFields"]}


def owned(obj: Raw, manager: str) -> Any:
    return next(entry["fieldsV1"] for entry in obj["metadata"]["managedFields"] if entry["manager"] == manager)


async def test_creates_what_is_not_there(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    applied = await apply(store, maps, config_map("a", {"x": "1"}), namespace, "one")
    assert applied["data"] == {"x": "1"}
    assert managers(applied) == {"one": "Apply"}
    assert owned(applied, "one") == {"f:data": {"f:x": {}}}
    assert applied["metadata"]["uid"]
    assert await store.get(maps, "a", namespace) == applied


async def test_the_same_again_changes_nothing(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    first = await apply(store, maps, config_map("a", {"x": "1"}), namespace, "one")
    assert await apply(store, maps, config_map("a", {"x": "1"}), namespace, "one") == first


async def test_what_is_left_out_goes_unless_another_owns_it(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await apply(store, maps, config_map("a", {"x": "1", "y": "2"}), namespace, "one")
    await apply(store, maps, config_map("a", {"y": "2", "z": "3"}), namespace, "two")
    applied = await apply(store, maps, config_map("a", {"w": "0"}), namespace, "one")
    assert applied["data"] == {"w": "0", "y": "2", "z": "3"}


async def test_another_managers_value_is_a_conflict_unless_forced(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await apply(store, maps, config_map("a", {"x": "1"}), namespace, "one")
    with pytest.raises(Conflict, match='conflict with "one"') as refused:
        await apply(store, maps, config_map("a", {"x": "2"}), namespace, "two")
    (cause,) = refused.value.causes
    assert (cause.reason, cause.field) == ("FieldManagerConflict", ".data.x")
    assert (await store.get(maps, "a", namespace))["data"] == {"x": "1"}
    applied = await apply(store, maps, config_map("a", {"x": "2"}), namespace, "two", force=True)
    assert applied["data"] == {"x": "2"}
    assert set(managers(applied)) == {"two"}


async def test_two_may_own_the_same_value(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await apply(store, maps, config_map("a", {"x": "1"}), namespace, "one")
    applied = await apply(store, maps, config_map("a", {"x": "1"}), namespace, "two")
    assert set(managers(applied)) == {"one", "two"}
    with pytest.raises(Conflict):
        await apply(store, maps, config_map("a", {"x": "2"}), namespace, "one")


async def test_an_update_takes_fields_over(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await apply(store, maps, config_map("a", {"x": "1", "y": "2"}), namespace, "one")
    patched = await store.patch(maps, "a", {"data": {"x": "9"}}, namespace, WriteOptions(field_manager="editor"))
    assert managers(patched) == {"one": "Apply", "editor": "Update"}
    assert owned(patched, "one") == {"f:data": {"f:y": {}}}
    with pytest.raises(Conflict, match="editor"):
        await apply(store, maps, config_map("a", {"x": "1", "y": "2"}), namespace, "one")


async def test_creates_and_updates_are_tracked(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(
        maps, config_map("a", {"x": "1"}, labels={"l": "1"}), namespace, WriteOptions(field_manager="maker")
    )
    (entry,) = created["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["apiVersion"], entry["fieldsType"]) == (
        "maker",
        "Update",
        "v1",
        "FieldsV1",
    )
    assert entry["time"]
    assert entry["fieldsV1"] == {"f:data": {".": {}, "f:x": {}}, "f:metadata": {"f:labels": {".": {}, "f:l": {}}}}


async def test_keyed_lists_are_owned_by_item(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await apply(store, pods, pod("a"), namespace, "one")
    side = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main", "image": "example.com/app:2"}]}}
    with pytest.raises(Conflict) as refused:
        await apply(store, pods, side, namespace, "two")
    assert [cause.field for cause in refused.value.causes] == ['.spec.containers[name="main"].image']


async def test_custom_kinds_by_their_schema(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        one = widget(widgets.group, "a", parts=[{"name": "p", "weight": 1}, {"name": "q", "weight": 2}])
        await apply(store, widgets, one, namespace, "one")
        two = {"metadata": {"name": "a"}, "spec": {"size": 1, "parts": [{"name": "r", "weight": 3}]}}
        applied = await apply(store, widgets, two, namespace, "two")
        assert [part["name"] for part in applied["spec"]["parts"]] == ["p", "q", "r"]
        applied = await apply(store, widgets, widget(widgets.group, "a", parts=[{"name": "q", "weight": 2}]), namespace, "one")
        assert [part["name"] for part in applied["spec"]["parts"]] == ["q", "r"]


async def test_dry_run(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    first = await apply(store, maps, config_map("a", {"x": "1"}), namespace, "one")
    tried = await apply(store, maps, config_map("a", {"x": "2"}), namespace, "one", dry_run=True)
    assert tried["data"] == {"x": "2"}
    assert await store.get(maps, "a", namespace) == first


async def test_bad_configurations(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    with_managers = config_map("a", managedFields=[{"manager": "x", "operation": "Apply"}])
    with pytest.raises(BadRequest):
        await apply(store, maps, with_managers, namespace, "one")
    with pytest.raises(BadRequest):
        await apply(store, maps, {**config_map("a"), "kind": "Secret"}, namespace, "one")


async def test_generation_moves_with_an_apply_that_changes_spec(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        applied = await apply(store, widgets, widget(widgets.group, "a"), namespace, "one")
        assert applied["metadata"]["generation"] == 1
        applied = await apply(store, widgets, widget(widgets.group, "a", size=3), namespace, "one")
        assert applied["metadata"]["generation"] == 2


# --- amounts: they are kept in one spelling, and applied in any ---------------------------------------------------------------


def _asking(cpu: str) -> Raw:
    container = {"name": "main", "image": "example.com/app:1", "resources": {"requests": {"cpu": cpu}}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    return {"metadata": {"name": "d"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}}


def _cpu(obj: Raw) -> str:
    asked: str = obj["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    return asked


async def test_an_amount_in_another_spelling_is_applied_again_and_again_without_a_change(store: Store, namespace: str) -> None:
    deployments = await store.resource("apps", "Deployment")
    first = await apply(store, deployments, _asking("1000m"), namespace, "one")
    assert _cpu(first) == "1"
    for cpu in ("1000m", "1", "1000m"):
        again = await apply(store, deployments, _asking(cpu), namespace, "one")
        assert _cpu(again) == "1"
        assert again["metadata"]["generation"] == first["metadata"]["generation"]
        assert owned(again, "one") == owned(first, "one")


async def test_whose_amount_it_is_goes_by_what_was_written(store: Store, namespace: str) -> None:
    """Kubernetes compares what is applied with what it keeps, as texts."""
    deployments = await store.resource("apps", "Deployment")
    await apply(store, deployments, _asking("1000m"), namespace, "one")
    with pytest.raises(Conflict, match=r"resources\.requests\.cpu"):
        await apply(store, deployments, _asking("1000m"), namespace, "two")
    both = await apply(store, deployments, _asking("1"), namespace, "two")
    assert owned(both, "one") == owned(both, "two")
    forced = await apply(store, deployments, _asking("1000m"), namespace, "one", force=True)
    assert _cpu(forced) == "1"
    assert owned(forced, "one") != owned(forced, "two")
