"""The status of NodePools: what the nodes of a pool have, what of it is promised and measured, and when that is written."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.engine.building import node, pod

from muster.controllers.actions import PatchStatus
from muster.controllers.pools import device_totals, plan
from muster.engine import events as ev
from muster.engine.facts import NodeMetricFacts, PoolFacts
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.pool_use import plain_devices, pool_slots, pool_use, uses
from muster.engine.profile import Profile
from muster.engine.state import State
from muster.objects.kinds.koordinator_scheduling import Device
from muster.objects.patch.merge import apply_merge_patch
from muster.objects.status import Raw
from muster.objects.view import view_of

NOW = 1_800_000_000.0
EAST = msgspec.convert({"metadata": {"name": "east"}, "spec": {"selector": {"matchLabels": {"zone": "east"}}}}, PoolFacts)


def metric(name: str, **amounts: str) -> NodeMetricFacts:
    usage = {"nodeUsage": {"resources": amounts}}
    return msgspec.convert({"metadata": {"name": name}, "status": {"nodeMetric": usage}}, NodeMetricFacts)


def cluster(used_cpu: str = "1") -> State:
    engine = Engine([Profile("muster-scheduler", [Fit()])])
    a = node("a", cpu="4", labels={"zone": "east"}, resources={"nvidia.com/gpu": "2"})
    b = node("b", cpu="2", labels={"zone": "east"})
    work = '{"job":"Job/team/train","user":"ann","queue":"q"}'
    engine.step(
        [
            ev.NodeSeen(a),
            ev.NodeSeen(b),
            ev.NodeSeen(node("c", cpu="8")),
            ev.PoolSeen(EAST),
            ev.NodeMetricSeen(metric("a", cpu=used_cpu)),
            ev.PodSeen(
                pod("p", cpu="1500m", node="a", annotations={"muster.dev/work": work}, resources={"nvidia.com/gpu": "1"})
            ),
            ev.PodSeen(pod("q", cpu="1", node="c")),
        ],
        NOW,
        units_max=0,
    )
    return engine.state


def pool(status: Raw | None = None) -> Raw:
    meta = {"name": "east", "uid": "u", "generation": 1}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "NodePool", "metadata": meta, "spec": {}, "status": status or {}}


def decided(raw: Raw, state: State) -> list[PatchStatus]:
    slots = pool_slots(state, EAST)
    return plan(raw, pool_use(state, slots), plain_devices(state, slots), NOW)


def test_what_a_pool_has() -> None:
    [action] = decided(pool(), cluster())
    status = action.status
    assert (status["nodes"], status["ready"]) == (["a", "b"], 2)
    assert status["allocatable"]["cpu"] == "6"
    assert (status["requested"]["cpu"], status["requested"]["nvidia.com/gpu"]) == ("1500m", "1")
    assert status["used"] == {"cpu": "1"}
    assert status["devices"] == [{"type": "nvidia.com/gpu", "total": 2, "used": 1}]
    assert status["conditions"][0]["message"] == "2 of 2 nodes can take work"


def test_what_is_measured_alone_is_written_only_when_it_moved() -> None:
    raw = pool()
    [action] = decided(raw, cluster())
    raw["status"] = apply_merge_patch(raw["status"], action.status)
    assert decided(raw, cluster()) == []
    assert decided(raw, cluster(used_cpu="1200m")) == []
    [again] = decided(raw, cluster(used_cpu="2"))
    assert again.status == {"used": {"cpu": "2"}}


def test_a_pool_of_nothing_says_so() -> None:
    state = Engine([Profile("muster-scheduler", [Fit()])]).state
    [action] = decided(pool({"requested": {"cpu": "1"}}), state)
    assert action.status["requested"] == {"cpu": None}
    assert "no node is in it" in action.status["conditions"][0]["message"]


def test_who_uses_what() -> None:
    [use] = uses(cluster(), ["a", "b"])
    assert (use.node, use.pod, use.work.user, use.work.job) == ("a", "p", "ann", "Job/team/train")
    assert use.request["cpu"] == 1500


def device(minor: int, **more: Any) -> Raw:
    return {"type": "gpu", "minor": minor, "health": True, "resources": {"koordinator.sh/gpu-memory": "80Gi"}, **more}


def test_devices_by_kind() -> None:
    raw: Raw = {
        "metadata": {"name": "a"},
        "spec": {"devices": [device(0), device(1), device(2, health=False), device(3, resources={})]},
        "status": {"allocations": [{"type": "gpu", "entries": [{"name": "p", "minors": [1]}]}]},
    }
    found = device_totals([view_of(Device, raw)])
    assert [(one.type, one.memory, one.total, one.used) for one in found] == [("gpu", "", 1, 0), ("gpu", "80Gi", 2, 1)]
