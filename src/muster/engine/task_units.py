"""The unit of a task: a TaskResourceGroup says which pods of which party and role it has, and how many must start together.

Parties in `outOfControlledParties` have their own control plane: their groups are in the unit, not controlled from here. Until
such a task has started, what is placed here is promised to them (`Promise`), not started.

A pod that names a TaskResourceGroup which does not list it is a unit of its own, which is never tried: nobody can delay, or
join, a task that is not his. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from muster.engine.facts import TaskGroupFacts, TaskPartyFacts
from muster.engine.pods import Phase, PodRecord
from muster.engine.units import Age, Group, Promise, Unit, age_of, first_of, has_succeeded, is_waiting, member_order
from muster.objects.labels import Muster
from muster.objects.reasons import Reason, Verdict
from muster.objects.words import short_list

RESERVED_S = 30.0
"""How long a promise stands when the group says nothing: Kuscia's default."""
_RESERVED_MAX_S = 365 * 86_400.0
_NAMES_SHOWN_MAX = 5
RESERVING = "Reserving"
_TRIED = frozenset({RESERVING, "Reserved"})
ENDED = frozenset({"ReserveFailed", "Failed"})
"""Phases in which the initiator has given up this attempt: nobody may start on the strength of it."""


class Round(msgspec.Struct, frozen=True):
    """What became of one attempt to reserve at all parties."""

    uid: str
    retry_count: int
    is_permitted: bool
    """Otherwise it was denied."""

    def is_of(self, group: TaskGroupFacts) -> bool:
        return (self.uid, self.retry_count) == (group.metadata.uid, group.status.retry_count)


def lists(group: TaskGroupFacts, pod: PodRecord) -> bool:
    """Whether the pod is one of those that are placed from here for the task."""
    namespace, name = pod.namespace, pod.name
    return any(party.domain_id == namespace and any(one.name == name for one in party.pods) for party in group.spec.parties)


def task_unit(
    unit_id: str,
    name: str,
    members: Iterable[PodRecord],
    group: TaskGroupFacts | None,
    last: Round | None = None,
    *,
    held: Collection[str] = (),
) -> Unit | None:
    """The unit of a task from its pods; None when none of them waits. `last` is how its last attempt went, if it did. Pods in
    `held` count as waiting."""
    pods = sorted(members, key=member_order)
    waiting = [pod for pod in pods if is_waiting(pod, held)]
    if not waiting:
        return None
    first = first_of(waiting)
    priority = max(pod.priority for pod in pods)
    age = age_of(pods) if group is None else task_age(group)
    groups: tuple[Group, ...] = (Group(first.namespace, "", len(pods) + 1, tuple(pod.uid for pod in waiting)),)
    least = 1
    blocked: Verdict | None = _missing_group(name)
    promise: Promise | None = None
    if group is not None:
        rolls = _rolls(group, pods, held)
        groups = tuple(roll.group for roll in rolls)
        least = group.spec.min_reserved_members if 0 < group.spec.min_reserved_members <= len(groups) else len(groups)
        has_started = _has_started(groups, least)
        is_denied = last is not None and last.is_of(group) and not last.is_permitted
        blocked = _phase(group, name, is_denied=is_denied) or (None if has_started else _incomplete(rolls))
        is_permitted = last is not None and last.is_of(group) and last.is_permitted
        partners = tuple(sorted({one.party for one in groups if not one.controlled}))
        if partners and not has_started and not is_permitted and group.status.phase == RESERVING:
            promise = Promise(_seconds(group), partners)
    return Unit(
        unit_id,
        (-priority, age[0], unit_id),
        groups,
        least,
        first.facts.spec.scheduler_name,
        priority,
        age=age,
        blocked=blocked,
        promise=promise,
    )


def stranger_unit(unit_id: str, name: str, pod: PodRecord) -> Unit | None:
    """A pod that the group it names does not list."""
    if not is_waiting(pod, ()):
        return None
    message = (
        f"TaskResourceGroup {name} does not list pod {pod.key} among those of its spec.parties;"
        " correct the pod's annotation, or add it there"
    )
    age = age_of([pod])
    return Unit(
        unit_id,
        (-pod.priority, age[0], unit_id),
        (Group(pod.namespace, "", 1, (pod.uid,)),),
        1,
        pod.facts.spec.scheduler_name,
        pod.priority,
        age=age,
        blocked=Verdict(reason=Reason.GANG_INCOMPLETE, subject=name, message=message),
    )


def task_age(group: TaskGroupFacts) -> Age:
    """When its initiator made the task, and its uid there: the same at every party."""
    meta = group.metadata
    created = meta.annotations.get(Muster.ORIGIN_CREATED) or meta.creation_timestamp
    return created, meta.annotations.get(Muster.ORIGIN_UID) or meta.uid


def _seconds(group: TaskGroupFacts) -> float:
    seconds = float(group.spec.resource_reserved_seconds)
    return min(seconds, _RESERVED_MAX_S) if seconds > 0 else RESERVED_S


class _Roll(msgspec.Struct, frozen=True):
    group: Group
    missing: tuple[str, ...]
    """Listed pods that are not there, or can't be placed."""


def _rolls(group: TaskGroupFacts, pods: Iterable[PodRecord], held: Collection[str]) -> list[_Roll]:
    by_key = {pod.key: pod for pod in pods}
    own = [_roll(party, by_key, held) for party in group.spec.parties]
    others = [Group(p.domain_id, p.role, 0, (), controlled=False) for p in group.spec.out_of_controlled_parties]
    return [*own, *(_Roll(other, ()) for other in others)]


def _roll(party: TaskPartyFacts, by_key: dict[str, PodRecord], held: Collection[str]) -> _Roll:
    """Takes its pods out of `by_key`: one that is listed twice counts once."""
    names = list(dict.fromkeys(one.name for one in party.pods))
    waiting: list[str] = []
    missing: list[str] = []
    bound = 0
    for name in names:
        pod = by_key.pop(f"{party.domain_id}/{name}", None)
        if pod is not None and is_waiting(pod, held):
            waiting.append(pod.uid)
        elif pod is not None and (pod.phase is not Phase.WAITING or has_succeeded(pod)):
            bound += 1
        else:
            missing.append(f"{party.domain_id}/{name}")
    least = party.min_reserved_pods if 0 < party.min_reserved_pods <= len(names) else len(names)
    return _Roll(Group(party.domain_id, party.role, least, tuple(waiting), bound), tuple(missing))


def _has_started(groups: Iterable[Group], least: int) -> bool:
    found = list(groups)
    whole = sum(1 for one in found if not one.controlled or one.bound >= one.min)
    return whole >= least and any(one.bound for one in found)


def _missing_group(name: str) -> Verdict:
    message = f"TaskResourceGroup {name} is not there (not made yet, or deleted), so it is not known what must start together"
    return Verdict(reason=Reason.GANG_INCOMPLETE, subject=name, message=message)


def _incomplete(rolls: Iterable[_Roll]) -> Verdict | None:
    missing = [key for roll in rolls for key in roll.missing]
    if not missing:
        return None
    shown = short_list(missing, _NAMES_SHOWN_MAX)
    return Verdict(
        reason=Reason.GANG_INCOMPLETE,
        subject=missing[0],
        message=f"{len(missing)} pods of the task are missing, gated or ending: {shown}",
    )


def _phase(group: TaskGroupFacts, name: str, *, is_denied: bool) -> Verdict | None:
    """Why the group's phase lets nothing be tried; None when it does."""
    phase = group.status.phase
    what = f"TaskResourceGroup {name}"
    if phase in _TRIED and not (is_denied and phase == RESERVING):
        return None
    if is_denied or phase == "ReserveFailed":
        why = f"{what}: the last attempt to reserve at all parties failed; it is tried again when the group is Reserving anew"
        return Verdict(reason=Reason.BACKING_OFF, subject=name, message=why)
    if phase == "Failed":
        return Verdict(reason=Reason.PARTY_FAILED, subject=name, message=f"{what} has failed: its pods are not tried any more")
    why = f"{what} is {phase or 'Pending'}: its pods are tried when it is {RESERVING}"
    return Verdict(reason=Reason.GANG_INCOMPLETE, subject=phase or "Pending", message=why)
