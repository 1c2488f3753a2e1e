"""Patches: JSON, merge, strategic. Server-side apply has a file of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.objects.status import ApiError, BadRequest, Conflict, Invalid, NotFound, UnsupportedMediaType
from muster.store.contract import PatchType, Store, WriteOptions
from tests.store.conformance.support import config_map, custom_kind, pod, widget


async def test_merge_patch(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, config_map("a", {"x": "1", "y": "2"}, labels={"l": "1", "m": "2"}), namespace)
    patched = await store.patch(
        maps, "a", {"data": {"y": None, "z": "3"}, "metadata": {"labels": {"l": "9"}, "annotations": {"n": "4"}}}, namespace
    )
    assert patched["data"] == {"x": "1", "z": "3"}
    assert patched["metadata"]["labels"] == {"l": "9", "m": "2"}
    assert patched["metadata"]["annotations"] == {"n": "4"}


async def test_merge_patch_replaces_lists(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a", finalizers=["example.com/a", "example.com/b"]), namespace)
    patched = await store.patch(pods, "a", {"metadata": {"finalizers": ["example.com/c"]}}, namespace)
    assert patched["metadata"]["finalizers"] == ["example.com/c"]
    await store.patch(pods, "a", {"metadata": {"finalizers": None}}, namespace)


async def test_json_patch(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, config_map("a", {"x": "1", "y": "2"}), namespace)
    patched = await store.patch(
        maps,
        "a",
        [
            {"op": "test", "path": "/data/x", "value": "1"},
            {"op": "replace", "path": "/data/x", "value": "9"},
            {"op": "remove", "path": "/data/y"},
            {"op": "add", "path": "/metadata/annotations", "value": {"example.com/a": "b"}},
            {"op": "copy", "from": "/data/x", "path": "/data/z"},
        ],
        namespace,
        patch_type=PatchType.JSON,
    )
    assert patched["data"] == {"x": "9", "z": "9"}
    assert patched["metadata"]["annotations"] == {"example.com/a": "b"}


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([{"op": "test", "path": "/data/x", "value": "other"}], id="a test that fails"),
        pytest.param([{"op": "remove", "path": "/data/nothing"}], id="remove what is not there"),
        pytest.param([{"op": "add", "path": "/no/such/place", "value": "1"}], id="add nowhere"),
        pytest.param(
            [{"op": "replace", "path": "/data/x", "value": "5"}, {"op": "remove", "path": "/data/q"}], id="the second fails"
        ),
    ],
)
async def test_a_json_patch_that_does_not_fit_changes_nothing(store: Store, namespace: str, operations: list[Any]) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a", {"x": "1"}), namespace)
    with pytest.raises(Invalid):
        await store.patch(maps, "a", operations, namespace, patch_type=PatchType.JSON)
    assert await store.get(maps, "a", namespace) == created


async def test_indexes_of_a_json_patch_may_count_from_the_end(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, {**config_map("a"), "metadata": {"name": "a", "finalizers": ["x.io/1", "x.io/2"]}}, namespace)
    patched = await store.patch(
        maps,
        "a",
        [
            {"op": "add", "path": "/metadata/finalizers/-1", "value": "x.io/3"},
            {"op": "add", "path": "/metadata/finalizers/-4", "value": "x.io/0"},
            {"op": "remove", "path": "/metadata/finalizers/-2"},
        ],
        namespace,
        patch_type=PatchType.JSON,
    )
    assert patched["metadata"]["finalizers"] == ["x.io/0", "x.io/1", "x.io/3"]
    beyond = [{"op": "remove", "path": "/metadata/finalizers/-4"}]
    with pytest.raises(Invalid):
        await store.patch(maps, "a", beyond, namespace, patch_type=PatchType.JSON)
    await store.patch(maps, "a", {"metadata": {"finalizers": None}}, namespace)


async def test_strategic_merge_patch_knows_keyed_lists(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    two = pod("a")
    two["spec"]["containers"].append({"name": "side", "image": "example.com/side:1"})
    two["spec"]["tolerations"] = [{"key": "k", "operator": "Exists"}]
    await store.create(pods, two, namespace)
    patched = await store.patch(
        pods,
        "a",
        {
            "metadata": {"labels": {"l": "1"}, "finalizers": ["example.com/a"]},
            "spec": {"containers": [{"name": "side", "image": "example.com/side:2"}]},
        },
        namespace,
        patch_type=PatchType.STRATEGIC,
    )
    images = {c["name"]: c["image"] for c in patched["spec"]["containers"]}
    assert images == {"main": "example.com/app:1", "side": "example.com/side:2"}
    patched = await store.patch(
        pods, "a", {"metadata": {"finalizers": ["example.com/b"]}}, namespace, patch_type=PatchType.STRATEGIC
    )
    assert sorted(patched["metadata"]["finalizers"]) == ["example.com/a", "example.com/b"]
    patched = await store.patch(
        pods,
        "a",
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a", "example.com/b"], "labels": {"l": None}}},
        namespace,
        patch_type=PatchType.STRATEGIC,
    )
    assert "finalizers" not in patched["metadata"]
    assert not patched["metadata"].get("labels")


async def test_strategic_merge_patch_of_conditions(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a"), namespace)
    for type_, status in (("Ready", "False"), ("Initialized", "True"), ("Ready", "True")):
        await store.patch(
            pods,
            "a",
            {"status": {"conditions": [{"type": type_, "status": status}]}},
            namespace,
            patch_type=PatchType.STRATEGIC,
            subresource="status",
        )
    conditions = (await store.get(pods, "a", namespace))["status"]["conditions"]
    assert {c["type"]: c["status"] for c in conditions} == {"Ready": "True", "Initialized": "True"}


async def test_custom_kinds_have_no_strategic_patch(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        await store.create(widgets, widget(widgets.group, "a"), namespace)
        with pytest.raises(UnsupportedMediaType):
            await store.patch(widgets, "a", {"spec": {"size": 2}}, namespace, patch_type=PatchType.STRATEGIC)


async def test_what_is_not_there_is_not_found(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    for patch_type in (PatchType.MERGE, PatchType.STRATEGIC):
        with pytest.raises(NotFound):
            await store.patch(maps, "nobody", {"data": {}}, namespace, patch_type=patch_type)
    with pytest.raises(NotFound):
        await store.patch(maps, "nobody", [], namespace, patch_type=PatchType.JSON)


async def test_a_version_in_the_patch_must_be_current(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    version = created["metadata"]["resourceVersion"]
    patched = await store.patch(maps, "a", {"metadata": {"resourceVersion": version}, "data": {"n": "1"}}, namespace)
    assert patched["data"]["n"] == "1"
    with pytest.raises(Conflict):
        await store.patch(maps, "a", {"metadata": {"resourceVersion": version}, "data": {"n": "2"}}, namespace)
    assert (await store.get(maps, "a", namespace))["data"]["n"] == "1"


async def test_concurrent_patches_of_different_fields_all_count(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, config_map("a", {}), namespace)
    await asyncio.gather(*(store.patch(maps, "a", {"data": {f"k{n}": str(n)}}, namespace) for n in range(20)))
    data = (await store.get(maps, "a", namespace))["data"]
    assert {f"k{n}": str(n) for n in range(20)}.items() <= data.items()


async def test_a_patch_can_not_rename(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    for change in ({"name": "b"}, {"namespace": "default"}, {"uid": "00000000-0000-4000-8000-000000000000"}):
        with pytest.raises(ApiError) as refused:
            await store.patch(maps, "a", {"metadata": change}, namespace)
        assert refused.value.code in (400, 409, 422)
    assert await store.get(maps, "a", namespace) == created


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param({"kind": "Secret"}, id="another kind"),
        pytest.param({"apiVersion": "v2"}, id="another version"),
        pytest.param([{"op": "replace", "path": "/kind", "value": "Secret"}], id="another kind, as an operation"),
        pytest.param({"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}}, id="another uid"),
    ],
)
async def test_a_patch_can_not_make_another_object(store: Store, namespace: str, patch: Any) -> None:
    patch_type = PatchType.JSON if isinstance(patch, list) else PatchType.MERGE
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    with pytest.raises(Invalid):
        await store.patch(maps, "a", patch, namespace, patch_type=patch_type)
    assert await store.get(maps, "a", namespace) == created
    async with custom_kind(store) as widgets:
        await store.create(widgets, widget(widgets.group, "a"), namespace)
        with pytest.raises(Invalid):
            await store.patch(widgets, "a", patch, namespace, patch_type=patch_type)


@pytest.mark.parametrize(
    ("patch", "patch_type"),
    [
        pytest.param([{"op": "add"}], PatchType.JSON, id="an operation without path"),
        pytest.param([{"op": "shuffle", "path": "/data"}], PatchType.JSON, id="an unknown operation"),
        pytest.param({"data": ["a", "list"]}, PatchType.MERGE, id="a list for a map"),
        pytest.param({"data": {"key": {"deep": "er"}}}, PatchType.MERGE, id="a map for a string"),
        pytest.param({"metadata": {"labels": {"bad key!": "x"}}}, PatchType.MERGE, id="a bad label"),
        pytest.param({"kind": "Secret"}, PatchType.MERGE, id="another kind"),
    ],
)
async def test_bad_patches_change_nothing(store: Store, namespace: str, patch: Any, patch_type: PatchType) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    with pytest.raises(ApiError) as refused:
        await store.patch(maps, "a", patch, namespace, patch_type=patch_type)
    assert 400 <= refused.value.code < 500
    assert await store.get(maps, "a", namespace) == created


async def test_dry_run(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    tried = await store.patch(maps, "a", {"data": {"n": "1"}}, namespace, WriteOptions(dry_run=True))
    assert tried["data"]["n"] == "1"
    assert await store.get(maps, "a", namespace) == created


async def test_an_object_is_no_json_patch(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, config_map("a"), namespace)
    with pytest.raises(BadRequest):
        await store.patch(maps, "a", {"data": {}}, namespace, patch_type=PatchType.JSON)
