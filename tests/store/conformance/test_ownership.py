"""Owner references: what goes with its owner, what is left behind, who waits for whom."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.meta import owner_reference
from muster.objects.resources import Resource
from muster.objects.status import NotFound, Raw
from muster.store.contract import Store
from tests.store.conformance.support import config_map, gone, unique, until


async def owner_and_child(
    store: Store, namespace: str, *, block: bool = True, **child_metadata: Any
) -> tuple[Resource, Raw, Raw]:
    maps = await store.resource("", "ConfigMap")
    owner = await store.create(maps, config_map("owner"), namespace)
    reference = owner_reference(owner, controller=False, block=block)
    child = await store.create(maps, config_map("child", ownerReferences=[reference], **child_metadata), namespace)
    return maps, owner, child


async def test_background_deletes_what_is_owned(store: Store, namespace: str) -> None:
    maps, _, child = await owner_and_child(store, namespace)
    secrets = await store.resource("", "Secret")
    reference = owner_reference(child)
    await store.create(secrets, {"metadata": {"name": "grandchild", "ownerReferences": [reference]}}, namespace)
    await store.create(maps, config_map("bystander"), namespace)
    await store.delete(maps, "owner", namespace)
    with pytest.raises(NotFound):
        await store.get(maps, "owner", namespace)
    await gone(store, maps, "child", namespace)
    await gone(store, secrets, "grandchild", namespace)
    assert await store.get(maps, "bystander", namespace)


async def test_foreground_waits_for_those_who_ask_it_to(store: Store, namespace: str) -> None:
    maps, _, _ = await owner_and_child(store, namespace, finalizers=["example.com/slow"])
    deleting = await store.delete(maps, "owner", namespace, propagation="Foreground")
    assert deleting["metadata"]["finalizers"] == ["foregroundDeletion"]
    await until(store, maps, "child", namespace, lambda raw: bool(raw["metadata"].get("deletionTimestamp")))
    assert (await store.get(maps, "owner", namespace))["metadata"]["deletionTimestamp"]
    await store.patch(maps, "child", {"metadata": {"finalizers": None}}, namespace)
    await gone(store, maps, "child", namespace)
    await gone(store, maps, "owner", namespace)


async def test_foreground_does_not_wait_for_those_who_do_not(store: Store, namespace: str) -> None:
    maps, _, _ = await owner_and_child(store, namespace, block=False, finalizers=["example.com/slow"])
    await store.delete(maps, "owner", namespace, propagation="Foreground")
    await gone(store, maps, "owner", namespace)
    await until(store, maps, "child", namespace, lambda raw: bool(raw["metadata"].get("deletionTimestamp")))
    await store.patch(maps, "child", {"metadata": {"finalizers": None}}, namespace)
    await gone(store, maps, "child", namespace)


async def test_orphan_leaves_what_was_owned(store: Store, namespace: str) -> None:
    maps, _, child = await owner_and_child(store, namespace)
    await store.delete(maps, "owner", namespace, propagation="Orphan")
    await gone(store, maps, "owner", namespace)
    left = await store.get(maps, "child", namespace)
    assert left["metadata"]["uid"] == child["metadata"]["uid"]
    assert not left["metadata"].get("ownerReferences")


async def test_of_two_owners_one_is_enough(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    owners = [await store.create(maps, config_map(name), namespace) for name in ("one", "two")]
    references = [owner_reference(owner, controller=False) for owner in owners]
    await store.create(maps, config_map("child", ownerReferences=references), namespace)
    await store.delete(maps, "one", namespace)
    child = await until(store, maps, "child", namespace, lambda raw: len(raw["metadata"]["ownerReferences"]) == 1)
    assert child is not None
    assert child["metadata"]["ownerReferences"][0]["name"] == "two"
    await store.delete(maps, "two", namespace)
    await gone(store, maps, "child", namespace)


async def test_an_owner_that_never_was(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "ghost", "uid": "00000000-0000-4000-8000-000000000001"}
    await store.create(maps, config_map("child", ownerReferences=[reference]), namespace)
    await gone(store, maps, "child", namespace)


async def test_an_owner_that_was_replaced_by_another_of_its_name(store: Store, namespace: str) -> None:
    maps, owner, _ = await owner_and_child(store, namespace, finalizers=["example.com/hold"])
    await store.delete(maps, "owner", namespace)
    another = await store.create(maps, config_map("owner"), namespace)
    assert another["metadata"]["uid"] != owner["metadata"]["uid"]
    await until(store, maps, "child", namespace, lambda raw: bool(raw["metadata"].get("deletionTimestamp")))
    await store.patch(maps, "child", {"metadata": {"finalizers": None}}, namespace)
    await gone(store, maps, "child", namespace)
    assert await store.get(maps, "owner", namespace) == another


async def test_a_cluster_wide_owner(store: Store, namespace: str) -> None:
    nodes, maps = await store.resource("", "Node"), await store.resource("", "ConfigMap")
    name = unique("node")
    node = await store.create(nodes, {"metadata": {"name": name}})
    await store.create(maps, config_map("child", ownerReferences=[owner_reference(node)]), namespace)
    await store.delete(nodes, name)
    await gone(store, maps, "child", namespace)
