"""Kubernetes' `batch/v1`: kept so that manifests apply and operators can read them. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated, Any

from msgspec import field

from muster.objects.kinds.base import AGE, Count, Native, NativeObject, Selector, between, keyed_merge, one_of
from muster.objects.kinds.pods import PodTemplateSpec
from muster.objects.kinds.references import ConditionState, ObjectReference, ProbedCondition
from muster.objects.meta import ObjectMeta
from muster.objects.resources import Column, Resource
from muster.objects.time import Timestamp
from muster.objects.view import ATOMIC, SET, Int32, merged


class PodFailurePolicyOnExitCodesRequirement(Native):
    """A set of exit codes."""

    operator: Annotated[str, one_of("In", "NotIn"), "Whether the code has to be among the values."]
    values: Annotated[list[Int32], SET, "Exit codes."]
    container_name: Annotated[str | None, "Of this container only."] = None


class PodFailurePolicyOnPodConditionsPattern(Native):
    """A condition of the pod."""

    type: Annotated[str, "Its type."]
    status: Annotated[ConditionState, "Its status."] = "True"


class PodFailurePolicyRule(Native):
    """What a failure of a certain kind means."""

    action: Annotated[str, one_of("Ignore", "FailJob", "FailIndex", "Count"), "What it means for the job."]
    on_exit_codes: Annotated[PodFailurePolicyOnExitCodesRequirement | None, "Failures with these exit codes."] = None
    on_pod_conditions: Annotated[list[PodFailurePolicyOnPodConditionsPattern], ATOMIC, "Failures with these conditions."] = []


class PodFailurePolicy(Native):
    """What failures mean; the first rule that fits counts."""

    rules: Annotated[list[PodFailurePolicyRule], ATOMIC, "The rules."]


class SuccessPolicyRule(Native):
    """When an indexed job has succeeded."""

    succeeded_indexes: Annotated[str | None, "Indexes that must succeed, such as `0,2-4`."] = None
    succeeded_count: Annotated[Count | None, "How many must succeed."] = None


class SuccessPolicy(Native):
    """When an indexed job has succeeded, before all of its indexes have; any rule will do."""

    rules: Annotated[list[SuccessPolicyRule], ATOMIC, "The rules."]


class GangSchedulingPolicy(Native):
    """All or nothing."""

    min_count: Annotated[int, between(), "How many pods must fit at once."] = 0


class GroupSchedulingPolicy(Native):
    """How the job's pods are placed."""

    basic: Annotated[dict[str, Any] | None, "One by one."] = None
    gang: Annotated[GangSchedulingPolicy | None, "All or nothing."] = None


class GroupDisruptionMode(Native):
    """How the job's pods are evicted."""

    single: Annotated[dict[str, Any] | None, "One by one."] = None
    all: Annotated[dict[str, Any] | None, "Together."] = None


class TopologyConstraint(Native):
    """Keeps the pods in one place."""

    key: Annotated[str, "Node label whose values are the places."]


class GroupSchedulingConstraints(Native):
    """Where the job's pods are placed."""

    topology: Annotated[list[TopologyConstraint], ATOMIC, "Places that they share."] = []


class GroupResourceClaim(Native):
    """A device claim that the job's pods share."""

    name: Annotated[str, "Its name."]
    resource_claim_name: Annotated[str | None, "An existing claim."] = None
    resource_claim_template_name: Annotated[str | None, "The template from which one is made."] = None


class JobSchedulingConfiguration(Native):
    """How the job's pods are placed as a group."""

    scheduling_policy: Annotated[GroupSchedulingPolicy | None, "One by one or all at once."] = None
    scheduling_constraints: Annotated[GroupSchedulingConstraints | None, "Where."] = None
    disruption_mode: Annotated[GroupDisruptionMode | None, "How they are evicted."] = None
    resource_claims: Annotated[list[GroupResourceClaim], keyed_merge("name"), "Device claims that they share."] = []


class JobSpec(Native):
    """Pods that run to completion."""

    template: Annotated[PodTemplateSpec, "The pods to make."]
    parallelism: Annotated[Count | None, "How many run at once."] = None
    completions: Annotated[Count | None, "How many must succeed; absent means any one."] = None
    active_deadline_seconds: Annotated[int | None, between(0, None, "int64"), "The job fails when it has run this long."] = None
    pod_failure_policy: Annotated[PodFailurePolicy | None, "What failures mean."] = None
    success_policy: Annotated[SuccessPolicy | None, "When it has succeeded."] = None
    backoff_limit: Annotated[Count | None, "Failures before the job has failed; 6 unless there is a limit for each index."] = (
        None
    )
    backoff_limit_per_index: Annotated[Count | None, "Failures of one index before it has failed."] = None
    max_failed_indexes: Annotated[Count | None, "Failed indexes before the job has failed."] = None
    selector: Annotated[Selector | None, "Its pods; made up by the system."] = None
    manual_selector: Annotated[bool | None, "The selector is the user's own."] = None
    ttl_seconds_after_finished: Annotated[Count | None, "It is deleted this long after its end."] = None
    completion_mode: Annotated[str | None, one_of("NonIndexed", "Indexed"), "Whether pods are numbered."] = "NonIndexed"
    suspend: Annotated[bool | None, "Run no pods for now."] = None
    pod_replacement_policy: Annotated[
        str | None, one_of("TerminatingOrFailed", "Failed"), "When a failing pod is replaced."
    ] = None
    managed_by: Annotated[str | None, "Controller that takes care of it; can't be changed."] = None
    scheduling: Annotated[JobSchedulingConfiguration | None, "How its pods are placed as a group."] = None


class UncountedTerminatedPods(Native):
    """Pods that have ended and are not in the counters yet."""

    succeeded: Annotated[list[str], SET, "UIDs of those that succeeded."] = []
    failed: Annotated[list[str], SET, "UIDs of those that failed."] = []


class JobStatus(Native):
    """How far a job is."""

    conditions: Annotated[list[ProbedCondition], ATOMIC, merged("type"), "Facts about it: Complete, Failed, Suspended."] = []
    start_time: Annotated[Timestamp, "When it began."] = ""
    completion_time: Annotated[Timestamp, "When it succeeded."] = ""
    active: Annotated[Int32, "Pods that run or wait."] = 0
    ready: Annotated[Int32 | None, "Pods that are ready."] = None
    terminating: Annotated[Int32 | None, "Pods on their way out."] = None
    succeeded: Annotated[Int32, "Pods that succeeded."] = 0
    failed: Annotated[Int32, "Pods that failed."] = 0
    completed_indexes: Annotated[str, "Indexes that succeeded, such as `0,2-4`."] = ""
    failed_indexes: Annotated[str | None, "Indexes that failed."] = None
    uncounted_terminated_pods: Annotated[UncountedTerminatedPods | None, "Pods that are not in the counters yet."] = None


class Job(NativeObject):
    """Runs pods until enough of them have succeeded."""

    spec: Annotated[JobSpec | None, "What to run."] = None
    status: Annotated[JobStatus | None, "How far it is."] = None


class JobTemplateSpec(Native):
    """A job to be made."""

    metadata: Annotated[ObjectMeta, "Labels and annotations to give it."] = field(default_factory=ObjectMeta)
    spec: Annotated[JobSpec | None, "What to run."] = None


class CronJobSpec(Native):
    """A job and when to run it."""

    schedule: Annotated[str, "When, as five fields of cron."]
    job_template: Annotated[JobTemplateSpec, "The job."]
    time_zone: Annotated[str | None, "Time zone of the schedule."] = None
    starting_deadline_seconds: Annotated[int | None, between(0, None, "int64"), "A run later than this is left out."] = None
    concurrency_policy: Annotated[str, one_of("Allow", "Forbid", "Replace"), "What to do when the last run has not ended."] = (
        "Allow"
    )
    suspend: Annotated[bool | None, "Run nothing for now."] = None
    successful_jobs_history_limit: Annotated[Count | None, "Succeeded jobs that are kept."] = 3
    failed_jobs_history_limit: Annotated[Count | None, "Failed jobs that are kept."] = 1


class CronJobStatus(Native):
    """When it last ran."""

    active: Annotated[list[ObjectReference], ATOMIC, "Jobs that run."] = []
    last_schedule_time: Annotated[Timestamp, "When one was last started."] = ""
    last_successful_time: Annotated[Timestamp, "When one last succeeded."] = ""


class CronJob(NativeObject, kw_only=True):
    """Runs a job again and again by a schedule."""

    spec: Annotated[CronJobSpec, "The job and its schedule."]
    status: Annotated[CronJobStatus | None, "When it last ran."] = None


RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="batch",
        version="v1",
        kind="Job",
        plural="jobs",
        categories=("all",),
        subresources=frozenset({"status"}),
        view=Job,
        columns=(
            Column(name="Completions", path=".spec.completions", type="integer"),
            Column(name="Succeeded", path=".status.succeeded", type="integer"),
            AGE,
            Column(name="Containers", path=".spec.template.spec.containers[*].name", priority=1),
            Column(name="Images", path=".spec.template.spec.containers[*].image", priority=1),
        ),
        selectable_fields=("status.successful",),
    ),
    Resource(
        group="batch",
        version="v1",
        kind="CronJob",
        plural="cronjobs",
        short_names=("cj",),
        categories=("all",),
        subresources=frozenset({"status"}),
        view=CronJob,
        columns=(
            Column(name="Schedule", path=".spec.schedule"),
            Column(name="Timezone", path=".spec.timeZone"),
            Column(name="Suspend", path=".spec.suspend", type="boolean"),
            Column(name="Active", path=".status.active[*].name"),
            Column(name="Last Schedule", path=".status.lastScheduleTime", type="date"),
            AGE,
        ),
    ),
)
