"""What the scheduler promises to other control planes: a place here is theirs to count on, until they answer.

    engine             this                                       TaskResource, in the store
    Hold(is_promised)  writes the Placement, then the vote ----->  Reserving -> Reserved
                       Permitted  <------------------------------  Schedulable (the initiator decided: all begin)
    Place              finishes the very same Placement
                       Denied     <------------------------------  Failed (the initiator decided: nobody begins)
    Release            deletes the Placement
    Release(is_asked)  asks to have it back -------------------->  annotation muster.dev/withdraw; the initiator answers

Once a vote may have been written, only the initiator's answer ends the promise. Where it can't be kept all the same (its node
or a pod is gone), it is asked back before the Placement goes, and the engine decides anew. If that comes too late, because the
initiator has decided, the unit is started as soon as it can be.

Votes are written with the version that was read, so that a vote which arrives late, after a crash, can't stand for a try that
is over; and a vote that may be under way has its Placement in the store. After a restart (`recovered`, pure): what the
initiator permitted is finished, what it denied or what is gone is dropped, the rest is held and voted for again.

Concurrency: plain calls from the scheduler's task; one task per promised unit writes, one at a time per unit. Failing writes
are tried again for as long as the promise stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from prometheus_client import Gauge

from muster.controllers.actions import Executor, Patch
from muster.controllers.scheduler_plans import Plan, Plans, Resumed
from muster.controllers.task_reservation_parts import advance, resource_target
from muster.engine import events as ev
from muster.engine.decisions import PlacedPod
from muster.engine.facts import PodFacts, TaskGroupFacts
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.kinds.kuscia_tasks import TaskResource
from muster.objects.kinds.muster import Placement
from muster.objects.labels import KusciaAnnotation, Muster
from muster.objects.status import ApiError, NotFound, Raw
from muster.objects.view import view_of
from muster.store.backoff import Backoff, is_cancelled
from muster.store.cache import ObjectKey
from muster.store.contract import Store

log = logging.getLogger(__name__)

PROMISED = Gauge("muster_scheduler_promised_units", "Units that are held for other control planes, and wait for their answer.")

_BACKOFF = Backoff(base_s=0.2, max_s=15.0)
_WHY_LEN_MAX = 256


class Found(msgspec.Struct, frozen=True):
    """A TaskResource as it was read."""

    raw: Raw
    view: TaskResource

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.view.metadata.namespace, self.view.metadata.name)

    @property
    def phase(self) -> str:
        return self.view.status.phase

    @property
    def tried(self) -> int:
        return self.view.status.retry_count

    @property
    def is_asked_back(self) -> bool:
        return Muster.WITHDRAW in self.view.metadata.annotations

    @property
    def group(self) -> str:
        return self.view.metadata.annotations.get(KusciaAnnotation.TASK_RESOURCE_GROUP, "")


def found_of(raw: Raw) -> Found:
    return Found(raw, view_of(TaskResource, raw))


# -- pure ----------------------------------------------------------------------------------------------------------------------

Fate = Literal["finish", "hold", "withdraw", "drop"]


class Recovered(msgspec.Struct, frozen=True):
    """What to do about a promise from before a restart, and on which TaskResources it was given."""

    plan: Resumed
    fate: Fate
    group: str = ""
    resources: tuple[Found, ...] = ()


def recovered(
    plans: Sequence[Resumed], placements: Iterable[Placement], resources: Sequence[Found]
) -> tuple[list[Resumed], list[Recovered]]:
    """The plans that were no promises, and what becomes of those that were. Pure."""
    by_name = {placement.metadata.name: placement for placement in placements}
    held_units = {plan.unit for plan in plans if plan.held_until is not None and plan.pods}
    plain: list[Resumed] = []
    promised: list[Recovered] = []
    for plan in plans:
        placement = by_name.get(plan.name)
        if plan.held_until is None or placement is None:
            plain.append(plan)
            continue
        group = group_of(plan.unit)
        namespaces = {pod.namespace for pod in placement.spec.pods}
        own = tuple(one for one in resources if one.group == group and one.key.namespace in namespaces)
        promised.append(Recovered(plan, _fate(plan, own, held_units), group, own))
    return plain, promised


def _fate(plan: Resumed, resources: Sequence[Found], held_units: set[str]) -> Fate:
    phases = {one.phase for one in resources}
    if plan.bound or "Schedulable" in phases:
        return "finish" if "Failed" not in phases else "drop"
    if not resources or "Failed" in phases:
        return "drop"
    if plan.pods and not plan.lost:
        return "hold"
    # Of two promises for the same unit the later one stands: nothing is to be taken back.
    return "drop" if plan.unit in held_units else "withdraw"


def group_of(unit: str) -> str:
    """The TaskResourceGroup of a unit `Task/<name>`."""
    return unit.partition("/")[2]


# -- the shell -----------------------------------------------------------------------------------------------------------------


class _Vote(msgspec.Struct, eq=False):
    """One promise, from the decision to its end."""

    unit: str
    group: str
    keys: tuple[ObjectKey, ...]
    pods: tuple[PlacedPod, ...]
    until: float
    plan: Plan | None = None
    tried: dict[ObjectKey, int] = msgspec.field(default_factory=dict)
    """In which try of the group a vote may have been written."""
    asked: str = ""
    """Why it is to be given back, once the engine wants that."""
    answer: Literal["", "permitted", "denied"] = ""
    placed: tuple[PlacedPod, ...] = ()
    is_released: bool = False
    is_writing: bool = True
    woken: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.is_released or bool(self.placed)


class Votes:
    """See the module. `resource` and `group` read what was last seen; `put` gives the engine its answer."""

    def __init__(
        self,
        store: Store,
        plans: Plans,
        *,
        clock: Callable[[], float],
        put: Callable[[ev.AnyEvent], None],
        find: Callable[[ObjectKey], PodFacts | None],
        resource: Callable[[ObjectKey], Raw | None],
        group: Callable[[str], TaskGroupFacts | None],
    ) -> None:
        self.failing: dict[str, str] = {}
        self._store = store
        self._plans = plans
        self._clock = clock
        self._put = put
        self._find = find
        self._resource = resource
        self._group = group
        self._executor = Executor(store, "scheduler")
        self._votes: dict[str, _Vote] = {}
        """The last one of each unit; earlier ones may still be on their way out."""
        self._by_key: dict[ObjectKey, list[_Vote]] = {}
        """By the TaskResources that they are given on."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many are being written; one that waits for its answer is no work."""
        return sum(1 for vote in self._votes.values() if vote.is_writing)

    # -- what the engine decides -----------------------------------------------------------------------------------------------

    def hold(self, unit: str, pods: tuple[PlacedPod, ...], until: float) -> None:
        """Write it down, then say so to the others."""
        self._begin(_Vote(unit, group_of(unit), self._keys_of(pods), pods, until))

    def ask_back(self, unit: str, why: str) -> None:
        """`Release(is_asked)`."""
        vote = self._votes.get(unit)
        if vote is None or vote.is_over:
            # Nothing is promised, so nobody has to be asked.
            self._put(ev.Denied(unit, why))
            return
        vote.asked = why[:_WHY_LEN_MAX] or "it is needed elsewhere"
        vote.woken.set()

    def release(self, unit: str) -> None:
        """The engine has given it back."""
        vote = self._votes.get(unit)
        if vote is not None:
            vote.is_released = True
            vote.woken.set()

    def place(self, unit: str, pods: tuple[PlacedPod, ...]) -> bool:
        """Go on with the plan that was held; False when none was."""
        vote = self._votes.get(unit)
        if vote is None or vote.is_over:
            return False
        vote.placed = pods
        vote.woken.set()
        return True

    # -- what the store shows --------------------------------------------------------------------------------------------------

    def seen(self, key: ObjectKey) -> None:
        """A TaskResource has changed."""
        for vote in self._by_key.get(key, ()):
            vote.woken.set()

    async def list_resources(self) -> list[Found]:
        """All TaskResources as they are now; none where the kind is not served."""
        attempt = 0
        while True:
            try:
                page = await self._store.list(await self._store.resource(GROUP, "TaskResource"))
            except NotFound:
                return []
            except ApiError as error:
                self.failing["task resources"] = f"can't be listed: {error}"
                await asyncio.sleep(_BACKOFF.delay_s(attempt, "task resources"))
                attempt += 1
            else:
                self.failing.pop("task resources", None)
                return _readable(page.items)

    def resume(self, known: Recovered, *, is_held: bool) -> None:
        """Take up a promise from before a restart; one that the engine could not hold again is asked back."""
        plan = known.plan
        stored = Plan(plan.name, plan.unit, plan.pods, is_stored=True)
        keys = tuple(dict.fromkeys([*(one.key for one in known.resources), *self._keys_of(plan.pods)]))
        vote = _Vote(plan.unit, known.group, keys, plan.pods, plan.held_until or 0.0, stored)
        vote.tried = {one.key: one.tried for one in known.resources if one.phase in ("Reserving", "Reserved")}
        vote.is_released = not is_held
        self._begin(vote)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._votes.clear()
        PROMISED.set(0)

    # -- one promise -----------------------------------------------------------------------------------------------------------

    def _keys_of(self, pods: Iterable[PlacedPod]) -> tuple[ObjectKey, ...]:
        keys: dict[ObjectKey, None] = {}
        for pod in pods:
            facts = self._find(ObjectKey(pod.namespace, pod.name))
            name = facts.metadata.annotations.get(KusciaAnnotation.TASK_RESOURCE) if facts is not None else None
            if name:
                keys[ObjectKey(pod.namespace, name)] = None
        return tuple(keys)

    def _begin(self, vote: _Vote) -> None:
        before = self._votes.get(vote.unit)
        self._votes[vote.unit] = vote
        for key in vote.keys:
            self._by_key.setdefault(key, []).append(vote)
        vote.task = asyncio.create_task(
            self._live(vote, before.task if before is not None else None), name="scheduler's promise"
        )
        self._tasks.add(vote.task)
        vote.task.add_done_callback(self._tasks.discard)
        PROMISED.set(len(self._votes))

    async def _live(self, vote: _Vote, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            if vote.plan is None:
                written = await self._plans.hold(vote.unit, vote.pods, vote.until)
                if isinstance(written, Plan):
                    vote.plan = written
                else:
                    vote.asked = f"its plan can't be written: {written}"[:_WHY_LEN_MAX]
            while not vote.is_over:
                await self._insist(vote, self._advance)
            await self._leave(vote)
        except Exception:
            if is_cancelled():
                raise
            log.exception("the promise of %s", vote.unit)
            self._put(ev.Denied(vote.unit, "the scheduler failed to keep its promise; its log says why"))
        finally:
            self._forget(vote)
            PROMISED.set(len(self._votes))

    def _forget(self, vote: _Vote) -> None:
        self.failing.pop(vote.unit, None)
        if self._votes.get(vote.unit) is vote:
            del self._votes[vote.unit]
        for key in vote.keys:
            left = [one for one in self._by_key.pop(key, ()) if one is not vote]
            if left:
                self._by_key[key] = left

    async def _insist(self, vote: _Vote, step: Callable[[_Vote], Awaitable[None]]) -> None:
        """Take one step until it succeeds, then wait for something new."""
        attempt = 0
        while True:
            vote.woken.clear()
            vote.is_writing = True
            wait_s: float | None = None
            try:
                await step(vote)
                self.failing.pop(vote.unit, None)
            except Exception as error:
                if is_cancelled():
                    raise
                # Whatever it was, others may count on the promise by now: it stands, and the step is tried again.
                self._note_failure(vote, error)
                wait_s = _BACKOFF.delay_s(attempt, vote.unit)
                attempt += 1
            vote.is_writing = wait_s is not None
            if vote.is_over:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await vote.woken.wait()
            if wait_s is None:
                return

    def _note_failure(self, vote: _Vote, error: Exception) -> None:
        self.failing[vote.unit] = str(error) or type(error).__name__
        if not isinstance(error, ApiError):
            log.error("the promise of %s can't go on", vote.unit, exc_info=error)

    def _found(self, vote: _Vote) -> list[Found]:
        """Its TaskResources as last seen."""
        return [Found(raw, view_of(TaskResource, raw)) for key in vote.keys if (raw := self._resource(key)) is not None]

    async def _advance(self, vote: _Vote) -> None:
        """Do what the TaskResources call for now."""
        found = self._found(vote)
        group = self._group(vote.group)
        if not vote.keys:
            self._tell(vote, "denied", f"no pod of {vote.unit} names its TaskResource ({KusciaAnnotation.TASK_RESOURCE})")
        elif any(one.phase == "Schedulable" for one in found):
            self._tell(vote, "permitted", "")
        elif group is None and not found and not await self._is_there(vote):
            self._tell(vote, "denied", f"TaskResourceGroup {vote.group} is gone")
        elif failed := [one for one in found if one.phase == "Failed"]:
            # A group that has gone on to its next try will ask again: what is held stands for that.
            if group is None or group.status.retry_count <= failed[0].tried:
                self._tell(vote, "denied", _why_failed(failed[0]))
        elif vote.asked:
            await self._ask_back(vote, found)
        else:
            for one in found:
                if one.phase == "Reserving" and not vote.is_over:
                    vote.tried[one.key] = one.tried
                    await self._apply(
                        advance(one.raw, "Reserved", one.tried, now=self._clock(), reason="Reserved", message=_what(vote))
                    )

    async def _is_there(self, vote: _Vote) -> bool:
        """Whether the TaskResources exist, though the caches do not show them yet."""
        try:
            resource = await self._store.resource(GROUP, "TaskResource")
            for key in vote.keys:
                await self._store.get(resource, key.name, key.namespace)
        except NotFound:
            return False
        return bool(vote.keys)

    async def _ask_back(self, vote: _Vote, found: Sequence[Found]) -> None:
        for one in found:
            if one.phase in ("Reserving", "Reserved") and not one.is_asked_back:
                body: Raw = {"metadata": {"annotations": {Muster.WITHDRAW: vote.asked or "it can't be kept"}}}
                await self._apply(Patch(resource_target(one.view), body))

    async def _apply(self, patch: Patch | None) -> None:
        if patch is not None:
            await self._executor.apply([patch])

    def _tell(self, vote: _Vote, answer: Literal["permitted", "denied"], message: str) -> None:
        """Once: what is said twice would be taken for the answer to something later."""
        if not vote.answer:
            vote.answer = answer
            self._put(ev.Permitted(vote.unit) if answer == "permitted" else ev.Denied(vote.unit, message))

    async def _leave(self, vote: _Vote) -> None:
        """Finish the plan, or see to it that nobody counts on it, and drop it."""
        if vote.placed and not vote.is_released and vote.plan is not None:
            if _same(vote.placed, vote.pods):
                self._plans.finish(msgspec.structs.replace(vote.plan, pods=vote.placed))
                return
            self._plans.start(vote.unit, vote.placed)
        elif not vote.answer and vote.tried:
            await self._insist_on_leaving(vote)
        if vote.plan is not None:
            await self._plans.drop(vote.plan)

    async def _insist_on_leaving(self, vote: _Vote) -> None:
        """Ask back what was voted for, until that is written or has become needless."""
        attempt = 0
        while True:
            try:
                await self._ask_back(vote, [one for one in self._found(vote) if vote.tried.get(one.key) == one.tried])
                return
            except Exception as error:
                if is_cancelled():
                    raise
                self._note_failure(vote, error)
            await asyncio.sleep(_BACKOFF.delay_s(attempt, vote.unit))
            attempt += 1


def _same(one: Iterable[PlacedPod], other: Iterable[PlacedPod]) -> bool:
    return sorted((pod.uid, pod.node) for pod in one) == sorted((pod.uid, pod.node) for pod in other)


def _what(vote: _Vote) -> str:
    return f"{len(vote.pods)} pods have a place"


def _why_failed(one: Found) -> str:
    conditions: Sequence[Mapping[str, str]] = (one.raw.get("status") or {}).get("conditions") or ()
    said = next((known.get("message", "") for known in conditions if known.get("type") == "Failed"), "")
    return said or f"TaskResource {one.key} has failed"


def _readable(items: Iterable[Raw]) -> list[Found]:
    found = []
    for raw in items:
        try:
            found.append(found_of(raw))
        except msgspec.ValidationError as error:
            log.warning("a TaskResource can't be read and is left as it is: %s", error)
    return found
