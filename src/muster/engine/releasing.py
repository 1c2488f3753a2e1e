"""How holds end: by a permit, a refusal, the time, or because what they stand on is gone.

Called by the machine between taking events in and deciding. Pure. Invariant: a promised hold ends only by `Permitted` or
`Denied`, by the end of its attempt at the initiator, or because a pod or node of it is gone, so that it can't be kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from muster.engine import events as ev
from muster.engine.asking import PluginFault
from muster.engine.cycle import Cycle
from muster.engine.decisions import AnyDecision, Release
from muster.engine.holding import Held, HoldKind, ask_back, uids_of
from muster.engine.membership import Membership
from muster.engine.placing import Placed
from muster.engine.pods import Phase
from muster.engine.queue import Waiting
from muster.engine.state import State
from muster.engine.units import Age, is_shared, may_wait
from muster.objects.reasons import Reason

CycleOf = Callable[[str], Cycle | None]
BACK_OFF_S = 5.0
_SPREAD_S = 25


class Holds:
    def __init__(self, state: State, waiting: Waiting, members: Membership, cycle_of: CycleOf) -> None:
        """`cycle_of` finds who places for a profile."""
        self.held: dict[str, Held] = {}
        self.not_before: dict[str, float] = {}
        """By unit: NonStrict gangs that gave everything back, and when they are tried again."""
        self._state, self._waiting, self._members, self._cycle_of = state, waiting, members, cycle_of

    @property
    def next_deadline(self) -> float | None:
        return min((held.until for held in self.held.values() if not held.is_asked), default=None)

    # -- answers -----------------------------------------------------------------------------------------------------------

    def permitted(self, event: ev.Permitted, decisions: list[AnyDecision]) -> None:
        held = self.held.get(event.unit)
        if held is None or held.kind is HoldKind.PART:
            return
        held.waiting_for.discard(event.party)
        if event.party != "" and held.waiting_for:
            return
        cycle = self._cycle_of(held.unit.schedule_as)
        try:
            if cycle is None:
                raise LookupError(f"profile {held.unit.schedule_as} is gone")
            place = cycle.place(held.unit, held.placed)
        except (PluginFault, LookupError) as error:
            self.release(event.unit, Reason.PLUGIN_ERROR, str(error), decisions)
            return
        self._end(event.unit)
        if held.kind is HoldKind.PROMISE:
            self._members.end_round(event.unit, is_permitted=True)
        if is_shared(event.unit):
            self._members.changed[event.unit] = None
        decisions.append(place)

    def denied(self, unit_id: str, message: str, decisions: list[AnyDecision]) -> None:
        held = self.held.get(unit_id)
        if held is None or held.kind is HoldKind.PART:
            return
        if held.kind is HoldKind.PROMISE:
            self._members.end_round(unit_id, is_permitted=False)
        self.release(unit_id, Reason.PARTY_NOT_RESERVED, message, decisions)

    # -- time and loss -----------------------------------------------------------------------------------------------------

    def expire(self, now: float, decisions: list[AnyDecision]) -> None:
        """End what has waited for too long, or stands on a node that is gone."""
        if not self.held:
            return
        for unit_id, held in [(unit_id, held) for unit_id, held in self.held.items() if held.until <= now]:
            if held.kind is HoldKind.PROMISE:
                why = f"the other parties ({', '.join(sorted(held.waiting_for))}) did not reserve in time"
                decisions += ask_back(held, Reason.RESERVATION_EXPIRED, why)
            elif held.kind is HoldKind.PART:
                self.not_before[unit_id] = now + back_off_s(held.unit.age)
                why = "too few of the other members found a place within the gang's waiting time"
                self.release(unit_id, Reason.RESERVATION_EXPIRED, why, decisions)
            else:
                self.release(unit_id, Reason.RESERVATION_EXPIRED, "no permit came in time", decisions)
        slots = self._state.nodes.slots
        for held in list(self.held.values()):
            lost = [one for one in held.placed if one.pod.node and one.pod.node not in slots]
            if lost:
                self._lose(held, lost, (Reason.RESERVATION_EXPIRED, "a node that it held room on is gone"), decisions)

    def check(self, unit_id: str, decisions: list[AnyDecision]) -> Held | None:
        """The hold of a unit whose members changed, if it can be kept."""
        held = self.held.get(unit_id)
        if held is None:
            return None
        held.placed = [one for one in held.placed if one.pod.phase is not Phase.BOUND]
        if not held.placed:
            self._end(unit_id)  # somebody else bound all of it
            return None
        lost = [one for one in held.placed if one.pod.unit != unit_id or self._is_lost(one)]
        if lost:
            why = "a member that was held for is gone, or belongs to another unit"
            self._lose(held, lost, (Reason.GANG_INCOMPLETE, why), decisions)
        return self.held.get(unit_id)

    def _is_lost(self, one: Placed) -> bool:
        pod = self._state.pods.get(one.pod.uid)
        return pod is not one.pod or not may_wait(pod) or not pod.node

    def _lose(self, held: Held, lost: Sequence[Placed], why: tuple[Reason, str], decisions: list[AnyDecision]) -> None:
        """A part of what is held can't be kept. The others of a NonStrict gang keep theirs."""
        unit_id = held.unit.id
        if held.kind is not HoldKind.PART or len(lost) == len(held.placed):
            self.release(unit_id, *why, decisions)
            return
        gone = {one.pod.uid for one in lost}
        cycle = self._cycle_of(held.unit.schedule_as)
        if cycle is not None:
            cycle.give_back(lost, held.profile)
        held.placed = [one for one in held.placed if one.pod.uid not in gone]
        self._members.changed[unit_id] = None
        decisions.append(Release(unit_id, *why, uids_of(lost)))

    # -- giving back -------------------------------------------------------------------------------------------------------

    def release(self, unit_id: str, reason: Reason, message: str, decisions: list[AnyDecision]) -> None:
        """Give up what the unit holds, and let it try again."""
        held = self.give_up(unit_id, reason, message, decisions)
        if held is not None and is_shared(unit_id):
            self._members.changed[unit_id] = None  # others may have come while it was held
        elif held is not None:
            self._waiting.add(held.unit)

    def give_up(self, unit_id: str, reason: Reason, message: str, decisions: list[AnyDecision]) -> Held | None:
        held = self._end(unit_id)
        if held is not None:
            cycle = self._cycle_of(held.unit.schedule_as)
            if cycle is not None:
                cycle.give_back(held.placed, held.profile)
            decisions.append(Release(unit_id, reason, message, uids_of(held.placed)))
        return held

    def _end(self, unit_id: str) -> Held | None:
        """The hold is no more; who waits for that is tried again."""
        held = self.held.pop(unit_id, None)
        if held is not None:
            self._waiting.wake_all(held.askers)
        return held

    # -- configuration -----------------------------------------------------------------------------------------------------

    def leave(self, names: set[str], decisions: list[AnyDecision]) -> None:
        """The profiles that stay are `names`: nobody would place what others hold. What is promised stays, and is asked for."""
        for unit_id, held in [(u, h) for u, h in self.held.items() if h.unit.schedule_as not in names]:
            why = "the profile that placed it is gone"
            if held.kind is HoldKind.PROMISE and names:
                decisions += ask_back(held, Reason.RESERVATION_EXPIRED, why)
            else:
                self.release(unit_id, Reason.RESERVATION_EXPIRED, why, decisions)


def back_off_s(age: Age) -> float:
    """How long a gang waits that gave everything back: different for each, and the same whoever works it out."""
    return BACK_OFF_S + zlib.crc32("/".join(age).encode()) % _SPREAD_S
