"""The engine: `step(events, now) -> decisions`. The only door; nothing goes in or comes out another way.

A step takes the events in, in their order, wakes whoever they could help, and then tries units in order until none is active or
`units_max` have been tried. `has_work` says that more could be tried at once, `next_deadline` when time alone will change
something; otherwise nothing happens before the next event.

Pure and single-threaded: no clock, no randomness, no I/O. Two engines that are fed the same steps decide the same, to the byte.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from muster.engine import events as ev
from muster.engine.cycle import Cycle, Held
from muster.engine.decisions import AnyDecision, Park, Release
from muster.engine.evaluate import Evaluator
from muster.engine.explain import said_anew
from muster.engine.facts import PodFacts
from muster.engine.placing import Placed
from muster.engine.plugin import Scope, Wake
from muster.engine.pods import Phase, PodRecord
from muster.engine.profile import Profile
from muster.engine.queue import Waiting
from muster.engine.shapes import Shape
from muster.engine.state import State
from muster.engine.units import Unit, gang_unit, is_gang, single_unit, unit_id_of
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
            self._apply(ev.Tick(), decisions)  # plugins notice what time alone has changed before anything is decided
        for event in events:
            self._apply(event, decisions)
        state.flush_nodes()
        self._settle_gangs()
        self._expire(now, decisions)
        self._settle()
        self._decide(now, units_max, decisions)
        return decisions

    @property
    def has_work(self) -> bool:
        return self.waiting.has_active

    @property
    def next_deadline(self) -> float | None:
        """When a `Tick` is needed even if nothing happens."""
        times = [held.until for held in self.holds.values()]
        looks = [plugin.next_look() for plugin in self.state.observers]
        return min([*times, *(t for t in (self.waiting.next_retry, *looks) if t is not None)], default=None)

    @property
    def profiles(self) -> dict[str, Profile]:
        return {name: cycle.profile for name, cycle in self._cycles.items()}

    def evaluator(self, profile: str) -> Evaluator:
        """For questions about work that is not there (`explain`)."""
        return self._cycles[profile].evaluator

    # -- deciding --------------------------------------------------------------------------------------------------------

    def _decide(self, now: float, units_max: int | None, decisions: list[AnyDecision]) -> None:
        for cycle in self._cycles.values():
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
                continue
            left -= 1
            made = self._cycles[unit.schedule_as].attempt(unit, now)
            for decision in made:
                if isinstance(decision, Park):
                    if said_anew(self.verdicts.get(unit.id), decision.verdict):
                        decisions.append(decision)
                    self.verdicts[unit.id] = decision.verdict
                else:
                    decisions.append(decision)
            if unit.id not in self.waiting.parked:
                self.verdicts.pop(unit.id, None)
            self._spread_touches()

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
            fits, room = functools.partial(self._fits_at, slot), functools.partial(self._room, slot)
            waiting.wake_for(state.nodes.free[:, slot], fits, room)

    def _fits_at(self, slot: int, shape: Shape) -> bool:
        cycle = self._cycles.get(shape.spec.scheduler_name)
        return cycle is not None and cycle.evaluator.fits_at(shape, slot)

    def _room(self, slot: int, shape: Shape) -> int:
        """How many pods of the shape the node's free amounts cover."""
        rows = np.flatnonzero(shape.request)
        return int((self.state.nodes.free[rows, slot] // shape.request[rows]).min()) if len(rows) else 1

    def _spread_touches(self) -> None:
        touched = self.state.touched
        if touched:
            version = self.state.nodes.version
            for cycle in self._distinct:
                cycle.evaluator.touch_all(touched, version)
            self.state.touched = {}

    # -- events ----------------------------------------------------------------------------------------------------------

    def _apply(self, event: ev.AnyEvent, decisions: list[AnyDecision]) -> None:
        state = self.state
        if isinstance(event, ev.NodeSeen | ev.NodeGone):
            state.apply_node(event)
            return
        if state.has_unflushed_nodes:
            state.flush_nodes()
        match event:
            case ev.PodSeen(pod=pod):
                self._see(pod)
            case ev.PodGone(uid=uid):
                self._remove(uid)
            case ev.BindFailed():
                self._bind_failed(event, decisions)
            case ev.Bound(uid=uid):
                self._bound(uid)
            case ev.Planned():
                self._planned(event)
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
                    self._use(self._configure(document))
            case _:
                self._apply_book(event)
        if not isinstance(event, ev.PodSeen | ev.PodGone | ev.Bound):
            for observer in state.observers:
                slots = observer.event(event) or ()
                if slots and observer.scope is Scope.NODE:
                    # What it said about the nodes themselves is asked again, as if they had been described anew.
                    state.nodes.version += 1
                for slot in slots:
                    state.touched[slot] = None
                    state.freed[slot] = None

    def _apply_book(self, event: ev.AnyEvent) -> None:
        """The smaller kinds are kept by name; who depends on them is woken."""
        books = self.state
        match event:
            case ev.NodeMetricSeen(metric=m):
                books.keep(books.metrics, m.metadata.name, m, Wake.METRIC)
            case ev.NodeMetricGone(name=name):
                books.keep(books.metrics, name, None, Wake.METRIC)
            case ev.BudgetSeen(budget=b):
                books.keep(books.budgets, (b.metadata.namespace, b.metadata.name), b, Wake.POD)
            case ev.BudgetGone(namespace=namespace, name=name):
                books.keep(books.budgets, (namespace, name), None, Wake.POD)
            case ev.ClaimSeen(claim=c):
                books.keep(books.claims, (c.metadata.namespace, c.metadata.name), c, Wake.VOLUME)
            case ev.ClaimGone(namespace=namespace, name=name):
                books.keep(books.claims, (namespace, name), None, Wake.VOLUME)
            case ev.VolumeSeen(volume=v):
                books.keep(books.volumes, v.metadata.name, v, Wake.VOLUME)
            case ev.VolumeGone(name=name):
                books.keep(books.volumes, name, None, Wake.VOLUME)
            case ev.StorageClassSeen(storage_class=s):
                books.keep(books.storage_classes, s.metadata.name, s, Wake.VOLUME)
            case ev.StorageClassGone(name=name):
                books.keep(books.storage_classes, name, None, Wake.VOLUME)
            case ev.NamespaceSeen(namespace=n):
                books.keep(books.namespaces, n.metadata.name, n, Wake.NAMESPACE)
            case ev.NamespaceGone(name=name):
                books.keep(books.namespaces, name, None, Wake.NAMESPACE)
            case ev.PoolSeen(pool=p):
                books.keep(books.pools, p.metadata.name, p, Wake.NODE)
            case ev.PoolGone(name=name):
                books.keep(books.pools, name, None, Wake.NODE)
            case ev.LinkSeen(link=link):
                books.keep(books.links, link.metadata.name, link, Wake.LINK)
            case ev.LinkGone(name=name):
                books.keep(books.links, name, None, Wake.LINK)
            case ev.PodGroupSeen(group=g):
                books.keep(books.groups, (g.metadata.namespace, g.metadata.name), g, Wake.GROUP)
                self._changed_gangs[f"PodGroup/{g.metadata.namespace}/{g.metadata.name}"] = None
            case ev.PodGroupGone(namespace=namespace, name=name):
                books.keep(books.groups, (namespace, name), None, Wake.GROUP)
                self._changed_gangs[f"PodGroup/{namespace}/{name}"] = None
            case _:
                pass

    def _see(self, facts: PodFacts) -> None:
        known = self.state.pods.get(facts.metadata.uid)
        was_waiting = known is None or (known.phase is Phase.WAITING)
        shape = known.shape if known is not None else None
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
            ):
                self._gangs.setdefault(pod.unit, {})[pod.uid] = pod
                self._changed_gangs[pod.unit] = None
            return
        if pod.phase is not Phase.WAITING:
            if known is not None:
                self._forget_waiting(pod)
        elif not _may_wait(pod):
            self._forget_waiting(pod)
        elif pod.unit not in self.waiting.units or pod.shape is not shape:
            self.waiting.add(single_unit(pod))

    def _forget_waiting(self, pod: PodRecord) -> None:
        """The pod needs no node any more: bound, ending, finished or gone."""
        if pod.unit in self.waiting.units:
            self.waiting.remove(pod.unit)
        if pod.unit in self.holds:
            self._give_back_hold(pod.unit)
        self.verdicts.pop(pod.unit, None)
        for cycle in self._distinct:
            cycle.evaluator.nominations.pop(pod.uid, None)

    def _remove(self, uid: str) -> None:
        pod = self.state.remove_pod(uid)
        if pod is None:
            return
        if is_gang(pod.unit) and pod.unit in self._gangs:
            self._gangs[pod.unit].pop(uid, None)
            self._changed_gangs[pod.unit] = None
            for cycle in self._distinct:
                cycle.evaluator.nominations.pop(uid, None)
        elif pod.is_ours:
            self._forget_waiting(pod)

    def _settle_gangs(self) -> None:
        """Make the units of gangs anew whose members changed."""
        changed, self._changed_gangs = self._changed_gangs, {}
        for unit_id in changed:
            members = self._gangs.get(unit_id, {})
            if unit_id in self.holds:
                self._drop_hold_without_members(unit_id)
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

    def _drop_hold_without_members(self, unit_id: str) -> None:
        held = self.holds[unit_id]
        if any(one.pod.uid not in self.state.pods for one in held.placed):
            self._give_back_hold(unit_id)

    # -- what became of decisions ----------------------------------------------------------------------------------------

    def _bound(self, uid: str) -> None:
        pod = self.state.pods.get(uid)
        if pod is not None and pod.phase is Phase.ASSUMED:
            pod.phase = Phase.BOUND
            cycle = self._cycles.get(pod.facts.spec.scheduler_name)
            for plugin in cycle.profile.at["post_bind"] if cycle is not None else ():
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

    def _planned(self, event: ev.Planned) -> None:
        for uid, node in event.pods:
            pod = self.state.pods.get(uid)
            if pod is None or pod.phase is not Phase.WAITING or node not in self.state.nodes.slots or not _may_wait(pod):
                continue
            self.waiting.remove(pod.unit)
            self.state.assume(pod, node)
            if is_gang(pod.unit):
                self._changed_gangs[pod.unit] = None

    def _evict_failed(self, uid: str) -> None:
        pod = self.state.pods.get(uid)
        if pod is None:
            return
        self.state.mark_victim(pod, False)
        for cycle in self._distinct:
            nominations = cycle.evaluator.nominations
            for nominated in [n for n, (node, _) in nominations.items() if node == pod.node]:
                _, waiter = nominations.pop(nominated)
                self.waiting.wake_all((waiter.unit,))

    # -- holds -----------------------------------------------------------------------------------------------------------

    def _permitted(self, event: ev.Permitted, decisions: list[AnyDecision]) -> None:
        held = self.holds.get(event.unit)
        if held is None:
            return
        held.waiting_for.discard(event.party)
        if event.party == "" or not held.waiting_for:
            del self.holds[event.unit]
            decisions.append(self._cycles[held.unit.schedule_as].place(held.unit, held.placed))

    def _expire(self, now: float, decisions: list[AnyDecision]) -> None:
        for unit_id in [unit_id for unit_id, held in self.holds.items() if held.until <= now]:
            self._release(unit_id, Reason.RESERVATION_EXPIRED, "no permit came in time", decisions)

    def _release(self, unit_id: str, reason: Reason, message: str, decisions: list[AnyDecision]) -> None:
        held = self._give_back_hold(unit_id)
        if held is not None:
            decisions.append(Release(unit_id, reason, message, tuple(one.pod.uid for one in held.placed)))
            self.waiting.add(held.unit)

    def _give_back_hold(self, unit_id: str) -> Held | None:
        held = self.holds.pop(unit_id, None)
        if held is not None:
            cycle = self._cycles.get(held.unit.schedule_as)
            if cycle is not None:
                cycle.give_back(held.placed)
        return held

    # -- configuration ---------------------------------------------------------------------------------------------------

    def _use(self, profiles: Sequence[Profile]) -> None:
        """Go over to other profiles; whatever waits is tried again under them."""
        kept: dict[str, tuple[str, PodRecord]] = {}
        for cycle in self._distinct:
            kept.update(cycle.evaluator.nominations)
            cycle.profile.detach(self.state)
            cycle.evaluator.close()
        self._cycles, self._distinct = {}, []
        for profile in profiles:
            profile.attach(self.state)
            evaluator = Evaluator(profile, self.state, rows_max=profile.cached_shapes_max)
            evaluator.nominations = dict(kept)
            cycle = Cycle(profile, self.state, evaluator, self.waiting, self.holds)
            self._distinct.append(cycle)
            for name in profile.names:
                self._cycles[name] = cycle
        self._adopt()

    def _adopt(self) -> None:
        """Find again whose pods are ours."""
        for pod in self.state.pods.values():
            pod.is_ours = pod.facts.spec.scheduler_name in self._cycles
            if pod.phase is Phase.WAITING:
                if not pod.is_ours or not _may_wait(pod):
                    self.waiting.remove(pod.unit)
                elif is_gang(pod.unit):
                    self._gangs.setdefault(pod.unit, {})[pod.uid] = pod
                    self._changed_gangs[pod.unit] = None
                else:
                    pod.shape = self.state.shapes.shape_of(pod.facts)
                    self.waiting.add(single_unit(pod))


def _may_wait(pod: PodRecord) -> bool:
    """Whether the pod is to be placed at all: alive, and let through its gates."""
    return not pod.is_ending and not pod.facts.spec.scheduling_gates and not pod.facts.is_finished
