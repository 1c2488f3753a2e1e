"""Kuscia's jobs: KusciaJob, its summary for partners; and, from their own files, tasks, task resources and deployments. Pure.

Kuscia writes objects from Go structs, so an unset phase may arrive as an empty string; every phase here allows that.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import field

from muster.objects.kinds.base import Object, between, default, one_of
from muster.objects.kinds.kuscia_base import (
    Attempts,
    BandwidthLimits,
    Preemptions,
    RunSeconds,
    ScheduleConfig,
    TaskPhase,
    TaskRetry,
    kuscia_resource,
)
from muster.objects.kinds.kuscia_deployments import DEPLOYMENT_RESOURCES
from muster.objects.kinds.kuscia_tasks import TASK_RESOURCES
from muster.objects.kinds.shapes import (
    COMPLETION_TIME,
    LAST_RECONCILE_TIME,
    PHASE,
    START_TIME,
    Count,
    Foreign,
    PlainCondition,
    Resources,
)
from muster.objects.resources import Column, Resource
from muster.objects.time import Timestamp
from muster.objects.view import keyed

JobPhase = Literal[
    "",
    "initialized",
    "AwaitingApproval",
    "Pending",
    "Running",
    "Succeeded",
    "Failed",
    "Cancelled",
    "ApprovalReject",
    "Suspended",
]
FINAL_PHASES: Final = ("Succeeded", "Failed", "Cancelled", "ApprovalReject")
"""Of a job: it has ended. Only a stage command moves it on from there."""
JobStage = Literal["Create", "Start", "Stop", "Cancel", "Restart", "Suspend"]
JobStagePhase = Literal[
    "JobCreateStageSucceeded",
    "JobCreateStageFailed",
    "JobStartStageSucceeded",
    "JobStartStageFailed",
    "JobStopStageSucceeded",
    "JobStopStageFailed",
    "JobCancelStageSucceeded",
    "JobCancelStageFailed",
    "JobRestartStageSucceeded",
    "JobRestartStageFailed",
    "JobSuspendStageSucceeded",
    "JobSuspendStageFailed",
]


TASKS_MAX = 2_000
"""Kuscia takes 128."""


class JobParty(Foreign):
    """One party's part in a task."""

    domain_id: Annotated[str, "The party: a Domain."] = field(name="domainID")
    role: Annotated[str, "Which deploy template of the AppImage it runs."] = ""
    resources: Annotated[Resources | None, "The party's total, shared out over its containers and replicas."] = None
    bandwidth_limits: BandwidthLimits = field(default_factory=list)


class JobTask(Foreign, kw_only=True):
    """A vertex of the job's graph; it becomes one KusciaTask."""

    alias: Annotated[str, "Its name within the job; dependencies refer to it."]
    task_id: Annotated[
        str,
        "Name of the KusciaTask; made up when left out.",
        msgspec.Meta(extra_json_schema={"pattern": "[a-z0-9]([-a-z0-9]*[a-z0-9])?"}),
    ] = field(default="", name="taskID")
    dependencies: Annotated[
        list[str],
        "Aliases of the tasks that must succeed first.",
        msgspec.Meta(extra_json_schema={"minItems": 1, "maxItems": TASKS_MAX}),
    ] = field(default_factory=list)
    tolerable: Annotated[bool, "Its failure does not fail the job.", default(False)] = False
    app_image: Annotated[str, "Name of the AppImage to run."]
    task_input_config: Annotated[str, "Handed to the application as it is."]
    schedule_config: ScheduleConfig | None = None
    priority: Annotated[int, "Among tasks that are ready, the largest starts first."] = 0
    parties: list[JobParty]
    retry: TaskRetry = None
    active_deadline_seconds: RunSeconds = 0


class KusciaJobSpec(Foreign, kw_only=True):
    """A graph of tasks that several parties run together."""

    flow_id: str = field(default="", name="flowID")
    initiator: Annotated[str, "The party that schedules the job."]
    schedule_mode: Annotated[
        Literal["Strict", "BestEffort"],
        "Strict ends the job with the first task that fails; BestEffort goes on with what does not depend on it.",
    ] = "Strict"
    max_parallelism: Annotated[int, "How many tasks may run at once.", between(1, 128, "int64")] = 1
    tasks: Annotated[list[JobTask], keyed("alias"), msgspec.Meta(min_length=1, max_length=TASKS_MAX)]


class PartyTaskCreateStatus(Foreign):
    domain_id: str = field(name="domainID")
    role: str = ""
    phase: Literal["", "Succeeded", "Failed"] = ""
    message: str = ""


class JobTaskStatus(Foreign, kw_only=True):
    """Where a task of the job stands, created or not."""

    alias: str
    task_id: str = field(default="", name="taskID")
    phase: Annotated[
        str,
        one_of("", "Waiting", "Pending", "Running", "Succeeded", "Failed", "Skipped"),
        "Waiting before its KusciaTask is made; Skipped when it never will be, because what it depends on failed.",
    ] = ""
    reason: Annotated[str, "Why it is where it is: a reason code."] = ""
    message: str = ""
    progress: float = 0
    attempts: Attempts = 0
    preemptions: Preemptions = 0
    run: Annotated[Count, "The run of the job for which it is made; it goes up when the task is run again."] = 0
    start_time: Timestamp = ""
    completion_time: Timestamp = ""


class KusciaJobStatus(Foreign):
    """Where the job stands, here and at the partners."""

    phase: JobPhase = ""
    approve_status: Annotated[dict[str, Literal["JobAccepted", "JobRejected"]], "By party."] = field(default_factory=dict)
    stage_status: Annotated[dict[str, JobStagePhase], "By party: how the last stage command went."] = field(
        default_factory=dict
    )
    conditions: Annotated[list[PlainCondition], keyed("type")] = field(default_factory=list)
    reason: str = ""
    message: str = ""
    party_task_create_status: Annotated[dict[str, list[PartyTaskCreateStatus]], "By task."] = field(default_factory=dict)
    task_status: Annotated[dict[str, TaskPhase], "By task id; tasks that were not created are not here."] = field(
        default_factory=dict
    )
    # One list, not keyed by alias: who owns which field of 2,000 entries would take more room than the entries.
    tasks: Annotated[list[JobTaskStatus], "Every task, in the order of the spec. Beyond Kuscia."] = field(default_factory=list)
    stage: Annotated[str, "The last stage command that was answered. Beyond Kuscia, as are the next two."] = ""
    stage_version: Annotated[Count, "Its version."] = 0
    run: Annotated[Count, "How often the job was restarted."] = 0
    start_time: Timestamp = ""
    completion_time: Timestamp = ""
    last_reconcile_time: Timestamp = ""


class KusciaJob(Object, kw_only=True):
    """A job of several parties: a graph of tasks, each of which starts everywhere together or not at all."""

    spec: KusciaJobSpec
    status: KusciaJobStatus = field(default_factory=KusciaJobStatus)


class KusciaJobSummarySpec(Foreign):
    """The stage that the job was told to go to."""

    stage: JobStage = "Create"
    stage_trigger: Annotated[str, "The party that gave the command."] = ""


class KusciaJobSummary(Object, kw_only=True):
    """The status of a job as two control planes exchange it, in the partner's namespace."""

    spec: KusciaJobSummarySpec
    status: KusciaJobStatus = field(default_factory=KusciaJobStatus)


RESOURCES: tuple[Resource, ...] = (
    kuscia_resource(
        KusciaJob,
        "kusciajobs",
        short_names=("kj",),
        has_status=True,
        columns=(
            START_TIME,
            COMPLETION_TIME,
            LAST_RECONCILE_TIME,
            PHASE,
            Column(name="Reason", path=".status.reason", priority=1),
            Column(name="Message", path=".status.message", priority=1),
        ),
    ),
    kuscia_resource(
        KusciaJobSummary,
        "kusciajobsummaries",
        short_names=("kjs",),
        columns=(START_TIME, COMPLETION_TIME, LAST_RECONCILE_TIME),
    ),
    *TASK_RESOURCES,
    *DEPLOYMENT_RESOURCES,
)
