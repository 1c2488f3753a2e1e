"""Events are news, not records: those that have not happened again for an hour are deleted.

Embedded store only: on a real cluster etcd's leases do this. An Event that happens again meanwhile is kept: the deletion names
the version that was judged. `plan` is pure; the controller around it reads caches.
"""

from __future__ import annotations

import msgspec

from muster.controllers.actions import Action, Delete, Target
from muster.controllers.runtime import Caches, Controller, Plan, Watch
from muster.objects.time import parse_time
from muster.objects.view import View
from muster.store.cache import ObjectKey

TTL_S = 3_600.0


class EventMeta(View):
    creation_timestamp: str = ""


class EventSeries(View):
    last_observed_time: str = ""


class EventView(View):
    metadata: EventMeta = msgspec.field(default_factory=EventMeta)
    series: EventSeries | None = None
    last_timestamp: str = ""
    event_time: str = ""
    first_timestamp: str = ""


def last_seen(event: EventView) -> float | None:
    """When it last happened; None when none of its times can be read."""
    candidates = (
        event.series.last_observed_time if event.series else "",
        event.last_timestamp,
        event.event_time,
        event.first_timestamp,
        event.metadata.creation_timestamp,
    )
    for text in candidates:
        if text:
            try:
                return parse_time(text)
            except ValueError:
                continue
    return None


def plan(target: Target, event: EventView, now: float, ttl_s: float = TTL_S) -> tuple[list[Action], float | None]:
    """Delete it, or look again in so many seconds. One without any readable time counts as old: nobody could ever tell."""
    seen = last_seen(event)
    if seen is None or now >= seen + ttl_s:
        return [Delete(target)], None
    return [], min(ttl_s, seen + ttl_s - now)


class EventExpiry(Controller):
    """Keys are Events as `v1` shows them: those that were written as `events.k8s.io/v1` are among them."""

    name = "event-expiry"

    def __init__(self, ttl_s: float = TTL_S) -> None:
        self._ttl_s = ttl_s
        self._events = Watch(group="", kind="Event", view=EventView, keep="nothing")
        self.watches = (self._events,)

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        event = caches[self._events].get(key)
        if event is None or event.deleting:
            return Plan()
        target = Target(self._events.group, "Event", key.name, key.namespace, event.uid, event.resource_version)
        return Plan(*plan(target, event.view(EventView), now, self._ttl_s))
