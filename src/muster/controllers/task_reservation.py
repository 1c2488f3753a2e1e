"""The reservation of a whole task: TaskResourceGroup and its TaskResources, from the first to the last phase.

    (new) -> Pending -> Creating -> Reserving -> Reserved
                                     ^    |
                                     |    v
                                  ReserveFailed          any of them, before Reserved -> Failed

| control planes | who reserves | what this controller does |
|---|---|---|
| one | the scheduler places all parties in one decision | derives every phase from the pods' nodes |
| two, here is the initiator | each party's scheduler, which votes on its TaskResource | decides: all, or none and again later |
| two, here is a member | as above | decides nothing; the group follows its TaskResources |

The initiator's TaskResourceGroup is the record of the decision. It changes in ONE write with the version that was read:
Reserving -> Reserved (all begin), Reserving -> ReserveFailed (all give back), anything before Reserved -> Failed. What follows
from it, the phases of the TaskResources, is written afterwards, as often as it takes. `task_reservation_parts` says why writes
that are late or repeated do no harm.

A group waits without end unless `lifecycleSeconds` says otherwise, or its task ends, which the task controller says with the
annotation `muster.dev/stop`. Only while some party holds what it reserved is time limited (`resourceReservedSeconds`, from the
first vote): a party that waits for another blocks others.

`plan` is pure. Concurrency: as every controller; keys are groups. The controller writes TaskResourceGroup.status and creates
TaskResources; nobody else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.controllers.actions import Action, Create, Patch, Target
from muster.controllers.runtime import Caches, Controller, Plan, Watch
from muster.controllers.task_reservation_group import (
    OVER,
    GroupState,
    Voter,
    all_to,
    are_linked,
    pause_s,
    sums_of,
    votes_by_pods,
    who_is_missing,
    why_failed,
)
from muster.controllers.task_reservation_parts import (
    GROUP_KIND,
    RESOURCE_KIND,
    Fact,
    ReservationPod,
    all_parties,
    new_resource,
    task_resource_name,
)
from muster.objects.conditions import is_true
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.kinds.kuscia_tasks import TaskResource, TaskResourceGroup
from muster.objects.labels import KusciaAnnotation, KusciaLabel
from muster.objects.status import Raw
from muster.objects.time import time_or
from muster.objects.view import view_of
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey, by_label

__all__ = ["TaskReservation", "plan", "task_resource_name"]

RESERVED_S = 30.0
"""Where the group says 0."""


def plan(group: Raw, resources: Sequence[Raw], pods: Sequence[ReservationPod], now: float) -> Plan:
    """What to do next for a group, with the TaskResources that it owns and the pods of its task. Converges from any state."""
    known = [Voter(raw, view_of(TaskResource, raw)) for raw in resources]
    state = GroupState(
        group,
        view_of(TaskResourceGroup, group),
        {(one.view.metadata.namespace, one.view.metadata.name): one for one in known},
        {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods},
        now,
    )
    if state.view.metadata.deletion_timestamp:
        return Plan()
    if state.stopped and not state.is_member and state.view.status.phase not in OVER:
        return _stop(state)
    expiry_s = _expiry_s(state)
    if expiry_s is not None and expiry_s <= 0:
        return _expire(state)
    match state.view.status.phase:
        case "":
            done = Plan([state.write("Pending")])
        case "Pending":
            done = _validate(state)
        case "Creating":
            done = _create(state)
        case "Reserving":
            done = _follow(state) if state.is_member else _reserve(state)
        case "ReserveFailed":
            done = _follow(state) if state.is_member else _retry(state)
        case "Reserved":
            done = _begin(state)
        case "Failed":
            done = Plan(all_to(state, "Failed", "TaskResourceGroupFailed", why_failed(state)))
    if expiry_s is not None:
        again_s = expiry_s if done.requeue_after_s is None else min(expiry_s, done.requeue_after_s)
        done = Plan(done.actions, again_s)
    return done


# -- phases --------------------------------------------------------------------------------------------------------------------


def _expiry_s(state: GroupState) -> float | None:
    """Seconds until the group has waited too long; None when it may wait without end, or waits no more.

    A member is not asked: the initiator's clock is the one that counts."""
    lifecycle_s = state.view.spec.lifecycle_seconds
    if lifecycle_s <= 0 or state.is_member or state.view.status.phase in OVER:
        return None
    created = time_or(state.view.metadata.creation_timestamp, state.now)
    return created + lifecycle_s - state.now


def _expire(state: GroupState) -> Plan:
    message = (
        f"TaskResourceGroup {state.view.metadata.name} was not scheduled within spec.lifecycleSeconds="
        f"{state.view.spec.lifecycle_seconds}: {who_is_missing(state)}; raise it, or leave it out to wait without end"
    )
    facts = (
        Fact("TaskResourceGroupExpired", "LifecycleSecondsPassed", message),
        Fact("TaskResourceGroupFailed", "TaskResourceGroupExpired", message),
    )
    return Plan([state.write("Failed", *facts), state.tell("TaskResourceGroupExpired", message, is_bad=True)])


def _stop(state: GroupState) -> Plan:
    """Its task has ended: nobody begins any more, and partners need not hold what they reserved."""
    message = f"its task has ended ({state.stopped})"
    fact = Fact("TaskResourceGroupFailed", "TaskEnded", message)
    return Plan([state.write("Failed", fact), state.tell("TaskEnded", message, is_bad=False)])


def _validate(state: GroupState) -> Plan:
    problem = _problem(state.view)
    if problem:
        facts = (
            Fact("TaskResourceGroupValidated", "Invalid", problem, "False"),
            Fact("TaskResourceGroupFailed", "Invalid", problem),
        )
        return Plan([state.write("Failed", *facts), state.tell("Invalid", problem, is_bad=True)])
    if any(not party.task_resource_name for party in all_parties(state.view)):
        return Plan([_name_resources(state)])
    facts = (
        Fact("TaskResourceGroupValidated", "Valid"),
        Fact("TaskResourceNameGenerated", "Named"),
    )
    return Plan([state.write("Creating", *facts)])


def _problem(group: TaskResourceGroup) -> str:
    """What is wrong with the spec, for people; empty when nothing is."""
    spec, where = group.spec, f"TaskResourceGroup {group.metadata.name}: spec"
    parties = all_parties(group)
    if not parties:
        return f"{where}.parties is empty; name at least one party"
    if not spec.initiator:
        return f"{where}.initiator is empty; name the party that schedules the task"
    if not 1 <= spec.min_reserved_members <= len(parties):
        return (
            f"{where}.minReservedMembers is {spec.min_reserved_members}, and there are {len(parties)} parties; "
            f"set it to 1..{len(parties)}"
        )
    seen: set[tuple[str, str]] = set()
    for party in parties:
        if not party.domain_id:
            return f"{where}.parties: a party has no domainID; name its Domain"
        if (party.domain_id, party.role) in seen:
            return f"{where}.parties: {party.domain_id} is there twice with role {party.role!r}; give each its own role"
        seen.add((party.domain_id, party.role))
    for party in spec.parties:
        if party.min_reserved_pods > len(party.pods):
            return (
                f"{where}.parties: {party.domain_id} has minReservedPods {party.min_reserved_pods} and {len(party.pods)} pods; "
                "lower it or add pods"
            )
    return ""


def _name_resources(state: GroupState) -> Patch:
    meta = state.view.metadata
    task_uid = meta.labels.get(KusciaLabel.TASK_UID) or meta.uid
    spec = state.raw.get("spec") or {}
    named = {
        field: [
            {
                **party,
                "taskResourceName": party.get("taskResourceName")
                or task_resource_name(task_uid, str(party.get("domainID", "")), str(party.get("role", ""))),
            }
            for party in spec[field]
        ]
        for field in ("parties", "outOfControlledParties")
        if spec.get(field)
    }
    return Patch(Target(GROUP, GROUP_KIND, meta.name, "", meta.uid, meta.resource_version), {"spec": named})


def _create(state: GroupState) -> Plan:
    missing = [party for party in state.handled if state.resource_of(party) is None]
    if missing:
        return Plan([Create(new_resource(state.raw, party, now=state.now)) for party in missing])
    if state.is_member and not any(one.view.status.phase not in ("", "Pending") for one in state.resources.values()):
        return Plan(sums_of(state))  # the initiator says when to begin
    message = f"{len(state.handled)} TaskResources exist"
    return Plan([state.write("Reserving", Fact("TaskResourcesCreated", "Created", message))])


def _reserve(state: GroupState) -> Plan:
    """Decide, as the initiator or alone."""
    tried, spec = state.view.status.retry_count, state.view.spec
    missing = [party for party in state.handled if state.resource_of(party) is None]
    if missing:  # somebody deleted it
        return Plan([Create(new_resource(state.raw, party, now=state.now)) for party in missing])
    current = [one for one in state.resources.values() if one.view.status.retry_count == tried]
    votes = [one for one in current if one.view.status.phase == "Reserved"]
    kept = [one for one in votes if not one.withdrawn]
    if len(kept) >= spec.min_reserved_members:
        message = f"{len(kept)} of {len(state.handled)} parties have reserved, {spec.min_reserved_members} must"
        facts = (
            Fact("TaskResourcesListed", "Listed"),
            Fact("TaskResourcesReserved", "Reserved", message),
            *([Fact("PodAnnotationUpdated", "Linked")] if are_linked(state) else []),
        )
        return Plan([state.write("Reserved", *facts), state.tell("Reserved", message, is_bad=False)])
    lost = [one for one in current if one.view.status.phase == "Failed" or one.withdrawn]
    if len(state.handled) - len(lost) < spec.min_reserved_members:
        one = lost[0]
        why = one.withdrawn or "it could not reserve"
        return _give_back(state, f"{one.view.metadata.namespace}: {why}")
    since = min((time_or(one.view.status.last_transition_time, state.now) for one in votes), default=None)
    left_s = None
    if since is not None and state.has_partners:
        held_s = float(spec.resource_reserved_seconds or RESERVED_S)
        left_s = since + held_s - state.now
        if left_s <= 0:
            return _give_back(state, f"after {held_s:g} s (spec.resourceReservedSeconds) {who_is_missing(state)}")
    actions: list[Action] = all_to(state, "Reserving", "Reserving", "")
    if not state.has_partners:
        actions += votes_by_pods(state)
    return Plan(actions or sums_of(state), left_s)


def _give_back(state: GroupState, why: str) -> Plan:
    """Nobody begins: one write, from which all else follows."""
    wait_s = pause_s(state)
    message = f"{why}; all parties give back what they reserved and try again in {wait_s:.0f} s"
    fact = Fact("TaskResourcesReserved", "ReserveFailed", message, "False")
    return Plan([state.write("ReserveFailed", fact), state.tell("ReserveFailed", message, is_bad=True)])


def _retry(state: GroupState) -> Plan:
    """After ReserveFailed: everyone gives back, then, after a pause, once more."""
    told = all_to(state, "Failed", "ReserveFailed", "not all parties reserved in time")
    since = time_or(state.view.status.last_transition_time, state.now)
    left_s = since + pause_s(state) - state.now
    if told or left_s > 0:
        return Plan(told, max(left_s, 0.1))
    count = state.view.status.retry_count + 1
    fact = Fact("TaskResourcesReserved", "Retried", f"try {count + 1}", "False")
    return Plan([state.write("Reserving", fact, retryCount=count)])


def _begin(state: GroupState) -> Plan:
    """After Reserved: all begin, also those that were not needed, as soon as they can."""
    told = all_to(state, "Schedulable", "Schedulable", "enough parties have reserved")
    if told or is_true(state.conditions, "TaskResourcesScheduled") or state.is_member:
        return Plan(told or sums_of(state))
    return Plan([state.write("Reserved", Fact("TaskResourcesScheduled", "Schedulable")), *sums_of(state)])


def _follow(state: GroupState) -> Plan:
    """As a member: the group says what the newest of its TaskResources say."""
    if not state.resources:
        return Plan([Create(new_resource(state.raw, party, now=state.now)) for party in state.handled])
    tried = max(one.view.status.retry_count for one in state.resources.values())
    phases = {one.view.status.phase for one in state.resources.values() if one.view.status.retry_count == tried}
    if "Schedulable" in phases:
        message = "the initiator says that enough parties have reserved"
        return Plan([state.write("Reserved", Fact("TaskResourcesReserved", "Reserved", message), retryCount=tried)])
    wanted = "ReserveFailed" if "Failed" in phases else "Reserving"
    if (wanted, tried) == (state.view.status.phase, state.view.status.retry_count):
        # All parties are here, and the initiator is not among them: the scheduler has nobody to wait for.
        votes = [] if state.has_partners else votes_by_pods(state)
        return Plan(votes or sums_of(state))
    facts = [Fact("TaskResourcesReserved", "ReserveFailed", "as the initiator says", "False")] if "Failed" in phases else []
    return Plan([state.write(wanted, *facts, retryCount=tried)])


# -- the controller ------------------------------------------------------------------------------------------------------------


def _owner(obj: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    """The group of a TaskResource, or of a pod that names it."""
    found = obj.raw.get("metadata", {}).get("ownerReferences") or ()
    return [ObjectKey("", str(one.get("name", ""))) for one in found if one.get("kind") == GROUP_KIND]


def _named(obj: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    name = obj.view(ReservationPod).metadata.annotations.get(KusciaAnnotation.TASK_RESOURCE_GROUP)
    return (ObjectKey("", name),) if name else ()


GROUPS = Watch(group=GROUP, kind=GROUP_KIND, view=TaskResourceGroup)
RESOURCES = Watch(group=GROUP, kind=RESOURCE_KIND, view=TaskResource, keys=_owner)
_BY_GROUP = by_label(KusciaLabel.TASK_RESOURCE_GROUP_UID)
PODS = Watch(
    group="",
    kind="Pod",
    view=ReservationPod,
    keep="nothing",
    label_selector=KusciaLabel.TASK_RESOURCE_GROUP_UID,
    keys=_named,
    indexes={"task-resource-group": _BY_GROUP},
    matters=lambda change: (
        change.old is None or change.new is None or change.old.view(ReservationPod) != change.new.view(ReservationPod)
    ),
)


class TaskReservation(Controller):
    """Keys are TaskResourceGroups."""

    name = "task-reservation"
    watches = (GROUPS, RESOURCES, PODS)
    workers = 4

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        group = caches[GROUPS].get(key)
        if group is None or group.deleting:
            return Plan()
        resources = caches[RESOURCES].by_index(CONTROLLER_INDEX, group.uid)
        pods = caches[PODS].by_index("task-resource-group", group.uid)
        return plan(group.raw, [one.raw for one in resources], [pod.view(ReservationPod) for pod in pods], now)
