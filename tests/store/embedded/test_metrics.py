"""Every limit is a metric, and the names are what they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from muster.store.embedded import Limits
from muster.store.embedded.metrics import StoreCollector
from tests.store.embedded.support import CONFIG_MAPS, config_map, open_store

WITHOUT_METRIC = {
    "watch_batch_len_max": "how events are handed over, nothing that can run out",
    "watch_batch_bytes_max": "how events are handed over, nothing that can run out",
    "list_len_max": "the size of a page",
    "bookmark_interval_s": "a rhythm",
    "wal_pages_max": "seen as checkpoints",
    "compact_len_max": "seen as the backlog",
}


async def test_exposition(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    for n in range(5):
        await store.create(CONFIG_MAPS, config_map(f"m{n}"), "default")
    watcher = store.watch_records(CONFIG_MAPS)
    registry = CollectorRegistry()
    registry.register(StoreCollector(store))
    text = generate_latest(registry).decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['muster_store_objects{resource="configmaps"}'] == "5.0"
    assert float(lines["muster_store_writes_total"]) == 6
    assert float(lines["muster_store_watchers"]) == 1
    assert float(lines["muster_store_file_bytes"]) > 4096
    assert float(lines["muster_store_resource_version"]) == float(store.resource_version)
    assert all(name.startswith("muster_store_") for name in lines)
    watcher.close()
    await store.close()


async def test_it_is_read_in_a_thread_while_watches_come_and_go() -> None:
    store = await open_store()
    kept = [store.watch_records(CONFIG_MAPS) for _ in range(500)]

    def measure() -> None:
        for _ in range(200):
            store.usage()

    measuring = asyncio.create_task(asyncio.to_thread(measure))
    while not measuring.done():
        store.watch_records(CONFIG_MAPS).close()
        await asyncio.sleep(0)
    await measuring
    assert store.usage().watchers_len == len(kept)
    await store.close()


async def test_every_limit_is_shown() -> None:
    store = await open_store()
    shown = {int(value) for _, _, value in store.usage().gauges()}
    for field in msgspec.structs.fields(Limits):
        if field.name not in WITHOUT_METRIC:
            assert int(getattr(store.limits, field.name)) in shown, field.name
    await store.close()
