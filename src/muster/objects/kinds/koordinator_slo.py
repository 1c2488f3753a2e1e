"""Koordinator's colocation kinds: NodeMetric, NodeSLO and ClusterColocationProfile. Pure.

Ranges are those that Koordinator's own validation has. Numbers that may be unset are `| None`: an unset number means "as
the agent's default says", which is not the same as 0.
"""

from __future__ import annotations

import functools
from typing import Annotated, Literal

from msgspec import field

from muster.objects.kinds.base import Object, between, default, one_of
from muster.objects.kinds.koordinator_scheduling import DeviceInfo
from muster.objects.kinds.shapes import Duration, Foreign, Kept, Percent, custom_resource
from muster.objects.resources import Resource
from muster.objects.selectors import LabelSelector
from muster.objects.time import Timestamp
from muster.objects.view import Int32, IntOrString, Quantities, QuantityValue, keyed

QosClass = Annotated[str, one_of("", "LSE", "LSR", "LS", "BE", "SYSTEM")]
PriorityClass = Annotated[str, one_of("", "koord-prod", "koord-mid", "koord-batch", "koord-free")]

NotNegative = Annotated[int, between(0, number_format="int64")]
Positive = Annotated[int, between(1, number_format="int64")]
Switch = Annotated[int, between(0, 1, "int64")]
"""0 or 1, as the kernel's file takes it."""


class Usage(Foreign):
    """Measured use, of resources and of single devices."""

    resources: Quantities = field(default_factory=dict)
    devices: list[DeviceInfo] = field(default_factory=list)


class AggregatedUsage(Foreign):
    """Use over one window: by `avg`, `p50`, `p90`, `p95`, `p99`."""

    usage: dict[str, Usage] = field(default_factory=dict)
    duration: Duration = ""


class AggregatePolicy(Foreign):
    durations: list[Duration] = field(default_factory=list)


class MetricCollectPolicy(Foreign):
    """What the node's agent measures and how often it reports."""

    aggregate_duration_seconds: int | None = None
    report_interval_seconds: int | None = None
    node_aggregate_policy: AggregatePolicy | None = None
    node_memory_collect_policy: Literal["", "usageWithHotPageCache", "usageWithoutPageCache", "usageWithPageCache"] = ""


class NodeMetricSpec(Foreign):
    metric_collect_policy: MetricCollectPolicy | None = None


class NodeUsage(Foreign):
    """Use of the node as a whole."""

    node_usage: Usage = field(default_factory=Usage)
    aggregated_node_usages: list[AggregatedUsage] = field(default_factory=list)
    system_usage: Annotated[Usage, "What is left after pods and host applications."] = field(default_factory=Usage)
    aggregated_system_usages: list[AggregatedUsage] = field(default_factory=list)
    numa_usages: list[Kept] = field(default_factory=list)


class PodUsage(Foreign):
    name: str = ""
    namespace: str = ""
    pod_usage: Usage = field(default_factory=Usage)
    priority: PriorityClass = ""
    qos: QosClass = ""
    extensions: Kept | None = None


class HostApplicationUsage(Foreign):
    name: str = ""
    usage: Usage = field(default_factory=Usage)
    priority: PriorityClass = ""
    qos: QosClass = ""


class PredictedUsage(Foreign):
    resource: Usage = field(default_factory=Usage)


class NodeMetricStatus(Foreign):
    """The last report."""

    update_time: Timestamp = ""
    node_metric: NodeUsage | None = None
    pods_metric: list[PodUsage] = field(default_factory=list)
    host_application_metric: list[HostApplicationUsage] = field(default_factory=list)
    prod_reclaimable_metric: Annotated[PredictedUsage | None, "Requested by prod pods and predicted to stay unused."] = None
    prod_peak_metric: Annotated[PredictedUsage | None, "The peak that prod pods are predicted to reach."] = None


class NodeMetric(Object):
    """Measured use of the node that has the same name, and of everything on it."""

    spec: NodeMetricSpec = field(default_factory=NodeMetricSpec)
    status: NodeMetricStatus = field(default_factory=NodeMetricStatus)


class ThresholdStrategy(Foreign):
    """When best-effort pods are held down or evicted."""

    enable: bool | None = None
    cpu_suppress_threshold_percent: Percent | None = None
    cpu_suppress_min_percent: Percent | None = None
    cpu_suppress_policy: Annotated[str, one_of("", "cpuset", "cfsQuota")] = ""
    memory_evict_threshold_percent: Percent | None = None
    memory_evict_lower_percent: Percent | None = None
    memory_allocatable_evict_threshold_percent: NotNegative | None = None
    memory_allocatable_evict_lower_percent: NotNegative | None = None
    cpu_evict_be_satisfaction_upper_percent: Percent | None = field(default=None, name="cpuEvictBESatisfactionUpperPercent")
    cpu_evict_be_satisfaction_lower_percent: Percent | None = field(default=None, name="cpuEvictBESatisfactionLowerPercent")
    cpu_evict_be_usage_threshold_percent: Percent | None = field(default=None, name="cpuEvictBEUsageThresholdPercent")
    cpu_evict_time_window_seconds: Positive | None = None
    cpu_evict_threshold_percent: Percent | None = None
    cpu_evict_lower_percent: Percent | None = None
    cpu_allocatable_evict_threshold_percent: NotNegative | None = None
    cpu_allocatable_evict_lower_percent: NotNegative | None = None
    cpu_evict_policy: Annotated[str, one_of("", "evictByRealLimit", "evictByAllocatable")] = ""
    evict_enabled_priority_threshold: Int32 | None = None
    allocatable_evict_priority_threshold: Annotated[int, between(0, 7999, "int64")] | None = None


class CpuQos(Foreign):
    enable: bool | None = None
    group_identity: Annotated[int, between(-1, 2, "int64")] | None = None
    sched_idle: Switch | None = None
    core_expeller: bool | None = None


class MemoryQos(Foreign):
    enable: bool | None = None
    min_limit_percent: Percent | None = None
    low_limit_percent: Percent | None = None
    throttling_percent: Percent | None = None
    wmark_ratio: Percent | None = None
    wmark_scale_permill: Annotated[int, between(1, 1000, "int64")] | None = None
    wmark_min_adj: Annotated[int, between(-25, 50, "int64")] | None = None
    page_cache_enable: Switch | None = None
    page_cache_limit_percent: Percent | None = None
    page_cache_limit_size: NotNegative | None = None
    page_cache_reclaim_sync: Switch | None = None
    priority_enable: Switch | None = None
    priority: Annotated[int, between(0, 12, "int64")] | None = None
    oom_kill_group: Switch | None = None


class IoConfig(Foreign):
    """Throttles, weight and cost model of one block device."""

    read_iops: NotNegative | None = field(default=None, name="readIOPS")
    write_iops: NotNegative | None = field(default=None, name="writeIOPS")
    read_bps: NotNegative | None = field(default=None, name="readBPS")
    write_bps: NotNegative | None = field(default=None, name="writeBPS")
    io_weight_percent: Annotated[int, between(1, 100, "int64")] | None = None
    read_latency: int | None = None
    write_latency: int | None = None
    read_latency_percent: Percent | None = None
    write_latency_percent: Percent | None = None
    enable_user_model: bool | None = None
    model_read_bps: Positive | None = field(default=None, name="modelReadBPS")
    model_write_bps: Positive | None = field(default=None, name="modelWriteBPS")
    model_read_seq_iops: Positive | None = field(default=None, name="modelReadSeqIOPS")
    model_write_seq_iops: Positive | None = field(default=None, name="modelWriteSeqIOPS")
    model_read_rand_iops: Positive | None = field(default=None, name="modelReadRandIOPS")
    model_write_rand_iops: Positive | None = field(default=None, name="modelWriteRandIOPS")


class BlockConfig(Foreign):
    name: str = ""
    type: Annotated[str, one_of("", "device", "volumegroup", "podvolume")] = ""
    io_cfg: IoConfig = field(default_factory=IoConfig)


class BlkioQos(Foreign):
    enable: bool | None = None
    blocks: list[BlockConfig] = field(default_factory=list)


class ResctrlQos(Foreign):
    """Shares of the last-level cache and of memory bandwidth."""

    enable: bool | None = None
    cat_range_start_percent: Percent | None = None
    cat_range_end_percent: Percent | None = None
    mba_percent: Percent | None = None


class NetworkQos(Foreign):
    """Shares of the node's bandwidth: a number is percent of it, a text an amount."""

    enable: bool | None = None
    ingress_request: Annotated[IntOrString | None, default(0)] = None
    ingress_limit: Annotated[IntOrString | None, default(100)] = None
    egress_request: Annotated[IntOrString | None, default(0)] = None
    egress_limit: Annotated[IntOrString | None, default(100)] = None


class ClassQos(Foreign):
    """Settings for the pods of one QoS class."""

    cpu_qos: CpuQos | None = field(default=None, name="cpuQOS")
    memory_qos: MemoryQos | None = field(default=None, name="memoryQOS")
    blkio_qos: BlkioQos | None = field(default=None, name="blkioQOS")
    resctrl_qos: ResctrlQos | None = field(default=None, name="resctrlQOS")
    network_qos: NetworkQos | None = field(default=None, name="networkQOS")


class QosPolicies(Foreign):
    cpu_policy: Annotated[str, one_of("", "groupIdentity", "coreSched")] = ""
    net_qos_policy: Annotated[str, one_of("", "tc", "terway-qos")] = field(default="", name="netQOSPolicy")


class QosStrategy(Foreign):
    """Settings by QoS class."""

    policies: QosPolicies | None = None
    lsr_class: ClassQos | None = None
    ls_class: ClassQos | None = None
    be_class: ClassQos | None = None
    system_class: ClassQos | None = None
    cgroup_root: ClassQos | None = None


class CpuBurstStrategy(Foreign):
    """How far containers may go over their CPU limit for a while."""

    policy: Annotated[str, one_of("", "none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto")] = ""
    cpu_burst_percent: Annotated[int, between(0, 10000, "int64")] | None = None
    cfs_quota_burst_percent: Annotated[int, between(100, number_format="int64")] | None = None
    cfs_quota_burst_period_seconds: Annotated[int, "-1 is without end.", between(-1, number_format="int64")] | None = None
    share_pool_threshold_percent: Percent | None = None


class SystemStrategy(Foreign):
    """Kernel settings of the node."""

    min_free_kbytes_factor: Positive | None = None
    watermark_scale_factor: Annotated[int, between(1, 400, "int64")] | None = None
    memcg_reap_back_ground: Switch | None = None
    page_cache_limit_enabled: Switch | None = None
    sched_group_identity_enabled: int | None = None
    sched_idle_saver_wmark: int | None = None
    sched_features: dict[str, bool] = field(default_factory=dict)
    total_network_bandwidth: QuantityValue | None = None


class CgroupPath(Foreign):
    base: Annotated[str, one_of("", "CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort")] = ""
    parent_dir: str = ""
    relative_path: str = ""


class HostApplication(Foreign):
    """A program of the node that is no pod, and is counted and shaped all the same."""

    name: str
    priority: PriorityClass = ""
    qos: QosClass = ""
    cgroup_path: CgroupPath | None = None
    strategy: Kept | None = None


class NodeSLOSpec(Foreign):
    """What the node's agent keeps to, merged for this node."""

    resource_used_threshold_with_be: ThresholdStrategy | None = field(default=None, name="resourceUsedThresholdWithBE")
    resource_qos_strategy: QosStrategy | None = field(default=None, name="resourceQOSStrategy")
    cpu_burst_strategy: CpuBurstStrategy | None = None
    system_strategy: SystemStrategy | None = None
    extensions: Kept | None = None
    host_applications: Annotated[list[HostApplication], keyed("name")] = field(default_factory=list)


class NodeSLOStatus(Foreign):
    pass


class NodeSLO(Object):
    """The colocation settings of the node that has the same name."""

    spec: NodeSLOSpec = field(default_factory=NodeSLOSpec)
    status: NodeSLOStatus = field(default_factory=NodeSLOStatus)


class ClusterColocationProfileSpec(Foreign):
    """Which pods to change as they are created, and how."""

    namespace_selector: Annotated[LabelSelector | None, "Matches every namespace when left out."] = None
    selector: Annotated[LabelSelector | None, "Matches every pod when left out."] = None
    probability: Annotated[IntOrString | None, "Share of the matching pods to change: `30%`."] = None
    qos_class: QosClass = ""
    priority_class_name: str = ""
    koordinator_priority: Int32 | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    label_keys_mapping: Annotated[dict[str, str], "Existing key to the new key that gets its value."] = field(
        default_factory=dict
    )
    annotation_keys_mapping: dict[str, str] = field(default_factory=dict)
    label_suffixes: Annotated[dict[str, str], "Key to the text that is appended to its value."] = field(default_factory=dict)
    scheduler_name: str = ""
    patch: Annotated[Kept | None, "A strategic merge patch for the pod."] = None


class ClusterColocationProfileStatus(Foreign):
    pass


class ClusterColocationProfile(Object):
    """Gives pods their QoS class and priority as they are created."""

    spec: ClusterColocationProfileSpec = field(default_factory=ClusterColocationProfileSpec)
    status: ClusterColocationProfileStatus = field(default_factory=ClusterColocationProfileStatus)


_resource = functools.partial(custom_resource, categories=("koordinator",), namespaced=False)

RESOURCES: tuple[Resource, ...] = (
    _resource(NodeMetric, "nodemetrics", group="slo.koordinator.sh"),
    _resource(NodeSLO, "nodeslos", group="slo.koordinator.sh"),
    _resource(ClusterColocationProfile, "clustercolocationprofiles", group="config.koordinator.sh"),
)
