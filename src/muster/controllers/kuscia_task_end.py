"""The ends of a task: of an attempt that is followed by another one, of the task itself, and of the object. Pure.

See `kuscia_task_plan` for the whole; what is written here is all that the next step needs to know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from muster.controllers.actions import Action, Delete, Emit, Patch, PatchStatus, Target, Together, target_of, without_finalizer
from muster.controllers.job_work import task_attained_s
from muster.controllers.kuscia_task_parts import TaskState, with_conditions
from muster.controllers.kuscia_task_pods import TaskPod
from muster.controllers.kuscia_task_status import Evaluation, difference
from muster.controllers.task_reservation_parts import GROUP_KIND
from muster.objects.conditions import ConditionStatus, is_true
from muster.objects.kinds.kuscia_base import GROUP, TASK_ENDED
from muster.objects.kinds.kuscia_tasks import PartyAllocatedPorts
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import annotations_of, finalizers_of, is_deleting, labels_of
from muster.objects.rules.report import obj, objs
from muster.objects.status import Raw
from muster.objects.time import format_time, time_or
from muster.objects.words import short_list
from muster.store.events import NORMAL, WARNING, EventKind, reference_to

RELEASED: Final = "Released"
PARTY_FAILED: Final = "PartyFailed"
"""A condition: the attempt has failed as far as is known here, and partners may yet say why (`kuscia_task_plan`)."""
_FALSE: Final[ConditionStatus] = "False"


class TaskPlan(msgspec.Struct, frozen=True):
    """`allocated`: port numbers that the actions write, to be noted in the ledger before they are carried out. `absent`: what
    the actions take to be gone; a cache that lags may only not show it yet, so the store is asked first."""

    actions: Sequence[Action] = ()
    requeue_after_s: float | None = None
    allocated: Sequence[PartyAllocatedPorts] | None = None
    absent: Sequence[Target] = ()
    is_making: bool = False
    """Whether the actions make objects that the caches show a moment later."""


# -- between attempts -------------------------------------------------------------------------------------------------------


def restart(
    state: TaskState,
    reason: str,
    message: str,
    found: Evaluation | None = None,
    *,
    pause_s: float = 0.0,
    is_preemption: bool = False,
    absent: Sequence[Target] = (),
) -> TaskPlan:
    """This attempt is over, and another one follows. What is written here is all that the next step needs."""
    parties = [{**party, "phase": "Pending"} for party in (found.parties if found is not None else [])]
    for party in parties:
        party.pop("reason", None)
        party.pop("message", None)
    status: Raw = {
        "phase": "Pending",
        "reason": reason,
        "message": message,
        "retryTime": format_time(math.ceil(state.now + pause_s)),
        "progress": 0.0,
        "conditions": with_conditions(
            state,
            ("ResourceCreated", "False", reason, ""),
            ("Running", "False", reason, ""),
            ("Success", "False", reason, ""),
            *([(PARTY_FAILED, _FALSE, reason, "")] if is_true(state.status.get("conditions"), PARTY_FAILED) else []),
        ),
    }
    if found is not None:
        status |= {"partyTaskStatus": parties, "podStatuses": found.pods}
    if is_preemption:
        status["preemptions"] = state.view.status.preemptions + 1
        status["attainedSeconds"] = task_attained_s(state.task, state.view, state.now)
    told = event_of(state, WARNING, reason, f"attempt {state.attempt} is over: {message}")
    return TaskPlan([*write_status(state, status), told], absent=absent)


def between_attempts(state: TaskState) -> TaskPlan:
    """Delete the old attempt, wait until it is gone and the pause is over, then begin the next one."""
    if state.group is not None:
        if labels_of(state.group).get(KusciaLabel.TASK_UID) == state.uid and state.group_attempt > state.attempt:
            return TaskPlan()  # the cache of tasks lags
        return TaskPlan([] if is_deleting(state.group) else [Delete(target_of(state.group))])
    left = [pod.key for pod in state.pods]
    if left or state.others:
        # They go by themselves, since their owner is gone. One on a silent node stays until its end is certain. They are not
        # deleted from here: if the caches of tasks and groups lag, they may be the next attempt's already.
        waits_for = f"; waits until {short_list(left)} has ended" if left else ""
        message = state.view.status.message.partition("; waits until ")[0] + waits_for
        return TaskPlan(write_status(state, {"message": message}))
    left_s = time_or(state.view.status.retry_time, state.now) - state.now
    if left_s > 0:
        return TaskPlan((), left_s)
    status: Raw = {"attempts": state.attempt + 1, "retryTime": None, "podStatuses": {}, "serviceStatuses": {}}
    return TaskPlan(write_status(state, status))


# -- the end ----------------------------------------------------------------------------------------------------------------


def finish(state: TaskState, phase: str, reason: str, message: str, found: Evaluation | None = None) -> TaskPlan:
    """The task is over. What it still has is taken away afterwards, by `clean_up`."""
    is_good = phase == "Succeeded"
    status: Raw = {**(status_from(found) if found is not None else {}), "phase": phase, "reason": reason, "message": message}
    if not is_good:
        parties: Any = found.parties if found is not None else state.status.get("partyTaskStatus")
        status["partyTaskStatus"] = _ended_parties(state, parties, reason, message)
    pods = found.pods if found is not None else obj(state.status, "podStatuses")
    status["podStatuses"] = {
        key: pod if pod.get("podPhase") in TASK_ENDED else {**pod, "podPhase": "Failed", "reason": reason}
        for key, pod in pods.items()
        if isinstance(pod, dict)
    }
    status["completionTime"] = format_time(state.now)
    status["startTime"] = state.view.status.start_time or status["completionTime"]
    status["retryTime"] = None
    status["conditions"] = with_conditions(
        state,
        ("Running", "False", reason, ""),
        ("Success", "True" if is_good else "False", reason, message),
        ("StatusSynced", "True", reason, ""),
    )
    told = event_of(state, NORMAL if is_good else WARNING, reason, message or f"task {state.view.metadata.name} has succeeded")
    return TaskPlan([*write_status(state, status), told])


def _ended_parties(state: TaskState, known: Any, reason: str, message: str) -> list[Raw]:
    """On failure, own parties that had not ended have failed; partners' status is theirs to say."""
    found = {(str(p.get("domainID", "")), str(p.get("role", ""))): p for _, p in objs({"p": known}, "p", "")}
    result: list[Raw] = []
    for party in state.view.spec.parties:
        who = (party.domain_id, party.role)
        entry = dict(found.get(who) or {"domainID": party.domain_id, **({"role": party.role} if party.role else {})})
        facts = state.find_party(party.domain_id)
        if entry.get("phase") not in TASK_ENDED and (facts is None or not facts.is_partner):
            entry |= {"phase": "Failed", "reason": reason}
            if message:
                entry["message"] = message
        result.append(entry)
    return result


def clean_up(state: TaskState) -> TaskPlan:
    """After the end: running pods, services and files go; pods that ended stay for their logs, with the group, their owner."""
    actions: list[Action] = []
    live = [pod for pod in state.pods if not pod.is_finished]
    deletes = tuple(Delete(target) for target in (*_pods(live), *state.others))
    if deletes:
        actions.append(Together(deletes))
    group, group_view = state.group, state.group_view
    is_open = group_view is not None and group_view.status.phase not in ("Reserved", "Failed")
    is_ours = group is not None and labels_of(group).get(KusciaLabel.TASK_UID) == state.uid
    if group is not None and is_open and is_ours and not is_deleting(group) and Muster.STOP not in annotations_of(group):
        # Whoever looks after the reservation gives it up: partners may hold resources for it.
        stop = {"metadata": {"annotations": {Muster.STOP: state.view.status.reason or "Ended"}}}
        actions.append(Patch(target_of(group), stop))
    if not actions and not live:
        told = "what ended is kept for its logs"
        actions += write_status(
            state, {"conditions": with_conditions(state, ("ResourceCreated", "False", RELEASED, told))}, is_reconcile=False
        )
    return TaskPlan(actions)


def leave(state: TaskState) -> TaskPlan:
    """The task is being deleted: its group goes first, and with it everything else."""
    if Muster.TASK_FINALIZER not in finalizers_of(state.task):
        return TaskPlan()
    group = state.group
    if group is not None and labels_of(group).get(KusciaLabel.TASK_UID) == state.uid:
        return TaskPlan([] if is_deleting(group) else [Delete(target_of(group))])
    if state.pods or state.others:
        orphans = tuple(Delete(one) for one in (*_pods(state.pods), *state.others))
        return TaskPlan([Together(orphans)] if orphans else [])
    release = without_finalizer(state.task, Muster.TASK_FINALIZER)
    if group is not None:
        return TaskPlan([release])  # somebody else's; nothing of this task was made
    # The cache may not show a group that was made a moment ago, so it is deleted by name as well: no other task has this one.
    return TaskPlan([Delete(Target(GROUP, GROUP_KIND, state.view.metadata.name)), release])


# -- pieces -----------------------------------------------------------------------------------------------------------------


def write_status(state: TaskState, status: Raw, *, is_reconcile: bool = True) -> list[Action]:
    """The write that makes the status so, from the version that was read; nothing when it is so already."""
    patch = difference(state.status, status)
    if not patch:
        return []
    if is_reconcile:
        patch["lastReconcileTime"] = format_time(state.now)
    return [PatchStatus(target_of(state.task, at_version=True), patch)]


def event_of(state: TaskState, kind: EventKind, reason: str, message: str) -> Emit:
    return Emit(reference_to(state.task), kind, reason, message)


def _pods(pods: Sequence[TaskPod]) -> list[Target]:
    """Those that nobody has deleted yet."""
    alive = (pod.metadata for pod in pods if not pod.metadata.deletion_timestamp)
    return [Target("", "Pod", meta.name, meta.namespace, meta.uid) for meta in alive]


def status_from(found: Evaluation) -> Raw:
    return {"partyTaskStatus": found.parties, "podStatuses": found.pods, "progress": found.progress}
