"""Scenarios are read strictly: whatever is wrong with one is named."""

from __future__ import annotations

import pytest

from muster.bench.scenario import ScenarioError, load_scenario, parse_scenario, scenario_names

GOOD = """
about: A scenario made for this test.
sizes: [{nodes: 10, pods: 20}]
nodes: [{allocatable: {cpu: "4", memory: 8Gi, pods: "10"}}]
measured: [{requests: {cpu: 100m}}]
"""


def test_a_good_one() -> None:
    scenario = parse_scenario("mine", GOOD)
    assert scenario.name == "mine"
    assert scenario.size_for(12).nodes == 12
    assert scenario.size_for(12).pods == 20


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        pytest.param("about:", "abuot:", "unknown field `abuot`", id="unknown field"),
        pytest.param("{cpu: 100m}", "{cpu: lots}", 'measured[0].requests["cpu"]', id="no quantity"),
        pytest.param(', pods: "10"', "", 'nodes[0].allocatable has no "pods"', id="a node without room for pods"),
        pytest.param("nodes: 10", "nodes: 0", "$.sizes[0].nodes", id="no nodes"),
        pytest.param("measured: [{", "measured: [{weight: 0, ", "$.measured[0].weight", id="no weight"),
        pytest.param(
            "measured: [{", "measured: [{priorityClass: high, ", "not in priorityClasses", id="unknown priority class"
        ),
        pytest.param("measured: [{", "measured: [{spec: {nodeName: a}, ", "measured[0].spec.nodeName", id="generator's field"),
        pytest.param(
            "measured: [{",
            "measured: [{shapes: {count: 2, cpuM: [9, 1], memoryMib: [1, 2]}, ",
            "cpuM: 9 is above 1",
            id="range",
        ),
        pytest.param(
            "sizes:", "churn: {everyShare: 0.1, addHopeless: 1}\nsizes:", "there is no backlog", id="churn without backlog"
        ),
        pytest.param("sizes:", "churn: {everyShare: 0.1, deleteRunning: 1}\nsizes:", "add running", id="churn without running"),
        pytest.param("about: A", "about: [", "scenario mine", id="not YAML"),
    ],
)
def test_bad_ones(old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(ScenarioError, match="scenario mine: ") as caught:
        parse_scenario("mine", GOOD.replace(old, new, 1))
    assert says in str(caught.value)


def test_unknown_names_are_told_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match="basic"):
        load_scenario("no-such")


def test_the_promised_scenarios_are_here_at_the_promised_sizes() -> None:
    promised = {"basic", "affinity", "anti-affinity", "spread", "preemption", "unschedulable", "churn", "extended", "bandwidth"}
    promised |= {"gang-8", "gang-64", "gang-1000", "nodeaffinity"}
    assert set(scenario_names()) == promised
    for name in promised:
        assert [size.nodes for size in load_scenario(name).sizes] == [500, 1000, 5000, 20000], name
