"""The frame around every controller: watches feed keys into a queue, workers take a key, decide, act, and requeue.

A controller says which kinds it reads (`watches`, each with a function from an object to the keys that it concerns) and how
to decide (`reconcile`: read the caches, call a pure `plan`, return its actions). The rest is here, the same for all of them.

Concurrency: everything runs on one event loop. A key is worked on by one worker at a time; different keys may be at once.
`reconcile` is a plain function, so that it sees one consistent state of all caches. Caches lag behind the store: a controller
must expect to be called with what it has already dealt with, which is why actions can be repeated (see `actions`).

Invariants:
- every change of a watched object leads to a `reconcile` of its keys that begins after the change is in the cache;
- a key whose reconcile raised is tried again, slower each time, for ever, and reported until it succeeds; it holds up no other.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import ClassVar, Protocol, TypeVar

import msgspec
from prometheus_client import Counter, Gauge, Histogram

from muster.controllers.actions import Action, Executor
from muster.objects.meta import controller_of
from muster.objects.status import ApiError, Conflict, NotFound
from muster.objects.time import Clock
from muster.objects.view import View
from muster.store.backoff import Backoff, is_cancelled
from muster.store.cache import Cache, Cached, IndexFunction, Keep, ObjectKey
from muster.store.contract import Store
from muster.store.events import EventRecorder
from muster.store.hub import InformerHub
from muster.store.informer import Change, Informer
from muster.store.leases import Fence
from muster.store.workqueue import QueueClosed, QueueLimits, WorkQueue

log = logging.getLogger(__name__)

RECONCILES = Counter("muster_controller_reconciles", "Keys worked on.", ["controller", "result"])
RECONCILE_S = Histogram("muster_controller_reconcile_seconds", "Time to work on a key, writes included.", ["controller"])
FAILING = Gauge("muster_controller_failing_keys", "Keys whose last reconcile failed.", ["controller"])

_FAILING_MAX = 1_000
_KIND_BACKOFF = Backoff(base_s=1.0, max_s=30.0)

KeysOf = Callable[[Cached, "Caches"], Iterable[ObjectKey]]


def own_key(obj: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    """The object itself is what the controller works on."""
    return (obj.key,)


def controller_key(group: str, kind: str) -> KeysOf:
    """The object's controller, if it is of this kind; it is in the same namespace, or cluster-wide."""

    def keys(obj: Cached, _caches: Caches) -> Iterable[ObjectKey]:
        owner = controller_of(obj.raw)
        if owner is None or owner.get("kind") != kind or str(owner.get("apiVersion", "")).rpartition("/")[0] != group:
            return ()
        return (ObjectKey(obj.key.namespace, str(owner.get("name", ""))),)

    return keys


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Watch:
    """One kind that a controller reads. Also the handle by which `reconcile` finds its cache: `caches[PODS]`."""

    group: str
    kind: str
    keys: KeysOf = own_key
    view: type[View] | None = None
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""
    keep: Keep = "bytes"
    indexes: Mapping[str, IndexFunction] = dataclasses.field(default_factory=dict)
    matters: Callable[[Change], bool] | None = None
    """Whether a change is worth a reconcile; None means that every one is."""


class Caches:
    """The caches of a controller's watches."""

    def __init__(self, informers: Mapping[Watch, Informer]) -> None:
        self._informers = informers

    def __getitem__(self, watch: Watch) -> Cache:
        return self._informers[watch].cache

    def version(self, watch: Watch) -> str:
        """The store's version up to which this cache has followed it; caches of different kinds follow each on its own."""
        return self._informers[watch].version


T = TypeVar("T")


class ByName(Mapping[str, T]):
    """Cluster-wide objects of a cache, each read as it is asked for: handing it on costs nothing, however many there are."""

    def __init__(self, cache: Cache, read: Callable[[Cached], T], *, is_leaving_shown: bool = False) -> None:
        self._cache = cache
        self._read = read
        self._is_leaving_shown = is_leaving_shown

    def __getitem__(self, name: str) -> T:
        found = self._cache.get(ObjectKey("", name))
        if found is None or not self._is_shown(found):
            raise KeyError(name)
        return self._read(found)

    def __iter__(self) -> Iterator[str]:
        return iter([one.key.name for one in self._cache if self._is_shown(one)])

    def __len__(self) -> int:
        return sum(1 for one in self._cache if self._is_shown(one))

    def _is_shown(self, one: Cached) -> bool:
        return self._is_leaving_shown or not one.deleting


class Plan(msgspec.Struct, frozen=True):
    """What to do now, and when to look again even if nothing changes."""

    actions: Sequence[Action] = ()
    requeue_after_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """What a controller may use while it works on a key. `fence` is None where no leader is elected."""

    caches: Caches
    executor: Executor
    store: Store
    clock: Clock
    recorder: EventRecorder | None
    fence: Fence | None


class Running(Protocol):
    """One thing that a manager keeps running. `run` may be called again after it has ended (a new term as leader)."""

    name: str
    state: str
    """`running`, or what it waits for; whoever runs it writes here when it has failed."""

    @property
    def failing(self) -> Mapping[ObjectKey, str]:
        """What does not succeed at the moment, with why."""
        ...

    @property
    def queue(self) -> Sized | None:
        """What there is to do; None before the first run."""
        ...

    @property
    def is_idle(self) -> bool: ...

    async def prepare(self) -> object:
        """Have the hub make the informers that it needs."""
        ...

    async def run(self, store: Store, fence: Fence | None = None) -> None:
        """Until cancelled."""
        ...


class Runnable(Protocol):
    """What a manager takes: every `Controller`, and what does not work key by key (the scheduler)."""

    @property
    def name(self) -> str: ...

    def runner(self, hub: InformerHub, *, clock: Clock, recorder: EventRecorder | None = None) -> Running: ...


class Controller(abc.ABC):
    """One file, one of these. Most define `name`, `watches` and `reconcile`, and nothing else."""

    name: str
    watches: Sequence[Watch] = ()
    workers: ClassVar[int] = 1
    timeout_s: ClassVar[float] = 120.0
    queue_limits: ClassVar[QueueLimits] = QueueLimits()

    @abc.abstractmethod
    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        """Decide about `key` from the caches, at instant `now`. Reads and returns; writes nothing."""

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        """Decide and act; after how many seconds to look again. Overridden only by controllers that need more than a plan."""
        plan = self.reconcile(key, context.caches, context.clock())
        await context.executor.apply(plan.actions)
        return plan.requeue_after_s

    def runner(self, hub: InformerHub, *, clock: Clock, recorder: EventRecorder | None = None) -> Running:
        return Runner(self, hub, clock=clock, recorder=recorder)


class Runner:
    """Runs one controller. `run` may be called again after it has ended (a new term as leader)."""

    def __init__(
        self, controller: Controller, hub: InformerHub, *, clock: Clock, recorder: EventRecorder | None = None
    ) -> None:
        self.controller = controller
        self.name = controller.name
        self.state = "not started"
        self.failing: dict[ObjectKey, str] = {}
        self.queue: WorkQueue[ObjectKey] | None = None
        self._hub = hub
        self._clock = clock
        self._recorder = recorder
        # Looked up once: finding a metric by its labels takes longer than using it.
        self._done = RECONCILES.labels(controller.name, "done")
        self._failing_gauge = FAILING.labels(controller.name)
        self._took_s = RECONCILE_S.labels(controller.name)
        self._backlog: deque[ObjectKey] = deque()
        self._has_missed = False
        """Whether the queue has refused a key since the backlog was last filled."""

    @property
    def is_idle(self) -> bool:
        """Running, and nothing to do at this moment."""
        return self.state == "running" and self.queue is not None and self.queue.is_idle

    async def prepare(self) -> dict[Watch, Informer]:
        """Have the hub make this controller's informers. Waits, and says so, while the store does not serve a kind."""
        informers: dict[Watch, Informer] = {}
        for watch in self.controller.watches:
            attempt = 0
            while watch not in informers:
                try:
                    informers[watch] = await self._informer(watch)
                except ApiError as error:
                    why = f"{watch.kind}.{watch.group}" if watch.group else watch.kind
                    self.state = f"waiting for {why}: {error}"
                    if attempt == 0:
                        log.warning("controller %s waits for kind %s: %s", self.name, why, error)
                    await asyncio.sleep(_KIND_BACKOFF.delay_s(attempt, (self.name, watch.kind)))
                    attempt += 1
        return informers

    async def run(self, store: Store, fence: Fence | None = None) -> None:
        """Until cancelled. The queue is new each time: what an earlier run had in mind is found again from the caches."""
        informers = await self.prepare()
        caches = Caches(informers)
        self.state = "syncing"
        for informer in informers.values():
            await informer.wait_synced()
        queue: WorkQueue[ObjectKey] = WorkQueue(
            self.name,
            limits=self.controller.queue_limits,
            lane=lambda key: key.namespace,
            on_room=lambda: self._make_good(informers, caches, queue),
        )
        self.queue = queue
        self._backlog.clear()
        self._has_missed = False
        context = Context(
            caches=caches,
            executor=Executor(store, self.name, self._recorder),
            store=store,
            clock=self._clock,
            recorder=self._recorder,
            fence=fence,
        )
        with contextlib.ExitStack() as handlers:
            for watch, informer in informers.items():
                handlers.callback(informer.add_handler(self._feeder(watch, caches, queue)))
            workers = [
                asyncio.create_task(self._work(queue, context), name=f"{self.name} worker {n}")
                for n in range(self.controller.workers)
            ]
            self.state = "running"
            try:
                await asyncio.gather(*workers)
            finally:
                handlers.close()
                await self._finish(queue, workers)

    async def _finish(self, queue: WorkQueue[ObjectKey], workers: Sequence[asyncio.Task[None]]) -> None:
        self.state = "stopped"
        queue.close()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _informer(self, watch: Watch) -> Informer:
        return await self._hub.informer(
            watch.group,
            watch.kind,
            namespace=watch.namespace,
            label_selector=watch.label_selector,
            field_selector=watch.field_selector,
            view=watch.view,
            keep=watch.keep,
            indexes=watch.indexes,
        )

    def _feeder(self, watch: Watch, caches: Caches, queue: WorkQueue[ObjectKey]) -> Callable[[Change], None]:
        def feed(change: Change) -> None:
            if watch.matters is not None and not watch.matters(change):
                return
            # Both versions: an object that moves from one owner or selector to another concerns both.
            for obj in (change.old, change.new):
                if obj is not None:
                    for key in watch.keys(obj, caches):
                        if not queue.add(key) and not queue.is_closed:
                            self._has_missed = True

        return feed

    def _make_good(self, informers: Mapping[Watch, Informer], caches: Caches, queue: WorkQueue[ObjectKey]) -> None:
        """There is room again in a queue that had to refuse keys: go on with all keys of all caches, as far as it goes."""
        if not self._backlog and self._has_missed:
            log.warning("controller %s: its queue was full, so all keys are looked at again", self.name)
            self._has_missed = False
            objects = [(watch, obj) for watch, informer in informers.items() for obj in informer.cache]
            self._backlog.extend(dict.fromkeys(key for watch, obj in objects for key in watch.keys(obj, caches)))
        while self._backlog and queue.add(self._backlog[0]):
            self._backlog.popleft()

    async def _work(self, queue: WorkQueue[ObjectKey], context: Context) -> None:
        while True:
            try:
                key = await queue.get()
            except QueueClosed:
                return
            try:
                await self._process(key, queue, context)
            finally:
                queue.done(key)

    async def _process(self, key: ObjectKey, queue: WorkQueue[ObjectKey], context: Context) -> None:
        started_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self.controller.timeout_s):
                again_s = await self.controller.handle(key, context)
        except (Conflict, NotFound) as error:
            # The cache was behind. By the next try it has caught up; if not, the failures of the key say so.
            self._note_failure(key, error, queue, logging.INFO)
        except ApiError as error:
            self._note_failure(key, error, queue, logging.WARNING)
        except Exception as error:
            if is_cancelled():
                raise
            self._note_failure(key, error, queue, logging.ERROR)
        else:
            self._done.inc()
            self.failing.pop(key, None)
            queue.forget(key)
            if again_s is not None:
                queue.add_after(key, again_s)
        finally:
            self._failing_gauge.set(len(self.failing))
            self._took_s.observe(asyncio.get_running_loop().time() - started_s)

    def _note_failure(self, key: ObjectKey, error: Exception, queue: WorkQueue[ObjectKey], level: int) -> None:
        RECONCILES.labels(self.name, "failed").inc()
        message = str(error) or (
            f"took longer than {self.controller.timeout_s:g} s" if isinstance(error, TimeoutError) else type(error).__name__
        )
        tries = queue.failures(key) + 1
        is_bug = level == logging.ERROR and not isinstance(error, TimeoutError)
        log.log(
            level, "controller %s failed on %s (try %d): %s", self.name, key, tries, message, exc_info=error if is_bug else None
        )
        if key in self.failing or len(self.failing) < _FAILING_MAX:
            self.failing[key] = message
        queue.add_rate_limited(key)
