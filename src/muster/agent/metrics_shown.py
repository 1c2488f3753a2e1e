"""What the agent measures, for Prometheus: the newest sample of the node and of each pod. Read when somebody asks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from muster.agent.metrics_counters import cache_figures
from muster.agent.metrics_rings import CPU, EGRESS, INGRESS, MEMORY, Values
from muster.agent.metrics_sampling import Sampler

COLUMNS: Final = (
    ("cpu_cores", CPU, 1e-3),
    ("memory_bytes", MEMORY, 1.0),
    ("egress_bps", EGRESS, 1.0),
    ("ingress_bps", INGRESS, 1.0),
)


class UsageCollector(Collector):
    """Shows nothing until a `MetricKeeper` runs."""

    def __init__(self) -> None:
        self.sampler: Sampler | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        node = GaugeMetricFamily("muster_agent_node_usage", "Use of the node in its newest sample.", labels=["resource"])
        system = GaugeMetricFamily(
            "muster_agent_system_usage", "What of it is no pod's and no host application's.", labels=["resource"]
        )
        pods = GaugeMetricFamily(
            "muster_agent_pod_usage", "Use of a pod in its newest sample.", labels=["namespace", "pod", "resource"]
        )
        pressure = GaugeMetricFamily(
            "muster_agent_pressure_percent",
            "Time in which some work waited for the resource (PSI, 10 s); without a pod, of the machine.",
            labels=["namespace", "pod", "resource"],
        )
        cpi = GaugeMetricFamily(
            "muster_agent_pod_cpi",
            "Cycles per instruction of a pod, where the processor counts them.",
            labels=["namespace", "pod"],
        )
        misses = GaugeMetricFamily(
            "muster_agent_pod_cache_miss_ratio", "Cache misses of a pod per cache reference.", labels=["namespace", "pod"]
        )
        cache = GaugeMetricFamily(
            "muster_agent_cache", "The machine's cache and memory bandwidth by resctrl.", labels=["figure"]
        )
        tracked = GaugeMetricFamily("muster_agent_pods_sampled", "Pods in the newest sample.")
        if self.sampler is not None:
            _add(node, [], self.sampler.node.values)
            _add(system, [], self.sampler.system.values)
            for resource, percent in self.sampler.node.pressure.items():
                pressure.add_metric(["", "", resource], percent)
            for pod in self.sampler.pods.values():
                _add(pods, [pod.namespace, pod.name], pod.values)
                for resource, percent in pod.pressure.items():
                    pressure.add_metric([pod.namespace, pod.name, resource], percent)
                if pod.counted is not None and pod.counted.cpi is not None:
                    cpi.add_metric([pod.namespace, pod.name], pod.counted.cpi)
                if pod.counted is not None and pod.counted.cache_miss_ratio is not None:
                    misses.add_metric([pod.namespace, pod.name], pod.counted.cache_miss_ratio)
            for figure, value in cache_figures(self.sampler.host.resctrl).items():
                cache.add_metric([figure], value)
            tracked.add_metric([], len(self.sampler.pods))
        yield from (node, system, pods, pressure, cpi, misses, cache, tracked)


def _add(family: GaugeMetricFamily, labels: list[str], values: Values) -> None:
    for name, column, factor in COLUMNS:
        if not math.isnan(values[column]):
            family.add_metric([*labels, name], float(values[column]) * factor)


USAGE: Final = UsageCollector()
REGISTRY.register(USAGE)
