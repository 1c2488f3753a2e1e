"""KusciaJob: what its status says and when, and what its labels do."""

from __future__ import annotations

from tests.fields.cases import CROSS, Case, has, phase
from tests.fields.job_spec_cases import accept
from tests.fields.record import Record, Stage

from muster.objects.labels import KusciaLabel, Muster
from muster.objects.status import Raw
from muster.objects.time import parse_time


def _key(name: str) -> str:
    return f"{CROSS}/{name}"


async def command(stage: Stage, job: str, word: str, version: int, trigger: str = "alice") -> None:
    labels = {
        KusciaLabel.JOB_STAGE: word,
        KusciaLabel.JOB_STAGE_TRIGGER: trigger,
        KusciaLabel.JOB_STAGE_VERSION: str(version),
    }
    await stage.patch("KusciaJob", _key(job), {"metadata": {"labels": labels}})


async def running(stage: Stage, task: str) -> None:
    await stage.until("KusciaTask", _key(task), has(phase="Running"))


def phases(record: Record) -> None:
    # Steps that need nobody else are taken at once, so that the phases in between may never be stored.
    found = record.values("KusciaJob", _key("phases"), "status", "phase")
    assert [one for one in found if one is not None][-2:] == ["Running", "Succeeded"]
    order = [None, "initialized", "Pending", "Running", "Succeeded"]
    assert [order.index(one) for one in found] == sorted(order.index(one) for one in found)


def approve_status(record: Record) -> None:
    approved = record.status("KusciaJob", _key("approve"))
    assert approved["approveStatus"] == {"bob": "JobAccepted", "friend": "JobAccepted"}
    assert "AwaitingApproval" in record.values("KusciaJob", _key("approve"), "status", "phase")
    assert approved["phase"] == "Running"
    asked = record.when("KusciaJob", _key("approve"), has(phase="AwaitingApproval"))
    made = record.all("KusciaTask", _key("approve-one"))[0].at
    assert made > asked, "no task before all have agreed"
    rejected = record.status("KusciaJob", _key("reject"))
    assert (rejected["phase"], rejected["reason"]) == ("ApprovalReject", "ApprovalRejected")
    assert rejected["approveStatus"]["friend"] == "JobRejected"
    assert _key("reject-one") not in record.keys("KusciaTask")


async def answer(stage: Stage) -> None:
    await accept(stage, "approve")
    await accept(stage, "reject", "JobRejected")


async def go_through_stages(stage: Stage) -> None:
    await stage.until("KusciaTask", _key("stages-quick"), has(phase="Succeeded"))
    await command(stage, "stages", "Suspend", 1)
    await stage.until("KusciaTask", _key("stages-long"), has(phase="Failed"))
    await command(stage, "stages", "Restart", 2)


def stage_status(record: Record) -> None:
    key = _key("stages")
    assert record.values("KusciaJob", key, "status", "stageStatus", "alice") == [
        None,
        "JobCreateStageSucceeded",
        "JobSuspendStageSucceeded",
        "JobRestartStageSucceeded",
    ]
    assert record.values("KusciaJob", key, "status", "stageStatus", "bob")[-1] == "JobRestartStageSucceeded"
    assert record.values("KusciaJob", key, "status", "stage") == [None, "Suspend", "Restart", "Start"]
    assert record.values("KusciaJob", key, "status", "stageVersion") == [None, 1, 2, 3]
    assert record.values("KusciaJob", key, "status", "run") == [None, 1]
    assert [
        one for one in record.values("KusciaJob", key, "status", "phase") if one in ("Suspended", "Running", "Succeeded")
    ] == [
        "Running",
        "Suspended",
        "Running",
        "Succeeded",
    ]
    tasks = {one["alias"]: one for one in record.status("KusciaJob", key)["tasks"]}
    assert tasks["long"]["run"] == 1
    assert tasks["quick"].get("run", 0) == 0, "what had succeeded is kept"


async def refuse_restart(stage: Stage) -> None:
    await running(stage, "conditions-one")
    await command(stage, "conditions", "Restart", 1)


def conditions(record: Record) -> None:
    found = {one["type"]: one for one in record.status("KusciaJob", _key("conditions"))["conditions"]}
    assert set(found) >= {"JobValidated", "JobCreateInitialized", "JobCreateSucceeded", "JobStartSucceeded"}
    assert all(found[one]["status"] == "True" for one in found if one != "JobStageAccepted")
    refused = found["JobStageAccepted"]
    assert (refused["status"], refused["reason"]) == ("False", "StageNotAllowed")
    assert "Restart is possible in the phases" in refused["message"]
    assert parse_time(refused["lastTransitionTime"]) > parse_time(found["JobValidated"]["lastTransitionTime"])


def reasons(record: Record) -> None:
    key = _key("reasons")
    assert "Started" in record.values("KusciaJob", key, "status", "reason")
    status = record.status("KusciaJob", key)
    assert status["reason"] == "ContainerFailed"
    assert "task one failed" in status["message"]
    assert "exit code 7" in status["message"]


def party_task_create_status(record: Record) -> None:
    status = record.status("KusciaJob", _key("created"))
    assert status["partyTaskCreateStatus"] == {
        "created-one": [
            {"domainID": "alice", "role": "host", "phase": "Succeeded"},
            {"domainID": "bob", "role": "guest", "phase": "Succeeded"},
        ]
    }, "the second task was not made"
    refused = record.status("KusciaJob", _key("created-not"))["partyTaskCreateStatus"]["created-one"]
    assert [(one["domainID"], one["phase"]) for one in refused] == [("alice", "Failed")]
    assert "belongs to KusciaJob created" in refused[0]["message"]


def task_status(record: Record) -> None:
    status = record.status("KusciaJob", _key("task-status"))
    assert status["taskStatus"] == {"task-status-good": "Succeeded", "task-status-bad": "Failed"}
    seen = record.values("KusciaJob", _key("task-status"), "status", "taskStatus", "task-status-good")
    assert seen == [None, "Pending", "Running", "Succeeded"]


async def report_and_evict(stage: Stage) -> None:
    """The application reports how far it is; then somebody deletes its pod."""
    await running(stage, "all-tasks-works")
    await stage.patch("Pod", "alice/all-tasks-works-0", {"metadata": {"annotations": {Muster.PROGRESS: "0.42"}}})
    await stage.until(
        "KusciaJob", _key("all-tasks"), lambda raw: (raw.get("status") or {}).get("tasks", [{}])[0].get("progress") == 0.42
    )
    await stage.delete("Pod", "alice/all-tasks-works-0")


def tasks(record: Record) -> None:
    key = _key("all-tasks")
    ended: dict[str, Raw] = {one["alias"]: one for one in record.status("KusciaJob", key)["tasks"]}
    assert list(ended) == ["works", "again", "after"]
    assert {one: ended[one]["taskID"] for one in ended} == {one: f"all-tasks-{one}" for one in ended}
    assert (ended["works"]["phase"], ended["works"]["attempts"], ended["works"]["preemptions"]) == ("Succeeded", 2, 1)
    assert ended["works"]["progress"] == 1
    again = ended["again"]
    assert (again["phase"], again["reason"], again["attempts"]) == ("Failed", "RetriesExhausted", 2)
    assert "exit code 7" in again["message"]
    for one in ended.values():
        assert parse_time(one["startTime"]) <= parse_time(one["completionTime"])
    waited = next(
        seen.raw["status"]["tasks"][2] for seen in record.all("KusciaJob", key) if seen.raw.get("status", {}).get("tasks")
    )
    assert (waited["phase"], waited["reason"]) == ("Waiting", "DependencyPending")
    assert waited["message"] == "waits for task works"
    assert "startTime" not in waited


def times(record: Record) -> None:
    status = record.status("KusciaJob", _key("times"))
    began, ended = parse_time(status["startTime"]), parse_time(status["completionTime"])
    assert began + 3 <= ended, "the application takes three seconds"
    assert parse_time(status["lastReconcileTime"]) >= ended
    first_ended = record.when("KusciaJob", _key("times"), lambda raw: raw.get("status", {}).get("completionTime"))
    assert first_ended == record.when("KusciaJob", _key("times"), has(phase="Succeeded"))


async def give_commands(stage: Stage) -> None:
    for word in ("Stop", "Cancel", "Suspend"):
        await running(stage, f"stage-{word.lower()}-one")
        await command(stage, f"stage-{word.lower()}", word, 1)


def job_stage(record: Record) -> None:
    for word, ends in (("stop", "Failed"), ("cancel", "Cancelled"), ("suspend", "Suspended")):
        assert phase(record, "KusciaJob", f"stage-{word}") == ends
        assert phase(record, "KusciaTask", f"stage-{word}-one") == "Failed", "what ran is ended"
    assert record.status("KusciaTask", _key("stage-stop-one"))["reason"] == "KusciaJobStopped"


async def give_old_command(stage: Stage) -> None:
    await running(stage, "version-one")
    await command(stage, "version", "Stop", 4)


def stage_version(record: Record) -> None:
    assert record.status("KusciaJob", _key("version"))["stageVersion"] == 5
    assert phase(record, "KusciaJob", "version") == "Succeeded", "version 4 came after version 5"


async def give_bobs_command(stage: Stage) -> None:
    await running(stage, "trigger-one")
    await command(stage, "trigger", "Stop", 1, "bob")


def trigger(record: Record) -> None:
    assert record.status("KusciaJob", _key("trigger"))["message"] == "stopped by bob"


def custom_fields(record: Record) -> None:
    label = f"{KusciaLabel.JOB_CUSTOM_FIELD_PREFIX}project"
    assert record.last("KusciaJob", _key("custom"))["metadata"]["labels"][label] == "credit"
    assert record.last("KusciaJob", "friend/custom")["metadata"]["labels"][label] == "credit", "the partner's copy"


CASES = (
    Case(file="status.phase", does="Kuscia's phases; those that need nobody are passed in one write", check=phases),
    Case(
        file="status.approveStatus",
        does="by party: `JobAccepted` or `JobRejected`. Partners are asked, own parties agree by themselves",
        check=approve_status,
        act=answer,
    ),
    Case(
        file="status.stageStatus",
        fields=("status.stageStatus", "status.stage", "status.stageVersion", "status.run"),
        does="how each own party followed the last stage command; which one that was, its version, and how often "
        "the job was restarted "
        "(the last three beyond Kuscia)",
        check=stage_status,
        act=go_through_stages,
    ),
    Case(
        file="status.conditions",
        fields=tuple(f"status.conditions.{one}" for one in ("type", "status", "reason", "message", "lastTransitionTime")),
        does="`JobValidated`, `JobCreateInitialized`, `JobCreateSucceeded`, `JobStartSucceeded`, "
        "`JobStopInitialized`, `JobStopSucceeded`; "
        "`JobStageAccepted` answers stage commands (beyond Kuscia). Not written: `JobStartInitialized`, "
        "`TaskStopped`, `JobStatusSynced`, "
        "steps that are not apart from the others here",
        check=conditions,
        act=refuse_restart,
    ),
    Case(
        file="status.reason",
        fields=("status.reason", "status.message"),
        does="why the job is where it is: a [reason code](reference/reasons.md), and in words",
        check=reasons,
    ),
    Case(
        file="status.partyTaskCreateStatus",
        fields=tuple(f"status.partyTaskCreateStatus.{one}" for one in ("domainID", "role", "phase", "message")),
        does="by task id, for each own party: whether the task could be made there",
        check=party_task_create_status,
    ),
    Case(file="status.taskStatus", does="phases of the tasks that were made, by task id", check=task_status),
    Case(
        file="status.tasks",
        fields=tuple(
            f"status.tasks.{one}"
            for one in (
                "alias",
                "taskID",
                "phase",
                "reason",
                "message",
                "progress",
                "attempts",
                "preemptions",
                "run",
                "startTime",
                "completionTime",
            )
        ),
        does="every task, made or not: phase, why, progress, attempts, times (beyond Kuscia)",
        check=tasks,
        act=report_and_evict,
    ),
    Case(
        file="status.startTime",
        fields=("status.startTime", "status.completionTime", "status.lastReconcileTime"),
        does="when it began to run, when it ended, when its status was last written",
        check=times,
    ),
    Case(
        file="label.job-stage",
        fields=(KusciaLabel.JOB_STAGE,),
        does="the command: `Start`, `Stop`, `Cancel`, `Suspend`, `Restart`",
        check=job_stage,
        act=give_commands,
    ),
    Case(
        file="label.job-stage-version",
        fields=(KusciaLabel.JOB_STAGE_VERSION,),
        does="counts commands; one with a lower version than the last is passed over",
        check=stage_version,
        act=give_old_command,
    ),
    Case(
        file="label.job-stage-trigger",
        fields=(KusciaLabel.JOB_STAGE_TRIGGER,),
        does="who gave the command; named in the job's message",
        check=trigger,
        act=give_bobs_command,
    ),
    Case(
        file="label.custom-fields",
        fields=(f"{KusciaLabel.JOB_CUSTOM_FIELD_PREFIX}*",),
        does="kept, to select by; the copy for a partner has them too",
        check=custom_fields,
    ),
)
NOTHING = {
    KusciaLabel.JOB_AUTO_APPROVAL: "own parties agree by themselves; a partner's control plane decides for its party",
}
