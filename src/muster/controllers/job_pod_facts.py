"""What the Job controller reads of a pod: how far it is, why it waits, how it ended, who ended it. Pure.

| seen on the pod | means |
|---|---|
| condition `muster.dev/Waiting`, else PodScheduled=False | it waits, for that reason |
| condition DisruptionTarget, `status.reason` Evicted, Preempting, NodeShutdown, NodeLost, ... | it had to give way |
| phase Failed otherwise | it failed by itself: the container's exit code says how |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from muster.objects.labels import Muster
from muster.objects.reason_codes import Reason
from muster.objects.view import View

FINISHED: Final = ("Succeeded", "Failed")
WAITING_CONDITION: Final = "muster.dev/Waiting"
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
"""`status.reason` of pods that a kubelet or an agent ended, or lost, though the work itself was in order."""
_WAITS: Final[Mapping[str, Reason]] = {
    "ErrImagePull": Reason.IMAGE_UNAVAILABLE,
    "ImagePullBackOff": Reason.IMAGE_UNAVAILABLE,
    "InvalidImageName": Reason.IMAGE_UNAVAILABLE,
    "ErrImageNeverPull": Reason.IMAGE_UNAVAILABLE,
    "CreateContainerError": Reason.CONTAINER_START_FAILED,
    "CreateContainerConfigError": Reason.CONTAINER_START_FAILED,
    "RunContainerError": Reason.CONTAINER_START_FAILED,
    "CrashLoopBackOff": Reason.CONTAINER_FAILED,
}
_MESSAGE_LEN_MAX: Final = 500


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


class PodStatus(View):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[PodCondition] = msgspec.field(default_factory=list)
    container_statuses: list[ContainerStatus] = msgspec.field(default_factory=list)
    init_container_statuses: list[ContainerStatus] = msgspec.field(default_factory=list)


class PodSpec(View):
    node_name: str = ""


class PodMeta(View):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class PodView(View):
    metadata: PodMeta = msgspec.field(default_factory=PodMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a job, as last seen."""

    name: str
    uid: str
    role: str = ""
    attempt: int = 0
    node: str = ""
    phase: str = "Pending"
    is_ready: bool = False
    is_deleting: bool = False
    gave_way: str = ""
    """Why it was ended by others, as far as it says so itself."""
    reason: str = ""
    """Code of why it waits, does not come up, or failed; empty when nothing is wrong."""
    message: str = ""
    progress: float | None = None

    @property
    def is_finished(self) -> bool:
        return self.phase in FINISHED

    @property
    def is_bound(self) -> bool:
        """Has a node, or had one."""
        return bool(self.node) or self.is_finished


def facts_of(pod: PodView) -> PodFacts:
    meta, status = pod.metadata, pod.status
    phase = status.phase or "Pending"
    reason, message = _trouble(pod)
    return PodFacts(
        name=meta.name,
        uid=meta.uid,
        role=meta.labels.get(Muster.ROLE, ""),
        attempt=_whole(meta.annotations.get(Muster.ATTEMPT, "")),
        node=pod.spec.node_name,
        phase=phase,
        is_ready=any(c.type == "Ready" and c.status == "True" for c in status.conditions),
        is_deleting=bool(meta.deletion_timestamp),
        gave_way=_gave_way(pod),
        reason=reason,
        message=message[:_MESSAGE_LEN_MAX],
        progress=_fraction(meta.annotations.get(Muster.PROGRESS, "")),
    )


def _gave_way(pod: PodView) -> str:
    status = pod.status
    if status.phase == "Succeeded":
        return ""
    for condition in status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return condition.message or condition.reason or "DisruptionTarget"
    # A node that went silent is not the end of its pods: only what is known to have ended is replaced.
    if status.phase == "Failed" and (status.reason in _GAVE_WAY or status.reason.startswith("OutOf")):
        return f"{status.reason}: {status.message}" if status.message else status.reason
    return ""


def _trouble(pod: PodView) -> tuple[str, str]:
    status = pod.status
    if status.phase == "Failed":
        return _failure(pod)
    if not pod.spec.node_name:
        return _waiting(status.conditions)
    for container in (*status.init_container_statuses, *status.container_statuses):
        waiting = container.state.waiting
        if waiting is not None and waiting.reason in _WAITS:
            said = f": {waiting.message}" if waiting.message else ""
            return _WAITS[waiting.reason].value, f"container {container.name}: {waiting.reason}{said}"
    return "", ""


def _waiting(conditions: Iterable[PodCondition]) -> tuple[str, str]:
    """The scheduler's own condition has the code; another scheduler's says it in words only."""
    found = {condition.type: condition for condition in conditions}
    own, plain = found.get(WAITING_CONDITION), found.get("PodScheduled")
    if own is not None and own.status == "True":
        return own.reason, own.message
    if plain is not None and plain.status == "False":
        return plain.reason, plain.message
    return "", ""


def _failure(pod: PodView) -> tuple[str, str]:
    status = pod.status
    for container in (*status.init_container_statuses, *status.container_statuses):
        ended = container.state.terminated
        if ended is None or ended.exit_code == 0:
            continue
        code = Reason.OOM_KILLED if ended.reason == "OOMKilled" else Reason.CONTAINER_FAILED
        said = f" ({ended.reason})" if ended.reason and ended.reason != "Error" else ""
        more = f": {ended.message}" if ended.message else ""
        return code.value, f"container {container.name} ended with exit code {ended.exit_code}{said}{more}"
    said = ": ".join(word for word in (status.reason, status.message) if word)
    return Reason.CONTAINER_FAILED.value, said or "the pod failed and says no more"


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0


def _fraction(text: str) -> float | None:
    try:
        value = float(text) if len(text) <= 32 else -1.0
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None
