"""Watches of the embedded store: slow readers, bookmarks, timeouts, shared bytes. Under a virtual clock where time matters."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.status import AlreadyExists, BadRequest, Expired, NotFound, Timeout
from muster.sim.clock import virtual
from muster.store.contract import EventType
from muster.store.embedded import EmbeddedStore, Limits
from muster.store.embedded.records import Event, Record
from tests.store.embedded.support import CONFIG_MAPS, PODS, SECRETS, config_map, open_store, pod


async def write(store: EmbeddedStore, *names: str, **metadata: Any) -> None:
    for name in names:
        await store.create(CONFIG_MAPS, config_map(name, **metadata), "default")


def shown(events: Any) -> list[tuple[str, str]]:
    return [(event.type.value, event.record.name) for event in events]


async def test_a_line_is_shared_by_all_who_watch() -> None:
    store = await open_store()
    plain = [store.watch_records(CONFIG_MAPS, resource_version=store.resource_version) for _ in range(3)]
    one_namespace = store.watch_records(CONFIG_MAPS, "default", resource_version=store.resource_version)
    await write(store, "a")
    lines = [(await anext(watcher))[0].line for watcher in (*plain, one_namespace)]
    assert all(line is lines[0] for line in lines)
    decoded = msgspec.json.decode(lines[0])
    assert decoded["type"] == "ADDED"
    assert decoded["object"] == await store.get(CONFIG_MAPS, "a", "default")
    assert lines[0].endswith(b"\n")
    assert lines[0].count(b"\n") == 1
    await store.close()


async def test_a_slow_reader_costs_nothing_and_learns_that_it_was_too_slow() -> None:
    store = await open_store(limits=Limits(history_len_max=20))
    slow = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version)
    quick = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version)
    for n in range(100):
        await write(store, f"m{n:03}")
        assert shown(await anext(quick)) == [("ADDED", f"m{n:03}")]
    assert store.usage().history_len == 20
    assert store.usage().watch_lag_len >= 20
    with pytest.raises(Expired, match="fell behind the history that is kept; list again"):
        await anext(slow)
    assert not slow.is_open
    assert store.usage().expired_watches == 1
    assert [event async for event in slow] == []
    await store.close()


async def test_a_reader_at_the_edge_of_history_misses_nothing() -> None:
    store = await open_store(limits=Limits(history_len_max=10))
    watcher = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version)
    seen: list[tuple[str, str]] = []
    for round_ in range(20):
        await write(store, *(f"m{round_:02}-{n}" for n in range(10)))
        while len(seen) < (round_ + 1) * 10:
            seen += shown(await anext(watcher))
    assert seen == [("ADDED", f"m{r:02}-{n}") for r in range(20) for n in range(10)]
    await store.close()


async def test_batches_are_bounded() -> None:
    store = await open_store(limits=Limits(watch_batch_len_max=7))
    await write(store, *(f"m{n:02}" for n in range(20)))
    for options in ({}, {"resource_version": "1"}):
        watcher = store.watch_records(CONFIG_MAPS, **options)  # type: ignore[arg-type]
        sizes = [len(await anext(watcher)) for _ in range(3)]
        assert sizes == [7, 7, 6]
    await store.close()


async def test_what_does_not_concern_it_does_not_wake_its_reader() -> None:
    store = await open_store()
    watcher = store.watch_records(CONFIG_MAPS, "default", label_selector="on=yes", resource_version=store.resource_version)
    reading = asyncio.ensure_future(anext(watcher))
    await write(store, "a", "b", "c")
    await store.create(SECRETS, {"metadata": {"name": "s"}}, "default")
    assert not reading.done()
    await write(store, "d", labels={"on": "yes"})
    assert shown(await reading) == [("ADDED", "d")]
    await store.close()


async def test_bookmarks_come_while_nothing_happens_and_tell_the_stores_version() -> None:
    store = await open_store(limits=Limits(bookmark_interval_s=0.01))
    await write(store, "a")
    watcher = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version)
    await store.create(SECRETS, {"metadata": {"name": "s"}}, "default")
    batch = await anext(watcher)
    assert [event.type for event in batch] == [EventType.BOOKMARK]
    decoded = msgspec.json.decode(batch[0].line)
    assert decoded["object"] == {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": store.resource_version, "creationTimestamp": None},
    }
    await write(store, "b")
    assert shown(await anext(watcher)) == [("ADDED", "b")]
    assert [event.type for event in await anext(watcher)] == [EventType.BOOKMARK]
    await store.close()


async def test_without_bookmarks_there_are_none() -> None:
    store = await open_store(limits=Limits(bookmark_interval_s=0.001))
    watcher = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version, bookmarks=False, timeout_s=0.05)
    assert [batch async for batch in watcher] == []
    await store.close()


async def test_the_end_comes_even_if_something_always_happens() -> None:
    store = await open_store()
    watcher = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version, timeout_s=0.05)
    stop = False

    async def busy() -> None:
        n = 0
        while not stop:
            n += 1
            await write(store, f"m{n}")

    writing = asyncio.ensure_future(busy())
    seen: list[Event] = []
    async for batch in watcher:
        seen += batch
    stop = True
    await writing
    names = [event.record.name for event in seen if event.type is not EventType.BOOKMARK]
    assert names == [f"m{n}" for n in range(1, len(names) + 1)]
    # From where it ended, the next one goes on.
    following = store.watch_records(CONFIG_MAPS, resource_version=str(seen[-1].rv))
    await write(store, "last")
    rest: list[str] = []
    while not rest or rest[-1] != "last":
        rest += [event.record.name for event in await anext(following)]
    assert rest == [*(f"m{n}" for n in range(len(names) + 1, len(names) + len(rest))), "last"]
    await store.close()


async def test_initial_events_and_their_end() -> None:
    store = await open_store()
    await write(store, "a", "b")
    watcher = store.watch_records(CONFIG_MAPS, send_initial_events=True, resource_version=store.resource_version)
    assert shown(await anext(watcher)) == [("ADDED", "a"), ("ADDED", "b")]
    (bookmark,) = await anext(watcher)
    assert bookmark.type is EventType.BOOKMARK
    meta = bookmark.record.raw()["metadata"]
    assert meta["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert meta["resourceVersion"] == store.resource_version
    await write(store, "c")
    assert shown(await anext(watcher)) == [("ADDED", "c")]
    without = store.watch_records(CONFIG_MAPS, send_initial_events=False)
    await write(store, "d")
    assert shown(await anext(without)) == [("ADDED", "d")]
    await store.close()


async def test_the_end_of_initial_events_does_not_claim_what_came_meanwhile() -> None:
    """Who loses the connection after that bookmark comes back with its version, and would never hear of what lies before."""
    store = await open_store(limits=Limits(watch_batch_len_max=2))
    await write(store, "a", "b", "c")
    listed = store.resource_version
    watcher = store.watch_records(CONFIG_MAPS, send_initial_events=True, bookmarks=True)
    assert shown(await anext(watcher)) == [("ADDED", "a"), ("ADDED", "b")]
    await write(store, "d")
    assert shown(await anext(watcher)) == [("ADDED", "c")]
    (bookmark,) = await anext(watcher)
    assert bookmark.record.raw()["metadata"] == {
        "resourceVersion": listed,
        "creationTimestamp": None,
        "annotations": {"k8s.io/initial-events-end": "true"},
    }
    assert shown(await anext(watcher)) == [("ADDED", "d")]
    again = store.watch_records(CONFIG_MAPS, resource_version=listed)
    assert shown(await anext(again)) == [("ADDED", "d")]
    await store.close()


async def test_what_happens_while_initial_events_are_read_follows_them() -> None:
    store = await open_store(limits=Limits(watch_batch_len_max=2))
    await write(store, "a", "b", "c")
    watcher = store.watch_records(CONFIG_MAPS)
    assert shown(await anext(watcher)) == [("ADDED", "a"), ("ADDED", "b")]
    await store.delete(CONFIG_MAPS, "c", "default")
    await write(store, "d")
    seen = [*shown(await anext(watcher)), *shown(await anext(watcher))]
    assert seen == [("ADDED", "c"), ("DELETED", "c"), ("ADDED", "d")]
    await store.close()


@pytest.mark.parametrize(
    ("version", "error", "message"),
    [
        pytest.param("abc", BadRequest, "must be one that this server gave out", id="no number"),
        pytest.param("-1", BadRequest, "must be one that this server gave out", id="negative"),
        pytest.param("9" * 40, BadRequest, "must be one that this server gave out", id="endless"),
        pytest.param("٣", BadRequest, "must be one that this server gave out", id="other digits"),
    ],
)
async def test_versions_that_are_none(version: str, error: type[Exception], message: str) -> None:
    store = await open_store()
    with pytest.raises(error, match=message):
        store.watch_records(CONFIG_MAPS, resource_version=version)
    with pytest.raises(error, match=message):
        store.list_records(CONFIG_MAPS, resource_version=version)
    await store.close()


async def test_a_version_still_to_come_is_waited_for() -> None:
    store = await open_store()
    await write(store, "a")
    coming = str(int(store.resource_version) + 2)
    watchers = [
        store.watch_records(CONFIG_MAPS, "default", resource_version=coming, field_selector=fields, label_selector=labels)
        for fields, labels in (("", ""), ("metadata.namespace=default", ""), ("", "on!=yes"))
    ]
    reading = [asyncio.ensure_future(anext(watcher)) for watcher in watchers]
    await write(store, "b", "c")
    assert store.resource_version == coming
    assert not any(task.done() for task in reading)
    await write(store, "d", "e")
    for watcher, task in zip(watchers, reading, strict=True):
        seen = shown(await task)
        while len(seen) < 2:
            seen += shown(await anext(watcher))
        assert seen == [("ADDED", "d"), ("ADDED", "e")]
    await store.close()


async def test_until_its_version_has_come_there_are_no_bookmarks() -> None:
    store = await open_store(limits=Limits(bookmark_interval_s=0.001))
    await write(store, "a")
    coming = str(int(store.resource_version) + 2)
    early = store.watch_records(CONFIG_MAPS, resource_version=coming, timeout_s=0.05)
    assert [batch async for batch in early] == []
    watcher = store.watch_records(CONFIG_MAPS, resource_version=coming)
    reading = asyncio.ensure_future(anext(watcher))
    await write(store, "b")
    # The version may come with a change of another kind.
    await store.create(SECRETS, {"metadata": {"name": "s"}}, "default")
    (bookmark,) = await reading
    assert (bookmark.type, str(bookmark.rv)) == (EventType.BOOKMARK, coming)
    await write(store, "c")
    while (seen := await anext(watcher))[0].type is EventType.BOOKMARK:
        pass
    assert shown(seen) == [("ADDED", "c")]
    await store.close()


async def test_what_exists_at_a_version_still_to_come_is_not_waited_for() -> None:
    store = await open_store()
    message = "Too large resource version: 999999, current:"
    with pytest.raises(Timeout, match=message):
        store.watch_records(CONFIG_MAPS, resource_version="999999", send_initial_events=True)
    with pytest.raises(Timeout, match=message):
        store.list_records(CONFIG_MAPS, resource_version="999999")
    await store.close()


async def test_lists_of_the_past() -> None:
    store = await open_store()
    await write(store, "a")
    then = store.resource_version
    await write(store, "b")
    await store.delete(CONFIG_MAPS, "a", "default")
    exact = store.list_records(CONFIG_MAPS, resource_version=then, version_match="Exact")
    assert ([r.name for r in exact.records], exact.resource_version) == (["a"], then)
    newer = store.list_records(CONFIG_MAPS, resource_version=then, version_match="NotOlderThan")
    assert [r.name for r in newer.records] == ["b"]
    store.compact()
    with pytest.raises(Expired):
        store.list_records(CONFIG_MAPS, resource_version=then, version_match="Exact")
    await store.close()


async def test_history_ends_by_age_and_by_size() -> None:
    from tests.store.embedded.support import ManualClock

    clock = ManualClock()
    store = await open_store(clock=clock, limits=Limits(history_age_s=300, history_bytes_max=20_000))
    await write(store, "a")
    start = store.resource_version
    clock.now += 299
    await write(store, "b")
    assert store.watch_records(CONFIG_MAPS, resource_version=start)
    clock.now += 2
    await write(store, "c")
    assert store.watch_records(CONFIG_MAPS, resource_version=start), "everything after it is still there"
    clock.now += 299
    await write(store, "d")
    with pytest.raises(Expired, match=f"too old resource version: {start}"):
        store.watch_records(CONFIG_MAPS, resource_version=start)
    for n in range(50):
        await store.create(CONFIG_MAPS, config_map(f"m{n}", {"x": "y" * 1000}), "default")
    assert 10_000 < store.usage().history_bytes <= 20_000
    await store.close()


async def test_a_watch_of_one_object_sleeps_through_all_others() -> None:
    """It reads nothing of them, lags behind nothing, and is not too late when the history has moved on."""
    store = await open_store(limits=Limits(history_len_max=10))
    await write(store, "mine")
    watcher = store.watch_records(CONFIG_MAPS, field_selector="metadata.name=mine", resource_version=store.resource_version)
    waiting = asyncio.create_task(anext(watcher))
    await asyncio.sleep(0)
    await write(store, *(f"m{n:02}" for n in range(50)))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert (watcher.lag, store.usage().watch_lag_len) == (0, 0)
    await store.patch(CONFIG_MAPS, "mine", {"data": {"a": "1"}}, "default")
    await write(store, "after")
    assert shown(await waiting) == [("MODIFIED", "mine")]
    await store.delete(CONFIG_MAPS, "mine", "default")
    assert shown(await anext(watcher)) == [("DELETED", "mine")]
    await store.close()


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("bind"), st.integers(0, 5), st.integers(0, 2)),
            st.tuples(st.just("touch"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("delete"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("read"), st.just(0), st.integers(0, 2)),
        ),
        max_size=30,
    ),
    batch_len_max=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_watches_of_one_value_see_what_a_filter_of_all_events_lets_through(
    steps: list[tuple[str, int, int]], batch_len_max: int
) -> None:
    """Whenever each of them gets to read: nothing is missed, nothing comes twice, and the order is that of the store."""

    async def scenario() -> None:
        store = await open_store(limits=Limits(watch_batch_len_max=batch_len_max))
        start = store.resource_version
        nodes = [f"n{n}" for n in range(3)]
        seen: dict[str, list[tuple[str, str, int]]] = {node: [] for node in nodes}
        watchers = {
            node: store.watch_records(PODS, field_selector=f"spec.nodeName={node}", resource_version=start) for node in nodes
        }
        everything = store.watch_records(PODS, resource_version=start)
        readers = {node: asyncio.create_task(anext(watcher)) for node, watcher in watchers.items()}

        async def read(node: str) -> bool:
            for _ in range(5):
                await asyncio.sleep(0)
            if not readers[node].done():
                return False
            seen[node] += [(e.type.value, e.record.name, e.record.rv) for e in readers[node].result()]
            readers[node] = asyncio.create_task(anext(watchers[node]))
            return True

        for act, number, place in steps:
            name = f"p{number}"
            if act == "bind":
                with contextlib.suppress(AlreadyExists):
                    raw = pod(name)
                    raw["spec"]["nodeName"] = nodes[place]
                    await store.create(PODS, raw, "default")
            elif act == "touch":
                with contextlib.suppress(NotFound):
                    await store.patch(PODS, name, {"metadata": {"labels": {"v": store.resource_version}}}, "default")
            elif act == "delete":
                with contextlib.suppress(NotFound):
                    await store.delete(PODS, name, "default", grace_period_s=0)
            else:
                await read(nodes[place])
        for node in nodes:
            while await read(node):
                pass
        expected: dict[str, list[tuple[str, str, int]]] = {node: [] for node in nodes}
        while everything.lag:
            for event in await anext(everything):
                expected[event.record.fields["spec.nodeName"]].append((event.type.value, event.record.name, event.record.rv))
        assert seen == expected
        for reader in readers.values():
            reader.cancel()
        await asyncio.gather(*readers.values(), return_exceptions=True)
        await store.close()

    asyncio.run(scenario())


@virtual
async def test_what_follows_a_batch_soon_is_gathered_for_the_next() -> None:
    store = await open_store()
    watcher = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version)
    watcher.gather_s = lambda: 60.0
    await write(store, "a")
    assert shown(await anext(watcher)) == [("ADDED", "a")]
    following = asyncio.create_task(anext(watcher))
    while not watcher.collection._waiters:
        await asyncio.sleep(0)
    for name in ("b", "c", "d"):
        await write(store, name)
        await asyncio.sleep(0)  # it could read the one that was written
    assert shown(await following) == [("ADDED", "b"), ("ADDED", "c"), ("ADDED", "d")]
    await store.close()


async def test_one_that_is_closed_while_it_waits_for_its_turn_ends() -> None:
    store = await open_store()
    watcher = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version)
    await store.create(CONFIG_MAPS, config_map("a"), "default")

    async def pace() -> None:
        watcher.close()

    watcher.pace = pace
    async with asyncio.timeout(30):
        assert [batch async for batch in watcher] == []
    await store.close()


async def test_many_are_woken_a_few_at_a_time_and_all_are() -> None:
    store = await open_store()
    watchers = [store.watch_records(CONFIG_MAPS, resource_version=store.resource_version) for _ in range(350)]
    tasks = [asyncio.create_task(anext(watcher)) for watcher in watchers]
    await asyncio.sleep(0)
    collection = watchers[0].collection
    waiting = list(collection._waiters)
    assert len(waiting) == 350
    record = Record(key=("default", "a"), rv=10**6, uid="u", api_version="v1", value=b"{}", labels={}, fields={})
    collection.history.append(Event(EventType.ADDED, record, None))
    collection.wake()
    assert sum(waiter.done() for waiter in waiting) == 100
    assert all(len(batch) == 1 for batch in await asyncio.gather(*tasks))
    await store.close()


@pytest.mark.parametrize("selector", ["", "metadata.namespace=default"])
async def test_a_timer_that_fires_while_many_are_being_woken_loses_nothing(
    selector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bookmarks and ends come by a timer; whoever has something to read, and is only told later, is not sent past it."""
    store = await open_store()
    rv = store.resource_version
    watchers = [store.watch_records(CONFIG_MAPS, field_selector=selector, resource_version=rv) for _ in range(350)]
    collection = watchers[0].collection
    tasks = [asyncio.create_task(anext(watcher)) for watcher in watchers]
    await asyncio.sleep(0)
    woken = collection.wake

    def wake_and_fire() -> None:
        woken()
        for watcher in watchers:
            watcher._on_timer()

    monkeypatch.setattr(collection, "wake", wake_and_fire)
    await write(store, "a")
    monkeypatch.undo()
    await write(store, "b")
    seen = [shown(batch) for batch in await asyncio.gather(*tasks)]
    assert all(one[0] == ("ADDED", "a") for one in seen)
    await store.close()
