"""The scheduling cycle: one unit, from "may be tried" to a decision. Read it top to bottom.

Pure: takes from the state and gives back, returns decisions, asks the plugins in the order of the profile. A plugin that fails
costs its unit this attempt, with a reason that names it, and nobody else anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from muster.engine.asking import PluginFault, guarded
from muster.engine.decisions import AnyDecision, Evict, Hold, Park, Place, PlacedPod, Release, Victim
from muster.engine.evaluate import Evaluator
from muster.engine.explain import explain_kept, explain_pod, explain_shortage, explain_sum
from muster.engine.holding import Held, HoldKind, Withdrawal, uids_of, wound
from muster.engine.order import Order
from muster.engine.placing import Placed, Shortage, place_some, place_unit
from muster.engine.plugin import Nomination, Patch, Plugin, Wake
from muster.engine.pods import Phase, PodRecord
from muster.engine.profile import Profile
from muster.engine.queue import Parked, Waiting
from muster.engine.state import State
from muster.engine.units import Unit, without
from muster.engine.vectors import vector_of
from muster.objects.labels import KoordinatorPod
from muster.objects.reasons import Reason, Verdict

RETRY_S = 60.0
"""After a plugin's fault the unit is tried again after so long, or when something changes."""
_AFTER_FAULT = frozenset(Wake) - {Wake.NODE, Wake.ROOM, Wake.TIME}
_WHEN_ROOM = frozenset({Wake.ROOM})
_BACKING_OFF = Verdict(
    reason=Reason.BACKING_OFF,
    message="not enough members found a place within the gang's waiting time, so all was given back; it is tried again soon",
)
_UNEXPLAINED = Verdict(reason=Reason.RESOURCES_INSUFFICIENT, message="no node takes it now; why is not worked out in this run")


class Cycle:
    """Tries units of one profile. `holds` is shared with the machine, which ends them."""

    def __init__(  # noqa: PLR0917 - the machine's parts, each once
        self,
        profile: Profile,
        state: State,
        evaluator: Evaluator,
        waiting: Waiting,
        holds: dict[str, Held],
        order: Order | None = None,
        *,
        explains: bool = True,
    ) -> None:
        """Without `explains` a unit that finds no room is not told why, which is most of the cost of finding none."""
        self._explains = explains
        self.profile = profile
        self.state = state
        self.evaluator = evaluator
        self.waiting = waiting
        self.holds = holds
        self._order = order
        self._reserve = profile.at["reserve"]
        self._permit = profile.at["permit"]
        self._pre_bind = profile.at["pre_bind"]
        self._bind = profile.at["bind"]
        self._resize = profile.at["resize"]
        self._prefilter = profile.at["prefilter"]
        # Room that the free amounts do not show (lent bandwidth) is announced by the plugin that knows of it.
        self._local_wakes = frozenset({wake for p in profile.local_filters for wake in p.wakes_on}) - {Wake.NODE}
        self._before = profile.at["before_prefilter"]
        self._is_simple = not (self._reserve or self._permit or self._pre_bind or self._bind or self._resize)
        self._explained: dict[int, Verdict] = {}
        self._hopeless: set[tuple[int, int]] = set()

    def begin(self) -> None:
        """Things changed: what was found out before may not hold any more."""
        self._explained.clear()
        self._hopeless.clear()
        self.evaluator.begin()

    def attempt(self, unit: Unit, now: float) -> list[AnyDecision]:
        """Decide about one unit. Whatever goes wrong costs this unit this attempt."""
        news = self.state.news()
        yielded: list[AnyDecision] = []
        try:
            return self._attempt(unit, now, yielded)
        except PluginFault as fault:
            verdict = fault.verdict()
        except Exception as error:  # noqa: BLE001 - a unit that nobody foresaw must not stop all others
            verdict = Verdict(reason=Reason.PLUGIN_ERROR, message=f"could not be tried: {type(error).__name__}: {error}"[:500])
        # What others yielded stays theirs no more, and may help somebody else.
        return [*yielded, *self._abandon(unit, verdict, now, news if not yielded else None)]

    def _attempt(self, unit: Unit, now: float, yielded: list[AnyDecision]) -> list[AnyDecision]:
        # 1. Is everybody here who must start together, is this the time to try, and is it its turn?
        if unit.blocked is not None:
            return self._set_aside(unit, unit.blocked)
        if self._order is not None and (not_yet := self._order.refuse(unit, now)) is not None:
            return self._set_aside(unit, not_yet)
        if unit.not_before > now:
            return self._set_aside(unit, _BACKING_OFF, retry_at=unit.not_before)
        if unit.min_free:
            kept = self.holds.get(unit.id)
            own = [one.pod for one in kept.placed] if kept is not None else []
            too_little = explain_sum(unit.min_free, own, self.state)
            if too_little is not None:
                return self._park(unit, too_little, also=tuple(pod.uid for pod in own), wakes=_WHEN_ROOM)

        # 2. The pods as the transformers want them, and whatever can be refused before a node is looked at.
        if self._before:
            self._transform(unit, now)
        if self._prefilter:
            refusal = self._refused(unit, now)
            if refusal is not None:
                return self._park(unit, refusal[1], wakes=refusal[0].wakes_on)

        # 3. Filter and score: a node for every pod that must have one, set aside at once; or nothing.
        placed = self._place(unit)
        if not isinstance(placed, list) and unit.id in self.holds and not any(group.missing for group in unit.groups):
            placed = []  # what it keeps is enough by now
        if not isinstance(placed, list) and self.holds:
            outcome = wound(self, unit, placed, self._place, yielded)
            if isinstance(outcome, Withdrawal):
                return [*yielded, *self._park(unit, outcome.verdict())]
            placed = outcome
        if not isinstance(placed, list):
            # 4. Nothing fits: can room be made? If not, keep what a NonStrict gang may keep, say why, and wait for what helps.
            made = self._make_room(unit, placed, now)
            if made is None and unit.keeps_s and isinstance(placed, Shortage):
                made = self._keep(unit, placed, now)
            made = made or self._park_short(unit, placed)
            if self._order is not None and isinstance(made[-1], Park):
                self._order.parked(unit, made[-1].verdict, now)
            return made

        # 5. Let the plugins resize and reserve; one refusal undoes all.
        if not self._is_simple:
            refusal_verdict = self._take(placed)
            if refusal_verdict is not None:
                return [*yielded, *self._park(unit, refusal_verdict, retry_at=now + RETRY_S)]
        if unit.keeps_s and (kept := self.holds.pop(unit.id, None)) is not None:
            placed = [*kept.placed, *placed]

        # 6. Permit: go ahead, or hold what is reserved until somebody allows it, a plugin or another party.
        if not self._is_simple or unit.promise is not None:
            held = self._hold(unit, placed, now)
            if held is not None:
                return [*yielded, *held]

        # 7. Decided: what plugins add to the pods goes with it, and the shell binds.
        return [*yielded, self.place(unit, placed)]

    def _abandon(
        self, unit: Unit, verdict: Verdict, now: float, news: tuple[dict[int, None], set[Wake]] | None
    ) -> list[AnyDecision]:
        """Give back whatever the attempt had set aside, and wait; no plugin is asked any more."""
        kept = self.holds.pop(unit.id, None)
        released: list[AnyDecision] = []
        if kept is not None and kept.kind is HoldKind.PART:
            self.give_back(kept.placed)
            released = [Release(unit.id, Reason.PLUGIN_ERROR, verdict.message, uids_of(kept.placed))]
        pods = [pod for uid in unit.pods if (pod := self.state.pods.get(uid)) is not None]
        self.give_back([Placed(pod, 0, 0) for pod in pods])
        if news is not None and not released:
            self.state.restore_news(news)
        shapes = {pod.shape.number: pod.shape for pod in pods}
        self.waiting.park(Parked(unit, verdict, tuple(shapes.values()), _AFTER_FAULT, retry_at=now + RETRY_S))
        return [*released, Park(unit.id, verdict, unit.pods)]

    # -- 2 ---------------------------------------------------------------------------------------------------------------

    def _transform(self, unit: Unit, now: float) -> None:
        for uid in unit.pods:
            pod = self.state.pods[uid]
            facts = pod.seen
            for plugin in self._before:
                facts = guarded(plugin, "before_prefilter", facts, now) or facts
            if facts is not pod.facts:
                self.state.replace_waiting(pod, facts)

    def _refused(self, unit: Unit, now: float) -> tuple[Plugin, Verdict] | None:
        unconcerned = None
        for uid in unit.pods:
            pod = self.state.pods[uid]
            if pod.shape is unconcerned:
                continue
            plugins = self.evaluator.prefilters(pod)
            if not plugins:
                unconcerned = pod.shape
                continue
            block = self.evaluator.block(pod)
            for plugin in self.evaluator.ask.concerned(plugins, block):
                verdict = guarded(plugin, "prefilter", unit, block, now)
                if verdict is not None:
                    return plugin, verdict
        return None

    # -- 3 ---------------------------------------------------------------------------------------------------------------

    def _place(self, unit: Unit) -> list[Placed] | Shortage | PodRecord:
        """The places, or what is missing; for a single pod, the pod that found no node."""
        if not unit.is_single:
            news = self.state.news()
            found = place_unit(unit, self.evaluator, self.state, self._explain)
            if isinstance(found, Shortage):
                self.state.restore_news(news)
            return found
        pod = self.state.pods[unit.groups[0].pods[0]]
        choice = self.evaluator.choose(pod)
        if choice is None:
            return pod
        slot = choice.slot
        nominated = self.evaluator.nominations.get(pod.uid)
        if nominated is not None:
            slot = self._nominated_slot(pod, nominated[0], slot)
        self.state.assume(pod, self.state.nodes.names[slot])
        return [Placed(pod, slot, choice.score)]

    def _nominated_slot(self, pod: PodRecord, node: str, otherwise: int) -> int:
        """The node where room was made for the pod, if it will do by now."""
        slot = self.state.nodes.slots.get(node)
        if slot is None or slot == otherwise:
            return otherwise
        return slot if self.evaluator.scores(pod)[slot] >= 0 else otherwise

    # -- 4 ---------------------------------------------------------------------------------------------------------------

    def _make_room(self, unit: Unit, short: Shortage | PodRecord, now: float) -> list[AnyDecision] | None:
        """Let the post-filter plugins evict for the unit; None when none of them can."""
        pod = short.stuck if isinstance(short, Shortage) else short
        hopeless = (pod.shape.number, pod.priority)
        plugins = self.profile.at["post_filter"]
        if plugins and hopeless in self._hopeless and self.evaluator.is_plain(pod):
            plugins = tuple(plugin for plugin in plugins if not plugin.makes_room_by_shape)
        if not plugins:
            return None
        block = self.evaluator.block(pod)
        for plugin in plugins:
            plugin.helper = self.evaluator  # one that all profiles share has had another's
            found = guarded(plugin, "post_filter", unit, block, now)
            if isinstance(found, Nomination):
                return self._evict(unit, pod, found)
            if isinstance(found, Verdict):
                return self._park(unit, found)
        self._hopeless.add(hopeless)
        return None

    def _evict(self, unit: Unit, pod: PodRecord, found: Nomination) -> list[AnyDecision]:
        victims = []
        for uid in found.victims:
            victim = self.state.pods[uid]
            has_budget = found.covered is None or uid in found.covered
            victims.append(Victim(uid, victim.namespace, victim.name, victim.node, uid in found.violating, has_budget))
        if not self.profile.is_shadow:
            # In shadow mode nobody is evicted, so nothing becomes free.
            for uid in found.victims:
                self.state.mark_victim(self.state.pods[uid])
            for uid, node in {pod.uid: found.node, **found.pods}.items():
                self.state.nominate(self.state.pods[uid], node)
        message = found.message or f"waits for {len(victims)} evicted pods to end on node {found.node}"
        verdict = Verdict(reason=Reason.WAITING_FOR_VICTIMS, subject=found.node, message=message)
        evict: list[AnyDecision] = [Evict(unit.id, tuple(victims), found.node, pod.uid)] if victims else []
        return [*evict, *self._park(unit, verdict)]

    def _explain(self, pod: PodRecord) -> Verdict:
        return explain_pod(pod, self.evaluator, self.state) if self._explains else _UNEXPLAINED

    def _keep(self, unit: Unit, short: Shortage, now: float) -> list[AnyDecision] | None:
        """Keep the places that were found, beside those that are kept already; None when none was."""
        placed = place_some(unit, self.evaluator, self.state)
        refusal = self._take(placed) if placed and not self._is_simple else None
        if not placed or refusal is not None:
            return self._park(unit, refusal, retry_at=now + RETRY_S) if refusal is not None else None
        held = self.holds.get(unit.id)
        if held is None:
            held = self.holds[unit.id] = Held(unit, self.profile, [], now + unit.keeps_s, set(), HoldKind.PART)
        for one in placed:
            self.state.mark_held(one.pod, True)
        held.placed += placed
        held.unit = without(unit, uids_of(placed))
        decision = Hold(unit.id, self._placed_pods(unit, held.placed), held.until)
        return [decision, *self._park_short(held.unit, short)]

    def _park_short(self, unit: Unit, short: Shortage | PodRecord) -> list[AnyDecision]:
        kept = self.holds.get(unit.id) if unit.keeps_s else None
        if isinstance(short, Shortage):
            if kept is not None:
                return self._park(unit, explain_kept(short, unit), also=uids_of(kept.placed))
            return self._park(unit, explain_shortage(short), copies=self._copies(unit, short.stuck))
        is_plain = self.evaluator.is_plain(short) and short.uid not in self.evaluator.nominations
        verdict_or_none = self._explained.get(short.shape.number) if is_plain else None
        if verdict_or_none is None:
            verdict_or_none = self._explain(short)
            if is_plain:
                self._explained[short.shape.number] = verdict_or_none
        return self._park(unit, verdict_or_none, copies=1 if is_plain else 0)

    def _copies(self, unit: Unit, stuck: PodRecord) -> int:
        """How many equal pods must start together, if nothing but their shape decides about the unit; otherwise 0."""
        if len(unit.groups) > 1 or unit.keeps_s or unit.min_free or unit.promise is not None or self.evaluator.nominations:
            return 0
        shape, pods = stuck.shape, [self.state.pods[uid] for uid in unit.pods]
        if any(pod.shape is not shape or pod.labels != stuck.labels for pod in pods):
            return 0
        is_plain = self.evaluator.is_plain(stuck) and not self.evaluator.has_late(shape)
        return unit.groups[0].missing if is_plain else 0

    def _park(
        self,
        unit: Unit,
        verdict: Verdict,
        *,
        also: tuple[str, ...] = (),
        wakes: frozenset[Wake] = frozenset(),
        copies: int = 0,
        retry_at: float | None = None,
    ) -> list[AnyDecision]:
        if not wakes:
            wakes = self._local_wakes if copies else self._local_wakes | self._wakes(unit)
        shapes = {self.state.pods[uid].shape.number: self.state.pods[uid].shape for uid in unit.pods}
        self.waiting.park(Parked(unit, verdict, tuple(shapes.values()), wakes, copies, retry_at))
        return [Park(unit.id, verdict, (*unit.pods, *also))]

    def _set_aside(self, unit: Unit, verdict: Verdict, *, retry_at: float | None = None) -> list[AnyDecision]:
        """Park a unit that no room on any node would help: it is made anew when its objects change."""
        self.waiting.park(Parked(unit, verdict, (), frozenset(), retry_at=retry_at))
        kept = self.holds.get(unit.id)
        return [Park(unit.id, verdict, (*unit.pods, *(uids_of(kept.placed) if kept is not None else ())))]

    def _wakes(self, unit: Unit) -> frozenset[Wake]:
        """What besides room on a node could help: whatever the filters that concern the unit's pods listen to."""
        found: set[Wake] = set()
        for shape_pod in {self.state.pods[uid].shape.number: self.state.pods[uid] for uid in unit.pods}.values():
            block = self.evaluator.block(shape_pod)
            for plugin in self.evaluator.ask.concerned((*self.profile.wide_filters, *self._prefilter), block):
                found |= plugin.wakes_on
        return frozenset(found - {Wake.NODE})

    # -- 5 ---------------------------------------------------------------------------------------------------------------

    def _take(self, placed: Sequence[Placed]) -> Verdict | None:
        """Resize and reserve; a verdict when a plugin refuses, and then nothing is held any more."""
        names = self.state.nodes.names
        news = self.state.news()
        try:
            for one in placed:
                node = names[one.slot]
                for plugin in self._resize:
                    amounts = guarded(plugin, "resize", one.pod, node)
                    if amounts is not None:
                        self.state.forget(one.pod)
                        self.state.assume(one.pod, node, vector_of(amounts, self.state.table))
                        self.evaluator.touch(one.slot)
                for plugin in self._reserve:
                    verdict = guarded(plugin, "reserve", one.pod, node)
                    if verdict is not None:
                        self._undo(placed, news)
                        refused: Verdict = verdict
                        return refused
        except PluginFault as fault:
            self._undo(placed, news)
            return fault.verdict()
        return None

    def _undo(self, placed: Sequence[Placed], news: tuple[dict[int, None], set[Wake]]) -> None:
        self.give_back(placed)
        self.state.restore_news(news)

    def give_back(self, placed: Sequence[Placed], profile: Profile | None = None) -> None:
        """Undo what was set aside; every plugin (of `profile`, if it is not this one) hears of it."""
        reserve = self._reserve if profile is None else profile.at["reserve"]
        for one in reversed(placed):
            if one.pod.phase is Phase.ASSUMED:
                node = one.pod.node
                for plugin in reversed(reserve):
                    # Giving back goes on whatever a plugin does.
                    with contextlib.suppress(Exception):
                        plugin.unreserve(one.pod, node)
                self.state.forget(one.pod)
                slot = self.state.nodes.slots.get(node)
                if slot is not None:
                    self.evaluator.touch(slot)

    # -- 6 ---------------------------------------------------------------------------------------------------------------

    def _hold(self, unit: Unit, placed: list[Placed], now: float) -> list[AnyDecision] | None:
        promise = unit.promise
        wait_s, waiting_for = (0.0, set[str]()) if promise is None else (promise.seconds, set(promise.parties))
        news = self.state.news()
        try:
            for plugin in self._permit:
                permit = guarded(plugin, "permit", unit, now)
                if permit is None:
                    continue
                if permit.verdict is not None:
                    self._undo(placed, news)
                    return self._park(unit, permit.verdict, wakes=plugin.wakes_on)
                wait_s = max(wait_s, permit.wait_s)
                waiting_for.update(permit.waiting_for)
        except PluginFault as fault:
            self._undo(placed, news)
            return self._park(unit, fault.verdict(), retry_at=now + RETRY_S)
        if wait_s <= 0:
            return None
        held = Held(unit, self.profile, placed, now + wait_s, waiting_for)
        if promise is not None:
            held.kind = HoldKind.PROMISE
        for one in placed:
            self.state.mark_held(one.pod, True)
        self.holds[unit.id] = held
        pods = self._placed_pods(unit, placed)
        return [Hold(unit.id, pods, held.until, tuple(sorted(waiting_for)), promise is not None)]

    # -- 7 ---------------------------------------------------------------------------------------------------------------

    def place(self, unit: Unit, placed: Sequence[Placed]) -> Place:
        pods = self._placed_pods(unit, placed)
        for one in placed:
            self.state.withdraw(one.pod.uid, settled_on=one.pod.node)
            if one.pod.is_held:
                self.state.mark_held(one.pod, False)
        return Place(unit.id, pods, placed[0].score if len(placed) == 1 else 0)

    def _placed_pods(self, unit: Unit, placed: Sequence[Placed]) -> tuple[PlacedPod, ...]:
        notes: dict[str, str] = {}
        if len(placed) > 1 and unit.gang_id:
            # Koordinator's own agents and tools read how many were bound together.
            notes = {KoordinatorPod.BIND_GANG_GROUP_ID: unit.gang_id, KoordinatorPod.BIND_GANG_MEMBER_COUNT: str(len(placed))}
        if not self._pre_bind and not self._bind:
            return tuple(
                PlacedPod(one.pod.uid, one.pod.facts.metadata.namespace, one.pod.facts.metadata.name, one.pod.node, notes)
                for one in placed
            )
        return tuple(self._placed_pod(one.pod, notes) for one in placed)

    def _placed_pod(self, pod: PodRecord, notes: Mapping[str, str]) -> PlacedPod:
        annotations: dict[str, str] = dict(notes)
        labels: dict[str, str] = {}
        for plugin in self._pre_bind:
            patch: Patch | None = guarded(plugin, "pre_bind", pod, pod.node)
            if patch is not None:
                annotations.update(patch.annotations)
                labels.update(patch.labels)
        binder = next((plugin.name for plugin in self._bind if guarded(plugin, "bind", pod, pod.node)), "")
        return PlacedPod(pod.uid, pod.namespace, pod.name, pod.node, annotations, labels, binder)
