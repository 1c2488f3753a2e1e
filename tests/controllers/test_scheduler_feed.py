"""What the engine is fed: each object once, as it is now, nodes before pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.controllers.scheduling import create, node, pod
from tests.store.stores import memory_store

from muster.controllers.scheduler_feed import KINDS, NODES, PODS, Feed, Kind, catch_up, open_informer, open_informers
from muster.engine import events as ev
from muster.engine.facts import NamespaceFacts, PodFacts
from muster.objects.resources import Resource
from muster.sim.clock import virtual
from muster.store.contract import EventType, Store, WatchEvent
from muster.store.guarded import GuardedStore
from muster.store.hub import InformerHub
from muster.store.informer import Informer


async def followed(store: Store, *kinds: Kind) -> tuple[InformerHub, dict[Kind, Informer]]:
    hub = InformerHub(store)
    informers = {kind: await open_informer(hub, kind) for kind in kinds}
    hub.start()
    await hub.wait_synced()
    return hub, informers


@virtual
async def test_the_first_events_come_in_a_fixed_order() -> None:
    async with memory_store() as store:
        await create(store, pod("b"), pod("a"), node("n2"), node("n1"))
        hub, informers = await followed(store, NODES, PODS)
        first = list(Feed(lambda: None).follow(informers))
        names = [e.node.metadata.name if isinstance(e, ev.NodeSeen) else e.pod.metadata.name for e in first]  # type: ignore[union-attr]
        assert names == ["n1", "n2", "a", "b"]
        await hub.stop()


@virtual
async def test_an_object_that_changes_twice_comes_out_once_and_last() -> None:
    async with memory_store() as store:
        await create(store, pod("a"))
        hub, informers = await followed(store, PODS)
        woken = []
        feed = Feed(lambda: woken.append(1))
        assert len(list(feed.follow(informers))) == 1
        pods = await store.resource("", "Pod")
        await store.patch(pods, "a", {"metadata": {"labels": {"x": "1"}}}, "default")
        await asyncio.sleep(0.1)
        feed.put(ev.Tick())
        await store.patch(pods, "a", {"metadata": {"labels": {"x": "2"}}}, "default")
        await asyncio.sleep(0.1)
        tick, seen = feed.take(10)
        assert isinstance(tick, ev.Tick)
        assert isinstance(seen, ev.PodSeen)
        assert seen.pod.metadata.labels["x"] == "2"
        assert woken
        await hub.stop()


@virtual
async def test_what_the_engine_can_not_see_is_no_event() -> None:
    async with memory_store() as store:
        await create(store, pod("a"))
        hub, informers = await followed(store, PODS)
        feed = Feed(lambda: None)
        list(feed.follow(informers))
        pods = await store.resource("", "Pod")
        await store.patch(pods, "a", {"status": {"podIP": "10.0.0.1"}}, "default", subresource="status")
        await asyncio.sleep(0.1)
        informers[PODS].resync()
        assert feed.take(10) == []
        await hub.stop()


@virtual
async def test_pods_without_a_node_are_found_by_uid() -> None:
    async with memory_store() as store:
        [made] = await create(store, pod("a"))
        uid = made["metadata"]["uid"]
        hub, informers = await followed(store, PODS)
        feed = Feed(lambda: None)
        list(feed.follow(informers))
        assert str(feed.waiting_keys[uid]) == "default/a"
        await store.bind("a", "default", "n1")
        await asyncio.sleep(0.1)
        assert feed.waiting_keys == {}
        await store.delete(await store.resource("", "Pod"), "a", "default", grace_period_s=0)
        await asyncio.sleep(0.1)
        assert feed.take(10) == [ev.PodGone(uid)]
        await hub.stop()


@virtual
async def test_at_most_so_many_are_taken() -> None:
    feed = Feed(lambda: None)
    for n in range(5):
        feed.put(ev.Bound(str(n)))
    assert [len(feed.take(2)) for _ in range(4)] == [2, 2, 1, 0]


@virtual
async def test_kinds_that_are_not_served_are_left_out() -> None:
    unknown = Kind("example.com", "Nothing", NamespaceFacts, ev.NamespaceSeen, lambda obj: ev.NamespaceGone(obj.key.name))
    async with memory_store() as store:
        waits: list[str] = []
        informers, missing = await open_informers(InformerHub(store), (*KINDS, unknown), waits.append)
        assert missing == [unknown]
        assert set(informers) == set(KINDS)
        assert waits == []


class DeadWatch(GuardedStore):
    """Its first watch shows nothing and does not end, like a connection that died silently."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.watches = 0

    def watch(self, resource: Resource, namespace: str | None = None, **options: Any) -> AsyncIterator[WatchEvent]:
        self.watches += 1
        return self._silence() if self.watches == 1 else super().watch(resource, namespace, **options)

    async def _silence(self) -> AsyncIterator[WatchEvent]:
        await asyncio.get_running_loop().create_future()
        yield WatchEvent(EventType.BOOKMARK, {})


@virtual
async def test_a_cache_that_lags_catches_up() -> None:
    """Whoever begins to lead must see all that was bound before, also when its watch is dead without knowing."""
    async with memory_store() as inner:
        await create(inner, pod("a"))
        hub, informers = await followed(DeadWatch(inner), PODS)
        await inner.bind("a", "default", "n1")
        await asyncio.sleep(1)
        [cached] = informers[PODS].cache
        assert not cached.view(PodFacts).spec.node_name
        await catch_up(inner, list(informers.values()))
        [cached] = informers[PODS].cache
        assert cached.view(PodFacts).spec.node_name == "n1"
        await hub.stop()
