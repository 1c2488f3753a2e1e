"""What the agent keeps in mind about one pod of its node, and the `Situation` that follows from it.

Everything here can be lost: an agent that comes later finds the record, the directories of the runs and the runtime's answers,
and goes on. What it can't find again is taken in the harmless way: hooks after the start count as done, probes begin anew.

Concurrency: one event loop; a pod's memory is touched by the worker that has its key, and by its own background work.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from muster.agent.contracts import Image, RunRef, RunState
from muster.agent.fencing import FENCED
from muster.agent.layout import Layout
from muster.agent.lifecycle_facts import LONG_RUN_S, Deletion, Facts, FailedProbe, Hook, Problem, Run, Situation, Stopping
from muster.agent.pod_records import PodRecord
from muster.agent.pods_logs import last_words
from muster.agent.reports import NAME, Tail
from muster.agent.shim.launching import TERMINATION
from muster.objects.kinds.containers import Container
from muster.objects.kinds.pods import PodSpec
from muster.objects.meta import metadata_of, name_of, namespace_of
from muster.objects.status import Raw
from muster.objects.time import time_or
from muster.store.cache import Cached, ObjectKey

_MESSAGE_BYTES_MAX = 4096


class ContainerMemory:
    """One container. What concerns its latest run is reset when the next one begins."""

    def __init__(self, container: Container, attempts: Sequence[int]) -> None:
        self.container = container
        self.attempts = list(attempts)
        """Runs that have a directory, oldest first."""
        self.ended: dict[int, Run] = {}
        """Runs that are over stay as they are."""
        self.short_runs = attempts[-1] if attempts else 0
        self.image: Image | None = None
        self.problem: Problem | None = None
        self.probing: dict[str, asyncio.Task[None]] = {}
        self.post_start: Hook = "done" if attempts else ""
        self.is_started: bool | None = None
        self.is_ready: bool | None = None
        self.failed_probe: FailedProbe | None = None
        self.stopping: Stopping | None = None
        self.is_removed = False
        self.is_fenced = False
        self.told_attempt: int | None = None
        """The run of which an event has said how it began."""

    def begin(self, attempt: int) -> None:
        if not self.attempts or self.attempts[-1] != attempt:
            self.attempts.append(attempt)
        self.stop_probing()
        self.post_start = ""
        self.is_started = self.is_ready = None
        self.failed_probe = None
        self.stopping = None
        self.is_removed = False

    def fail(self, reason: str, message: str, now: float) -> None:
        times = self.problem.times + 1 if self.problem is not None else 1
        self.problem = Problem(reason, message, now, times)

    def stop_probing(self) -> None:
        for task in self.probing.values():
            task.cancel()
        self.probing.clear()

    def note_end(self, run: Run) -> None:
        self.ended[run.attempt] = run
        self.stop_probing()
        if run.attempt == self.attempts[-1]:
            self.short_runs = 1 if run.length_s >= LONG_RUN_S else self.short_runs + 1


class LocalPod:
    """One pod that has something on this machine."""

    def __init__(self, record: PodRecord, spec: PodSpec, layout: Layout, attempts: dict[str, list[int]]) -> None:
        self.record = record
        self.spec = spec
        self.layout = layout
        self.containers = {
            container.name: ContainerMemory(container, attempts.get(container.name, []))
            for container in (*spec.init_containers, *spec.containers)
        }
        self.has_sandbox = False
        self.sandbox_problem: Problem | None = None
        self.disk_problem = ""
        self.host_paths: dict[str, str] = {}
        self.works: dict[str, asyncio.Task[None]] = {}
        self.report = Tail(layout.report(record.sandbox.uid) / NAME)
        self.annotations: dict[str, str] = dict(record.annotations)
        self.reported_at = float("-inf")
        self.sent: tuple[str, Raw] = ("", {})
        """The version of the pod on which a status was sent last, and that status."""
        self.store_failures = 0
        self.saving = threading.Lock()
        """Held while the record is written."""

    @property
    def uid(self) -> str:
        return self.record.sandbox.uid

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(namespace_of(self.record.pod), self.uid)

    @property
    def title(self) -> str:
        return f"{namespace_of(self.record.pod)}/{name_of(self.record.pod)}"

    def ref(self, container: str, attempt: int) -> RunRef:
        return RunRef(self.uid, container, attempt)

    def run_dir(self, container: str, attempt: int) -> Path:
        return self.layout.run_dir(self.uid, container, attempt)


Observe = Callable[[RunRef], RunState | None]


def situation(local: LocalPod, cached: Cached | None, observe: Observe, *, is_gone: bool, is_held: bool) -> Situation:
    """The pod as it is now. Notes what has ended meanwhile."""
    return Situation(
        spec=local.spec,
        containers={name: _facts(local, memory, observe) for name, memory in local.containers.items()},
        deletion=_deletion(cached.raw) if cached is not None else None,
        is_gone=is_gone,
        fate=local.record.fate,
        started_at=local.record.started_at,
        has_sandbox=local.has_sandbox,
        sandbox_problem=local.sandbox_problem,
        disk_problem=local.disk_problem,
        is_fenced=any(memory.is_fenced for memory in local.containers.values()),
        is_held=is_held,
        is_clean=local.record.is_clean,
        busy=frozenset(local.works),
    )


def _deletion(pod: Raw) -> Deletion | None:
    meta = metadata_of(pod)
    if not meta.get("deletionTimestamp"):
        return None
    grace_s = meta.get("deletionGracePeriodSeconds")
    at = time_or(meta.get("deletionTimestamp"), 0.0)
    return Deletion(at, float(grace_s) if isinstance(grace_s, int | float) and grace_s > 0 else 0.0)


def _facts(local: LocalPod, memory: ContainerMemory, observe: Observe) -> Facts:
    run = previous = None
    if memory.attempts:
        run = _run(local, memory, memory.attempts[-1], observe)
    if len(memory.attempts) > 1:
        previous = _run(local, memory, memory.attempts[-2], observe)
    return Facts(
        run=run,
        previous=previous,
        short_runs=memory.short_runs,
        is_removed=memory.is_removed,
        image=memory.image,
        problem=memory.problem,
        post_start=memory.post_start,
        is_started=memory.is_started,
        is_ready=memory.is_ready,
        failed_probe=memory.failed_probe,
        stopping=memory.stopping,
    )


def _run(local: LocalPod, memory: ContainerMemory, attempt: int, observe: Observe) -> Run:
    if (ended := memory.ended.get(attempt)) is not None:
        return ended
    name = memory.container.name
    run = Run(attempt, observe(local.ref(name, attempt)))
    if run.exited is not None:
        run = msgspec.structs.replace(run, message=termination_message(local.run_dir(name, attempt), memory.container, run))
        memory.is_fenced |= (local.run_dir(name, attempt) / FENCED).exists()
        memory.note_end(run)
    return run


def termination_message(run_dir: Path, container: Container, run: Run) -> str:
    """What it wrote into its file; where it may, and failed, the end of its log instead. The file is the task's own."""
    text = b""
    try:
        descriptor = os.open(run_dir / TERMINATION, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _MESSAGE_BYTES_MAX)
        finally:
            os.close(descriptor)
    except OSError:
        pass
    is_failed = run.exited is not None and run.exited.code != 0
    if not text and is_failed and container.termination_message_policy == "FallbackToLogsOnError":
        text = last_words(run_dir)
    return text.decode("utf-8", "replace").replace("\x00", "")
