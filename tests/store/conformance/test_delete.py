"""Delete: at once, with finalizers, with a grace period, under conditions; many at a time."""

from __future__ import annotations

import contextlib

import pytest

from muster.objects.status import Conflict, Invalid, NotFound
from muster.store.contract import EventType, Preconditions, Store, WriteOptions
from tests.store.conformance.support import brief, config_map, gone, pod, watching


async def test_at_once(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    deleted = await store.delete(maps, "a", namespace)
    assert deleted["metadata"]["uid"] == created["metadata"]["uid"]
    with pytest.raises(NotFound):
        await store.get(maps, "a", namespace)
    with pytest.raises(NotFound):
        await store.delete(maps, "a", namespace)


async def test_finalizers_keep_it_until_they_are_gone(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, config_map("a", finalizers=["example.com/one", "example.com/two"]), namespace)
    deleting = await store.delete(maps, "a", namespace)
    assert deleting["metadata"]["deletionTimestamp"]
    assert deleting["metadata"]["deletionGracePeriodSeconds"] == 0
    version = deleting["metadata"]["resourceVersion"]
    again = await store.delete(maps, "a", namespace)
    assert again["metadata"]["resourceVersion"] == version
    async with watching(store, maps, namespace, resource_version=version) as watch:
        one_left = await store.patch(maps, "a", {"metadata": {"finalizers": ["example.com/two"]}}, namespace)
        assert one_left["metadata"]["deletionTimestamp"] == deleting["metadata"]["deletionTimestamp"]
        await store.patch(maps, "a", {"metadata": {"finalizers": None}}, namespace)
        assert brief(await watch.take(2)) == [("MODIFIED", "a"), ("DELETED", "a")]
    with pytest.raises(NotFound):
        await store.get(maps, "a", namespace)


async def test_no_new_finalizers_while_it_goes(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, config_map("a", finalizers=["example.com/one"]), namespace)
    await store.delete(maps, "a", namespace)
    with pytest.raises(Invalid) as refused:
        await store.patch(maps, "a", {"metadata": {"finalizers": ["example.com/one", "example.com/new"]}}, namespace)
    assert refused.value.causes[0].field == "metadata.finalizers"
    changed = await store.patch(maps, "a", {"data": {"still": "writable"}}, namespace)
    assert changed["data"]["still"] == "writable"
    await store.patch(maps, "a", {"metadata": {"finalizers": None}}, namespace)


async def test_nothing_brings_it_back(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, config_map("a", finalizers=["example.com/one"]), namespace)
    deleting = await store.delete(maps, "a", namespace)
    plain = config_map("a", {"x": "1"}, finalizers=["example.com/one"])
    updated = await store.update(maps, plain, namespace)
    assert updated["metadata"]["deletionTimestamp"] == deleting["metadata"]["deletionTimestamp"]
    await store.patch(maps, "a", {"metadata": {"finalizers": None}}, namespace)


async def test_preconditions(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    uid, version = created["metadata"]["uid"], created["metadata"]["resourceVersion"]
    for wrong in (Preconditions(uid="00000000-0000-4000-8000-000000000000"), Preconditions(uid=uid, resource_version="1")):
        with pytest.raises(Conflict):
            await store.delete(maps, "a", namespace, preconditions=wrong)
    assert await store.get(maps, "a", namespace) == created
    await store.delete(maps, "a", namespace, preconditions=Preconditions(uid=uid, resource_version=version))
    with pytest.raises(NotFound):
        await store.get(maps, "a", namespace)


async def test_dry_run(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    await store.delete(maps, "a", namespace, WriteOptions(dry_run=True))
    assert await store.get(maps, "a", namespace) == created


async def test_a_pod_without_a_node_goes_at_once(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a"), namespace)
    await store.delete(pods, "a", namespace)
    with pytest.raises(NotFound):
        await store.get(pods, "a", namespace)


async def test_a_pod_on_a_node_waits_for_its_agent(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a", node="n1"), namespace)
    deleting = await store.delete(pods, "a", namespace)
    assert deleting["metadata"]["deletionGracePeriodSeconds"] == 30
    assert deleting["metadata"]["deletionTimestamp"]
    there = await store.get(pods, "a", namespace)
    assert there["metadata"]["deletionTimestamp"] == deleting["metadata"]["deletionTimestamp"]
    # Deleting again without hurry changes nothing, with less grace brings the end nearer, with none ends it.
    again = await store.delete(pods, "a", namespace)
    assert again["metadata"]["resourceVersion"] == there["metadata"]["resourceVersion"]
    sooner = await store.delete(pods, "a", namespace, grace_period_s=5)
    assert sooner["metadata"]["deletionGracePeriodSeconds"] == 5
    assert sooner["metadata"]["deletionTimestamp"] < deleting["metadata"]["deletionTimestamp"]
    status = await store.patch(pods, "a", {"status": {"phase": "Succeeded"}}, namespace, subresource="status")
    assert status["metadata"]["deletionTimestamp"], "a status write does not end it"
    await store.delete(pods, "a", namespace, grace_period_s=0)
    with pytest.raises(NotFound):
        await store.get(pods, "a", namespace)


async def test_a_negative_grace_is_as_short_as_may_be(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a", node="n1"), namespace)
    deleting = await store.delete(pods, "a", namespace, grace_period_s=-1)
    # A second. Up to 1.21 Kubernetes wrote down what was asked for, and let the pod go at once.
    assert deleting["metadata"]["deletionGracePeriodSeconds"] in (1, -1)
    with contextlib.suppress(NotFound):
        await store.delete(pods, "a", namespace, grace_period_s=0)


async def test_a_finished_pod_goes_at_once(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a", node="n1"), namespace)
    await store.patch(pods, "a", {"status": {"phase": "Succeeded"}}, namespace, subresource="status")
    await store.delete(pods, "a", namespace)
    with pytest.raises(NotFound):
        await store.get(pods, "a", namespace)


async def test_a_pod_with_a_finalizer_outlives_its_grace(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a", node="n1", finalizers=["example.com/one"]), namespace)
    await store.delete(pods, "a", namespace)
    ended = await store.delete(pods, "a", namespace, grace_period_s=0)
    assert ended["metadata"]["deletionGracePeriodSeconds"] == 0
    assert ended["metadata"]["finalizers"] == ["example.com/one"]
    await store.patch(pods, "a", {"metadata": {"finalizers": None}}, namespace)
    with pytest.raises(NotFound):
        await store.get(pods, "a", namespace)


async def test_a_collection(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    for name, colour in (("a", "red"), ("b", "red"), ("c", "green")):
        await store.create(maps, config_map(name, labels={"colour": colour}), namespace)
    start = (await store.list(maps, namespace)).resource_version
    await store.delete_collection(maps, namespace, label_selector="colour=red")
    left = [item["metadata"]["name"] for item in (await store.list(maps, namespace, label_selector="colour")).items]
    assert left == ["c"]
    async with watching(store, maps, namespace, resource_version=start, label_selector="colour") as watch:
        events = await watch.take(2)
    assert {(e.type, e.object["metadata"]["name"]) for e in events} == {(EventType.DELETED, "a"), (EventType.DELETED, "b")}
    await store.delete_collection(maps, namespace, field_selector="metadata.name=c")
    await gone(store, maps, "c", namespace)
