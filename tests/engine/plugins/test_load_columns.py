"""The load of nodes: estimates and sums worked out by hand, and columns that are kept equal columns made anew."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.events import NodeGone, NodeMetricGone, NodeMetricSeen, NodeSeen, Tick
from muster.engine.facts import PodFacts
from muster.engine.plugins.load_aware import LoadAware
from muster.engine.plugins.load_columns import NO_LIMIT, most_allowed
from muster.engine.plugins.load_report import estimate, priority_class
from muster.engine.state import State
from tests.engine.building import state_of
from tests.engine.load_building import (
    FACTORS,
    NOW,
    PERCENTILES,
    REPORTED,
    SECONDS,
    attached,
    cluster,
    host,
    mask,
    metric,
    scores,
    use,
    work,
)

# -- estimates ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(work("p"), [250, 200 * 1024**2], id="nothing asked for"),
        pytest.param(work("p", "1", "1Gi"), [850, 751_619_277], id="85 and 70 percent, to the nearest"),
        pytest.param(work("p", "1", limits={"cpu": "2"}), [1700, 200 * 1024**2], id="the limit where it is more"),
        pytest.param(work("p", "1", limits={"cpu": "800m"}), [800, 200 * 1024**2], id="never more than the limit"),
        pytest.param(work("p", "10m"), [9, 200 * 1024**2], id="8.5 rounds up"),
        pytest.param(
            work("p", resources={"kubernetes.io/batch-cpu": 2000, "kubernetes.io/batch-memory": 1000}, priority=5500),
            [1700, 700],
            id="a batch pod's own resources",
        ),
        pytest.param(
            work("p", resources={"kubernetes.io/mid-cpu": 2000}, priority=7000), [1700, 200 * 1024**2], id="a mid pod's"
        ),
        pytest.param(
            work("p", "1", annotations={f"scheduling.koordinator.sh/{FACTORS}": '{"cpu": 50}'}),
            [500, 200 * 1024**2],
            id="its own factors",
        ),
        pytest.param(
            work("p", "1", annotations={f"scheduling.koordinator.sh/{FACTORS}": '{"cpu": 500}'}),
            [850, 200 * 1024**2],
            id="factors out of range are left out",
        ),
        pytest.param(
            work("p", "1", annotations={f"scheduling.koordinator.sh/{FACTORS}": "many"}),
            [850, 200 * 1024**2],
            id="and what can't be read",
        ),
    ],
)
def test_estimate(facts: PodFacts, expected: list[int]) -> None:
    shape = state_of().see_pod(facts).shape
    found = estimate(shape, ("cpu", "memory"), {"cpu": 85, "memory": 70}, is_customized=True)
    assert list(found) == expected


def test_own_factors_need_permission() -> None:
    shape = state_of().see_pod(work("p", "1", annotations={f"scheduling.koordinator.sh/{FACTORS}": '{"cpu": 50}'})).shape
    assert estimate(shape, ("cpu",), {"cpu": 85}, is_customized=False) == (850,)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(work("p", "1", priority=9500), "koord-prod", id="band"),
        pytest.param(
            work("p", "1", priority=9999, labels={"koordinator.sh/priority-class": "koord-batch"}), "koord-batch", id="label"
        ),
        pytest.param(work("p", "1", priority=3000), "koord-free", id="free"),
        pytest.param(work("p", "1", priority=10_000), "koord-prod", id="outside the bands, asks for something"),
        pytest.param(work("p"), "koord-batch", id="best effort"),
        pytest.param(work("p", labels={"koordinator.sh/qosClass": "LS"}), "koord-prod", id="QoS label"),
        pytest.param(work("p", "1", labels={"koordinator.sh/qosClass": "BE"}), "koord-batch", id="QoS label BE"),
    ],
)
def test_priority_class(facts: PodFacts, expected: str) -> None:
    assert priority_class(state_of().see_pod(facts).shape) == expected


# -- the load of a node -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "args", "cpu"),
    [
        pytest.param(work("one", "2", placed=NOW - 600), {}, 3000, id="the report shows all of it"),
        pytest.param(work("new", "2", placed=NOW - 600), {}, 4700, id="a pod without figures counts in full"),
        pytest.param(work("one", "2", placed=NOW - 30), {}, 3700, id="placed just before the report"),
        pytest.param(work("one", "2", placed=NOW - 60), {}, 3000, id="a whole interval before is enough"),
        pytest.param(work("one", "1", placed=NOW - 30), {}, 3000, id="an estimate below the use adds nothing"),
        pytest.param(
            work("one", "2", placed=NOW - 600), {"estimatedSecondsAfterPodScheduled": 601}, 3700, id="within a forced window"
        ),
        pytest.param(
            work("one", "2", placed=NOW - 600), {"estimatedSecondsAfterPodScheduled": 600}, 3000, id="the window is over"
        ),
        pytest.param(
            work("one", "2", placed=NOW - 600, started=NOW - 10),
            {"estimatedSecondsAfterInitialized": 60},
            3700,
            id="a window from when it was initialized",
        ),
        pytest.param(
            work("one", "2", placed=NOW - 600, annotations={f"scheduling.koordinator.sh/{SECONDS}": "900"}),
            {"allowCustomizeEstimation": True},
            3700,
            id="a window of its own",
        ),
        pytest.param(
            work("one", "2", placed=NOW - 600, annotations={f"scheduling.koordinator.sh/{SECONDS}": "900"}),
            {},
            3000,
            id="which needs permission",
        ),
    ],
)
def test_load_of_a_node(facts: PodFacts, args: dict[str, Any], cpu: int) -> None:
    bound = msgspec.structs.replace(facts, spec=msgspec.structs.replace(facts.spec, node_name="a"))
    plugin = attached(cluster(REPORTED, pods=(bound,)), **args)
    assert use(plugin)[0] == cpu
    assert use(plugin, "score")[0] == cpu


def test_an_assumed_pod_counts_until_it_is_reported() -> None:
    state = cluster(metric(cpu="3"))
    plugin = attached(state)
    one = state.see_pod(work("one", "2"))
    state.assume(one, "a")
    assert use(plugin) == [4700, 200 * 1024**2]
    state.now += 60
    plugin.event(NodeMetricSeen(metric(cpu="4", at=NOW + 60, pods=[("one", "1", "0")])))
    assert use(plugin)[0] == 4000, "placed a whole interval before the report"
    state.forget(one)
    assert use(plugin)[0] == 4000, "what was reported stays until the next report"


@pytest.mark.parametrize(
    ("aggregated", "cpu"),
    [
        pytest.param({"usageAggregationType": "p95", "usageAggregatedDuration": "5m"}, 6000, id="that window"),
        pytest.param({"usageAggregationType": "p95"}, 7000, id="the longest"),
        pytest.param({"usageAggregationType": "avg"}, 4000, id="the longest that has it"),
        pytest.param({"usageAggregationType": "p50"}, 3000, id="none has it: the last report"),
        pytest.param(
            {"usageAggregationType": "p95", "usageAggregatedDuration": "1h"}, 1700, id="window missing: estimates only"
        ),
    ],
)
def test_percentiles(aggregated: dict[str, Any], cpu: int) -> None:
    """One pod of 2 cores, long there and reported."""
    state = cluster(
        metric(cpu="3", windows=PERCENTILES, pods=[("one", "1", "0")]),
        pods=(work("one", "2", placed=NOW - 600, node="a"),),
    )
    plugin = attached(state, aggregated={"usageThresholds": {"cpu": 60}, **aggregated})
    assert use(plugin)[0] == cpu
    assert use(plugin, "score")[0] == 3000
    score_args = {word.replace("usage", "score"): value for word, value in aggregated.items()}
    plugin = attached(state, aggregated=score_args)
    assert use(plugin)[0] == 3000
    assert use(plugin, "score")[0] == cpu


def test_prod_load_is_that_of_prod_pods() -> None:
    pods = [("one", "1", "0", "koord-prod"), ("two", "1500m", "0", "koord-batch"), ("gone", "500m", "0", "koord-prod")]
    running = (
        work("one", "1", placed=NOW - 600, node="a", priority=9000),
        work("two", "1", placed=NOW - 600, node="a", priority=5000),
        work("new", "1", placed=NOW, node="a", priority=9000),
        work("other", "1", placed=NOW, node="a", priority=5000),
    )
    state = cluster(metric(cpu="5", system="300m", pods=pods), pods=running)
    assert use(attached(state), "prod")[0] == 1000 + 500 + 850
    assert use(attached(state, prodUsageIncludeSys=True), "prod")[0] == 1000 + 500 + 850 + 300


def test_a_pods_own_class_wins_over_what_the_agent_says() -> None:
    state = cluster(
        metric(cpu="5", pods=[("one", "1", "0", "koord-batch"), ("two", "2", "0", "koord-prod")]),
        pods=(
            work("one", "1", placed=NOW - 600, node="a", priority=9000),
            work("two", "1", placed=NOW - 600, node="a", priority=5000),
        ),
    )
    assert use(attached(state), "prod")[0] == 1000


@given(total=st.integers(1, 2**50), limit=st.integers(1, 100))
def test_the_most_that_is_allowed_is_what_just_rounds_to_the_threshold(total: int, limit: int) -> None:
    def percent(used: int) -> int:
        return (200 * used + total) // (2 * total)

    most = int(most_allowed(np.array([total]), np.array([limit]))[0])
    assert percent(most) <= limit < percent(most + 1)
    assert most_allowed(np.array([total, 0]), np.array([0, limit])).tolist() == [NO_LIMIT, NO_LIMIT]


@pytest.mark.parametrize("amount", ["99999999999999999999999", "-5", "fast", "1e30", "0.1"])
def test_absurd_figures_break_nothing(amount: str) -> None:
    pods = [(f"p{i}", amount, amount, "koord-prod") for i in range(300)]
    there = host("a", annotations={"node.koordinator.sh/raw-allocatable": f'{{"cpu": "{amount}"}}'})
    state = cluster(metric(cpu=amount, memory=amount, system=amount, pods=pods), nodes=(there,))
    plugin = attached(state, prodUsageThresholds={"cpu": 50}, prodUsageIncludeSys=True)
    for number in range(3):
        state.see_pod(work(f"q{number}", "1", resources={"memory": "100Pi"}, node="a"))
    assert min(use(plugin), use(plugin, "prod"), use(plugin, "score")) >= [0, 0]
    assert len(mask(plugin, work("r", "1"))) == 1
    assert all(0 <= score <= 100 for score in scores(plugin, work("r", "1")))


# -- kept equals anew ---------------------------------------------------------------------------------------------------------

NODES = ("a", "b", "c")
pods_in_reports = st.lists(
    st.tuples(
        st.integers(0, 7).map(lambda n: f"p{n}"),
        st.integers(0, 3000).map(lambda m: f"{m}m"),
        st.just("1Gi"),
        st.sampled_from(["", "koord-prod", "koord-batch"]),
    ),
    max_size=5,
    unique_by=lambda one: one[0],
)
changes = st.one_of(
    st.tuples(st.just("pod"), st.integers(0, 7), st.sampled_from(NODES), st.integers(1, 4), st.integers(-200, 0)),
    st.tuples(st.just("gone"), st.integers(0, 7)),
    st.tuples(st.just("relabel"), st.integers(0, 7), st.sampled_from(["koord-prod", "koord-batch", "koord-mid"])),
    st.tuples(st.just("report"), st.sampled_from(NODES), st.integers(0, 9), st.integers(-100, 0), pods_in_reports),
    st.tuples(st.just("silent"), st.sampled_from(NODES)),
    st.tuples(st.just("wait"), st.integers(1, 120)),
    st.tuples(st.just("node"), st.sampled_from(NODES), st.sampled_from([None, "{}", '{"usageThresholds": {"cpu": 20}}'])),
    st.tuples(st.just("away"), st.sampled_from(NODES)),
)


def change(state: State, plugin: LoadAware, what: tuple[Any, ...]) -> None:
    match what:
        case ("pod", number, name, cores, age):
            uid = f"uid-default-p{number}"
            if uid not in state.pods:
                facts = work(f"p{number}", str(cores), placed=state.now + age, node=name, priority=9000 if number % 2 else 5000)
                state.see_pod(facts)
        case ("gone", number):
            state.remove_pod(f"uid-default-p{number}")
        case ("relabel", number, label):
            record = state.pods.get(f"uid-default-p{number}")
            if record is not None:
                raw = msgspec.to_builtins(record.facts)
                raw["metadata"]["labels"] = {"koordinator.sh/priority-class": label}
                state.see_pod(msgspec.convert(raw, PodFacts))
        case ("report", name, cpu, age, pods):
            state.metrics[name] = metric(name, str(cpu), at=state.now + age, pods=pods, system="500m", windows=PERCENTILES)
            plugin.event(NodeMetricSeen(state.metrics[name]))
        case ("silent", name):
            state.metrics.pop(name, None)
            plugin.event(NodeMetricGone(name))
        case ("wait", seconds):
            state.now += seconds
            plugin.event(Tick())
        case ("node", name, annotation):
            notes = {"scheduling.koordinator.sh/usage-thresholds": annotation} if annotation else {}
            state.apply_node(NodeSeen(host(name, annotations=notes)))
            state.flush_nodes()
        case ("away", name):
            state.apply_node(NodeGone(name))
            state.flush_nodes()


ARGS = [
    {"estimatedSecondsAfterPodScheduled": 90, "prodUsageIncludeSys": True},
    {
        "aggregated": {
            "usageThresholds": {"cpu": 50},
            "usageAggregationType": "p95",
            "usageAggregatedDuration": "1h",
            "scoreAggregationType": "avg",
        }
    },
]


@settings(max_examples=60, deadline=None)
@given(st.lists(changes, max_size=25), st.sampled_from(ARGS))
def test_columns_that_are_kept_equal_columns_made_anew(changes: list[tuple[Any, ...]], args: dict[str, Any]) -> None:
    state = cluster(nodes=tuple(map(host, NODES)))
    plugin = attached(state, **args)
    for what in changes:
        change(state, plugin, what)
    fresh = attached(state, **args)
    for kept, anew in (
        (plugin.columns.use, fresh.columns.use),
        (plugin.columns.most, fresh.columns.most),
        (plugin.columns.status, fresh.columns.status),
        (plugin.columns.allocatable, fresh.columns.allocatable),
    ):
        assert kept.name != anew.name
        assert np.array_equal(kept.all, anew.all), kept.name
    for record in list(state.pods.values()):
        if record.node in state.nodes.slots:
            before, phase, where = plugin.columns.use.all.copy(), record.phase, record.node
            state._take_away(record)
            state._put(record, where, phase)
            assert np.array_equal(plugin.columns.use.all, before), "taking away and putting back changes nothing"
