"""The embedded store at the level of encoded records: what a server in front of it uses, without decoding anything twice.

`EmbeddedStore` (store.py) is this plus the contract's methods, which decode. See there for concurrency and guarantees.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from muster.objects.catalog import CATALOG, Catalog
from muster.objects.names import Entropy
from muster.objects.resources import Resource
from muster.objects.status import ApiError, BadRequest, NotFound, Raw, RequestEntityTooLarge
from muster.objects.steps import Steps, done_in_turns
from muster.objects.time import Clock
from muster.store.contract import DEFAULT_WRITE, Binding, Operation, PatchType, Preconditions, Propagation, WriteOptions
from muster.store.embedded.admission import Accounts, Actor, Admission, BodyAdmission
from muster.store.embedded.collection import Collection
from muster.store.embedded.committer import InlineCommitter, ThreadCommitter
from muster.store.embedded.core import Core
from muster.store.embedded.custom import CRD_ID, CustomKinds
from muster.store.embedded.database import Database
from muster.store.embedded.garbage import GarbageCollector
from muster.store.embedded.limits import Limits
from muster.store.embedded.namespaces import NAMESPACES_ID, prepare_namespace
from muster.store.embedded.opening import load
from muster.store.embedded.reads import Reads, RecordPage, VersionMatch
from muster.store.embedded.records import Event, Key, Record
from muster.store.embedded.registry import Registry
from muster.store.embedded.selection import in_version
from muster.store.embedded.shaping import Shaper, Turn, WriteContext
from muster.store.embedded.snapshot import Snapshot, snapshot_of
from muster.store.embedded.subresources import Subresources
from muster.store.embedded.transaction import Result, Transaction
from muster.store.embedded.usage import Usage, measure
from muster.store.embedded.watchers import Watcher
from muster.store.embedded.writes import Build, Writes

Step = Callable[[Transaction], Awaitable[Result]]
_BOUND_AT_ONCE = 32
"""Bindings that somebody far away is asked about at the same time."""
_DELETED_AT_ONCE = 64


async def _let_others_run() -> None:
    await asyncio.sleep(0)


class RecordStore:
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
        self._writes = Writes(self._core, self._registry, self._shaper, entropy)
        self._reads = Reads(self._core, self._registry)
        self._subresources = Subresources(self._core, self._registry, self._shaper, self._writes)
        self._custom = CustomKinds(self._core, self._registry)
        self._garbage = GarbageCollector(self._core, self._registry, self._writes)
        self._writes.hooks = {NAMESPACES_ID: prepare_namespace, CRD_ID: self._custom.prepare}
        self._core.listeners.append(self._custom.on_event)
        self._database: Database | None = None

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
                database, done, failed, batch_len_max=batch, compact_len_max=compact, healed=core.on_healed
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

    # --- reading -------------------------------------------------------------------------------------------------

    def get_record(self, resource: Resource, name: str, namespace: str | None = None) -> Record:
        return self._reads.get(resource, name, namespace)

    def list_records(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
        version_match: VersionMatch = "",
    ) -> RecordPage:
        """As `list`, undecoded. `resource_version` asks for a state not older than it, or with match Exact for that one."""
        return self._reads.list(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
            resource_version=resource_version,
            version_match=version_match,
        )

    def list_record_steps(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
        version_match: VersionMatch = "",
    ) -> Steps[RecordPage]:
        """As `list_records`, as a generator that returns the page and stops now and then to let others run."""
        return self._reads.list_steps(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
            resource_version=resource_version,
            version_match=version_match,
        )

    def latest_record(self, id_: str, key: Key) -> Record | None:
        """One object as the next write would find it; see `latest_records`."""
        collection = self._core.collections.get(id_)
        return None if collection is None else collection.latest(key)

    def latest_records(self, id_: str, namespace: str | None = None) -> Iterator[Record]:
        """What the next write would find of a kind (`Resource.qualified`), writes in flight included.

        For whoever decides about writes, and does not wait in between. Readers are shown what is on disk.
        """
        collection = self._core.collections.get(id_)
        return iter(()) if collection is None else collection.latest_in(namespace)

    def watch_records(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        timeout_s: float | None = None,
        send_initial_events: bool | None = None,
    ) -> Watcher:
        """Open a watch at once: `async for batch in watcher`, each batch a list of `Event` (`type`, `record`, `line`).

        Whatever is wrong with it is raised here. Whoever opens it closes it: `watcher.close()`.
        """
        return self._reads.watch(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            bookmarks=bookmarks,
            timeout_s=timeout_s,
            send_initial_events=send_initial_events,
        )

    # --- writing -------------------------------------------------------------------------------------------------

    async def _one(self, resource: Resource, step: Step, context: WriteContext) -> Record:
        async def build(transaction: Transaction) -> Sequence[Result]:
            return [await step(transaction)]

        (record,) = await self._run(build, context)
        return in_version(record, resource)

    def _run(self, build: Build, context: WriteContext) -> Awaitable[list[Record]]:
        return self._writes.run(build, dry_run=context.options.dry_run, actor=context.actor)

    async def create_record(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
        turn: Turn | None = None,
    ) -> Record:
        """`turn`, here and in the other writes, is awaited between the steps of a large object; others run then in any case."""
        context = WriteContext(options, actor, warnings, turn)
        return await self._one(resource, lambda txn: self._writes.create(txn, resource, obj, namespace, context), context)

    async def update_record(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        subresource: str = "",
        version_required: bool = True,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
        turn: Turn | None = None,
    ) -> Record:
        """With `version_required`, as Kubernetes' API does, custom and some other kinds must name the version they replace."""
        context = WriteContext(options, actor, warnings, turn)
        return await self._one(
            resource,
            lambda txn: self._writes.update(
                txn, resource, obj, namespace, context, subresource=subresource, version_required=version_required
            ),
            context,
        )

    async def patch_record(
        self,
        resource: Resource,
        name: str,
        patch: Raw | Sequence[Raw],
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
        actor: Actor | None = None,
        warnings: list[str] | None = None,
        turn: Turn | None = None,
    ) -> Record:
        context = WriteContext(options, actor, warnings, turn)
        return await self._one(
            resource,
            lambda txn: self._writes.patch(
                txn, resource, name, patch, context, namespace=namespace, patch_type=patch_type, subresource=subresource
            ),
            context,
        )

    async def amend(self, resource: Resource, name: str, namespace: str | None, change: Callable[[Raw], Raw | None]) -> None:
        """This process' own change to an object, past hooks and schemas; nothing when it is gone or `change` returns None.

        `change` runs in the turn of the loop in which its result is submitted.
        """

        async def build(txn: Transaction) -> Sequence[Result]:
            result = self._writes.modify(txn, resource, (namespace or "", name), change)
            return [] if result is None else [result]

        await self._writes.run(build)

    async def delete_record(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        propagation: Propagation | None = "Background",
        grace_period_s: int | None = None,
        preconditions: Preconditions | None = None,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
    ) -> Record:
        """`propagation` None leaves it to the object's own finalizers, as a request without a policy does."""
        context = WriteContext(options, actor, warnings)
        return await self._one(
            resource,
            lambda txn: self._writes.delete(
                txn,
                resource,
                name,
                namespace,
                context,
                propagation=propagation,
                grace_period_s=grace_period_s,
                preconditions=preconditions,
            ),
            context,
        )

    async def delete_records(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        propagation: Propagation = "Background",
        grace_period_s: int | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
        turn: Turn | None = None,
    ) -> RecordPage:
        """Each object on its own, as it is listed now; one that somebody else deletes meanwhile is as good as deleted.

        Returns that list: the objects as they were before. They are the store's own records, and nothing is copied. Without a
        `limit` it is all of them.
        """
        turn = turn or _let_others_run

        async def delete_one(record: Record) -> None:
            with contextlib.suppress(NotFound):
                await self.delete_record(
                    resource,
                    record.name,
                    record.namespace or None,
                    options,
                    propagation=propagation,
                    grace_period_s=grace_period_s,
                    actor=actor,
                    warnings=warnings,
                )

        # All are listed before the first is deleted: a list of the past takes the longer the more has changed since.
        found = list[Record]()
        while True:
            steps = self.list_record_steps(
                resource,
                namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=limit,
                continue_token=continue_token,
            )
            page = await done_in_turns(steps, turn)
            found += page.records
            continue_token = page.continue_token
            if limit or not continue_token:
                break
        for first in range(0, len(found), _DELETED_AT_ONCE):
            if first:
                await turn()
            await asyncio.gather(*map(delete_one, found[first : first + _DELETED_AT_ONCE]))
        return msgspec.structs.replace(page, records=found)

    async def bind(
        self,
        pod: str,
        namespace: str,
        node: str,
        *,
        uid: str = "",
        annotations: Mapping[str, str] | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
    ) -> None:
        context = WriteContext(options, actor, warnings)

        async def build(txn: Transaction) -> Sequence[Result]:
            return [await self._subresources.bind(txn, pod, namespace, node, context, uid=uid, annotations=annotations)]

        await self._run(build, context)

    async def bind_many(
        self, bindings: Sequence[Binding], *, options: WriteOptions = DEFAULT_WRITE, actor: Actor | None = None
    ) -> Sequence[ApiError | None]:
        """One commit for all that can be bound. Those that can't do not hinder the others."""
        limit = self._core.limits.transaction_len_max
        outcomes: list[ApiError | None] = []
        if self._shaper.asks_about("CREATE", self.catalog.by_kind("", "Pod"), "binding"):
            # Somebody far away is asked about each: a late answer shall hold up its own pod, not the others.
            for start in range(0, len(bindings), _BOUND_AT_ONCE):
                some = bindings[start : start + _BOUND_AT_ONCE]
                parts = await asyncio.gather(*(self._bind_together([b], WriteContext(options, actor)) for b in some))
                outcomes += [outcome for part in parts for outcome in part]
            return outcomes
        for start in range(0, len(bindings), limit):
            outcomes += await self._bind_together(bindings[start : start + limit], WriteContext(options, actor))
        return outcomes

    async def _bind_together(self, bindings: Sequence[Binding], context: WriteContext) -> list[ApiError | None]:
        outcomes: list[ApiError | None] = []

        async def build(txn: Transaction) -> Sequence[Result]:
            outcomes.clear()
            results: list[Result] = []
            nodes: dict[tuple[str, str], str] = {}
            for b in bindings:
                try:
                    if (node := nodes.get((b.namespace, b.pod))) is not None:
                        raise self._subresources.already_bound(b.pod, node)
                    results.append(
                        await self._subresources.bind(
                            txn, b.pod, b.namespace, b.node, context, uid=b.uid, annotations=b.annotations
                        )
                    )
                    nodes[b.namespace, b.pod] = b.node
                    outcomes.append(None)
                except ApiError as error:
                    outcomes.append(error)
            return results

        try:
            await self._run(build, context)
        except RequestEntityTooLarge as error:
            # One of them is, and nothing was written.
            if len(bindings) == 1:
                return [error]
            return [outcome for b in bindings for outcome in await self._bind_together([b], context)]
        except ApiError as error:
            return [error] * len(bindings)
        return outcomes

    async def evict(
        self,
        pod: str,
        namespace: str,
        *,
        grace_period_s: int | None = None,
        uid: str = "",
        dry_run: bool = False,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
    ) -> None:
        context = WriteContext(WriteOptions(dry_run=dry_run), actor, warnings)

        async def build(txn: Transaction) -> Sequence[Result]:
            return await self._subresources.evict(txn, pod, namespace, context, grace_period_s=grace_period_s, uid=uid)

        await self._run(build, context)

    async def get_scale(self, resource: Resource, name: str, namespace: str | None = None) -> Raw:
        """The object's `autoscaling/v1 Scale`. NotFound for kinds that have none."""
        self._subresources.scale_paths(resource)
        return self._subresources.get_scale(resource, self._reads.get(resource, name, namespace))

    async def update_scale(
        self,
        resource: Resource,
        name: str,
        scale: Raw,
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        is_applied: bool = False,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
    ) -> Raw:
        """`is_applied`: by server-side apply, so that the manager owns the number from then on."""
        context = WriteContext(options, actor, warnings)
        record = await self._one(
            resource,
            lambda txn: self._subresources.put_scale(
                txn, resource, scale, context, namespace=namespace, name=name, is_applied=is_applied
            ),
            context,
        )
        return self._subresources.get_scale(resource, record)

    async def transaction_records(
        self, operations: Sequence[Operation], options: WriteOptions = DEFAULT_WRITE, *, actor: Actor | None = None
    ) -> list[Record]:
        """All of `operations` or none, in order; later ones see what earlier ones do."""
        limit = self._core.limits.transaction_len_max
        if len(operations) > limit:
            raise BadRequest(f"a transaction may have {limit} operations; this one has {len(operations)}: split it")
        context = WriteContext(options, actor)

        async def build(txn: Transaction) -> Sequence[Result]:
            results = []
            for operation in operations:
                results.append(await self._operate(txn, operation, context))
                txn.keep_drafts()
            return results

        records = await self._run(build, context) if operations else []
        return [in_version(r, operation.resource) for r, operation in zip(records, operations, strict=True)]

    async def _operate(self, txn: Transaction, operation: Operation, context: WriteContext) -> Result:
        resource, namespace, writes = operation.resource, operation.namespace, self._writes
        name = operation.name or str(((operation.object or {}).get("metadata") or {}).get("name") or "")
        match operation.verb:
            case "create":
                return await writes.create(txn, resource, _given(operation, "object"), namespace, context)
            case "update":
                return await writes.update(
                    txn,
                    resource,
                    _given(operation, "object"),
                    namespace,
                    context,
                    subresource=operation.subresource,
                    preconditions=operation.preconditions,
                )
            case "patch":
                return await writes.patch(
                    txn,
                    resource,
                    name,
                    _given(operation, "patch"),
                    context,
                    namespace=namespace,
                    patch_type=PatchType.MERGE,
                    subresource=operation.subresource,
                    preconditions=operation.preconditions,
                )
            case "delete":
                return await writes.delete(
                    txn, resource, name, namespace, context, propagation="Background", preconditions=operation.preconditions
                )


def _given(operation: Operation, field: Literal["object", "patch"]) -> Raw:
    value = operation.object if field == "object" else operation.patch
    if value is None:
        raise BadRequest(f"a {operation.verb} of {operation.resource.qualified} in a transaction needs its {field}")
    return value
