"""Plans of units with several pods: a Placement is written before the first pod is bound, and goes when all is settled.

So a plan outlives a crash: whoever leads next finds the Placement and finishes or undoes it (`resumed`, pure):

- nothing of it is bound, and something of it can no longer be (a pod or a node is gone): it is undone, that is dropped, and the
  engine decides anew about the whole unit;
- otherwise what is not bound yet is bound as planned, as far as pods and nodes still exist and the engine finds that it fits.

A pod that is bound can't be unbound in Kubernetes. When a member turns out to be impossible to bind after others were (it was
deleted, the store refuses it), the others stay, the engine goes on with what is left of the unit, which counts those that
are bound, and everyone concerned gets an event `PartlyBound`: a unit is never half started in silence.

A plan that is held (`heldUntil`) is a promise to other control planes: it is stored like any other, and stays until they answer
(`muster.controllers.scheduler_votes`); then this very plan is finished, or dropped.

Concurrency: one event loop; each plan is a task while it writes. Invariants: no pod of a plan is bound before the plan is
stored, nor before every earlier plan of its unit is, since later members are placed because of the earlier ones; a failed pod
goes back to the engine only when its plan is gone, so that two plans never name the same waiting pod.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from muster.controllers.scheduler_binding import Binder, Job, Outcome
from muster.engine.decisions import PlacedPod
from muster.engine.facts import PodFacts
from muster.objects.kinds.muster import Placement
from muster.objects.resources import Resource
from muster.objects.status import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    Invalid,
    NotFound,
    Raw,
    RequestEntityTooLarge,
)
from muster.objects.time import format_time, time_or
from muster.objects.view import view_of
from muster.store.backoff import Backoff, is_cancelled
from muster.store.contract import Store

log = logging.getLogger(__name__)

GROUP, KIND = "muster.dev", "Placement"
PLANS_MAX = 64
"""Placements being written or deleted at once."""
_BACKOFF = Backoff(base_s=0.1, max_s=15.0)
_REFUSALS = (Invalid, BadRequest, Forbidden, RequestEntityTooLarge)
_SLUG_LEN_MAX = 40


# -- pure ----------------------------------------------------------------------------------------------------------------------


def plan_name(unit: str, pods: Sequence[PlacedPod], held_until: float | None = None) -> str:
    """The same decision has the same name: a write that is tried again can't make a second plan. Nor can the deletion of a plan
    that was held take away another one, which is held later."""
    slug = "".join(c if c.isalnum() and c.isascii() else "-" for c in unit.lower())[-_SLUG_LEN_MAX:].strip("-")
    content = repr((unit, [(pod.uid, pod.node) for pod in pods], *([] if held_until is None else [held_until])))
    return f"{slug}-{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}".lstrip("-")


def placement_of(unit: str, pods: Sequence[PlacedPod], *, epoch: int, now: float, held_until: float | None = None) -> Raw:
    spec: Raw = {"unit": unit, "epoch": epoch, "pods": [_placed(pod) for pod in pods], "decided": format_time(now)}
    if held_until is not None:
        spec["heldUntil"] = format_time(held_until)
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": KIND,
        "metadata": {"name": plan_name(unit, pods, held_until)},
        "spec": spec,
    }


def _placed(pod: PlacedPod) -> Raw:
    raw: Raw = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "node": pod.node}
    if pod.annotations:
        raw["annotations"] = dict(pod.annotations)
    if pod.labels:
        raw["labels"] = dict(pod.labels)
    return raw


class Resumed(msgspec.Struct, frozen=True):
    """What to do about a plan that was found: bind `pods`; when there are none, it only has to go. `lost` can't be bound."""

    name: str
    unit: str
    pods: tuple[PlacedPod, ...] = ()
    lost: tuple[str, ...] = ()
    """namespace/name of members that are gone, or whose node is."""
    bound: int = 0
    held_until: float | None = None
    """Set for a plan that was promised: whether it is finished or dropped is for others to say."""


def resumed(
    placements: Iterable[Placement], find: Callable[[str, str], PodFacts | None], has_node: Callable[[str], bool]
) -> list[Resumed]:
    """What to do about each plan; of several that name the same pod, the one decided last has it. Pure."""
    newest = sorted(placements, key=lambda p: (p.spec.epoch, p.spec.decided, p.metadata.name), reverse=True)
    taken: set[str] = set()
    return [_resumed(plan, find, has_node, taken) for plan in newest][::-1]


def _resumed(
    plan: Placement,
    find: Callable[[str, str], PodFacts | None],
    has_node: Callable[[str], bool],
    taken: set[str],
) -> Resumed:
    open_, lost, bound = [], [], 0
    for pod in plan.spec.pods:
        live = find(pod.namespace, pod.name)
        if live is not None and live.metadata.uid == pod.uid and live.spec.node_name:
            bound += 1
        elif live is None or live.metadata.uid != pod.uid or live.metadata.deletion_timestamp or not has_node(pod.node):
            lost.append(f"{pod.namespace}/{pod.name}")
        elif pod.uid not in taken:
            taken.add(pod.uid)
            open_.append(PlacedPod(pod.uid, pod.namespace, pod.name, pod.node, pod.annotations, pod.labels))
    if lost and not bound:
        taken.difference_update(pod.uid for pod in open_)
        open_ = []
    held_until = time_or(plan.spec.held_until, 0.0) if plan.spec.held_until else None
    return Resumed(plan.metadata.name, plan.spec.unit, tuple(open_), tuple(lost), bound, held_until)


# -- the shell -----------------------------------------------------------------------------------------------------------------


class Plan(msgspec.Struct, eq=False):
    """One plan while it is carried out."""

    name: str
    unit: str
    pods: tuple[PlacedPod, ...]
    is_stored: bool = False
    outcomes: dict[str, tuple[PlacedPod, Outcome]] = msgspec.field(default_factory=dict)
    """By uid."""
    unwanted: set[str] = msgspec.field(default_factory=set)
    written: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    """Set when it is known whether it could be stored."""

    @property
    def is_settled(self) -> bool:
        return len(self.outcomes) == len(self.pods)


class Plans:
    """See the module. `settled` is told of each plan whose pods all have their outcome, when its Placement is gone."""

    def __init__(
        self,
        store: Store,
        binder: Binder,
        *,
        epoch: int,
        clock: Callable[[], float],
        bound: Callable[[Job, Outcome], None],
        settled: Callable[[Plan], None],
    ) -> None:
        self.failing: dict[str, str] = {}
        self._store = store
        self._binder = binder
        self._epoch = epoch
        self._clock = clock
        self._bound = bound
        self._settled = settled
        self._plans: dict[str, Plan] = {}
        self._writing: dict[str, Plan] = {}
        """By unit: the last plan that is on its way to the store."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(PLANS_MAX)
        self._resource: Resource | None = None
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._plans)

    def is_writing(self, unit: str) -> bool:
        """Whether a plan of this unit is not stored yet. A single pod that joins it is a plan too, and comes after it."""
        return unit in self._writing

    def start(self, unit: str, pods: tuple[PlacedPod, ...]) -> None:
        """Write the plan down, then bind its pods."""
        plan, before = Plan(plan_name(unit, pods), unit, pods), self._writing.get(unit)
        self._plans[plan.name] = self._writing[unit] = plan
        self._go(self._write(plan, before))

    def resume(self, plan: Resumed) -> None:
        """Go on with a plan that is stored; one without pods only goes."""
        self._begin(Plan(plan.name, plan.unit, plan.pods, is_stored=True))

    async def hold(self, unit: str, pods: tuple[PlacedPod, ...], until: float) -> Plan | ApiError:
        """Write the plan of a promise down, and bind nothing yet. An error says that it can't be written."""
        plan = Plan(plan_name(unit, pods, until), unit, pods)
        raw = placement_of(unit, pods, epoch=self._epoch, now=self._clock(), held_until=until)
        error = await self._insist(plan, lambda resource: self._create(resource, raw))
        if error is not None:
            return error
        plan.is_stored = True
        return plan

    async def drop(self, plan: Plan) -> None:
        """Forget a plan that was held, and of which nothing was bound."""
        await self._insist(plan, lambda resource: self._delete(resource, plan.name))

    def finish(self, plan: Plan) -> None:
        """Bind the pods of a plan that was held."""
        self._begin(plan)

    def cancel(self, unit: str, uids: Iterable[str]) -> None:
        """The engine has taken these back: those that were not begun with are left out."""
        unwanted = set(uids)
        for plan in self._plans.values():
            if plan.unit == unit:
                plan.unwanted |= unwanted
        self._binder.cancel(unwanted)

    async def found(self) -> list[Placement]:
        """All Placements in the store. None where the kind is not served; one that can't be read is left alone."""
        attempt = 0
        while True:
            try:
                resource = await self._placements()
                page = await self._store.list(resource) if resource is not None else None
                break
            except ApiError as error:
                self.failing["placements"] = f"can't be listed: {error}"
                await asyncio.sleep(_BACKOFF.delay_s(attempt, "placements"))
                attempt += 1
        self.failing.pop("placements", None)
        plans = []
        for raw in page.items if page is not None else ():
            try:
                plans.append(view_of(Placement, raw))
            except msgspec.ValidationError as error:
                log.warning("a Placement can't be read and is left as it is: %s", error)
        return plans

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- inside ----------------------------------------------------------------------------------------------------------------

    def _go(self, step: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(step, name="scheduler's plan")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, plan: Plan, before: Plan | None) -> None:
        problem = await self._store_after(plan, before)
        if self._writing.get(plan.unit) is plan:
            del self._writing[plan.unit]
        plan.is_stored = not problem
        plan.written.set()
        if problem:
            for pod in plan.pods:
                plan.outcomes[pod.uid] = (pod, Outcome(problem))
            self._end(plan)
            return
        self._begin(plan)

    async def _store_after(self, plan: Plan, before: Plan | None) -> str:
        """Why it can't be stored; empty when it is."""
        if before is not None:
            await before.written.wait()
            if not before.is_stored:
                return "it would have joined others of its unit, and their plan can't be written"
        raw = placement_of(plan.unit, plan.pods, epoch=self._epoch, now=self._clock())
        error = await self._insist(plan, lambda resource: self._create(resource, raw))
        return "" if error is None else f"its plan can't be written: {error}"

    async def _create(self, resource: Resource, raw: Raw) -> None:
        try:
            await self._store.create(resource, raw)
        except AlreadyExists:
            return

    def _begin(self, plan: Plan) -> None:
        self._plans[plan.name] = plan
        wanted = [pod for pod in plan.pods if pod.uid not in plan.unwanted]
        for pod in plan.pods:
            if pod.uid in plan.unwanted:
                plan.outcomes[pod.uid] = (pod, Outcome(is_cancelled=True))
        self._binder.add(wanted, lambda job, outcome: self._note(plan, job, outcome))
        if plan.is_settled:
            self._go(self._remove(plan))

    def _note(self, plan: Plan, job: Job, outcome: Outcome) -> None:
        plan.outcomes[job.pod.uid] = (job.pod, outcome)
        if outcome.is_bound:
            self._bound(job, outcome)
        if plan.is_settled:
            self._go(self._remove(plan))

    async def _remove(self, plan: Plan) -> None:
        if plan.is_stored:
            await self._insist(plan, lambda resource: self._delete(resource, plan.name))
        self._end(plan)

    async def _delete(self, resource: Resource, name: str) -> None:
        try:
            await self._store.delete(resource, name)
        except NotFound:
            return

    def _end(self, plan: Plan) -> None:
        self._plans.pop(plan.name, None)
        self._settled(plan)

    async def _insist(self, plan: Plan, write: Callable[[Resource], Awaitable[None]]) -> ApiError | None:
        """Until it is certain that the write happened (None), or that it never will."""
        attempt = 0
        while True:
            try:
                async with self._room:
                    resource = await self._placements()
                    if resource is not None:
                        await write(resource)
                self.failing.pop(plan.name, None)
                return None
            except _REFUSALS as error:
                self.failing.pop(plan.name, None)
                return error
            except ApiError as error:
                self.failing[plan.name] = str(error)
                await asyncio.sleep(_BACKOFF.delay_s(attempt, plan.name))
                attempt += 1
            except Exception as error:
                if is_cancelled():
                    raise
                # As with bindings: whoever waits is told, and nothing stays set aside for ever.
                log.exception("the plan %s of %s", plan.name, plan.unit)
                return Invalid(f"{type(error).__name__}: {error}")

    async def _placements(self) -> Resource | None:
        if self._resource is None:
            try:
                self._resource = await self._store.resource(GROUP, KIND)
            except NotFound:
                if not self._has_warned:
                    self._has_warned = True
                    log.warning("the store does not serve %s.%s: a crash may leave a unit half bound", KIND, GROUP)
        return self._resource


def partly_bound(plan: Plan) -> Mapping[str, str] | None:
    """uid -> what to tell each pod of a plan of which some were bound and some failed; None when it is not so."""
    bound = [pod for pod, outcome in plan.outcomes.values() if outcome.is_bound]
    failed = [(pod, outcome) for pod, outcome in plan.outcomes.values() if outcome.error]
    if not bound or not failed:
        return None
    pod, outcome = failed[0]
    text = (
        f"{len(bound)} of {len(plan.pods)} pods of {plan.unit} are bound and {len(failed)} could not be, "
        f"first {pod.namespace}/{pod.name}: {outcome.error}; the scheduler goes on with the rest"
    )
    return {pod.uid: text for pod, _ in plan.outcomes.values()}
