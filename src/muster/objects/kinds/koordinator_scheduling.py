"""Koordinator's scheduling kinds: Device, Reservation, PodMigrationJob, ScheduleExplanation, ClusterNetworkTopology. Pure."""

from __future__ import annotations

import functools
from typing import Annotated, Literal

import msgspec
from msgspec import field

from muster.objects.conditions import Condition, ConditionStatus
from muster.objects.kinds.base import AGE, Object, default, one_of
from muster.objects.kinds.nodes import Taint
from muster.objects.kinds.references import ObjectReference
from muster.objects.kinds.shapes import PHASE, Count, Duration, Foreign, Kept, custom_resource
from muster.objects.resources import Column, Resource
from muster.objects.selectors import LabelSelector
from muster.objects.time import Timestamp
from muster.objects.view import Int32, Quantities, keyed


class DeviceTopology(Foreign):
    """Where in the machine the device sits."""

    socket_id: Int32 = field(name="socketID")
    node_id: Annotated[Int32, "The NUMA node."] = field(name="nodeID")
    pcie_id: str = field(name="pcieID")
    bus_id: str = field(default="", name="busID")


class VirtualFunction(Foreign):
    minor: Int32
    bus_id: str = field(default="", name="busID")


class VirtualFunctionGroup(Foreign):
    labels: dict[str, str] = field(default_factory=dict)
    vfs: list[VirtualFunction] = field(default_factory=list)


class DeviceInfo(Foreign):
    """One device of a node."""

    type: Annotated[str, "`gpu`, `rdma`, `fpga`, ..."] = ""
    labels: dict[str, str] = field(default_factory=dict)
    id: Annotated[str, "Its UUID."] = ""
    minor: Int32 | None = None
    module_id: Int32 | None = field(default=None, name="moduleID")
    health: Annotated[bool, default(False)] = False
    resources: Quantities = field(default_factory=dict)
    topology: DeviceTopology | None = None
    vf_groups: list[VirtualFunctionGroup] = field(default_factory=list)
    conditions: Annotated[list[Condition], keyed("type")] = field(default_factory=list)


class DeviceSpec(Foreign):
    devices: list[DeviceInfo] = field(default_factory=list)


class DeviceAllocationItem(Foreign):
    name: str = ""
    namespace: str = ""
    uuid: str = ""
    minors: list[Int32] = field(default_factory=list)


class DeviceAllocation(Foreign):
    type: str = ""
    entries: list[DeviceAllocationItem] = field(default_factory=list)


class DeviceStatus(Foreign):
    allocations: list[DeviceAllocation] = field(default_factory=list)


class Device(Object):
    """The GPUs, network cards and other devices of the node that has the same name."""

    spec: DeviceSpec = field(default_factory=DeviceSpec)
    status: DeviceStatus = field(default_factory=DeviceStatus)


class ControllerReference(Foreign):
    """An owner reference that may name another namespace."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None
    namespace: str = ""


class ReservationOwner(Foreign):
    """Who may use the reservation; all that is given must match."""

    __schema_extra__ = {**Foreign.__schema_extra__, "minProperties": 1}  # noqa: RUF012

    object: ObjectReference | None = None
    controller: ControllerReference | None = None
    label_selector: LabelSelector | None = None


class PreAllocationPolicy(Foreign):
    """Which running pods the reservation may be laid over."""

    mode: Annotated[str, one_of("", "Default", "Cluster")] = ""
    enable_multiple: bool = False


class ReservationSpec(Foreign):
    """What to set aside, for whom, and for how long."""

    template: Annotated[Kept, "A pod template; its requests are what is set aside."]
    owners: Annotated[list[ReservationOwner], "Any of these may use it.", msgspec.Meta(min_length=1)]
    ttl: Annotated[Duration, "How long it stays; 0 is for ever."] = "24h"
    expires: Annotated[Timestamp, "When it ends; wins over ttl."] = ""
    pre_allocation: bool = False
    pre_allocation_policy: PreAllocationPolicy | None = None
    allocate_once: Annotated[bool, "The first owner that uses it ends it."] = True
    allocate_policy: Annotated[
        Literal["", "Aligned", "Restricted"], "Restricted owners get no more of a reserved resource than was set aside."
    ] = ""
    unschedulable: bool = False
    taints: list[Taint] = field(default_factory=list)


class ProbedCondition(Foreign):
    type: str = ""
    status: Annotated[str, one_of("", "True", "False", "Unknown")] = ""
    reason: str = ""
    message: str = ""
    last_probe_time: Timestamp = ""
    last_transition_time: Timestamp = ""


class ReservationStatus(Foreign):
    """Where it is held and who uses it."""

    phase: Literal["", "Pending", "Available", "Succeeded", "Waiting", "Failed"] = ""
    conditions: list[ProbedCondition] = field(default_factory=list)
    current_owners: list[ObjectReference] = field(default_factory=list)
    node_name: str = ""
    allocatable: Quantities = field(default_factory=dict)
    allocated: Quantities = field(default_factory=dict)


class Reservation(Object, kw_only=True):
    """Resources that are set aside on a node for pods to come."""

    spec: ReservationSpec
    status: ReservationStatus = field(default_factory=ReservationStatus)


class MigrationReservationOptions(Foreign):
    reservation_ref: ObjectReference | None = None
    template: Annotated[Kept | None, "The Reservation to create, when none is named."] = None
    preemption_options: Kept | None = None


class PodMigrationJobSpec(Foreign, kw_only=True):
    """Which pod to move, and how."""

    paused: bool = False
    ttl: Duration = ""
    mode: Annotated[str, one_of("", "ReservationFirst", "EvictDirectly"), "ReservationFirst when left out."] = ""
    pod_ref: ObjectReference
    reservation_options: MigrationReservationOptions | None = None
    delete_options: Kept | None = None


class MigrationCondition(Foreign):
    type: str
    status: ConditionStatus
    reason: str = ""
    message: str = ""
    last_probe_time: Timestamp = ""
    last_transition_time: Timestamp = ""


class PreemptedReservation(Foreign):
    namespace: str = ""
    name: str = ""
    node_name: str = ""
    phase: str = ""
    preempted_pod_ref: ObjectReference | None = None
    pods_ref: list[ObjectReference] = field(default_factory=list)


class PodMigrationJobStatus(Foreign):
    phase: Literal["", "Pending", "Running", "Succeeded", "Failed", "Aborted"] = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    conditions: Annotated[list[MigrationCondition], keyed("type")] = field(default_factory=list)
    node_name: str = ""
    pod_ref: Annotated[ObjectReference | None, "The pod that took over."] = None
    preempted_pods_ref: list[ObjectReference] = field(default_factory=list)
    preempted_pods_reservation: list[PreemptedReservation] = field(default_factory=list)


class PodMigrationJob(Object, kw_only=True):
    """Moves one pod to another node, with a place for it set aside first."""

    spec: PodMigrationJobSpec
    status: PodMigrationJobStatus = field(default_factory=PodMigrationJobStatus)


class ScheduleExplanationSpec(Foreign):
    """What is asked about."""

    question_object_key: Annotated[str, "`namespace/name` of a pod or job, or the id of a gang group."] = ""
    question_object_template: Annotated[Kept | None, "A pod template, to ask about work that does not exist."] = None
    ttl: Annotated[Duration, "How long the answer is kept; 0 is for ever."] = "24h"


class PodReference(Foreign):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class SchedulingResult(PodReference):
    node_name: str = ""


class NodeFailedDetail(Foreign):
    """Nodes that one plugin refused for one reason."""

    failed_plugin: str = ""
    reason: str = ""
    preempt_might_help: bool = False
    failed_nodes: list[str] = field(default_factory=list)


class NodeLevelExplanation(Foreign):
    schedulable: bool = False
    failed_message: str = ""
    feasible_scheduling_result: list[SchedulingResult] = field(default_factory=list)
    node_failed_details: list[NodeFailedDetail] = field(default_factory=list)


class PossibleVictim(PodReference):
    is_nominated_pod: bool = False


class NodePossibleVictim(Foreign):
    node_name: str = ""
    possible_victims: list[PossibleVictim] = field(default_factory=list)


class TopologyDomainExplanation(Foreign):
    topology_domain: str = ""
    schedulable: bool = False
    schedulable_after_preemption: bool = False
    failed_message: str = ""
    schedule_explanation: NodeLevelExplanation = field(default_factory=NodeLevelExplanation)
    node_possible_victims: list[NodePossibleVictim] = field(default_factory=list)
    preempt_explanation: NodeLevelExplanation = field(default_factory=NodeLevelExplanation)


class ScheduleExplanationStatus(Foreign):
    """The answer."""

    schedulable: bool = False
    schedulable_after_preemption: bool = False
    failed_message: str = ""
    last_update_time: Timestamp = ""
    detailed_explanation: list[TopologyDomainExplanation] = field(default_factory=list)


class ScheduleExplanation(Object):
    """A question about why work is or is not placed, and its answer."""

    spec: ScheduleExplanationSpec = field(default_factory=ScheduleExplanationSpec)
    status: ScheduleExplanationStatus = field(default_factory=ScheduleExplanationStatus)


class NetworkTopologyLayer(Foreign):
    """A layer of the network, from the cluster (`ClusterTopologyLayer`) down to nodes (`NodeTopologyLayer`)."""

    topology_layer: str
    parent_topology_layer: str = ""
    label_key: Annotated[list[str], "Node labels that name the domain; any of them."] = field(default_factory=list)


class ClusterNetworkTopologySpec(Foreign):
    network_topology_spec: Annotated[list[NetworkTopologyLayer], keyed("topologyLayer")]


class TopologyInfo(Foreign):
    topology_layer: str
    topology_name: str


class TopologyDetailStatus(Foreign):
    topology_info: TopologyInfo
    parent_topology_info: TopologyInfo | None = None
    child_topology_layer: str = ""
    child_topology_names: list[str] = field(default_factory=list)
    node_num: Count = 0


class ClusterNetworkTopologyStatus(Foreign):
    detail_status: list[TopologyDetailStatus] = field(default_factory=list)


class ClusterNetworkTopology(Object, kw_only=True):
    """The tree of network domains that gangs may ask to be gathered in."""

    spec: ClusterNetworkTopologySpec
    status: ClusterNetworkTopologyStatus = field(default_factory=ClusterNetworkTopologyStatus)


_resource = functools.partial(custom_resource, group="scheduling.koordinator.sh", categories=("koordinator",), namespaced=False)
_NODE = Column(name="Node", path=".status.nodeName")
_TTL = Column(name="TTL", path=".spec.ttl")

RESOURCES: tuple[Resource, ...] = (
    _resource(Device, "devices", has_status=False),
    _resource(Reservation, "reservations", columns=(PHASE, AGE, _NODE, _TTL, Column(name="Expires", path=".spec.expires"))),
    _resource(
        PodMigrationJob,
        "podmigrationjobs",
        columns=(
            PHASE,
            Column(name="Status", path=".status.status"),
            AGE,
            _NODE,
            Column(name="Reservation", path=".spec.reservationOptions.reservationRef.name"),
            Column(name="PodNamespace", path=".spec.podRef.namespace"),
            Column(name="Pod", path=".spec.podRef.name"),
            Column(name="NewPod", path=".status.podRef.name"),
            _TTL,
        ),
    ),
    _resource(ScheduleExplanation, "scheduleexplanations", namespaced=True, short_names=("sched-exp",)),
    _resource(ClusterNetworkTopology, "clusternetworktopologies"),
)
