"""The embedded store at the level of encoded records: what a server in front of it uses, without decoding anything twice.

Here the store is put together, opened and closed, and says what it is. What it does stands in the classes that it is made of,
a file each: `record_reads.py`, `record_writes.py` (one object), `record_batches.py` (many), `record_subresources.py`. They are
base classes, so a call reaches them without another in between; each declares the parts that it works with.

`EmbeddedStore` (store.py) is this plus the contract's methods, which decode. See there for concurrency and guarantees.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Self

from muster.objects.catalog import CATALOG, Catalog
from muster.objects.names import Entropy
from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.objects.time import Clock
from muster.store.embedded.admission import Accounts, Admission, BodyAdmission
from muster.store.embedded.binding import Bindings
from muster.store.embedded.collection import Collection
from muster.store.embedded.committer import GATHER_MAX_S, InlineCommitter, ThreadCommitter
from muster.store.embedded.core import Core
from muster.store.embedded.creates import Creates
from muster.store.embedded.custom import CRD_ID, CustomKinds
from muster.store.embedded.database import Database
from muster.store.embedded.deletes import Deletes
from muster.store.embedded.eviction import Evictions
from muster.store.embedded.garbage import GarbageCollector
from muster.store.embedded.limits import Limits
from muster.store.embedded.loop_load import LoopLoad
from muster.store.embedded.namespaces import NAMESPACES_ID, prepare_namespace
from muster.store.embedded.opening import load
from muster.store.embedded.patches import Patches
from muster.store.embedded.record_batches import RecordBatches
from muster.store.embedded.record_subresources import RecordSubresources
from muster.store.embedded.records import Event
from muster.store.embedded.registry import Registry
from muster.store.embedded.scale import Scales
from muster.store.embedded.shaping import Shaper
from muster.store.embedded.snapshot import Snapshot, snapshot_of
from muster.store.embedded.updates import Updates
from muster.store.embedded.usage import Usage, measure
from muster.store.embedded.writes import Writes


class RecordStore(RecordBatches, RecordSubresources):
    def __init__(
        self,
        *,
        clock: Clock,
        catalog: Catalog = CATALOG,
        entropy: Entropy = os.urandom,
        limits: Limits | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._core = Core(clock, limits or Limits())
        self._registry = Registry(self._core, catalog)
        self._shaper = Shaper(clock, admission, self._core.limits.object_bytes_max)
        self._creates = Creates(self._core, self._registry, self._shaper, entropy)
        self._updates = Updates(self._registry, self._shaper)
        self._patches = Patches(self._core, self._registry, self._shaper, self._creates, self._updates)
        self._deletes = Deletes(self._core, self._registry, self._shaper)
        self._writes = Writes(self._core, self._registry, self._updates)
        self._bindings = Bindings(self._core, self._registry, self._shaper, self._updates)
        self._evictions = Evictions(self._core, self._registry, self._shaper, self._deletes)
        self._scales = Scales(self._registry, self._shaper, self._patches)
        self._custom = CustomKinds(self._core, self._registry)
        self._garbage = GarbageCollector(self._core, self._registry, self._updates, self._deletes, self._writes)
        self._shaper.kind_hooks = {NAMESPACES_ID: prepare_namespace, CRD_ID: self._custom.prepare}
        self._core.listeners.append(self._custom.on_event)
        self._database: Database | None = None
        self.load = LoopLoad()
        """Of the thread that the store was made on, which is that of its loop."""

    # --- life ----------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        path: Path | None,
        *,
        clock: Clock,
        catalog: Catalog = CATALOG,
        writer: Literal["thread", "inline"] = "thread",
        entropy: Entropy = os.urandom,
        limits: Limits | None = None,
        admission: Admission | None = None,
    ) -> Self:
        """Open the store in directory `path`, creating it if need be; None keeps everything in memory.

        Raises a `StoreError` that says why the directory can't be used; nothing on disk is changed then.
        """
        store = cls(clock=clock, catalog=catalog, entropy=entropy, limits=limits, admission=admission)
        core = store._core
        core.identity = entropy(16)
        database: Database | None = None
        leftovers: Sequence[int] = ()
        if path is not None:
            loaded = store._load(path) if writer == "inline" else await asyncio.to_thread(store._load, path)
            database, leftovers = loaded
            core.identity = database.identity
        store._database = database
        done, failed, compact = core.on_committed, core.on_failed, core.limits.compact_len_max
        if database is None or writer == "inline":
            core.committer = InlineCommitter(database, done, failed, compact_len_max=compact)
        else:
            batch = core.limits.batch_len_max
            core.committer = ThreadCommitter(
                database,
                done,
                failed,
                batch_len_max=batch,
                compact_len_max=compact,
                gather_s=functools.partial(store.load.stretched, 0.0, GATHER_MAX_S),
                healed=core.on_healed,
            )
        core.committer.doom(leftovers, core.horizon)
        store._garbage.start()
        return store

    def _load(self, path: Path) -> tuple[Database, Sequence[int]]:
        limits = self._core.limits
        database = Database.open(path, identity=self._core.identity, wal_pages_max=limits.wal_pages_max)
        try:
            return database, load(self._core, self._custom, database)
        except BaseException:
            database.abandon()
            raise

    async def close(self) -> None:
        """Accept nothing more, finish what was accepted, end every watch, release the directory."""
        await self._garbage.close()
        await self._core.close()

    async def settled(self) -> None:
        """Until nothing is on its way to disk and nothing waits to be cleaned up. For tests and orderly ends."""
        while self._core.in_flight_len or self._garbage.is_busy:
            await self._core.settle()
            await self._garbage.idle()

    # --- what there is -------------------------------------------------------------------------------------------

    @property
    def limits(self) -> Limits:
        return self._core.limits

    @property
    def clock(self) -> Clock:
        return self._core.clock

    @property
    def admission(self) -> Admission | None:
        """The hooks in force. Setting them is for whoever starts the server, before it serves."""
        return self._shaper.admission

    @admission.setter
    def admission(self, admission: Admission | None) -> None:
        self._shaper.admission = admission

    @property
    def body_admission(self) -> BodyAdmission | None:
        """Who is asked about a Binding, an Eviction or a Scale before it becomes a write. Set as `admission` is."""
        return self._shaper.body_admission

    @body_admission.setter
    def body_admission(self, admission: BodyAdmission | None) -> None:
        self._shaper.body_admission = admission

    def keep_accounts(self, accounts: Accounts) -> None:
        """From now on `accounts` have a say in every write, after those that have it already. For whoever starts the server,
        before it serves."""
        self._writes.accounts += (accounts,)
        self._core.on_dropped.append(accounts.dropped)

    @property
    def resource_version(self) -> str:
        """The version of the last committed change: what a list would carry now."""
        return str(self._core.committed_rv)

    @property
    def write_problem(self) -> str:
        """Why nothing can be written now, as far as the last attempt showed; "" when it can."""
        return self._core.write_problem

    def snapshot(self) -> Snapshot:
        """Everything as committed now, at one version. Holds references only, so taking it does not keep anyone waiting."""
        self._core.check_open()
        return snapshot_of(self._core)

    @property
    def catalog(self) -> Catalog:
        """Everything served now: the built-in catalog and the kinds that definitions added."""
        return self._registry.catalog

    @property
    def listeners(self) -> list[Callable[[Collection, Event], None]]:
        """Called, on the loop, for each change after it shows to readers and before its author is answered.

        They must be quick, must not raise, and write only from tasks of their own.
        """
        return self._core.listeners

    @property
    def on_resources_changed(self) -> list[Callable[[], None]]:
        """Called, on the loop, whenever a CustomResourceDefinition changed what is served."""
        return self._registry.on_changed

    async def resources(self) -> list[Resource]:
        return list(self._registry.catalog.all)

    def schema(self, resource: Resource) -> Raw | None:
        """The structural schema of a served version; None when its objects may have any shape."""
        return self._registry.find(resource).schema(resource)

    def usage(self) -> Usage:
        """What the store holds, and how near its limits it is."""
        return measure(self._core, self._database, garbage_queue_len=self._garbage.queue_len)

    def compact(self, resource_version: str = "") -> None:
        """Forget the history up to a version, by default all of it: older watches and continued lists get Expired."""
        self._core.check_open()
        self._core.compact_to(int(resource_version) if resource_version else self._core.committed_rv)
