"""Bandwidth gauges: what the engine counts, as a scrape shows it."""

from __future__ import annotations

import msgspec
from tests.engine.building import PROFILE, node, pod

from muster.controllers.scheduler_metrics import NODES_MAX, BandwidthCollector
from muster.engine import events as ev
from muster.engine.facts import NodeMetricFacts
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile


def shown(collector: BandwidthCollector) -> dict[tuple[str, str, str], float]:
    return {
        (family.name.removeprefix("muster_node_bandwidth_"), sample.labels["node"], sample.labels["direction"]): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def test_capacity_reserved_and_used() -> None:
    collector = BandwidthCollector()
    assert shown(collector) == {}
    engine = collector.engine = Engine([Profile(PROFILE, [Fit()])])
    usage = {"nodeUsage": {"resources": {"bandwidth-egress": "25M", "bandwidth-ingress": "5M"}}}
    metric = {"metadata": {"name": "a"}, "status": {"updateTime": "2026-01-01T00:00:00Z", "nodeMetric": usage}}
    engine.step(
        [
            ev.NodeSeen(node("a", annotations={"muster.dev/bandwidth": "1Gbps"})),
            ev.NodeSeen(node("b")),
            ev.PodSeen(pod("p", node="a", resources={"kuscia.io/bandwidth": 100})),
            ev.NodeMetricSeen(msgspec.convert(metric, NodeMetricFacts)),
        ],
        1.0,
    )
    seen = shown(collector)
    assert seen["capacity_bps", "a", "egress"] == seen["capacity_bps", "", "ingress"] == 1e9
    assert seen["reserved_bps", "a", "ingress"] == 100e6
    assert (seen["used_bps", "a", "egress"], seen["used_bps", "a", "ingress"]) == (25e6, 5e6)
    assert not any(name == "b" for _, name, _ in seen)


def test_many_nodes_are_shown_as_one() -> None:
    collector = BandwidthCollector()
    engine = collector.engine = Engine([Profile(PROFILE, [Fit()])])
    many = [node(f"n{i}", resources={"kuscia.io/bandwidth": 1}) for i in range(NODES_MAX + 1)]
    engine.step([ev.NodeSeen(one) for one in many], 1.0)
    assert {name for _, name, _ in shown(collector)} == {""}
    assert shown(collector)["capacity_bps", "", "egress"] == (NODES_MAX + 1) * 1e6
