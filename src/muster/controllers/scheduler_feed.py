"""What the scheduler sees: informers of every kind that decides anything, turned into events for the engine.

Concurrency: handlers run in the informers' tasks and only note; the scheduler's own task drains. One event loop.

Invariants:
- an object that changes twice before it is drained comes out once, as it is at the end, in the place of the later change: so
  what waits is bounded by the number of objects;
- a change that the engine could not see (its facts are equal) is no event;
- the first events are nodes, then the small kinds, then pods, each sorted by key: the same objects give the same decisions.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from prometheus_client import Counter

from muster.engine import events as ev
from muster.engine import facts
from muster.objects.kinds.kuscia_tasks import TaskResource
from muster.objects.status import ApiError, NotFound
from muster.objects.view import View
from muster.store.backoff import Backoff
from muster.store.cache import Cached, Keep, ObjectKey
from muster.store.contract import Store
from muster.store.hub import InformerHub
from muster.store.informer import Change, ChangeType, Informer, is_newer

log = logging.getLogger(__name__)

T = TypeVar("T")

EVENTS = Counter("muster_scheduler_events", "Events handed to the engine.", ["event"])

_BACKOFF = Backoff(base_s=1.0, max_s=30.0)
_LOOK_S = 0.1
"""How often to look whether a cache has caught up; only at the start of a term."""
_PATIENCE_S = 2.0
"""How long a watch may take to show what a list has shown, before its informer lists again."""


class Kind(NamedTuple):
    """One kind that is followed. Without `is_needed` a cluster may do without it. Without `seen` and `gone` the engine does not
    know it, and `Feed.listeners` are told of its changes instead."""

    group: str
    kind: str
    view: type[View]
    seen: Callable[[Any], ev.AnyEvent] | None
    gone: Callable[[Cached], ev.AnyEvent] | None
    is_needed: bool = False
    keep: Keep = "nothing"

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


def _named(event: Callable[[str], ev.AnyEvent]) -> Callable[[Cached], ev.AnyEvent]:
    return lambda obj: event(obj.key.name)


def _keyed(event: Callable[[str, str], ev.AnyEvent]) -> Callable[[Cached], ev.AnyEvent]:
    return lambda obj: event(obj.key.namespace, obj.key.name)


NODES = Kind("", "Node", facts.NodeFacts, ev.NodeSeen, _named(ev.NodeGone), True)
PODS = Kind("", "Pod", facts.PodFacts, ev.PodSeen, lambda obj: ev.PodGone(obj.uid), True)
TASK_RESOURCES = Kind("kuscia.secretflow", "TaskResource", TaskResource, None, None, keep="bytes")
"""What control planes promise each other; see `muster.controllers.scheduler_votes`."""
TASK_GROUPS = Kind("kuscia.secretflow", "TaskResourceGroup", facts.TaskGroupFacts, ev.TaskGroupSeen, _named(ev.TaskGroupGone))
KINDS: tuple[Kind, ...] = (
    NODES,
    Kind("", "Namespace", facts.NamespaceFacts, ev.NamespaceSeen, _named(ev.NamespaceGone), True),
    Kind("", "PersistentVolume", facts.PersistentVolumeFacts, ev.VolumeSeen, _named(ev.VolumeGone)),
    Kind("", "PersistentVolumeClaim", facts.ClaimFacts, ev.ClaimSeen, _keyed(ev.ClaimGone)),
    Kind("storage.k8s.io", "StorageClass", facts.StorageClassFacts, ev.StorageClassSeen, _named(ev.StorageClassGone)),
    Kind("policy", "PodDisruptionBudget", facts.BudgetFacts, ev.BudgetSeen, _keyed(ev.BudgetGone)),
    Kind("slo.koordinator.sh", "NodeMetric", facts.NodeMetricFacts, ev.NodeMetricSeen, _named(ev.NodeMetricGone)),
    Kind("muster.dev", "NodePool", facts.PoolFacts, ev.PoolSeen, _named(ev.PoolGone)),
    Kind("muster.dev", "Link", facts.LinkFacts, ev.LinkSeen, _named(ev.LinkGone)),
    Kind("kuscia.secretflow", "Domain", facts.QuotaFacts, ev.QuotaSeen, _named(ev.QuotaGone)),
    Kind("muster.dev", "SchedulingPolicy", facts.PolicyFacts, ev.PolicySeen, _named(ev.PolicyGone)),
    Kind("muster.dev", "Queue", facts.QueueFacts, ev.QueueSeen, _named(ev.QueueGone)),
    Kind("muster.dev", "UserGroup", facts.UserGroupFacts, ev.UserGroupSeen, _named(ev.UserGroupGone)),
    Kind("muster.dev", "User", facts.UserFacts, ev.UserSeen, _named(ev.UserGone)),
    Kind("scheduling.sigs.k8s.io", "PodGroup", facts.PodGroupFacts, ev.PodGroupSeen, _keyed(ev.PodGroupGone)),
    TASK_RESOURCES,
    TASK_GROUPS,
    PODS,
)
"""In the order in which they are fed at the start."""


async def open_informer(hub: InformerHub, kind: Kind) -> Informer:
    """NotFound when the store does not serve the kind. Only the facts are kept: that is most of the memory saved."""
    return await hub.informer(kind.group, kind.kind, view=kind.view, keep=kind.keep)


async def open_informers(
    hub: InformerHub, kinds: Sequence[Kind], waits: Callable[[str], None]
) -> tuple[dict[Kind, Informer], list[Kind]]:
    """The informers of all kinds that are served, and the kinds that are not. Waits, and says so, for those that must be."""
    informers: dict[Kind, Informer] = {}
    missing: list[Kind] = []
    for kind in kinds:
        informer = await insist(functools.partial(_open_or_none, hub, kind), str(kind), waits)
        if informer is None:
            missing.append(kind)
        else:
            informers[kind] = informer
    return informers, missing


async def _open_or_none(hub: InformerHub, kind: Kind) -> Informer | None:
    try:
        return await open_informer(hub, kind)
    except NotFound:
        if kind.is_needed:
            raise
        return None


async def insist(attempt: Callable[[], Awaitable[T]], what: str, waits: Callable[[str], None]) -> T:
    """Until the store answers; `waits` is told while it does not."""
    failures = 0
    while True:
        try:
            return await attempt()
        except ApiError as error:
            waits(f"waiting for {what}: {error}")
            await asyncio.sleep(_BACKOFF.delay_s(failures, what))
            failures += 1


async def catch_up(store: Store, informers: Sequence[Informer]) -> None:
    """Until each cache holds all that is in the store at this moment.

    A new leader needs this: its caches may lag behind what the last leader bound, and what it does not see it would give away
    again. A watch that shows nothing for a while may be quiet or dead; listing again tells.
    """
    for informer in informers:
        wanted = await _version_of(store, informer)
        waited_s, patience_s = 0.0, _PATIENCE_S
        while is_newer(wanted, informer.version):
            await asyncio.sleep(_LOOK_S)
            waited_s += _LOOK_S
            if waited_s >= patience_s and is_newer(wanted, informer.version):
                # A long list needs its time: each next one gets twice as much.
                waited_s, patience_s = 0.0, patience_s * 2
                await informer.stop()
                informer.start()


async def _version_of(store: Store, informer: Informer) -> str:
    attempt = 0
    while True:
        try:
            return (await store.list(informer.resource, limit=1)).resource_version
        except ApiError as error:
            log.warning("the scheduler can't list %s yet: %s", informer.resource.qualified, error)
            await asyncio.sleep(_BACKOFF.delay_s(attempt, informer.resource.qualified))
            attempt += 1


class Feed:
    """Events that wait for the engine. `wake` is called when there is something new."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.waiting_keys: dict[str, ObjectKey] = {}
        """Where to find the pods that have no node, by uid."""
        self.listeners: dict[Kind, Callable[[ObjectKey], None]] = {}
        """Who is told of changes that are no events."""
        self._pending: dict[object, ev.AnyEvent] = {}
        self._serial = 0
        self._wake = wake
        self._leave: list[Callable[[], None]] = []
        self._is_replay = False

    def __len__(self) -> int:
        return len(self._pending)

    def follow(self, informers: Mapping[Kind, Informer]) -> Iterator[ev.AnyEvent]:
        """From now on note every change; what is there already comes out of the iterator, in its fixed order.

        The iterator is to be drained before anything that is noted meanwhile.
        """
        cached: list[tuple[Kind, list[Cached]]] = []
        self._is_replay = True
        try:
            for kind, informer in informers.items():
                self._leave.append(informer.add_handler(self._handler(kind)))
                cached.append((kind, informer.cache.select()))
        finally:
            self._is_replay = False
        return (self._seen(kind, obj) for kind, objects in cached if kind.seen is not None for obj in objects)

    def put(self, event: ev.AnyEvent) -> None:
        """Note something that is not an object: what became of a binding, a configuration."""
        self._serial += 1
        self._pending[self._serial] = event
        self._wake()

    def take(self, len_max: int) -> list[ev.AnyEvent]:
        """The oldest events, at most `len_max`."""
        if len(self._pending) <= len_max:
            taken = list(self._pending.values())
            self._pending.clear()
        else:
            keys = [key for key, _ in zip(self._pending, range(len_max), strict=False)]
            taken = [self._pending.pop(key) for key in keys]
        return taken

    def close(self) -> None:
        for leave in self._leave:
            leave()
        self._leave.clear()

    # -- inside ----------------------------------------------------------------------------------------------------------------

    def _seen(self, kind: Kind, obj: Cached) -> ev.AnyEvent:
        view: Any = obj.view(kind.view)
        assert kind.seen is not None
        if kind is PODS:
            if view.spec.node_name:
                self.waiting_keys.pop(obj.uid, None)
            else:
                self.waiting_keys[obj.uid] = obj.key
        return kind.seen(view)

    def _handler(self, kind: Kind) -> Callable[[Change], None]:
        is_pod = kind is PODS

        def note(change: Change) -> None:
            new = change.new
            if self._is_replay or change.type is ChangeType.RESYNCED:
                return
            if kind.gone is None:
                if (listener := self.listeners.get(kind)) is not None:
                    listener(change.newest.key)
                return
            if new is None:
                obj = change.newest
                self.waiting_keys.pop(obj.uid, None)
                event = kind.gone(obj)
            else:
                obj = new
                if change.old is not None and change.old.view(kind.view) == obj.view(kind.view):
                    return
                event = self._seen(kind, obj)
            key = obj.uid if is_pod else (kind.kind, obj.key)
            self._pending.pop(key, None)
            self._pending[key] = event
            self._wake()

        return note


def count(events: Sequence[ev.AnyEvent]) -> None:
    """Add to the metric, by type of event."""
    by_type: dict[str, int] = {}
    for event in events:
        name = type(event).__name__
        by_type[name] = by_type.get(name, 0) + 1
    for name, number in by_type.items():
        EVENTS.labels(name).inc(number)
