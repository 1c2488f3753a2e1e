"""Job, for work with one owner: roles with replicas that start together, what is known about it, where it stands. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import field

from muster.objects.conditions import Conditions
from muster.objects.kinds.affinity import Affinity, Toleration
from muster.objects.kinds.base import AGE, Object
from muster.objects.kinds.containers import EnvVar
from muster.objects.kinds.muster_base import Name, muster_resource
from muster.objects.kinds.shapes import PHASE, Amounts, Count, Kept, Port, Retry, Seconds
from muster.objects.resources import Column
from muster.objects.time import Timestamp
from muster.objects.view import View, keyed

JobPhase = Literal["", "Queued", "Starting", "Running", "Suspended", "Succeeded", "Failed", "Cancelled"]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


class RoleResources(View):
    """For each replica. `bandwidth` counts both ways; `bandwidth-egress` and `bandwidth-ingress` one."""

    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)


class RolePort(View, kw_only=True):
    name: Name
    port: Annotated[Port | None, "Allocated when left out; the process finds it in its environment."] = None
    protocol: Literal["TCP", "UDP"] = "TCP"


class Role(View, kw_only=True):
    """Replicas of one process. Give a command, an image, or both; `template` for whatever else a pod may have."""

    name: Name
    replicas: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    min_replicas: Annotated[int, "Start with this many; all when left out.", msgspec.Meta(ge=1)] | None = None
    image: Annotated[str, "When left out, the command runs as a process of the node."] = ""
    command: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    working_dir: str = ""
    env: Annotated[list[EnvVar], keyed("name")] = field(default_factory=list)
    ports: Annotated[list[RolePort], keyed("name")] = field(default_factory=list)
    resources: RoleResources = field(default_factory=RoleResources)
    runtime: Annotated[Literal["", "process", "runc", "kubernetes"], "The node's own choice when left out."] = ""
    restart_policy: Literal["Never", "OnFailure"] = "Never"
    completion: Annotated[
        Literal["Required", "Service"], "A Service (a parameter server) is stopped once all others have ended."
    ] = "Required"
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[Toleration] = field(default_factory=list)
    affinity: Affinity | None = None
    template: Annotated[Kept | None, "A pod template that the fields above are laid over."] = None


class Estimate(View):
    """What the owner expects; it decides what may run before others, so it pays to be right."""

    run_seconds: Annotated[int, msgspec.Meta(ge=1)] | None = None
    resources: Annotated[Amounts, "Real use, where it differs from the requests."] = field(default_factory=dict)


class JobSpec(View, kw_only=True):
    """What to run, for whom, and how urgent it is."""

    roles: Annotated[list[Role], keyed("name"), msgspec.Meta(min_length=1, max_length=64)]
    user: Annotated[str, "Whose work it is; who submitted it, when left out."] = ""
    queue: Annotated[str, "The default queue when left out."] = ""
    priority: Annotated[int, "Level of the job; larger is sooner.", msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    type: Annotated[str, "Kind of work, for predictions and policies: `training`, `inference`, `etl`, ..."] = ""
    attributes: Annotated[
        dict[str, str], "What is known about it: network, parameters, data, `domain: cv`, ... Numbers can be used in formulas."
    ] = field(default_factory=dict)
    estimate: Estimate | None = None
    deadline: Annotated[Timestamp, "When the result is needed."] = ""
    preemptible: Annotated[bool, "May be stopped for other work, and starts again later."] = False
    checkpoint_interval_seconds: (
        Annotated[int, "How often it saves its state: the most that stopping it can cost.", msgspec.Meta(ge=1)] | None
    ) = None
    pools: Annotated[list[str], "Node pools that it may use; those of its queue when left out."] = field(default_factory=list)
    scheduler_name: Annotated[str, "The scheduling profile."] = ""
    retry: Retry = field(default_factory=Retry)
    scheduling_deadline_seconds: (
        Annotated[int, "Fail when not started by then; wait without end when left out.", msgspec.Meta(ge=1)] | None
    ) = None
    active_deadline_seconds: Annotated[int, "Fail when running longer.", msgspec.Meta(ge=1)] | None = None
    ttl_seconds_after_finished: Seconds | None = None
    state: Annotated[
        Literal["Running", "Suspended", "Stopped", "Cancelled"],
        "What the owner wants. Suspended and Stopped can go back to Running, Cancelled can't.",
    ] = "Running"


class RoleStatus(View, kw_only=True):
    name: str
    pending: Count = 0
    running: Count = 0
    ready: Count = 0
    succeeded: Count = 0
    failed: Count = 0


class FactorValue(View, kw_only=True):
    """One line of the table that decides the order."""

    name: str
    value: float = 0
    weight: float = 0
    contribution: float = 0


class QueuePlace(View):
    """Where it stands in its queue, and why there."""

    name: str = ""
    position: Annotated[int, "1 is next.", msgspec.Meta(ge=0)] = 0
    score: float = 0
    factors: list[FactorValue] = field(default_factory=list)
    since: Timestamp = ""


class StartEstimate(View):
    """When it will probably start."""

    earliest: Timestamp = ""
    latest: Timestamp = ""
    confidence: Fraction = 0
    updated: Timestamp = ""


class Prediction(View):
    """What the system expects, and on what grounds."""

    run_seconds: float = 0
    run_seconds_high: Annotated[float, "Nine in ten end sooner."] = 0
    resources: Amounts = field(default_factory=dict)
    affinity: Annotated[dict[str, str], "Node labels under which work like this ran well."] = field(default_factory=dict)
    grounds: Annotated[str, "Such as `42 runs of user ann, type training`."] = ""


class JobStatus(View):
    """Where the job stands."""

    phase: JobPhase = ""
    reason: Annotated[str, "Why it is where it is: a reason code."] = ""
    message: str = ""
    roles: Annotated[list[RoleStatus], keyed("name")] = field(default_factory=list)
    progress: Fraction = 0
    place: QueuePlace | None = None
    start_estimate: StartEstimate | None = None
    prediction: Prediction | None = None
    attempts: Annotated[Count, "Which attempt waits or runs; the first is 1."] = 0
    failures: Annotated[Count, "Attempts that failed; `retry.limit` counts these."] = 0
    preemptions: Annotated[Count, "Attempts that had to give way: preempted, evicted, or pods lost."] = 0
    retry_time: Annotated[Timestamp, "When the next attempt may begin."] = ""
    submitted_time: Annotated[Timestamp, "When it joined the queue; attempts that follow keep it."] = ""
    queued_time: Timestamp = ""
    start_time: Annotated[Timestamp, "Of the current attempt."] = ""
    running_time: Annotated[Timestamp, "When all replicas of the current attempt were up."] = ""
    attained_seconds: Annotated[
        float, "How long earlier attempts ran, as far as it was saved when they gave way.", msgspec.Meta(ge=0)
    ] = 0
    completion_time: Timestamp = ""
    observed_generation: int = 0
    conditions: Conditions = field(default_factory=list)


class Job(Object, kw_only=True):
    """Work with one owner: roles whose replicas start together or not at all."""

    spec: JobSpec
    status: JobStatus = field(default_factory=JobStatus)


JOB = muster_resource(
    Job,
    "jobs",
    short_names=("mj",),
    namespaced=True,
    columns=(
        PHASE,
        Column(name="Queue", path=".spec.queue"),
        Column(name="Place", path=".status.place.position", type="integer"),
        Column(name="Reason", path=".status.reason"),
        Column(name="Progress", path=".status.progress", type="number"),
        AGE,
        Column(name="User", path=".spec.user", priority=1),
        Column(name="Earliest", path=".status.startEstimate.earliest", priority=1),
        Column(name="Latest", path=".status.startEstimate.latest", priority=1),
        Column(name="Message", path=".status.message", priority=1),
    ),
)
