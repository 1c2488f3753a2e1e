"""Pods, pod templates, and the older kinds made of them. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from msgspec import field

from muster.objects.kinds.affinity import Affinity, Toleration, TopologySpreadConstraint
from muster.objects.kinds.base import (
    ATOMIC_MAP,
    AtomicTexts,
    Count,
    Native,
    NativeObject,
    Strings,
    between,
    default,
    keyed_merge,
    one_of,
)
from muster.objects.kinds.containers import (
    AppArmorProfile,
    Container,
    EphemeralContainer,
    ResourceRequirements,
    SeccompProfile,
    SELinuxOptions,
    WindowsSecurityContextOptions,
)
from muster.objects.kinds.pod_status import PodStatus
from muster.objects.kinds.references import LocalObjectReference, ObjectReference, StatusCondition
from muster.objects.kinds.volumes import Volume
from muster.objects.meta import ObjectMeta
from muster.objects.view import ATOMIC, Int32, Quantities

UserId = Annotated[int | None, between(0, None, "int64")]


class Sysctl(Native):
    """A kernel parameter."""

    name: Annotated[str, "Its name."]
    value: Annotated[str, "Its value."]


class PodSecurityContext(Native):
    """Rights of all containers of a pod, unless a container has its own."""

    se_linux_options: Annotated[SELinuxOptions | None, "SELinux label."] = None
    windows_options: Annotated[WindowsSecurityContextOptions | None, "Rights on Windows nodes."] = None
    run_as_user: Annotated[UserId, "User id of the programs."] = None
    run_as_group: Annotated[UserId, "Group id of the programs."] = None
    run_as_non_root: Annotated[bool | None, "Refuse to start anything as user 0."] = None
    supplemental_groups: Annotated[list[int], ATOMIC, "Further group ids."] = []
    supplemental_groups_policy: Annotated[str | None, one_of("Merge", "Strict"), "Whether the image's groups are added."] = None
    fs_group: Annotated[UserId, "Group that owns the volumes."] = None
    fs_group_change_policy: Annotated[
        str | None, one_of("OnRootMismatch", "Always"), "Whether to change owners only when the root's is wrong."
    ] = None
    sysctls: Annotated[list[Sysctl], ATOMIC, "Kernel parameters of the pod's namespaces."] = []
    seccomp_profile: Annotated[SeccompProfile | None, "System calls that are allowed."] = None
    app_armor_profile: Annotated[AppArmorProfile | None, "AppArmor rules."] = None
    se_linux_change_policy: Annotated[str | None, one_of("MountOption", "Recursive"), "How volumes get their label."] = None


class PodDNSConfigOption(Native):
    """An option of the resolver."""

    name: Annotated[str, "Such as `ndots`."] = ""
    value: Annotated[str | None, "Its value, if it has one."] = None


class PodDNSConfig(Native):
    """Resolver settings, added to what `dnsPolicy` gives."""

    nameservers: Annotated[Strings, "Addresses of name servers."] = []
    searches: Annotated[Strings, "Search domains."] = []
    options: Annotated[list[PodDNSConfigOption], ATOMIC, "Resolver options."] = []


class HostAlias(Native):
    """A line in the pod's hosts file."""

    ip: Annotated[str, "The address."]
    hostnames: Annotated[Strings, "Names for it."] = []


class PodReadinessGate(Native):
    """A condition that must be true before the pod counts as ready."""

    condition_type: Annotated[str, "Its type in the pod's conditions."]


class PodSchedulingGate(Native):
    """While a pod has one, nothing tries to place it."""

    name: Annotated[str, "Its name."]


class PodOS(Native):
    """The operating system of the containers."""

    name: Annotated[str, one_of("linux", "windows"), "linux or windows."]


class PodResourceClaim(Native):
    """A device claim that containers can use by name; one of the two is set."""

    name: Annotated[str, "Its name in the pod."]
    resource_claim_name: Annotated[str | None, "An existing claim."] = None
    resource_claim_template_name: Annotated[str | None, "The template from which one is made for the pod."] = None


class PodSchedulingGroup(Native):
    """The group that the pod is placed with."""

    pod_group_name: Annotated[str | None, "Its PodGroup in the same namespace."] = None


class EvictionResponder(Native):
    """Someone to ask before the pod is evicted."""

    __schema_extra__ = ATOMIC_MAP

    name: Annotated[str, "Its name."]
    priority: Annotated[Int32, "Higher ones are asked first."]


class PodSpec(Native):
    """What runs in a pod and what it needs."""

    containers: Annotated[list[Container], keyed_merge("name"), "The programs; at least one, and their number is fixed."]
    init_containers: Annotated[
        list[Container],
        keyed_merge("name"),
        "Run one after the other before the rest; with restartPolicy Always they stay (sidecars).",
    ] = []
    ephemeral_containers: Annotated[
        list[EphemeralContainer], keyed_merge("name"), "Put in later to look into the pod, through its own subresource."
    ] = []
    volumes: Annotated[list[Volume], keyed_merge("name", strategy="merge,retainKeys"), "What the containers can mount."] = []
    restart_policy: Annotated[str, one_of("Always", "OnFailure", "Never"), "Whether ended containers start again."] = "Always"
    termination_grace_period_seconds: Annotated[
        int | None, "Time to end in peace before being killed; negative counts as 1."
    ] = 30
    active_deadline_seconds: Annotated[int | None, between(1, None, "int64"), "The pod fails when it has run this long."] = None
    dns_policy: Annotated[
        str, one_of("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"), "Where name resolution comes from."
    ] = "ClusterFirst"
    dns_config: Annotated[PodDNSConfig | None, "Resolver settings besides."] = None
    node_selector: Annotated[AtomicTexts, "Labels that the node must have."] = {}
    node_name: Annotated[str, "The node it is placed on; set by the scheduler through the binding subresource."] = ""
    service_account_name: Annotated[str, "Service account that it runs as."] = ""
    service_account: Annotated[str, "Old name of `serviceAccountName`."] = ""
    automount_service_account_token: Annotated[bool | None, "Whether it gets that account's token."] = None
    host_network: Annotated[bool, "Use the node's network."] = False
    host_pid: Annotated[bool, "See the node's processes."] = False
    host_ipc: Annotated[bool, "Use the node's IPC."] = False
    host_users: Annotated[bool | None, "False gives the pod a user namespace of its own."] = None
    share_process_namespace: Annotated[bool | None, "Its containers see each other's processes."] = None
    security_context: Annotated[PodSecurityContext | None, default({}), "Rights of its containers."] = None
    image_pull_secrets: Annotated[list[LocalObjectReference], keyed_merge("name"), "Secrets for fetching its images."] = []
    hostname: Annotated[str, "Its host name; the pod's name when empty."] = ""
    subdomain: Annotated[str, "Its subdomain, that of a headless service."] = ""
    hostname_override: Annotated[str | None, "Host name inside the pod, whatever DNS says."] = None
    set_hostname_as_fqdn: Annotated[bool | None, "Use the full name as host name."] = None
    host_aliases: Annotated[list[HostAlias], keyed_merge("ip"), "Lines for its hosts file."] = []
    affinity: Annotated[Affinity | None, "What draws it to places and keeps it off."] = None
    tolerations: Annotated[list[Toleration], ATOMIC, "Taints that it bears."] = []
    topology_spread_constraints: Annotated[
        list[TopologySpreadConstraint], keyed_merge("topologyKey", "whenUnsatisfiable"), "How pods like it are spread."
    ] = []
    scheduler_name: Annotated[str, "The scheduler that places it."] = "default-scheduler"
    scheduling_gates: Annotated[list[PodSchedulingGate], keyed_merge("name"), "While there are any, it is not placed."] = []
    scheduling_group: Annotated[PodSchedulingGroup | None, "The group that it is placed with."] = None
    priority_class_name: Annotated[str, "PriorityClass that gives its priority."] = ""
    priority: Annotated[Int32 | None, "Higher goes first; filled in from the class."] = None
    preemption_policy: Annotated[
        str | None, one_of("PreemptLowerPriority", "Never"), "Whether pods of lower priority may be evicted for it."
    ] = None
    readiness_gates: Annotated[list[PodReadinessGate], ATOMIC, "Further conditions for being ready."] = []
    runtime_class_name: Annotated[str | None, "RuntimeClass that runs it."] = None
    enable_service_links: Annotated[
        bool | None, "Whether services become environment variables; a pod that does not say gets true."
    ] = None
    overhead: Annotated[Quantities, "What the sandbox takes besides; filled in from the RuntimeClass."] = {}
    resources: Annotated[ResourceRequirements | None, "What the pod as a whole reserves and may use."] = None
    resource_claims: Annotated[
        list[PodResourceClaim], keyed_merge("name", strategy="merge,retainKeys"), "Device claims that its containers can use."
    ] = []
    os: Annotated[PodOS | None, "Operating system of the containers."] = None
    eviction_responders: Annotated[list[EvictionResponder], keyed_merge("name"), "Who is asked before it is evicted."] = []


class Pod(NativeObject):
    """Containers that are placed together on one node and share its network and volumes."""

    spec: Annotated[PodSpec | None, "What runs in it."] = None
    status: Annotated[PodStatus | None, "How it is, as its node reports."] = None


class PodTemplateSpec(Native):
    """A pod to be made."""

    metadata: Annotated[ObjectMeta, "Labels and annotations to give it."] = field(default_factory=ObjectMeta)
    spec: Annotated[PodSpec | None, "What runs in it."] = None


class PodTemplate(NativeObject):
    """A pod kept for making others like it."""

    template: Annotated[PodTemplateSpec | None, "The pod."] = None


class ReplicationControllerSpec(Native):
    """How many pods of which kind."""

    replicas: Annotated[Count | None, "How many."] = 1
    min_ready_seconds: Annotated[Count, "How long a pod must be ready to count as available."] = 0
    selector: Annotated[AtomicTexts, "Labels of its pods; the template's when empty."] = {}
    template: Annotated[PodTemplateSpec | None, "The pods to make."] = None


class ReplicationControllerStatus(Native):
    """How many pods there are."""

    replicas: Annotated[Int32, "All of them."] = 0
    fully_labeled_replicas: Annotated[Int32, "Those with all labels of the template."] = 0
    ready_replicas: Annotated[Int32, "Those that are ready."] = 0
    available_replicas: Annotated[Int32, "Those that have been ready for long enough."] = 0
    observed_generation: Annotated[int, "The generation that this speaks of."] = 0
    conditions: Annotated[list[StatusCondition], keyed_merge("type"), "Facts about it."] = []


class ReplicationController(NativeObject):
    """Keeps a number of pods running. The forerunner of ReplicaSet."""

    spec: Annotated[ReplicationControllerSpec | None, "What is wanted."] = None
    status: Annotated[ReplicationControllerStatus | None, "What there is."] = None


class Binding(NativeObject, kw_only=True):
    """Puts a pod onto a node: what a scheduler posts to the pod's `binding` subresource."""

    target: Annotated[ObjectReference, "The node."]
