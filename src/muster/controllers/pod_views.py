"""What the controllers of jobs, tasks and services read of a pod, and the rules about it that they share. Pure.

| seen on the pod | means |
|---|---|
| condition `muster.dev/Waiting`, else PodScheduled=False | it waits, for that reason |
| a container waits for one of `STUCK` | it does not come up, for that reason |
| phase Failed with `status.reason` Evicted, Preempting, NodeLost, OutOfcpu, ... | its node ended it: it had to give way |
| phase Failed, a container ended for one of `NEVER_RAN` | it could not be started, for the reason that its runtime gives |
| phase Failed otherwise | it failed by itself: the container's exit code says how |

What follows from it is each controller's own: `job_pod_facts` and `kuscia_task_pods`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster.objects.labels import Muster
from muster.objects.reason_codes import Reason
from muster.objects.time import Timestamp
from muster.objects.view import View

FINISHED: Final = ("Succeeded", "Failed")
MESSAGE_LEN_MAX: Final = 500
IMAGE_WAITS: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""Of `STUCK`, those that may pass: a registry may be away for a while."""
STUCK: Final[Mapping[str, Reason]] = {
    "ErrImagePull": Reason.IMAGE_UNAVAILABLE,
    "ImagePullBackOff": Reason.IMAGE_UNAVAILABLE,
    "ImageInspectError": Reason.IMAGE_UNAVAILABLE,
    "ErrImageNeverPull": Reason.IMAGE_UNAVAILABLE,
    "RegistryUnavailable": Reason.IMAGE_UNAVAILABLE,
    "InvalidImageName": Reason.IMAGE_UNAVAILABLE,
    "CreateContainerConfigError": Reason.CONTAINER_START_FAILED,
    "CreateContainerError": Reason.CONTAINER_START_FAILED,
    "PreStartHookError": Reason.CONTAINER_START_FAILED,
    "PostStartHookError": Reason.CONTAINER_START_FAILED,
    "RunContainerError": Reason.CONTAINER_START_FAILED,
    "CrashLoopBackOff": Reason.CONTAINER_FAILED,
}
"""Why a container waits, as kubelets say it, and our code for it."""
_ENDED_BY_NODE: Final = frozenset(
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
NEVER_RAN: Final = frozenset({"StartError", "ContainerCannotRun"})
"""Why a container ended that never ran, as runtimes say it. The message is then theirs, and no log."""
_NO_ROOM: Final = "OutOf"
"""`OutOfcpu` and the like: the node had no room after all."""


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

    def is_true(self, type_: str) -> bool:
        return any(one.type == type_ and one.status == "True" for one in self.conditions)

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


class PodView(View):
    metadata: PodMeta = msgspec.field(default_factory=PodMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def is_finished(self) -> bool:
        return self.status.phase in FINISHED

    @property
    def is_deleting(self) -> bool:
        return bool(self.metadata.deletion_timestamp)


def waiting_reason(pod: PodView) -> tuple[str, str]:
    """Why a pod without a node waits, as its scheduler wrote it; empty when it has a node or nobody has looked at it yet.

    Our scheduler's own condition has the code; another scheduler's says it in words only."""
    if pod.spec.node_name:
        return "", ""
    own, plain = pod.status.condition(Muster.WAITING), pod.status.condition("PodScheduled")
    if own is not None and own.status == "True":
        return own.reason, own.message
    if plain is not None and plain.status == "False":
        return plain.reason, plain.message
    return "", ""


def stuck_container(pod: PodView) -> tuple[str, str] | None:
    """The first container that waits for one of `STUCK`: for which, and in words."""
    for container in pod.status.containers:
        waiting = container.state.waiting
        if waiting is not None and waiting.reason in STUCK:
            said = f": {waiting.message[:MESSAGE_LEN_MAX]}" if waiting.message else ""
            return waiting.reason, f"container {container.name}: {waiting.reason}{said}"
    return None


def ended_by_node(pod: PodView) -> str:
    """Why a kubelet or an agent ended it, or lost it, though the work itself was in order; empty when that is not so.

    A node that went silent is not the end of its pods: only what is known to have ended counts."""
    status = pod.status
    if status.phase != "Failed" or not (status.reason in _ENDED_BY_NODE or status.reason.startswith(_NO_ROOM)):
        return ""
    return f"{status.reason}: {status.message}" if status.message else status.reason


def failure(pod: PodView, *, has_log: bool) -> tuple[str, str]:
    """Code and words for a pod that failed by itself; `has_log` adds the end of its log, as far as the container told it."""
    status = pod.status
    for container in status.containers:
        ended = container.state.terminated
        if ended is None or ended.exit_code == 0:
            continue
        if ended.reason in NEVER_RAN:
            why = ended.message or f"exit code {ended.exit_code}"
            said = f"container {container.name} could not be started: {why}"
            return Reason.CONTAINER_START_FAILED.value, said[:MESSAGE_LEN_MAX]
        code = Reason.OOM_KILLED if ended.reason == "OOMKilled" else Reason.CONTAINER_FAILED
        said = f" ({ended.reason})" if ended.reason and ended.reason != "Error" else ""
        more = f": {ended.message}" if ended.message and has_log else ""
        return code.value, f"container {container.name} ended with exit code {ended.exit_code}{said}{more}"[:MESSAGE_LEN_MAX]
    said = ": ".join(word for word in (status.reason, status.message) if word)
    return Reason.CONTAINER_FAILED.value, said[:MESSAGE_LEN_MAX] or "the pod failed and says no more"


def reported_progress(pod: PodView) -> float | None:
    """What it says of its own progress, from 0 to 1; None when it says nothing that can be read."""
    text = pod.metadata.annotations.get(Muster.PROGRESS, "")
    try:
        value = float(text) if 0 < len(text) <= 32 else -1.0
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None
