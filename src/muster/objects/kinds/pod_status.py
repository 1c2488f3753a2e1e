"""What a node reports about its pods. Pure.

Members that Kubernetes lists as required but does not insist on in a status have a default here.
"""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import Native, keyed_merge, one_of
from muster.objects.kinds.claims import VolumeHealthConditions
from muster.objects.kinds.containers import ResourceRequirements
from muster.objects.kinds.references import ProbedCondition
from muster.objects.time import Timestamp
from muster.objects.view import ATOMIC, SET, Int32, Quantities, QuantityValue, keyed, merged


class PodCondition(ProbedCondition):
    """A named fact about a pod: PodScheduled, Initialized, ContainersReady, Ready, and others."""

    observed_generation: Annotated[int, "The pod's generation that this speaks of."] = 0


class ContainerStateWaiting(Native):
    """Not started yet."""

    reason: Annotated[str, "One word saying why."] = ""
    message: Annotated[str, "The same for people."] = ""


class ContainerStateRunning(Native):
    """Running."""

    started_at: Annotated[Timestamp, "Since when."] = ""


class ContainerStateTerminated(Native):
    """Ended."""

    exit_code: Annotated[Int32, "Its exit code."] = 0
    signal: Annotated[Int32, "The signal that ended it, if one did."] = 0
    reason: Annotated[str, "One word saying why: Completed, Error, OOMKilled."] = ""
    message: Annotated[str, "The same for people, or its last words."] = ""
    started_at: Annotated[Timestamp, "When it started."] = ""
    finished_at: Annotated[Timestamp, "When it ended."] = ""
    container_id: Annotated[str, "Its id at the runtime: `runc://...`."] = ""


class ContainerState(Native):
    """One of three; waiting when none is set."""

    waiting: Annotated[ContainerStateWaiting | None, "Not started yet."] = None
    running: Annotated[ContainerStateRunning | None, "Running."] = None
    terminated: Annotated[ContainerStateTerminated | None, "Ended."] = None


class ResourceHealth(Native):
    """Health of one device."""

    resource_id: Annotated[str, "The device."]
    health: Annotated[str, "Healthy, Unhealthy or Unknown."] = ""
    message: Annotated[str, "Details for people."] = ""


class ResourceStatus(Native):
    """Health of the devices behind a resource."""

    name: Annotated[str, "The resource or claim."]
    resources: Annotated[list[ResourceHealth], keyed("resourceID"), "Its devices."] = []


class LinuxContainerUser(Native):
    """Who the first process started as."""

    uid: Annotated[int, "User id."]
    gid: Annotated[int, "Group id."]
    supplemental_groups: Annotated[list[int], ATOMIC, "Further group ids."] = []


class ContainerUser(Native):
    """Who the first process started as."""

    linux: Annotated[LinuxContainerUser | None, "On Linux."] = None


class ImageVolumeStatus(Native):
    """The image behind an image volume."""

    image_ref: Annotated[str, "Its digest."]


class VolumeStatus(Native):
    """Details of a mounted volume."""

    image: Annotated[ImageVolumeStatus | None, "For image volumes."] = None


class VolumeMountStatus(Native):
    """How a volume is mounted."""

    name: Annotated[str, "The volume."]
    mount_path: Annotated[str, "Where."]
    read_only: Annotated[bool, "Whether it is read-only."] = False
    recursive_read_only: Annotated[str | None, "Whether mounts below it are."] = None
    volume_status: Annotated[VolumeStatus | None, "Details."] = None


class ContainerStatus(Native):
    """How one container is."""

    name: Annotated[str, "The container."]
    image: Annotated[str, "The image that runs."] = ""
    image_id: Annotated[str, "Its digest."] = ""
    ready: Annotated[bool, "Whether its readiness probe succeeds."] = False
    restart_count: Annotated[Int32, "How often it was restarted."] = 0
    state: Annotated[ContainerState | None, "How it is now."] = None
    last_state: Annotated[ContainerState | None, "How it last ended."] = None
    container_id: Annotated[str, "Its id at the runtime: `runc://...`."] = ""
    started: Annotated[bool | None, "Whether its startup probe has succeeded."] = None
    allocated_resources: Annotated[Quantities, "What the node has set aside for it."] = {}
    resources: Annotated[ResourceRequirements | None, "Requests and limits that hold now."] = None
    volume_mounts: Annotated[list[VolumeMountStatus], keyed_merge("mountPath"), "Its mounts."] = []
    user: Annotated[ContainerUser | None, "Who its first process started as."] = None
    allocated_resources_status: Annotated[list[ResourceStatus], keyed_merge("name"), "Health of its devices."] = []
    stop_signal: Annotated[str | None, "Signal that tells it to end."] = None


class HostIP(Native):
    """An address of the node."""

    ip: Annotated[str, "The address."]


class PodIP(Native):
    """An address of the pod."""

    ip: Annotated[str, "The address."]


class PodResourceClaimStatus(Native):
    """The claim made for the pod."""

    name: Annotated[str, "Its name in `spec.resourceClaims`."]
    resource_claim_name: Annotated[str | None, "The claim; absent when none was needed."] = None


class ContainerExtendedResourceRequest(Native):
    """An extended resource that is served by a device claim."""

    container_name: Annotated[str, "The container."]
    resource_name: Annotated[str, "The resource that it asks for."]
    request_name: Annotated[str, "The request in the claim."]


class PodExtendedResourceClaimStatus(Native):
    """The device claim made for extended resources."""

    request_mappings: Annotated[list[ContainerExtendedResourceRequest], ATOMIC, "Which container's resource is which request."]
    resource_claim_name: Annotated[str, "The claim."]


class NodeAllocatableMappedResources(Native):
    """A resource of the node that a claim takes."""

    name: Annotated[str, "The resource."]
    quantity: Annotated[QuantityValue, "How much."]


class NodeAllocatableOverheadResources(Native):
    """What a claim takes besides."""

    name: Annotated[str, "The resource."]
    per_container: Annotated[QuantityValue | None, "For each container."] = None
    per_pod: Annotated[QuantityValue | None, "For the pod."] = None


class NodeAllocatableResourceClaimStatus(Native):
    """What a device claim takes from the node's ordinary resources."""

    resource_claim_name: Annotated[str, "The claim."]
    containers: Annotated[list[str], SET, "Containers that use it."] = []
    mapping: Annotated[list[NodeAllocatableMappedResources], keyed_merge("name"), "What it takes."] = []
    overhead: Annotated[list[NodeAllocatableOverheadResources], keyed_merge("name"), "What it takes besides."] = []


class PodVolumeHealth(Native):
    """Health of one of the pod's volumes."""

    name: Annotated[str, "The volume."]
    health_conditions: Annotated[VolumeHealthConditions, "What is known."] = []
    last_transition_time: Annotated[Timestamp, "When it last changed."] = ""


ContainerStatuses = Annotated[list[ContainerStatus], ATOMIC]


class PodStatus(Native):
    """How a pod is, as its node reports; may lag behind when the node is silent."""

    phase: Annotated[
        str,
        one_of("", "Pending", "Running", "Succeeded", "Failed", "Unknown"),
        "Pending until all containers have started once, then Running until all have ended.",
    ] = ""
    conditions: Annotated[list[PodCondition], keyed_merge("type"), "Facts about it, such as Ready."] = []
    message: Annotated[str, "Why it is in this state, for people."] = ""
    reason: Annotated[str, "The same in one word, such as Evicted."] = ""
    nominated_node_name: Annotated[str, "Node where room is being made for it."] = ""
    host_ip: Annotated[str, "Address of its node."] = ""
    host_ips: Annotated[list[HostIP], ATOMIC, merged("ip"), "All addresses of its node."] = []
    pod_ip: Annotated[str, "Its address."] = ""
    pod_ips: Annotated[list[PodIP], keyed_merge("ip"), "All its addresses, at most one for each IP family."] = []
    start_time: Annotated[Timestamp, "When its node took it up."] = ""
    init_container_statuses: Annotated[ContainerStatuses, "How its init containers are."] = []
    container_statuses: Annotated[ContainerStatuses, "How its containers are."] = []
    ephemeral_container_statuses: Annotated[ContainerStatuses, "How its ephemeral containers are."] = []
    qos_class: Annotated[str, "Guaranteed, Burstable or BestEffort: follows from requests and limits."] = ""
    resize: Annotated[str, "How a change of resources in place goes."] = ""
    resource_claim_statuses: Annotated[
        list[PodResourceClaimStatus], keyed_merge("name", strategy="merge,retainKeys"), "Claims made for it."
    ] = []
    extended_resource_claim_status: Annotated[PodExtendedResourceClaimStatus | None, "Claim made for extended resources."] = (
        None
    )
    node_allocatable_resource_claim_statuses: Annotated[
        list[NodeAllocatableResourceClaimStatus], keyed_merge("resourceClaimName"), "What claims take from the node."
    ] = []
    allocated_resources: Annotated[Quantities, "What the node has set aside for the pod as a whole."] = {}
    resources: Annotated[ResourceRequirements | None, "Requests and limits of the pod as a whole that hold now."] = None
    observed_generation: Annotated[int, "The generation that this speaks of."] = 0
    volume_health: Annotated[list[PodVolumeHealth], keyed("name"), "Health of its volumes."] = []
