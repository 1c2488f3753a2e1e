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
from muster.engine.asking import PluginFault
from muster.engine.books import apply_book, gang_of
from muster.engine.cycle import Cycle, Held, uids_of
from muster.engine.decisions import AnyDecision, Park, Place, Release
from muster.engine.evaluate import Evaluator
from muster.engine.explain import said_anew
from muster.engine.facts import PodFacts
from muster.engine.placing import Placed
from muster.engine.plugin import Scope, Wake
from muster.engine.pods import Phase, PodRecord
from muster.engine.profile import Profile
from muster.engine.queue import Waiting
from muster.engine.state import State
from muster.engine.units import GANG_MIN, POD_GROUP_MIN, Unit, gang_unit, is_gang, single_unit, unit_id_of
from muster.engine.waking import fits_at, wake_for_node
from muster.objects.reasons import Reason, Verdict

Configure = Callable[[Mapping[str, object]], Sequence[Profile]]


class Engine:
    def __init__(self, profiles: Sequence[Profile], *, configure: Configure | None = None) -> None:
        """A profile serves the pods that name it (`schedulerName`). `configure` makes profiles of the document in a
        `Configured` event."""
        self.state = State()
        self.waiting = Waiting()
        self.holds: dict[str, Held] = {}
        self.verdicts: dict[str, Verdict] = {}
        """The last verdict of each waiting unit."""
        self._configure = configure
        self._cycles: dict[str, Cycle] = {}
        self._distinct: list[Cycle] = []
        """Each cycle once: a profile may have several names."""
        self._gangs: dict[str, dict[str, PodRecord]] = {}
        self._changed_gangs: dict[str, None] = {}
        self._use(profiles)

    # -- the door --------------------------------------------------------------------------------------------------------

    def step(self, events: Sequence[ev.AnyEvent], now: float, *, units_max: int | None = None) -> list[AnyDecision]:
        """Take in `events`, then decide. `now` never goes back."""
        state = self.state
        has_time_passed = now > state.now
        state.now = now = max(now, state.now)
        decisions: list[AnyDecision] = []
        if has_time_passed:
            self._take_in(ev.Tick(), decisions)  # plugins notice what time alone has changed before anything is decided
        for event in events:
            self._take_in(event, decisions)
        state.flush_nodes()
        self._expire(now, decisions)
        self._settle_gangs(decisions)
        self._settle()
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
        times = [held.until for held in self.holds.values()]
        looks = [self.state.tell(plugin, "next_look") for plugin in self.state.observers]
        return min([*times, *(t for t in (self.waiting.next_retry, *looks) if t is not None)], default=None)

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
        choosers = [p for cycle in self._distinct for p in cycle.profile.at["next_unit"]]
        left = units_max if units_max is not None else -1
        while left:
            unit = self._next(choosers, now) if choosers else self.waiting.pop()
            if unit is None:
                # What was placed or given back on the way may help others that wait.
                if not self.state.freed and not self.state.woken:
                    break
                self._settle()
                if not self.waiting.has_active:
                    break
                for cycle in self._distinct:
                    cycle.begin()
                continue
            left -= 1
            for decision in self._cycles[unit.schedule_as].attempt(unit, now):
                if isinstance(decision, Park):
                    if said_anew(self.verdicts.get(unit.id), decision.verdict):
                        decisions.append(decision)
                    self.verdicts[unit.id] = decision.verdict
                else:
                    decisions.append(decision)
                self._note_gang(decision, unit)
            if unit.id not in self.waiting.parked:
                self.verdicts.pop(unit.id, None)
            self._spread_touches()
            if self._changed_gangs:
                self._settle_gangs(decisions)

    def _note_gang(self, decision: AnyDecision, unit: Unit) -> None:
        """A gang that had to yield, or was placed in part, is made anew: who came meanwhile, or is left, waits with it."""
        is_part = isinstance(decision, Place) and len(decision.pods) < len(unit.pods)
        if (is_part or isinstance(decision, Release)) and is_gang(decision.unit):
            self._changed_gangs[decision.unit] = None

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
        for slot in sorted(freed):
            if not waiting.parked:
                break
            wake_for_node(slot, state, waiting, self._cycles)

    def _spread_touches(self) -> None:
        touched = self.state.touched
        if touched:
            version = self.state.nodes.version
            for cycle in self._distinct:
                cycle.evaluator.touch_all(touched, version)
            self.state.touched = {}

    # -- events ----------------------------------------------------------------------------------------------------------

    def _take_in(self, event: ev.AnyEvent, decisions: list[AnyDecision]) -> None:
        """Apply the event. One that can't be is left out and noted: an object that stopped the engine would stop it again
        after every restart, for everybody."""
        try:
            self._apply(event, decisions)
        except Exception as error:  # noqa: BLE001 - nobody foresaw it
            self.state.note_fault(_subject(event), f"{type(event).__name__}: {type(error).__name__}: {error}")

    def _apply(self, event: ev.AnyEvent, decisions: list[AnyDecision]) -> None:
        state = self.state
        if isinstance(event, ev.NodeSeen | ev.NodeGone):
            state.apply_node(event)
            return
        if state.has_unflushed_nodes:
            state.flush_nodes()
        match event:
            case ev.PodSeen(pod=pod):
                self._see(pod, decisions)
            case ev.PodGone(uid=uid):
                self._remove(uid, decisions)
            case ev.BindFailed():
                self._bind_failed(event, decisions)
            case ev.Bound(uid=uid):
                self._bound(uid)
            case ev.Planned():
                self._planned(event, decisions)
            case ev.EvictFailed(uid=uid):
                self._evict_failed(uid)
            case ev.Permitted():
                self._permitted(event, decisions)
            case ev.Denied(unit=unit, message=message):
                self._release(unit, Reason.PARTY_NOT_RESERVED, message, decisions)
            case ev.Ranked(order=order):
                self.waiting.rank(order)
            case ev.Retry(units=units):
                self.waiting.wake_all(units or None)
            case ev.Configured(configuration=document):
                if self._configure is not None:
                    profiles = self._configure(document)
                    self._leave_holds(profiles, decisions)
                    self._use(profiles)
            case ev.PodGroupSeen() | ev.PodGroupGone():
                apply_book(event, state)
                self._changed_gangs[gang_of(event)] = None
            case _:
                apply_book(event, state)
        if not isinstance(event, ev.PodSeen | ev.PodGone | ev.Bound):
            for observer in state.observers:
                slots = state.tell(observer, "event", event) or ()
                if slots and observer.scope is Scope.NODE:
                    # What it said about the nodes themselves is asked again, as if they had been described anew.
                    state.nodes.version += 1
                for slot in slots:
                    state.touched[slot] = None
                    state.freed[slot] = None

    def _see(self, facts: PodFacts, decisions: list[AnyDecision]) -> None:
        known = self.state.pods.get(facts.metadata.uid)
        was_waiting = known is None or (known.phase is Phase.WAITING)
        could_wait = known is None or _may_wait(known)
        shape = known.shape if known is not None else None
        said = _gang_minimum(known.facts) if known is not None else ()
        pod = self.state.see_pod(facts)
        if known is None:
            pod.unit = unit_id_of(pod)
            pod.is_ours = facts.spec.scheduler_name in self._cycles
        if not pod.is_ours:
            return
        if is_gang(pod.unit):
            if (
                known is None
                or not was_waiting
                or pod.phase is not Phase.WAITING
                or pod.shape is not shape
                or not _may_wait(pod)
                or not could_wait
                or said != _gang_minimum(facts)
            ):
                self._gangs.setdefault(pod.unit, {})[pod.uid] = pod
                self._changed_gangs[pod.unit] = None
                if pod.phase is Phase.BOUND or not _may_wait(pod):
                    self.state.withdraw(pod.uid, settled_on=pod.node)
            return
        if pod.phase is Phase.BOUND or not _may_wait(pod):
            if known is not None:
                self._forget_waiting(pod, decisions)
        elif pod.phase is Phase.WAITING and (not self._is_waiting(pod) or pod.shape is not shape):
            self.waiting.add(single_unit(pod))

    def _is_waiting(self, pod: PodRecord) -> bool:
        """Whether the unit of that name is this very pod: another of the same name may have come before this one went."""
        unit = self.waiting.units.get(pod.unit)
        return unit is not None and pod.uid in unit.pods

    def _forget_waiting(self, pod: PodRecord, decisions: list[AnyDecision]) -> None:
        """The pod needs no node any more: bound, ending, finished or gone."""
        if self._is_waiting(pod):
            self.waiting.remove(pod.unit)
        held = self.holds.get(pod.unit)
        if held is not None and pod.uid in held.unit.pods:
            self._give_up_hold(pod.unit, Reason.RESERVATION_EXPIRED, "its pod needs no node any more", decisions)
        if pod.unit not in self.waiting.units:
            self.verdicts.pop(pod.unit, None)
        self.state.withdraw(pod.uid, settled_on=pod.node)

    def _remove(self, uid: str, decisions: list[AnyDecision]) -> None:
        pod = self.state.remove_pod(uid)
        if pod is None:
            return
        if is_gang(pod.unit) and pod.unit in self._gangs:
            self._gangs[pod.unit].pop(uid, None)
            self._changed_gangs[pod.unit] = None
            self.state.withdraw(uid)
        elif pod.is_ours:
            self._forget_waiting(pod, decisions)

    def _settle_gangs(self, decisions: list[AnyDecision]) -> None:
        """Make the units of gangs anew whose members changed."""
        changed, self._changed_gangs = self._changed_gangs, {}
        for unit_id in changed:
            try:
                self._settle_gang(unit_id, decisions)
            except Exception as error:  # noqa: BLE001 - as in `_take_in`
                self.waiting.remove(unit_id)
                self.state.note_fault(unit_id, f"{type(error).__name__}: {error}")

    def _settle_gang(self, unit_id: str, decisions: list[AnyDecision]) -> None:
        members = self._gangs.get(unit_id, {})
        held = self.holds.get(unit_id)
        if held is not None and not all(one.pod.uid in members and _may_wait(one.pod) for one in held.placed):
            self._give_up_hold(unit_id, Reason.GANG_INCOMPLETE, "a member that was held for is gone", decisions)
        _, namespace, name = unit_id.split("/", 2)
        live = [pod for pod in members.values() if pod.phase is not Phase.WAITING or _may_wait(pod)]
        unit = gang_unit(unit_id, live, self.state.groups.get((namespace, name)))
        if unit is None or unit_id in self.holds:
            self.waiting.remove(unit_id)
            if unit is None:
                self.verdicts.pop(unit_id, None)
        else:
            self.waiting.add(unit)
        if not members:
            self._gangs.pop(unit_id, None)

    # -- what became of decisions ----------------------------------------------------------------------------------------

    def _bound(self, uid: str) -> None:
        pod = self.state.pods.get(uid)
        if pod is not None and pod.phase is Phase.ASSUMED:
            pod.phase = Phase.BOUND
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
        if event.is_final or not _may_wait(pod):
            return
        if is_gang(pod.unit):
            self._changed_gangs[pod.unit] = None
        elif pod.is_ours:
            self.waiting.add(single_unit(pod))

    def _planned(self, event: ev.Planned, decisions: list[AnyDecision]) -> None:
        lost: list[str] = []
        for uid, node in event.pods:
            pod = self.state.pods.get(uid)
            if pod is None or pod.phase is not Phase.WAITING:
                continue
            self._spread_touches()
            slot = self.state.nodes.slots.get(node)
            if slot is None or not _may_wait(pod) or not fits_at(slot, pod.shape, self._cycles):
                lost.append(uid)
                continue
            self.waiting.remove(pod.unit)
            self.state.assume(pod, node)
            if is_gang(pod.unit):
                self._changed_gangs[pod.unit] = None
        if lost:
            decisions.append(Release(event.unit, Reason.BINDING_FAILED, "does not fit as planned any more", tuple(lost)))

    def _evict_failed(self, uid: str) -> None:
        pod = self.state.pods.get(uid)
        if pod is None:
            return
        self.state.mark_victim(pod, False)
        for nominated, (node, waiter) in list(self.state.nominations.items()):
            if node == pod.node:
                self.state.withdraw(nominated)
                self.waiting.wake_all((waiter.unit,))

    # -- holds -----------------------------------------------------------------------------------------------------------

    def _permitted(self, event: ev.Permitted, decisions: list[AnyDecision]) -> None:
        held = self.holds.get(event.unit)
        if held is None:
            return
        held.waiting_for.discard(event.party)
        if event.party == "" or not held.waiting_for:
            try:
                place = self._cycles[held.unit.schedule_as].place(held.unit, held.placed)
            except PluginFault as fault:
                self._release(event.unit, Reason.PLUGIN_ERROR, str(fault), decisions)
                return
            del self.holds[event.unit]
            decisions.append(place)

    def _expire(self, now: float, decisions: list[AnyDecision]) -> None:
        for unit_id in [unit_id for unit_id, held in self.holds.items() if held.until <= now]:
            self._release(unit_id, Reason.RESERVATION_EXPIRED, "no permit came in time", decisions)
        slots = self.state.nodes.slots
        for unit_id in [
            unit_id for unit_id, held in self.holds.items() if any(one.pod.node not in slots for one in held.placed)
        ]:
            self._release(unit_id, Reason.RESERVATION_EXPIRED, "a node that it held room on is gone", decisions)

    def _release(self, unit_id: str, reason: Reason, message: str, decisions: list[AnyDecision]) -> None:
        """Give up what the unit holds, and let it try again."""
        held = self._give_up_hold(unit_id, reason, message, decisions)
        if held is not None and is_gang(unit_id):
            self._changed_gangs[unit_id] = None  # others may have come while it was held
        elif held is not None:
            self.waiting.add(held.unit)

    def _give_up_hold(self, unit_id: str, reason: Reason, message: str, decisions: list[AnyDecision]) -> Held | None:
        held = self.holds.pop(unit_id, None)
        if held is not None:
            self._cycles[held.unit.schedule_as].give_back(held.placed)
            decisions.append(Release(unit_id, reason, message, uids_of(held.placed)))
        return held

    # -- configuration ---------------------------------------------------------------------------------------------------

    def _leave_holds(self, profiles: Sequence[Profile], decisions: list[AnyDecision]) -> None:
        """Give up what units hold whose profile goes: nobody would place them."""
        names = {name for profile in profiles for name in profile.names}
        for unit_id in [unit_id for unit_id, held in self.holds.items() if held.unit.schedule_as not in names]:
            self._release(unit_id, Reason.RESERVATION_EXPIRED, "the profile that placed it is gone", decisions)

    def _use(self, profiles: Sequence[Profile]) -> None:
        """Go over to other profiles; whatever waits is tried again under them."""
        for cycle in self._distinct:
            cycle.profile.detach(self.state)
            cycle.evaluator.close()
        self._cycles, self._distinct = {}, []
        for profile in profiles:
            profile.attach(self.state)
            evaluator = Evaluator(profile, self.state, rows_max=profile.cached_shapes_max)
            cycle = Cycle(profile, self.state, evaluator, self.waiting, self.holds)
            self._distinct.append(cycle)
            for name in profile.names:
                self._cycles[name] = cycle
        for held in self.holds.values():
            held.profile = self._cycles[held.unit.schedule_as].profile
        self._adopt()

    def _adopt(self) -> None:
        """Find again whose pods are ours."""
        for pod in self.state.pods.values():
            pod.is_ours = pod.facts.spec.scheduler_name in self._cycles
            if pod.phase is Phase.WAITING:
                # Other transformers, and other annotations that tell shapes apart.
                self.state.replace_waiting(pod, pod.seen)
                if not pod.is_ours or not _may_wait(pod):
                    self.waiting.remove(pod.unit)
                    self.verdicts.pop(pod.unit, None)
                    self.state.withdraw(pod.uid)
                    if not pod.is_ours and pod.uid in self._gangs.get(pod.unit, {}):
                        del self._gangs[pod.unit][pod.uid]
                        self._changed_gangs[pod.unit] = None
                elif is_gang(pod.unit):
                    self._gangs.setdefault(pod.unit, {})[pod.uid] = pod
                    self._changed_gangs[pod.unit] = None
                else:
                    self.waiting.add(single_unit(pod))


def _may_wait(pod: PodRecord) -> bool:
    """Whether the pod is to be placed at all: alive, and let through its gates."""
    return not pod.is_ending and not pod.facts.spec.scheduling_gates and not pod.facts.is_finished


def _gang_minimum(facts: PodFacts) -> tuple[str | None, ...]:
    """What the pod says of how many must start together."""
    meta = facts.metadata
    return meta.annotations.get(GANG_MIN), meta.labels.get(POD_GROUP_MIN)


def _subject(event: ev.AnyEvent) -> str:
    """What the event is about, for people."""
    about = getattr(event, event.__struct_fields__[0], None) if event.__struct_fields__ else None
    meta = getattr(about, "metadata", None)
    return f"{meta.namespace}/{meta.name}".strip("/") if meta is not None else str(about)[:100]
