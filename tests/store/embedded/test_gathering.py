"""Watches that gather, pace themselves, sleep until something concerns them, end and resume: what they show is always a state.

In virtual time. Every word of a watcher is held against what the store was at that version: its events in order, none missing,
none twice; and a bookmark only where everything before it was told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import partial

import pytest

from muster.objects.status import Expired
from muster.sim.clock import virtual
from muster.store.contract import EventType
from muster.store.embedded import EmbeddedStore, Limits
from muster.store.embedded.collection import Collection
from muster.store.embedded.records import Event
from tests.store.embedded.support import PODS, open_store, pod

State = dict[str, int]
"""Objects by name, and the version of each."""


class Chronicle:
    """What matched each selector after each version, told by the store as it commits."""

    def __init__(self, store: EmbeddedStore, phases: tuple[str, ...]) -> None:
        self._states: dict[str, list[tuple[int, State]]] = {phase: [(0, {})] for phase in phases}
        store.listeners.append(self._take)

    def _take(self, collection: Collection, event: Event) -> None:
        if collection.id != "pods":
            return
        for phase, states in self._states.items():
            state = {name: rv for name, rv in states[-1][1].items() if name != event.record.name}
            if event.type is not EventType.DELETED and phase in ("", event.record.field("status.phase")):
                state[event.record.name] = event.rv
            states.append((event.rv, state))

    def at(self, rv: int, phase: str) -> State:
        return next(state for version, state in reversed(self._states[phase]) if version <= rv)


class Reader:
    """Follows one selector from watch to watch, as an informer does."""

    def __init__(self, store: EmbeddedStore, chronicle: Chronicle, phase: str, seed: str) -> None:
        self._store = store
        self._chronicle = chronicle
        self._phase = phase
        self._selector = f"status.phase={phase}" if phase else ""
        self._random = random.Random(seed)
        self.state: State = {}
        self.rv = 0
        self.bookmarks = self.ends = self.expired = 0

    async def _pace(self) -> None:
        await asyncio.sleep(self._random.choice([0, 0, 0.001, 0.02]))

    def _list(self) -> None:
        page = self._store.list_records(PODS, field_selector=self._selector)
        self.state = {record.name: record.rv for record in page.records}
        self.rv = int(page.resource_version)

    async def follow(self) -> None:
        self._list()
        while True:
            try:
                watcher = self._store.watch_records(
                    PODS, field_selector=self._selector, resource_version=str(self.rv), timeout_s=self._random.uniform(0, 0.5)
                )
                watcher.gather_s = partial(self._random.choice, [0, 0.01, 0.1])
                watcher.pace = self._pace if self._random.random() < 0.7 else None
                async for batch in watcher:
                    for event in batch:
                        self._take(event)
                    if self._random.random() < 0.1:
                        await asyncio.sleep(self._random.uniform(0, 0.2))  # it is busy elsewhere
                self.ends += 1
            except Expired:
                self.expired += 1
                self._list()

    def _take(self, event: Event) -> None:
        if event.type is EventType.BOOKMARK:
            self.bookmarks += 1
            assert event.rv >= self.rv
            self.rv = event.rv
            assert self.state == self._chronicle.at(event.rv, self._phase), "a bookmark went past something"
            return
        name = event.record.name
        assert event.rv > self.rv, "twice, or out of order"
        assert (name in self.state) is (event.type is not EventType.ADDED)
        self.rv = event.rv
        self.state.pop(name, None)
        if event.type is not EventType.DELETED:
            self.state[name] = event.rv
        assert self.state == self._chronicle.at(event.rv, self._phase), "something before it was left out"


async def _write(store: EmbeddedStore, seed: str, steps: int) -> None:
    draw = random.Random(seed)
    for _ in range(steps):
        name = f"p{draw.randrange(6)}"
        there: Mapping[str, object] = {record.name: record for record in store.list_records(PODS).records}
        if name not in there:
            await store.create(PODS, pod(name), "default")
        elif draw.random() < 0.2:
            await store.delete(PODS, name, "default", grace_period_s=0)
        else:
            status = {"phase": draw.choice(["Pending", "Running"]), "message": str(draw.random())}
            await store.patch(PODS, name, {"status": status}, "default", subresource="status")
        if draw.random() < 0.3:
            await asyncio.sleep(draw.choice([0.001, 0.005, 0.02, 0.3]))


@pytest.mark.parametrize("history_len_max", [10, 100_000], ids=["short history", "long history"])
@pytest.mark.parametrize("seed", range(5))
@virtual
async def test_what_a_watch_shows_is_what_the_store_was(seed: int, history_len_max: int) -> None:
    store = await open_store(limits=Limits(history_len_max=history_len_max, bookmark_interval_s=0.05, watch_batch_len_max=3))
    phases = ("", "Running")
    chronicle = Chronicle(store, phases)
    readers = [Reader(store, chronicle, phase, f"{seed}/{phase}/{n}") for phase in phases for n in range(4)]
    tasks = [asyncio.create_task(reader.follow()) for reader in readers]
    await _write(store, f"{seed}/writer", 250)
    await asyncio.sleep(2)
    for reader, task in zip(readers, tasks, strict=True):
        assert not task.done(), task.exception()
        assert reader.state == chronicle.at(int(store.resource_version), reader._phase)
        task.cancel()
    assert all(reader.bookmarks and reader.ends for reader in readers)
    assert any(reader.expired for reader in readers) is (history_len_max == 10)
    await store.close()
