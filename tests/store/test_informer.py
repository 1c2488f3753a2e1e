"""Informers: what handlers see, how the cache follows the store through breaks and compaction, indexes, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Literal

import msgspec
import pytest

from muster.objects.meta import owner_reference
from muster.objects.resources import Resource
from muster.objects.selectors import parse_label_selector
from muster.objects.status import Forbidden, NotFound, Raw, ServiceUnavailable
from muster.objects.view import View
from muster.sim.clock import current_loop, run, virtual
from muster.sim.entropy import Chance, Entropy
from muster.sim.faults import Faults, FaultyStore
from muster.store.cache import OWNER_INDEX, Cached, Keep, ObjectKey, by_label
from muster.store.contract import Page, Store
from muster.store.embedded import EmbeddedStore
from muster.store.hub import InformerHub
from muster.store.informer import Change, ChangeType, Informer, InformerLimits, is_newer
from tests.store.stores import BreakableStore, config_map, memory_store, pod


class Log:
    """What a handler was told, as short words."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __call__(self, change: Change) -> None:
        self.changes.append(change)

    def take(self) -> list[str]:
        words = []
        for change in self.changes:
            mark = "?" if change.is_inferred else ""
            words.append(f"{change.type.value} {change.newest.key.name}{mark}")
        self.changes.clear()
        return words


@asynccontextmanager
async def followed(store: Store, kind: Resource, **options: Any) -> AsyncIterator[tuple[Informer, Log]]:
    """A running informer with a handler, synced."""
    informer, log = Informer(store, kind, **options), Log()
    informer.add_handler(log)
    informer.start()
    try:
        async with asyncio.timeout(60):
            await informer.wait_synced()
        yield informer, log
    finally:
        await informer.stop()


def healthy(informer: Informer) -> bool:
    return informer.is_healthy


async def settle() -> None:
    await asyncio.sleep(1)


def names(informer: Informer) -> list[str]:
    return [obj.key.name for obj in informer.cache.select()]


@virtual
async def test_list_then_changes_with_old_and_new() -> None:
    async with memory_store() as store:
        kind = await store.resource("", "ConfigMap")
        await store.create(kind, config_map("a", x="1"), "default")
        async with followed(store, kind) as (informer, log):
            assert log.take() == ["added a?"]
            await store.create(kind, config_map("b"), "default")
            await store.patch(kind, "a", {"data": {"x": "2"}}, "default")
            await store.delete(kind, "b", "default")
            await settle()
            added, updated, deleted = log.changes
            assert (added.type, added.old) == (ChangeType.ADDED, None)
            assert updated.old is not None
            assert updated.new is not None
            assert (updated.old.raw["data"], updated.new.raw["data"]) == ({"x": "1"}, {"x": "2"})
            assert deleted.type is ChangeType.DELETED
            assert deleted.new is None
            assert log.take() == ["added b", "updated a", "deleted b"]
            assert names(informer) == ["a"]
            informer.cache.check_invariants()


@virtual
async def test_a_late_handler_is_told_what_is_there_and_can_leave() -> None:
    async with memory_store() as store:
        kind = await store.resource("", "ConfigMap")
        await store.create(kind, config_map("a"), "default")
        async with followed(store, kind) as (informer, _):
            late = Log()
            leave = informer.add_handler(late)
            assert late.take() == ["added a"]
            leave()
            await store.create(kind, config_map("b"), "default")
            await settle()
            assert late.take() == []


@virtual
async def test_indexes_follow_changes() -> None:
    async with memory_store("other") as store:
        pods = await store.resource("", "Pod")
        maps = await store.resource("", "ConfigMap")
        owner = await store.create(maps, config_map("owner"), "default")
        reference = owner_reference(owner)
        await store.create(pods, pod("p1", labels={"app": "web"}, owners=[reference]), "default")
        await store.create(pods, pod("p2", labels={"app": "db"}), "default")
        await store.create(pods, pod("p3", "other", labels={"app": "web"}), "other")

        def by_first_image(obj: Cached) -> list[str]:
            return [obj.raw["spec"]["containers"][0]["image"]]

        app = by_label("app")
        async with followed(store, pods, indexes={"app": app, "image": by_first_image}) as (informer, _):
            cache = informer.cache
            assert [o.key.name for o in cache.by_index("app", "web")] == ["p1", "p3"]
            assert [o.key.name for o in cache.by_index(OWNER_INDEX, owner["metadata"]["uid"])] == ["p1"]
            assert [o.key.name for o in cache.by_index("controller", owner["metadata"]["uid"])] == ["p1"]
            assert [o.key.name for o in cache.select("other")] == ["p3"]
            assert [o.key.name for o in cache.select(None, parse_label_selector("app=web"))] == ["p1", "p3"]
            assert len(cache.by_index("image", "busybox")) == 3
            await store.patch(pods, "p2", {"metadata": {"labels": {"app": "web"}}}, "default")
            await store.patch(pods, "p1", {"metadata": {"labels": {"app": None}}}, "default")
            await store.delete(pods, "p3", "other", grace_period_s=0)
            await settle()
            assert [o.key.name for o in cache.by_index("app", "web")] == ["p2"]
            assert cache.by_index("app", "db") == []
            cache.check_invariants()
            cache.add_index("later", app)
            assert [o.key.name for o in cache.by_index("later", "web")] == ["p2"]
            cache.add_index("later", app)
            with pytest.raises(ValueError, match="another function"):
                cache.add_index("later", by_first_image)
            with pytest.raises(LookupError, match="no index 'nope'"):
                cache.by_index("nope", "x")


@virtual
async def test_selectors_and_namespace_narrow_the_informer() -> None:
    async with memory_store("other") as store:
        kind = await store.resource("", "ConfigMap")
        await store.create(kind, config_map("a", labels={"on": "yes"}), "default")
        await store.create(kind, config_map("b"), "default")
        await store.create(kind, config_map("c", "other", labels={"on": "yes"}), "other")
        async with followed(store, kind, namespace="default", label_selector="on=yes") as (informer, log):
            assert log.take() == ["added a?"]
            await store.patch(kind, "b", {"metadata": {"labels": {"on": "yes"}}}, "default")
            await store.patch(kind, "a", {"metadata": {"labels": {"on": "no"}}}, "default")
            await settle()
            assert log.take() == ["added b", "deleted a"]
        async with followed(store, kind, field_selector="metadata.name=c") as (informer, _):
            assert names(informer) == ["c"]


@virtual
async def test_a_broken_watch_resumes_without_a_list() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)
        kind = await store.resource("", "ConfigMap")
        await store.create(kind, config_map("a"), "default")
        async with followed(store, kind) as (informer, log):
            log.take()
            store.outage = ServiceUnavailable("away")
            await store.break_watches()
            await store.create(kind, config_map("b"), "default")
            await settle()
            assert log.take() == []
            assert not healthy(informer)
            assert "away" in informer.last_error
            store.outage = None
            await asyncio.sleep(60)
            assert log.take() == ["added b"]
            assert healthy(informer)
            assert len(store.lists) == 1


@virtual
async def test_after_compaction_the_differences_come_out_of_a_new_list() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)
        kind = await store.resource("", "ConfigMap")
        for name in ("gone", "changed", "same", "replaced"):
            await store.create(kind, config_map(name, v="1"), "default")
        async with followed(store, kind) as (informer, log):
            log.take()
            store.outage = ServiceUnavailable("away")
            await store.break_watches()
            await store.delete(kind, "gone", "default")
            await store.patch(kind, "changed", {"data": {"v": "2"}}, "default")
            await store.delete(kind, "replaced", "default")
            await store.create(kind, config_map("replaced", v="9"), "default")
            await store.create(kind, config_map("new"), "default")
            inner.compact()
            store.outage = None
            await asyncio.sleep(60)
            words = log.take()
            assert words[0] == "deleted gone?", "deletions first: what they free may be needed"
            assert sorted(words) == ["added new?", "added replaced?", "deleted gone?", "deleted replaced?", "updated changed?"]
            assert words.index("deleted replaced?") < words.index("added replaced?")
            assert names(informer) == ["changed", "new", "replaced", "same"]
            assert len(store.lists) == 2
            informer.cache.check_invariants()


@virtual
async def test_repeated_events_are_not_told_again() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)
        kind = await store.resource("", "ConfigMap")
        first = await store.create(kind, config_map("a", v="1"), "default")
        async with followed(store, kind) as (informer, log):
            for n in range(5):
                await store.patch(kind, "a", {"data": {"v": str(n + 2)}}, "default")
            await store.create(kind, config_map("b"), "default")
            await store.delete(kind, "b", "default")
            await settle()
            assert log.take() == ["added a?", *["updated a"] * 5, "added b", "deleted b"]
            store.rewind_to = first["metadata"]["resourceVersion"]
            await store.break_watches()
            await settle()
            store.rewind_to = ""
            await store.patch(kind, "a", {"data": {"v": "last"}}, "default")
            await settle()
            assert store.watches[1] == first["metadata"]["resourceVersion"]
            assert log.take() == ["updated a"], "b must not rise from the dead, a must not go back"
            assert informer.cache.get(ObjectKey("default", "a")).raw["data"] == {"v": "last"}  # type: ignore[union-attr]


@virtual
async def test_a_handler_that_raises_disturbs_nobody() -> None:
    async with memory_store() as store:
        kind = await store.resource("", "ConfigMap")
        informer, log = Informer(store, kind), Log()

        def bad(_change: Change) -> None:
            raise RuntimeError("broken handler")

        informer.add_handler(bad)
        informer.add_handler(log)
        informer.start()
        await informer.wait_synced()
        await store.create(kind, config_map("a"), "default")
        await settle()
        assert log.take() == ["added a"]
        await informer.stop()


class SizeData(View):
    size: Literal["small", "large"] = "small"


class Sized(View):
    """Fits a ConfigMap whose `size`, if it has one, is small or large."""

    data: SizeData = msgspec.field(default_factory=SizeData)


@virtual
async def test_an_object_that_does_not_fit_its_view_is_left_as_it_was() -> None:
    async with memory_store() as store:
        kind = await store.resource("", "ConfigMap")
        await store.create(kind, config_map("good", size="large"), "default")
        await store.create(kind, config_map("bad", size="huge"), "default")
        async with followed(store, kind, views=[Sized]) as (informer, log):
            assert log.take() == ["added good?"]
            assert list(informer.unreadable) == [ObjectKey("default", "bad")]
            assert "huge" in informer.unreadable[ObjectKey("default", "bad")]
            await store.patch(kind, "good", {"data": {"size": "vast"}}, "default")
            await settle()
            assert log.take() == []
            good = informer.cache.get(ObjectKey("default", "good"))
            assert good is not None
            assert good.view(Sized).data.size == "large", "the last version that could be read"
            assert len(informer.unreadable) == 2
            await store.patch(kind, "bad", {"data": {"size": "small"}}, "default")
            await store.patch(kind, "good", {"data": {"size": "small"}}, "default")
            await settle()
            assert log.take() == ["added bad", "updated good"]
            assert informer.unreadable == {}


@virtual
async def test_a_view_asked_for_late_takes_out_what_does_not_fit() -> None:
    async with memory_store() as store:
        kind = await store.resource("", "ConfigMap")
        await store.create(kind, config_map("good", size="large"), "default")
        await store.create(kind, config_map("bad", size="huge"), "default")
        async with followed(store, kind) as (informer, log):
            log.take()
            informer.add_view(Sized)
            assert log.take() == ["deleted bad?"]
            assert names(informer) == ["good"]


@virtual
async def test_an_informer_that_keeps_views_only_can_t_learn_a_new_one() -> None:
    async with memory_store() as store:
        kind = await store.resource("", "ConfigMap")
        await store.create(kind, config_map("a"), "default")
        async with followed(store, kind, keep="nothing") as (informer, _):
            with pytest.raises(ValueError, match="ask for it before"):
                informer.add_view(Sized)
            assert names(informer) == ["a"]


@pytest.mark.parametrize("keep", ["raw", "bytes", "nothing"])
def test_what_is_kept(keep: Keep) -> None:
    async def main() -> None:
        async with memory_store() as store:
            kind = await store.resource("", "ConfigMap")
            await store.create(kind, config_map("a", size="large"), "default")
            async with followed(store, kind, keep=keep, views=[Sized]) as (informer, _):
                (obj,) = informer.cache
                assert obj.view(Sized) is obj.view(Sized)
                assert obj.view(Sized).data.size == "large"
                if keep == "nothing":
                    with pytest.raises(LookupError, match="keeps views only"):
                        _ = obj.raw
                else:
                    assert obj.raw["data"] == {"size": "large"}
                    assert (obj.raw is obj.raw) == (keep == "raw"), "bytes give every reader its own copy"

    run(main())


@virtual
async def test_more_objects_than_allowed_are_an_error_not_a_gap() -> None:
    async with memory_store() as store:
        kind = await store.resource("", "ConfigMap")
        for n in range(3):
            await store.create(kind, config_map(f"c{n}"), "default")
        async with followed(store, kind, limits=InformerLimits(objects_max=3)) as (informer, log):
            assert healthy(informer)
            await store.create(kind, config_map("c3"), "default")
            await settle()
            assert not healthy(informer)
            assert "raise InformerLimits.objects_max" in informer.last_error
            await store.delete(kind, "c0", "default")
            await asyncio.sleep(120)
            assert healthy(informer)
            assert names(informer) == ["c1", "c2", "c3"]
            assert log.take()[-2:] == ["deleted c0?", "added c3?"]


@virtual
async def test_lists_are_read_in_pages_and_whole_when_the_snapshot_expires_between_them() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)
        kind = await store.resource("", "ConfigMap")
        for n in range(7):
            await store.create(kind, config_map(f"c{n}"), "default")
        async with followed(store, kind, limits=InformerLimits(page_len=2)) as (informer, _):
            assert [len(page.items) for page in store.lists] == [2, 2, 2, 1]
            assert len(names(informer)) == 7
        store.lists.clear()

        def expire(page: Page) -> Page:
            inner.compact()
            return page

        store.on_page = expire
        await store.patch(kind, "c0", {"data": {"x": "y"}}, "default")
        async with followed(store, kind, limits=InformerLimits(page_len=2)) as (informer, _):
            assert len(names(informer)) == 7


@virtual
async def test_a_list_from_the_past_is_not_believed() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)
        kind = await store.resource("", "ConfigMap")
        old = await store.list(kind)
        await store.create(kind, config_map("a"), "default")
        async with followed(store, kind) as (informer, log):
            log.take()
            store.on_page = lambda _page: old
            store.rewind_to = "1"
            inner.compact()
            await store.break_watches()
            await asyncio.sleep(5)
            assert log.take() == [], "an older state must not look like a deletion"
            assert names(informer) == ["a"]
            assert "already seen" in informer.last_error
            store.on_page = lambda page: page
            store.rewind_to = ""
            await asyncio.sleep(120)
            assert healthy(informer)


@virtual
async def test_a_store_that_keeps_saying_no_is_asked_more_and_more_seldom() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)
        kind = await store.resource("", "ConfigMap")
        store.outage = Forbidden("not for you")
        informer = Informer(store, kind)
        informer.start()
        asked: list[float] = []
        outage_free_list = store.list

        async def counted(*args: Any, **options: Any) -> Page:
            asked.append(current_loop().time())
            return await outage_free_list(*args, **options)

        store.list = counted  # type: ignore[method-assign]
        await asyncio.sleep(300)
        gaps = [b - a for a, b in pairwise(asked)]
        assert gaps[0] < 1
        assert gaps[-1] > 20
        assert len(asked) < 25
        assert not informer.has_synced
        assert "not for you" in informer.last_error
        await informer.stop()


@pytest.mark.parametrize("keep", ["raw", "bytes", "nothing"])
@virtual
async def test_objects_read_undecoded_are_the_same_objects(keep: Keep) -> None:
    """A store in this process gives its records; one behind a wrapper gives decoded objects. The caches can't be told apart."""
    async with memory_store() as store:
        kind = await store.resource("", "Pod")
        owners = await _owners(store)
        for name in ("a", "b", "c"):
            await store.create(kind, pod(name, labels={"app": name}), "default")
        wrapped = BreakableStore(store)
        options: dict[str, Any] = {"keep": keep, "views": [PodView]}
        async with followed(store, kind, **options) as (direct, told), followed(wrapped, kind, **options) as (other, also_told):
            await store.create(kind, pod("d", owners=owners), "default")
            await store.patch(kind, "a", {"metadata": {"labels": {"app": "z"}, "annotations": {"x": "y"}}}, "default")
            await store.patch(kind, "b", {"metadata": {"finalizers": ["example.com/f"]}}, "default")
            await store.delete(kind, "b", "default")
            await store.delete(kind, "c", "default", grace_period_s=0)
            await settle()
            assert wrapped.lists
            assert told.take() == also_told.take()
            assert direct.version == other.version
            assert [_facts(obj, keep) for obj in direct.cache.select()] == [_facts(obj, keep) for obj in other.cache.select()]
            assert [obj.key.name for obj in direct.cache.select() if obj.deleting] == ["b"]
            assert [obj.controller_uid for obj in direct.cache.select() if obj.owner_uids] == [owners[1]["uid"]]


class _PodMeta(View):
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class PodView(View):
    metadata: _PodMeta


async def _owners(store: Store) -> list[Raw]:
    kind = await store.resource("", "ConfigMap")
    first, second = [await store.create(kind, config_map(name), "default") for name in ("o1", "o2")]
    return [owner_reference(first, controller=False), owner_reference(second)]


def _facts(obj: Cached, keep: Keep) -> Raw:
    facts = {name: getattr(obj, name) for name in ("key", "uid", "resource_version", "labels", "owner_uids")}
    facts |= {name: getattr(obj, name) for name in ("kind", "controller_uid", "deleting")}
    return {**facts, "view": obj.view(PodView), "raw": None if keep == "nothing" else obj.raw}


@virtual
async def test_resync_tells_everything_again() -> None:
    async with memory_store() as store:
        kind = await store.resource("", "ConfigMap")
        await store.create(kind, config_map("a"), "default")
        async with followed(store, kind, resync_s=100) as (_, log):
            log.take()
            await asyncio.sleep(350)
            assert log.take() in (["resynced a"] * 2, ["resynced a"] * 3)


@virtual
async def test_the_hub_shares_one_informer_per_kind_namespace_and_selectors() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)
        hub = InformerHub(store)
        first, second = await asyncio.gather(hub.informer("", "ConfigMap"), hub.informer("", "ConfigMap", view=Sized))
        assert first is second
        assert await hub.informer("", "ConfigMap", namespace="default") is not first
        assert await hub.informer("", "ConfigMap", label_selector="a=b") is not first
        assert await hub.informer("", "ConfigMap", keep="nothing", view=Sized) is not first
        hub.start()
        await hub.wait_synced()
        late = await hub.informer("", "Secret")
        await late.wait_synced()
        assert len(store.watches) <= len(hub.informers) == 5
        with pytest.raises(NotFound):
            await hub.informer("nowhere.example", "Nothing")
        await hub.stop()


STORM = Faults(
    read_error_rate=0.1,
    latency_s=(0.0, 0.2),
    watch_lag_s=(0.0, 1.0),
    watch_broken_rate=0.15,
    watch_repeated_rate=0.5,
    expired_rate=0.2,
)


@pytest.mark.parametrize("seed", range(12))
def test_through_any_storm_the_story_is_consistent_and_the_cache_ends_up_right(seed: int) -> None:
    """Random writes, seen through a store that breaks, repeats, delays and expires: per object the versions only grow, added
    and deleted alternate, and in the end cache and store agree."""

    async def main() -> None:
        async with memory_store() as store:
            kind = await store.resource("", "ConfigMap")
            chance = Entropy(seed).stream("writes")
            faulty = FaultyStore(
                store,
                "reader",
                Entropy(seed).stream("faults"),
                STORM,
                note=lambda _who, _what: None,
                settled=_nothing,
                on_crash=lambda: None,
            )
            story: dict[str, list[tuple[str, int]]] = {}

            def tell(change: Change) -> None:
                version = int(change.newest.resource_version)
                story.setdefault(change.newest.key.name, []).append((change.type.value, version))

            informer = Informer(faulty, kind, limits=InformerLimits(page_len=3))
            informer.add_handler(tell)
            informer.start()
            for _ in range(150):
                await _write_something(store, kind, chance)
                await asyncio.sleep(chance.expovariate(2.0))
                if chance.random() < 0.05:
                    store.compact()
            faulty.faults = Faults()
            await asyncio.sleep(120)
            truth = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in (await store.list(kind)).items}
            assert {o.key.name: o.resource_version for o in informer.cache} == truth
            informer.cache.check_invariants()
            for name, steps in story.items():
                _check_story(name, steps, is_there=name in truth)
            await informer.stop()

    run(main(), seed=seed)


async def _nothing() -> None:
    return None


async def _write_something(store: EmbeddedStore, kind: Resource, chance: Chance) -> None:
    name = f"c{chance.randrange(6)}"
    try:
        if chance.random() < 0.3:
            await store.delete(kind, name, "default")
        else:
            await store.patch(kind, name, {"data": {"n": str(chance.random())}}, "default")
    except NotFound:
        await store.create(kind, config_map(name), "default")


def _check_story(name: str, steps: list[tuple[str, int]], *, is_there: bool) -> None:
    present, last = False, 0
    for word, version in steps:
        assert (word == "added") != present, f"{name}: {word} while present={present} in {steps}"
        assert version >= last if word == "deleted" else version > last, f"{name} went back: {steps}"
        present, last = word != "deleted", version
    assert present == is_there


@pytest.mark.parametrize(
    ("candidate", "known", "newer"),
    [("10", "9", True), ("9", "10", False), ("10", "10", False), ("5", "", True), ("abc", "abd", True), ("abc", "abc", False)],
)
def test_is_newer(candidate: str, known: str, newer: bool) -> None:
    assert is_newer(candidate, known) == newer
