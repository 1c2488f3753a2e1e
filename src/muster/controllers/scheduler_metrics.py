"""Bandwidth as the scheduler sees it, for dashboards: what nodes offer, what is reserved of it, what is measured in use.

Worked out when somebody scrapes, from the live engine; nothing is kept. Bounded: beyond NODES_MAX nodes with bandwidth only the
sums are shown (label `node` empty), as a series per node would be more than a scrape should carry.

Concurrency: collected on whatever thread scrapes. It only reads: a figure may be a step old, never half-written.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from muster.engine.machine import Engine
from muster.engine.plugins.bandwidth_reclaim import measured
from muster.engine.resources import EGRESS, INGRESS

NODES_MAX = 2_000
_DIRECTIONS = (("egress", EGRESS), ("ingress", INGRESS))


class BandwidthCollector(Collector):
    """`engine` is the one that runs now; it is set and taken away by the scheduler's term."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        names = ["node", "direction"]
        capacity = GaugeMetricFamily(
            "muster_node_bandwidth_capacity_bps", "Bandwidth that a node offers; without a node, of all together.", labels=names
        )
        reserved = GaugeMetricFamily("muster_node_bandwidth_reserved_bps", "What of it is promised to pods.", labels=names)
        used = GaugeMetricFamily("muster_node_bandwidth_used_bps", "What of it is used, as NodeMetric says.", labels=names)
        if self.engine is not None:
            self._fill(self.engine, capacity, reserved, used)
        yield from (capacity, reserved, used)

    @staticmethod
    def _fill(engine: Engine, capacity: GaugeMetricFamily, reserved: GaugeMetricFamily, used: GaugeMetricFamily) -> None:
        nodes, metrics = engine.state.nodes, engine.state.metrics
        offered, taken, listed = nodes.capacity, nodes.used, list(nodes.names)
        having = [slot for slot in range(min(len(listed), offered.shape[1])) if offered[EGRESS, slot] or offered[INGRESS, slot]]
        for direction, row in _DIRECTIONS:
            capacity.add_metric(["", direction], float(offered[row].sum()))
            reserved.add_metric(["", direction], float(taken[row].sum()))
        for slot in having if len(having) <= NODES_MAX else ():
            name = listed[slot]
            metric = metrics.get(name)
            report = measured(metric) if metric is not None else None
            for direction, row in _DIRECTIONS:
                capacity.add_metric([name, direction], float(offered[row, slot]))
                reserved.add_metric([name, direction], float(taken[row, slot]))
                if report is not None:
                    use = report.node.egress_bps if row == EGRESS else report.node.ingress_bps
                    used.add_metric([name, direction], float(use))


BANDWIDTH = BandwidthCollector()
