"""What the task controller makes of a pod: how far it is, why it waits, how it ended, who ended it. Pure.

| seen on the pod | it counts as |
|---|---|
| phase Succeeded | succeeded |
| phase Failed | failed, unless it had to give way (below) |
| a container waits for one of `pod_views.STUCK`, an image for longer than `IMAGE_WAIT_S` | failed, though it is still there |
| deleted by others, or Failed with DisruptionTarget or by its node (`pod_views.ended_by_node`) | lost: it had to give way |
| anything else | pending or running |
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from muster.controllers.job_work import Said
from muster.controllers.pod_views import (
    IMAGE_WAITS,
    MESSAGE_LEN_MAX,
    STUCK,
    PodView,
    ended_by_node,
    failure,
    reported_progress,
    stuck_container,
    waiting_reason,
)
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.reason_codes import Reason
from muster.objects.status import Raw
from muster.objects.time import time_or

IMAGE_WAIT_S: Final = 600.0
"""How long an image may fail to come before the pod counts as failed: a registry may be down for a while, not for ever."""
LOG_LEN_MAX: Final = 2_048

State = Literal["pending", "running", "succeeded", "failed", "lost"]


class TaskPod(PodView):
    """A pod of a task or a deployment."""

    @property
    def group_uid(self) -> str:
        return self.metadata.labels.get(KusciaLabel.TASK_RESOURCE_GROUP_UID, "")

    @property
    def said(self) -> Said:
        meta = self.metadata
        work = meta.annotations.get(Muster.WORK, "")
        return Said(namespace=meta.namespace, name=meta.name, uid=meta.uid, work=work, is_bound=bool(self.spec.node_name))


class Finding(msgspec.Struct, frozen=True):
    """How a pod stands. `reason` is a code where there is one, `again_s` when to look again though nothing changes."""

    state: State
    reason: str = ""
    message: str = ""
    again_s: float | None = None


def finding(pod: TaskPod, now: float) -> Finding:
    """How this pod stands, as it was last seen."""
    status = pod.status
    if status.phase == "Succeeded":
        return Finding("succeeded")
    if (why := gave_way(pod)) is not None:
        return Finding("lost", why[0].value, why[1])
    if status.phase == "Failed":
        return Finding("failed", *failure(pod, has_log=False))
    stuck = stuck_container(pod)
    if stuck is not None:
        word, message = stuck
        code = STUCK[word].value
        if word not in IMAGE_WAITS:
            return Finding("failed", code, message)
        left_s = time_or(status.start_time, now) + IMAGE_WAIT_S - now
        if left_s <= 0:
            return Finding("failed", code, f"{message}; the image did not come in {IMAGE_WAIT_S / 60:g} minutes")
        return Finding("running" if status.phase == "Running" else "pending", code, message, left_s)
    if status.phase == "Running":
        return Finding("running")
    return Finding("pending", *waiting_reason(pod))


def gave_way(pod: TaskPod) -> tuple[Reason, str] | None:
    """Why it was ended by others; None when it was not. A pod that is only marked, and still runs, was not."""
    status, name = pod.status, pod.key
    is_over = pod.is_deleting or status.phase == "Failed"
    if not is_over or status.phase == "Succeeded":
        return None
    target = status.condition("DisruptionTarget")
    if target is not None and target.status == "True":
        code = Reason.PREEMPTED if target.reason == "PreemptionByScheduler" else Reason.EVICTED_BY_ADMIN
        return code, f"pod {name} had to give way: {target.message or target.reason}"
    if status.phase == "Failed":
        why = ended_by_node(pod)
        return (Reason.EVICTED_BY_ADMIN, f"pod {name} was ended by its node ({why})") if why else None
    return Reason.EVICTED_BY_ADMIN, f"pod {name} was deleted"


def progress_of(pod: TaskPod) -> float | None:
    """What the pod reports, from 0 to 1; None when it reports nothing that can be read."""
    return 1.0 if pod.status.phase == "Succeeded" else reported_progress(pod)


def pod_status(pod: TaskPod, found: Finding) -> Raw:
    """The pod's entry in `status.podStatuses`."""
    status, meta = pod.status, pod.metadata
    scheduled, ready = status.condition("PodScheduled"), status.condition("Ready")
    lost_log = next((c.state.terminated.message for c in status.containers if c.state.terminated is not None), "")
    entry: Raw = {
        "podName": meta.name,
        "namespace": meta.namespace,
        "podPhase": status.phase or "Pending",
        "nodeName": pod.spec.node_name,
        "reason": found.reason or status.reason,
        "message": (found.message or status.message)[:MESSAGE_LEN_MAX],
        "terminationLog": lost_log[-LOG_LEN_MAX:] if status.phase == "Failed" else "",
        "createTime": meta.creation_timestamp,
        "scheduleTime": scheduled.last_transition_time if scheduled is not None and scheduled.status == "True" else "",
        "startTime": status.start_time,
        "readyTime": ready.last_transition_time if ready is not None and ready.status == "True" else "",
    }
    return {key: value for key, value in entry.items() if value or key in ("podName", "namespace", "podPhase")}
