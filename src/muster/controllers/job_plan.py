"""The life of a Job (muster.dev): from its spec, its status and its pods follows what to write next. Pure.

```
          (new) ──> Queued ──> Starting ──> Running ──> Succeeded
                      ^  ^         │           │
                      │  └─────────┴───────────┤ gave way: preempted, evicted, pods lost (preemptions + 1)
                      │                        │ failed, and may be retried (failures + 1, after a back-off)
   Running again ── Suspended <── state ───────┤
                    Failed   <── failed too often, too long, or state Stopped (only then it can run again)
                    Cancelled <── state Cancelled
```

`status.attempts` numbers the attempts. Every pod carries the number of its own, and its name stays the same in all of them. So:

- a transition is one write of the status, and only on the version that it was decided on; nothing else is in its plan;
- a pod is made only for the present attempt, in phase Queued, when no pod of another attempt is left, and after the status was
  found to be unchanged in the store: a late reader can't revive what has ended;
- in Starting and Running no pod is made. One that is missing is lost, and the whole attempt gives way. Missing is decided only
  on pods read from the store itself (`is_fresh`), since a cache may not have heard of them yet;
- pods of other attempts, and those that still wait or run when the job has ended or is suspended, are deleted. Finished pods of
  the present attempt stay for their logs, until the job goes or its next attempt begins.

The plan is the same for the same inputs; carrying it out twice, or half, and planning again ends in the same state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster.controllers.actions import Action, Create, Delete, Emit, Expect, PatchStatus, Target, Together, target_of
from muster.controllers.job_pod_facts import PodFacts
from muster.controllers.job_status import (
    Tally,
    begin_attempt,
    conditions_for,
    dominant,
    end,
    progress_of,
    roles_of,
    tally,
    told,
)
from muster.controllers.job_work import attained_s, job_work, said_anew, work_notes
from muster.controllers.runtime import Plan
from muster.objects.job_pods import JobPods, priority_class
from muster.objects.kinds.muster_jobs import Job
from muster.objects.meta import generation_of, metadata_of
from muster.objects.reason_codes import Reason
from muster.objects.status import Raw
from muster.objects.time import format_time, time_or
from muster.store.backoff import doubled_s
from muster.store.events import NORMAL, WARNING

ENDED: Final = ("Succeeded", "Failed", "Cancelled")
ACTIVE: Final = ("Queued", "Starting", "Running")
CREATES_MAX: Final = 512
"""Pods made in one go; the rest follow at once, and other jobs have their turn in between."""
AGAIN_S: Final = 0.2
NAMES_MAX: Final = 3
ENDING_S: Final = 30.0
"""Pods that take longer to end are named as what the next attempt waits for."""
WAITS_FOR_OLD: Final = "waits for"
# Some API servers refuse an empty text in the status of a custom kind, so there always is one.
UNTRIED: Final = "waits to be tried"
PLACED: Final = "its pods have nodes"
UP: Final = "its pods run"


class Present(msgspec.Struct, frozen=True):
    """What is there beside the pods: names of PodGroups and of the Service that belong to the job, and its PriorityClass."""

    groups: frozenset[str] = frozenset()
    has_service: bool = False
    has_priority: bool = False


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """A job as last seen, its pods (those that it controls), and the time."""

    raw: Raw
    job: Job
    pods: Sequence[PodFacts]
    present: Present = Present()
    now: float
    is_fresh: bool = False
    """Whether the pods were read from the store after the job was."""
    invalid: str = ""
    """What is wrong with its spec; such a job has no pods to make."""

    @property
    def attempt(self) -> int:
        return self.job.status.attempts

    def current(self) -> dict[str, PodFacts]:
        return {pod.name: pod for pod in self.pods if pod.attempt == self.attempt}

    def stale(self) -> list[PodFacts]:
        return [pod for pod in self.pods if pod.attempt != self.attempt]


def plan(at: Situation) -> Plan | None:
    """What to do next. None: the pods must be read from the store first, then ask again with `is_fresh`."""
    try:
        change = _transition(at)
    except _Stale:
        return None
    if change is not None:
        return Plan(_write(at, change))
    if at.job.status.phase in ACTIVE:
        return _carry_on(at)
    return _put_in_order(at)


class _Stale(Exception):
    """A pod seems to be lost, and the cache is no witness for that."""


# -- transitions --------------------------------------------------------------------------------------------------------------


def _transition(at: Situation) -> Raw | None:
    """The status members that the next phase or attempt brings; None when the job stays where it is."""
    status, wanted = at.job.status, at.job.spec.state
    phase = status.phase
    is_stopped = phase == "Failed" and status.reason == Reason.STOPPED.value
    if phase in ENDED and not is_stopped:
        return None
    if wanted == "Cancelled":
        return end(at.now, "Cancelled", Reason.CANCELLED, "its owner cancelled it")
    if is_stopped and wanted != "Running":
        return None
    if at.invalid and phase not in ACTIVE:
        return end(at.now, "Failed", Reason.MANIFEST_INVALID, at.invalid)
    if wanted == "Stopped":
        return end(at.now, "Failed", Reason.STOPPED, "its owner stopped it; set spec.state to Running to run it again")
    if wanted == "Suspended":
        return None if phase == "Suspended" else _suspend(at)
    if phase not in ACTIVE:
        change = begin_attempt(status, at.now, Reason.QUEUED, UNTRIED, at.job.spec)
        change["submittedTime"] = format_time(at.now)
        return {**change, "failures": 0, "attainedSeconds": 0} if is_stopped else change
    return _outcome(at)


def _suspend(at: Situation) -> Raw:
    return {
        "phase": "Suspended",
        "reason": Reason.SUSPENDED.value,
        "message": "its owner suspended it; set spec.state to Running to go on",
        "startTime": None,
        "runningTime": None,
        "attainedSeconds": attained_s(at.job, at.now),
        "retryTime": None,
        "place": None,
        "startEstimate": None,
    }


def _outcome(at: Situation) -> Raw | None:
    """Of an attempt that waits or runs: done, failed, gave way, out of time, or one step further."""
    current, counts = at.current(), tally(at.job, at.pods)
    if all(counts[role.name].succeeded >= role.replicas for role in at.job.spec.roles if role.completion == "Required"):
        return end(at.now, "Succeeded", Reason.SUCCEEDED, "all required replicas ended with success")
    why = _gave_way(at, current, counts)
    if why:
        said = f"attempt {at.attempt} gave way and waits again, in its place: {why}"
        change = begin_attempt(at.job.status, at.now, Reason.PREEMPTED, said, at.job.spec)
        return {**change, "preemptions": at.job.status.preemptions + 1, "attainedSeconds": attained_s(at.job, at.now)}
    failed = next((pod for pod in sorted(current.values(), key=_by_name) if pod.phase == "Failed"), None)
    if failed is not None:
        return _failed(at, failed)
    return _out_of_time(at) or _step(at, current, counts)


def _by_name(pod: PodFacts) -> tuple[int, str]:
    return len(pod.name), pod.name


def _gave_way(at: Situation, current: Mapping[str, PodFacts], counts: Mapping[str, Tally]) -> str:
    for pod in sorted(current.values(), key=_by_name):
        if pod.gave_way and (pod.is_bound or at.job.status.phase != "Queued"):
            return f"pod {pod.name}: {pod.gave_way}"
        # A pod that was told to go may be seen only when it has ended, and then it looks like a failure.
        if pod.is_deleting and pod.phase != "Succeeded" and (pod.is_bound or at.job.status.phase != "Queued"):
            where = f" on node {pod.node}" if pod.node else ""
            return f"pod {pod.name}{where} is being deleted"
    if at.job.status.phase == "Queued":
        return ""  # what is missing was not made yet, or never started
    lost = sum(count.lost for count in counts.values())
    if lost and not at.is_fresh:
        raise _Stale
    if not lost:
        return ""
    names = [name for name, _, _ in JobPods(at.raw, at.job).names() if name not in current][:NAMES_MAX]
    return f"{lost} pods are gone, which nobody here deleted: {', '.join(names)}"


def _failed(at: Situation, pod: PodFacts) -> Raw:
    status, retry = at.job.status, at.job.spec.retry
    where = f" on node {pod.node}" if pod.node else ""
    said = f"pod {pod.name}{where}: {pod.message}"
    failures = status.failures + 1
    if failures > retry.limit:
        if retry.limit:
            text = f"failed {failures} times, and retry.limit is {retry.limit}; the last time {said}"
            change = end(at.now, "Failed", Reason.RETRIES_EXHAUSTED, text)
        else:
            change = end(at.now, "Failed", Reason(pod.reason), said)
        return {**change, "failures": failures}
    wait_s = doubled_s(retry.backoff_seconds, failures - 1, retry.backoff_seconds_max)
    text = f"attempt {at.attempt} failed, the next one waits {wait_s:.0f} s ({failures} of {retry.limit} retries): {said}"
    change = begin_attempt(status, at.now, Reason.BACKING_OFF, text, at.job.spec)
    return {**change, "failures": failures, "retryTime": format_time(at.now + wait_s)}


def _out_of_time(at: Situation) -> Raw | None:
    deadline = _deadline(at)
    if deadline is None or at.now < deadline:
        return None
    spec, status = at.job.spec, at.job.status
    if status.phase == "Queued":
        text = f"not started within {spec.scheduling_deadline_seconds} s; the last reason: {told(status) or 'none'}"
        return end(at.now, "Failed", Reason.SCHEDULING_TIMEOUT, text)
    text = f"took longer than the {spec.active_deadline_seconds} s of spec.activeDeadlineSeconds"
    return end(at.now, "Failed", Reason.RUN_TIME_EXCEEDED, text)


def _deadline(at: Situation) -> float | None:
    """When the job runs out of time where it stands."""
    spec, status = at.job.spec, at.job.status
    if status.phase == "Queued":
        since = max(time_or(status.queued_time, at.now), time_or(status.retry_time, 0.0))
        return None if spec.scheduling_deadline_seconds is None else since + spec.scheduling_deadline_seconds
    return None if spec.active_deadline_seconds is None else time_or(status.start_time, at.now) + spec.active_deadline_seconds


def _step(at: Situation, current: Mapping[str, PodFacts], counts: Mapping[str, Tally]) -> Raw | None:
    """Queued, Starting, Running: each once in an attempt, and never back."""
    phase = at.job.status.phase
    least = {role.name: role.min_replicas or role.replicas for role in at.job.spec.roles}
    is_up = all(counts[name].up >= number for name, number in least.items())
    up = {"phase": "Running", "reason": Reason.STARTED.value, "message": UP, "runningTime": format_time(at.now)}
    if phase == "Queued":
        is_whole = all(count.lost == 0 for count in counts.values())
        if not is_whole or not all(counts[name].bound >= number for name, number in least.items()):
            return None
        entered = {"startTime": format_time(at.now), "retryTime": None, "place": None, "startEstimate": None}
        if not is_up:
            return {"phase": "Starting", "reason": Reason.SCHEDULED.value, "message": PLACED, **entered}
        return {**up, **entered}
    return up if phase == "Starting" and is_up else None


# -- between transitions ------------------------------------------------------------------------------------------------------


def _carry_on(at: Situation) -> Plan:
    """Delete what is of other attempts, make what is missing, and tell how it goes."""
    status = at.job.status
    retry_at = time_or(status.retry_time, None)
    is_waiting = status.phase == "Queued" and retry_at is not None and at.now < retry_at
    stale = at.stale()
    # What failed stays for its log until the next attempt needs the name.
    doomed = [pod for pod in stale if not pod.is_deleting and not (pod.is_finished and is_waiting)]
    actions: list[Action] = _deletions(at, doomed)
    missing = 0
    if status.phase == "Queued" and not is_waiting and not stale:
        made, missing = _creations(at)
        actions += made
    actions += said_anew(at.raw, job_work(at.raw, at.job), [p.said for p in at.current().values() if p.is_alive])
    refreshed = _refresh(at, stale, is_waiting=is_waiting)
    patience_ends = _patience_ends(at) if stale and at.now < _patience_ends(at) else None
    instants = [one for one in (_deadline(at), retry_at if is_waiting else None, patience_ends) if one is not None]
    again_s = max(min(instants) - at.now, 0.0) if instants else None
    if missing > CREATES_MAX:
        again_s = AGAIN_S
    return Plan(_fenced(at, refreshed, actions), again_s)


def _put_in_order(at: Situation) -> Plan:
    """Ended or suspended: nothing of it may wait or run any more."""
    doomed = [pod for pod in at.pods if not pod.is_finished and not pod.is_deleting]
    return Plan(_fenced(at, _refresh(at, (), is_waiting=False), _deletions(at, doomed)))


def _deletions(at: Situation, pods: Sequence[PodFacts]) -> list[Action]:
    namespace = str(metadata_of(at.raw).get("namespace", ""))
    if not pods:
        return []
    return [Together(tuple(Delete(Target("", "Pod", pod.name, namespace, pod.uid)) for pod in sorted(pods, key=_by_name)))]


def _creations(at: Situation) -> tuple[list[Action], int]:
    """What is missing, in the order in which it is needed; and how many pods are. Making what is there changes nothing."""
    made = JobPods(at.raw, at.job, work_notes(job_work(at.raw, at.job)))
    actions: list[Action] = []
    if made.has_service and not at.present.has_service:
        actions.append(Create(made.service()))
    actions += [Create(group) for group in made.groups() if group["metadata"]["name"] not in at.present.groups]
    known = {pod.name for pod in at.pods}
    missing = [(role, index) for name, role, index in made.names() if name not in known]
    if missing and at.job.spec.priority and not at.present.has_priority:
        actions.append(Create(priority_class(at.job.spec.priority)))
    if missing:
        actions.append(Together(tuple(Create(made.pod(role, index, at.attempt)) for role, index in missing[:CREATES_MAX])))
    return actions, len(missing)


def _fenced(at: Situation, refreshed: Raw, actions: Sequence[Action]) -> list[Action]:
    """`actions` only if the job in the store is the one that was seen."""
    if not refreshed and not actions:
        return []
    target = target_of(at.raw, at_version=True)
    return [PatchStatus(target, refreshed) if refreshed else Expect(target), *actions]


def _refresh(at: Situation, stale: Sequence[PodFacts], *, is_waiting: bool) -> Raw:
    """The members of the status that differ from what is so now."""
    status, phase = at.job.status, at.job.status.phase
    new: Raw = {"observedGeneration": generation_of(at.raw)}
    counts = tally(at.job, at.pods)
    if status.attempts:
        new["roles"] = roles_of(at.job, counts, is_over=phase not in ACTIVE)
    if phase in ACTIVE:
        new["progress"] = progress_of(at, counts)
        if not is_waiting:
            new |= _reason(at, stale, counts)
    reason, message = str(new.get("reason", status.reason)), str(new.get("message", status.message))
    new["conditions"] = conditions_for(at.raw, phase, reason, message, at.now)
    return _difference(at, new)


def _reason(at: Situation, stale: Sequence[PodFacts], counts: Mapping[str, Tally]) -> Raw:
    status, current = at.job.status, at.current()
    if status.phase == "Queued" and stale:
        if at.now < _patience_ends(at):
            return {}  # why the attempt before ended is worth more than that its pods are ending
        some = sorted(stale, key=_by_name)[:NAMES_MAX]
        names = ", ".join(f"{pod.name} on node {pod.node}" if pod.node else pod.name for pod in some)
        return {"message": f"{WAITS_FOR_OLD} {len(stale)} pods of the attempt before to end: {names}"}
    if status.phase == "Queued":
        if status.reason == Reason.CREATION_REFUSED.value and any(count.lost for count in counts.values()):
            return {}  # what the server said stands until it lets them be made
        reason, message = dominant(pod for pod in current.values() if not pod.is_bound)
        if not reason and status.reason == Reason.PREEMPTED.value and not status.message.startswith(WAITS_FOR_OLD):
            return {}
        return {"reason": reason or Reason.QUEUED.value, "message": message or UNTRIED}
    reason, message = dominant(pod for pod in current.values() if pod.is_bound and not pod.is_finished)
    calm, text = (Reason.STARTED, UP) if status.phase == "Running" else (Reason.SCHEDULED, PLACED)
    return {"reason": reason or calm.value, "message": message or text}


def _patience_ends(at: Situation) -> float:
    """From then on it is told whose end a queued job waits for."""
    return time_or(at.job.status.queued_time, at.now) + ENDING_S


def _difference(at: Situation, new: Raw) -> Raw:
    """Compared as the view reads them: a server may write out what we leave at its default."""
    status, old = at.job.status, at.raw.get("status") or {}
    known = {
        "observedGeneration": status.observed_generation,
        "roles": [msgspec.to_builtins(role) for role in status.roles],
        "progress": status.progress,
        "reason": status.reason,
        "message": status.message,
        "conditions": old.get("conditions") or [],
    }
    return {key: value for key, value in new.items() if known[key] != value}


# -- writing ------------------------------------------------------------------------------------------------------------------


def _write(at: Situation, change: Raw) -> list[Action]:
    """One write, then what to tell about it."""
    phase, reason, message = str(change["phase"]), str(change["reason"]), str(change["message"])
    new = {
        **change,
        "observedGeneration": generation_of(at.raw),
        "conditions": conditions_for(at.raw, phase, reason, message, at.now),
    }
    if "roles" not in change and at.attempt:
        counts = tally(at.job, at.pods)
        new["roles"] = roles_of(at.job, counts, is_over=phase not in ACTIVE)
        new["progress"] = 1.0 if phase == "Succeeded" else progress_of(at, counts)
    kind = (
        WARNING if phase in ("Failed", "Cancelled") or reason in (Reason.PREEMPTED.value, Reason.BACKING_OFF.value) else NORMAL
    )
    word = reason if reason in (Reason.PREEMPTED.value, Reason.BACKING_OFF.value) else phase
    return [
        PatchStatus(target_of(at.raw, at_version=True), new),
        Emit(at.raw, kind, word, f"{message} (attempt {at.attempt})" if phase in ("Starting", "Running") else message),
    ]
