"""Custom kinds in the embedded store: versions, unknown fields, names, restarts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from muster.objects.status import BadRequest, Conflict, Invalid, MethodNotAllowed, NotFound, Raw
from muster.store.contract import PatchType, WriteOptions
from muster.store.embedded import EmbeddedStore
from tests.store.embedded.support import CONFIG_MAPS, CRDS, config_map, open_store

GROUP = "example.com"


def version(name: str, *, served: bool = True, storage: bool = False, **spec_fields: Any) -> Raw:
    properties = {"size": {"type": "integer"}, "colour": {"type": "string", "default": "red"}, **spec_fields}
    return {
        "name": name,
        "served": served,
        "storage": storage,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {"type": "object", "properties": properties},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        },
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.size",
                "statusReplicasPath": ".status.there",
                "labelSelectorPath": ".status.sel",
            },
        },
        "selectableFields": [{"jsonPath": ".spec.colour"}],
    }


def definition(*versions: Raw, kind: str = "Gadget", plural: str = "gadgets", scope: str = "Namespaced") -> Raw:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "shortNames": [plural[:2]]},
            "versions": list(versions) or [version("v1", storage=True)],
        },
    }


def gadget(name: str, api: str = "v1", **spec: Any) -> Raw:
    return {"apiVersion": f"{GROUP}/{api}", "kind": "Gadget", "metadata": {"name": name}, "spec": spec}


async def with_gadgets(path: Path | None = None, *versions: Raw) -> EmbeddedStore:
    store = await open_store(path)
    await store.create(CRDS, definition(*versions))
    return store


async def test_the_kind_is_there_when_the_definition_is() -> None:
    store = await open_store()
    changes: list[int] = []
    store.on_resources_changed.append(lambda: changes.append(len(store.catalog)))
    before = len(await store.resources())
    with pytest.raises(NotFound):
        await store.resource(GROUP, "Gadget")
    await store.create(CRDS, definition())
    gadgets = await store.resource(GROUP, "Gadget")
    assert len(await store.resources()) == before + 1
    assert store.catalog.find("ga") is gadgets
    assert changes == [before + 1]
    schema = store.schema(gadgets)
    assert schema is not None
    assert schema["properties"]["spec"]["properties"]["size"] == {"type": "integer"}
    await store.create(gadgets, gadget("a"), "default")
    await store.delete(CRDS, f"gadgets.{GROUP}")
    await store.settled()
    assert len(await store.resources()) == before
    with pytest.raises(NotFound):
        await store.resource(GROUP, "Gadget")
    with pytest.raises(NotFound, match="could not find the requested resource"):
        await store.list(gadgets)
    await store.close()


async def test_kinds_and_their_objects_outlive_a_restart(tmp_path: Path) -> None:
    store = await with_gadgets(tmp_path)
    gadgets = await store.resource(GROUP, "Gadget")
    created = await store.create(gadgets, gadget("a", colour="blue"), "default")
    await store.close()
    again = await open_store(tmp_path)
    gadgets = await again.resource(GROUP, "Gadget")
    assert await again.get(gadgets, "a", "default") == created
    assert len((await again.list(gadgets, field_selector="spec.colour=blue")).items) == 1
    with pytest.raises(Invalid):
        await again.create(gadgets, gadget("b", size="large"), "default")
    await again.close()


async def test_a_watch_of_a_kind_ends_with_it() -> None:
    store = await with_gadgets()
    gadgets = await store.resource(GROUP, "Gadget")
    await store.create(gadgets, gadget("a"), "default")
    watcher = store.watch_records(gadgets, resource_version=store.resource_version)
    await store.delete(CRDS, f"gadgets.{GROUP}")
    seen = [event.type.value async for batch in watcher for event in batch]
    assert seen in (["DELETED"], [])
    assert not watcher.is_open
    await store.close()


async def test_nothing_new_while_the_kind_goes() -> None:
    store = await with_gadgets()
    gadgets = await store.resource(GROUP, "Gadget")
    held = gadget("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await store.create(gadgets, held, "default")
    await store.delete(CRDS, f"gadgets.{GROUP}")
    await store.settled()
    with pytest.raises(MethodNotAllowed, match="terminating"):
        await store.create(gadgets, gadget("late"), "default")
    assert (await store.get(gadgets, "held", "default"))["metadata"]["deletionTimestamp"]
    waiting = await store.get(CRDS, f"gadgets.{GROUP}")
    said = {condition["type"]: condition["message"] for condition in waiting["status"]["conditions"]}
    assert said["Terminating"] == "objects of the kind are left, kept by finalizers: example.com/hold"
    await store.patch(gadgets, "held", {"metadata": {"finalizers": None}}, "default")
    await store.settled()
    with pytest.raises(NotFound):
        await store.get(CRDS, f"gadgets.{GROUP}")
    await store.close()


async def test_one_object_in_several_versions() -> None:
    store = await with_gadgets(None, version("v1", storage=True), version("v2"))
    one = next(r for r in await store.resources() if r.qualified == f"gadgets.{GROUP}" and r.version == "v1")
    two = next(r for r in await store.resources() if r.qualified == f"gadgets.{GROUP}" and r.version == "v2")
    assert (await store.resource(GROUP, "Gadget")).version == "v2", "the later version is preferred"
    created = await store.create(two, gadget("a", "v2", size=1), "default")
    assert created["apiVersion"] == f"{GROUP}/v2"
    as_one = await store.get(one, "a", "default")
    assert as_one == {**created, "apiVersion": f"{GROUP}/v1"}
    updated = await store.update(one, {**as_one, "spec": {"size": 2}}, "default")
    assert updated["apiVersion"] == f"{GROUP}/v1"
    patched = await store.patch(two, "a", {"spec": {"colour": "blue"}}, "default")
    assert (patched["apiVersion"], patched["spec"]) == (f"{GROUP}/v2", {"size": 2, "colour": "blue"})
    assert [item["apiVersion"] for item in (await store.list(two)).items] == [f"{GROUP}/v2"]
    assert [item["apiVersion"] for item in (await store.list(one)).items] == [f"{GROUP}/v1"]
    for resource in (one, two):
        watcher = store.watch_records(resource, resource_version="1")
        events = await anext(watcher)
        assert {event.record.raw()["apiVersion"] for event in events} == {resource.api_version}
        assert [event.type.value for event in events] == ["ADDED", "MODIFIED", "MODIFIED"]
    with pytest.raises(BadRequest):
        await store.create(two, gadget("b", "v1"), "default")
    same = await store.update(two, patched, "default")
    assert same["metadata"]["resourceVersion"] == patched["metadata"]["resourceVersion"]
    await store.close()


async def test_the_stored_version_may_change(tmp_path: Path) -> None:
    store = await with_gadgets(tmp_path)
    one = await store.resource(GROUP, "Gadget")
    await store.create(one, gadget("old"), "default")
    crd = await store.get(CRDS, f"gadgets.{GROUP}")
    crd["spec"]["versions"] = [version("v1"), version("v2", storage=True)]
    updated = await store.update(CRDS, crd)
    assert updated["status"]["storedVersions"] == ["v1", "v2"]
    two = await store.resource(GROUP, "Gadget")
    assert two.version == "v2"
    await store.create(two, gadget("new", "v2"), "default")
    await store.close()
    again = await open_store(tmp_path)
    for resource in (one, two):
        listed = (await again.list(resource)).items
        assert [(i["metadata"]["name"], i["apiVersion"]) for i in listed] == [
            ("new", resource.api_version),
            ("old", resource.api_version),
        ]
    await again.close()


async def test_a_stored_version_that_is_not_served() -> None:
    store = await with_gadgets(None, version("v1", served=False, storage=True), version("v2"))
    two = await store.resource(GROUP, "Gadget")
    assert two.version == "v2"
    created = await store.create(two, gadget("a", "v2", size=3), "default")
    assert created["apiVersion"] == f"{GROUP}/v2"
    assert (await store.patch(two, "a", {"spec": {"size": 4}}, "default"))["metadata"]["generation"] == 2
    assert (await store.get(CRDS, f"gadgets.{GROUP}"))["status"]["storedVersions"] == ["v1"]
    await store.close()


async def test_names_are_taken_once() -> None:
    store = await with_gadgets()
    other = definition(kind="Gadget", plural="contraptions")
    created = await store.create(CRDS, other)
    conditions = {c["type"]: c for c in created["status"]["conditions"]}
    assert (conditions["NamesAccepted"]["status"], conditions["Established"]["status"]) == ("False", "False")
    assert f'"gadget" is already in use by gadgets.{GROUP}' in conditions["NamesAccepted"]["message"]
    assert (await store.resource(GROUP, "Gadget")).plural == "gadgets"
    assert store.catalog.find("contraptions") is None
    await store.close()


async def test_a_definition_of_a_kind_that_is_built_in_is_kept_and_changes_nothing() -> None:
    from muster.objects.catalog import CATALOG
    from muster.objects.crd import crd_for

    builtin = CATALOG.custom[0]
    store = await open_store()
    crd = await store.create(CRDS, crd_for(builtin))
    assert {c["type"]: c["status"] for c in crd["status"]["conditions"]}["Established"] == "True"
    assert await store.resource(builtin.group, builtin.kind) is builtin
    await store.delete(CRDS, builtin.qualified)
    await store.settled()
    assert await store.resource(builtin.group, builtin.kind) is builtin
    with pytest.raises(NotFound):
        await store.get(CRDS, builtin.qualified)
    await store.close()


async def test_a_definition_of_a_kind_that_is_built_in_takes_no_objects_with_it() -> None:
    """Whoever sends the finalizer along would have all of them deleted, by the store itself."""
    store = await open_store()
    roles = await store.resource("rbac.authorization.k8s.io", "ClusterRole")
    await store.create(roles, {"metadata": {"name": "there"}, "rules": []})
    made = definition(kind="ClusterRole", plural="clusterroles", scope="Cluster")
    made["metadata"] = {
        "name": roles.qualified,
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        "finalizers": ["customresourcecleanup.apiextensions.k8s.io"],
    }
    made["spec"]["group"] = roles.group
    await store.create(CRDS, made)
    await store.delete(CRDS, roles.qualified)
    await store.settled()
    with pytest.raises(NotFound):
        await store.get(CRDS, roles.qualified)
    assert (await store.get(roles, "there"))["metadata"]["name"] == "there"
    await store.close()


async def test_unknown_fields_by_validation_mode() -> None:
    store = await with_gadgets()
    gadgets = await store.resource(GROUP, "Gadget")
    odd = gadget("a", size=1, odd=True)
    warnings: list[str] = []
    with pytest.raises(BadRequest, match=r'strict decoding error: unknown field "spec\.odd"'):
        await store.create(gadgets, odd, "default", WriteOptions(field_validation="Strict"))
    created = await store.create(gadgets, odd, "default", WriteOptions(field_validation="Warn"), warnings=warnings)
    assert "odd" not in created["spec"]
    assert warnings == ['unknown field "spec.odd"']
    warnings.clear()
    patched = await store.patch(gadgets, "a", {"spec": {"odd": 1, "size": 2}}, "default", warnings=warnings)
    assert (patched["spec"], warnings) == ({"size": 2, "colour": "red"}, [])
    await store.close()


async def test_built_in_kinds_keep_what_they_do_not_know() -> None:
    store = await open_store()
    odd = {**config_map("a"), "fromTheFuture": {"x": 1}}
    warnings: list[str] = []
    with pytest.raises(BadRequest, match='unknown field "fromTheFuture"'):
        await store.create(CONFIG_MAPS, odd, "default", WriteOptions(field_validation="Strict"))
    created = await store.create(CONFIG_MAPS, odd, "default", WriteOptions(field_validation="Warn"), warnings=warnings)
    assert created["fromTheFuture"] == {"x": 1}
    assert warnings == ['unknown field "fromTheFuture"']
    patched = await store.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, "default")
    assert patched["fromTheFuture"] == {"x": 1}
    await store.close()


async def test_custom_kinds_are_replaced_with_a_version_over_the_api() -> None:
    """`update` follows the contract; what a server uses follows Kubernetes' API."""
    store = await with_gadgets()
    gadgets = await store.resource(GROUP, "Gadget")
    await store.create(gadgets, gadget("a"), "default")
    with pytest.raises(Invalid, match=r"metadata\.resourceVersion: Invalid value: 0x0: must be specified for an update"):
        await store.update_record(gadgets, gadget("a", size=1), "default")
    assert (await store.update(gadgets, gadget("a", size=1), "default"))["spec"]["size"] == 1
    await store.close()


async def test_scale() -> None:
    store = await with_gadgets()
    gadgets = await store.resource(GROUP, "Gadget")
    await store.create(gadgets, gadget("a", size=2), "default")
    await store.patch(gadgets, "a", {"status": {"there": 1, "sel": "app=a"}}, "default", subresource="status")
    scale = await store.get_scale(gadgets, "a", "default")
    assert (scale["kind"], scale["spec"], scale["status"]) == ("Scale", {"replicas": 2}, {"replicas": 1, "selector": "app=a"})
    stale = copy.deepcopy(scale)
    scale["spec"]["replicas"] = 5
    scaled = await store.update_scale(gadgets, "a", scale, "default")
    assert scaled["spec"] == {"replicas": 5}
    assert (await store.get(gadgets, "a", "default"))["spec"]["size"] == 5
    with pytest.raises(Conflict):
        await store.update_scale(gadgets, "a", stale, "default")
    with pytest.raises(Invalid, match=r"spec\.replicas"):
        await store.update_scale(gadgets, "a", {"spec": {"replicas": -1}}, "default")
    with pytest.raises(NotFound, match="configmaps have no scale"):
        await store.get_scale(CONFIG_MAPS, "a", "default")
    await store.close()


async def test_apply_through_status() -> None:
    store = await with_gadgets()
    gadgets = await store.resource(GROUP, "Gadget")
    options = WriteOptions(field_manager="controller")
    await store.patch(gadgets, "a", gadget("a", size=1), "default", options, patch_type=PatchType.APPLY)
    config = {**gadget("a", size=9), "status": {"phase": "Ready"}}
    applied = await store.patch(gadgets, "a", config, "default", options, patch_type=PatchType.APPLY, subresource="status")
    assert (applied["spec"]["size"], applied["status"]) == (1, {"phase": "Ready"})
    entries = {(e["manager"], e.get("subresource", "")) for e in applied["metadata"]["managedFields"]}
    assert entries == {("controller", ""), ("controller", "status")}
    with pytest.raises(NotFound):
        await store.patch(gadgets, "b", gadget("b"), "default", options, patch_type=PatchType.APPLY, subresource="status")
    await store.close()
