"""Pods as they come, change and go, and the units that they make: who waits for a node, alone or with others.

Called by the machine as it takes events in, and before it decides. Pure. Invariant, after `settle`: every pod of ours that
needs a node is in exactly one unit that waits, or in one that holds.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from muster.engine import events as ev
from muster.engine.books import apply_book
from muster.engine.decisions import AnyDecision, Park
from muster.engine.explain import said_anew
from muster.engine.facts import PodFacts
from muster.engine.holding import HoldKind, uids_of
from muster.engine.membership import Membership
from muster.engine.pods import Phase, PodRecord
from muster.engine.queue import Waiting
from muster.engine.releasing import Holds
from muster.engine.state import State
from muster.engine.task_units import ENDED
from muster.engine.units import TASK, Unit, is_shared, may_wait, single_unit, unit_id_of
from muster.objects.reasons import Reason, Verdict


class Roster:
    def __init__(  # noqa: PLR0917 - the machine's parts, each once
        self,
        state: State,
        waiting: Waiting,
        members: Membership,
        holds: Holds,
        verdicts: dict[str, Verdict],
        serves: Callable[[str], bool],
    ) -> None:
        """`serves` says whether a profile of that name is ours."""
        self._state, self._waiting, self._members, self._holds = state, waiting, members, holds
        self._verdicts, self._serves = verdicts, serves

    def see(self, facts: PodFacts, decisions: list[AnyDecision]) -> None:
        known = self._state.pods.get(facts.metadata.uid)
        if known is None:
            self._meet(self._state.see_pod(facts))
            return
        before, shape, standing = known.seen, known.shape, _standing(known)
        pod = self._state.see_pod(facts)
        if not pod.is_ours:
            return
        if self._members.is_moved(pod, before):
            self._leave_unit(pod, decisions)
            self._meet(pod)
        elif is_shared(pod.unit):
            self._members.update(pod, before)
            if pod.shape is not shape or _standing(pod) != standing:
                self._members.note(pod)
                if pod.phase is Phase.BOUND or not may_wait(pod):
                    self._state.withdraw(pod.uid, settled_on=pod.node)
        elif pod.phase is Phase.BOUND or not may_wait(pod):
            self._forget_waiting(pod, decisions)
        elif pod.phase is Phase.WAITING and (not self.is_waiting(pod) or pod.shape is not shape):
            self._waiting.add(single_unit(pod))

    def _meet(self, pod: PodRecord) -> None:
        """A pod that is new, or names another unit than before."""
        pod.unit = unit_id_of(pod)
        pod.is_ours = self._serves(pod.facts.spec.scheduler_name)
        if not pod.is_ours:
            return
        if is_shared(pod.unit):
            self._members.join(pod)
        elif pod.phase is Phase.WAITING and may_wait(pod):
            self._waiting.add(single_unit(pod))

    def _leave_unit(self, pod: PodRecord, decisions: list[AnyDecision]) -> None:
        if is_shared(pod.unit):
            self._members.leave(pod)
            self._state.withdraw(pod.uid, settled_on=pod.node)
        else:
            self._forget_waiting(pod, decisions)

    def see_task_group(self, event: ev.TaskGroupSeen | ev.TaskGroupGone, decisions: list[AnyDecision]) -> None:
        name = event.group.metadata.name if isinstance(event, ev.TaskGroupSeen) else event.name
        before = self._state.task_groups.get(name)
        apply_book(event, self._state)
        self._members.task_changed(name, before)
        phase = event.group.status.phase if isinstance(event, ev.TaskGroupSeen) else "deleted"
        held = self._holds.held.get(f"{TASK}{name}")
        if held is not None and (phase in ENDED or phase == "deleted"):
            # The initiator's own record of its decision: nobody starts on the strength of this attempt any more.
            message = f"TaskResourceGroup {name} is {phase}"
            self._holds.release(held.unit.id, Reason.PARTY_NOT_RESERVED, message, decisions)

    def is_waiting(self, pod: PodRecord) -> bool:
        """Whether the unit of that name is this very pod: another of the same name may have come before this one went."""
        unit = self._waiting.units.get(pod.unit)
        return unit is not None and pod.uid in unit.pods

    def _forget_waiting(self, pod: PodRecord, decisions: list[AnyDecision]) -> None:
        """The pod needs no node any more: bound, ending, finished or gone."""
        if self.is_waiting(pod):
            self._waiting.remove(pod.unit)
        held = self._holds.held.get(pod.unit)
        if held is not None and pod.uid in held.unit.pods:
            self._holds.give_up(pod.unit, Reason.RESERVATION_EXPIRED, "its pod needs no node any more", decisions)
        if pod.unit not in self._waiting.units:
            self._verdicts.pop(pod.unit, None)
        self._state.withdraw(pod.uid, settled_on=pod.node)

    def remove(self, uid: str, decisions: list[AnyDecision]) -> None:
        pod = self._state.remove_pod(uid)
        if pod is None:
            return
        if pod.is_ours:
            self._leave_unit(pod, decisions)

    def settle(self, decisions: list[AnyDecision]) -> None:
        """Make the units of several pods anew whose members changed."""
        while self._members.changed:
            changed = list(self._members.changed)
            self._members.changed.clear()
            for unit_id in changed:
                try:
                    self._settle_unit(unit_id, decisions)
                except Exception as error:  # noqa: BLE001 - as in `_take_in`
                    self._waiting.remove(unit_id)
                    self._state.note_fault(unit_id, f"{type(error).__name__}: {error}")

    def _settle_unit(self, unit_id: str, decisions: list[AnyDecision]) -> None:
        held = self._holds.check(unit_id, decisions)
        self._members.changed.pop(unit_id, None)
        is_held = held is not None and held.kind is not HoldKind.PART
        unit = self._members.build(unit_id, {one.pod.uid for one in held.placed} if held is not None and is_held else ())
        if held is not None and is_held:
            if unit is not None:
                held.unit = unit
                self._tell_others(unit, uids_of(held.placed), decisions)
            self._waiting.remove(unit_id)
            return
        if held is not None and (unit is None or not unit.keeps_s):
            # Nobody is left to wait for, or it is not to keep a part any more: all of it is tried anew.
            self._holds.release(unit_id, Reason.GANG_INCOMPLETE, "the gang is another than it was", decisions)
            return
        if unit is None:
            self._waiting.remove(unit_id)
            self._verdicts.pop(unit_id, None)
            self._holds.not_before.pop(unit_id, None)
            return
        not_before = self._holds.not_before.get(unit_id, 0.0)
        if not_before > self._state.now:
            unit = msgspec.structs.replace(unit, not_before=not_before)
        elif not_before:
            del self._holds.not_before[unit_id]
        if held is not None:
            held.unit = unit
        self._waiting.add(unit)

    def _tell_others(self, unit: Unit, held: tuple[str, ...], decisions: list[AnyDecision]) -> None:
        """Say to members that came late, or found no place, why they wait while the unit holds what it has."""
        others = tuple(uid for uid in unit.pods if uid not in held)
        message = (
            "waits until the members of the unit that have a place may start; the others are placed then, as there is room"
        )
        verdict = Verdict(reason=Reason.PARTY_NOT_RESERVED, message=message)
        if others and said_anew(self._verdicts.get(unit.id), verdict):
            self._verdicts[unit.id] = verdict
            decisions.append(Park(unit.id, verdict, others))

    def adopt(self) -> None:
        """Find again whose pods are ours, and of which shapes those are that wait."""
        self._state.shapes.names.has_grown = False
        for pod in self._state.pods.values():
            was_ours, pod.is_ours = pod.is_ours, self._serves(pod.facts.spec.scheduler_name)
            if is_shared(pod.unit) and was_ours and not pod.is_ours:
                self._members.leave(pod)
            elif is_shared(pod.unit) and pod.is_ours and not was_ours:
                pod.unit = unit_id_of(pod)
                self._members.join(pod)
            if pod.phase is not Phase.WAITING:
                continue
            # Other transformers, and other annotations that tell shapes apart.
            self._state.replace_waiting(pod, pod.seen)
            if not pod.is_ours or not may_wait(pod):
                self._waiting.remove(pod.unit)
                self._verdicts.pop(pod.unit, None)
                self._state.withdraw(pod.uid)
            if is_shared(pod.unit):
                self._members.changed[pod.unit] = None
            elif pod.is_ours and may_wait(pod):
                self._waiting.add(single_unit(pod))


def _standing(pod: PodRecord) -> tuple[object, ...]:
    """What its unit goes by."""
    return pod.phase, may_wait(pod), pod.facts.is_finished, pod.priority
