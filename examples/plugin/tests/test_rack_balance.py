"""RackBalance on small clusters: no server, no mocks, milliseconds."""

from __future__ import annotations

import pytest
from muster_rack_balance import RackBalance, RackBalanceArgs

from muster.engine.configuration import ConfigurationInvalid, load
from muster.engine.registry import Registry
from muster.engine.testing import ask, cluster, node, pod

GPU = "nvidia.com/gpu"


def gpu_node(name, rack=None, gpus=4):
    return node(name, labels={"example.com/rack": rack} if rack else {}, resources={GPU: gpus})


def gpu_pod(name, gpus=1, on=""):
    return pod(name, resources={GPU: gpus}, node=on)


@pytest.mark.parametrize(
    ("placed", "scores"),
    [
        pytest.param([], {"a1": 100, "a2": 100, "b1": 100, "c": 100}, id="all empty"),
        pytest.param([("a1", 4)], {"a1": 50, "a2": 50, "b1": 100, "c": 100}, id="the neighbour counts"),
        pytest.param([("a1", 1), ("b1", 3)], {"a1": 87, "a2": 87, "b1": 25, "c": 100}, id="by share"),
        pytest.param([("c", 2)], {"a1": 100, "a2": 100, "b1": 100, "c": 50}, id="without a label on its own"),
    ],
)
def test_score(placed, scores):
    nodes = [gpu_node("a1", "a"), gpu_node("a2", "a"), gpu_node("b1", "b"), gpu_node("c")]
    running = [gpu_pod(f"p{n}", gpus, on) for n, (on, gpus) in enumerate(placed)]
    assert ask(RackBalance(), gpu_pod("new"), cluster(nodes, running)).scores == scores


def test_some_gpus_of_each_rack_stay_free():
    nodes = [gpu_node("a1", "a"), gpu_node("a2", "a"), gpu_node("b1", "b")]
    answer = ask(RackBalance(RackBalanceArgs(keep_free=2)), gpu_pod("new", 3), cluster(nodes, [gpu_pod("p", 2, "a1")]))
    assert answer.feasible == {"a1": True, "a2": True, "b1": False}
    [missing] = answer.shortfalls
    assert (missing.want, missing.best, missing.where) == (2, 1, "b1")


def test_work_without_gpus_is_left_alone():
    assert not ask(RackBalance(), pod("web", cpu="1"), cluster([gpu_node("a1", "a")])).concerned


def test_the_profile_is_accepted(pytestconfig):
    registry = Registry({"RackBalance": RackBalance})
    text = (pytestconfig.rootpath / "profile.yaml").read_text()
    _, profile = load(text, registry).build(registry)
    assert "RackBalance" in [plugin.name for plugin in profile.at["score"]]
    assert profile.weights["RackBalance"] == 5
    with pytest.raises(ConfigurationInvalid, match="keepFree"):
        load(text.replace("keepFree: 2", "keepFree: lots"), registry)
