"""Label, annotation, taint and resource names, grouped by the system whose users write them. Values and one helper, pure.

Kuscia's and Koordinator's names are facts of those systems: manifests and tools that use them work here unchanged, so a
name must be spelled exactly as they spell it, oddities included. `Muster` holds what neither has.

Every upper-case attribute of a group is a full name, except those that end in `_PREFIX`: a name starts with that.
"""

from __future__ import annotations

from typing import Final


class Kubernetes:
    """Names of Kubernetes' own that scheduling reads."""

    HOSTNAME: Final = "kubernetes.io/hostname"
    OS: Final = "kubernetes.io/os"
    ARCH: Final = "kubernetes.io/arch"
    ROLE: Final = "kubernetes.io/role"
    ZONE: Final = "topology.kubernetes.io/zone"
    REGION: Final = "topology.kubernetes.io/region"
    INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
    MANAGED_BY: Final = "app.kubernetes.io/managed-by"
    NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
    LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

    EGRESS_BANDWIDTH: Final = "kubernetes.io/egress-bandwidth"
    INGRESS_BANDWIDTH: Final = "kubernetes.io/ingress-bandwidth"

    TAINT_NOT_READY: Final = "node.kubernetes.io/not-ready"
    TAINT_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
    TAINT_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
    TAINT_MEMORY_PRESSURE: Final = "node.kubernetes.io/memory-pressure"
    TAINT_DISK_PRESSURE: Final = "node.kubernetes.io/disk-pressure"
    TAINT_PID_PRESSURE: Final = "node.kubernetes.io/pid-pressure"
    TAINT_NETWORK_UNAVAILABLE: Final = "node.kubernetes.io/network-unavailable"


class KusciaLabel:
    """Labels that Kuscia's objects carry."""

    CONTROLLER: Final = "kuscia.secretflow/controller"
    JOB_UID: Final = "kuscia.secretflow/job-uid"
    TASK_UID: Final = "kuscia.secretflow/task-uid"
    TASK_RESOURCE_UID: Final = "kuscia.secretflow/task-resource-uid"
    TASK_RESOURCE_GROUP_UID: Final = "kuscia.secretflow/task-resource-group-uid"
    TASK_UNSCHEDULABLE: Final = "kuscia.secretflow/task-unschedulable"
    JOB_STAGE: Final = "kuscia.secretflow/job-stage"
    JOB_STAGE_TRIGGER: Final = "kuscia.secretflow/job-stage-trigger"
    JOB_STAGE_VERSION: Final = "kuscia.secretflow/job-stage-version"
    JOB_AUTO_APPROVAL: Final = "kuscia.secretflow/job-auto-approval"
    JOB_CUSTOM_FIELD_PREFIX: Final = "kuscia.job.custom-fields/"
    INTERCONN_PROTOCOL_TYPE: Final = "kuscia.secretflow/interconn-protocol-type"
    RESOURCE_VERSION_UNDER_HOST: Final = "kuscia.secretflow/resource-version-under-host-cluster"
    HAS_SYNCED: Final = "kuscia.secretflow/has-synced"

    PORT_SCOPE: Final = "kuscia.secretflow/port-scope"
    PORT_NAME: Final = "kuscia.secretflow/port-name"
    LOAD_BALANCER: Final = "kuscia.secretflow/loadbalancer"
    GATEWAY_PROXY: Final = "kuscia.secretflow/gateway-proxy"
    COMMUNICATION_ROLE_SERVER: Final = "kuscia.secretflow/communication-role-server"
    COMMUNICATION_ROLE_CLIENT: Final = "kuscia.secretflow/communication-role-client"

    DOMAIN_NAME: Final = "kuscia.secretflow/domain-name"
    DOMAIN_ROLE: Final = "kuscia.secretflow/role"
    DOMAIN_AUTH: Final = "kuscia.secretflow/domain-auth"
    DOMAIN_DELETED: Final = "kuscia.secretflow/deleted"
    INTERCONN_PROTOCOLS: Final = "kuscia.secretflow/interconn-protocols"
    ROUTE_PARTNER: Final = "kuscia.secertflow/domainroute-partner"
    ROUTE_SOURCE: Final = "kuscia.secretflow/clusterdomainroute-source"
    ROUTE_DESTINATION: Final = "kuscia.secretflow/clusterdomainroute-destination"

    DATA_ID: Final = "kuscia.secretflow/domaindataid"
    DATA_TYPE: Final = "kuscia.secretflow/domaindata-type"
    DATA_VENDOR: Final = "kuscia.secretflow/domaindata-vendor"
    DATA_SOURCE_TYPE: Final = "kuscia.secretflow/domaindatasource-type"
    DATA_GRANT_VENDOR: Final = "kuscia.secretflow/domaindatagrant-vendor"
    DATA_GRANT_DOMAIN: Final = "kuscia.secretflow/domaindatagrant-domain"

    DEPLOYMENT_APP_TYPE: Final = "kuscia.secretflow/app-type"
    DEPLOYMENT_UID: Final = "kuscia.secretflow/kd-uid"
    DEPLOYMENT_NAME: Final = "kuscia.secretflow/kd-name"
    KUBERNETES_DEPLOYMENT_NAME: Final = "kuscia.secretflow/deployment-name"
    OWNER_NAMESPACE: Final = "kuscia.secretflow/owner_namespace"

    NODE_NAMESPACE: Final = "kuscia.secretflow/namespace"
    NODE_RUNTIME: Final = "kuscia.secretflow/runtime"
    NODE_NAME: Final = "kuscia.secretflow/node"
    NODE_DOMAIN: Final = "domain"
    POD_UID: Final = "kuscia.secretflow/pod-uid"
    OWNER_REFERENCES: Final = "kuscia.secretflow/owner-references"


class KusciaAnnotation:
    """Annotations that Kuscia's objects carry."""

    INITIATOR: Final = "kuscia.secretflow/initiator"
    INITIATOR_MASTER_DOMAIN: Final = "kuscia.secretflow/initiator-master-domain"
    SELF_CLUSTER_AS_INITIATOR: Final = "kuscia.secretflow/self-cluster-as-initiator"
    SELF_CLUSTER_AS_PARTICIPANT: Final = "kuscia.secretflow/self-cluster-as-participant"
    INTERCONN_KUSCIA_PARTIES: Final = "kuscia.secretflow/interconn-kuscia-parties"
    INTERCONN_BFIA_PARTIES: Final = "kuscia.secretflow/interconn-bfia-parties"
    INTERCONN_SELF_PARTIES: Final = "kuscia.secretflow/interconn-self-parties"
    PARTY_MASTER_DOMAIN: Final = "kuscia.secretflow/party-master-domain"
    JOB_ID: Final = "kuscia.secretflow/job-id"
    TASK_ID: Final = "kuscia.secretflow/task-id"
    TASK_ALIAS: Final = "kuscia.secretflow/task-alias"
    TASK_RESOURCE: Final = "kuscia.secretflow/task-resource"
    TASK_RESOURCE_GROUP: Final = "kuscia.secretflow/task-resource-group"
    TASK_RESOURCE_RESERVING_TIMESTAMP: Final = "kuscia.secretflow/taskresource-reserving-timestamp"
    TASK_SUMMARY_RESOURCE_VERSION: Final = "kuscia.secretflow/tasksummary-resource-version"
    ACCESS_DOMAIN: Final = "kuscia.secretflow/access-domain"
    PROTOCOL: Final = "kuscia.secretflow/protocol"
    READY_TIME: Final = "kuscia.secretflow/ready-time"
    CONFIG_TEMPLATE_VOLUMES: Final = "kuscia.secretflow/config-template-volumes"
    COMPONENT_SPEC: Final = "kuscia.secretflow/component-spec"
    ALLOCATED_PORTS: Final = "kuscia.secretflow/allocated-ports"
    IMAGE_ID: Final = "kuscia.secretflow/image-id"
    AFFINITY_MODE: Final = "kuscia.secretflow/affinity-mode"
    BANDWIDTH_LIMIT_PREFIX: Final = "kuscia.secretflow/bandwidth-limit-"
    SHOULD_BE_SCRAPED: Final = "kuscia.secretflow/should_be_scraped"
    METRIC_PATH: Final = "kuscia.secretflow/metric_path"
    METRIC_PORT: Final = "kuscia.secretflow/metric_port"


class Kuscia:
    """Kuscia's other names."""

    TAINT_AGENT: Final = "kuscia.secretflow/agent"
    RESOURCE_BANDWIDTH: Final = "kuscia.io/bandwidth"
    """Whole megabits per second, as an extended resource."""


class Sigs:
    """kubernetes-sigs/scheduler-plugins."""

    POD_GROUP: Final = "pod-group.scheduling.sigs.k8s.io"
    POD_GROUP_NAME: Final = "pod-group.scheduling.sigs.k8s.io/name"
    POD_GROUP_MIN_AVAILABLE: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
    POD_GROUP_MATCH_POLICY: Final = "pod-group.scheduling.sigs.k8s.io/match-policy"


class KoordinatorPod:
    """Labels and annotations on pods, reservations and pod groups."""

    QOS_CLASS: Final = "koordinator.sh/qosClass"
    PRIORITY: Final = "koordinator.sh/priority"
    PRIORITY_CLASS: Final = "koordinator.sh/priority-class"
    ENABLE_COLOCATION: Final = "koordinator.sh/enable-colocation"
    CPU_BURST: Final = "koordinator.sh/cpuBurst"
    CPU_QOS: Final = "koordinator.sh/cpuQOS"
    MEMORY_QOS: Final = "koordinator.sh/memoryQOS"
    BLKIO_QOS: Final = "koordinator.sh/blkioQOS"
    NETWORK_QOS: Final = "koordinator.sh/networkQOS"
    EVICTION_ENABLED: Final = "koordinator.sh/eviction-enabled"
    EVICTION_PRIORITY: Final = "koordinator.sh/eviction-priority"
    EVICTION_POLICY: Final = "koordinator.sh/eviction-policy"
    OOM_SCORE_ADJ: Final = "koordinator.sh/oom-score-adj"
    OOM_SCORE_ADJ_SPEC: Final = "koordinator.sh/oom-score-adj-spec"
    CORE_SCHED_GROUP_ID: Final = "koordinator.sh/core-sched-group-id"
    CORE_SCHED_POLICY: Final = "koordinator.sh/core-sched-policy"
    EXTENDED_RESOURCE_SPEC: Final = "node.koordinator.sh/extended-resource-spec"
    RESCTRL: Final = "node.koordinator.sh/resctrl"
    SKIP_ENHANCED_VALIDATION: Final = "pod.koordinator.sh/skip-enhanced-validation"
    MUTATING_UPDATE: Final = "pod.koordinator.sh/mutating-update"
    REPLACE_RESOURCES: Final = "pod.koordinator.sh/replace-resources"
    IS_PRE_ALLOCATABLE: Final = "pod.koordinator.sh/is-pre-allocatable"
    PRE_ALLOCATABLE_PRIORITY: Final = "pod.koordinator.sh/pre-allocatable-priority"

    GANG_NAME: Final = "gang.scheduling.koordinator.sh/name"
    GANG_MIN_AVAILABLE: Final = "gang.scheduling.koordinator.sh/min-available"
    GANG_TOTAL_NUMBER: Final = "gang.scheduling.koordinator.sh/total-number"
    GANG_MODE: Final = "gang.scheduling.koordinator.sh/mode"
    GANG_WAITING_TIME: Final = "gang.scheduling.koordinator.sh/waiting-time"
    GANG_GROUPS: Final = "gang.scheduling.koordinator.sh/groups"
    GANG_TIMEOUT: Final = "gang.scheduling.koordinator.sh/timeout"
    GANG_MATCH_POLICY: Final = "gang.scheduling.koordinator.sh/match-policy"
    GANG_NETWORK_TOPOLOGY_SPEC: Final = "gang.scheduling.koordinator.sh/network-topology-spec"
    GANG_NETWORK_TOPOLOGY_INDEX: Final = "gang.scheduling.koordinator.sh/network-topology-index"
    BIND_GANG_GROUP_ID: Final = "internal.scheduling.koordinator.sh/bind-gang-group-id"
    BIND_GANG_MEMBER_COUNT: Final = "internal.scheduling.koordinator.sh/bind-gang-member-count"

    SCHEDULING_HINT: Final = "internal.scheduling.koordinator.sh/scheduling-hint"
    SCHEDULING_HINT_OLD: Final = "scheduling.koordinator.sh/scheduling-hint"
    NETWORK_TOPOLOGY_SELECTOR: Final = "scheduling.koordinator.sh/network-topology-selector"
    RESOURCE_SPEC: Final = "scheduling.koordinator.sh/resource-spec"
    RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
    NUMA_TOPOLOGY_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"
    DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
    DEVICE_ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
    DEVICE_JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
    GPU_PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"
    GPU_MINORS: Final = "scheduling.koordinator.sh/gpu-minors"
    BIND_TIMESTAMP: Final = "scheduling.koordinator.sh/bind-timestamp"
    RESERVATION_ORDER: Final = "scheduling.koordinator.sh/reservation-order"
    RESERVATION_IGNORED: Final = "scheduling.koordinator.sh/reservation-ignored"
    RESERVATION_AFFINITY: Final = "scheduling.koordinator.sh/reservation-affinity"
    RESERVATION_ALLOCATED: Final = "scheduling.koordinator.sh/reservation-allocated"
    RESERVATION_RESTRICTED_OPTIONS: Final = "scheduling.koordinator.sh/reservation-restricted-options"
    EXACT_MATCH_RESERVATION: Final = "scheduling.koordinator.sh/exact-match-reservation"
    PRE_ALLOCATION_REQUIRED: Final = "scheduling.koordinator.sh/pre-allocation-required"
    LOAD_ESTIMATED_SCALING_FACTORS: Final = "scheduling.koordinator.sh/load-estimated-scaling-factors"
    LOAD_ESTIMATED_SECONDS_AFTER_SCHEDULED: Final = "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
    LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED: Final = "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"
    DISABLE_PREEMPTIBLE: Final = "scheduling.koordinator.sh/disable-preemptible"
    EVICTION_COST: Final = "scheduling.koordinator.sh/eviction-cost"
    QUESTIONED_OBJECT_KEY: Final = "scheduling.koordinator.sh/questioned-object-key"
    TOPOLOGY_KEY_TO_EXPLAIN: Final = "scheduling.koordinator.sh/topology-key-to-explain"


class KoordinatorNode:
    """Labels and annotations on nodes, Device objects and node topologies."""

    CPU_RECLAIM_RATIO: Final = "node.koordinator.sh/cpu-reclaim-ratio"
    MEMORY_RECLAIM_RATIO: Final = "node.koordinator.sh/memory-reclaim-ratio"
    MID_STATIC_CPU_RESERVED_RATIO: Final = "node.koordinator.sh/mid-static-cpu-reserved-ratio"
    MID_STATIC_MEMORY_RESERVED_RATIO: Final = "node.koordinator.sh/mid-static-memory-reserved-ratio"
    CPU_NORMALIZATION_ENABLED: Final = "node.koordinator.sh/cpu-normalization-enabled"
    CPU_NORMALIZATION_RATIO: Final = "node.koordinator.sh/cpu-normalization-ratio"
    CPU_BASIC_INFO: Final = "node.koordinator.sh/cpu-basic-info"
    COLOCATION_STRATEGY: Final = "node.koordinator.sh/colocation-strategy"
    RESERVATION: Final = "node.koordinator.sh/reservation"
    SYSTEM_QOS_RESOURCE: Final = "node.koordinator.sh/system-qos-resource"
    NETWORK_BANDWIDTH: Final = "node.koordinator.sh/network-bandwidth"
    RESOURCE_AMPLIFICATION_RATIO: Final = "node.koordinator.sh/resource-amplification-ratio"
    RAW_ALLOCATABLE: Final = "node.koordinator.sh/raw-allocatable"
    ORIGIN_EXTENDED_ALLOCATABLE: Final = "node.koordinator.sh/originExtendedAllocatable"
    THIRD_PARTY_ALLOCATIONS: Final = "node.koordinator.sh/thirdPartyAllocations"
    CPU_TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"
    POD_CPU_ALLOCS: Final = "node.koordinator.sh/pod-cpu-allocs"
    CPU_SHARED_POOLS: Final = "node.koordinator.sh/cpu-shared-pools"
    BE_CPU_SHARED_POOLS: Final = "node.koordinator.sh/be-cpu-shared-pools"
    KUBELET_CPU_MANAGER_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
    CPU_BIND_POLICY: Final = "node.koordinator.sh/cpu-bind-policy"
    NUMA_ALLOCATE_STRATEGY: Final = "node.koordinator.sh/numa-allocate-strategy"
    NUMA_TOPOLOGY_POLICY: Final = "node.koordinator.sh/numa-topology-policy"
    GPU_PARTITION_POLICY: Final = "node.koordinator.sh/gpu-partition-policy"
    GPU_VENDOR: Final = "node.koordinator.sh/gpu-vendor"
    GPU_MODEL: Final = "node.koordinator.sh/gpu-model"
    GPU_DRIVER_VERSION: Final = "node.koordinator.sh/gpu-driver-version"
    SECONDARY_DEVICE_WELL_PLANNED: Final = "node.koordinator.sh/secondary-device-well-planned"
    GPU_ISOLATION_PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"
    GPU_PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"
    USAGE_THRESHOLDS: Final = "scheduling.koordinator.sh/usage-thresholds"
    HAMI_VGPU_NODE: Final = "hami.io/vgpu-node"


class KoordinatorQuota:
    """Labels and annotations on ElasticQuota objects, and on the pods that use them."""

    NAME: Final = "quota.scheduling.koordinator.sh/name"
    PREEMPTIBLE: Final = "quota.scheduling.koordinator.sh/preemptible"
    IS_PARENT: Final = "quota.scheduling.koordinator.sh/is-parent"
    PARENT: Final = "quota.scheduling.koordinator.sh/parent"
    ALLOW_LENT_RESOURCE: Final = "quota.scheduling.koordinator.sh/allow-lent-resource"
    TREE_ID: Final = "quota.scheduling.koordinator.sh/tree-id"
    IS_ROOT: Final = "quota.scheduling.koordinator.sh/is-root"
    IGNORE_DEFAULT_TREE: Final = "quota.scheduling.koordinator.sh/ignore-default-tree"
    PROFILE: Final = "quota.scheduling.koordinator.sh/profile"
    ALLOW_FORCE_UPDATE: Final = "quota.scheduling.koordinator.sh/allow-force-update"
    SHARED_WEIGHT: Final = "quota.scheduling.koordinator.sh/shared-weight"
    NAMESPACES: Final = "quota.scheduling.koordinator.sh/namespaces"
    TOTAL_RESOURCE: Final = "quota.scheduling.koordinator.sh/total-resource"
    UNSCHEDULABLE_RESOURCE: Final = "quota.scheduling.koordinator.sh/unschedulable-resource"
    RESOURCE_KEYS: Final = "quota.scheduling.koordinator.sh/resource-keys"
    MAX_STRICT_CHECK_RESOURCE_KEYS: Final = "quota.scheduling.koordinator.sh/max-strict-check-resource-keys"
    ADMISSION: Final = "quota.scheduling.koordinator.sh/admission"
    RUNTIME: Final = "quota.scheduling.koordinator.sh/runtime"
    REQUEST: Final = "quota.scheduling.koordinator.sh/request"
    CHILD_REQUEST: Final = "quota.scheduling.koordinator.sh/child-request"
    GUARANTEED: Final = "quota.scheduling.koordinator.sh/guaranteed"
    ALLOCATED: Final = "quota.scheduling.koordinator.sh/allocated"
    NON_PREEMPTIBLE_REQUEST: Final = "quota.scheduling.koordinator.sh/non-preemptible-request"
    NON_PREEMPTIBLE_USED: Final = "quota.scheduling.koordinator.sh/non-preemptible-used"


class Koordinator:
    """Koordinator's other names: of profiles, and of resources."""

    PROFILE_SKIP_UPDATE_RESOURCES: Final = "config.koordinator.sh/skip-update-resources"
    PROFILE_CONTROLLER_MANAGED: Final = "config.koordinator.sh/controller-managed"

    RESOURCE_BATCH_CPU: Final = "kubernetes.io/batch-cpu"
    RESOURCE_BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
    RESOURCE_MID_CPU: Final = "kubernetes.io/mid-cpu"
    RESOURCE_MID_MEMORY: Final = "kubernetes.io/mid-memory"
    RESOURCE_GPU: Final = "koordinator.sh/gpu"
    RESOURCE_GPU_SHARED: Final = "koordinator.sh/gpu.shared"
    RESOURCE_GPU_CORE: Final = "koordinator.sh/gpu-core"
    RESOURCE_GPU_MEMORY: Final = "koordinator.sh/gpu-memory"
    RESOURCE_GPU_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
    RESOURCE_RDMA: Final = "koordinator.sh/rdma"
    RESOURCE_FPGA: Final = "koordinator.sh/fpga"
    RESOURCE_NVIDIA_GPU: Final = "nvidia.com/gpu"
    RESOURCE_AMD_GPU: Final = "amd.com/gpu"
    RESOURCE_HYGON_DCU: Final = "dcu.com/gpu"
    RESOURCE_HUAWEI_NPU_CORE: Final = "huawei.com/npu-core"
    RESOURCE_HUAWEI_NPU_CPU: Final = "huawei.com/npu-cpu"
    RESOURCE_HUAWEI_NPU_DVPP: Final = "huawei.com/npu-dvpp"


class Muster:
    """What neither of the others has."""

    JOB: Final = "muster.dev/job"
    ROLE: Final = "muster.dev/role"
    INDEX: Final = "muster.dev/index"
    UNIT: Final = "muster.dev/unit"
    QUEUE: Final = "muster.dev/queue"
    USER: Final = "muster.dev/user"
    GROUP: Final = "muster.dev/group"
    POOL: Final = "muster.dev/pool"
    PREEMPTIBLE: Final = "muster.dev/preemptible"
    HOLD: Final = "muster.dev/hold"
    PROGRESS: Final = "muster.dev/progress"
    """On a pod: how far its work is, from 0 to 1, as the agent or the application writes it."""
    WAITING: Final = "muster.dev/Waiting"
    """A condition of a pod: why the scheduler has not placed it, by reason code."""
    PRIORITY_CLASS: Final = "muster.dev/priority-class"
    """On a KusciaJob or KusciaTask: the PriorityClass of its pods."""
    RERUN_FROM: Final = "muster.dev/rerun-from"
    """On a KusciaJob, with the stage Restart: aliases (with commas) that are run again, and all that depends on them."""
    RERUN_OF: Final = "muster.dev/rerun-of"
    """On a job that was made from another by `rerun`: the name of that one."""
    STOP: Final = "muster.dev/stop"
    """On a KusciaTask: its job wants it ended. On a TaskResourceGroup: its task has ended. The value is the reason code."""
    RUN: Final = "muster.dev/run"
    """On a KusciaTask: the run of its job (`status.run`) that it was made for."""
    PARTY_RESOURCES: Final = "muster.dev/party-resources"
    """On a KusciaTask: the totals of its parties, which are divided over their pods; JSON, see `kuscia_job_shares`."""
    KEEP: Final = "muster.dev/keep"
    """On a job: `true` keeps it from being cleaned up after it has ended."""
    WITHDRAW: Final = "muster.dev/withdraw"
    """On a TaskResource that is Reserved: the scheduler asks to have it back, and why."""
    ORIGIN_CREATED: Final = "muster.dev/origin-created"
    """On the objects of a task: when its initiator made it. With `ORIGIN_UID` the order in which tasks yield to each other."""
    ORIGIN_UID: Final = "muster.dev/origin-uid"
    SUMMARY_UID: Final = "muster.dev/summary-uid"
    """On a KusciaTask whose initiator has another control plane, and its group: the KusciaTaskSummary there that it was made
    for. Each attempt of the initiator has one of its own."""
    HOST_PHASE: Final = "muster.dev/host-phase"
    """On a KusciaJob whose initiator has another control plane: the phase that it has there."""
    HOST_REASON: Final = "muster.dev/host-reason"
    """Beside `HOST_PHASE`: the reason."""
    TASK_FINALIZER: Final = "muster.dev/task"
    DOMAIN_FINALIZER: Final = "muster.dev/domain"
    DEPLOYMENT_FINALIZER: Final = "muster.dev/deployment"
    TEMPLATE_HASH: Final = "muster.dev/template-hash"
    """On the pods of a KusciaDeployment: which version of the template they were made from."""
    PIN: Final = "muster.dev/pin"
    ATTEMPT: Final = "muster.dev/attempt"
    """On the pods of a job, or the group of a task: which attempt they belong to; the first is 1."""
    KIT: Final = "muster.dev/kit"
    """On the group of a task: a hash of the AppImages and parties that its pods are made from."""
    RUNTIME: Final = "muster.dev/runtime"
    """On a pod: the runtime that must run it, `process`, `runc` or `kubernetes`; the node's own choice when it is not there."""
    SIMULATED: Final = "muster.dev/simulated"
    """On a node of `muster up --simulated-nodes`: `true`, since it only pretends to run pods."""
    SIMULATED_SECONDS: Final = "muster.dev/simulated-seconds"
    """On a pod, for simulated nodes: how long it pretends to run; `forever` until it is stopped."""
    SIMULATED_EXIT_CODE: Final = "muster.dev/simulated-exit-code"
    SIMULATED_FAILURES: Final = "muster.dev/simulated-failures"
    """On a pod, for simulated nodes: only so many first runs of this pod's name end with the exit code, later ones with 0."""

    BANDWIDTH: Final = "muster.dev/bandwidth"
    """On a node: its capacity in both directions, as `muster node set-bandwidth` writes it; on a pod: its request in both."""
    BANDWIDTH_EGRESS: Final = "muster.dev/bandwidth-egress"
    BANDWIDTH_INGRESS: Final = "muster.dev/bandwidth-ingress"
    BANDWIDTH_RESERVED: Final = "muster.dev/bandwidth-reserved"
    """On a node: held back from the work placed there, in each direction."""
    BANDWIDTH_TO: Final = "muster.dev/bandwidth-to"
    """On a pod: what it sends to each peer over a Link, `bob=200Mbps,pool/east=1Gbps`; see `bandwidth_peers`."""
    AGENT_BANDWIDTH: Final = "muster.dev/agent-bandwidth"
    """On a node: what its agent found in its configuration or at the network interface; the names without `agent` win."""
    AGENT_BANDWIDTH_EGRESS: Final = "muster.dev/agent-bandwidth-egress"
    AGENT_BANDWIDTH_INGRESS: Final = "muster.dev/agent-bandwidth-ingress"
    AGENT_BANDWIDTH_RESERVED: Final = "muster.dev/agent-bandwidth-reserved"

    RESOURCE_BANDWIDTH: Final = "bandwidth"
    """The resource name in requests and limits of KusciaJob, KusciaTask and Job: `200Mbps`."""
    RESOURCE_BANDWIDTH_EGRESS: Final = "bandwidth-egress"
    RESOURCE_BANDWIDTH_INGRESS: Final = "bandwidth-ingress"


GROUPS: Final = (
    Kubernetes,
    KusciaLabel,
    KusciaAnnotation,
    Kuscia,
    Sigs,
    KoordinatorPod,
    KoordinatorNode,
    KoordinatorQuota,
    Koordinator,
    Muster,
)


def names_in(group: type) -> dict[str, str]:
    """The constants of a group, by attribute."""
    return {attribute: value for attribute, value in vars(group).items() if attribute.isupper() and isinstance(value, str)}
