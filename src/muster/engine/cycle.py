"""The scheduling cycle: one unit, from "may be tried" to a decision. Read it top to bottom.

Pure: takes from the state and gives back, returns decisions, asks the plugins in the order of the profile. A plugin that fails
costs its unit this attempt, with a reason that names it, and nobody else anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from muster.engine.asking import PluginFault, guarded
from muster.engine.decisions import AnyDecision, Evict, Hold, Park, Place, PlacedPod, Release, Victim
from muster.engine.evaluate import Evaluator
from muster.engine.explain import explain_pod, explain_shortage
from muster.engine.placing import Placed, Shortage, place_unit
from muster.engine.plugin import Nomination, Patch, Plugin, Wake
from muster.engine.pods import Phase, PodRecord
from muster.engine.profile import Profile
from muster.engine.queue import Parked, Waiting
from muster.engine.resources import Vector, vector_of
from muster.engine.state import State
from muster.engine.units import MISSING_GROUP, Unit
from muster.objects.reasons import Reason, Verdict

RETRY_S = 60.0
"""After a plugin's fault the unit is tried again after so long, or when something changes."""
_AFTER_FAULT = frozenset(Wake) - {Wake.NODE, Wake.TIME}
WOUNDED_MAX = 16
"""At most so many holds of younger units are given up for one."""


class Held(msgspec.Struct):
    """A unit that has reserved and waits for a permit."""

    unit: Unit
    profile: Profile
    placed: list[Placed]
    until: float
    waiting_for: set[str]


class Cycle:
    """Tries units of one profile. `holds` is shared with the machine, which ends them."""

    def __init__(self, profile: Profile, state: State, evaluator: Evaluator, waiting: Waiting, holds: dict[str, Held]) -> None:
        self.profile = profile
        self.state = state
        self.evaluator = evaluator
        self.waiting = waiting
        self.holds = holds
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
        for plugin in profile.at["post_filter"]:
            plugin.helper = evaluator
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
        # 1. Is everybody here who must start together?
        if unit.is_incomplete:
            return self._park(unit, _incomplete(unit), wakes=frozenset({Wake.GROUP}))

        # 2. The pods as the transformers want them, and whatever can be refused before a node is looked at.
        if self._before:
            self._transform(unit, now)
        if self._prefilter:
            refusal = self._refused(unit, now)
            if refusal is not None:
                return self._park(unit, refusal[1], wakes=refusal[0].wakes_on)

        # 3. Filter and score: a node for every pod that must have one, set aside at once; or nothing.
        placed = self._place(unit)
        if not isinstance(placed, list) and self.holds:
            placed = self._wound(unit, placed, yielded)
        if not isinstance(placed, list):
            # 4. Nothing fits: can room be made? If not, say why, and wait for what would help.
            return self._make_room(unit, placed, now) or self._park_short(unit, placed)

        # 5. Let the plugins resize and reserve; one refusal undoes all.
        if not self._is_simple:
            refusal_verdict = self._take(placed)
            if refusal_verdict is not None:
                return [*yielded, *self._park(unit, refusal_verdict, retry_at=now + RETRY_S)]

            # 6. Permit: go ahead, or hold what is reserved until somebody allows it.
            held = self._hold(unit, placed, now)
            if held is not None:
                return [*yielded, *held]

        # 7. Decided: what plugins add to the pods goes with it, and the shell binds.
        return [*yielded, self.place(unit, placed)]

    def _abandon(
        self, unit: Unit, verdict: Verdict, now: float, news: tuple[dict[int, None], set[Wake]] | None
    ) -> list[AnyDecision]:
        """Give back whatever the attempt had set aside, and wait; no plugin is asked any more."""
        self.holds.pop(unit.id, None)
        pods = [pod for uid in unit.pods if (pod := self.state.pods.get(uid)) is not None]
        self.give_back([Placed(pod, 0, 0) for pod in pods])
        if news is not None:
            self.state.restore_news(news)
        shapes = {pod.shape.number: pod.shape for pod in pods}
        self.waiting.park(Parked(unit, verdict, tuple(shapes.values()), _AFTER_FAULT, False, now + RETRY_S))
        return [Park(unit.id, verdict, unit.pods)]

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
        return slot if slot is not None and self.evaluator.scores(pod)[slot] >= 0 else otherwise

    def _wound(
        self, unit: Unit, short: Shortage | PodRecord, yielded: list[AnyDecision]
    ) -> list[Placed] | Shortage | PodRecord:
        """Take what younger units hold and have not bound, the youngest first, until this one fits (and say so in `yielded`);
        if it never does, they keep it. Who waits for whom follows the age alone, so no two can wait for each other."""
        younger = sorted((h for h in self.holds.values() if age(h.unit) > age(unit)), key=lambda h: age(h.unit), reverse=True)
        wounded: list[tuple[Held, list[tuple[str, Vector]]]] = []
        news = self.state.news()
        for held in younger[:WOUNDED_MAX]:
            wounded.append((held, [(one.pod.node, one.pod.request) for one in held.placed]))
            self.give_back(held.placed, held.profile)
            try:
                placed = self._place(unit)
            except Exception:
                self._hold_again(wounded)
                raise
            if isinstance(placed, list):
                message = f"{unit.id} is older and needs what this held"
                for loser, _ in wounded:
                    del self.holds[loser.unit.id]
                    self.waiting.add(loser.unit)
                    yielded.append(Release(loser.unit.id, Reason.YIELDED_TO_OLDER, message, uids_of(loser.placed)))
                return placed
            short = placed
        self._hold_again(wounded)
        self.state.restore_news(news)
        return short

    def _hold_again(self, wounded: Sequence[tuple[Held, list[tuple[str, Vector]]]]) -> None:
        for held, places in reversed(wounded):
            for one, (node, request) in zip(held.placed, places, strict=True):
                if not node:
                    continue
                self.state.assume(one.pod, node, request)
                self.evaluator.touch(one.slot)
                for plugin in held.profile.at["reserve"]:
                    # It was reserved before; who can't say so again does not undo what others hold.
                    with contextlib.suppress(Exception):
                        plugin.reserve(one.pod, node)

    # -- 4 ---------------------------------------------------------------------------------------------------------------

    def _make_room(self, unit: Unit, short: Shortage | PodRecord, now: float) -> list[AnyDecision] | None:
        """Let the post-filter plugins evict for the unit; None when none of them can."""
        pod = short.stuck if isinstance(short, Shortage) else short
        hopeless = (pod.shape.number, pod.priority)
        if not self.profile.at["post_filter"] or (hopeless in self._hopeless and self.evaluator.is_plain(pod)):
            return None
        block = self.evaluator.block(pod)
        for plugin in self.profile.at["post_filter"]:
            found = guarded(plugin, "post_filter", unit, block, now)
            if isinstance(found, Nomination):
                return self._evict(unit, pod, found)
            if isinstance(found, Verdict):
                return self._park(unit, found, pod=pod)
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
        names = ", ".join(f"{v.namespace}/{v.name}" for v in victims[:3]) + (" ..." if len(victims) > 3 else "")
        message = found.message or f"waits for {len(victims)} evicted pods to end on node {found.node}: {names}"
        verdict = Verdict(reason=Reason.WAITING_FOR_VICTIMS, subject=found.node, message=message)
        evict: list[AnyDecision] = [Evict(unit.id, tuple(victims), found.node, pod.uid)] if victims else []
        return [*evict, *self._park(unit, verdict, pod=pod)]

    def _explain(self, pod: PodRecord) -> Verdict:
        return explain_pod(pod, self.evaluator, self.state)

    def _park_short(self, unit: Unit, short: Shortage | PodRecord) -> list[AnyDecision]:
        if isinstance(short, Shortage):
            return self._park(unit, explain_shortage(short), pod=short.stuck)
        is_plain = self.evaluator.is_plain(short) and short.uid not in self.evaluator.nominations
        verdict_or_none = self._explained.get(short.shape.number) if is_plain else None
        if verdict_or_none is None:
            verdict_or_none = explain_pod(short, self.evaluator, self.state)
            if is_plain:
                self._explained[short.shape.number] = verdict_or_none
        return self._park(unit, verdict_or_none, pod=short, is_plain=is_plain)

    def _park(
        self,
        unit: Unit,
        verdict: Verdict,
        *,
        pod: PodRecord | None = None,
        wakes: frozenset[Wake] = frozenset(),
        is_plain: bool = False,
        retry_at: float | None = None,
    ) -> list[AnyDecision]:
        if not wakes:
            wakes = self._local_wakes if is_plain else self._local_wakes | self._wakes(unit)
        shapes = {self.state.pods[uid].shape.number: self.state.pods[uid].shape for uid in unit.pods}
        self.waiting.park(Parked(unit, verdict, tuple(shapes.values()), wakes, is_plain, retry_at))
        return [Park(unit.id, verdict, unit.pods)]

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
        wait_s, waiting_for = 0.0, set[str]()
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
        self.holds[unit.id] = held
        return [Hold(unit.id, self._placed_pods(placed), held.until, tuple(sorted(waiting_for)))]

    # -- 7 ---------------------------------------------------------------------------------------------------------------

    def place(self, unit: Unit, placed: Sequence[Placed]) -> Place:
        for one in placed:
            self.state.withdraw(one.pod.uid, settled_on=one.pod.node)
        return Place(unit.id, self._placed_pods(placed), placed[0].score if len(placed) == 1 else 0)

    def _placed_pods(self, placed: Sequence[Placed]) -> tuple[PlacedPod, ...]:
        if not self._pre_bind and not self._bind:
            return tuple(
                PlacedPod(one.pod.uid, one.pod.facts.metadata.namespace, one.pod.facts.metadata.name, one.pod.node)
                for one in placed
            )
        return tuple(self._placed_pod(one.pod) for one in placed)

    def _placed_pod(self, pod: PodRecord) -> PlacedPod:
        annotations: dict[str, str] = {}
        labels: dict[str, str] = {}
        for plugin in self._pre_bind:
            patch: Patch | None = guarded(plugin, "pre_bind", pod, pod.node)
            if patch is not None:
                annotations.update(patch.annotations)
                labels.update(patch.labels)
        binder = next((plugin.name for plugin in self._bind if guarded(plugin, "bind", pod, pod.node)), "")
        return PlacedPod(pod.uid, pod.namespace, pod.name, pod.node, annotations, labels, binder)


def age(unit: Unit) -> tuple[str, str]:
    """The order that nobody can change: when the unit was made, then its id."""
    return unit.order_key[1], unit.id


def uids_of(placed: Sequence[Placed]) -> tuple[str, ...]:
    return tuple(one.pod.uid for one in placed)


def _incomplete(unit: Unit) -> Verdict:
    group = unit.groups[0]
    there = len(group.pods) + group.bound
    missing = unit.attributes.get(MISSING_GROUP)
    if missing is not None:
        message = f"PodGroup {missing} does not exist, so it is not known how many pods must start together; create it"
        return Verdict(reason=Reason.GANG_INCOMPLETE, subject=missing, message=message)
    return Verdict(reason=Reason.GANG_INCOMPLETE, message=f"{there} of the {group.min} pods that must start together exist")
