"""What to do next for a KusciaTask: from the first look to its end, attempt by attempt. Pure.

    Pending: wait for what is missing -> ports -> group -> TaskResources -> files, services, pods -> all seen
       |  ^                                                                                        |
       |  +--- attempt over: group deleted, all of it gone, pause over <--- lost, or failed and may be retried
       v                                                                                           |
    Running -> Succeeded, Failed: what still runs is deleted, what ended is kept for its logs <----+

How it can be interrupted anywhere (invariants):

- every status write names the version that it was planned from, so that a plan from a stale cache changes nothing;
- `status.retryTime` says that attempt `status.attempts` is over: from then on its group is only ever deleted, and the next
  attempt begins with a write that takes `retryTime` away, once nothing of the old one is left;
- condition ResourceCreated is True when all pods of the attempt have been *seen*; from then on a missing one was deleted by
  somebody, before that it is made (again). So a cache that lags can't be mistaken for a loss;
- pods have the same names in every attempt: while an old one is there, a new one can't be made.

Where another control plane decides about the task there is one attempt, and its end is said there (`kuscia_task_member`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from muster.controllers.actions import Create, Delete, Target, Together, target_of, with_finalizer
from muster.controllers.kuscia_task_end import (
    PARTY_FAILED,
    TaskPlan,
    between_attempts,
    clean_up,
    event_of,
    finish,
    leave,
    restart,
    status_from,
    write_status,
)
from muster.controllers.kuscia_task_member import own_side, rest_of_failed
from muster.controllers.kuscia_task_parts import (
    TaskState,
    group_of,
    kit_hash,
    objects_of,
    ports_status,
    said_of,
    with_conditions,
    work_of,
)
from muster.controllers.kuscia_task_pods import TaskPod
from muster.controllers.kuscia_task_status import Evaluation, evaluate, lack_of
from muster.controllers.task_kit import KitError, PartyKit, party_kits
from muster.controllers.task_ports import PartyPorts, PortsExhausted, allocate, fits
from muster.controllers.task_reservation_parts import GROUP_KIND, task_resource_name
from muster.objects.conditions import find_condition, is_true
from muster.objects.kinds.kuscia_base import GROUP, TASK_ENDED
from muster.objects.kinds.kuscia_tasks import TaskResourceGroup
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import annotations_of, finalizers_of, is_deleting, labels_of, uid_of
from muster.objects.reason_codes import Reason
from muster.objects.rules.report import obj, objs
from muster.objects.status import Raw
from muster.objects.time import format_time, time_or
from muster.store.backoff import doubled_s
from muster.store.events import NORMAL

KUSCIA_STOPPED: Final = "KusciaJobStopped"
PORTS_RETRY_S: Final = 15.0
REFUSED_RETRY_S: Final = 15.0
PARTNERS_WORD_S: Final = 5.0
"""How long a failure waits for what partners say: if the pods of one were taken away, it is the consequence of that."""


def plan(state: TaskState) -> TaskPlan:
    """What to do next. The same state gives the same plan, and doing it twice changes nothing."""
    phase = state.view.status.phase
    if is_deleting(state.task):
        return leave(state)
    if phase in TASK_ENDED:
        return clean_up(state)
    if Muster.TASK_FINALIZER not in finalizers_of(state.task):
        return TaskPlan([with_finalizer(state.task, Muster.TASK_FINALIZER)])
    if stop := annotations_of(state.task).get(Muster.STOP):
        if state.is_member and stop == Reason.SUCCEEDED:
            return finish(state, "Succeeded", stop, "")
        reason = KUSCIA_STOPPED if stop == Reason.STOPPED else stop
        return finish(state, "Failed", reason, f"its job has ended it ({stop})")
    if state.view.status.retry_time:
        return between_attempts(state)
    if (stale := _stale_group(state)) is not None:
        return stale
    if is_true(state.status.get("conditions"), "ResourceCreated"):
        return _follow(state)
    try:
        return _prepare(state)
    except KitError as error:
        if error.is_waiting:
            return _wait(state, error.reason.value, str(error))
        return finish(state, "Failed", error.reason.value, str(error))
    except PortsExhausted as error:
        if error.is_final:
            return finish(state, "Failed", Reason.PORTS_EXHAUSTED.value, str(error))
        return _wait(state, Reason.PORTS_EXHAUSTED.value, str(error), PORTS_RETRY_S)


def refuse(state: TaskState, message: str, *, is_final: bool) -> TaskPlan:
    """The server refuses an object that the task needs: for good, because it is wrong, or for now, because of a quota."""
    if is_final:
        return finish(state, "Failed", Reason.MANIFEST_INVALID.value, f"the server refuses what the task needs: {message}")
    return _wait(state, Reason.CREATION_REFUSED.value, message, REFUSED_RETRY_S)


# -- before it runs ---------------------------------------------------------------------------------------------------------


def _stale_group(state: TaskState) -> TaskPlan | None:
    """What to do about a group that is not this attempt's; None when there is none or it is the right one."""
    group = state.group
    if group is None:
        return None
    owner = labels_of(group).get(KusciaLabel.TASK_UID, "")
    if owner == state.uid and state.group_attempt == state.attempt:
        return None
    if owner == state.uid and state.group_attempt > state.attempt:
        return TaskPlan()  # the cache of tasks lags behind that of groups: its event comes
    if not owner:
        name = state.view.metadata.name
        return _wait(
            state,
            Reason.DUPLICATE_NAME.value,
            f"TaskResourceGroup {name} exists and belongs to no task; delete it, or give the task another name",
        )
    # Of an earlier attempt, or of an earlier task of this name, which is gone: names are unique in the one namespace of tasks.
    return TaskPlan([] if is_deleting(group) else [Delete(target_of(group))])


def _prepare(state: TaskState) -> TaskPlan:
    """Towards running pods, one write after the other. KitError and PortsExhausted say what is missing or wrong."""
    kits = kits_of(state)
    name = state.view.metadata.name
    wishes = [kit.wishes(kit.pod_names(name)) for kit in kits if kit.is_own]
    group, group_view = state.group, state.group_view
    if group is not None and annotations_of(group).get(Muster.KIT) != kit_hash(kits):
        # An AppImage has changed since: the attempt, of which nothing runs yet, is put together anew.
        if state.is_member:  # by the initiator: what was promised may count already
            return finish(state, "Failed", Reason.EVICTED_BY_ADMIN.value, "its AppImage changed before all pods were made")
        return TaskPlan([] if is_deleting(group) else [Delete(target_of(group))])
    if state.view.status.attempts < 1 or not fits(state.view.status.allocated_ports, wishes):
        return _allocate(state, wishes)
    if group is None and (state.pods or state.others):
        return TaskPlan()  # of a group that was deleted: they go by themselves, and each tells when it does
    if group is None:
        return TaskPlan([Create(group_of(state, kits))])
    if is_deleting(group):
        return TaskPlan()
    if group_view is not None and group_view.status.phase == "Failed":
        return _group_failed(state)
    missing = [kit.who for kit in kits if kit.is_own and _resource_key(state, kit) not in state.resources]
    if missing or group_view is None or group_view.status.phase in ("", "Pending", "Creating"):
        return _wait(state, Reason.QUEUED.value, "its reservation is being set up")
    return _create(state, kits, uid_of(group))


def kits_of(state: TaskState) -> list[PartyKit]:
    """The parts of all parties. KitError says what is missing or wrong."""
    spec = obj(state.task, "spec")
    parties = [party for _, party in objs(spec, "parties", "")]
    least = state.view.spec.schedule_config.min_reserved_members or 0
    if least > len(parties):
        raise KitError(
            Reason.MANIFEST_INVALID,
            f"spec.scheduleConfig.minReservedMembers: {least}: the task has {len(parties)} parties; write 1 to {len(parties)}",
        )
    return party_kits(work_of(state.task, state.view), parties, state.find_image, state.find_party)


def _allocate(state: TaskState, wishes: Sequence[PartyPorts]) -> TaskPlan:
    allocated = allocate(wishes, state.uid, state.is_taken)
    count = sum(len(one.named_port) for one in allocated)
    status: Raw = {
        "phase": "Pending",
        "reason": Reason.QUEUED.value,
        "message": "its reservation is being set up",
        "attempts": state.attempt,
        "allocatedPorts": ports_status(allocated),
        "conditions": with_conditions(state, ("PortsAllocated", "True", "Allocated", f"{count} ports")),
        "startTime": state.view.status.start_time or format_time(state.now),
    }
    return TaskPlan(write_status(state, status), None, allocated)


def _resource_key(state: TaskState, kit: PartyKit) -> tuple[str, str]:
    return kit.domain_id, task_resource_name(state.uid, kit.domain_id, kit.role)


def _create(state: TaskState, kits: Sequence[PartyKit], group_uid: str) -> TaskPlan:
    """Files and services, then pods; when all pods are seen, the attempt has begun."""
    seen = {pod.key for pod in state.pods if pod.group_uid == group_uid and not pod.metadata.deletion_timestamp}
    made = objects_of(state, kits, seen)
    there = {(other.kind, other.namespace, other.name) for other in state.others}
    before = [one for one in made.before if _place(one) not in there]
    if before or made.pods:
        groups = [tuple(Create(one) for one in some) for some in (before, made.pods) if some]
        return TaskPlan([Together(group) for group in groups], is_making=True)
    told = f"{len(seen)} pods and {len(made.services)} services"
    conditions = with_conditions(state, ("ResourceCreated", "True", "Created", told), ("Running", "False", "Pending", ""))
    services = {
        key: {**entry, "createTime": format_time(state.now)} | obj(obj(state.status, "serviceStatuses"), key)
        for key, entry in made.services.items()
    }
    return TaskPlan(write_status(state, {"conditions": conditions, "serviceStatuses": services}))


def _place(one: Raw) -> tuple[str, str, str]:
    return one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]


def _wait(state: TaskState, reason: str, message: str, again_s: float | None = None) -> TaskPlan:
    """Nothing can be done now; say why."""
    status: Raw = {"phase": "Pending", "reason": reason, "message": message}
    if not state.view.status.start_time:
        status["startTime"] = format_time(state.now)
    return TaskPlan(write_status(state, status), again_s)


# -- while it runs ----------------------------------------------------------------------------------------------------------


def _follow(state: TaskState) -> TaskPlan:
    """All pods were made: what has become of them?"""
    group, group_view = state.group, state.group_view
    name = state.view.metadata.name
    if group is None or group_view is None or is_deleting(group):
        gone = [Target(GROUP, GROUP_KIND, name)] if group is None else []
        return _taken_away(state, f"TaskResourceGroup {name} was deleted", gone)
    if group_view.status.phase == "Failed":
        return _group_failed(state)
    if lack := lack_of(group_view):
        return _taken_away(state, f"TaskResourceGroup {name} was changed by somebody and can't be fulfilled: {lack}")
    pods = [pod for pod in state.pods if pod.group_uid == uid_of(group)]
    found = evaluate(group_view, pods, obj(state.status, "podStatuses"), state.partners, state.now)
    if state.is_member:
        return _follow_member(state, group_view, pods, found)
    match found.outcome:
        case "succeeded":
            return finish(state, "Succeeded", Reason.SUCCEEDED.value, "", found)
        case "lost":
            gone = _not_seen(found, pods)
            return restart(state, found.reason, found.message, found, is_preemption=True, absent=gone)
        case "failed":
            return _failed(state, found)
        case "running":
            return _run(state, found)
        case _:
            return _pend(state, found)


def _taken_away(state: TaskState, message: str, absent: Sequence[Target] = ()) -> TaskPlan:
    """Somebody has taken the group from the task: another attempt makes its own; the initiator's can't be made here."""
    if state.is_member:
        ended = finish(state, "Failed", Reason.EVICTED_BY_ADMIN.value, message)
        return msgspec.structs.replace(ended, absent=absent)
    return restart(state, Reason.EVICTED_BY_ADMIN.value, message, is_preemption=True, absent=absent)


def _follow_member(state: TaskState, group: TaskResourceGroup, pods: Sequence[TaskPod], found: Evaluation) -> TaskPlan:
    """This side of the initiator's attempt."""
    written = state.status.get("partyTaskStatus")
    side = own_side(found, group, written)
    match side.outcome:
        case "failed":
            done = finish(state, "Failed", side.reason, side.message, side)
        case "running":
            done = _run(state, side)
        case _:
            done = _pend(state, side)
    rest = tuple(Delete(target) for target in rest_of_failed(group, pods, written))
    actions = [*done.actions, Together(rest)] if rest else done.actions
    is_lost = any(party.get("phase") == "Failed" for party in side.parties)
    return msgspec.structs.replace(done, actions=actions, absent=_not_seen(found, pods) if is_lost else ())


def _not_seen(found: Evaluation, pods: Sequence[TaskPod]) -> list[Target]:
    """The pods that are taken to be gone."""
    seen = {pod.key for pod in pods}
    return [Target("", "Pod", *reversed(key.split("/", 1))) for key in found.pods if key not in seen]


def _pend(state: TaskState, found: Evaluation) -> TaskPlan:
    status = status_from(found)
    status["reason"] = found.reason or Reason.QUEUED.value
    status["message"] = found.message or "its pods wait to be placed and started"
    return TaskPlan([*write_status(state, status), *said_of(state)], found.again_s)


def _run(state: TaskState, found: Evaluation) -> TaskPlan:
    conditions = with_conditions(state, ("Running", "True", Reason.STARTED.value, ""))
    waits = [found.again_s] if found.again_s is not None else []
    limit_s = state.view.spec.active_deadline_seconds
    if limit_s > 0:
        began = (find_condition(conditions, "Running") or {}).get("lastTransitionTime", "")
        left_s = time_or(began, state.now) + limit_s - state.now
        if left_s <= 0:
            message = f"ran longer than spec.activeDeadlineSeconds={limit_s}; raise it, or split the work"
            return finish(state, "Failed", Reason.RUN_TIME_EXCEEDED.value, message, found)
        waits.append(left_s)
    status = {**status_from(found), "phase": "Running", "reason": Reason.STARTED.value, "message": "", "conditions": conditions}
    actions = [*write_status(state, status), *said_of(state)]
    if state.view.status.phase != "Running":
        actions.append(event_of(state, NORMAL, Reason.STARTED.value, f"attempt {state.attempt} runs"))
    return TaskPlan(actions, min(waits, default=None))


def _failed(state: TaskState, found: Evaluation) -> TaskPlan:
    """Again, if it may: all parties, wherever they are."""
    if (waiting := _partners_word(state, found)) is not None:
        return waiting
    retry = state.view.spec.retry
    used = state.attempt - 1 - state.view.status.preemptions
    if retry is None or retry.limit <= used:
        reason, message = found.reason, found.message
        if retry is not None and retry.limit:
            reason, message = (
                Reason.RETRIES_EXHAUSTED.value,
                f"failed {used + 1} times, the last time {found.reason}: {message}",
            )
        return finish(state, "Failed", reason, message, found)
    pause_s = doubled_s(retry.backoff_seconds, used, retry.backoff_seconds_max)
    message = f"attempt {state.attempt} failed ({found.reason}: {found.message}); retry {used + 1} of {retry.limit} follows"
    return restart(state, Reason.BACKING_OFF.value, message, found, pause_s=pause_s)


def _partners_word(state: TaskState, found: Evaluation) -> TaskPlan | None:
    """Wait a moment if a partner that goes on, as far as is known here, may have lost its pods. None when there is none."""
    assert state.group_view is not None
    others = {(party.domain_id, party.role) for party in state.group_view.spec.out_of_controlled_parties}
    phases = {(party.get("domainID", ""), party.get("role", "")): party.get("phase") for party in found.parties}
    if not any(phases.get(who) not in TASK_ENDED for who in others):
        return None
    conditions = with_conditions(state, (PARTY_FAILED, "True", found.reason, found.message))
    since = (find_condition(conditions, PARTY_FAILED) or {}).get("lastTransitionTime", "")
    left_s = time_or(since, state.now) + PARTNERS_WORD_S - state.now
    if left_s <= 0:
        return None
    return TaskPlan(write_status(state, {**status_from(found), "conditions": conditions}), left_s)


def _group_failed(state: TaskState) -> TaskPlan:
    """The reservation was given up."""
    raw = obj(state.group or {}, "status").get("conditions")
    why = find_condition(raw, "TaskResourceGroupFailed") or {}
    message = str(why.get("message") or why.get("reason") or "its reservation failed")
    if is_true(raw, "TaskResourceGroupExpired"):
        waited = state.view.status
        last = f"; the last reason: {waited.reason}: {waited.message}" if waited.reason and waited.message else ""
        return finish(state, "Failed", Reason.SCHEDULING_TIMEOUT.value, f"{message}{last}")
    is_invalid = (find_condition(raw, "TaskResourceGroupValidated") or {}).get("status") == "False"
    reason = Reason.MANIFEST_INVALID if is_invalid else Reason.PARTY_NOT_RESERVED
    return finish(state, "Failed", reason.value, message)
