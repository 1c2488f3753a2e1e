"""Ending pods so that a more important one finds room.

| the victim | how it ends |
|---|---|
| no disruption budget selects it | deleted |
| its budget allows it | evicted, which counts against the budget |
| it violates its budget, because there was no other way | deleted |

Either way it is ended under its uid, has its grace period and gets an event `Preempted`; where the server knows it (Kubernetes
1.26 and later), a condition `DisruptionTarget` before. When all are asked to go and one takes its time, the waiting pod is
nominated for the node (`status.nominatedNodeName`), so that others see what is meant for whom; pods that are gone at once leave
their room to be taken in the next moment, and nothing is written for that.

Concurrency: one task per `Evict`, its victims in parallel, all bounded together, on the scheduler's event loop. Every victim
that is still there at the end is reported back (`EvictFailed`), so that whoever waits for its place is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from muster.engine.decisions import Evict, Victim
from muster.objects.meta import is_deleting, metadata_of
from muster.objects.resources import Resource
from muster.objects.status import ApiError, Conflict, NotFound, Raw, TooManyRequests
from muster.objects.time import Clock, format_time
from muster.store.backoff import Backoff, is_cancelled
from muster.store.cache import ObjectKey
from muster.store.contract import PatchType, Preconditions, Store

log = logging.getLogger(__name__)

_AT_ONCE_MAX = 64
"""Victims on their way to the server at once; bindings have as many requests again, and the client bounds both."""
_ATTEMPTS_MAX = 4
_BACKOFF = Backoff(base_s=0.2, max_s=5.0)
_AGAIN = Backoff(base_s=1.0, max_s=60.0)
_FAILURES_MAX = 10_000
_MARKS_SINCE = 26
"""The minor version of Kubernetes that knows the condition DisruptionTarget."""


class Evictor:
    """See the module. `find` tells where a waiting pod is, `nominated` says for which node a pod is meant that waits for
    somebody's grace period, `ended` that a victim goes, and `failed` is called with the uid of one that does not, and why."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        find: Callable[[str], ObjectKey | None],
        nominated: Callable[[ObjectKey, str, str], None],
        ended: Callable[[Victim, str], None],
        failed: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._find = find
        self._nominated = nominated
        self._ended = ended
        self._failed = failed
        self._room = asyncio.Semaphore(_AT_ONCE_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pods: Resource | None = None
        self._marks: bool | None = None
        """Whether the server knows DisruptionTarget; None until it has said."""
        self._waiting: dict[str, int] = {}
        """Pods whose victims are being asked to go, by uid, with how many times over."""
        self._failures: dict[str, int] = {}
        """How often in a row each victim could not be evicted, by uid."""

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, evict: Evict) -> None:
        self._count(evict.pod, 1)
        task = asyncio.create_task(self._carry_out(evict), name=f"eviction for {evict.unit}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def is_for(self, uid: str) -> bool:
        """Whether victims are still being asked to go for this waiting pod."""
        return uid in self._waiting

    async def _carry_out(self, evict: Evict) -> None:
        try:
            ends = await asyncio.gather(*(self._end(victim, evict) for victim in evict.victims))
        finally:
            self._count(evict.pod, -1)
        failed: dict[str, str] = {}
        for victim, (why, _) in zip(evict.victims, ends, strict=True):
            if why:
                failed[victim.uid] = why
            else:
                self._failures.pop(victim.uid, None)
        if failed:
            await self._give_back(failed)
        elif evict.node and any(stays for _, stays in ends) and (key := self._find(evict.pod)) is not None:
            self._nominated(key, evict.pod, evict.node)

    def _count(self, uid: str, by: int) -> None:
        number = self._waiting.pop(uid, 0) + by
        if number > 0:
            self._waiting[uid] = number

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

    # -- one victim ----------------------------------------------------------------------------------------------------------

    async def _end(self, victim: Victim, evict: Evict) -> tuple[str, bool]:
        """Why it could not be ended, empty when the victim is going or gone; and whether it may still be there."""
        try:
            async with self._room:
                return await self._try(victim, evict)
        except Exception as error:
            if is_cancelled():
                raise
            log.exception("evicting %s/%s", victim.namespace, victim.name)
            return f"{type(error).__name__}: {error}", True

    async def _try(self, victim: Victim, evict: Evict) -> tuple[str, bool]:
        why = ""
        for attempt in range(_ATTEMPTS_MAX):
            try:
                if await self._has_marks():
                    await self._mark(victim, evict)
                stays = await self._remove(victim)
            except (NotFound, Conflict):
                # It is gone, or another pod of that name is there: both are as good as evicted.
                return "", False
            except TooManyRequests as error:
                return str(error), True
            except ApiError as error:
                why = str(error)
                await asyncio.sleep(_BACKOFF.delay_s(attempt, victim.uid))
            else:
                self._ended(victim, evict.unit)
                return "", stays
        return why, True

    async def _has_marks(self) -> bool:
        if self._marks is None:
            self._marks = await self._store.minor_version() >= _MARKS_SINCE
        return self._marks

    async def _mark(self, victim: Victim, evict: Evict) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"makes room for {evict.unit} on node {evict.node}",
            "lastTransitionTime": format_time(self._clock()),
        }
        body = {"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}}
        pods = await self._resource()
        await self._store.patch(pods, victim.name, body, victim.namespace, patch_type=PatchType.STRATEGIC, subresource="status")

    async def _remove(self, victim: Victim) -> bool:
        """Whether it stays for a while: for its grace period, for finalizers, or for all that an eviction says."""
        if victim.has_budget and not victim.violates_budget:
            await self._store.evict(victim.name, victim.namespace, uid=victim.uid)
            return True
        preconditions = Preconditions(uid=victim.uid)
        return _stays(
            await self._store.delete(await self._resource(), victim.name, victim.namespace, preconditions=preconditions)
        )

    async def _resource(self) -> Resource:
        if self._pods is None:
            self._pods = await self._store.resource("", "Pod")
        return self._pods


def _stays(answer: Raw) -> bool:
    """Whether the object in the answer to its deletion is still there. One that is gone at once may have a time of deletion."""
    meta = metadata_of(answer)
    return is_deleting(answer) and bool(meta.get("deletionGracePeriodSeconds") or meta.get("finalizers"))
