"""One run of the scheduler, from the state of the caches to its end. See `muster.controllers.scheduler` for the whole.

Concurrency: one event loop. `run` has one task that steps the engine; binder, plans, evictions and reports have their own and
answer through the feed. When `run` has ended, nothing of it is left but what the store holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import Counter as Tally
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from muster.controllers.scheduler import Scheduler
from muster.controllers.scheduler_binding import ONE_BY_ONE, TOGETHER, Binder, CustomBinder, Job, Outcome
from muster.controllers.scheduler_evicting import Evictor
from muster.controllers.scheduler_feed import (
    NODES,
    PODS,
    TASK_GROUPS,
    TASK_RESOURCES,
    Feed,
    Kind,
    count,
    open_informer,
)
from muster.controllers.scheduler_log import LogWatch
from muster.controllers.scheduler_metrics import BANDWIDTH
from muster.controllers.scheduler_plans import Plan, Plans, Resumed, partly_bound, resumed
from muster.controllers.scheduler_reporting import Board
from muster.controllers.scheduler_votes import Recovered, Votes, recovered
from muster.engine import events as ev
from muster.engine.answers import no_profile
from muster.engine.decisions import AnyDecision, Evict, Hold, Park, Place, Release
from muster.engine.facts import PodFacts, TaskGroupFacts
from muster.engine.machine import Engine
from muster.engine.plugin import overrides
from muster.engine.pods import Phase
from muster.engine.units import may_wait
from muster.engine.volumes import claims_to_provision
from muster.history.recording import Recorded, Renew
from muster.objects.status import ApiError, Raw
from muster.objects.time import Clock
from muster.store.backoff import Backoff, is_cancelled
from muster.store.cache import ObjectKey
from muster.store.contract import Store
from muster.store.events import EventRecorder
from muster.store.hub import InformerHub
from muster.store.informer import Informer
from muster.store.leases import Fence

log = logging.getLogger(__name__)

DECISIONS = Counter("muster_scheduler_decisions", "Decisions of the engine.", ["decision", "profile"])
STEP_S = Histogram(
    "muster_scheduler_step_seconds",
    "Time of one step of the engine: events taken in and units tried.",
    buckets=(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
)
REGISTRY.register(BANDWIDTH)
EVENTS_PENDING = Gauge("muster_scheduler_events_pending", "Events that wait for the engine.")

_BACKOFF = Backoff(base_s=1.0, max_s=60.0)
_LATE_S = 0.01
"""Between two looks at a time that has passed: a plugin that names the same one again must not keep everyone busy."""
_REST_S_MAX = 0.1
_IDLE_S = 0.0001
"""A turn of the loop that is over sooner had nothing in it."""
_STOP_S = 10.0
"""How long a run that failed lets bindings under way come to an end, before another run begins."""


class Term:
    """One run, from the state of the caches to its end."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        store: Store,
        informers: Mapping[Kind, Informer],
        *,
        clock: Clock,
        recorder: EventRecorder | None,
        fence: Fence | None,
        renew: Renew | None = None,
    ) -> None:
        """`renew` makes an empty engine, for the next segment of the decision log."""
        self.limits = scheduler.limits
        self._is_sole = scheduler.is_sole
        self.engine = engine
        self._informers = dict(informers)
        self._clock = clock
        self._woken = asyncio.Event()
        self._pods, self._nodes = informers[PODS].cache, informers[NODES].cache
        self._shadows = _shadows(self.engine)
        self._store = store
        self._given_binders = scheduler.binders
        self._binders: dict[str, CustomBinder] = {}
        self._look_up_profiles()
        self._failures: dict[str, int] = {}
        """Bindings of a waiting pod that failed in a row, by uid."""
        self._timers: set[asyncio.TimerHandle] = set()
        self._recorded: Recorded | None = None
        if scheduler.history is not None and renew is not None:
            epoch, holder = (fence.epoch, fence.holder) if fence is not None else (0, scheduler.name)
            self._recorded = Recorded(engine, scheduler.history, renew, epoch=epoch, holder=holder)
        self._log_watch = LogWatch(recorder)
        self.feed = Feed(self._woken.set)
        self.binder = Binder(
            store,
            TOGETHER if store.is_atomic else ONE_BY_ONE,
            has_node=lambda node: ObjectKey("", node) in self._nodes,
            custom=self._binders,
            claims=self._claims_to_provision,
        )
        self.plans = Plans(
            store,
            self.binder,
            epoch=fence.epoch if fence is not None else 0,
            clock=clock,
            bound=self._bound,
            settled=self._settled,
        )
        self.votes = Votes(
            store,
            self.plans,
            clock=clock,
            put=self.feed.put,
            find=self._find,
            resource=self._task_resource,
            group=self._task_group,
        )
        self.feed.listeners[TASK_RESOURCES] = self.votes.seen
        self.board = Board(
            store,
            recorder=recorder,
            clock=clock,
            instance=fence.holder if fence is not None else scheduler.name,
            find=self._find,
            is_busy=lambda: len(self.binder) > 0,
            is_evicting=self._is_evicting,
        )
        self.evictor = Evictor(
            store,
            clock=clock,
            find=self.feed.waiting_keys.get,
            nominated=self.board.nominated,
            ended=self.board.preempted,
            failed=self._evict_failed,
        )

    @property
    def failing(self) -> Mapping[ObjectKey, str]:
        parts = (self.binder.failing, self.plans.failing, self.votes.failing, self.engine.state.faults)
        found = {ObjectKey("", key): why for part in parts for key, why in part.items()}
        if self._recorded is not None and self._recorded.trouble:
            found[ObjectKey("", "the decision log")] = self._recorded.trouble
        return found

    @property
    def is_idle(self) -> bool:
        under_way = (self.feed, self.binder, self.plans, self.votes, self.evictor)
        return not (self.engine.has_work or any(len(one) for one in under_way))

    # -- a run -----------------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Fill the engine from the caches, and take up the plans that were left."""
        BANDWIDTH.engine = self.engine
        placements = await self.plans.found()
        initial = self.feed.follow(self._informers)
        # Nothing is decided while it is incomplete.
        for chunk in _chunks(initial, self.limits.events_max):
            self._step(chunk, units_max=0)
            await asyncio.sleep(0)
        found = resumed(placements, self._find_named, lambda node: ObjectKey("", node) in self._nodes)
        plans = found
        if any(plan.held_until is not None for plan in found):
            plain, promised = recovered(found, placements, await self.votes.list_resources())
            plans = [*plain, *self._take_up(promised)]
        self._step([ev.Planned(p.unit, tuple((pod.uid, pod.node) for pod in p.pods)) for p in plans if p.pods], units_max=0)
        for plan in plans:
            self.plans.resume(self._accepted(plan))

    def _take_up(self, promised: Sequence[Recovered]) -> list[Resumed]:
        """Hold again what is still promised; what is left are plans to finish or to drop."""
        held = [one for one in promised if one.fate == "hold"]
        for one in promised:
            if one.fate in ("hold", "withdraw"):
                # Before the engine is told: it may ask to have it back at once.
                self.votes.resume(one, is_held=one.fate == "hold")
        events = [
            ev.Planned(p.unit, tuple((pod.uid, pod.node) for pod in p.pods), p.held_until) for p in (h.plan for h in held)
        ]
        self._step(events, units_max=0)
        for one in held:
            is_held = one.plan.unit in self.engine.holds and self._are_counted(one.plan)
            log.info("promise %s of %s was left: %s", one.plan.name, one.plan.unit, "held again" if is_held else "asked back")
            if not is_held:
                self.votes.release(one.plan.unit)
        finished = [one.plan for one in promised if one.fate == "finish"]
        dropped = [msgspec.structs.replace(one.plan, pods=()) for one in promised if one.fate == "drop"]
        return [*finished, *dropped]

    def _are_counted(self, plan: Resumed) -> bool:
        known = self.engine.state.pods
        return all((k := known.get(pod.uid)) is not None and k.node == pod.node for pod in plan.pods)

    def _accepted(self, plan: Resumed) -> Resumed:
        """The plan without what the engine did not count; nothing of it, if nothing is bound and so all could be undone."""
        known = self.engine.state.pods
        counted = tuple(pod for pod in plan.pods if (k := known.get(pod.uid)) is not None and k.node == pod.node)
        if len(counted) < len(plan.pods) and not plan.bound:
            for pod in counted:
                self.feed.put(ev.BindFailed(pod.uid, f"the plan {plan.name} can't be finished as it was made"))
            counted = ()
        log.info(
            "plan %s of %s was left: %d pods bound, %d to bind, %d lost",
            plan.name, plan.unit, plan.bound, len(counted), len(plan.pods) - len(counted) + len(plan.lost),
        )  # fmt: skip
        return msgspec.structs.replace(plan, pods=counted)

    async def run(self, hub: InformerHub, missing: Sequence[Kind], *besides: Coroutine[Any, Any, None]) -> None:
        """Until cancelled. `besides` is what else goes on during the term."""
        binding = asyncio.create_task(self.binder.run(), name="scheduler's bindings")
        tasks = [
            binding,
            asyncio.create_task(self._decide(), name="scheduler"),
            asyncio.create_task(self.board.run(), name="scheduler's reports"),
            asyncio.create_task(self._look_for(hub, list(missing)), name="scheduler's missing kinds"),
            *map(asyncio.create_task, besides),
        ]
        try:
            await asyncio.gather(*tasks)
        except Exception:
            if not is_cancelled():
                # The next run begins soon: what is still on its way to the store must be in it by then.
                self.binder.stop()
                await asyncio.wait([binding], timeout=_STOP_S)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        BANDWIDTH.engine = None
        if self._recorded is not None:
            self._recorded.finish()
        for timer in self._timers:
            timer.cancel()
        self.feed.close()
        self.board.close()
        await self.votes.close()
        await self.plans.close()
        await self.evictor.close()

    async def _decide(self) -> None:
        while True:
            await self._wait()
            events = self.feed.take(self.limits.events_max)
            has_room = len(self.binder) < self.limits.bindings_max
            started_s = asyncio.get_running_loop().time()
            self._step(events or [ev.Tick()], units_max=self.limits.units_max if has_room else 0)
            # Whoever was given something to do begins with it now.
            await _let_others_run(asyncio.get_running_loop().time() - started_s)

    async def _wait(self) -> None:
        """Until there are events, units that can be tried, or the time has come that the engine named."""
        self._woken.clear()
        if len(self.feed) or (self.engine.has_work and len(self.binder) < self.limits.bindings_max):
            return
        deadline = self.engine.next_deadline
        if deadline is None:
            await self._woken.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(deadline - self._clock(), _LATE_S)):
                await self._woken.wait()

    def _step(self, events: Sequence[ev.AnyEvent], *, units_max: int) -> None:
        self._take_note(events)
        loop = asyncio.get_running_loop()
        if self._recorded is not None and self._recorded.renew_if_due():
            self.engine = BANDWIDTH.engine = self._recorded.engine
            self._look_up_profiles()
        started_s = loop.time()
        decisions = (self._recorded or self.engine).step(events, self._clock(), units_max=units_max)
        STEP_S.observe(loop.time() - started_s)
        if self._recorded is not None:
            self._log_watch.look(self._recorded.trouble, is_recording=self._recorded.is_recording)
        tally: Tally[tuple[str, str]] = Tally()
        for decision in decisions:
            tally[type(decision).__name__, self._carry_out(decision)] += 1
        for (kind, profile), number in tally.items():
            DECISIONS.labels(kind, profile).inc(number)
        if self._is_sole:
            self._tell_unserved(events)
        self.board.keep_units(self.engine.verdicts, self.engine.holds)
        EVENTS_PENDING.set(len(self.feed))

    def _take_note(self, events: Sequence[ev.AnyEvent]) -> None:
        count(events)
        for event in events:
            if isinstance(event, ev.PodGone):
                self.board.forget(event.uid)
                self._failures.pop(event.uid, None)
            elif isinstance(event, ev.Configured):
                # Read by the engine in this very step; whether it changed what is in shadow is looked up after it.
                asyncio.get_running_loop().call_soon(self._look_up_profiles)

    def _tell_unserved(self, events: Sequence[ev.AnyEvent]) -> None:
        """Say on pods that name a scheduler that there is not that nobody will place them."""
        uids: Iterable[str] = [event.pod.metadata.uid for event in events if isinstance(event, ev.PodSeen)]
        if any(isinstance(event, ev.Configured) for event in events):
            uids = self.feed.waiting_keys
        known = self.engine.state.pods
        found = [p for uid in uids if (p := known.get(uid)) is not None and not p.is_ours and p.phase is Phase.WAITING]
        for pod in filter(may_wait, found):
            verdict = no_profile(pod.facts.spec.scheduler_name, self.engine.profiles, is_sole=True)
            self.board.unserved(verdict, self._keys_of([pod.uid]))

    def _look_up_profiles(self) -> None:
        """Which profiles bind nothing, what each is called by, and which plugins bind in their own way."""
        self._shadows = _shadows(self.engine)
        profiles = self.engine.profiles
        self._profile_names = {name: profile.name for name, profile in profiles.items()}
        plugins = {plugin.name: plugin for profile in profiles.values() for plugin in profile.plugins}
        self._binders.clear()
        for name, plugin in plugins.items():
            if overrides(plugin, "binder"):
                self._binders[name] = functools.partial(plugin.binder, self._store)
        self._binders.update(self._given_binders)

    async def _look_for(self, hub: InformerHub, missing: list[Kind]) -> None:
        """Kinds whose definitions are installed later are taken up then."""
        while missing:
            await asyncio.sleep(self.limits.missing_kinds_s)
            for kind in list(missing):
                with contextlib.suppress(ApiError):
                    informer = await open_informer(hub, kind)
                    missing.remove(kind)
                    await informer.wait_synced()
                    log.info("the scheduler now follows %s", kind)
                    self._informers[kind] = informer
                    for event in self.feed.follow({kind: informer}):
                        self.feed.put(event)

    # -- decisions -------------------------------------------------------------------------------------------------------

    def _carry_out(self, decision: AnyDecision) -> str:
        """Begin with it; the profile that it was made under."""
        match decision:
            case Place(unit=unit, pods=pods):
                profile = self._profile_of(pods[0].uid)
                if profile in self._shadows:
                    self.board.shadowed(pods)
                else:
                    self.board.placed(pods)
                    if self.votes.place(unit, pods):
                        pass  # its plan is there already, and is finished
                    elif len(pods) == 1 and not self.plans.is_writing(unit):
                        self.binder.add(pods, self._done)
                    else:
                        self.plans.start(unit, pods)
                return profile
            case Park(unit=unit, verdict=verdict, pods=uids):
                self.board.parked(unit, verdict, self._keys_of(uids))
                return self._profile_of(uids[0]) if uids else ""
            case Evict():
                profile = self._profile_of(decision.pod)
                if profile not in self._shadows:
                    self.evictor.start(decision)
                return profile
            case Hold(unit=unit, pods=pods, until=until, waiting_for=waiting_for):
                profile = self._profile_of(pods[0].uid) if pods else ""
                self.board.held(unit, pods, until, waiting_for)
                if decision.is_promised and profile not in self._shadows:
                    self.votes.hold(unit, pods, until)
                return profile
            case Release(unit=unit, reason=reason, message=message, pods=uids, is_asked=True):
                self.votes.ask_back(unit, message or str(reason))
                return self._profile_of(uids[0]) if uids else ""
            case Release(unit=unit, reason=reason, message=message, pods=uids):
                self.votes.release(unit)
                self.plans.cancel(unit, uids)
                self.board.released(reason, message, self._keys_of(uids))
                return self._profile_of(uids[0]) if uids else ""

    def _done(self, job: Job, outcome: Outcome) -> None:
        """What became of a pod that was decided on its own."""
        if outcome.is_bound:
            self._bound(job, outcome)
        elif outcome.error:
            self._give_back({job.pod.uid: outcome})

    def _bound(self, job: Job, _outcome: Outcome) -> None:
        self._failures.pop(job.pod.uid, None)
        self.feed.put(ev.Bound(job.pod.uid))
        self.board.bound(job.pod)

    def _settled(self, plan: Plan) -> None:
        for uid, message in (partly_bound(plan) or {}).items():
            pod = plan.outcomes[uid][0]
            self.board.tell(ObjectKey(pod.namespace, pod.name), uid, "PartlyBound", message)
        self._give_back({uid: outcome for uid, (_, outcome) in plan.outcomes.items() if outcome.error})
        self._woken.set()

    def _give_back(self, outcomes: Mapping[str, Outcome]) -> None:
        """Tell the engine of bindings that failed: at once the first time, later each time after it.

        A binding that is refused whatever is tried must not keep everyone busy. What waits here still counts on its node.
        """
        failures = max((self._failures.get(uid, 0) for uid in outcomes), default=0)
        failed = [ev.BindFailed(uid, outcome.error, outcome.is_final) for uid, outcome in outcomes.items()]
        for event in failed:
            self._failures[event.uid] = failures + 1
        if not failures or all(event.is_final for event in failed):
            self._put_all(failed)
            return

        def later() -> None:
            self._timers.discard(timer)
            self._put_all(failed)

        timer = asyncio.get_running_loop().call_later(_BACKOFF.delay_s(failures - 1, failed[0].uid), later)
        self._timers.add(timer)

    def _put_all(self, failed: Sequence[ev.BindFailed]) -> None:
        for event in failed:
            self.feed.put(event)

    def _is_evicting(self, uid: str) -> bool:
        return self.evictor.is_for(uid)

    def _evict_failed(self, uid: str, why: str) -> None:
        self.feed.put(ev.EvictFailed(uid, why))

    # -- looking things up -----------------------------------------------------------------------------------------------

    def _claims_to_provision(self, uid: str) -> Sequence[str]:
        state = self.engine.state
        pod = state.pods.get(uid)
        if pod is None or not pod.facts.spec.volumes:
            return ()
        return [name for _, name in claims_to_provision(pod.facts, state.claims, state.storage_classes)]

    def _profile_of(self, uid: str) -> str:
        """The name of the profile, whichever of its names the pod gives."""
        pod = self.engine.state.pods.get(uid)
        name = pod.facts.spec.scheduler_name if pod is not None else ""
        return self._profile_names.get(name, name)

    def _keys_of(self, uids: Iterable[str]) -> list[tuple[str, ObjectKey]]:
        keys = self.feed.waiting_keys
        return [(uid, keys[uid]) for uid in uids if uid in keys]

    def _task_resource(self, key: ObjectKey) -> Raw | None:
        informer = self._informers.get(TASK_RESOURCES)
        cached = informer.cache.get(key) if informer is not None else None
        return cached.raw if cached is not None else None

    def _task_group(self, name: str) -> TaskGroupFacts | None:
        informer = self._informers.get(TASK_GROUPS)
        cached = informer.cache.get(ObjectKey("", name)) if informer is not None else None
        return cached.view(TaskGroupFacts) if cached is not None else None

    def _find(self, key: ObjectKey) -> PodFacts | None:
        cached = self._pods.get(key)
        return cached.view(PodFacts) if cached is not None else None

    def _find_named(self, namespace: str, name: str) -> PodFacts | None:
        return self._find(ObjectKey(namespace, name))


async def _let_others_run(took_s: float) -> None:
    """Those who share the loop get as long as the step took, as far as they have something to do.

    A step costs what all that waits costs, whatever few events it is about. So many short ones in a row would leave nothing for
    those who bring the events; meanwhile more come in, and the next step takes them together.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + min(took_s, _REST_S_MAX)
    while True:
        began_s = loop.time()
        await asyncio.sleep(0)
        now_s = loop.time()
        if now_s >= until_s or now_s - began_s < _IDLE_S:
            return


def _shadows(engine: Engine) -> frozenset[str]:
    """Names of profiles that bind nothing."""
    return frozenset(name for name, profile in engine.profiles.items() if profile.is_shadow)


def _chunks(events: Iterator[ev.AnyEvent], length: int) -> Iterator[list[ev.AnyEvent]]:
    chunk: list[ev.AnyEvent] = []
    for event in events:
        chunk.append(event)
        if len(chunk) >= length:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
