"""Large writes that pause between their steps, beside small ones and each other, in many orders: what was answered holds.

Every client keeps a note of what it was told. In the end the store must be what somebody gets who does, one after the other,
what was answered with success; and every version on the way must follow from the one before it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from muster.objects.status import AlreadyExists, Conflict, Forbidden, InternalError, NotFound, Raw
from muster.store.contract import EventType, PatchType, WriteOptions
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.context import LARGE_BYTES
from muster.store.embedded.database import CommitFailed, Database, Row
from muster.store.embedded.records import Event
from tests.store.embedded.support import CONFIG_MAPS, NAMESPACES, config_map, open_store, seeded

WEIGHT = "v" * (LARGE_BYTES + 1)
"""Makes what holds it large."""
DRY = WriteOptions(dry_run=True)


class Client:
    """One of several who write at the same time. Its turns take a random while."""

    def __init__(self, store: EmbeddedStore, number: int, seed: int) -> None:
        self._store = store
        self._random = random.Random(f"{seed}/{number}")
        self._me = f"c{number}"
        self._step = 0
        self.marks: set[str] = set()
        self.counted = 0
        self.made: list[str] = []

    async def turn(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)

    async def act(self, steps: int) -> None:
        acts = (self.mark, self.mark, self.apply, self.count, self.count, self.make, self.pretend, self.finish)
        for self._step in range(steps):
            await self._random.choice(acts)()
            await self.turn()

    def _mark(self) -> str:
        return f"{self._me}-{self._step}"

    async def _patch(self, patch: Raw, name: str = "shared", options: WriteOptions | None = None, **more: Any) -> None:
        options = options or WriteOptions(field_manager=self._me)
        await self._store.patch_record(CONFIG_MAPS, name, patch, "default", options, turn=self.turn, **more)

    async def mark(self) -> None:
        await self._patch({"data": {self._mark(): "set"}})
        self.marks.add(self._mark())

    async def apply(self) -> None:
        """All that this one applied before is applied again: what is left out would go."""
        mine = {mark: "set" for mark in self.marks if mark.startswith("applied-")} | {f"applied-{self._mark()}": "set"}
        await self._patch(config_map("shared", mine), patch_type=PatchType.APPLY)
        self.marks.add(f"applied-{self._mark()}")

    async def count(self) -> None:
        found = self._store.get_record(CONFIG_MAPS, "shared", "default").raw()
        await self.turn()
        found["data"]["count"] = str(int(found["data"]["count"]) + 1)
        try:
            await self._store.update_record(CONFIG_MAPS, found, "default", turn=self.turn)
        except Conflict:
            return
        self.counted += 1

    async def make(self) -> None:
        raw = {"metadata": {"generateName": "made-"}, "data": {"by": self._mark(), "weight": WEIGHT}}
        record = await self._store.create_record(CONFIG_MAPS, raw, "default", turn=self.turn)
        self.made.append(record.name)

    async def pretend(self) -> None:
        await self._patch({"data": {f"dry-{self._mark()}": "set"}}, options=DRY)

    async def finish(self) -> None:
        """One that others make, hold and let go as well."""
        try:
            held = {**config_map("fleeting", {"weight": WEIGHT}), "metadata": {"name": "fleeting", "finalizers": ["a.b/c"]}}
            await self._store.create_record(CONFIG_MAPS, held, "default", turn=self.turn)
        except AlreadyExists:
            pass
        try:
            await self._store.delete(CONFIG_MAPS, "fleeting", "default")
            await self._patch({"metadata": {"finalizers": None}}, "fleeting")
        except NotFound:
            pass


def check_history(events: list[Event]) -> dict[str, Raw]:
    """What the events come to. Each follows from the ones before it."""
    state: dict[str, Raw] = {}
    last = 0
    for event in events:
        assert event.rv > last
        last = event.rv
        name, raw = event.record.name, event.record.raw()
        before = state.pop(name, None)
        assert (before is None) is (event.type is EventType.ADDED)
        if name == "shared" and before is not None:
            assert before["data"].keys() <= raw["data"].keys(), "an update was lost"
            assert int(before["data"]["count"]) <= int(raw["data"]["count"])
        if name == "fleeting" and before is not None:
            assert before["metadata"]["uid"] == raw["metadata"]["uid"]
            deleted_at = before["metadata"].get("deletionTimestamp")
            assert deleted_at in (None, raw["metadata"].get("deletionTimestamp")), "what is being deleted stays so"
        if event.type is not EventType.DELETED:
            state[name] = raw
    return state


async def seen_by(store: EmbeddedStore, rv: str) -> list[Event]:
    watcher = store.watch_records(CONFIG_MAPS, resource_version=rv, timeout_s=0)
    found = [event async for batch in watcher for event in batch if event.type is not EventType.BOOKMARK]
    while watcher.lag:  # one whose time is over may leave something to the next
        watcher = store.watch_records(CONFIG_MAPS, resource_version=str(found[-1].rv), timeout_s=0)
        found += [event async for batch in watcher for event in batch if event.type is not EventType.BOOKMARK]
    return found


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "on disk"])
@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path, seed: int, in_memory: bool) -> None:
    entropy = seeded(seed)
    # Few names to draw from: several draw the same, and while they are made.
    store = await open_store(None if in_memory else tmp_path, entropy=lambda length: entropy(1).rjust(length, b"\0"))
    rv = store.resource_version
    await store.create(CONFIG_MAPS, config_map("shared", {"count": "0", "weight": WEIGHT}), "default")
    clients = [Client(store, number, seed) for number in range(5)]
    await asyncio.gather(*(client.act(12) for client in clients))
    await store.settled()
    state = check_history(await seen_by(store, rv))
    assert state == {record.name: record.raw() for record in store.list_records(CONFIG_MAPS).records}
    marks = set().union(*(client.marks for client in clients))
    assert state["shared"]["data"].keys() == marks | {"count", "weight"}
    assert state["shared"]["data"]["count"] == str(sum(client.counted for client in clients))
    made = [name for client in clients for name in client.made]
    assert Counter(made) == Counter(name for name in state if name.startswith("made-"))
    await store.close()


@pytest.mark.parametrize("at", range(1, 8))
async def test_a_namespace_that_goes_takes_what_was_being_made_with_it(at: int) -> None:
    store = await open_store()
    await store.create(NAMESPACES, {"metadata": {"name": "going"}})
    taken = 0

    async def turn() -> None:
        nonlocal taken
        taken += 1
        if taken == at:
            await store.delete(NAMESPACES, "going")
            await asyncio.sleep(0)

    large = config_map("late", {"weight": WEIGHT})
    with pytest.raises((Forbidden, NotFound)):
        await store.create_record(CONFIG_MAPS, large, "going", turn=turn)
    await store.settled()
    assert not [r for r in store.list_records(CONFIG_MAPS).records if r.namespace == "going"]
    await store.close()


async def test_no_refusal_rests_on_what_never_came_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write that it would be refused for fails while it pauses, so that nothing is on its way to disk any more."""
    store = await open_store(tmp_path)
    await store.create(CONFIG_MAPS, config_map("a", {"weight": WEIGHT}), "default")

    def fail(database: Database, rows: list[Row]) -> None:
        raise CommitFailed("injected", full=False)

    monkeypatch.setattr(Database, "commit", fail)
    freezing = asyncio.create_task(store.patch(CONFIG_MAPS, "a", {"immutable": True}, "default"))
    while not store.usage().in_flight_len:
        await asyncio.sleep(0)

    async def turn() -> None:
        if not freezing.done():
            with pytest.raises(InternalError, match="injected"):
                await freezing
            monkeypatch.undo()

    patched = await store.patch_record(CONFIG_MAPS, "a", {"data": {"k": "v"}}, "default", turn=turn)
    assert patched.raw()["data"]["k"] == "v"
    await store.close()
