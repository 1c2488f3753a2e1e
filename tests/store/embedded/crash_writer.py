"""A process that storms a store with writes until it is killed, and notes what it was told, line by line.

    python -m tests.store.embedded.crash_writer DIRECTORY LOG SEED

It prints `ready` when the store is open. Each line of LOG is one JSON list, written with a single system call, so that what
the process knew before it was killed is in the file:

    ["start", writer, operation, {name: value or null, ...}]   before a write: what the objects shall be afterwards
    ["done", writer, [version, ...]]                            after it was answered
    ["seen", version, type, name]                               an event that a watcher was given
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import msgspec

from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.store.contract import EventType, Operation
from muster.store.embedded import EmbeddedStore, Limits
from tests.store.embedded.support import CONFIG_MAPS, NAMESPACES, config_map

WRITERS = 8
SMALL = Limits(history_len_max=300, compact_len_max=50, wal_pages_max=40, batch_len_max=50)


class Log:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *entry: object) -> None:
        os.write(self._fd, msgspec.json.encode(entry) + b"\n")


def value_of(raw: Raw) -> str:
    return str(raw["data"]["n"])


def padded(rng: random.Random, value: int) -> dict[str, str]:
    return {"n": str(value), "padding": "x" * rng.choice([0, 100, 5000, 20_000])}


async def writer(store: EmbeddedStore, log: Log, index: int, seed: int) -> None:
    """Owns the names that begin with its number, so that what they should be is known at any moment."""
    rng = random.Random(seed * 1000 + index)
    mine = f"w{index}-"
    there = {r.name: 0 for r in store.list_records(CONFIG_MAPS, "default").records if r.name.startswith(mine)}
    value = int(store.resource_version) * 1000
    while True:
        value += 1
        name = f"{mine}{rng.randrange(12)}"
        pair = [f"{mine}left", f"{mine}right"]
        operation = rng.choice(["put", "put", "put", "delete", "pair"])
        if operation == "pair":
            log.write("start", index, "pair", dict.fromkeys(pair, str(value)))
            data = padded(rng, value)
            results = await store.transaction(
                [
                    Operation(
                        verb="update" if half in there else "create",
                        resource=CONFIG_MAPS,
                        namespace="default",
                        object=config_map(half, data),
                    )
                    for half in pair
                ]
            )
            there.update(dict.fromkeys(pair, 0))
        elif operation == "put":
            log.write("start", index, "put", {name: str(value)})
            put = store.update if name in there else store.create
            results = [await put(CONFIG_MAPS, config_map(name, padded(rng, value)), "default")]
            there[name] = 0
        elif name in there:
            log.write("start", index, "delete", {name: None})
            results = [await store.delete(CONFIG_MAPS, name, "default")]
            del there[name]
        else:
            continue
        log.write("done", index, [result["metadata"]["resourceVersion"] for result in results])


async def follow(store: EmbeddedStore, log: Log) -> None:
    version = store.resource_version
    watcher = store.watch_records(CONFIG_MAPS, "default", resource_version=version)
    async for batch in watcher:
        for event in batch:
            if event.type is not EventType.BOOKMARK:
                log.write("seen", event.rv, event.type.value, event.record.name)


async def main(directory: Path, log: Log, seed: int) -> None:
    limits = SMALL if seed % 2 else Limits()
    store = await EmbeddedStore.open(directory, clock=wall_clock, limits=limits)
    if not store.list_records(NAMESPACES).records:
        await store.create(NAMESPACES, {"metadata": {"name": "default"}})
    print("ready", flush=True)
    await asyncio.gather(follow(store, log), *(writer(store, log, index, seed) for index in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Log(Path(sys.argv[2])), int(sys.argv[3])))
