"""What the tree of a job is made of: job, tasks, parties, pods, as values that programs read and JSON carries. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.objects.time import time_or


class PodNode(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    namespace: str
    name: str
    uid: str = ""
    """Empty when the pod itself was not read."""
    phase: str = ""
    node: str = ""
    reason: str = ""
    message: str = ""
    progress: float | None = None
    records: dict[str, Any] = {}
    """What its work has reported about itself."""
    sent_bytes: int = 0
    received_bytes: int = 0
    """At its own network interface, as its agent has counted them so far."""
    restarts: int = 0
    containers: list[str] = []


class PartyNode(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """`party` is empty for a Job (muster.dev), whose roles belong to one owner."""

    party: str = ""
    role: str = ""
    phase: str = ""
    message: str = ""
    pods: list[PodNode] = []


class TaskNode(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A task of a KusciaJob, or a role of a Job."""

    alias: str
    task_id: str = msgspec.field(default="", name="taskID")
    phase: str = ""
    reason: str = ""
    message: str = ""
    progress: float = 0.0
    attempts: int = 0
    preemptions: int = 0
    dependencies: list[str] = []
    is_tolerable: bool = msgspec.field(default=False, name="tolerable")
    retry_time: str = ""
    started: str = ""
    ended: str = ""
    parties: list[PartyNode] = []

    @property
    def pods(self) -> list[PodNode]:
        return [pod for party in self.parties for pod in party.pods]

    @property
    def nodes(self) -> list[str]:
        """Where its pods are, each node once, in order."""
        return sorted({pod.node for pod in self.pods if pod.node})

    def duration_s(self, now: float | None = None) -> float | None:
        """How long it ran, or has been running until `now`; None when it did not start or has not ended."""
        return duration_s(self.started, self.ended, now)


class JobTree(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """`outcome` is empty until the job has ended; see `muster.client.job_kinds.Outcome`."""

    kind: str
    namespace: str
    name: str
    uid: str = ""
    phase: str = ""
    outcome: str = ""
    reason: str = ""
    message: str = ""
    progress: float = 0.0
    initiator: str = ""
    """Of a Job its user."""
    parties: list[str] = []
    queue: str = ""
    place: int = 0
    attempts: int = 0
    preemptions: int = 0
    stage: str = ""
    refusal: str = ""
    """Why the last command was not followed; empty when it was."""
    approvals: dict[str, str] = {}
    created: str = ""
    started: str = ""
    ended: str = ""
    labels: dict[str, str] = {}
    tasks: list[TaskNode] = []

    @property
    def title(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    def duration_s(self, now: float | None = None) -> float | None:
        return duration_s(self.started, self.ended, now)

    def counts(self) -> dict[str, int]:
        """Tasks by phase."""
        found: dict[str, int] = {}
        for task in self.tasks:
            found[task.phase or "Waiting"] = found.get(task.phase or "Waiting", 0) + 1
        return found


def duration_s(started: str, ended: str, now: float | None) -> float | None:
    start_s, end_s = instant(started), instant(ended)
    end_s = now if end_s is None else end_s
    return None if start_s is None or end_s is None else max(0.0, end_s - start_s)


def instant(text: object) -> float | None:
    """The moment that a timestamp names; None when there is none that can be read."""
    return time_or(text, None)
