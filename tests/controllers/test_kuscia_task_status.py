from __future__ import annotations

from typing import Any

import pytest

from muster.controllers.kuscia_task_pods import IMAGE_WAIT_S, LOG_LEN_MAX, TaskPod, finding, pod_status, progress_of
from muster.controllers.kuscia_task_status import difference, evaluate
from muster.objects.kinds.kuscia_tasks import PartyTaskStatus, TaskResourceGroup
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import view_of

NOW = 1_800_000_000.0


def pod(
    name: str = "t-0",
    phase: str = "Pending",
    *,
    namespace: str = "alice",
    node: str = "n1",
    waiting: str = "",
    exit_code: int | None = None,
    conditions: list[Raw] | None = None,
    deleting: bool = False,
    progress: str = "",
    started_s: float = 0.0,
    **status: Any,
) -> TaskPod:
    state: Raw = {}
    if waiting:
        state = {"waiting": {"reason": waiting, "message": "says more"}}
    elif exit_code is not None:
        state = {"terminated": {"exitCode": exit_code, "reason": status.pop("why", "Error"), "message": "last words"}}
    meta: Raw = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": {"muster.dev/progress": progress}}
    if deleting:
        meta["deletionTimestamp"] = format_time(NOW)
    raw = {
        "metadata": meta,
        "spec": {"nodeName": node},
        "status": {
            "phase": phase,
            "startTime": format_time(NOW - started_s),
            "conditions": conditions or [],
            "containerStatuses": [{"name": "main", "state": state}],
            **status,
        },
    }
    return view_of(TaskPod, raw)


def condition(type_: str, status: str = "True", reason: str = "", message: str = "") -> Raw:
    return {"type": type_, "status": status, "reason": reason, "message": message}


MARKED = [condition("DisruptionTarget", reason="PreemptionByScheduler", message="makes room")]


@pytest.mark.parametrize(
    ("seen", "state", "reason"),
    [
        pytest.param(pod(), "pending", "", id="starting"),
        pytest.param(pod(phase="Running"), "running", "", id="running"),
        pytest.param(pod(phase="Succeeded"), "succeeded", "", id="succeeded"),
        pytest.param(pod(phase="Succeeded", deleting=True), "succeeded", "", id="succeeded, then cleaned up"),
        pytest.param(pod(phase="Failed", exit_code=1), "failed", "ContainerFailed", id="an exit code"),
        pytest.param(pod(phase="Failed", exit_code=137, why="OOMKilled"), "failed", "OOMKilled", id="out of memory"),
        pytest.param(pod(phase="Failed", exit_code=128, why="StartError"), "failed", "ContainerStartFailed", id="never ran"),
        pytest.param(pod(phase="Failed"), "failed", "ContainerFailed", id="failed without a word"),
        pytest.param(pod(waiting="CreateContainerError"), "failed", "ContainerStartFailed", id="can't be created"),
        pytest.param(pod(waiting="CreateContainerConfigError"), "failed", "ContainerStartFailed", id="bad configuration"),
        pytest.param(pod(waiting="InvalidImageName"), "failed", "ImageUnavailable", id="bad image name"),
        pytest.param(pod(waiting="ErrImageNeverPull"), "failed", "ImageUnavailable", id="image never pulled"),
        pytest.param(
            pod(phase="Running", waiting="CrashLoopBackOff"), "failed", "ContainerFailed", id="crashes again and again"
        ),
        pytest.param(pod(waiting="ContainerCreating"), "pending", "", id="being created"),
        pytest.param(pod(waiting="ImagePullBackOff", started_s=60), "pending", "ImageUnavailable", id="no image for a minute"),
        pytest.param(pod(waiting="ErrImagePull", started_s=IMAGE_WAIT_S), "failed", "ImageUnavailable", id="no image for long"),
        pytest.param(pod(phase="Running", deleting=True), "lost", "EvictedByAdmin", id="deleted by somebody"),
        pytest.param(pod(phase="Running", deleting=True, conditions=MARKED), "lost", "Preempted", id="preempted"),
        pytest.param(pod(phase="Running", conditions=MARKED), "running", "", id="only marked"),
        pytest.param(pod(phase="Failed", conditions=MARKED, exit_code=143), "lost", "Preempted", id="preempted, and ended"),
        pytest.param(pod(phase="Failed", reason="Evicted", exit_code=143), "lost", "EvictedByAdmin", id="evicted by its node"),
        pytest.param(pod(phase="Failed", reason="OutOfcpu"), "lost", "EvictedByAdmin", id="its node had no room after all"),
        pytest.param(pod(phase="Failed", reason="NodeRestarted"), "lost", "EvictedByAdmin", id="its machine was switched off"),
        pytest.param(
            pod(node="", conditions=[condition("PodScheduled", "False", "BandwidthInsufficient", "short by 1Gbps")]),
            "pending",
            "BandwidthInsufficient",
            id="waits for a node",
        ),
        pytest.param(
            pod(
                node="",
                conditions=[
                    condition("PodScheduled", "False", "Unschedulable"),
                    condition("muster.dev/Waiting", reason="NoNodes"),
                ],
            ),
            "pending",
            "NoNodes",
            id="the scheduler's own condition counts first",
        ),
    ],
)
def test_finding(seen: TaskPod, state: str, reason: str) -> None:
    found = finding(seen, NOW)
    assert (found.state, found.reason) == (state, reason)


@pytest.mark.parametrize("reason", ["StartError", "ContainerCannotRun"])
def test_a_container_that_never_ran_says_why(reason: str) -> None:
    seen = pod(phase="Failed", exit_code=127, why=reason)
    message = "container main could not be started: last words"
    assert finding(seen, NOW).message == message
    assert pod_status(seen, finding(seen, NOW))["message"] == message


def test_an_image_is_looked_at_again_when_its_time_is_over() -> None:
    assert finding(pod(waiting="ImagePullBackOff", started_s=100), NOW).again_s == pytest.approx(IMAGE_WAIT_S - 100)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.5", 0.5), ("1", 1.0), ("", None), ("x", None), ("nan", None), ("-1", None), ("1.1", None), ("1" * 40, None)],
)
def test_progress(text: str, value: float | None) -> None:
    assert progress_of(pod(progress=text)) == value


def test_pod_status() -> None:
    seen = pod(
        phase="Failed",
        exit_code=3,
        conditions=[condition("PodScheduled") | {"lastTransitionTime": "2026-01-01T00:00:00Z"}, condition("Ready", "False")],
    )
    assert pod_status(seen, finding(seen, NOW)) == {
        "podName": "t-0",
        "namespace": "alice",
        "podPhase": "Failed",
        "nodeName": "n1",
        "reason": "ContainerFailed",
        "message": "container main ended with exit code 3",
        "terminationLog": "last words",
        "scheduleTime": "2026-01-01T00:00:00Z",
        "startTime": format_time(NOW),
    }


def test_a_long_log_keeps_its_end() -> None:
    seen = pod(phase="Failed", exit_code=1)
    terminated = seen.status.container_statuses[0].state.terminated
    assert terminated is not None
    terminated.message = "x" * 10_000 + "end"
    log = pod_status(seen, finding(seen, NOW))["terminationLog"]
    assert len(log) == LOG_LEN_MAX
    assert log.endswith("end")


def group(alice: int = 1, bob: int = 1, *, least: int = 2, alice_least: int = 0, partner: bool = False) -> TaskResourceGroup:
    own: list[Raw] = [{"domainID": "alice", "pods": [{"name": f"t-{n}"} for n in range(alice)], "minReservedPods": alice_least}]
    other = {"domainID": "bob", "role": "guest", "pods": [{"name": f"t-guest-{n}"} for n in range(bob)]}
    spec: Raw = {"minReservedMembers": least, "initiator": "alice", "parties": own}
    if partner:
        spec["outOfControlledParties"] = [other]
    elif bob:
        own.append(other)
    return view_of(TaskResourceGroup, {"metadata": {"name": "t"}, "spec": spec})


def alice(*phases: str) -> list[TaskPod]:
    return [pod(f"t-{n}", phase, exit_code=1 if phase == "Failed" else None) for n, phase in enumerate(phases)]


def bob(*phases: str) -> list[TaskPod]:
    return [
        pod(f"t-guest-{n}", phase, namespace="bob", exit_code=1 if phase == "Failed" else None)
        for n, phase in enumerate(phases)
    ]


GONE = pod("t-0", "Running", deleting=True)
P, R, S, F = "Pending", "Running", "Succeeded", "Failed"


@pytest.mark.parametrize(
    ("of", "pods", "outcome", "phases"),
    [
        pytest.param(group(), [*alice(P), *bob(P)], "pending", [P, P], id="all wait"),
        pytest.param(group(), [*alice(R), *bob(P)], "running", [R, P], id="one runs"),
        pytest.param(group(), [*alice(S), *bob(R)], "running", [S, R], id="one party is done"),
        pytest.param(group(), [*alice(S), *bob(S)], "succeeded", [S, S], id="all are done"),
        pytest.param(group(), [*alice(F), *bob(R)], "failed", [F, R], id="one party failed"),
        pytest.param(group(least=1), [*alice(F), *bob(R)], "running", [F, R], id="one party is enough"),
        pytest.param(group(least=1), [*alice(S), *bob(R)], "succeeded", [S, R], id="one party was enough"),
        pytest.param(group(least=1), [*alice(F), *bob(S)], "succeeded", [F, S], id="one failed, one was enough"),
        pytest.param(group(least=1), [*alice(F), *bob(F)], "failed", [F, F], id="none is left"),
        pytest.param(group(3, alice_least=2), [*alice(F, R, R), *bob(R)], "running", [R, R], id="two pods are enough"),
        pytest.param(group(3, alice_least=2), [*alice(F, F, R), *bob(R)], "failed", [F, R], id="one pod is not enough"),
        pytest.param(group(3, alice_least=2), [*alice(S, S, R), *bob(S)], "succeeded", [S, S], id="two pods were enough"),
        pytest.param(group(), [GONE, *bob(R)], "lost", [F, R], id="a pod is being deleted"),
        pytest.param(group(), bob(R), "lost", [F, R], id="a pod is gone"),
        pytest.param(
            group(2, alice_least=1), [GONE, alice(P, R)[1], *bob(R)], "running", [R, R], id="a lost pod is not needed"
        ),
        pytest.param(group(), [GONE, *bob(F)], "lost", [F, F], id="what fails beside a loss is its consequence"),
        pytest.param(group(least=1), [GONE, *bob(R)], "running", [F, R], id="a lost party is not needed"),
    ],
)
def test_outcomes(of: TaskResourceGroup, pods: list[TaskPod], outcome: str, phases: list[str]) -> None:
    found = evaluate(of, pods, {}, {}, NOW)
    assert found.outcome == outcome
    assert [party["phase"] for party in found.parties] == phases


@pytest.mark.parametrize(
    ("said", "reason", "outcome"),
    [
        pytest.param(None, "", "running", id="says nothing yet"),
        pytest.param("Running", "", "running", id="runs"),
        pytest.param("Succeeded", "", "succeeded", id="has succeeded"),
        pytest.param("Failed", "", "failed", id="has failed"),
        pytest.param("Failed", "OOMKilled", "failed", id="has failed and says why"),
        pytest.param("Failed", "Preempted", "lost", id="was preempted"),
        pytest.param("Failed", "EvictedByAdmin", "lost", id="was evicted"),
    ],
)
def test_a_partner_counts_as_it_says(said: Any, reason: str, outcome: str) -> None:
    told = PartyTaskStatus(domain_id="bob", role="guest", phase=said or "", reason=reason, message="why")
    found = evaluate(group(partner=True), alice(S), {}, {("bob", "guest"): told} if said else {}, NOW)
    assert found.outcome == outcome
    if said == "Failed":
        assert (found.reason, found.message) == (reason or "PartyFailed", "party bob: why")
        assert found.parties[1]["reason"] == found.reason


def test_a_failure_beside_a_partners_loss_is_its_consequence() -> None:
    told = PartyTaskStatus(domain_id="bob", role="guest", phase="Failed", reason="Preempted", message="why")
    found = evaluate(group(partner=True), alice(F), {}, {("bob", "guest"): told}, NOW)
    assert (found.outcome, found.reason) == ("lost", "Preempted")


def test_what_a_partner_waits_for_is_what_the_task_waits_for() -> None:
    told = PartyTaskStatus(domain_id="bob", role="guest", phase="Pending", reason="AppImageNotFound", message="no image")
    found = evaluate(group(partner=True), alice(P), {}, {("bob", "guest"): told}, NOW)
    assert (found.outcome, found.reason, found.message) == ("pending", "AppImageNotFound", "party bob: no image")


@pytest.mark.parametrize(("kept", "outcome"), [("Succeeded", "succeeded"), ("Failed", "failed"), ("Running", "lost")])
def test_a_pod_that_was_cleaned_up_counts_as_it_ended(kept: str, outcome: str) -> None:
    known = {"alice/t-0": {"podName": "t-0", "namespace": "alice", "podPhase": kept}}
    found = evaluate(group(), bob(S), known, {}, NOW)
    assert found.outcome == outcome
    assert found.pods["alice/t-0"]["podPhase"] == kept


def test_progress_is_the_mean_of_those_that_report() -> None:
    pods = [pod("t-0", R, progress="0.5"), pod("t-1", R, progress="0.25"), pod("t-2", R), *bob(S)]
    assert evaluate(group(3), pods, {}, {}, NOW).progress == pytest.approx((0.5 + 0.25 + 1) / 3, abs=0.001)


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        pytest.param({"a": 1}, {"a": 1}, {}, id="the same"),
        pytest.param({"a": 1, "b": 2}, {"a": 2}, {"a": 2}, id="what is not named stays"),
        pytest.param({}, {"a": None}, {}, id="to take away what is not there"),
        pytest.param({"a": 1}, {"a": None}, {"a": None}, id="to take away"),
        pytest.param({"m": {"x": 1, "y": 2}}, {"m": {"x": 1, "z": 3}}, {"m": {"y": None, "z": 3}}, id="a map by member"),
        pytest.param({"m": {"x": {"k": 1, "l": 2}}}, {"m": {"x": {"k": 1}}}, {"m": {"x": {"l": None}}}, id="a map in a map"),
        pytest.param({"l": [1]}, {"l": [1, 2]}, {"l": [1, 2]}, id="a list as a whole"),
        pytest.param({"a": "x"}, {"a": ""}, {"a": None}, id="empty text is no text"),
        pytest.param({}, {"a": "", "m": {"x": {"k": "", "l": 1}}}, {"m": {"x": {"l": 1}}}, id="nor in a new map"),
        pytest.param({"l": [{"k": 1}]}, {"l": [{"k": 1, "m": ""}]}, {}, id="nor in a list"),
    ],
)
def test_difference(old: Raw, new: Raw, patch: Raw) -> None:
    assert difference(old, new) == patch
