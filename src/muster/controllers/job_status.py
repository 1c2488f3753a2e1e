"""The status of a Job (muster.dev): counts of its pods, conditions, the patches that begin an attempt and end the job. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from muster.controllers.job_pod_facts import PodFacts
from muster.objects.conditions import ConditionStatus, find_condition, set_condition
from muster.objects.kinds.muster_jobs import Job, JobSpec, JobStatus, RoleStatus
from muster.objects.meta import generation_of
from muster.objects.reason_codes import Reason
from muster.objects.status import Raw
from muster.objects.time import format_time

if TYPE_CHECKING:
    from muster.controllers.job_plan import Situation

SCHEDULED, COMPLETE, FAILED, SUSPENDED = "Scheduled", "Complete", "Failed", "Suspended"
_PLACED: Final = ("Starting", "Running", "Succeeded")


class Tally(msgspec.Struct):
    """The pods of one role in the present attempt."""

    pending: int = 0
    running: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    bound: int = 0
    """Have a node, or had one."""
    ended: int = 0
    """Were told to go and did: no failure of their own."""
    lost: int = 0
    """Not there. Pods that had succeeded when the status was last written, and are gone since, are not lost: they count on."""

    @property
    def up(self) -> int:
        return self.running + self.succeeded + self.failed

    def status(self, name: str) -> RoleStatus:
        return RoleStatus(
            name=name,
            pending=self.pending,
            running=self.running,
            ready=self.ready,
            succeeded=self.succeeded,
            failed=self.failed,
        )


def tally(job: Job, pods: Sequence[PodFacts]) -> dict[str, Tally]:
    """By role. `pods` of other attempts are left out."""
    counts = {role.name: Tally() for role in job.spec.roles}
    for pod in pods:
        count = counts.get(pod.role)
        if count is None or pod.attempt != job.status.attempts:
            continue
        count.bound += pod.is_bound
        match pod.phase:
            case "Succeeded":
                count.succeeded += 1
            case "Failed":
                count.ended += pod.is_deleting
                count.failed += not pod.is_deleting
            case "Running":
                count.running += 1
                count.ready += pod.is_ready
            case _:
                count.pending += 1
    recorded = {role.name: role.succeeded for role in job.status.roles}
    for role in job.spec.roles:
        count = counts[role.name]
        there = count.pending + count.running + count.succeeded + count.failed + count.ended
        missing = max(role.replicas - there, 0)
        known = min(max(recorded.get(role.name, 0) - count.succeeded, 0), missing)
        count.succeeded += known
        count.bound += known
        count.lost = missing - known
    return counts


def roles_of(job: Job, counts: Mapping[str, Tally], *, is_over: bool) -> list[Raw]:
    """The counts as the status has them. What failed stays told when the job is over and its pods are cleaned up."""
    recorded = {role.name: role.failed for role in job.status.roles}
    found: list[Raw] = []
    for role in job.spec.roles:
        status = counts[role.name].status(role.name)
        if is_over:
            status = msgspec.structs.replace(status, failed=max(status.failed, recorded.get(role.name, 0)))
        found.append(msgspec.to_builtins(status))
    return found


def progress_of(at: Situation, counts: Mapping[str, Tally]) -> float:
    """The mean over the pods that report some, in whole percent; those that succeeded count as done. When none reports, the
    share of the required pods that have succeeded."""
    reported = [
        pod.progress for pod in at.pods if pod.attempt == at.attempt and pod.progress is not None and not pod.is_finished
    ]
    done = sum(counts[role.name].succeeded for role in at.job.spec.roles if role.completion == "Required")
    total = sum(role.replicas for role in at.job.spec.roles if role.completion == "Required")
    if not reported:
        return round(done / total, 2)
    return round((sum(reported) + done) / (len(reported) + done), 2)


def dominant(pods: Iterable[PodFacts]) -> tuple[str, str]:
    """The reason that most pods give, and the message of the first of them; empty when none gives one."""
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for pod in sorted(pods, key=lambda pod: (len(pod.name), pod.name)):
        if pod.reason:
            counts[pod.reason] += 1
            found.setdefault(pod.reason, f"pod {pod.name}: {pod.message}" if pod.node else pod.message)
    if not counts:
        return "", ""
    reason = min(counts, key=lambda code: (-counts[code], code))
    return reason, found[reason].removeprefix(f"{reason}: ")


def told(status: JobStatus) -> str:
    return ": ".join(word for word in (status.reason, status.message) if word)


def begin_attempt(status: JobStatus, now: float, reason: Reason, message: str, spec: JobSpec) -> Raw:
    """Back to the queue, or into it for the first time. Its place there is by `submittedTime`, which the caller sets anew when
    the job was not in the queue, nor came from it."""
    return {
        "phase": "Queued",
        "reason": reason.value,
        "message": message,
        "attempts": status.attempts + 1,
        "queuedTime": format_time(now),
        "startTime": None,
        "runningTime": None,
        "completionTime": None,
        "retryTime": None,
        "roles": [{"name": role.name} for role in spec.roles],
        "progress": 0,
    }


def end(now: float, phase: str, reason: Reason, message: str) -> Raw:
    return {
        "phase": phase,
        "reason": reason.value,
        "message": message,
        "completionTime": format_time(now),
        "retryTime": None,
        "place": None,
        "startEstimate": None,
    }


def conditions_for(raw: Raw, phase: str, reason: str, message: str, now: float) -> list[Raw]:
    """`Scheduled` always; the others appear when they first hold and say since when they no longer do."""
    conditions = (raw.get("status") or {}).get("conditions")
    facts: Mapping[str, bool] = {
        SCHEDULED: phase in _PLACED,
        COMPLETE: phase == "Succeeded",
        FAILED: phase in ("Failed", "Cancelled"),
        SUSPENDED: phase == "Suspended",
    }
    for type_, holds in facts.items():
        if not holds and type_ != SCHEDULED and find_condition(conditions, type_) is None:
            continue
        if phase in ("Failed", "Cancelled") and type_ == SCHEDULED and find_condition(conditions, type_) is not None:
            continue  # how far it came
        value: ConditionStatus = "True" if holds else "False"
        conditions = set_condition(
            conditions,
            type_=type_,
            status=value,
            now=now,
            reason=reason or "Unknown",
            message=message or reason or "unknown",
            observed_generation=generation_of(raw),
        )
    return list(conditions or [])
