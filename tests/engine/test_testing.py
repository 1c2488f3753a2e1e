"""The helpers for plugin tests: they answer as the engine would, and find what is wrong with a plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Column, Mask
from muster.engine.plugin import Plugin, Scope
from muster.engine.plugins.allocation import BalancedAllocation
from muster.engine.plugins.fit import Fit
from muster.engine.plugins.node_affinity import NodeAffinity
from muster.engine.plugins.taint_toleration import TaintToleration
from muster.engine.resources import CPU
from muster.engine.shapes import Shape
from muster.engine.testing import ask, cluster, node, pod
from muster.objects.reasons import Reason


def test_a_plugin_that_filters_scores_and_explains() -> None:
    state = cluster([node("n1", cpu="4"), node("n2", cpu="8")], [pod("old", cpu="2", node="n1")])
    answer = ask(Fit(), pod("new", cpu="4", memory="8Gi"), state)
    assert answer.feasible == {"n1": False, "n2": True}
    assert answer.scores == {"n2": 50}
    assert answer.reason is Reason.CPU_INSUFFICIENT
    [missing] = [s for s in answer.shortfalls if s.resource == "cpu"]
    assert (missing.want, missing.best, missing.where) == (4000, 2000, "n1")


def test_nothing_refused_means_no_reason() -> None:
    answer = ask(Fit(), pod("new", cpu="1"), cluster([node("n1")]))
    assert (answer.reason, answer.shortfalls) == (None, ())


def test_normalised_scores_are_of_the_feasible_nodes() -> None:
    taint = {"key": "k", "value": "v", "effect": "PreferNoSchedule"}
    answer = ask(TaintToleration(), pod("new"), cluster([node("n1", taints=[taint]), node("n2")]))
    assert answer.scores == {"n1": 0, "n2": 100}


def test_a_plugin_of_scope_local_is_asked_both_ways() -> None:
    assert ask(BalancedAllocation(), pod("new", cpu="4", memory="8Gi"), cluster([node("n1")])).scores == {"n1": 100}


def test_a_plugin_of_scope_node() -> None:
    answer = ask(
        NodeAffinity(), pod("new", nodeSelector={"disk": "ssd"}), cluster([node("a", labels={"disk": "ssd"}), node("b")])
    )
    assert answer.feasible == {"a": True, "b": False}


def test_the_same_cluster_can_be_asked_twice() -> None:
    state, plugin = cluster([node("n1", cpu="2")]), Fit()
    assert ask(plugin, pod("a", cpu="2"), state).feasible == {"n1": True}
    state.see_pod(pod("b", cpu="1", node="n1"))
    assert ask(plugin, pod("a", cpu="2"), state).feasible == {"n1": False}
    assert len(state.observers) == 1


def test_a_resource_that_no_node_has() -> None:
    assert ask(Fit(), pod("new", resources={"example.com/x": 1}), cluster([node("n1")])).feasible == {"n1": False}


class Broken(Plugin):
    name = "Broken"
    scope = Scope.LOCAL

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class BrokenFilter(Broken):
    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        found: Mask = self.value(pods, nodes)
        return found


class BrokenScore(Broken):
    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        found: Column = self.value(pods, nodes)
        return found


@pytest.mark.parametrize(
    ("plugin", "complaint"),
    [
        pytest.param(BrokenFilter(lambda _p, _n: np.ones(7, np.bool_)), r"gave the shape \(7,\) for 2 nodes", id="length"),
        pytest.param(BrokenFilter(lambda _p, n: n.free[CPU]), "values of type int64", id="numbers from a filter"),
        pytest.param(BrokenScore(lambda _p, n: n.free[CPU] / 3), "values of type float64", id="fractions"),
        pytest.param(BrokenScore(lambda _p, n: n.free[CPU]), r"is outside 0\.\.100", id="range"),
        pytest.param(
            BrokenFilter(lambda _p, n: n.free[CPU] >= n.free[CPU].max()), "for all shapes on node", id="looks elsewhere"
        ),
        pytest.param(BrokenScore(lambda p, _n: p.request * 0), "gave the shape", id="of the wrong block"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said(plugin: Plugin, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        ask(plugin, pod("new", cpu="1", memory="1Gi"), cluster([node("n1"), node("n2", cpu="4")]))


class Figures(Plugin):
    name = "Figures"
    scope = Scope.LOCAL
    features_len = 2

    def features(self, shape: Shape) -> Sequence[int]:
        return (shape.priority, 7)

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        figures = pods.features["Figures"]
        scores: Column = figures[0] + figures[1] + 0 * nodes.free[CPU]
        return scores


def test_features_of_a_shape_reach_the_plugin() -> None:
    assert ask(Figures(), pod("new", priority=3), cluster([node("n1"), node("n2")])).scores == {"n1": 10, "n2": 10}


def test_builders_refuse_what_they_do_not_know() -> None:
    with pytest.raises(TypeError, match="does not know label"):
        node("n1", label={})
