"""What a simulated agent does next for a pod: pure tables."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.status import Raw
from muster.objects.time import format_time, parse_time
from muster.sim.agent import Situation, Step, decide
from muster.sim.machine import Machine, PodScript, Process

NOW = parse_time("2026-01-05T08:00:00Z")
NOW_S = 1000.0


def pod(
    *, phase: str = "", started_ago_s: float | None = None, policy: str = "Never", grace_left_s: float | None = None
) -> Raw:
    status: Raw = {}
    if phase:
        status["phase"] = phase
    if started_ago_s is not None:
        status["startTime"] = format_time(NOW - started_ago_s)
    metadata: Raw = {"name": "p", "namespace": "default", "uid": "u1"}
    if grace_left_s is not None:
        metadata["deletionTimestamp"] = format_time(NOW + grace_left_s)
    spec = {"restartPolicy": policy, "containers": [{"name": "main", "image": "busybox"}], "nodeName": "node-1"}
    return {"metadata": metadata, "spec": spec, "status": status}


def process(*, ends_in_s: float | None = 60.0, exit_code: int = 0, reason: str = "") -> Process:
    ends_s = None if ends_in_s is None else NOW_S + ends_in_s
    return Process(pod_uid="u1", started_s=NOW_S - 100, ends_s=ends_s, exit_code=exit_code, reason=reason)


def step(raw: Raw, running: Process | None = None, *, starts: int = 0, slowness: float = 1.0, **script: Any) -> Step:
    return decide(
        Situation(pod=raw, process=running, starts=starts, script=PodScript(**script), now_s=NOW_S, now=NOW, slowness=slowness)
    )


def state(found: Step) -> str:
    assert found.status is not None
    (container,) = found.status["containerStatuses"]
    ((name, details),) = container["state"].items()
    return f"{found.status['phase']} {name} {details.get('reason', '')}".strip()


def test_a_new_pod_is_announced_first() -> None:
    found = step(pod())
    assert state(found) == "Pending waiting ContainerCreating"
    assert found.status is not None
    assert found.status["startTime"] == format_time(NOW)
    assert not found.start


@pytest.mark.parametrize(
    ("ago_s", "slowness", "starts", "again_s"),
    [
        pytest.param(0, 1.0, False, 3.0, id="pulling"),
        pytest.param(2, 1.0, False, 1.0, id="starting"),
        pytest.param(3, 1.0, True, 0.0, id="ready to start"),
        pytest.param(3, 2.0, False, 3.0, id="slow machine"),
    ],
)
def test_pull_and_start_take_their_time(ago_s: float, slowness: float, starts: bool, again_s: float) -> None:
    found = step(pod(phase="Pending", started_ago_s=ago_s), pull_s=2, start_s=1, slowness=slowness)
    assert (found.start, found.again_s) == (starts, again_s)


@pytest.mark.parametrize(
    ("stuck", "reason"), [("pull", "ImagePullBackOff"), ("start", "CreateContainerError")], ids=["pull", "start"]
)
def test_stuck_pods_never_start(stuck: str, reason: str) -> None:
    found = step(pod(phase="Pending", started_ago_s=10_000), stuck=stuck)
    assert state(found) == f"Pending waiting {reason}"
    assert not found.start
    assert found.again_s is None


def test_running_is_reported_and_looked_at_when_it_ends() -> None:
    found = step(pod(phase="Pending", started_ago_s=5), process(ends_in_s=60), starts=1)
    assert state(found) == "Running running"
    assert found.again_s == 60
    assert found.status is not None
    ready = {c["type"]: c["status"] for c in found.status["conditions"]}
    assert ready == {"Initialized": "True", "ContainersReady": "True", "Ready": "True"}


def test_a_report_that_changes_nothing_is_not_sent() -> None:
    raw = pod(phase="Pending", started_ago_s=5)
    raw["status"].update(step(raw, process(), starts=1).status or {})
    assert step(raw, process(), starts=1).status is None


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        pytest.param(process(ends_in_s=-1), "Succeeded terminated Completed", id="success"),
        pytest.param(process(ends_in_s=-1, exit_code=3), "Failed terminated Error", id="failure"),
        pytest.param(process(ends_in_s=-1, exit_code=137, reason="OOMKilled"), "Failed terminated OOMKilled", id="killed"),
    ],
)
def test_the_end_is_reported(ended: Process, expected: str) -> None:
    assert state(step(pod(phase="Running", started_ago_s=5), ended, starts=1)) == expected


@pytest.mark.parametrize(
    ("policy", "exit_code", "restarts"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 1, True), ("OnFailure", 0, False), ("Never", 1, False)],
)
def test_restart_policy(policy: str, exit_code: int, restarts: bool) -> None:
    raw = pod(phase="Running", started_ago_s=5, policy=policy)
    early = step(raw, process(ends_in_s=-1, exit_code=exit_code), starts=1)
    late = step(raw, process(ends_in_s=-11, exit_code=exit_code), starts=1)
    assert late.start == restarts
    if restarts:
        assert state(early) == "Running waiting CrashLoopBackOff"
        assert early.again_s == 9


def test_what_ran_and_is_gone_is_not_started_again() -> None:
    assert state(step(pod(phase="Running", started_ago_s=500), None, starts=1)) == "Failed terminated NodeRestarted"
    assert step(pod(phase="Running", started_ago_s=500, policy="Always"), None, starts=1).start


def test_a_finished_pod_stays_as_it_is() -> None:
    assert step(pod(phase="Succeeded"), None, starts=1) == Step()
    assert step(pod(phase="Failed"), process(ends_in_s=-1), starts=1) == Step(forget=True)


@pytest.mark.parametrize(
    ("script", "grace_left_s", "stop_after_s", "is_forced"),
    [
        pytest.param({"stop_s": 2}, 30, 2, False, id="stops by itself"),
        pytest.param({"stop_s": 50}, 30, 30, True, id="too slow: killed when the grace period is over"),
        pytest.param({"stuck": "stop"}, 30, 30, True, id="stuck: killed when the grace period is over"),
        pytest.param({"stop_s": 2}, -5, 0, True, id="grace period over: killed now"),
    ],
)
def test_graceful_deletion(script: dict[str, Any], grace_left_s: float, stop_after_s: float, is_forced: bool) -> None:
    found = step(pod(phase="Running", grace_left_s=grace_left_s), process(ends_in_s=None), starts=1, **script)
    assert (found.stop_after_s, found.is_forced, found.delete) == (stop_after_s, is_forced, False)
    assert found.again_s == stop_after_s


def test_deletion_is_final_only_when_the_process_has_ended() -> None:
    ended = step(pod(phase="Running", grace_left_s=20), process(ends_in_s=-1, exit_code=143), starts=1)
    assert state(ended) == "Failed terminated Error"
    assert ended.delete
    assert step(pod(grace_left_s=20), None) == Step(delete=True)


def test_a_machine_counts_starts_and_refuses_two_at_once() -> None:
    machine = Machine("node-1", capacity={}, slowness=2.0)
    machine.start("u1", PodScript(run_s=10), 0.0)
    assert machine.running(19.0) == ["u1"]
    assert machine.running(20.0) == []
    with pytest.raises(AssertionError, match="already runs"):
        machine.start("u1", PodScript(), 5.0)
    machine.stop("u1", 1.0, 5.0)
    assert machine.processes["u1"].exit_code == 143
    assert machine.running(6.0) == []
    machine.stop("u1", 1.0, 30.0, is_forced=True)
    assert machine.processes["u1"].exit_code == 143, "what has ended can't be killed"
    machine.start("u1", PodScript(), 30.0)
    assert machine.starts == {"u1": 2}
    machine.switch_off()
    assert machine.running(31.0) == []
    with pytest.raises(AssertionError, match="is off"):
        machine.start("u1", PodScript(), 31.0)
