"""The two schedulers that drain the same backlog in turn: kube-scheduler, and Muster's in a process of its own.

Blocking to start and stop. Each writes its log into the control plane's directory.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from muster.bench.counting import JSON, PROTOBUF
from muster.bench.kube_scheduler import KubeScheduler, SchedulerConfig
from muster.bench.kubernetes import START_TIMEOUT_S, ControlPlane, NotStarted, end, spawn
from muster.bench.lines import DecisionTimes
from muster.engine.configuration import DEFAULT_NAME

KUBE_SCHEDULER, MUSTER = "kube-scheduler", "muster"


class Side(Protocol):
    """A scheduler that can be run. After `stop`, `decision_times` says what it said about itself."""

    name: str
    scheduler_name: str
    accept: str
    """The encoding in which it watches pods."""

    @property
    def pid(self) -> int: ...
    @property
    def is_running(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> DecisionTimes: ...
    def log_tail(self) -> str: ...


SideMaker = Callable[[ControlPlane], Side]


class KubeSchedulerSide:
    """The peer, with its defaults; see `kube_scheduler`."""

    name = KUBE_SCHEDULER
    scheduler_name = "default-scheduler"
    accept = PROTOBUF

    def __init__(self, plane: ControlPlane) -> None:
        self._scheduler = KubeScheduler(plane, SchedulerConfig(scheduler_name=self.scheduler_name))

    @property
    def pid(self) -> int:
        return self._scheduler.pid

    @property
    def is_running(self) -> bool:
        return self._scheduler.is_running

    def start(self) -> None:
        self._scheduler.start()

    def stop(self) -> DecisionTimes:
        """Its histogram gives a mean only that is worth repeating; it stands for the median."""
        try:
            metrics = self._scheduler.metrics()
        finally:
            self._scheduler.stop()
        count = metrics.get("scheduler_scheduling_algorithm_duration_seconds_count", 0.0)
        total_s = metrics.get("scheduler_scheduling_algorithm_duration_seconds_sum", 0.0)
        return DecisionTimes(decisions=int(count), p50_us=1e6 * total_s / count if count else None)

    def log_tail(self) -> str:
        return self._scheduler.log_tail()


class MusterSide:
    """`python -m muster.bench.scheduler_process`: the scheduler's controller on a KubernetesStore, nothing else."""

    name = MUSTER
    scheduler_name = DEFAULT_NAME
    accept = JSON

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._log_path = plane.work_dir / "muster-scheduler.log"
        self._report_path = plane.work_dir / "muster-scheduler.json"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "it is not running"
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        self._report_path.unlink(missing_ok=True)
        ready_path = Path(f"{self._report_path}.ready")
        ready_path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "muster.bench.scheduler_process", "--kubeconfig", str(self._plane.kubeconfig_path)]
        command += ["--report", str(self._report_path), "--ready", str(ready_path)]
        self._child = spawn(command, self._log_path)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready_path.exists():
            if time.monotonic() > deadline or not self.is_running:
                self.stop()
                raise NotStarted(f"Muster's scheduler did not become ready; its log ends:\n{self.log_tail()}")
            time.sleep(0.02)

    def stop(self) -> DecisionTimes:
        if self._child is not None:
            end(self._child)
            self._child = None
        try:
            return msgspec.json.decode(self._report_path.read_bytes(), type=DecisionTimes)
        except FileNotFoundError:
            return DecisionTimes()

    def log_tail(self) -> str:
        if not self._log_path.exists():
            return ""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-25:])
