"""The store against a dictionary: any sequence of calls, with restarts in between, and the two agree at every step.

The model knows what Kubernetes would: objects with versions, labels, finalizers and a deletion mark. Writes are also followed
by a watcher that is reopened now and then from the last version it saw; what it saw, applied to nothing, is what a list gives.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster.objects.status import AlreadyExists, Conflict, Expired, Invalid, NotFound, Raw
from muster.store.contract import EventType, Operation, Preconditions
from muster.store.embedded import EmbeddedStore, Limits
from muster.store.embedded.watchers import Watcher
from tests.store.embedded.support import CONFIG_MAPS, ManualClock, config_map, open_store, seeded

T = TypeVar("T")
NAMES = st.sampled_from(["a", "b", "c", "d"])
VALUES = st.sampled_from(["0", "1", "2"])
LABELS = st.sampled_from([{}, {"on": "yes"}, {"on": "no"}])
FINALIZER = "example.com/hold"


class Model:
    """One object as the dictionary has it."""

    def __init__(self, value: str, labels: dict[str, str], *, held: bool, version: str, uid: str) -> None:
        self.value = value
        self.labels = labels
        self.held = held
        self.version = version
        self.uid = uid
        self.going = False


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._directory = tempfile.TemporaryDirectory()
        self._clock = ManualClock()
        self._entropy = seeded(7)
        self.model: dict[str, Model] = {}
        self.seen: dict[str, str] = {}
        self.seen_version = ""
        self.old: list[tuple[str, dict[str, str]]] = []
        """Versions with the state they had, for lists of the past."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    @initialize(writer=st.sampled_from(["thread", "inline"]), small=st.booleans())
    def begin(self, writer: str, small: bool) -> None:
        self._options: dict[str, Any] = {
            "clock": self._clock,
            "entropy": self._entropy,
            "writer": writer,
            "limits": Limits(history_len_max=15, compact_len_max=4, wal_pages_max=8) if small else Limits(),
        }
        self.store: EmbeddedStore = self.run(open_store(Path(self._directory.name), **self._options))
        self.seen_version = self.store.resource_version
        self.watcher = self._watch()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self._directory.cleanup()

    def _watch(self) -> Watcher:
        async def opened() -> Watcher:
            return self.store.watch_records(CONFIG_MAPS, "default", resource_version=self.seen_version)

        return self.run(opened())

    def _keep(self, name: str, raw: Raw, *, value: str, labels: dict[str, str], held: bool) -> None:
        going = name in self.model and self.model[name].going
        self.model[name] = Model(
            value, labels, held=held, version=raw["metadata"]["resourceVersion"], uid=raw["metadata"]["uid"]
        )
        self.model[name].going = going

    # --- writes ------------------------------------------------------------------------------------------------------

    @rule(name=NAMES, value=VALUES, labels=LABELS, held=st.booleans())
    def create(self, name: str, value: str, labels: dict[str, str], held: bool) -> None:
        obj = config_map(name, {"v": value}, labels=dict(labels), **({"finalizers": [FINALIZER]} if held else {}))
        try:
            raw = self.run(self.store.create(CONFIG_MAPS, obj, "default"))
        except AlreadyExists:
            assert name in self.model
            return
        assert name not in self.model
        self._keep(name, raw, value=value, labels=labels, held=held)

    @rule(name=NAMES, value=VALUES, labels=LABELS, stale=st.booleans())
    def update(self, name: str, value: str, labels: dict[str, str], stale: bool) -> None:
        there = self.model.get(name)
        meta: Raw = {"labels": dict(labels)}
        if there is not None:
            meta["resourceVersion"] = "1" if stale else there.version
            if there.held:
                meta["finalizers"] = [FINALIZER]
        try:
            raw = self.run(self.store.update(CONFIG_MAPS, config_map(name, {"v": value}, **meta), "default"))
        except NotFound:
            assert there is None
            return
        except Conflict:
            assert there is not None
            assert stale
            return
        assert there is not None
        assert not stale
        changed = (there.value, there.labels) != (value, labels)
        assert (raw["metadata"]["resourceVersion"] != there.version) is changed
        self._keep(name, raw, value=value, labels=labels, held=there.held)

    @rule(name=NAMES, value=VALUES)
    def patch(self, name: str, value: str) -> None:
        there = self.model.get(name)
        try:
            raw = self.run(self.store.patch(CONFIG_MAPS, name, {"data": {"v": value}}, "default"))
        except NotFound:
            assert there is None
            return
        assert there is not None
        self._keep(name, raw, value=value, labels=there.labels, held=there.held)

    @rule(name=NAMES, other_uid=st.booleans())
    def delete(self, name: str, other_uid: bool) -> None:
        there = self.model.get(name)
        uid = "another" if other_uid else (there.uid if there else None)
        try:
            raw = self.run(self.store.delete(CONFIG_MAPS, name, "default", preconditions=Preconditions(uid=uid)))
        except NotFound:
            assert there is None
            return
        except Conflict:
            assert there is not None
            assert other_uid
            return
        assert there is not None
        assert not other_uid
        if there.held:
            there.going = True
            there.version = raw["metadata"]["resourceVersion"]
            assert raw["metadata"]["deletionTimestamp"]
        else:
            del self.model[name]

    @rule(name=NAMES)
    def let_go(self, name: str) -> None:
        there = self.model.get(name)
        try:
            raw = self.run(self.store.patch(CONFIG_MAPS, name, {"metadata": {"finalizers": None}}, "default"))
        except NotFound:
            assert there is None
            return
        assert there is not None
        if there.going:
            del self.model[name]
        else:
            self._keep(name, raw, value=there.value, labels=there.labels, held=False)

    @rule(names=st.lists(NAMES, min_size=1, max_size=3, unique=True), value=VALUES, spoiled=st.booleans())
    def transaction(self, names: list[str], value: str, spoiled: bool) -> None:
        operations = [
            Operation(verb="create", resource=CONFIG_MAPS, namespace="default", object=config_map(name, {"v": value}))
            if name not in self.model
            else Operation(verb="patch", resource=CONFIG_MAPS, namespace="default", name=name, patch={"data": {"v": value}})
            for name in names
        ]
        if spoiled:
            operations.append(
                Operation(verb="create", resource=CONFIG_MAPS, namespace="default", object=config_map("Bad_Name"))
            )
        try:
            results = self.run(self.store.transaction(operations))
        except Invalid:
            assert spoiled
            return
        assert not spoiled
        for name, raw in zip(names, results, strict=True):
            there = self.model.get(name)
            self._keep(name, raw, value=value, labels=there.labels if there else {}, held=bool(there and there.held))

    @rule(name=NAMES, value=VALUES)
    def dry_run(self, name: str, value: str) -> None:
        from muster.store.contract import WriteOptions

        before = self.store.resource_version
        options = WriteOptions(dry_run=True)
        try:
            self.run(self.store.create(CONFIG_MAPS, config_map(name, {"v": value}), "default", options))
        except AlreadyExists:
            self.run(self.store.delete(CONFIG_MAPS, name, "default", options))
        assert self.store.resource_version == before

    # --- the world around --------------------------------------------------------------------------------------------

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        version = self.store.resource_version
        database = self.store._database
        assert database is not None
        if clean:
            self.run(self.store.close())
        else:
            # As after a kill: the log is not copied into the file. (Real kills are in test_crash.py.)
            close = database.close
            database.close = lambda **_: database.abandon()  # type: ignore[method-assign]
            self.run(self.store.close())
            database.close = close  # type: ignore[method-assign]
        self.store = self.run(open_store(Path(self._directory.name), **self._options))
        assert self.store.resource_version == version
        self.resume()

    @rule()
    def resume(self) -> None:
        """Watch again from the last version seen, or list again if that is forgotten."""
        self.watcher.close()
        try:
            self.watcher = self._watch()
        except Expired:
            page = self.store.list_records(CONFIG_MAPS, "default")
            self.seen = {record.name: record.raw()["data"]["v"] for record in page.records}
            self.seen_version = page.resource_version
            self.watcher = self._watch()

    @rule()
    def compact(self) -> None:
        self.store.compact()
        self.old.clear()

    @rule(seconds=st.sampled_from([1, 100, 400]))
    def time_passes(self, seconds: int) -> None:
        self._clock.now += seconds

    @rule()
    def remember(self) -> None:
        self.old.append((self.store.resource_version, {name: there.value for name, there in self.model.items()}))

    @precondition(lambda self: self.old)
    @rule(data=st.data(), limit=st.integers(1, 3))
    def list_the_past(self, data: st.DataObject, limit: int) -> None:
        version, wanted = data.draw(st.sampled_from(self.old))
        try:
            page = self.store.list_records(CONFIG_MAPS, "default", limit=limit, resource_version=version, version_match="Exact")
            found = list(page.records)
            while page.continue_token:
                page = self.store.list_records(CONFIG_MAPS, "default", limit=limit, continue_token=page.continue_token)
                found += page.records
        except Expired:
            return
        assert {record.name: record.raw()["data"]["v"] for record in found} == wanted
        assert [record.name for record in found] == sorted(wanted)

    # --- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def lists_are_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        listed = {r.name: r for r in self.store.list_records(CONFIG_MAPS, "default").records}
        assert listed.keys() == self.model.keys()
        for name, there in self.model.items():
            record = listed[name]
            assert (str(record.rv), record.uid) == (there.version, there.uid)
            assert (record.raw()["data"]["v"], dict(record.labels)) == (there.value, there.labels)
            assert (record.deleting, bool(record.finalizers)) == (there.going, there.held)
        on = self.store.list_records(CONFIG_MAPS, "default", label_selector="on=yes").records
        assert {r.name for r in on} == {name for name, there in self.model.items() if there.labels.get("on") == "yes"}

    @invariant()
    def the_watch_is_the_list(self) -> None:
        if not hasattr(self, "store"):
            return
        while self.watcher.lag:
            try:
                batch = self.run(anext(self.watcher))
            except Expired:
                self.resume()
                continue
            for event in batch:
                self._see(event.type, event.record.name, event.record.raw(), event.rv)
        assert self.seen == {name: there.value for name, there in self.model.items()}

    def _see(self, type_: EventType, name: str, raw: Raw, rv: int) -> None:
        if type_ is EventType.BOOKMARK:
            return
        assert rv > int(self.seen_version)
        assert (type_ is EventType.ADDED) == (name not in self.seen)
        if type_ is EventType.DELETED:
            del self.seen[name]
        else:
            self.seen[name] = raw["data"]["v"]
        self.seen_version = str(rv)


StoreMachine.TestCase.settings = settings(
    max_examples=600 if os.environ.get("MUSTER_SOAK") else 40, stateful_step_count=40, deadline=None
)
test_store = StoreMachine.TestCase
