"""A simulated machine: the processes that run on it, by script and by the clock.

A machine outlives its agent. When the agent crashes, processes go on and end at their time; when the machine is switched off,
they are gone. Plain data without tasks: the state at any instant follows from what was started and stopped before.

Invariant: a pod has at most one process here at a time; `starts` counts every start ever, for those who check that work is not
started twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from muster.objects.status import Raw


class PodScript(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a pod on a machine. Durations are in seconds; `run_s` None means until it is stopped."""

    pull_s: float = 0.5
    start_s: float = 0.2
    run_s: float | None = 30.0
    stop_s: float = 0.1
    exit_code: int = 0
    reason: str = ""
    """Of the end, where it is not Completed or Error: OOMKilled, Evicted, ..."""
    stuck: Literal["", "pull", "start", "stop"] = ""
    """Where it stays for ever; one that is stuck stopping is killed when its grace period ends."""


ScriptFor = Callable[[Raw], PodScript]


class Process(msgspec.Struct, kw_only=True):
    pod_uid: str
    started_s: float
    ends_s: float | None
    exit_code: int
    reason: str

    def is_running(self, now_s: float) -> bool:
        return self.ends_s is None or now_s < self.ends_s


class Machine:
    """`slowness` stretches everything; `is_on` is what a power switch does. Instants are on the loop's clock."""

    def __init__(
        self,
        name: str,
        *,
        capacity: dict[str, str],
        labels: dict[str, str] | None = None,
        taints: Sequence[Raw] = (),
        slowness: float = 1.0,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.labels = labels or {}
        self.taints = list(taints)
        self.slowness = slowness
        self.is_on = True
        self.boots = 1
        self.processes: dict[str, Process] = {}
        self.starts: dict[str, int] = {}
        self.fence_at_s: float | None = None
        """When the machine's guard, which outlives the agent, kills everything; None: there is no guard."""
        self.fenced: set[str] = set()
        """Pods that it killed."""

    def guard(self, now_s: float) -> bool:
        """Kill what the fence wants killed; whether it is closed, so that nothing may start."""
        at_s = self.fence_at_s
        if at_s is None or now_s < at_s:
            return False
        for uid, process in self.processes.items():
            if process.is_running(at_s) and process.started_s < at_s:
                process.ends_s, process.exit_code, process.reason = at_s, 137, "NodeLost"
                self.fenced.add(uid)
        return True

    def start(self, pod_uid: str, script: PodScript, now_s: float) -> Process:
        assert not self.guard(now_s), f"{self.name} is fenced"
        old = self.processes.get(pod_uid)
        assert self.is_on, f"{self.name} is off"
        assert old is None or not old.is_running(now_s), f"{pod_uid} already runs on {self.name}"
        self.starts[pod_uid] = self.starts.get(pod_uid, 0) + 1
        ends_s = None if script.run_s is None else now_s + script.run_s * self.slowness
        process = Process(pod_uid=pod_uid, started_s=now_s, ends_s=ends_s, exit_code=script.exit_code, reason=script.reason)
        self.processes[pod_uid] = process
        return process

    def stop(self, pod_uid: str, after_s: float, now_s: float, *, is_forced: bool = False) -> None:
        """Have the process end in `after_s` at the latest: by itself (143), or by force (137)."""
        process = self.processes.get(pod_uid)
        if process is None or not process.is_running(now_s):
            return
        ends_s = now_s + after_s
        if process.ends_s is None or ends_s < process.ends_s:
            process.ends_s = ends_s
            process.exit_code = 137 if is_forced else 143
            process.reason = "Error"

    def forget(self, pod_uid: str) -> None:
        self.processes.pop(pod_uid, None)

    def running(self, now_s: float) -> list[str]:
        """The uids of pods that have a live process."""
        self.guard(now_s)
        return [uid for uid, process in self.processes.items() if process.is_running(now_s)]

    def switch_off(self) -> None:
        self.is_on = False
        self.processes.clear()

    def switch_on(self) -> None:
        self.is_on = True
        self.fence_at_s = None
        self.boots += 1
