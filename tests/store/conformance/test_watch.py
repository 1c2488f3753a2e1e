"""Watch: from nothing, from a version, with selectors; no gap, no repetition."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from muster.objects.status import Expired
from muster.store.contract import EventType, Store
from muster.store.embedded import EmbeddedStore
from tests.store.conformance.conftest import Backend
from tests.store.conformance.support import brief, config_map, pod, some_event, watching


async def test_from_nothing_shows_what_exists_first(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    for name in ("a", "b"):
        await store.create(pods, pod(name), namespace)
    async with watching(store, pods, namespace) as watch:
        assert sorted(brief(await watch.take(2))) == [("ADDED", "a"), ("ADDED", "b")]
        await store.create(pods, pod("c"), namespace)
        assert brief(await watch.take(1)) == [("ADDED", "c")]


async def test_from_a_list_shows_exactly_what_changed_since(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, config_map("a"), namespace)
    page = await store.list(maps, namespace)
    await store.create(maps, config_map("b"), namespace)
    changed = await store.patch(maps, "a", {"data": {"key": "new"}}, namespace)
    await store.delete(maps, "b", namespace)
    async with watching(store, maps, namespace, resource_version=page.resource_version) as watch:
        events = await watch.take(3)
        assert brief(events) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
        assert events[1].object == changed
        versions = [event.resource_version for event in events]
        assert len(set(versions)) == 3
        assert page.resource_version not in versions
        await store.create(maps, config_map("c"), namespace)
        assert brief(await watch.take(1)) == [("ADDED", "c")]


async def test_from_an_objects_version(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    first = await store.create(maps, config_map("a"), namespace)
    second = await store.patch(maps, "a", {"data": {"key": "2"}}, namespace)
    await store.patch(maps, "a", {"data": {"key": "3"}}, namespace)
    for version, expected in ((first, ["2", "3"]), (second, ["3"])):
        async with watching(store, maps, namespace, resource_version=version["metadata"]["resourceVersion"]) as watch:
            events = await watch.take(len(expected))
            assert [event.object["data"]["key"] for event in events] == expected


async def test_any_version_on_the_way_resumes_without_gap_or_repetition(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    start = (await store.list(maps, namespace)).resource_version
    for n in range(12):
        await store.create(maps, config_map(f"m{n:02}"), namespace)
    async with watching(store, maps, namespace, resource_version=start) as watch:
        events = await watch.take(12)
    for index, event in enumerate(events[:-1]):
        async with watching(store, maps, namespace, resource_version=event.resource_version) as watch:
            following = events[index + 1]
            assert (await watch.take(1))[0].resource_version == following.resource_version


async def test_deleted_carries_the_last_state_under_a_new_version(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a", {"last": "state"}), namespace)
    async with watching(store, maps, namespace, resource_version=created["metadata"]["resourceVersion"]) as watch:
        await store.delete(maps, "a", namespace)
        (event,) = await watch.take(1)
    assert event.type is EventType.DELETED
    assert event.object["data"] == {"last": "state"}
    assert event.object["metadata"]["uid"] == created["metadata"]["uid"]
    assert event.resource_version != created["metadata"]["resourceVersion"]


async def test_with_a_selector_objects_come_and_go(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    start = (await store.list(maps, namespace)).resource_version
    async with watching(store, maps, namespace, label_selector="on=yes", resource_version=start) as watch:
        await store.create(maps, config_map("never"), namespace)
        await store.create(maps, config_map("a", labels={"on": "yes"}), namespace)
        await store.patch(maps, "a", {"data": {"n": "1"}}, namespace)
        out = await store.patch(maps, "a", {"metadata": {"labels": {"on": "no"}}}, namespace)
        await store.patch(maps, "a", {"data": {"n": "2"}}, namespace)
        await store.patch(maps, "a", {"metadata": {"labels": {"on": "yes"}}}, namespace)
        await store.delete(maps, "a", namespace)
        events = await watch.take(5)
    assert [event.type.value for event in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    assert {event.object["metadata"]["name"] for event in events} == {"a"}
    assert events[2].resource_version == out["metadata"]["resourceVersion"]
    assert events[2].object["metadata"]["labels"] == {"on": "yes"}


async def test_with_a_field_selector(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a"), namespace)
    start = (await store.list(pods, namespace)).resource_version
    async with watching(store, pods, namespace, field_selector="spec.nodeName=n1", resource_version=start) as watch:
        await store.create(pods, pod("other"), namespace)
        await store.bind("a", namespace, "n1")
        assert brief(await watch.take(1)) == [("ADDED", "a")]


async def test_only_its_namespace(store: Store, namespace: str) -> None:
    maps, namespaces = await store.resource("", "ConfigMap"), await store.resource("", "Namespace")
    other = f"{namespace}-2"
    await store.create(namespaces, {"metadata": {"name": other}})
    start = (await store.list(maps, namespace)).resource_version
    async with (
        watching(store, maps, namespace, resource_version=start, label_selector="mine=yes") as one,
        watching(store, maps, None, resource_version=start, label_selector="mine=yes") as all_,
    ):
        await store.create(maps, config_map("elsewhere", labels={"mine": "yes"}), other)
        await store.create(maps, config_map("here", labels={"mine": "yes"}), namespace)
        assert await one.until_name("here") == [("ADDED", "here")]
        assert await all_.until_name("here") == [("ADDED", "elsewhere"), ("ADDED", "here")]
    await store.delete(namespaces, other)


async def test_status_and_metadata_changes_are_seen(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    created = await store.create(pods, pod("a"), namespace)
    async with watching(store, pods, namespace, resource_version=created["metadata"]["resourceVersion"]) as watch:
        await store.patch(pods, "a", {"status": {"phase": "Running"}}, namespace, subresource="status")
        await store.patch(pods, "a", {"metadata": {"annotations": {"note": "x"}}}, namespace)
        events = await watch.take(2)
    assert [e.type.value for e in events] == ["MODIFIED", "MODIFIED"]
    assert events[0].object["status"]["phase"] == "Running"
    assert events[1].object["metadata"]["annotations"]["note"] == "x"


async def test_it_ends_quietly_at_its_timeout(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    start = (await store.list(maps, namespace)).resource_version
    watch = store.watch(maps, namespace, resource_version=start, timeout_s=1, label_selector="nobody=has-this")
    async with asyncio.timeout(60):
        events = [event async for event in watch]
    assert all(event.type is EventType.BOOKMARK for event in events)


async def test_a_bookmarks_version_can_be_watched_from(store: Store, namespace: str) -> None:
    if not isinstance(store, EmbeddedStore):
        pytest.skip("over HTTP the first bookmark comes after a minute")
    maps = await store.resource("", "ConfigMap")
    start = (await store.list(maps, namespace)).resource_version
    await store.create(await store.resource("", "Secret"), {"metadata": {"name": "s"}}, namespace)
    events = [e async for e in store.watch(maps, namespace, resource_version=start, timeout_s=0)]
    assert [event.type for event in events] == [EventType.BOOKMARK]
    assert events[0].resource_version != start
    await store.create(maps, config_map("later"), namespace)
    async with watching(store, maps, namespace, resource_version=events[0].resource_version) as watch:
        assert brief(await watch.take(1)) == [("ADDED", "later")]


async def test_from_a_version_still_to_come_shows_what_follows_it(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    coming = int((await store.list(maps, namespace)).resource_version) + 12
    watch = store.watch(maps, namespace, resource_version=str(coming), label_selector="ours=yes")
    async with asyncio.timeout(60), contextlib.aclosing(watch):  # type: ignore[type-var]
        first = asyncio.ensure_future(anext(watch))
        versions: list[int] = []
        # Others may write too, so the version comes with our writes or without them.
        while not versions or versions[-1] <= coming:
            made = await store.create(maps, config_map(f"m{len(versions)}", labels={"ours": "yes"}), namespace)
            versions.append(int(made["metadata"]["resourceVersion"]))
        assert int((await first).resource_version) == next(version for version in versions if version > coming)


async def test_a_compacted_version_is_expired(backend: Backend, store: Store, namespace: str) -> None:
    # Events are the kind that kube-apiserver reads from etcd itself, so that its history ends where etcd's does.
    events = await store.resource("", "Event")
    first = await store.create(events, some_event("a", namespace), namespace)
    await store.create(events, some_event("b", namespace), namespace)
    last = await store.create(events, some_event("c", namespace), namespace)
    await store.create(events, some_event("d", namespace), namespace)
    await backend.forget(last["metadata"]["resourceVersion"])
    watch = store.watch(events, namespace, resource_version=first["metadata"]["resourceVersion"])
    async with asyncio.timeout(60), contextlib.aclosing(watch):  # type: ignore[type-var]
        with pytest.raises(Expired):
            await anext(watch)
    async with watching(store, events, namespace, resource_version=last["metadata"]["resourceVersion"]) as later:
        assert brief(await later.take(1)) == [("ADDED", "d")]


async def test_a_list_that_continues_after_compaction_is_expired(backend: Backend, store: Store, namespace: str) -> None:
    events = await store.resource("", "Event")
    for name in ("a", "b", "c"):
        await store.create(events, some_event(name, namespace), namespace)
    page = await store.list(events, namespace, limit=1)
    last = await store.create(events, some_event("d", namespace), namespace)
    await backend.forget(last["metadata"]["resourceVersion"])
    with pytest.raises(Expired):
        await store.list(events, namespace, limit=1, continue_token=page.continue_token)


async def test_many_watchers_see_the_same(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    start = (await store.list(maps, namespace)).resource_version
    async with contextlib.AsyncExitStack() as stack:
        watches = [
            await stack.enter_async_context(watching(store, maps, namespace, resource_version=start, label_selector="many=yes"))
            for _ in range(20)
        ]
        readers = [asyncio.ensure_future(watch.take(15)) for watch in watches]
        await asyncio.gather(*(store.create(maps, config_map(f"m{n}", labels={"many": "yes"}), namespace) for n in range(15)))
        seen = [[event.resource_version for event in events] for events in await asyncio.gather(*readers)]
    assert len(set(seen[0])) == 15
    assert all(versions == seen[0] for versions in seen)
