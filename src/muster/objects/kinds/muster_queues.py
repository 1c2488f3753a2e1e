"""The order in which work is tried: Queue and SchedulingPolicy. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import field

from muster.objects.conditions import Conditions
from muster.objects.kinds.base import AGE, Object
from muster.objects.kinds.muster_base import Limits, Standing, Usage, muster_resource
from muster.objects.kinds.shapes import Amounts, Count, Percent, Seconds
from muster.objects.resources import Column
from muster.objects.selectors import LabelSelector
from muster.objects.view import View, keyed

FactorSource = Literal[
    "UserLevel",
    "GroupLevel",
    "JobLevel",
    "QueueLevel",
    "Size",
    "ShareOfCluster",
    "WaitingSeconds",
    "AgeSeconds",
    "Tail",
    "EstimatedRunSeconds",
    "PredictedRunSeconds",
    "EstimatedUse",
    "PredictedUse",
    "RemainingSeconds",
    "ServedSeconds",
    "AttainedService",
    "Restarts",
    "FairShare",
    "SecondsToDeadline",
    "Attribute",
    "Label",
    "Pressure",
    "Interference",
    "Constant",
]


class QueueAdmission(View):
    """Which jobs the queue takes. What is left out does not matter; all that is given must hold."""

    users: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    selector: Annotated[LabelSelector | None, "Over the job's labels."] = None
    per_job_max: Annotated[Amounts, "The largest job it takes."] = field(default_factory=dict)
    run_seconds_max: Annotated[int, "The longest estimate it takes.", msgspec.Meta(ge=1)] | None = None
    require_estimate: bool = False


class QueueSpec(View):
    """Its place in the tree of queues, its policy and its limits."""

    parent: Annotated[str, "The queue above; a top queue when left out."] = ""
    policy: Annotated[str, "Name of the SchedulingPolicy that orders it."] = "balanced"
    weight: Annotated[int, "Its share among the queues beside it.", msgspec.Meta(ge=1, le=10_000)] = 1
    level: Annotated[int, "Queues of a higher level are tried first.", msgspec.Meta(ge=-1000, le=1000)] = 0
    limits: Limits = field(default_factory=Limits)
    pools: Annotated[list[str], "Node pools that its jobs may use; all when left out."] = field(default_factory=list)
    admission: QueueAdmission = field(default_factory=QueueAdmission)
    is_default: Annotated[bool, "Takes the jobs that name no queue."] = False
    state: Annotated[Literal["Open", "Closed", "Stopped"], "Closed takes no new job, Stopped also starts none."] = "Open"


class QueueStatus(View):
    """How full it is."""

    usage: Usage | None = None
    standing: Standing | None = None
    held: Count = 0
    observed_generation: int = 0
    conditions: Conditions = field(default_factory=list)


class Queue(Object, kw_only=True):
    """A line in which jobs wait."""

    spec: QueueSpec
    status: QueueStatus = field(default_factory=QueueStatus)


class Factor(View, kw_only=True):
    """A number about each waiting job that the formula may use by its name."""

    name: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[a-z][a-z0-9_]*$", "maxLength": 63})]
    source: FactorSource
    key: Annotated[str, "Which resource, attribute or label, for sources that have several."] = ""
    weight: float = 1
    constant: Annotated[float, "The value, for `source: Constant`."] = 0
    default: Annotated[float, "For jobs that lack it."] = 0
    scale: Annotated[float, "The value is divided by this.", msgspec.Meta(gt=0)] = 1
    min: float | None = None
    max: float | None = None


class FairShare(View):
    """How past use fades. It is counted by the dominant resource."""

    half_life_seconds: Annotated[int, msgspec.Meta(ge=1)] = 604_800


class Backfill(View):
    """What may go before blocked work."""

    mode: Annotated[
        Literal["None", "EASY", "Conservative", "Strict"],
        "EASY keeps the planned start of the first in line, Conservative of all that wait; None keeps none, so that whatever "
        "fits goes. With Strict nothing goes before blocked work.",
    ] = "EASY"
    depth: Annotated[int, "How far down the line to look.", msgspec.Meta(ge=1, le=100_000)] = 1000


class PolicyPreemption(View):
    """When running work that is preemptible makes room."""

    enabled: bool = False
    restart_cost_seconds: Annotated[Seconds, "Charged for each stop, besides the work since the last checkpoint."] = 300
    gain_percent_min: Annotated[Percent, "Only if the waiting work scores this much better."] = 20
    per_job_max: Annotated[int, "How often one job may be stopped.", msgspec.Meta(ge=0)] = 10


class SchedulingPolicySpec(View, kw_only=True):
    """How waiting work is ordered: factors, and a formula over them."""

    description: str = ""
    factors: Annotated[list[Factor], keyed("name"), msgspec.Meta(max_length=64)] = field(default_factory=list)
    formula: Annotated[
        str,
        "Larger is sooner. Names are factors; `weighted_sum`, the sum of weight times value, when left out.",
        msgspec.Meta(extra_json_schema={"maxLength": 2000}),
    ] = ""
    starvation_bound_seconds: Annotated[int, "No job waits longer behind younger ones.", msgspec.Meta(ge=1)] = 604_800
    reevaluate_seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 5
    fair_share: FairShare = field(default_factory=FairShare)
    backfill: Backfill = field(default_factory=Backfill)
    preemption: PolicyPreemption = field(default_factory=PolicyPreemption)


class FormulaError(View):
    """Where the formula is wrong, and what to write instead."""

    position: int = 0
    message: str = ""
    hint: str = ""


class SchedulingPolicyStatus(View):
    formula_error: FormulaError | None = None
    queues: Annotated[list[str], "Queues that use it."] = field(default_factory=list)
    not_a_number: Annotated[Count, "Waiting jobs for which the formula gave no number; they rank last."] = 0
    observed_generation: int = 0
    conditions: Conditions = field(default_factory=list)


class SchedulingPolicy(Object, kw_only=True):
    """An order for waiting work."""

    spec: SchedulingPolicySpec
    status: SchedulingPolicyStatus = field(default_factory=SchedulingPolicyStatus)


QUEUE = muster_resource(
    Queue,
    "queues",
    short_names=("mq",),
    columns=(
        Column(name="State", path=".spec.state"),
        Column(name="Policy", path=".spec.policy"),
        Column(name="Waiting", path=".status.usage.jobsWaiting", type="integer"),
        Column(name="Running", path=".status.usage.jobsRunning", type="integer"),
        AGE,
        Column(name="Parent", path=".spec.parent", priority=1),
        Column(name="Weight", path=".spec.weight", type="integer", priority=1),
    ),
)
SCHEDULING_POLICY = muster_resource(
    SchedulingPolicy,
    "schedulingpolicies",
    short_names=("spol",),
    columns=(
        Column(name="Ready", path='.status.conditions[?(@.type=="Ready")].status'),
        Column(name="Backfill", path=".spec.backfill.mode"),
        AGE,
        Column(name="Formula", path=".spec.formula", priority=1),
    ),
)
