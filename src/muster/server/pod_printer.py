"""How a pod is shown: READY, STATUS and RESTARTS as kubectl's users expect them.

Pure. STATUS starts from the phase and is refined by what the containers say: init containers first, since nothing else runs
before they are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from muster.objects.ages import UNKNOWN, since
from muster.objects.status import Raw
from muster.server.cells import NONE, Printer, age, column, items, number, part, text


class _Summary(msgspec.Struct):
    reason: str
    restarts: int = 0
    last_restart: str = ""
    ready: int = 0
    total: int = 0
    initializing: bool = False


def _cells(raw: Raw, now: float) -> Sequence[Any]:
    spec, status = part(raw, "spec"), part(raw, "status")
    summary = _summarise(spec, status)
    if part(raw, "metadata").get("deletionTimestamp"):
        terminal = status.get("phase") in ("Succeeded", "Failed")
        summary.reason = "Unknown" if status.get("reason") == "NodeLost" else (summary.reason if terminal else "Terminating")
    restarts = str(summary.restarts)
    if summary.restarts and summary.last_restart:
        restarts += f" ({since(summary.last_restart, now)} ago)"
    gates = items(spec, "readinessGates")
    true = {text(c, "type") for c in items(status, "conditions") if c.get("status") == "True"}
    passed = sum(1 for gate in gates if text(gate, "conditionType") in true)
    return [
        f"{summary.ready}/{summary.total}",
        summary.reason,
        restarts,
        age(raw, now),
        text(status, "podIP", NONE),
        text(spec, "nodeName", NONE),
        text(status, "nominatedNodeName", NONE),
        f"{passed}/{len(gates)}" if gates else NONE,
    ]


def _summarise(spec: Raw, status: Raw) -> _Summary:
    summary = _Summary(reason=text(status, "reason") or text(status, "phase", UNKNOWN))
    for condition in items(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            summary.reason = "SchedulingGated"
    sidecars = {text(c, "name") for c in items(spec, "initContainers") if c.get("restartPolicy") == "Always"}
    summary.total = len(items(spec, "containers")) + len(sidecars)
    _init_containers(spec, status, sidecars, summary)
    if not summary.initializing or _is_initialized(status):
        _containers(status, summary)
    return summary


def _is_initialized(status: Raw) -> bool:
    return any(c.get("type") == "Initialized" and c.get("status") == "True" for c in items(status, "conditions"))


def _init_containers(spec: Raw, status: Raw, sidecars: set[str], summary: _Summary) -> None:
    total = len(items(spec, "initContainers"))
    for index, container in enumerate(items(status, "initContainerStatuses")):
        _count_restart(container, summary)
        state = part(container, "state")
        terminated, waiting = part(state, "terminated"), part(state, "waiting")
        if terminated and number(terminated, "exitCode") == 0:
            continue
        if text(container, "name") in sidecars and container.get("started") is True:
            summary.ready += 1 if container.get("ready") else 0
            continue
        if terminated:
            summary.reason = "Init:" + (text(terminated, "reason") or _exit_text(terminated))
        elif waiting and text(waiting, "reason") not in ("", "PodInitializing"):
            summary.reason = "Init:" + text(waiting, "reason")
        else:
            summary.reason = f"Init:{index}/{total}"
        summary.initializing = True
        return


def _containers(status: Raw, summary: _Summary) -> None:
    summary_is_running = False
    if not summary.initializing:
        summary.restarts, summary.last_restart = 0, ""
    for container in reversed(items(status, "containerStatuses")):
        _count_restart(container, summary)
        state = part(container, "state")
        terminated, waiting = part(state, "terminated"), part(state, "waiting")
        if text(waiting, "reason"):
            summary.reason = text(waiting, "reason")
        elif terminated:
            summary.reason = text(terminated, "reason") or _exit_text(terminated)
        elif container.get("ready") and "running" in state:
            summary_is_running = True
            summary.ready += 1
    if summary.reason == "Completed" and summary_is_running:
        ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in items(status, "conditions"))
        summary.reason = "Running" if ready else "NotReady"


def _count_restart(container: Raw, summary: _Summary) -> None:
    summary.restarts += number(container, "restartCount")
    finished = text(part(container, "lastState", "terminated"), "finishedAt")
    summary.last_restart = max(summary.last_restart, finished)  # RFC 3339 in UTC sorts as text


def _exit_text(terminated: Raw) -> str:
    return f"Signal:{terminated['signal']}" if terminated.get("signal") else f"ExitCode:{number(terminated, 'exitCode')}"


POD_PRINTER = Printer(
    (
        column("Ready"),
        column("Status"),
        column("Restarts"),
        column("Age", "date"),
        column("IP", wide=True),
        column("Node", wide=True),
        column("Nominated Node", wide=True),
        column("Readiness Gates", wide=True),
    ),
    _cells,
)
