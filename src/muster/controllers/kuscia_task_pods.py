"""What the task controller reads of a pod: how far it is, why it waits, how it ended, who ended it. Pure.

| seen on the pod | it counts as |
|---|---|
| phase Succeeded | succeeded |
| phase Failed | failed, unless it had to give way (below) |
| a container waits for one of `_FATAL`, or for its image for longer than `IMAGE_WAIT_S` | failed, though it is still there |
| deleted by others, or Failed with DisruptionTarget or a reason of `_GAVE_WAY` | lost: it had to give way |
| anything else | pending or running |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from muster.objects.labels import KusciaLabel, Muster
from muster.objects.reason_codes import Reason
from muster.objects.status import Raw
from muster.objects.time import Timestamp, parse_time
from muster.objects.view import View

IMAGE_WAIT_S: Final = 600.0
"""How long an image may fail to come before the pod counts as failed: a registry may be down for a while, not for ever."""
WAITING_CONDITION: Final = "muster.dev/Waiting"
LOG_LEN_MAX: Final = 2_048
_MESSAGE_LEN_MAX: Final = 500

_GAVE_WAY: Final = frozenset(
    {
        "Evicted",
        "Preempting",
        "Preempted",
        "NodeShutdown",
        "NodeLost",
        "NodeAffinity",
        "Shutdown",
        "Terminated",
        "NodeRestarted",
    }
)
_IMAGE_WAITS: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
_FATAL: Final[Mapping[str, Reason]] = {
    "CrashLoopBackOff": Reason.CONTAINER_FAILED,
    "ImageInspectError": Reason.IMAGE_UNAVAILABLE,
    "ErrImageNeverPull": Reason.IMAGE_UNAVAILABLE,
    "RegistryUnavailable": Reason.IMAGE_UNAVAILABLE,
    "InvalidImageName": Reason.IMAGE_UNAVAILABLE,
    "CreateContainerConfigError": Reason.CONTAINER_START_FAILED,
    "CreateContainerError": Reason.CONTAINER_START_FAILED,
    "PreStartHookError": Reason.CONTAINER_START_FAILED,
    "PostStartHookError": Reason.CONTAINER_START_FAILED,
    "RunContainerError": Reason.CONTAINER_START_FAILED,
}

State = Literal["pending", "running", "succeeded", "failed", "lost"]


class Waiting(View):
    reason: str = ""
    message: str = ""


class Terminated(View):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(View):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(View):
    name: str = ""
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class PodCondition(View):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: Timestamp = ""


class PodStatus(View):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: Timestamp = ""
    conditions: list[PodCondition] = msgspec.field(default_factory=list)
    container_statuses: list[ContainerStatus] = msgspec.field(default_factory=list)
    init_container_statuses: list[ContainerStatus] = msgspec.field(default_factory=list)

    def condition(self, type_: str) -> PodCondition | None:
        return next((one for one in self.conditions if one.type == type_), None)

    @property
    def containers(self) -> Sequence[ContainerStatus]:
        return (*self.init_container_statuses, *self.container_statuses)


class PodSpec(View):
    node_name: str = ""


class PodMeta(View):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: Timestamp = ""
    deletion_timestamp: Timestamp = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class TaskPod(View):
    metadata: PodMeta = msgspec.field(default_factory=PodMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def group_uid(self) -> str:
        return self.metadata.labels.get(KusciaLabel.TASK_RESOURCE_GROUP_UID, "")

    @property
    def is_finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


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
        return Finding("failed", *_failure(pod))
    for container in status.containers:
        waiting = container.state.waiting
        if waiting is None:
            continue
        said = f": {waiting.message[:_MESSAGE_LEN_MAX]}" if waiting.message else ""
        message = f"container {container.name}: {waiting.reason}{said}"
        if waiting.reason in _FATAL:
            return Finding("failed", _FATAL[waiting.reason].value, message)
        if waiting.reason in _IMAGE_WAITS:
            left_s = _moment(status.start_time, now) + IMAGE_WAIT_S - now
            if left_s <= 0:
                return Finding(
                    "failed",
                    Reason.IMAGE_UNAVAILABLE.value,
                    f"{message}; the image did not come in {IMAGE_WAIT_S / 60:g} minutes",
                )
            state: State = "running" if status.phase == "Running" else "pending"
            return Finding(state, Reason.IMAGE_UNAVAILABLE.value, message, left_s)
    if status.phase == "Running":
        return Finding("running")
    return Finding("pending", *waiting_reason(pod))


def gave_way(pod: TaskPod) -> tuple[Reason, str] | None:
    """Why it was ended by others; None when it was not. A pod that is only marked, and still runs, was not."""
    status, name = pod.status, pod.key
    target = status.condition("DisruptionTarget")
    is_marked = target is not None and target.status == "True"
    is_over = bool(pod.metadata.deletion_timestamp) or status.phase == "Failed"
    if not is_over or status.phase == "Succeeded":
        return None
    if is_marked and target is not None:
        code = Reason.PREEMPTED if target.reason == "PreemptionByScheduler" else Reason.EVICTED_BY_ADMIN
        return code, f"pod {name} had to give way: {target.message or target.reason}"
    if status.phase == "Failed":
        if status.reason in _GAVE_WAY:
            said = f": {status.message}" if status.message else ""
            return Reason.EVICTED_BY_ADMIN, f"pod {name} was ended by its node ({status.reason}{said})"
        return None
    return Reason.EVICTED_BY_ADMIN, f"pod {name} was deleted"


def waiting_reason(pod: TaskPod) -> tuple[str, str]:
    """Why a pod without a node waits, as its scheduler wrote it; empty when it has a node or nobody has looked at it yet."""
    if pod.spec.node_name:
        return "", ""
    own, plain = pod.status.condition(WAITING_CONDITION), pod.status.condition("PodScheduled")
    if own is not None and own.status == "True":
        return own.reason, own.message
    if plain is not None and plain.status == "False":
        return plain.reason, plain.message
    return "", ""


def _failure(pod: TaskPod) -> tuple[str, str]:
    status = pod.status
    for container in status.containers:
        ended = container.state.terminated
        if ended is None or ended.exit_code == 0:
            continue
        code = Reason.OOM_KILLED if ended.reason == "OOMKilled" else Reason.CONTAINER_FAILED
        said = f" ({ended.reason})" if ended.reason and ended.reason != "Error" else ""
        return code.value, f"container {container.name} ended with exit code {ended.exit_code}{said}"
    said = ": ".join(word for word in (status.reason, status.message) if word)
    return Reason.CONTAINER_FAILED.value, said[:_MESSAGE_LEN_MAX] or "the pod failed and says no more"


def progress_of(pod: TaskPod) -> float | None:
    """What the pod reports, from 0 to 1; None when it reports nothing that can be read."""
    if pod.status.phase == "Succeeded":
        return 1.0
    text = pod.metadata.annotations.get(Muster.PROGRESS, "")
    try:
        value = float(text) if 0 < len(text) <= 32 else -1.0
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None


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
        "message": (found.message or status.message)[:_MESSAGE_LEN_MAX],
        "terminationLog": lost_log[-LOG_LEN_MAX:] if status.phase == "Failed" else "",
        "createTime": meta.creation_timestamp,
        "scheduleTime": scheduled.last_transition_time if scheduled is not None and scheduled.status == "True" else "",
        "startTime": status.start_time,
        "readyTime": ready.last_transition_time if ready is not None and ready.status == "True" else "",
    }
    return {key: value for key, value in entry.items() if value or key in ("podName", "namespace", "podPhase")}


def _moment(text: str, default: float) -> float:
    try:
        return parse_time(text)
    except ValueError:
        return default
