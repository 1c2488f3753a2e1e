"""Keeps the probes of running containers going: begun when a run is up, ended with it.

Concurrency: one task per probe, in its container's memory (`ContainerMemory.probing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster.agent.lifecycle_facts import FailedProbe, Situation
from muster.agent.pods_acting import Actor
from muster.agent.pods_local import ContainerMemory, LocalPod
from muster.agent.pods_machine import Machine
from muster.agent.probes import Asker, ProbeKind, Prober, Result
from muster.objects.kinds.containers import Probe
from muster.store.cache import ObjectKey


class Probing:
    def __init__(self, machine: Machine, actor: Actor, wake: Callable[[ObjectKey], object]) -> None:
        self._machine = machine
        self._actor = actor
        self._wake = wake

    def tend(self, local: LocalPod, at: Situation) -> None:
        """Have exactly the probes that are due under way."""
        for name, memory in local.containers.items():
            container, facts = memory.container, at.facts(name)
            if facts.run is None or not facts.run.is_running or facts.stopping is not None or at.is_leaving:
                memory.stop_probing()
                continue
            has_hook = container.lifecycle is not None and container.lifecycle.post_start is not None
            if has_hook and facts.post_start != "done":
                continue
            if container.startup_probe is not None and memory.is_started is None:
                self._ensure(local, memory, "startup", container.startup_probe, facts.run.attempt)
            elif memory.is_started is not False:
                if container.liveness_probe is not None:
                    self._ensure(local, memory, "liveness", container.liveness_probe, facts.run.attempt)
                if container.readiness_probe is not None:
                    self._ensure(local, memory, "readiness", container.readiness_probe, facts.run.attempt)

    def _ensure(self, local: LocalPod, memory: ContainerMemory, kind: ProbeKind, probe: Probe, attempt: int) -> None:
        if kind in memory.probing:
            return
        name = memory.container.name
        asker = Asker(self._machine.runtime, local.ref(name, attempt), memory.container, local.record.sandbox.ip)

        def tell(verdict: bool | None, result: Result) -> None:
            if attempt != memory.attempts[-1]:
                return
            if not result.is_success:
                self._actor.event(local, "Warning", "Unhealthy", f"{kind} probe failed: {result.message}", name)
            if self._note(memory, kind, probe, verdict, result):
                self._wake(local.key)

        prober = Prober(kind, probe, asker, tell)
        memory.probing[kind] = asyncio.create_task(prober.run(), name=f"{kind} probe of {name} of {local.title}")

    def _note(self, memory: ContainerMemory, kind: ProbeKind, probe: Probe, verdict: bool | None, result: Result) -> bool:
        """Whether anything changed."""
        before = (memory.is_started, memory.is_ready, memory.failed_probe)
        if kind == "readiness":
            # Until the first success a container is not ready, whatever the thresholds.
            memory.is_ready = bool(verdict)
        elif kind == "startup" and verdict is True:
            memory.is_started = True
        if kind != "readiness" and verdict is False:
            grace_s = probe.termination_grace_period_seconds
            memory.failed_probe = FailedProbe(kind, result.message, float(grace_s) if grace_s is not None else None)
        return before != (memory.is_started, memory.is_ready, memory.failed_probe)
