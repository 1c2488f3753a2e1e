"""Builders for tests of LoadAwareScheduling: nodes of 10 cores and 10Gi, their reports, pods with times, and the answers."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock, one_shape
from muster.engine.facts import NodeFacts, NodeMetricFacts, PodFacts
from muster.engine.plugins.load_args import LoadAwareArgs
from muster.engine.plugins.load_aware import LoadAware
from muster.engine.profile import Profile
from muster.engine.state import State
from muster.objects.time import format_time
from tests.engine.building import node, pod, state_of

NOW = 1_000_000.0
FACTORS, SECONDS = "load-estimated-scaling-factors", "load-estimated-seconds-after-pod-scheduled"


def host(name: str, **more: Any) -> NodeFacts:
    return node(name, cpu="10", memory="10Gi", **more)


def usage(cpu: str, memory: str = "0") -> dict[str, Any]:
    return {"resources": {"cpu": cpu, "memory": memory}}


def metric(
    name: str = "a", cpu: str = "0", memory: str = "0", *, at: float = NOW, interval: int | None = None, **more: Any
) -> NodeMetricFacts:
    """`pods`: (name, cpu, memory[, priority]); `windows`: {duration: {type: cpu}}; `system`: cpu."""
    windows = more.pop("windows", {})
    node_metric = {
        "nodeUsage": usage(cpu, memory),
        "systemUsage": usage(more.pop("system", "0")),
        "aggregatedNodeUsages": [
            {"duration": length, "usage": {kind: usage(use) for kind, use in uses.items()}} for length, uses in windows.items()
        ],
    }
    pods = [
        {"namespace": "default", "name": p[0], "podUsage": usage(p[1], p[2]), "priority": p[3] if len(p) > 3 else ""}
        for p in more.pop("pods", ())
    ]
    assert not more
    raw = {
        "metadata": {"name": name},
        "spec": {"metricCollectPolicy": {"reportIntervalSeconds": interval}},
        "status": {"updateTime": format_time(at), "nodeMetric": node_metric, "podsMetric": pods},
    }
    return msgspec.convert(raw, NodeMetricFacts)


def work(name: str, cpu: str | None = None, memory: str | None = None, *, placed: float | None = None, **more: Any) -> PodFacts:
    """A pod; `limits`, `kind` (of its controller), `started`: when it was initialized."""
    limits, kind, started = more.pop("limits", {}), more.pop("kind", ""), more.pop("started", None)
    requests = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v is not None} | dict(more.pop("resources", {}))
    facts = pod(name, containers=[{"resources": {"requests": requests, "limits": limits}}], **more)
    conditions = [
        {"type": word, "status": "True", "lastTransitionTime": format_time(when)}
        for word, when in (("PodScheduled", placed), ("Initialized", started))
        if when is not None
    ]
    raw = msgspec.to_builtins(facts)
    raw["status"]["conditions"] = conditions
    if kind:
        raw["metadata"]["ownerReferences"] = [{"kind": kind, "name": "x", "controller": True}]
    return msgspec.convert(raw, PodFacts)


def attached(state: State, **args: Any) -> LoadAware:
    plugin = LoadAware(msgspec.convert(args, LoadAwareArgs))
    Profile("test", [plugin]).attach(state)
    return plugin


def cluster(*metrics: NodeMetricFacts, pods: tuple[PodFacts, ...] = (), nodes: tuple[NodeFacts, ...] = ()) -> State:
    state = state_of(nodes or (host("a"),), pods)
    state.now = NOW
    state.metrics.update({one.metadata.name: one for one in metrics})
    return state


def block(plugin: LoadAware, facts: PodFacts) -> PodBlock:
    shape = plugin.state.see_pod(facts).shape
    return one_shape(shape, {plugin.name: np.array(plugin.features(shape), np.int64)})


def mask(plugin: LoadAware, facts: PodFacts) -> list[bool]:
    nodes = NodeBlock(plugin.state.nodes)
    answer: list[bool] = np.broadcast_to(plugin.filter(block(plugin, facts), nodes), len(nodes)).tolist()
    return answer


def scores(plugin: LoadAware, facts: PodFacts) -> list[int]:
    nodes = NodeBlock(plugin.state.nodes)
    answer: list[int] = np.broadcast_to(plugin.score(block(plugin, facts), nodes), len(nodes)).tolist()
    return answer


def use(plugin: LoadAware, what: str = "filter", name: str = "a") -> list[int]:
    """CPU (milli) and memory in use on a node, as the plugin counts them."""
    start = {"filter": 0, "prod": 2, "score": 4}[what]
    found: list[int] = plugin.columns.use.all[start : start + 2, plugin.state.nodes.slots[name]].tolist()
    return found


PERCENTILES = {"5m": {"p95": "6", "avg": "4"}, "10m": {"p95": "7"}}

REPORTED = metric(cpu="3", pods=[("one", "1", "0")])
"""One pod uses 1 core. Requests of 2 cores make an estimate of 1700m: 700m above what is reported."""

ONE_CORE = work("p", "1")
"""Expected to use 850m, and 200Mi."""
