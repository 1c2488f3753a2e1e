"""Bad input of every kind: whatever a client sends is accepted or refused with a 4xx that says why; nothing else ever happens.

Valid objects and patches are taken apart at random and put together wrong; whatever the store makes of them, it can be read
back, listed, restarted and written to afterwards.
"""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from muster.objects.resources import Resource
from muster.objects.status import ApiError, BadRequest, Raw
from muster.store.contract import PatchType, WriteOptions
from muster.store.embedded import EmbeddedStore
from tests.counts import examples
from tests.store.embedded.support import (
    BUDGETS,
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    config_map,
    open_store,
    pod,
)
from tests.store.embedded.test_custom import definition

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from(["", "a", "-1", "1Gi", "\ud800", "\0", "x" * 300, "2026-01-01T00:00:00Z", "100%", "kubernetes", "/"])
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6
)
META = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["example.com/x"], "generateName": "g-"}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "00000000-0000-4000-8000-000000000000", "controller": True}
TEMPLATES: list[tuple[Resource, Raw]] = [
    (CONFIG_MAPS, {**config_map("a", {"k": "v"}, **META, ownerReferences=[OWNER]), "immutable": False}),
    (PODS, pod("a", **META)),
    (
        NODES,
        {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"capacity": {}}},
    ),
    (SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80, "name": "p"}], "selector": {"a": "b"}}}),
    (
        DEPLOYMENTS,
        {
            "metadata": {"name": "d"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]},
            },
        },
    ),
    (BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}),
    (NAMESPACES, {"metadata": {"name": "ns"}, "spec": {"finalizers": ["kubernetes"]}}),
    (CRDS, definition()),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += places(inner, (*path, index))
    return found


@st.composite
def spoiled(draw: st.DrawFn, template: Raw) -> Raw:
    """The template with one to three places replaced, removed or given something more."""
    result = copy.deepcopy(template)
    for _ in range(draw(st.integers(1, 3))):
        found = places(result)
        if not found:
            break
        path = draw(st.sampled_from(found))
        parent: Any = result
        for part in path[:-1]:
            parent = parent[part]
        action = draw(st.sampled_from(["replace", "replace", "remove", "extend"]))
        if action == "remove":
            del parent[path[-1]]
        elif action == "extend" and isinstance(parent[path[-1]], dict):
            parent[path[-1]][draw(st.text(max_size=6))] = draw(ANYTHING)
        else:
            parent[path[-1]] = draw(ANYTHING)
    return result


async def attempt(work: Any) -> Any:
    """What came of it; anything but success and a refusal that names itself is a fault."""
    try:
        return await work
    except ApiError as error:
        if not 400 <= error.code < 500 or not error.message:
            raise
        return None


async def is_sound(store: EmbeddedStore) -> None:
    for resource, _ in TEMPLATES:
        for record in store.list_records(resource).records:
            raw = record.raw()
            assert raw["metadata"]["name"] == record.name
            assert raw["metadata"]["resourceVersion"] == str(record.rv)
            assert raw["kind"] == resource.kind
    await store.settled()


async def try_everything(store: EmbeddedStore, resource: Resource, obj: Raw, other: Raw, anything: Any) -> None:
    namespace = "default" if resource.namespaced else None
    strict = WriteOptions(field_validation="Strict")
    await attempt(store.create(resource, obj, namespace, strict))
    created = await attempt(store.create(resource, obj, namespace))
    name = created["metadata"]["name"] if created else "a"
    await attempt(store.update(resource, other, namespace))
    await attempt(store.update(resource, other, namespace, subresource="status"))
    for patch_type in (PatchType.MERGE, PatchType.STRATEGIC, PatchType.APPLY):
        options = WriteOptions(field_manager="fuzz", force=True)
        await attempt(store.patch(resource, name, other, namespace, options, patch_type=patch_type))
        await attempt(store.patch(resource, name, anything, namespace, options, patch_type=patch_type))
    operations = [{"op": "replace", "path": "/metadata", "value": anything}, {"op": "add", "path": "/spec", "value": anything}]
    await attempt(store.patch(resource, name, operations, namespace, patch_type=PatchType.JSON))
    await attempt(store.patch(resource, name, anything, namespace, patch_type=PatchType.JSON))
    await attempt(store.create(resource, anything, namespace))
    await attempt(store.delete(resource, name, namespace))


@pytest.mark.parametrize(("resource", "template"), TEMPLATES, ids=[resource.kind for resource, _ in TEMPLATES])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=examples(10))
@given(data=st.data())
def test_spoiled_objects(resource: Resource, template: Raw, data: st.DataObject) -> None:
    obj = data.draw(spoiled(template))
    other = data.draw(spoiled(template))
    anything = data.draw(ANYTHING)

    async def run() -> None:
        store = await open_store()
        await try_everything(store, resource, obj, other, anything)
        await is_sound(store)
        await store.create(CONFIG_MAPS, config_map("still-works"), "default")
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("depth", [90, 150, 3000, 100_000])
@pytest.mark.parametrize("kind", [list, dict])
async def test_nesting(depth: int, kind: type) -> None:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if kind is list else {"k": value}
    store = await open_store()
    before = store.resource_version
    writes = (
        store.create(CONFIG_MAPS, {**config_map("a"), "extra": value}, "default"),
        store.patch(CONFIG_MAPS, "b", {"extra": value}, "default"),
        store.patch(CONFIG_MAPS, "b", {**config_map("b"), "extra": value}, "default", patch_type=PatchType.APPLY),
    )
    for write in writes:
        if depth > 100:
            with pytest.raises(ApiError, match=r"nested|not found") as refused:
                await write
            assert 400 <= refused.value.code < 500
        else:
            await attempt(write)
    if depth > 100:
        assert store.resource_version == before
    await store.close()


@pytest.mark.parametrize("value", ["\ud800", object(), {1: 2}.keys()], ids=["surrogate", "object", "view"])
async def test_what_is_not_json(tmp_path: Path, value: Any) -> None:
    store = await open_store(tmp_path)
    before = store.resource_version
    with pytest.raises(BadRequest):
        await store.create(CONFIG_MAPS, {**config_map("a"), "extra": value}, "default")
    assert store.resource_version == before
    await store.create(CONFIG_MAPS, config_map("a"), "default")
    await store.close()
