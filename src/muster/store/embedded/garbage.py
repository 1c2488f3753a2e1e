"""Cleaning up: what has lost its owners, what stands in a namespace or of a kind that is going away.

One task on the loop works through a queue that committed changes fill; it writes through the same transactions as everyone
else, so finalizers, hooks and watchers see its deletes as they see any. On a real cluster kube-controller-manager does this.

Nothing here is needed to survive a crash: what there is to do follows from the objects themselves and is found again when
the store opens. So a kind stays until what its objects owned is dealt with: nobody could find that out any more without it.
Work that a full disk or a hook prevents is tried again after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import structlog

from muster.objects.resources import Resource
from muster.objects.status import ApiError, Conflict, NotFound, Raw, ServiceUnavailable
from muster.store.contract import DEFAULT_WRITE, EventType, Preconditions, Propagation
from muster.store.embedded.admission import GARBAGE_COLLECTOR, NAMESPACE_CONTROLLER
from muster.store.embedded.collection import Collection
from muster.store.embedded.context import WriteContext
from muster.store.embedded.core import Core
from muster.store.embedded.custom import CRD_ID, FINALIZER_CLEANUP, with_terminating_condition
from muster.store.embedded.deletes import Deletes
from muster.store.embedded.deletion import FINALIZER_FOREGROUND, FINALIZER_ORPHAN
from muster.store.embedded.dependents import Dependents, Item, OwnerState
from muster.store.embedded.namespaces import NAMESPACES_ID, with_content_conditions, without_content_finalizer
from muster.store.embedded.records import Event, Record
from muster.store.embedded.registry import Registry
from muster.store.embedded.transaction import Result, Transaction
from muster.store.embedded.updates import Updates
from muster.store.embedded.writes import Writes

T = TypeVar("T")

_log = structlog.get_logger(__name__)

_CONCURRENCY = 64
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class Place(NamedTuple):
    """A namespace, or a kind by its definition's name, that is being emptied."""

    collection_id: str
    name: str


class GarbageCollector:
    def __init__(self, core: Core, registry: Registry, updates: Updates, deletes: Deletes, writes: Writes) -> None:
        self._core = core
        self._registry = registry
        self._updates = updates
        self._deletes = deletes
        self._writes = writes
        self._dependents = Dependents(registry)
        self._queue: dict[Item | Place, None] = {}
        self._attempts: dict[Item | Place, int] = {}
        self._emptying: dict[Place, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._timers: dict[Item | Place, asyncio.TimerHandle] = {}
        self._is_closed = False

    @property
    def queue_len(self) -> int:
        return len(self._queue) + len(self._timers)

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Find what was left undone, and listen from now on."""
        self._dependents.restore(self._core.collections.values())
        for collection in list(self._core.collections.values()):
            for record in list(collection.records.values()):
                self._look_at(collection, record)
        self._core.listeners.append(self._on_event)

    async def idle(self) -> None:
        """Until there is nothing to do right now; what waits for a retry does not count."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- what there is to do -------------------------------------------------------------------------------------

    def _on_event(self, collection: Collection, event: Event) -> None:
        self._dependents.on_event(collection, event)
        record, previous = event.record, event.previous
        if event.type is EventType.DELETED:
            for item in self._dependents.of(record.uid):
                self._enqueue(item)
            self._emptying.pop(Place(collection.id, record.name), None)
            for place in self._emptying:
                if place == Place(NAMESPACES_ID, record.namespace) or place == Place(CRD_ID, collection.id):
                    self._enqueue(place)
        else:
            self._look_at(collection, record)
        if previous is not None:
            # An owner that waits for its dependents looks again when one of them goes or lets go.
            kept = {owner.uid for owner in record.owners} if event.type is not EventType.DELETED else set()
            for owner in previous.owners:
                found = self._dependents.find(previous, owner) if owner.uid not in kept else None
                if found is not None and found[0] is not None and found[1] is not None and found[1].deleting:
                    self._enqueue(Item(found[0].id, found[1].key, found[1].uid))

    def _look_at(self, collection: Collection, record: Record) -> None:
        if record.deleting:
            if collection.id in (NAMESPACES_ID, CRD_ID):
                place = Place(collection.id, record.name)
                self._emptying[place] = None
                self._enqueue(place)
            if FINALIZER_FOREGROUND in record.finalizers or FINALIZER_ORPHAN in record.finalizers:
                self._enqueue(Item(collection.id, record.key, record.uid))
        elif record.owners and any(self._dependents.state(record, owner) is not OwnerState.SOLID for owner in record.owners):
            self._enqueue(Item(collection.id, record.key, record.uid))

    def _enqueue(self, work: Item | Place) -> None:
        if self._is_closed:
            return
        self._forget_timer(work)
        self._queue[work] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="muster-store-garbage")

    # --- doing it ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._queue:
                part = list(self._queue)[:_CONCURRENCY]
                for work in part:
                    del self._queue[work]
                await asyncio.gather(*map(self._attempt, part))
        finally:
            self._task = None

    async def _attempt(self, work: Item | Place) -> None:
        try:
            if isinstance(work, Item):
                await self._collect(work)
            elif work.collection_id == NAMESPACES_ID:
                await self._empty_namespace(work.name)
            else:
                await self._empty_kind(work.name)
            self._attempts.pop(work, None)
        except (Conflict, NotFound):
            self._attempts.pop(work, None)  # somebody else was quicker; the event of that brings it back if need be
        except Exception as error:  # noqa: BLE001 - the root of this work: the rest goes on, and this is tried again
            _log.log(_level(error), "cleaning up failed; will be tried again", work=str(work), error=str(error))
            attempt = self._attempts.get(work, 0)
            self._attempts[work] = attempt + 1
            delay_s = _RETRY_S[min(attempt, len(_RETRY_S) - 1)]
            self._forget_timer(work)  # of an attempt before, when this one did not wait for it
            if not self._is_closed:
                self._timers[work] = asyncio.get_running_loop().call_later(delay_s, self._retry, work)

    def _forget_timer(self, work: Item | Place) -> None:
        timer = self._timers.pop(work, None)
        if timer is not None:
            timer.cancel()

    def _retry(self, work: Item | Place) -> None:
        self._timers.pop(work, None)
        self._enqueue(work)

    async def _collect(self, item: Item) -> None:
        """One object: let go of what it owns, or see whether it has anyone left who owns it."""
        collection = self._core.collections[item.collection_id]
        record = collection.records.get(item.key)
        resource = self._resource(collection.id)
        if record is None or record.uid != item.uid or resource is None:
            return
        if record.deleting:
            if FINALIZER_ORPHAN in record.finalizers:
                await self._orphan(resource, item)
            elif FINALIZER_FOREGROUND in record.finalizers:
                await self._await_dependents(resource, item)
            return
        if any(self._dependents.state(record, owner) is not OwnerState.SOLID for owner in record.owners):
            await self._release_or_delete(resource, collection, item)

    async def _release_or_delete(self, resource: Resource, collection: Collection, item: Item) -> None:
        """Take the lost owners out of its references or, when none is left, delete it.

        Judged inside the transaction, of the object and its owners as the write finds them, and again whenever one of them
        changed while a hook was asked: whoever was told that an object has no owner any more, or another one, keeps it.
        """
        context = WriteContext(DEFAULT_WRITE, GARBAGE_COLLECTOR)

        async def build(transaction: Transaction) -> list[Result]:
            record = transaction.read(collection, item.key)
            if record is None or record.uid != item.uid or record.deleting:
                return []
            states = self._dependents.states(record, transaction.read)
            lost = {uid for uid, state in states.items() if state is not OwnerState.SOLID}
            if not lost:
                return []
            if len(lost) < len(states):
                released = self._updates.modify(transaction, resource, item.key, lambda raw: _without_owners(raw, lost))
                return [] if released is None else [released]
            propagation = _own_wish(record)
            if OwnerState.WAITING in states.values() and self._dependents.of(item.uid):
                propagation = "Foreground"
                if self._is_in_circle(item):
                    unblocked = self._updates.modify(transaction, resource, item.key, _without_blocking)
                    if unblocked is not None:
                        return [unblocked]  # the event of that brings it back, to be deleted then
            return [
                await self._deletes.delete(
                    transaction, resource, record.name, record.namespace or None, context, propagation=propagation
                )
            ]

        await self._writes.run(build, actor=GARBAGE_COLLECTOR)

    async def _orphan(self, resource: Resource, item: Item) -> None:
        """Dependents lose their reference first; only then may the owner go."""
        await self._for_each(self._dependents.of(item.uid), lambda dependent: self._let_go(dependent, item.uid))
        await self._modify(resource, item, lambda raw: _without_finalizer(raw, FINALIZER_ORPHAN))

    async def _let_go(self, dependent: Item, owner_uid: str) -> None:
        resource = self._resource(dependent.collection_id)
        if resource is not None:
            await self._modify(resource, dependent, lambda raw: _without_owners(raw, {owner_uid}))

    async def _await_dependents(self, resource: Resource, item: Item) -> None:
        """Foreground deletion: the owner stays until none is left of the dependents that ask it to wait."""
        dependents = self._dependents.of(item.uid)
        if any(self._blocks(dependent, item) for dependent in dependents):
            for dependent in dependents:
                self._enqueue(dependent)
        else:
            await self._modify(resource, item, lambda raw: _without_finalizer(raw, FINALIZER_FOREGROUND))

    def _blocks(self, dependent: Item, waiting: Item) -> bool:
        """Only what it really owns: whoever knows a uid can write it into a reference anywhere, from another namespace too."""
        record = self._core.collections[dependent.collection_id].records.get(dependent.key)
        for owner in record.owners if record is not None else ():
            if owner.uid == waiting.uid and owner.block and record is not None:
                found = self._dependents.find(record, owner)
                if found is not None and found[0] is not None and found[0].id == waiting.collection_id:
                    return True
        return False

    def _is_in_circle(self, item: Item) -> bool:
        """When something that this object owns waits for its own dependents, they may wait for each other."""
        for dependent in self._dependents.of(item.uid):
            record = self._core.collections[dependent.collection_id].records.get(dependent.key)
            if record is not None and record.deleting and FINALIZER_FOREGROUND in record.finalizers:
                return True
        return False

    # --- namespaces and kinds ------------------------------------------------------------------------------------

    async def _empty_namespace(self, name: str) -> None:
        namespaces = self._core.collections[NAMESPACES_ID]
        record = namespaces.records.get(("", name))
        resource = self._resource(NAMESPACES_ID)
        if record is None or not record.deleting or resource is None:
            return
        remaining: dict[str, Sequence[Record]] = {}
        for served in self._registry.all:
            if served.stored.namespaced:
                await self._delete_all(served.stored, served.collection, name)
                left = [served.collection.records[key] for key in served.collection.keys_in(name)]
                if left or served.collection.has_any(name):
                    remaining[served.stored.qualified] = left
        item = Item(NAMESPACES_ID, ("", name), record.uid)
        if remaining:
            now = self._core.clock()
            await self._modify(resource, item, lambda raw: with_content_conditions(raw, remaining, now))
        else:
            await self._modify(resource, item, without_content_finalizer)

    async def _empty_kind(self, crd_name: str) -> None:
        record = self._core.collections[CRD_ID].records.get(("", crd_name))
        resource = self._resource(CRD_ID)
        if record is None or not record.deleting or resource is None or FINALIZER_CLEANUP not in record.finalizers:
            return
        item = Item(CRD_ID, record.key, record.uid)
        # A definition of a kind that is served anyway defines nothing, whoever gave it the finalizer: the objects stay.
        kind = None if self._registry.is_built_in(crd_name) else self._resource(crd_name)
        if kind is not None:
            collection = self._core.collections[crd_name]
            await self._delete_all(kind, collection, None)
            left = list(collection.records.values())
            if left or any(pending for _, pending in collection.pending.values()):
                now = self._core.clock()
                await self._modify(resource, item, lambda raw: with_terminating_condition(raw, left, now))
                return
            await self._collect_owned(kind)
        await self._modify(resource, item, lambda raw: _without_finalizer(raw, FINALIZER_CLEANUP))

    async def _collect_owned(self, kind: Resource) -> None:
        """What the objects of a kind owned goes before the kind: once it is not served, nobody can tell that they are gone.

        Raises when something is left, so that the kind stays and this is tried again, after a restart too.
        """
        await self._core.settle()  # what was sent while they were still there may be on its way to disk
        lost = [
            (served.collection, Item(served.collection.id, record.key, record.uid))
            for served in self._registry.all
            for record in served.collection.records.values()
            if self._dependents.is_lost_with(kind, record)
        ]
        await self._for_each(lost, lambda one: self._attempt(one[1]))
        for collection, item in lost:
            record = collection.records.get(item.key)
            if record is not None and record.uid == item.uid and self._dependents.is_lost_with(kind, record):
                raise ServiceUnavailable(f"left of what its objects owned: {collection.id} {record.namespace}/{record.name}")

    async def _delete_all(self, resource: Resource, collection: Collection, namespace: str | None) -> None:
        records = [collection.records[key] for key in collection.keys_in(namespace)]
        await self._for_each(
            [record for record in records if not record.deleting],
            lambda record: self._delete(resource, record),
        )

    # --- writing -------------------------------------------------------------------------------------------------

    def _resource(self, collection_id: str) -> Resource | None:
        served = self._registry.by_id(collection_id)
        return served.stored if served is not None else None

    async def _for_each(self, things: Sequence[T], act: Callable[[T], Awaitable[None]]) -> None:
        """A few at a time: they share commits, and a thousand deletes do not become a thousand tasks at once."""
        for start in range(0, len(things), _CONCURRENCY):
            await asyncio.gather(*map(act, things[start : start + _CONCURRENCY]))

    async def _delete(self, resource: Resource, record: Record) -> None:
        context = WriteContext(DEFAULT_WRITE, NAMESPACE_CONTROLLER)

        async def build(transaction: Transaction) -> list[Result]:
            return [
                await self._deletes.delete(
                    transaction,
                    resource,
                    record.name,
                    record.namespace or None,
                    context,
                    propagation="Background",
                    preconditions=Preconditions(uid=record.uid),
                )
            ]

        try:
            await self._writes.run(build, actor=NAMESPACE_CONTROLLER)
        except (NotFound, Conflict):
            return

    async def _modify(self, resource: Resource, item: Item, change: Callable[[Raw], Raw | None]) -> None:
        async def build(transaction: Transaction) -> list[Result]:
            result = self._updates.modify(transaction, resource, item.key, change, uid=item.uid)
            return [] if result is None else [result]

        await self._writes.run(build)


def _level(error: Exception) -> int:
    return logging.WARNING if isinstance(error, ApiError) else logging.ERROR


def _own_wish(record: Record) -> Propagation | None:
    if FINALIZER_ORPHAN in record.finalizers:
        return "Orphan"
    return "Foreground" if FINALIZER_FOREGROUND in record.finalizers else "Background"


def _without_finalizer(raw: Raw, finalizer: str) -> Raw | None:
    meta = raw["metadata"]
    kept = [f for f in meta.get("finalizers") or [] if f != finalizer]
    if kept == (meta.get("finalizers") or []):
        return None
    if kept:
        meta["finalizers"] = kept
    else:
        meta.pop("finalizers", None)
    return raw


def _without_owners(raw: Raw, uids: set[str]) -> Raw | None:
    meta = raw["metadata"]
    before = meta.get("ownerReferences") or []
    kept = [reference for reference in before if reference.get("uid") not in uids]
    if len(kept) == len(before):
        return None
    if kept:
        meta["ownerReferences"] = kept
    else:
        meta.pop("ownerReferences", None)
    return raw


def _without_blocking(raw: Raw) -> Raw | None:
    references = raw["metadata"].get("ownerReferences") or []
    if not any(reference.get("blockOwnerDeletion") for reference in references):
        return None
    raw["metadata"]["ownerReferences"] = [{**reference, "blockOwnerDeletion": False} for reference in references]
    return raw
