"""Nodes: machines that run pods. Pure.

Members that Kubernetes lists as required but does not insist on in a status have a default here.
"""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

import msgspec

from muster.objects.kinds.base import Native, NativeObject, Strings, keyed_merge, one_of
from muster.objects.kinds.references import StatusCondition
from muster.objects.time import Timestamp
from muster.objects.view import ATOMIC, SET, Int32, Quantities, merged


class Taint(Native):
    """Keeps pods away that do not tolerate it."""

    key: Annotated[str, "Its key."]
    effect: Annotated[
        str, one_of("NoSchedule", "PreferNoSchedule", "NoExecute"), "NoExecute also drives out pods that are there."
    ]
    value: Annotated[str, "Its value."] = ""
    time_added: Annotated[Timestamp, "When it was added."] = ""


class ConfigMapNodeConfigSource(Native):
    """A ConfigMap with the kubelet's settings. Not used by current kubelets."""

    namespace: Annotated[str, "Its namespace."]
    name: Annotated[str, "Its name."]
    kubelet_config_key: Annotated[str, "The key with the settings."]
    uid: Annotated[str, "Its UID."] = ""
    resource_version: Annotated[str, "Its version."] = ""


class NodeConfigSource(Native):
    """Where the kubelet's settings come from. Not used by current kubelets."""

    config_map: Annotated[ConfigMapNodeConfigSource | None, "A ConfigMap."] = None


class NodePodPreemptionPolicy(Native):
    """Limits on evicting pods for others."""

    disable_resize_preemption: Annotated[list[str], SET, "Kinds of resize for which nothing is evicted here."] = []


class NodeSpec(Native):
    """What an administrator decides about a node."""

    pod_cidr: Annotated[str, "Addresses for its pods."] = ""
    pod_cidrs: Annotated[list[str], SET, merged(), "The same, one for each IP family."] = []
    provider_id: Annotated[str, "Its name at the cloud: `provider://id`."] = ""
    unschedulable: Annotated[bool, "Take no new pods (cordoned)."] = False
    taints: Annotated[list[Taint], ATOMIC, "What keeps pods away."] = []
    config_source: Annotated[NodeConfigSource | None, "Not used by current kubelets."] = None
    external_id: Annotated[str, "Not used any more."] = ""
    pod_preemption_policy: Annotated[NodePodPreemptionPolicy | None, "Limits on evicting pods for others."] = None


class NodeAddress(Native):
    """An address of a node."""

    type: Annotated[str, "Hostname, InternalIP, ExternalIP, InternalDNS or ExternalDNS."]
    address: Annotated[str, "The address."]


class NodeCondition(StatusCondition):
    """A named fact about a node: Ready, MemoryPressure, DiskPressure, PIDPressure, NetworkUnavailable."""

    last_heartbeat_time: Annotated[Timestamp, "When the node last said so."] = ""


class DaemonEndpoint(Native):
    """A port of a daemon."""

    port: Annotated[Int32, "Its number."] = msgspec.field(default=0, name="Port")


class NodeDaemonEndpoints(Native):
    """Where daemons of the node listen."""

    kubelet_endpoint: Annotated[DaemonEndpoint | None, "The kubelet, or Muster's agent."] = None


class NodeSwapStatus(Native):
    """Swap space of a node."""

    capacity: Annotated[int | None, "How much there is, in bytes."] = None


class NodeSystemInfo(Native):
    """What a node is made of."""

    machine_id: Annotated[str, "Id of the installed system."] = ""
    system_uuid: Annotated[str, "UUID of the hardware."] = ""
    boot_id: Annotated[str, "Changes with each boot."] = ""
    kernel_version: Annotated[str, "Kernel."] = ""
    os_image: Annotated[str, "Operating system with its version."] = ""
    container_runtime_version: Annotated[str, "Container runtime with its version."] = ""
    kubelet_version: Annotated[str, "Version of the kubelet, or of Muster's agent."] = ""
    kube_proxy_version: Annotated[str, "Not used any more."] = ""
    operating_system: Annotated[str, "linux or windows."] = ""
    architecture: Annotated[str, "amd64, arm64, ..."] = ""
    swap: Annotated[NodeSwapStatus | None, "Swap space."] = None
    running_in_user_namespace: Annotated[bool | None, "Whether the node runs without being root."] = None


class ContainerImage(Native):
    """An image that is on the node."""

    names: Annotated[Strings, "Names and digests."] = []
    size_bytes: Annotated[int, "Its size."] = 0


class AttachedVolume(Native):
    """A volume attached to the node."""

    name: Annotated[str, "The volume."]
    device_path: Annotated[str, "Its device."]


class NodeConfigStatus(Native):
    """Settings of the kubelet. Not used by current kubelets."""

    assigned: Annotated[NodeConfigSource | None, "Those it shall use."] = None
    active: Annotated[NodeConfigSource | None, "Those it uses."] = None
    last_known_good: Annotated[NodeConfigSource | None, "Those it falls back to."] = None
    error: Annotated[str, "What went wrong."] = ""


class NodeRuntimeHandlerFeatures(Native):
    """What a runtime can do."""

    recursive_read_only_mounts: Annotated[bool | None, "Mounts read-only all the way down."] = None
    user_namespaces: Annotated[bool | None, "User namespaces."] = None


class NodeRuntimeHandler(Native):
    """A runtime of the node."""

    name: Annotated[str, "Its name; empty for the default one."] = ""
    features: Annotated[NodeRuntimeHandlerFeatures | None, "What it can do."] = None


class NodeFeatures(Native):
    """What the node's runtime can do."""

    supplemental_groups_policy: Annotated[bool | None, "Policies for supplemental groups."] = None


class NodeStatus(Native):
    """How a node is, as it reports."""

    capacity: Annotated[Quantities, "All that it has."] = {}
    allocatable: Annotated[Quantities, "What pods can get."] = {}
    phase: Annotated[str, "Not used any more."] = ""
    conditions: Annotated[list[NodeCondition], keyed_merge("type"), "Facts about it, such as Ready."] = []
    addresses: Annotated[list[NodeAddress], keyed_merge("type"), "Its addresses."] = []
    daemon_endpoints: Annotated[NodeDaemonEndpoints | None, "Where its daemons listen."] = None
    node_info: Annotated[NodeSystemInfo | None, "What it is made of."] = None
    images: Annotated[list[ContainerImage], ATOMIC, "Images that are there."] = []
    volumes_in_use: Annotated[Strings, "Volumes that are mounted."] = []
    volumes_attached: Annotated[list[AttachedVolume], ATOMIC, "Volumes that are attached."] = []
    config: Annotated[NodeConfigStatus | None, "Not used by current kubelets."] = None
    runtime_handlers: Annotated[list[NodeRuntimeHandler], ATOMIC, "Its runtimes."] = []
    features: Annotated[NodeFeatures | None, "What its runtime can do."] = None
    declared_features: Annotated[Strings, "Features that its kubelet declares."] = []


class Node(NativeObject):
    """A machine that runs pods."""

    spec: Annotated[NodeSpec | None, "What an administrator decides."] = None
    status: Annotated[NodeStatus | None, "How it is."] = None
