"""NodeResourcesFit and NodeResourcesBalancedAllocation: kube-scheduler's figures, worked out by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from muster.engine.blocks import NodeBlock, one_shape
from muster.engine.plugins.allocation import BalancedAllocation, BalancedArgs
from muster.engine.plugins.fit import Fit, FitArgs, ScoringStrategy
from muster.engine.profile import Profile
from muster.objects.reasons import Reason
from tests.engine.building import node, pod, state_of


def ask(plugin: Fit | BalancedAllocation, what: str, nodes: list[Any], wanted: Any, placed: tuple[Any, ...] = ()) -> Any:
    state = state_of(nodes, placed)
    Profile("test", [plugin]).attach(state)
    shape = state.see_pod(wanted).shape
    state.nodes.grow()
    shape.widen(len(state.nodes.free))
    return getattr(plugin, what)(one_shape(shape), NodeBlock(state.nodes))


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        pytest.param(pod("p", cpu="4"), [True, False], id="exact fit counts"),
        pytest.param(pod("p", cpu="4001m"), [False, False], id="one thousandth too much"),
        pytest.param(pod("p"), [True, True], id="asks for nothing"),
        pytest.param(pod("p", resources={"example.com/thing": 1}), [False, True], id="extended resource"),
        pytest.param(pod("p", cpu="1", overhead={"cpu": "2"}), [True, False], id="overhead counts"),
        pytest.param(
            pod("p", cpu="1", initContainers=[{"resources": {"requests": {"cpu": "3"}}}]),
            [True, False],
            id="init container alone",
        ),
        pytest.param(
            pod("p", cpu="1", initContainers=[{"restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}}]),
            [True, False],
            id="sidecar beside",
        ),
    ],
)
def test_filter(wanted: Any, fits: list[bool]) -> None:
    nodes = [node("a", cpu="4"), node("b", cpu="2", resources={"example.com/thing": 2})]
    assert ask(Fit(), "filter", nodes, wanted).tolist() == fits


def test_a_full_node_takes_no_more_pods() -> None:
    assert ask(Fit(), "filter", [node("a", pods=1)], pod("p"), (pod("x", node="a"),)).tolist() == [False]


def test_an_overdrawn_resource_that_is_not_asked_for_is_not_looked_at() -> None:
    placed = (pod("x", cpu="8", node="a"),)
    assert ask(Fit(), "filter", [node("a", cpu="4")], pod("p", memory="1Gi"), placed).tolist() == [True]


@pytest.mark.parametrize("key", ["ignoredResources", "ignoredResourceGroups"])
def test_ignored_resources(key: str) -> None:
    value = ["example.com/thing"] if key == "ignoredResources" else ["example.com"]
    args = msgspec.convert({key: value}, FitArgs)
    assert ask(Fit(args), "filter", [node("a")], pod("p", resources={"example.com/thing": 5})).tolist() == [True]


STRATEGIES: dict[str, dict[str, Any]] = {
    "LeastAllocated": {},
    "MostAllocated": {},
    "RequestedToCapacityRatio": {
        "requestedToCapacityRatio": {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}
    },
}


@pytest.mark.parametrize(
    ("kind", "scores"),
    # a: cpu (1000+1000)/4000 = 50 % used, memory 2/4 Gi = 50 %; b: cpu 1000/8000 = 12 % used, memory 1/4 Gi = 25 %.
    [("LeastAllocated", [50, 81]), ("MostAllocated", [50, 18]), ("RequestedToCapacityRatio", [50, 18])],
)
def test_score(kind: str, scores: list[int]) -> None:
    strategy = msgspec.convert({"type": kind, **STRATEGIES[kind]}, ScoringStrategy)
    nodes = [node("a", cpu="4", memory="4Gi"), node("b", cpu="8", memory="4Gi")]
    placed = (pod("x", cpu="1", memory="1Gi", node="a"),)
    got = ask(Fit(FitArgs(scoring_strategy=strategy)), "score", nodes, pod("p", cpu="1", memory="1Gi"), placed)
    assert got.tolist() == scores


def test_what_is_not_asked_for_counts_a_little_in_scores() -> None:
    nodes = [node("a", cpu="1", memory="400Mi"), node("b", cpu="10", memory="400Mi")]
    assert ask(Fit(), "score", nodes, pod("p")).tolist() == [(90 + 50) // 2, (99 + 50) // 2]


def test_weights_of_resources() -> None:
    strategy = msgspec.convert({"resources": [{"name": "cpu", "weight": 3}, {"name": "memory", "weight": 1}]}, ScoringStrategy)
    nodes = [node("a", cpu="4", memory="4Gi")]
    got = ask(Fit(FitArgs(scoring_strategy=strategy)), "score", nodes, pod("p", cpu="1", memory="4Gi"))
    assert got.tolist() == [75 * 3 // 4]


@pytest.mark.parametrize(
    ("cpu", "memory", "score"),
    [("2", "2Gi", 100), ("4", "2Gi", 75), ("1", "4Gi", 62)],
    ids=["level", "a half apart", "three quarters apart"],
)
def test_balance(cpu: str, memory: str, score: int) -> None:
    got = ask(BalancedAllocation(), "score", [node("a", cpu="4", memory="4Gi")], pod("p", cpu=cpu, memory=memory))
    assert got.tolist() == [score]


def test_balance_of_three() -> None:
    args = msgspec.convert({"resources": [{"name": "cpu"}, {"name": "memory"}, {"name": "example.com/gpu"}]}, BalancedArgs)
    nodes = [node("a", cpu="4", memory="4Gi", resources={"example.com/gpu": 4})]
    wanted = pod("p", cpu="1", memory="2Gi", resources={"example.com/gpu": 3})
    deviation = np.std([0.25, 0.5, 0.75])
    assert ask(BalancedAllocation(args), "score", nodes, wanted).tolist() == [int((1 - deviation) * 100)]


def test_explain_names_the_resource_that_is_nowhere() -> None:
    nodes = [node("a", cpu="4", memory="1Gi"), node("b", cpu="2", memory="8Gi")]
    reason, shortfalls = ask(Fit(), "explain", nodes, pod("p", cpu="1", memory="16Gi"))
    assert reason is Reason.MEMORY_INSUFFICIENT
    assert str(shortfalls[0]) == "memory: wants 16Gi, b has 8Gi, 8Gi short"


def test_explain_each_alone_but_not_together() -> None:
    nodes = [node("a", cpu="4", memory="1Gi"), node("b", cpu="1", memory="8Gi")]
    reason, _ = ask(Fit(), "explain", nodes, pod("p", cpu="2", memory="2Gi"))
    assert reason is Reason.RESOURCES_INSUFFICIENT


@pytest.mark.parametrize(
    "wrong",
    [
        {"scoringStrategy": {"resources": []}},
        {"scoringStrategy": {"type": "RequestedToCapacityRatio"}},
        {"scoringStrategy": {"type": "Fastest"}},
        {"ignoredResourceGroups": ["example.com/thing"]},
        {"unknown": 1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_arguments_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, FitArgs)
