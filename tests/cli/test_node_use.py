"""What `muster top nodes` counts: capacity, requests, devices and what is measured."""

from __future__ import annotations

from muster.cli.bandwidth_use import BandwidthUse, Objects
from muster.cli.node_use import ResourceUse, by_node
from muster.objects.status import Raw
from tests.controllers.scheduling import node, pod


def metric(name: str, **used: str) -> Raw:
    usage = {"nodeUsage": {"resources": used}}
    return {"metadata": {"name": name}, "status": {"updateTime": "2026-01-01T00:00:00Z", "nodeMetric": usage}}


def test_rows() -> None:
    gpu = pod("g", "1", nodeName="b")
    gpu["metadata"]["uid"] = "g"
    gpu["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "3"
    over = pod("o", "6", nodeName="a")
    over["metadata"]["uid"] = "o"
    objects = Objects(
        nodes=[node("a", "4"), node("b", "8", **{"nvidia.com/gpu": "4"})],
        pods=[gpu, over],
        metrics=[metric("b", cpu="2", memory="odd"), metric("gone", cpu="1")],
    )
    use = BandwidthUse(objects)
    rows = {(row.node, row.resource): row for row in by_node(use)}
    assert rows["a", "cpu"] == ResourceUse("a", "cpu", 4000, 6000, 0)
    assert rows["b", "cpu"] == ResourceUse("b", "cpu", 8000, 1000, 7000, 2000)
    assert rows["b", "cpu"].used_share == 0.25
    assert rows["b", "memory"].used is None, "what can't be read is not known"
    assert rows["b", "nvidia.com/gpu"] == ResourceUse("b", "nvidia.com/gpu", 4, 3, 1)
    assert rows["a", "bandwidth-egress"].used_share is None
    assert ("a", "nvidia.com/gpu") not in rows
    assert ("a", "pods") not in rows
    assert {row.node for row in by_node(use, ["b"])} == {"b"}
    assert ("a", "pods") in {(row.node, row.resource) for row in by_node(use, is_all=True)}
