"""Ending pods so that a more important one finds room.

The waiting pod is nominated for the node first (`status.nominatedNodeName`), so that others see what is meant for whom. A
victim whose disruption budget allows it is evicted, which counts against the budget; one that violates its budget, because
there was no other way, is deleted. Either way it has its grace period, a condition `DisruptionTarget` and an event `Preempted`.

Concurrency: one task per `Evict`, bounded, on the scheduler's event loop. Every victim that is still there at the end is
reported back (`EvictFailed`), so that whoever waits for its place is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from muster.engine.decisions import Evict, Victim
from muster.objects.resources import Resource
from muster.objects.status import ApiError, Conflict, NotFound, Raw, TooManyRequests
from muster.objects.time import Clock, format_time
from muster.store.backoff import Backoff, is_cancelled
from muster.store.cache import ObjectKey
from muster.store.contract import PatchType, Preconditions, Store
from muster.store.events import NORMAL, EventRecorder

log = logging.getLogger(__name__)

_AT_ONCE_MAX = 16
_ATTEMPTS_MAX = 4
_BACKOFF = Backoff(base_s=0.2, max_s=5.0)
_AGAIN = Backoff(base_s=1.0, max_s=60.0)
_FAILURES_MAX = 10_000


class Evictor:
    """See the module. `find` tells where a waiting pod is; `failed` is called with uid and why."""

    def __init__(
        self,
        store: Store,
        *,
        recorder: EventRecorder | None,
        clock: Clock,
        find: Callable[[str], ObjectKey | None],
        failed: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._find = find
        self._failed = failed
        self._room = asyncio.Semaphore(_AT_ONCE_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pods: Resource | None = None
        self._failures: dict[str, int] = {}
        """How often in a row each victim could not be evicted, by uid."""

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, evict: Evict) -> None:
        task = asyncio.create_task(self._carry_out(evict), name=f"eviction for {evict.unit}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry_out(self, evict: Evict) -> None:
        failed: dict[str, str] = {}
        async with self._room:
            try:
                await self._nominate(evict)
            except Exception as error:
                if is_cancelled():
                    raise
                # The engine knows whom the place is for; others will see it a little later.
                log.info("%s could not be nominated for node %s: %s", evict.unit, evict.node, error)
            for victim in evict.victims:
                try:
                    why = await self._end(victim, evict)
                except Exception as error:
                    if is_cancelled():
                        raise
                    log.exception("evicting %s/%s", victim.namespace, victim.name)
                    why = f"{type(error).__name__}: {error}"
                if why:
                    failed[victim.uid] = why
                else:
                    self._failures.pop(victim.uid, None)
        await self._give_back(failed)

    async def _give_back(self, failed: Mapping[str, str]) -> None:
        """Report these: at once the first time, later each time after it. Whoever waits may choose the same victims again, and
        must not keep everyone busy with it."""
        failures = max((self._failures.get(uid, 0) for uid in failed), default=0)
        if len(self._failures) > _FAILURES_MAX:
            self._failures.clear()
        self._failures.update(dict.fromkeys(failed, failures + 1))
        if failures:
            await asyncio.sleep(_AGAIN.delay_s(failures - 1, min(failed)))
        for uid, why in failed.items():
            self._failed(uid, why)

    async def _nominate(self, evict: Evict) -> None:
        key = self._find(evict.pod)
        if key is not None and evict.node:
            body = {"metadata": {"uid": evict.pod}, "status": {"nominatedNodeName": evict.node}}
            await self._patch(key, body)

    async def _end(self, victim: Victim, evict: Evict) -> str:
        """Why it could not be ended; empty when the victim is going, or gone."""
        why = ""
        for attempt in range(_ATTEMPTS_MAX):
            try:
                await self._mark(victim, evict)
                await self._remove(victim)
            except (NotFound, Conflict):
                # It is gone, or another pod of that name is there: both are as good as evicted.
                return ""
            except TooManyRequests as error:
                return str(error)
            except ApiError as error:
                why = str(error)
                await asyncio.sleep(_BACKOFF.delay_s(attempt, victim.uid))
            else:
                self._tell(victim, evict)
                return ""
        return why

    async def _mark(self, victim: Victim, evict: Evict) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"makes room for {evict.unit} on node {evict.node}",
            "lastTransitionTime": format_time(self._clock()),
        }
        body = {"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}}
        await self._patch(ObjectKey(victim.namespace, victim.name), body)

    async def _remove(self, victim: Victim) -> None:
        if not victim.violates_budget:
            await self._store.evict(victim.name, victim.namespace, uid=victim.uid)
            return
        preconditions = Preconditions(uid=victim.uid)
        await self._store.delete(await self._resource(), victim.name, victim.namespace, preconditions=preconditions)

    async def _patch(self, key: ObjectKey, body: Raw) -> None:
        await self._store.patch(
            await self._resource(), key.name, body, key.namespace, patch_type=PatchType.STRATEGIC, subresource="status"
        )

    def _tell(self, victim: Victim, evict: Evict) -> None:
        if self._recorder is not None:
            about = {"apiVersion": "v1", "kind": "Pod", "namespace": victim.namespace, "name": victim.name, "uid": victim.uid}
            self._recorder.event(about, NORMAL, "Preempted", f"ended to make room for {evict.unit} on node {victim.node}")

    async def _resource(self) -> Resource:
        if self._pods is None:
            self._pods = await self._store.resource("", "Pod")
        return self._pods
