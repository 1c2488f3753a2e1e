"""What the Job controller makes of a pod: how far it is, why it waits, how it ended, who ended it. Pure.

A pod had to give way when its condition DisruptionTarget says so, or its node ended it (`pod_views.ended_by_node`).
"""

from __future__ import annotations

import msgspec

from muster.controllers.job_work import Said
from muster.controllers.pod_views import (
    FINISHED,
    MESSAGE_LEN_MAX,
    STUCK,
    PodView,
    ended_by_node,
    failure,
    reported_progress,
    stuck_container,
    waiting_reason,
)
from muster.objects.labels import Muster
from muster.objects.words import whole_number


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a job, as last seen."""

    name: str
    namespace: str = ""
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
    work: str = ""
    """What it says about the job, as it was written on it."""
    version: str = ""
    """At which it was seen; empty where that does not matter."""

    @property
    def is_finished(self) -> bool:
        return self.phase in FINISHED

    @property
    def is_alive(self) -> bool:
        return not self.is_finished and not self.is_deleting

    @property
    def said(self) -> Said:
        return Said(
            namespace=self.namespace,
            name=self.name,
            uid=self.uid,
            work=self.work,
            is_bound=self.is_bound,
            version=self.version,
        )

    @property
    def is_bound(self) -> bool:
        """Has a node, or had one."""
        return bool(self.node) or self.is_finished


def facts_of(pod: PodView, version: str = "") -> PodFacts:
    meta, status = pod.metadata, pod.status
    phase = status.phase or "Pending"
    reason, message = _trouble(pod)
    return PodFacts(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        role=meta.labels.get(Muster.ROLE, ""),
        attempt=whole_number(meta.annotations.get(Muster.ATTEMPT, "")),
        node=pod.spec.node_name,
        phase=phase,
        is_ready=status.is_true("Ready"),
        is_deleting=pod.is_deleting,
        gave_way=_gave_way(pod),
        reason=reason,
        message=message[:MESSAGE_LEN_MAX],
        progress=reported_progress(pod),
        work=meta.annotations.get(Muster.WORK, ""),
        version=version,
    )


def _gave_way(pod: PodView) -> str:
    if pod.status.phase == "Succeeded":
        return ""
    target = pod.status.condition("DisruptionTarget")
    if target is not None and target.status == "True":
        return target.message or target.reason or "DisruptionTarget"
    return ended_by_node(pod)


def _trouble(pod: PodView) -> tuple[str, str]:
    if pod.status.phase == "Failed":
        return failure(pod, has_log=True)
    if not pod.spec.node_name:
        return waiting_reason(pod)
    stuck = stuck_container(pod)
    return (STUCK[stuck[0]].value, stuck[1]) if stuck is not None else ("", "")
