"""Kuscia's tasks and the objects by which parties reserve together: KusciaTask, TaskResourceGroup, TaskResource. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import field

from muster.objects.kinds.base import Object, between, one_of
from muster.objects.kinds.kuscia_base import (
    AttainedSeconds,
    Attempts,
    BandwidthLimits,
    Preemptions,
    RunSeconds,
    ScheduleConfig,
    TaskPhase,
    TaskRetry,
    kuscia_resource,
)
from muster.objects.kinds.kuscia_templates import PodTemplate
from muster.objects.kinds.shapes import (
    COMPLETION_TIME,
    LAST_RECONCILE_TIME,
    LAST_TRANSITION_TIME,
    PHASE,
    START_TIME,
    Count,
    Foreign,
    PlainCondition,
    ReasonedCondition,
    Resources,
    Seconds,
)
from muster.objects.resources import Column, Resource
from muster.objects.time import Timestamp
from muster.objects.view import Int32, keyed

PodPhase = Annotated[str, one_of("", "Pending", "Running", "Succeeded", "Failed", "Unknown")]
TaskResourceGroupPhase = Literal["", "Pending", "Creating", "Reserving", "Reserved", "ReserveFailed", "Failed"]
TaskResourcePhase = Literal["", "Pending", "Reserving", "Reserved", "Schedulable", "Failed"]


class PartyTemplate(Foreign):
    """What replaces the AppImage's deploy template for this party, field by field."""

    replicas: Int32 | None = None
    spec: PodTemplate | None = None


class TaskParty(Foreign):
    """One party's part in the task."""

    domain_id: str = field(name="domainID")
    app_image_ref: Annotated[str, "Name of the AppImage."]
    role: str = ""
    min_reserved_pods: Annotated[Count, "Pods that must be placed for the party to take part; all when left out."] = 0
    template: PartyTemplate = field(default_factory=PartyTemplate)
    bandwidth_limits: BandwidthLimits = field(default_factory=list)


class KusciaTaskSpec(Foreign, kw_only=True):
    """One computation of several parties."""

    initiator: str
    task_input_config: str
    schedule_config: ScheduleConfig = field(default_factory=ScheduleConfig)
    parties: list[TaskParty]
    retry: TaskRetry = None
    active_deadline_seconds: RunSeconds = 0


class PartyTaskStatus(Foreign):
    domain_id: str = field(name="domainID")
    role: str = ""
    phase: TaskPhase = ""
    reason: Annotated[str, "Why, as a reason code. Beyond Kuscia."] = ""
    message: str = ""


class TaskPodStatus(Foreign):
    pod_name: str
    pod_phase: PodPhase
    namespace: str
    node_name: str = ""
    message: str = ""
    termination_log: Annotated[str, "The end of what it wrote before it failed."] = ""
    reason: str = ""
    create_time: Timestamp = ""
    schedule_time: Timestamp = ""
    start_time: Timestamp = ""
    ready_time: Timestamp = ""


class TaskServiceStatus(Foreign):
    namespace: str
    service_name: str
    port_name: str = ""
    port_number: Int32 = 0
    scope: Annotated[str, one_of("", "Cluster", "Domain", "Local")] = ""
    reason: str = ""
    message: str = ""
    create_time: Timestamp = ""
    ready_time: Timestamp = ""


class PartyAllocatedPorts(Foreign):
    domain_id: str = field(name="domainID")
    role: str = ""
    named_port: Annotated[dict[str, Int32], "`pod/port` to the port number."] = field(default_factory=dict)


class KusciaTaskStatus(Foreign):
    """Where the task stands."""

    phase: TaskPhase = ""
    progress: Annotated[float, "As the application reports it, from 0 to 1.", between(0, 1, "double")] = 0
    party_task_status: list[PartyTaskStatus] = field(default_factory=list)
    reason: str = ""
    message: str = ""
    conditions: Annotated[list[PlainCondition], keyed("type")] = field(default_factory=list)
    pod_statuses: Annotated[dict[str, TaskPodStatus], "By `namespace/name`."] = field(default_factory=dict)
    service_statuses: Annotated[dict[str, TaskServiceStatus], "By `namespace/name`."] = field(default_factory=dict)
    allocated_ports: list[PartyAllocatedPorts] = field(default_factory=list)
    attempts: Attempts = 0
    preemptions: Preemptions = 0
    attained_seconds: AttainedSeconds = 0
    retry_time: Annotated[Timestamp, "When a task that failed or was preempted is started again. Beyond Kuscia."] = ""
    start_time: Timestamp = ""
    completion_time: Timestamp = ""
    last_reconcile_time: Timestamp = ""


class KusciaTask(Object, kw_only=True):
    """One computation of several parties, which starts everywhere together or not at all."""

    spec: KusciaTaskSpec
    status: KusciaTaskStatus = field(default_factory=KusciaTaskStatus)


class TaskResourceStatus(Foreign):
    """How far the party's reservation is."""

    phase: TaskResourcePhase = ""
    retry_count: Annotated[Count, "The try of its group to which the phase belongs. Beyond Kuscia."] = 0
    conditions: Annotated[list[ReasonedCondition], keyed("type")] = field(default_factory=list)
    start_time: Timestamp = ""
    completion_time: Timestamp = ""
    last_transition_time: Timestamp = ""


class TaskSummaryResourceStatus(TaskResourceStatus):
    """A party's TaskResource as both sides have it."""

    role: str = ""
    host_task_resource_name: str = ""
    host_task_resource_version: str = ""
    member_task_resource_name: str = ""
    member_task_resource_version: str = ""


class KusciaTaskSummarySpec(Foreign):
    alias: str
    job_id: str = field(name="jobID")


class KusciaTaskSummaryStatus(KusciaTaskStatus):
    """The task's status, and by party how far each reservation is."""

    resource_status: dict[str, list[TaskSummaryResourceStatus]] = field(default_factory=dict)


class KusciaTaskSummary(Object, kw_only=True):
    """The status of a task as two control planes exchange it; carries the two-phase reservation."""

    spec: KusciaTaskSummarySpec
    status: KusciaTaskSummaryStatus = field(default_factory=KusciaTaskSummaryStatus)


class TaskResourceGroupPod(Foreign):
    name: str


class TaskResourceGroupParty(Foreign, kw_only=True):
    """A party of the task, its pods and its TaskResource."""

    role: str = ""
    domain_id: str = field(name="domainID")
    min_reserved_pods: Count = 0
    pods: Annotated[list[TaskResourceGroupPod], keyed("name")] = field(default_factory=list)
    task_resource_name: str = ""


class TaskResourceGroupSpec(Foreign, kw_only=True):
    """Who must reserve, and for how long to try."""

    min_reserved_members: Annotated[int, "Parties that must have reserved before any binds.", between(1, number_format="int64")]
    resource_reserved_seconds: Seconds = 0
    retry_interval_seconds: Seconds = 0
    lifecycle_seconds: Seconds = 0
    initiator: str
    parties: Annotated[list[TaskResourceGroupParty], "Those whose reservation this control plane drives."]
    out_of_controlled_parties: Annotated[list[TaskResourceGroupParty], "Those of other control planes."] = field(
        default_factory=list
    )


class TaskResourceGroupStatus(Foreign):
    """How far the parties are together."""

    phase: TaskResourceGroupPhase = ""
    retry_count: Count = 0
    conditions: Annotated[list[ReasonedCondition], keyed("type")] = field(default_factory=list)
    start_time: Timestamp = ""
    completion_time: Timestamp = ""
    last_transition_time: Timestamp = ""


class TaskResourceGroup(Object, kw_only=True):
    """The reservation of a whole task, over all its parties."""

    spec: TaskResourceGroupSpec
    status: TaskResourceGroupStatus = field(default_factory=TaskResourceGroupStatus)


class TaskResourcePod(Foreign):
    name: str
    resources: Annotated[Resources, "The sum over its containers."] = field(default_factory=Resources)


class TaskResourceSpec(Foreign, kw_only=True):
    """The pods of one party and role."""

    role: str = ""
    min_reserved_pods: Annotated[int, "Pods that must be placed together.", between(1, number_format="int64")]
    resource_reserved_seconds: Seconds = 0
    initiator: str = ""
    pods: Annotated[list[TaskResourcePod], keyed("name")] = field(default_factory=list)


class TaskResource(Object, kw_only=True):
    """The reservation of one party's part of a task."""

    spec: TaskResourceSpec
    status: TaskResourceStatus = field(default_factory=TaskResourceStatus)


TASK_RESOURCES: tuple[Resource, ...] = (
    kuscia_resource(
        KusciaTask,
        "kusciatasks",
        short_names=("kt",),
        has_status=True,
        columns=(START_TIME, COMPLETION_TIME, LAST_RECONCILE_TIME, PHASE),
    ),
    kuscia_resource(
        KusciaTaskSummary,
        "kusciatasksummaries",
        short_names=("kts",),
        columns=(
            Column(name="JobID", path=".spec.jobID"),
            Column(name="TaskAlias", path=".spec.alias"),
            PHASE,
        ),
    ),
    kuscia_resource(
        TaskResourceGroup,
        "taskresourcegroups",
        short_names=("trg",),
        has_status=True,
        namespaced=False,
        columns=(
            Column(name="MinReservedMembers", path=".spec.minReservedMembers", type="integer"),
            PHASE,
            START_TIME,
            COMPLETION_TIME,
            LAST_TRANSITION_TIME,
        ),
    ),
    kuscia_resource(
        TaskResource,
        "taskresources",
        short_names=("tr",),
        columns=(
            Column(name="MinReservedPods", path=".spec.minReservedPods", type="integer"),
            PHASE,
            START_TIME,
            COMPLETION_TIME,
            LAST_TRANSITION_TIME,
        ),
    ),
)
