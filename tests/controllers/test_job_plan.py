"""The life of a Job (muster.dev) as a pure function, step by step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.controllers.actions import Action, Create, Delete, Emit, Expect, Patch, PatchStatus, Together
from muster.controllers.job import situation
from muster.controllers.job_plan import CREATES_MAX, Present, plan
from muster.controllers.job_pod_facts import facts_of
from muster.controllers.job_work import job_work
from muster.controllers.pod_views import PodView
from muster.controllers.runtime import Plan
from muster.engine.work import encode_work
from muster.objects.job_pods import JobPods
from muster.objects.kinds.muster_jobs import Job
from muster.objects.patch.merge import apply_merge_patch as merge_patch
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import view_of

NOW = 1_800_000_000.0


def job(status: Raw | None = None, *, roles: list[Raw] | None = None, **spec: Any) -> Raw:
    workers: Raw = {"name": "w", "replicas": 2, "command": ["x"]}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {
            "name": "j",
            "namespace": "default",
            "uid": "job-1",
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": format_time(NOW - 60),
        },
        "spec": {"roles": roles or [workers], **spec},
        "status": status or {},
    }


def queued(**more: Any) -> Raw:
    return {
        "phase": "Queued",
        "attempts": 1,
        "queuedTime": format_time(NOW),
        "reason": "Queued",
        "message": "waits to be tried",
        **more,
    }


def running(**more: Any) -> Raw:
    return {"phase": "Running", "attempts": 1, "startTime": format_time(NOW), "reason": "Started", **more}


def pod(index: int, phase: str = "Pending", *, node: str = "n1", attempt: int = 1, role: str = "w", **more: Any) -> Raw:
    name = f"j-{role}-{index}"
    status: Raw = {"phase": phase, **more.pop("status", {})}
    meta: Raw = {
        "name": name,
        "namespace": "default",
        "uid": f"{name}.{attempt}",
        "labels": {"muster.dev/role": role},
        "annotations": {"muster.dev/attempt": str(attempt), **more.pop("notes", {})},
    }
    if more.pop("deleting", False):
        meta["deletionTimestamp"] = format_time(NOW)
    return {"metadata": meta, "spec": {"nodeName": node} if node else {}, "status": status}


def exited(code: int, reason: str = "Error") -> Raw:
    return {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": code, "reason": reason}}}]}


def decide(raw: Raw, *pods: Raw, now: float = NOW, present: Present | None = None, is_fresh: bool = True) -> Plan | None:
    made = JobPods(raw)
    there = present or Present(frozenset(made.group_names()), has_service=True)
    at = situation(raw, [facts_of(view_of(PodView, one)) for one in pods], there, now)
    # What pods say about the job is as it was made, unless a test is about that.
    said = encode_work(job_work(raw, at.job))
    at = msgspec.structs.replace(at, pods=[one if one.work else msgspec.structs.replace(one, work=said) for one in at.pods])
    return plan(msgspec.structs.replace(at, is_fresh=is_fresh))


def planned(raw: Raw, *pods: Raw, **options: Any) -> Plan:
    found = decide(raw, *pods, **options)
    assert found is not None
    return found


def status_after(raw: Raw, *pods: Raw, **options: Any) -> Raw:
    """The status that the plan writes, over the old one."""
    status = dict(raw["status"])
    for action in planned(raw, *pods, **options).actions:
        if isinstance(action, PatchStatus):
            status = merge_patch(status, action.status)
    return status


def flat(actions: list[Action] | tuple[Action, ...]) -> list[Action]:
    return [one for action in actions for one in (action.actions if isinstance(action, Together) else [action])]


def made(found: Plan) -> list[str]:
    return [f"{a.object['kind']} {a.object['metadata']['name']}" for a in flat(list(found.actions)) if isinstance(a, Create)]


def deleted(found: Plan) -> list[str]:
    return [a.target.uid for a in flat(list(found.actions)) if isinstance(a, Delete)]


@pytest.mark.parametrize(
    ("raw", "pods", "phase", "reason"),
    [
        pytest.param(job(), [], "Queued", "Queued", id="new"),
        pytest.param(job(state="Suspended"), [], "Suspended", "Suspended", id="new and held"),
        pytest.param(job(queued()), [pod(0), pod(1, node="")], "Queued", "Queued", id="one of two placed"),
        pytest.param(job(queued()), [pod(0), pod(1)], "Starting", "Scheduled", id="both placed"),
        pytest.param(job(queued()), [pod(0, "Running"), pod(1, "Running")], "Running", "Started", id="both run at once"),
        pytest.param(
            job(queued()), [pod(0, "Succeeded"), pod(1, "Succeeded")], "Succeeded", "Succeeded", id="over before we looked"
        ),
        pytest.param(
            job({**running(), "phase": "Starting"}), [pod(0, "Running"), pod(1)], "Starting", "Scheduled", id="one is up"
        ),
        pytest.param(job(running()), [pod(0, "Succeeded"), pod(1, "Running")], "Running", "Started", id="one done"),
        pytest.param(job(running()), [pod(0, "Succeeded"), pod(1, "Succeeded")], "Succeeded", "Succeeded", id="done"),
        pytest.param(
            job(running()), [pod(0, "Running"), pod(1, "Failed", status=exited(3))], "Failed", "ContainerFailed", id="failed"
        ),
        pytest.param(
            job(running()),
            [pod(0, "Running"), pod(1, "Failed", status=exited(137, "OOMKilled"))],
            "Failed",
            "OOMKilled",
            id="memory",
        ),
        pytest.param(
            job(running(), retry={"limit": 1}), [pod(0, "Failed"), pod(1, "Running")], "Queued", "BackingOff", id="tried again"
        ),
        pytest.param(
            job(running(failures=1), retry={"limit": 1}),
            [pod(0, "Failed"), pod(1)],
            "Failed",
            "RetriesExhausted",
            id="too often",
        ),
        pytest.param(
            job(running()), [pod(0, "Running"), pod(1, "Running", deleting=True)], "Queued", "Preempted", id="evicted"
        ),
        pytest.param(
            job(running()),
            [pod(0, "Failed"), pod(1, "Failed", deleting=True)],
            "Queued",
            "Preempted",
            id="its peer fails with it",
        ),
        pytest.param(
            job(running()),
            [pod(0, "Running"), pod(1, "Failed", status={"reason": "Evicted"})],
            "Queued",
            "Preempted",
            id="by its node",
        ),
        pytest.param(job(running()), [pod(0, "Running")], "Queued", "Preempted", id="a pod is gone"),
        pytest.param(
            job(running(roles=[{"name": "w", "succeeded": 1}])),
            [pod(0, "Running")],
            "Running",
            "Started",
            id="a finished pod is gone",
        ),
        pytest.param(job(running(), state="Suspended"), [pod(0, "Running"), pod(1)], "Suspended", "Suspended", id="suspend"),
        pytest.param(job(running(), state="Stopped"), [pod(0, "Running"), pod(1)], "Failed", "Stopped", id="stop"),
        pytest.param(job(running(), state="Cancelled"), [pod(0, "Running"), pod(1)], "Cancelled", "Cancelled", id="cancel"),
        pytest.param(job({"phase": "Suspended", "attempts": 2}), [], "Queued", "Queued", id="resume"),
        pytest.param(job({"phase": "Failed", "reason": "Stopped", "attempts": 1}), [], "Queued", "Queued", id="run again"),
        pytest.param(
            job({"phase": "Failed", "reason": "Stopped"}, state="Cancelled"), [], "Cancelled", "Cancelled", id="give up"
        ),
        pytest.param(job({"phase": "Failed", "reason": "OOMKilled"}), [], "Failed", "OOMKilled", id="failed for good"),
        pytest.param(job({"phase": "Succeeded"}, state="Cancelled"), [], "Succeeded", "", id="too late to cancel"),
        pytest.param(job(roles=[{"name": "w"}]), [], "Failed", "ManifestInvalid", id="nothing to run"),
    ],
)
def test_phases(raw: Raw, pods: list[Raw], phase: str, reason: str) -> None:
    status = status_after(raw, *pods)
    assert (status["phase"], status.get("reason", "")) == (phase, reason)


@pytest.mark.parametrize(
    ("raw", "now", "phase", "again_s"),
    [
        pytest.param(job(queued(), schedulingDeadlineSeconds=60), NOW + 59, "Queued", 1.0, id="not yet"),
        pytest.param(job(queued(), schedulingDeadlineSeconds=60), NOW + 60, "Failed", None, id="waited too long"),
        pytest.param(
            job(queued(retryTime=format_time(NOW + 100)), schedulingDeadlineSeconds=60),
            NOW + 120,
            "Queued",
            40.0,
            id="back-off",
        ),
        pytest.param(job({**running(), "phase": "Starting"}, activeDeadlineSeconds=60), NOW + 59, "Starting", 1.0, id="starts"),
        pytest.param(
            job({**running(), "phase": "Starting"}, activeDeadlineSeconds=60), NOW + 60, "Failed", None, id="never came up"
        ),
    ],
)
def test_limits_on_time(raw: Raw, now: float, phase: str, again_s: float | None) -> None:
    pods = [pod(0, node="" if raw["status"]["phase"] == "Queued" else "n1"), pod(1)]
    assert status_after(raw, *pods, now=now)["phase"] == phase
    assert planned(raw, *pods, now=now).requeue_after_s == again_s


@pytest.mark.parametrize(
    ("failures", "wait_s"),
    [
        pytest.param(0, 5, id="first"),
        pytest.param(1, 10, id="second"),
        pytest.param(6, 60, id="at most"),
        pytest.param(900, 60, id="many"),
    ],
)
def test_back_off(failures: int, wait_s: int) -> None:
    raw = job(running(failures=failures), retry={"limit": 1000, "backoffSeconds": 5, "backoffSecondsMax": 60})
    status = status_after(raw, pod(0, "Failed"), pod(1, "Running"))
    assert status["retryTime"] == format_time(NOW + wait_s)
    assert (status["failures"], status["attempts"], status.get("preemptions", 0)) == (
        failures + 1,
        2,
        0,
    )


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"roles": []}, id="no roles"),
        pytest.param({}, id="no spec"),
        pytest.param({"roles": [{"name": 7}]}, id="wrong types"),
        pytest.param({"roles": [{"name": "w", "command": ["x"]}], "state": "Paused"}, id="unknown state"),
    ],
)
def test_a_job_that_cannot_be_read_fails_with_why(broken: Raw) -> None:
    """As on a cluster whose schema or webhook is not in place."""
    raw = {**job(), "spec": broken}
    found = plan(situation(raw, [], Present(), NOW))
    assert found is not None
    [write, _] = found.actions
    assert isinstance(write, PatchStatus)
    assert (write.status["phase"], write.status["reason"]) == ("Failed", "ManifestInvalid")
    ended = plan(situation({**raw, "status": write.status}, [], Present(), NOW))
    assert ended is not None
    assert ended.actions == []


def test_giving_way_uses_up_no_retry() -> None:
    status = status_after(job(running(), retry={"limit": 0}), pod(0, "Running", deleting=True), pod(1, "Running"))
    assert (status["attempts"], status["preemptions"], status.get("failures", 0)) == (2, 1, 0)
    assert "startTime" not in status
    assert "j-w-0" in status["message"]


def test_a_cache_is_no_witness_for_a_lost_pod() -> None:
    assert decide(job(running()), pod(0, "Running"), is_fresh=False) is None


# -- pods ------------------------------------------------------------------------------------------------------


def test_everything_is_made_in_order() -> None:
    found = planned(job(queued(), priority=3), present=Present())
    assert made(found) == ["Service j", "PodGroup j-w", "PriorityClass muster-priority-3", "Pod j-w-0", "Pod j-w-1"]
    fence = found.actions[0]
    assert isinstance(fence, PatchStatus | Expect)
    assert fence.target.resource_version == "1", "only if the job is still the one that was seen"


def test_a_priority_class_that_is_there_is_not_made_again() -> None:
    assert made(planned(job(queued(), priority=3), present=Present(frozenset({"j-w"}), True, True))) == [
        "Pod j-w-0",
        "Pod j-w-1",
    ]


def test_nothing_is_written_to_find_out_whether_the_job_has_changed() -> None:
    status = status_after(job(queued()))
    [fence, *rest] = planned(job(status)).actions
    assert isinstance(fence, Expect)
    assert fence.target.resource_version == "1"
    assert rest


def test_only_what_is_missing_is_made() -> None:
    assert made(planned(job(queued()), pod(1, node=""))) == ["Pod j-w-0"]
    assert made(planned(job(queued()), pod(0, node=""), pod(1, node=""))) == []


def test_a_large_job_is_made_in_parts() -> None:
    raw = job(queued(), roles=[{"name": "w", "replicas": CREATES_MAX + 10, "command": ["x"]}])
    found = planned(raw)
    assert len(made(found)) == CREATES_MAX
    assert found.requeue_after_s is not None


@pytest.mark.parametrize(
    ("raw", "pods", "gone"),
    [
        pytest.param(
            job(queued(attempts=2)), [pod(0, "Running"), pod(1, "Failed")], ["j-w-0.1", "j-w-1.1"], id="of the attempt before"
        ),
        pytest.param(
            job(queued(attempts=2, retryTime=format_time(NOW + 5))),
            [pod(0, "Running"), pod(1, "Failed")],
            ["j-w-0.1"],
            id="logs are kept through the back-off",
        ),
        pytest.param(job(queued(attempts=2)), [pod(0, "Running", deleting=True)], [], id="on its way already"),
        pytest.param(
            job({"phase": "Succeeded", "attempts": 1}), [pod(0, "Succeeded"), pod(1, "Running")], ["j-w-1.1"], id="over"
        ),
        pytest.param(
            job({"phase": "Suspended", "attempts": 1}, state="Suspended"), [pod(0), pod(1, "Succeeded")], ["j-w-0.1"], id="held"
        ),
        pytest.param(
            job(running()), [pod(0, "Running"), pod(1, "Running"), pod(2, "Running", attempt=9)], ["j-w-2.9"], id="astray"
        ),
    ],
)
def test_what_must_go(raw: Raw, pods: list[Raw], gone: list[str]) -> None:
    found = planned(raw, *pods)
    assert deleted(found) == gone
    assert not [name for name in made(found) if name.startswith("Pod ")], "nothing is made before the old is gone"
    assert found.actions == () or isinstance(found.actions[0], PatchStatus | Expect)


def test_services_are_stopped_once_the_required_have_ended() -> None:
    roles = [{"name": "w", "command": ["x"]}, {"name": "ps", "command": ["y"], "completion": "Service"}]
    raw = job(running(), roles=roles)
    status = status_after(raw, pod(0, "Succeeded"), pod(0, "Running", role="ps"))
    assert status["phase"] == "Succeeded"
    assert deleted(planned(raw | {"status": status}, pod(0, "Succeeded"), pod(0, "Running", role="ps"))) == ["j-ps-0.1"]


def test_it_starts_with_the_minimum() -> None:
    raw = job(queued(), roles=[{"name": "w", "replicas": 3, "minReplicas": 2, "command": ["x"]}])
    pods = [pod(0, "Running"), pod(1, "Running"), pod(2, node="")]
    assert status_after(raw, *pods)["phase"] == "Running"
    done = [pod(0, "Succeeded"), pod(1, "Succeeded"), pod(2, node="")]
    assert status_after(job(running(), roles=raw["spec"]["roles"]), *done)["phase"] == "Running", "all must succeed"


# -- what is told ------------------------------------------------------------------------------------------------------


def test_why_it_waits() -> None:
    said = [
        {"type": "muster.dev/Waiting", "status": "True", "reason": "CPUInsufficient", "message": "CPUInsufficient: 2 short"}
    ]
    status = status_after(job(queued()), *(pod(n, node="", status={"conditions": said}) for n in range(2)))
    assert (status["reason"], status["message"]) == ("CPUInsufficient", "2 short")
    [scheduled] = status["conditions"]
    assert (scheduled["type"], scheduled["status"], scheduled["reason"]) == ("Scheduled", "False", "CPUInsufficient")


def test_why_it_does_not_come_up() -> None:
    stuck = {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no x:1"}}}]}
    status = status_after(job({**running(), "phase": "Starting"}), pod(0, status=stuck), pod(1, "Running"))
    assert status["reason"] == "ImageUnavailable"
    assert "no x:1" in status["message"]


def test_whom_it_waits_for() -> None:
    raw, old = job(queued(attempts=2, reason="Preempted", message="why")), pod(0, "Running", node="silent", deleting=True)
    assert status_after(raw, old)["message"] == "why"
    assert planned(raw, old).requeue_after_s == 30.0
    status = status_after(raw, old, now=NOW + 30)
    assert (status["reason"], "j-w-0 on node silent" in status["message"]) == ("Preempted", True)
    assert status_after(raw | {"status": status}, pod(0, node="", attempt=2), now=NOW + 31)["message"] == "waits to be tried"


@pytest.mark.parametrize(
    ("pods", "progress"),
    [
        pytest.param([pod(0, "Running"), pod(1, "Succeeded")], 0.5, id="nobody reports: the share that is done"),
        pytest.param([pod(0, "Running", notes={"muster.dev/progress": "0.25"}), pod(1, "Running")], 0.25, id="one reports"),
        pytest.param(
            [pod(0, "Running", notes={"muster.dev/progress": "0.5"}), pod(1, "Succeeded")], 0.75, id="and one is done"
        ),
        pytest.param([pod(0, "Running", notes={"muster.dev/progress": "nan"}), pod(1, "Running")], 0, id="no number"),
        pytest.param([pod(0, "Running", notes={"muster.dev/progress": "7"}), pod(1, "Running")], 0, id="more than all"),
    ],
)
def test_progress(pods: list[Raw], progress: float) -> None:
    assert status_after(job(running()), *pods).get("progress", 0) == progress


def test_nothing_is_written_twice() -> None:
    raw = job(running())
    pods = [pod(0, "Running"), pod(1, "Succeeded")]
    raw["status"] = status_after(raw, *pods)
    assert planned(raw, *pods).actions == []


def test_the_end_is_told() -> None:
    found = planned(job(running(), retry={"limit": 0}), pod(0, "Failed", status=exited(3)), pod(1, "Running"))
    [_, event] = found.actions
    assert isinstance(event, Emit)
    assert (event.type, event.reason) == ("Warning", "Failed")
    assert "exit code 3" in event.message


# -- the place in the queue ---------------------------------------------------------------------------------------------------


def test_a_job_keeps_the_time_since_which_it_waits_through_its_attempts() -> None:
    assert status_after(job())["submittedTime"] == format_time(NOW)
    since = format_time(NOW - 900)
    again = job(running(submittedTime=since, runningTime=format_time(NOW - 500)), checkpointIntervalSeconds=200)
    gone = status_after(again, pod(0, "Running", deleting=True), pod(1, "Running"))
    assert (gone["phase"], gone["submittedTime"]) == ("Queued", since)
    assert gone["attainedSeconds"] == 400, "two whole checkpoints of 200 s; what came after them is lost"
    assert "runningTime" not in gone
    failed = job(running(submittedTime=since, runningTime=format_time(NOW - 500)), retry={"limit": 1})
    retried = status_after(failed, pod(0, "Failed", status=exited(1)), pod(1, "Running"))
    assert (retried["submittedTime"], retried.get("attainedSeconds", 0)) == (since, 0)


def test_who_leaves_the_line_stands_at_its_end_when_it_comes_back() -> None:
    back = job({"phase": "Suspended", "attempts": 1, "submittedTime": format_time(NOW - 900), "attainedSeconds": 60})
    after = status_after(back)
    assert (after["submittedTime"], after["attainedSeconds"]) == (format_time(NOW), 60)


def test_when_all_are_up_the_run_begins() -> None:
    assert status_after(job(queued()), pod(0, "Running"), pod(1, "Running"))["runningTime"] == format_time(NOW)
    starting = status_after(job(queued()), pod(0, "Running"), pod(1))
    assert "runningTime" not in starting


def test_what_changed_is_said_on_the_pods_of_the_attempt() -> None:
    raw = job(queued(), queue="b")
    before = encode_work(job_work(job(queued(), queue="a"), view_of(Job, job(queued(), queue="a"))))
    found = planned(raw, *(pod(n, node="", notes={"muster.dev/work": before}) for n in (0, 1)))
    patches = [action for action in flat(list(found.actions)) if isinstance(action, Patch)]
    assert [patch.target.name for patch in patches] == ["j-w-0", "j-w-1"]
    assert {patch.patch["metadata"]["labels"]["muster.dev/queue"] for patch in patches} == {"b"}
    assert [a.reason for a in found.actions if isinstance(a, Emit)] == ["Moved"]
