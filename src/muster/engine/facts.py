"""What the engine reads of each object: lean views, decoded straight from JSON, that travel inside events.

A field that decides nothing is not here: decoding costs more than deciding, and what is not here can't change a decision.
All are plain data; nobody changes one after it was made.
"""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Any

from msgspec import field

from muster.objects.kinds.affinity import Affinity, NodeSelector, Toleration, TopologySpreadConstraint
from muster.objects.kinds.muster_queues import SchedulingPolicySpec
from muster.objects.kinds.nodes import Taint
from muster.objects.selectors import LabelSelector
from muster.objects.time import time_or
from muster.objects.view import IntOrString, Quantities, View


class Facts(View, gc=False):
    """Base of all views in here."""


class OwnerFacts(Facts):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(Facts):
    """The part of `metadata` that matters here."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None
    owner_references: list[OwnerFacts] = []


class Resources(Facts):
    requests: Quantities = {}
    limits: Quantities = {}


class PortFacts(Facts):
    host_port: int = 0
    host_ip: str = field(default="", name="hostIP")
    protocol: str = "TCP"


class ContainerFacts(Facts):
    image: str = ""
    resources: Resources = field(default_factory=Resources)
    ports: list[PortFacts] = []
    restart_policy: str = ""


class ClaimSource(Facts):
    claim_name: str = ""


class VolumeFacts(Facts):
    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None
    """A claim of the pod's own, named `pod-volume`."""
    gce_persistent_disk: dict[str, Any] | None = field(default=None, name="gcePersistentDisk")
    aws_elastic_block_store: dict[str, Any] | None = None
    rbd: dict[str, Any] | None = None
    iscsi: dict[str, Any] | None = None


class GateFacts(Facts):
    name: str = ""


class PodSpecFacts(Facts):
    containers: list[ContainerFacts] = []
    init_containers: list[ContainerFacts] = []
    overhead: Quantities = {}
    resources: Resources | None = None
    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    topology_spread_constraints: list[TopologySpreadConstraint] = []
    volumes: list[VolumeFacts] = []
    scheduler_name: str = ""
    scheduling_gates: list[GateFacts] = []
    priority: int | None = None
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    host_network: bool = False


class ConditionFacts(Facts):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class TerminatedFacts(Facts):
    finished_at: str = ""


class ContainerStateFacts(Facts):
    terminated: TerminatedFacts | None = None


class ContainerStatusFacts(Facts):
    """When a container ended, as its agent says: no decision depends on it, and every account of what ran does."""

    state: ContainerStateFacts = field(default_factory=ContainerStateFacts)


class PodStatusFacts(Facts):
    phase: str = ""
    nominated_node_name: str = ""
    start_time: str = ""
    conditions: list[ConditionFacts] = []
    container_statuses: list[ContainerStatusFacts] = []
    init_container_statuses: list[ContainerStatusFacts] = []


class PodFacts(Facts):
    metadata: Meta = field(default_factory=Meta)
    spec: PodSpecFacts = field(default_factory=PodSpecFacts)
    status: PodStatusFacts = field(default_factory=PodStatusFacts)

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def is_finished(self) -> bool:
        """Whether it holds nothing any more."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def ended(self) -> float | None:
        """When its last container ended, if it is finished and its agent said so."""
        if not self.is_finished:
            return None
        statuses = (*self.status.container_statuses, *self.status.init_container_statuses)
        said = [time_or(one.state.terminated.finished_at, None) for one in statuses if one.state.terminated is not None]
        return max((end for end in said if end is not None), default=None)


class NodeSpecFacts(Facts):
    unschedulable: bool = False
    taints: list[Taint] = []


class ImageFacts(Facts):
    names: list[str] = []
    size_bytes: int = 0


class NodeStatusFacts(Facts):
    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: list[ConditionFacts] = []
    images: list[ImageFacts] = []


class NodeFacts(Facts):
    metadata: Meta = field(default_factory=Meta)
    spec: NodeSpecFacts = field(default_factory=NodeSpecFacts)
    status: NodeStatusFacts = field(default_factory=NodeStatusFacts)


class UsageFacts(Facts):
    resources: Quantities = {}


class AggregatedFacts(Facts):
    usage: dict[str, UsageFacts] = {}
    duration: str = ""


class NodeUsageFacts(Facts):
    node_usage: UsageFacts = field(default_factory=UsageFacts)
    system_usage: UsageFacts = field(default_factory=UsageFacts)
    aggregated_node_usages: list[AggregatedFacts] = []


class PodUsageFacts(Facts):
    name: str = ""
    namespace: str = ""
    priority: str = ""
    pod_usage: UsageFacts = field(default_factory=UsageFacts)


class MetricStatusFacts(Facts):
    update_time: str = ""
    node_metric: NodeUsageFacts | None = None
    pods_metric: list[PodUsageFacts] = []


class CollectPolicyFacts(Facts):
    report_interval_seconds: int | None = None


class MetricSpecFacts(Facts):
    metric_collect_policy: CollectPolicyFacts | None = None


class NodeMetricFacts(Facts):
    """A NodeMetric: measured use of the node of the same name."""

    metadata: Meta = field(default_factory=Meta)
    spec: MetricSpecFacts = field(default_factory=MetricSpecFacts)
    status: MetricStatusFacts = field(default_factory=MetricStatusFacts)


class BudgetSpecFacts(Facts):
    selector: LabelSelector | None = None
    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None


class BudgetStatusFacts(Facts):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] = {}


class BudgetFacts(Facts):
    """A PodDisruptionBudget."""

    metadata: Meta = field(default_factory=Meta)
    spec: BudgetSpecFacts = field(default_factory=BudgetSpecFacts)
    status: BudgetStatusFacts = field(default_factory=BudgetStatusFacts)


class ClaimSpecFacts(Facts):
    volume_name: str = ""
    storage_class_name: str | None = None
    access_modes: list[str] = []


class ClaimStatusFacts(Facts):
    phase: str = ""


class ClaimFacts(Facts):
    """A PersistentVolumeClaim."""

    metadata: Meta = field(default_factory=Meta)
    spec: ClaimSpecFacts = field(default_factory=ClaimSpecFacts)
    status: ClaimStatusFacts = field(default_factory=ClaimStatusFacts)


class VolumeNodeAffinityFacts(Facts):
    required: NodeSelector | None = None


class PersistentVolumeSpecFacts(Facts):
    node_affinity: VolumeNodeAffinityFacts | None = None


class PersistentVolumeFacts(Facts):
    metadata: Meta = field(default_factory=Meta)
    spec: PersistentVolumeSpecFacts = field(default_factory=PersistentVolumeSpecFacts)


class TopologyRequirementFacts(Facts):
    key: str = ""
    values: list[str] = []


class TopologyTermFacts(Facts):
    match_label_expressions: list[TopologyRequirementFacts] = []


class StorageClassFacts(Facts):
    metadata: Meta = field(default_factory=Meta)
    volume_binding_mode: str = ""
    provisioner: str = ""
    allowed_topologies: list[TopologyTermFacts] = []
    """Where volumes can be made; empty for everywhere."""


class NamespaceFacts(Facts):
    metadata: Meta = field(default_factory=Meta)


class PoolSpecFacts(Facts):
    selector: LabelSelector | None = None
    nodes: list[str] = []
    exclusive: bool = False


class PoolFacts(Facts):
    """A NodePool."""

    metadata: Meta = field(default_factory=Meta)
    spec: PoolSpecFacts = field(default_factory=PoolSpecFacts)


class LinkEndFacts(Facts):
    domain: str = ""
    pool: str = ""


class LinkSpecFacts(Facts):
    from_: LinkEndFacts = field(default_factory=LinkEndFacts, name="from")
    to: LinkEndFacts = field(default_factory=LinkEndFacts)
    capacity: str | int | float = 0
    reverse: str | int | float | None = None
    reserved: str | int | float | None = None


class LinkFacts(Facts):
    metadata: Meta = field(default_factory=Meta)
    spec: LinkSpecFacts = field(default_factory=LinkSpecFacts)


class QuotaLimitsFacts(Facts):
    pod_max_count: int | None = None
    hard: Quantities = {}


class QuotaSpecFacts(Facts):
    resource_quota: QuotaLimitsFacts | None = None


class QuotaFacts(Facts):
    """A Domain: how much the pods of the namespace of its name may ask for in all."""

    metadata: Meta = field(default_factory=Meta)
    spec: QuotaSpecFacts = field(default_factory=QuotaSpecFacts)


class PodGroupSpecFacts(Facts):
    min_member: int = 0
    min_resources: Quantities = {}
    schedule_timeout_seconds: int | None = None


class PodGroupFacts(Facts):
    metadata: Meta = field(default_factory=Meta)
    spec: PodGroupSpecFacts = field(default_factory=PodGroupSpecFacts)


class TaskPodFacts(Facts):
    name: str = ""


class TaskPartyFacts(Facts):
    domain_id: str = field(default="", name="domainID")
    role: str = ""
    min_reserved_pods: int = 0
    pods: list[TaskPodFacts] = []


class TaskGroupSpecFacts(Facts):
    min_reserved_members: int = 0
    resource_reserved_seconds: int = 0
    parties: list[TaskPartyFacts] = []
    out_of_controlled_parties: list[TaskPartyFacts] = []


class TaskGroupStatusFacts(Facts):
    phase: str = ""
    retry_count: int = 0


class TaskGroupFacts(Facts):
    """A TaskResourceGroup: one unit. Its pods name it with the annotation `kuscia.secretflow/task-resource-group`."""

    metadata: Meta = field(default_factory=Meta)
    spec: TaskGroupSpecFacts = field(default_factory=TaskGroupSpecFacts)
    status: TaskGroupStatusFacts = field(default_factory=TaskGroupStatusFacts)


class LimitsFacts(Facts):
    """Ceilings, as in `muster.objects.kinds.muster_base.Limits`, that hold what waits: what is refused at once is not here."""

    concurrent: dict[str, str | int | float] = {}
    jobs_running: int | None = None


class QueueSpecFacts(Facts):
    parent: str = ""
    policy: str = "balanced"
    weight: int = 1
    level: int = 0
    limits: LimitsFacts = field(default_factory=LimitsFacts)
    pools: list[str] = []
    is_default: bool = False
    state: str = "Open"


class FadedFacts(Facts):
    """Use in resource-seconds, faded with this half-life; as of `at` (seconds since 1970)."""

    half_life_seconds: float = 0
    used: dict[str, float] = {}
    at: float = 0


class ExhaustedFacts(Facts):
    resource: str = ""
    message: str = ""


class StandingFacts(Facts):
    """What the ledger says of a user, group or queue: see `muster.objects.kinds.muster_base.Standing`."""

    faded: list[FadedFacts] = []
    exhausted: list[ExhaustedFacts] = []
    """Consumption limits that are reached: what asks for the resource does not start."""
    stopped: str = ""
    """Why nothing new of it may start: a budget is spent. Empty when it may."""
    limits: LimitsFacts | None = None
    """In force besides those in the spec, when a budget is spent."""


class AccountStatusFacts(Facts):
    standing: StandingFacts | None = None


class QueueFacts(Facts):
    """A Queue."""

    metadata: Meta = field(default_factory=Meta)
    spec: QueueSpecFacts = field(default_factory=QueueSpecFacts)
    status: AccountStatusFacts = field(default_factory=AccountStatusFacts)


class PolicyFacts(Facts):
    """A SchedulingPolicy; its spec is what users write, whole."""

    metadata: Meta = field(default_factory=Meta)
    spec: SchedulingPolicySpec = field(default_factory=SchedulingPolicySpec)


class ConsumptionFacts(Facts):
    resource: str = ""
    amount: float = 0


class UserSpecFacts(Facts):
    group: str = ""
    level: float = 0
    weight: int = 1
    usernames: list[str] = []
    limits: LimitsFacts = field(default_factory=LimitsFacts)
    suspended: bool = False


class UserFacts(Facts):
    metadata: Meta = field(default_factory=Meta)
    spec: UserSpecFacts = field(default_factory=UserSpecFacts)
    status: AccountStatusFacts = field(default_factory=AccountStatusFacts)


class UserGroupSpecFacts(Facts):
    parent: str = ""
    level: float = 0
    weight: int = 1
    limits: LimitsFacts = field(default_factory=LimitsFacts)


class UserGroupFacts(Facts):
    metadata: Meta = field(default_factory=Meta)
    spec: UserGroupSpecFacts = field(default_factory=UserGroupSpecFacts)
    status: AccountStatusFacts = field(default_factory=AccountStatusFacts)


class RunFacts(Facts):
    """A run that ended, for predictions: who ran what, how long, on how much."""

    user: str = ""
    group: str = ""
    name: str = ""
    type: str = ""
    seconds: float = 0
    ended: float = 0
    requests: dict[str, int] = {}
    used: dict[str, int] = {}
    """Measured, in the units of the engine's rows; empty where nobody measured."""
    attributes: dict[str, str] = {}
    """What the owner said of the work: `domain: cv`."""
    labels: dict[str, str] = {}
    """Of the node, as far as they tell nodes apart by their kind; its name as `metadata.name`."""
    failed: bool = False
    """It says something about the place then, and nothing about how long such work runs."""
