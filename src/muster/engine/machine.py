"""The engine: `step(events, now) -> decisions`. The only door; nothing goes in or comes out another way.

A step takes the events in, in their order, wakes whoever they could help, and then tries units in order until none is active or
`units_max` have been tried. `has_work` says that more could be tried at once, `next_deadline` when time alone will change
something; otherwise nothing happens before the next event.

Pure and single-threaded: no clock, no randomness, no I/O. Two engines that are fed the same steps decide the same, to the byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.engine import events as ev
from muster.engine.books import apply_book
from muster.engine.cycle import Cycle
from muster.engine.decisions import AnyDecision, Hold, Park, Place, Release
from muster.engine.evaluate import Evaluator
from muster.engine.explain import said_anew
from muster.engine.holding import Held, HoldKind
from muster.engine.membership import Membership
from muster.engine.order import Order
from muster.engine.ordering import Guarded
from muster.engine.placing import Placed
from muster.engine.plugin import Plugin, Scope, Wake
from muster.engine.pods import Phase
from muster.engine.profile import Profile
from muster.engine.queue import Waiting
from muster.engine.releasing import Holds
from muster.engine.roster import Roster
from muster.engine.state import State
from muster.engine.units import Unit, is_shared, may_wait, single_unit
from muster.engine.waking import RoomInAll, fits_at, promised, wake_for_node, wake_wounders
from muster.objects.reasons import Reason, Verdict

Configure = Callable[[Mapping[str, object]], Sequence[Profile]]
_OF_NODES = (ev.NodeSeen, ev.NodeGone)
_OF_PODS = (ev.PodSeen, ev.PodGone, ev.Bound)
"""Listeners do not hear of these: there are many, and who wants to know follows pods."""
_TICK = ev.Tick()


class Engine:
    def __init__(
        self,
        profiles: Sequence[Profile],
        *,
        configure: Configure | None = None,
        order: Order | None = None,
        explains: bool = True,
    ) -> None:
        """A profile serves the pods that name it (`schedulerName`). `configure` makes profiles of the document in a
        `Configured` event. `order` ranks what waits; by priority, then age, without one. Without `explains` nobody is told why
        no node takes it: for simulations, which nobody asks."""
        self._explains = explains
        self.state = State()
        self.order = Guarded(order, self.state) if order is not None else None
        self.waiting = Waiting(self.order)
        self.members = Membership(self.state)
        self._holds = Holds(self.state, self.waiting, self.members, self._cycle_of)
        self.holds: dict[str, Held] = self._holds.held
        self.verdicts: dict[str, Verdict] = {}
        """The last verdict of each waiting unit."""
        self._roster = Roster(self.state, self.waiting, self.members, self._holds, self.verdicts, self._serves)
        self._configure = configure
        self.configuration: Mapping[str, object] | None = None
        """The document that the profiles in force come from, where one is known; for checkpoints."""
        self.left_over: list[AnyDecision] = []
        """Said by the next step, before anything else: what a restored engine could not keep."""
        self._cycles: dict[str, Cycle] = {}
        self._distinct: list[Cycle] = []
        """Each cycle once: a profile may have several names."""
        self._use(profiles)

    # -- the door --------------------------------------------------------------------------------------------------------

    def step(self, events: Sequence[ev.AnyEvent], now: float, *, units_max: int | None = None) -> list[AnyDecision]:
        """Take in `events`, then decide. `now` never goes back."""
        state = self.state
        has_time_passed = now > state.now
        state.now = now = max(now, state.now)
        decisions, self.left_over = self.left_over, []
        if has_time_passed:
            self._take_in(_TICK, decisions)  # plugins notice what time alone has changed before anything is decided
        for event in events:
            self.take_in(event, decisions)
        state.flush_nodes()
        if state.shapes.names.has_grown:
            self._roster.adopt()
        self._holds.expire(now, decisions)
        self._roster.settle(decisions)
        self._settle()
        self._wake_refused(now)
        self._decide(now, units_max, decisions)
        return decisions

    @property
    def has_work(self) -> bool:
        """Whether more could be tried at once: units are active, or the last step left open whom it could help."""
        is_open = bool(self.state.freed or self.state.woken)
        return self.waiting.has_active or (is_open and bool(self.waiting.parked))

    @property
    def next_deadline(self) -> float | None:
        """When a `Tick` is needed even if nothing happens."""
        looks = [self.state.tell(plugin, "next_look") for plugin in self.state.lookers]
        ranked = self.order.next_look() if self.order is not None else None
        times = (self._holds.next_deadline, self.waiting.next_retry, ranked, *looks)
        return min((time for time in times if time is not None), default=None)

    @property
    def profiles(self) -> dict[str, Profile]:
        return {name: cycle.profile for name, cycle in self._cycles.items()}

    def evaluator(self, profile: str) -> Evaluator:
        """For questions about work that is not there (`explain`)."""
        return self._cycles[profile].evaluator

    # -- deciding --------------------------------------------------------------------------------------------------------

    def _decide(self, now: float, units_max: int | None, decisions: list[AnyDecision]) -> None:
        for cycle in self._distinct:
            cycle.begin()
        self._rank(now)
        choosers = [p for cycle in self._distinct for p in cycle.profile.at["next_unit"]]
        left = units_max if units_max is not None else -1
        while left:
            unit = self._next(choosers, now) if choosers else self.waiting.pop()
            if unit is None:
                # What was placed or given back on the way may help others that wait, and so may the order.
                if self.state.freed or self.state.woken:
                    self._settle()
                self._wake_refused(now)
                if not self.waiting.has_active:
                    break
                for cycle in self._distinct:
                    cycle.begin()
                self._rank(now)
                continue
            left -= 1
            for decision in self._cycles[unit.schedule_as].attempt(unit, now):
                if isinstance(decision, Park):
                    if said_anew(self.verdicts.get(unit.id), decision.verdict):
                        decisions.append(decision)
                    self.verdicts[unit.id] = decision.verdict
                else:
                    decisions.append(decision)
                self._note_change(decision, unit)
            if unit.id not in self.waiting.parked:
                self.verdicts.pop(unit.id, None)
                if self.order is not None and unit.id not in self.waiting.units:
                    self.order.left(unit.id)
            self._spread_touches()
            if self.members.changed:
                self._roster.settle(decisions)

    def _note_change(self, decision: AnyDecision, unit: Unit) -> None:
        """A unit that had to yield, or was placed in part, is made anew: who came meanwhile, or is left, waits with it."""
        is_part = isinstance(decision, Place | Hold) and len(decision.pods) < len(unit.pods)
        is_part |= isinstance(decision, Place) and unit.keeps_s > 0
        is_back = isinstance(decision, Release) and not decision.is_asked
        if (is_part or is_back) and is_shared(decision.unit):
            self.members.changed[decision.unit] = None

    def _next(self, choosers: Sequence[Any], now: float) -> Unit | None:
        if not self.waiting.has_active:
            return None
        active = self.waiting.active()
        for plugin in choosers:
            chosen = None
            # A plugin that can't choose leaves the choice to the order.
            with contextlib.suppress(Exception):
                chosen = plugin.next_unit(active, now)
            if chosen is not None and (unit := self.waiting.take(chosen)) is not None:
                return unit
        return self.waiting.pop()

    def _rank(self, now: float) -> None:
        ranking = self.order.rank(now) if self.order is not None else None
        if ranking is not None:
            self.waiting.use(ranking)

    def _wake_refused(self, now: float) -> bool:
        """Wake whom the order lets go now; whether it was anybody."""
        if self.order is None or not self.waiting.parked:
            return False
        self._spread_touches()
        woken = self.order.wakes(now)
        self.waiting.forget_places()
        return self.waiting.wake_all(woken) > 0

    def _settle(self) -> None:
        """Pass on what the events touched, and wake the units that they could help."""
        self._spread_touches()
        state, waiting = self.state, self.waiting
        freed, state.freed = state.freed, {}
        woken, state.woken = state.woken, set()
        if not waiting.parked:
            return
        waiting.wake_by(woken - {Wake.NODE})
        waiting.wake_by((Wake.TIME,))
        waiting.wake_due(state.now)
        if not freed:
            return
        waiting.wake_by((Wake.ROOM,))
        kept, in_all = promised(state), RoomInAll(state)
        for slot in sorted(freed):
            if not waiting.parked:
                break
            wake_for_node(slot, state, waiting, self._cycles, kept, in_all)
            if self.holds:
                wake_wounders(slot, state, waiting, self._cycles, self.holds)

    def _spread_touches(self) -> None:
        touched = self.state.touched
        if touched:
            version = self.state.nodes.version
            for cycle in self._distinct:
                cycle.evaluator.touch_all(touched, version)
            self.state.touched = {}

    # -- events ----------------------------------------------------------------------------------------------------------

    def take_in(self, event: ev.AnyEvent, decisions: list[AnyDecision]) -> None:
        """For `step`, and for `checkpoint`, which fills an engine."""
        self._take_in(event, decisions)
        if self.order is not None:
            self.order.event(event)

    def _take_in(self, event: ev.AnyEvent, decisions: list[AnyDecision]) -> None:
        """Apply the event. One that can't be is left out and noted: an object that stopped the engine would stop it again
        after every restart, for everybody."""
        try:
            self._apply(event, decisions)
        except Exception as error:  # noqa: BLE001 - nobody foresaw it
            self.state.note_fault(_subject(event), f"{type(event).__name__}: {type(error).__name__}: {error}")

    def _apply(self, event: ev.AnyEvent, decisions: list[AnyDecision]) -> None:
        state = self.state
        if isinstance(event, _OF_NODES):
            state.apply_node(event)
            return
        if state.has_unflushed_nodes:
            state.flush_nodes()
        if isinstance(event, ev.Tick):
            self._tell(event, state.lookers)
            return
        match event:
            case ev.PodSeen(pod=pod):
                self._roster.see(pod, decisions)
            case ev.PodGone(uid=uid):
                self._roster.remove(uid, decisions)
            case ev.Bound(uid=uid):
                self._bound(uid)
            case ev.BindFailed():
                self._bind_failed(event, decisions)
            case ev.Planned():
                self._planned(event, decisions)
            case ev.EvictFailed(uid=uid):
                self._evict_failed(uid)
            case ev.Permitted():
                self._holds.permitted(event, decisions)
            case ev.Denied(unit=unit, message=message):
                self._holds.denied(unit, message, decisions)
            case ev.Ranked(order=order):
                self.waiting.rank(order)
            case ev.Retry(units=units):
                self.waiting.wake_all(units or None)
            case ev.Configured(configuration=document):
                if self._configure is not None:
                    profiles = self._configure(document)
                    self._holds.leave({name for profile in profiles for name in profile.names}, decisions)
                    self._use(profiles)
                    self.configuration = document
            case ev.PodGroupSeen(group=group):
                apply_book(event, state)
                self.members.group_changed(group.metadata.namespace, group.metadata.name)
            case ev.PodGroupGone(namespace=namespace, name=name):
                apply_book(event, state)
                self.members.group_changed(namespace, name)
            case ev.TaskGroupSeen() | ev.TaskGroupGone():
                self._roster.see_task_group(event, decisions)
            case _:
                apply_book(event, state)
        if not isinstance(event, _OF_PODS):
            self._tell(event, state.listeners)

    def _tell(self, event: ev.AnyEvent, observers: Sequence[Plugin]) -> None:
        state = self.state
        for observer in observers:
            slots = state.tell(observer, "event", event) or ()
            if slots and observer.scope is Scope.NODE:
                # What it said about the nodes themselves is asked again, as if they had been described anew.
                state.nodes.version += 1
            for slot in slots:
                state.touched[slot] = None
                state.freed[slot] = None

    # -- what became of decisions ----------------------------------------------------------------------------------------

    def _bound(self, uid: str) -> None:
        pod = self.state.pods.get(uid)
        if pod is not None and pod.phase is Phase.ASSUMED:
            pod.phase = Phase.BOUND
            if is_shared(pod.unit):
                self.members.note(pod)
            cycle = self._cycles.get(pod.facts.spec.scheduler_name)
            for plugin in cycle.profile.at["post_bind"] if cycle is not None else ():
                # Nothing is left to decide: a plugin that fails here fails alone.
                with contextlib.suppress(Exception):
                    plugin.post_bind(pod, pod.node)

    def _bind_failed(self, event: ev.BindFailed, decisions: list[AnyDecision]) -> None:
        pod = self.state.pods.get(event.uid)
        if pod is None or pod.phase is not Phase.ASSUMED:
            return
        cycle = self._cycles.get(pod.facts.spec.scheduler_name)
        slot = self.state.nodes.slots.get(pod.node, 0)
        if cycle is not None:
            cycle.give_back([Placed(pod, slot, 0)])
        else:
            self.state.forget(pod)
        decisions.append(Release(pod.unit, Reason.BINDING_FAILED, event.message, (pod.uid,)))
        if is_shared(pod.unit):
            self.members.changed[pod.unit] = None
        elif pod.is_ours and may_wait(pod) and not event.is_final:
            self.waiting.add(single_unit(pod))

    def _planned(self, event: ev.Planned, decisions: list[AnyDecision]) -> None:
        lost: list[str] = []
        found: list[Placed] = []
        for uid, node in event.pods:
            pod = self.state.pods.get(uid)
            if pod is None or pod.phase is not Phase.WAITING:
                continue
            self._spread_touches()
            slot = self.state.nodes.slots.get(node)
            if slot is None or not may_wait(pod) or not fits_at(slot, pod.shape, self._cycles):
                lost.append(uid)
                continue
            self.waiting.remove(pod.unit)
            self.state.assume(pod, node)
            found.append(Placed(pod, slot, 0))
            if is_shared(pod.unit):
                self.members.changed[pod.unit] = None
        is_whole = len(found) == len(event.pods) > 0
        if event.held_until is not None and is_whole and self._hold_again(event.unit, found, event.held_until):
            return
        if event.held_until is not None:
            # A promise is kept whole, or not at all.
            lost += [uid for uid, _ in event.pods if uid not in lost]
            for one in found:
                self.state.forget(one.pod)
        if lost:
            decisions.append(Release(event.unit, Reason.BINDING_FAILED, "does not fit as planned any more", tuple(lost)))

    def _hold_again(self, unit_id: str, placed: list[Placed], until: float) -> bool:
        """Hold a promise from before a restart; False when the pods are not members of that unit any more."""
        uids = {one.pod.uid for one in placed}
        unit = self.members.build(unit_id, uids)
        cycle = self._cycle_of(unit.schedule_as) if unit is not None else None
        if unit is None or cycle is None or not uids <= set(unit.pods) or unit_id in self.holds:
            return False
        waiting_for = {group.party for group in unit.groups if not group.controlled}
        self.holds[unit_id] = Held(unit, cycle.profile, placed, until, waiting_for, HoldKind.PROMISE)
        for one in placed:
            self.state.mark_held(one.pod, True)
        return True

    def _evict_failed(self, uid: str) -> None:
        pod = self.state.pods.get(uid)
        if pod is None:
            return
        self.state.mark_victim(pod, False)
        for nominated, (node, waiter) in list(self.state.nominations.items()):
            if node == pod.node:
                self.state.withdraw(nominated)
                self.waiting.wake_all((waiter.unit,))

    # -- configuration ---------------------------------------------------------------------------------------------------

    def _use(self, profiles: Sequence[Profile]) -> None:
        """Go over to other profiles; whatever waits is tried again under them."""
        for cycle in self._distinct:
            cycle.profile.detach(self.state)
            cycle.evaluator.close()
        self._cycles, self._distinct = {}, []
        for profile in profiles:
            profile.attach(self.state)
            if self.order is not None and self.order.plugin is not None:
                profile.join(self.order.plugin)
            evaluator = Evaluator(profile, self.state, rows_max=profile.cached_shapes_max)
            cycle = Cycle(profile, self.state, evaluator, self.waiting, self.holds, self.order, explains=self._explains)
            self._distinct.append(cycle)
            if self.order is not None:
                self.order.placing(profile.names, evaluator)
            for name in profile.names:
                self._cycles[name] = cycle
        for held in self.holds.values():
            cycle_or_none = self._cycle_of(held.unit.schedule_as)
            if cycle_or_none is not None:
                held.profile = cycle_or_none.profile
        self._roster.adopt()

    def _serves(self, profile: str) -> bool:
        return profile in self._cycles

    def _cycle_of(self, profile: str) -> Cycle | None:
        """Who places for the profile; for one that is gone, anybody, as what it promised must be kept."""
        return self._cycles.get(profile) or (self._distinct[0] if self._distinct else None)


def _subject(event: ev.AnyEvent) -> str:
    """What the event is about, for people."""
    about = getattr(event, event.__struct_fields__[0], None) if event.__struct_fields__ else None
    meta = getattr(about, "metadata", None)
    return f"{meta.namespace}/{meta.name}".strip("/") if meta is not None else str(about)[:100]
