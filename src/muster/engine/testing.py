"""For the tests of plugins, yours included: a small cluster from a few words, and what a plugin says about a pod in it.

    answer = ask(MyPlugin(), pod("new", cpu="2"), cluster([node("n1"), node("n2")], [pod("old", node="n1", cpu="6")]))
    assert answer.feasible == {"n1": True, "n2": True}

`ask` calls the plugin as the engine does and is stricter: a wrong shape, type or range is an AssertionError that says so, and a
plugin of scope LOCAL is asked both ways round (one shape over all nodes, all shapes over one node) and must say the same.

Pure; nothing is shared between two calls of `cluster`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock, one_shape
from muster.engine.columns import Array
from muster.engine.events import NodeSeen
from muster.engine.facts import NodeFacts, PodFacts
from muster.engine.plugin import SCORE_MAX, Plugin, Scope, overrides
from muster.engine.pods import PodRecord
from muster.engine.profile import Profile
from muster.engine.state import State
from muster.objects.reasons import Reason, Shortfall


def node(name: str, *, cpu: str = "8", memory: str = "16Gi", pods: int = 110, **more: Any) -> NodeFacts:
    """A ready node. `labels`, `annotations`, `taints`, `unschedulable`, and `resources` (further amounts by name)."""
    metadata = {"name": name, "uid": f"node-{name}", "labels": {"kubernetes.io/hostname": name, **more.pop("labels", {})}}
    raw = {
        "metadata": {**metadata, "annotations": more.pop("annotations", {})},
        "spec": {"taints": more.pop("taints", []), "unschedulable": more.pop("unschedulable", False)},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": pods, **more.pop("resources", {})},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    if more:
        raise TypeError(f"node() does not know {', '.join(sorted(more))}")
    return msgspec.convert(raw, NodeFacts)


def pod(
    name: str,
    *,
    cpu: str = "",
    memory: str = "",
    resources: Mapping[str, Any] | None = None,
    node: str = "",
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> PodFacts:
    """A pod; with `node`, one that is placed. `resources` are further requests; other keywords go into `spec` as they are."""
    requests = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v} | dict(resources or {})
    raw = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"pod-{namespace}-{name}",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {"containers": [{"image": "app", "resources": {"requests": requests}}], "nodeName": node, **spec},
    }
    return msgspec.convert(raw, PodFacts)


def cluster(nodes: Iterable[NodeFacts] = (), pods: Iterable[PodFacts] = (), *, now: float = 0.0) -> State:
    """The engine's state with these nodes and pods in it. Pods that name no node wait."""
    state = State()
    state.now = now
    for one in nodes:
        state.apply_node(NodeSeen(one))
    state.flush_nodes()
    for each in pods:
        state.see_pod(each)
    return state


class Answer(msgspec.Struct, frozen=True):
    """What a plugin says about a pod, by node name."""

    concerned: bool
    """False: the plugin has nothing to say about this pod, and was not asked."""
    feasible: Mapping[str, bool]
    scores: Mapping[str, int]
    """Of the feasible nodes, after `normalise`; empty when the plugin does not score."""
    reason: Reason | None = None
    """Why the others are refused; None when none is."""
    shortfalls: tuple[Shortfall, ...] = ()


def ask(plugin: Plugin, about: PodFacts, state: State) -> Answer:
    """Attach the plugin to the cluster, if it is not attached yet, and ask it about the pod."""
    if plugin not in state.observers:
        Profile("test", [plugin]).attach(state)
    record = state.pods.get(about.metadata.uid) or state.see_pod(about)
    state.nodes.grow()
    record.shape.widen(len(state.table))
    nodes = NodeBlock(state.nodes)
    pods = _block(plugin, record)
    names = nodes.names()
    if plugin.scope is Scope.WIDE and not plugin.concerns(pods):
        return Answer(False, dict.fromkeys(names, True), {})
    mask = _mask(plugin, pods, nodes) if overrides(plugin, "filter") else np.ones(len(nodes), np.bool_)
    reason: Reason | None = None
    shortfalls: tuple[Shortfall, ...] = ()
    if not mask.all():
        code, missing = plugin.explain(pods, NodeBlock(state.nodes, np.flatnonzero(~mask)))
        reason, shortfalls = code, tuple(missing)
    scores = _scores(plugin, pods, nodes, mask) if overrides(plugin, "score") else None
    return Answer(
        True,
        {name: bool(ok) for name, ok in zip(names, mask, strict=True)},
        {} if scores is None else {name: int(scores[slot]) for slot, name in enumerate(names) if mask[slot]},
        reason,
        shortfalls,
    )


def _block(plugin: Plugin, record: PodRecord) -> PodBlock:
    features: dict[str, Array] = {}
    if plugin.features_len:
        figures = np.array(plugin.features(record.shape), np.int64)
        assert figures.shape == (plugin.features_len,), f"features gave {figures.shape}, not {plugin.features_len} figures"
        features[plugin.name] = figures
    pods = one_shape(record.shape, features)
    pods.pod = record.facts
    return pods


def _many(pods: PodBlock) -> PodBlock:
    """The same shape twice, as many shapes are asked about."""
    shape = pods.shape

    def twice(figures: Array) -> Array:
        return np.stack([figures, figures], axis=1)

    return PodBlock(
        twice(shape.request),
        twice(shape.need),
        twice(shape.scoring),
        np.array([shape.priority, shape.priority]),
        features={name: twice(figures) for name, figures in pods.features.items()},
    )


def _column(value: Any, length: int, kind: str, what: str) -> Array:
    """`value` as an array of that length; a single value stands for all."""
    array = np.asarray(value)
    assert array.dtype.kind in kind, f"{what} gave values of type {array.dtype}; whole numbers or booleans are needed"
    assert array.shape in ((length,), ()), f"{what} gave the shape {array.shape} for {length} nodes"
    return np.broadcast_to(array, (length,))


def _mask(plugin: Plugin, pods: PodBlock, nodes: NodeBlock) -> Array:
    mask = _column(plugin.filter(pods, nodes), len(nodes), "b", f"{plugin.name}.filter")
    _check_local(plugin, "filter", pods, nodes, mask)
    return mask


def _scores(plugin: Plugin, pods: PodBlock, nodes: NodeBlock, mask: Array) -> Array:
    what = f"{plugin.name}.score"
    raw = _column(plugin.score(pods, nodes), len(nodes), "iu", what)
    _check_local(plugin, "score", pods, nodes, raw)
    if not overrides(plugin, "normalise"):
        scores = raw
    else:
        scores = _column(plugin.normalise(raw.astype(np.int64), mask), len(nodes), "iu", f"{plugin.name}.normalise")
    inside = scores[mask]
    assert not len(inside) or (inside.min() >= 0 and inside.max() <= SCORE_MAX), f"{what} is outside 0..{SCORE_MAX}: {inside}"
    return scores


def _check_local(plugin: Plugin, point: str, pods: PodBlock, nodes: NodeBlock, expected: Array) -> None:
    if plugin.scope is not Scope.LOCAL:
        return
    many = _many(pods)
    for slot, name in enumerate(nodes.names()):
        value = np.asarray(getattr(plugin, point)(many, NodeBlock(nodes.columns, slot)))
        what = f"{plugin.name}.{point} for all shapes on node {name}"
        assert value.shape in ((2,), ()), f"{what} gave the shape {value.shape} for 2 shapes"
        assert (value == expected[slot]).all(), f"{what} gave {value}, and for one shape on all nodes {expected[slot]}"
