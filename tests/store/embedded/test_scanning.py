"""A scan is one snapshot, whatever is written between its pieces, and a watch that begins with it misses nothing after it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.status import ApiError, Expired
from muster.store.contract import WriteOptions
from muster.store.embedded import EmbeddedStore, Limits
from muster.store.embedded.record_reads import STEP_LEN
from muster.store.embedded.scanning import Scan
from tests.store.embedded.support import CONFIG_MAPS, config_map, open_store

NAMES = [f"m{number}" for number in range(12)]
CHANGES = st.lists(st.tuples(st.sampled_from(("create", "update", "delete")), st.sampled_from(NAMES)), max_size=8)


async def _change(store: EmbeddedStore, what: str, name: str, mark: int) -> None:
    with contextlib.suppress(ApiError):  # what is not there, or is there already, is no change
        match what:
            case "create":
                await store.create(CONFIG_MAPS, config_map(name, labels={"mark": str(mark)}), "default")
            case "update":
                found = await store.get(CONFIG_MAPS, name, "default")
                found["metadata"]["labels"] = {"mark": str(mark)}
                await store.update(CONFIG_MAPS, found, "default", WriteOptions())
            case _:
                await store.delete(CONFIG_MAPS, name, "default")


@settings(deadline=None, max_examples=60)
@given(
    before=CHANGES, rounds=st.lists(CHANGES, max_size=8), piece=st.integers(1, 5), namespace=st.sampled_from([None, "default"])
)
def test_pieces_are_one_snapshot(
    before: list[tuple[str, str]], rounds: list[list[tuple[str, str]]], piece: int, namespace: str | None
) -> None:
    async def run() -> None:
        store = await open_store()
        for number, (what, name) in enumerate(before):
            await _change(store, what, name, number)
        expected = [record.value for record in store.list_records(CONFIG_MAPS, namespace).records]
        collection = store._core.collections["configmaps"]
        scan = Scan(collection, store._core.committed_rv, namespace)
        found = []
        for changes in [*rounds, *([[]] * 30)]:
            part = scan.take(piece)
            found += [record.value for record in part]
            if scan.is_done:
                break
            for number, (what, name) in enumerate(changes):
                await _change(store, what, name, 100 + number)
        assert scan.is_done
        assert found == expected
        await store.close()

    asyncio.run(run())


async def test_a_list_stops_between_steps_and_is_one_snapshot() -> None:
    store = await open_store()
    count = 3 * STEP_LEN
    for start in range(0, count, 500):
        await asyncio.gather(
            *(
                store.create(CONFIG_MAPS, config_map(f"m{n:05}", labels={"odd": str(n % 2)}), "default")
                for n in range(start, start + 500)
            )
        )
    steps = store.list_record_steps(CONFIG_MAPS, "default", label_selector="odd=1")
    next(steps)
    await store.delete(CONFIG_MAPS, "m00003", "default")  # was passed already
    await store.delete(CONFIG_MAPS, f"m{count - 1:05}", "default")  # comes later
    await store.create(CONFIG_MAPS, config_map("m99999", labels={"odd": "1"}), "default")
    stops = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            page = end.value
            break
        stops += 1
    assert stops >= count // STEP_LEN - 1
    assert [record.name for record in page.records] == [f"m{n:05}" for n in range(1, count, 2)]
    await store.close()


async def test_a_scan_that_falls_behind_the_history_is_told() -> None:
    store = await open_store(limits=Limits(history_len_max=5))
    for n in range(10):
        await store.create(CONFIG_MAPS, config_map(f"m{n}"), "default")
    watcher = store.watch_records(CONFIG_MAPS, send_initial_events=True)
    scan = Scan(store._core.collections["configmaps"], store._core.committed_rv, None)
    assert len(scan.take(2)) == 2
    for n in range(10):
        await store.create(CONFIG_MAPS, config_map(f"late{n}"), "default")
    with pytest.raises(Expired, match="list again"):
        scan.take(2)
    with pytest.raises(Expired):
        await anext(watcher)
    assert not watcher.is_open
    await store.close()


async def test_initial_events_and_what_follows_leave_no_gap() -> None:
    store = await open_store(limits=Limits(watch_batch_len_max=2))
    for n in range(6):
        await store.create(CONFIG_MAPS, config_map(f"m{n}"), "default")
    watcher = store.watch_records(CONFIG_MAPS, "default", send_initial_events=True)
    seen = [event.record.name for event in await anext(watcher)]
    await store.delete(CONFIG_MAPS, "m5", "default")
    await store.create(CONFIG_MAPS, config_map("m9"), "default")
    kinds: list[str] = []
    while len(kinds) < 7:
        for event in await anext(watcher):
            kinds.append(event.type.value)
            seen.append(event.record.name)
    assert seen == ["m0", "m1", "m2", "m3", "m4", "m5", "", "m5", "m9"]
    assert kinds == ["ADDED"] * 4 + ["BOOKMARK", "DELETED", "ADDED"]
    await store.close()


async def test_a_batch_is_bounded_in_bytes() -> None:
    store = await open_store(limits=Limits(watch_batch_bytes_max=10_000))
    start = store.resource_version
    for n in range(12):
        await store.create(CONFIG_MAPS, {**config_map(f"m{n:02}"), "data": {"k": "v" * 3000}}, "default")
    await store.create(CONFIG_MAPS, {**config_map("n-huge"), "data": {"k": "v" * 50_000}}, "default")
    for watcher in (
        store.watch_records(CONFIG_MAPS, resource_version=start),
        store.watch_records(CONFIG_MAPS, "default", send_initial_events=True),
    ):
        names: list[str] = []
        while len(names) < 13:
            batch = await anext(watcher)
            assert len(batch) == 1 or sum(len(event.record.value) for event in batch) <= 10_000
            names += [event.record.name for event in batch]
        assert names == [*(f"m{n:02}" for n in range(12)), "n-huge"]
        watcher.close()
    await store.close()
