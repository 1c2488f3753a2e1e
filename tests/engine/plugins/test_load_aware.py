"""LoadAwareScheduling: filter, score and explanations, with figures worked out by hand from Koordinator's formulas."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.events import NodeMetricGone, NodeMetricSeen, Tick
from muster.engine.facts import NodeMetricFacts
from muster.engine.plugins.load_args import LoadAwareArgs, parse_duration
from muster.engine.resources import PODS
from muster.objects.reasons import Reason
from muster.objects.time import format_time
from tests.engine.load_building import (
    NOW,
    ONE_CORE,
    PERCENTILES,
    REPORTED,
    attached,
    block,
    cluster,
    host,
    mask,
    metric,
    scores,
    use,
    work,
)

# -- filter -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu", "memory", "args", "fits"),
    [
        pytest.param("5699m", "0", {}, True, id="65.49 percent is 65"),
        pytest.param("5700m", "0", {}, False, id="65.5 percent is 66"),
        pytest.param("5700m", "0", {"usageThresholds": {"cpu": 66}}, True, id="another threshold"),
        pytest.param("20", "0", {"usageThresholds": {"cpu": 0, "memory": 95}}, True, id="0 is no threshold"),
        pytest.param("20", "20Gi", {"usageThresholds": {}}, True, id="none at all"),
        pytest.param("0", "9579Mi", {}, True, id="9779 of 10240Mi is 95.498 percent"),
        pytest.param("0", "9580Mi", {}, False, id="9780 of 10240Mi is 95.508 percent"),
    ],
)
def test_thresholds(cpu: str, memory: str, args: dict[str, Any], fits: bool) -> None:
    plugin = attached(cluster(metric(cpu=cpu, memory=memory)), **args)
    assert mask(plugin, ONE_CORE) == [fits]


def test_thresholds_for_prod_pods_go_first() -> None:
    state = cluster(metric(cpu="3", pods=[("one", "2", "0", "koord-prod")]), nodes=(host("a"), host("b")))
    plugin = attached(state, usageThresholds={"cpu": 50}, prodUsageThresholds={"cpu": 25})
    # All load: 3 + 0.85 cores, 39 percent. That of prod pods: 2 + 0.85 cores, 29 percent.
    assert mask(plugin, work("p", "1", priority=9000)) == [False, True]
    assert mask(plugin, work("q", "1", priority=5000)) == [True, True]


@pytest.mark.parametrize(
    ("annotation", "fits"),
    [
        pytest.param('{"usageThresholds": {"cpu": 39}}', True, id="39 percent is not above 39"),
        pytest.param('{"usageThresholds": {"cpu": 38}}', False, id="its own"),
        pytest.param('{"prodUsageThresholds": {"cpu": 8}}', False, id="its own for prod: 0.85 cores are 9 percent"),
        pytest.param('{"prodUsageThresholds": {"cpu": 9}}', True, id="which go first"),
        pytest.param(
            '{"aggregatedUsage": {"usageThresholds": {"cpu": 68}, '
            '"usageAggregationType": "p95", "usageAggregatedDuration": "5m"}}',
            False,
            id="its own percentile: 6 + 0.85 cores are 69 percent",
        ),
        pytest.param('{"usageThresholds": "high"}', True, id="not to be read: as the arguments say"),
        pytest.param("{", True, id="no JSON"),
    ],
)
def test_a_nodes_own_thresholds(annotation: str, fits: bool) -> None:
    there = host("a", annotations={"scheduling.koordinator.sh/usage-thresholds": annotation})
    plugin = attached(cluster(metric(cpu="3", windows=PERCENTILES), nodes=(there,)))
    assert mask(plugin, ONE_CORE) == [fits]


def test_amplified_nodes_are_measured_by_what_they_have() -> None:
    there = host("a", annotations={"node.koordinator.sh/raw-allocatable": '{"cpu": "5"}'})
    plugin = attached(cluster(metric(cpu="3"), nodes=(there,)))
    assert mask(plugin, ONE_CORE) == [False]  # 3.85 of 5 cores


@pytest.mark.parametrize(
    ("args", "fits"),
    [
        pytest.param({}, False, id="refused"),
        pytest.param({"enableScheduleWhenNodeMetricsExpired": True}, True, id="taken as it is"),
        pytest.param({"filterExpiredNodeMetrics": False}, False, id="the old report goes on counting: busy"),
        pytest.param(
            {"filterExpiredNodeMetrics": False, "usageThresholds": {"cpu": 99}},
            True,
            id="the old report goes on counting: idle",
        ),
        pytest.param({"nodeMetricExpirationSeconds": 181, "usageThresholds": {"cpu": 99}}, True, id="not yet expired"),
    ],
)
def test_expired_reports(args: dict[str, Any], fits: bool) -> None:
    plugin = attached(cluster(metric(cpu="8", at=NOW - 180)), **args)
    assert mask(plugin, ONE_CORE) == [fits]


def test_expiry_is_noticed_as_time_passes() -> None:
    state = cluster(metric("a"), metric("b", at=NOW + 60), nodes=(host("a"), host("b"), host("c")))
    plugin = attached(state)
    assert mask(plugin, ONE_CORE) == [True, True, True]
    state.now = NOW + 179
    assert plugin.event(Tick()) == []
    state.now = NOW + 180
    assert plugin.event(Tick()) == [0]
    assert mask(plugin, ONE_CORE) == [False, True, True]
    assert plugin.event(Tick()) == []
    assert plugin.event(NodeMetricSeen(metric("a", at=NOW + 180))) == [0]
    assert mask(plugin, ONE_CORE) == [True, True, True]
    state.now = NOW + 300
    assert plugin.event(NodeMetricGone("b")) == [1]
    assert mask(plugin, ONE_CORE) == [True, True, True], "no report at all is no reason"


def test_the_end_of_a_window_is_noticed() -> None:
    state = cluster(REPORTED, pods=(work("one", "2", placed=NOW - 600, node="a"),))
    plugin = attached(state, estimatedSecondsAfterPodScheduled=700)
    assert use(plugin)[0] == 3700
    state.now = NOW + 100
    assert plugin.event(Tick()) == [0]
    assert use(plugin)[0] == 3000
    state.now = NOW + 180
    assert plugin.event(Tick()) == [0], "the expiry of the report is still ahead"


def test_a_report_without_a_time_is_expired_and_one_without_figures_is_none() -> None:
    untimed = msgspec.convert({"metadata": {"name": "a"}, "status": {"nodeMetric": {}}}, NodeMetricFacts)
    empty = msgspec.convert({"metadata": {"name": "b"}, "status": {"updateTime": format_time(NOW)}}, NodeMetricFacts)
    plugin = attached(cluster(untimed, empty, nodes=(host("a"), host("b"))))
    assert mask(plugin, ONE_CORE) == [False, True]


def test_daemon_pods_are_never_refused() -> None:
    state = cluster(metric("a", cpu="9"), metric("b", at=NOW - 999), nodes=(host("a"), host("b")))
    plugin = attached(state)
    assert mask(plugin, ONE_CORE) == [False, False]
    assert mask(plugin, work("d", "1", kind="DaemonSet")) == [True, True]


def test_without_metrics_it_says_nothing() -> None:
    plugin = attached(cluster())
    pods = block(plugin, ONE_CORE)
    assert not plugin.concerns(pods)
    assert mask(plugin, ONE_CORE) == [True]
    assert scores(plugin, ONE_CORE) == [0]


# -- score --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        # CPU: 3 + 0.85 of 10 cores, 61 left. Memory: 5120 + 200 of 10240Mi, 48 left.
        pytest.param({}, (61 + 48) // 2, id="mean"),
        pytest.param({"resourceWeights": {"cpu": 3, "memory": 1}}, (3 * 61 + 48) // 4, id="weights"),
        pytest.param({"dominantResourceWeight": 1}, 48, id="the scarcest alone"),
        pytest.param({"resourceWeights": {"cpu": 1, "memory": 1}, "dominantResourceWeight": 2}, (61 + 48 + 96) // 4, id="both"),
    ],
)
def test_score(args: dict[str, Any], expected: int) -> None:
    state = cluster(
        metric("a", "3", "5Gi"),
        metric("c", "3", at=NOW - 999),
        metric("d", "11", "11Gi"),
        nodes=tuple(map(host, "abcd")),
    )
    assert scores(attached(state, **args), ONE_CORE) == [expected, 0, 0, 0]


def test_score_by_prod_load() -> None:
    state = cluster(metric(cpu="6", pods=[("one", "1", "0", "koord-prod")]))
    plugin = attached(state, scoreAccordingProdUsage=True, resourceWeights={"cpu": 1})
    assert scores(plugin, work("p", "1", priority=9000)) == [81]  # 1.85 of 10 cores
    assert scores(plugin, work("q", "1", priority=7000, resources={"kubernetes.io/mid-cpu": 1000})) == [31]  # 6.85


# -- explanations -------------------------------------------------------------------------------------------------------------


def test_explain() -> None:
    state = cluster(metric("a", "9"), metric("b", "6"), metric("c", at=NOW - 999), nodes=tuple(map(host, "abc")))
    plugin = attached(state)
    reason, shortfalls = plugin.explain(block(plugin, ONE_CORE), NodeBlock(state.nodes))
    assert reason is Reason.NODE_OVERLOADED
    (short,) = shortfalls
    # 65 percent, rounded, are at most 6549m.
    assert (short.resource, short.want, short.best, short.unit, short.where) == ("cpu", 850, 549, "milli", "b below 65%")
    reason, shortfalls = plugin.explain(block(plugin, ONE_CORE), NodeBlock(state.nodes, 2))
    assert (reason, list(shortfalls)) == (Reason.NODE_METRIC_EXPIRED, [])


# -- blocks -------------------------------------------------------------------------------------------------------------------


def test_many_shapes_on_one_node_get_the_answers_of_one_shape_each() -> None:
    state = cluster(metric("a", "5"), metric("b", at=NOW - 999), nodes=tuple(map(host, "abc")))
    plugin = attached(state, prodUsageThresholds={"cpu": 10})
    wants = [work("p", "1"), work("q", "2"), work("r", "1", kind="DaemonSet"), work("s", "1", priority=9500), work("t")]
    blocks = [block(plugin, facts) for facts in wants]
    features = {plugin.name: np.stack([b.features[plugin.name] for b in blocks], axis=1)}
    request, need, scoring = (np.stack([getattr(b, word) for b in blocks], axis=1) for word in ("request", "need", "scoring"))
    many = PodBlock(request, need, scoring, np.zeros(len(blocks), np.int64), features=features)
    for slot in range(3):
        one = NodeBlock(state.nodes, slot)
        everywhere = NodeBlock(state.nodes)
        assert plugin.filter(many, one).tolist() == [bool(plugin.filter(b, everywhere)[slot]) for b in blocks]
        assert [bool(plugin.filter(b, one)) for b in blocks] == plugin.filter(many, one).tolist()
        answers = np.broadcast_to(plugin.score(many, one), len(blocks)).tolist()
        assert answers == [int(plugin.score(b, everywhere)[slot]) for b in blocks]
        assert answers == [int(plugin.score(b, one)) for b in blocks]


@pytest.mark.parametrize("priority", [9000, 5000])
def test_imagined_pods_count_as_placed_ones_do(priority: int) -> None:
    """Several equal pods are placed at once by asking how it would be with one more, two more and so on."""
    state = cluster(metric("a", "3", pods=[("old", "1", "0", "koord-prod")]))
    plugin = attached(state, prodUsageThresholds={"cpu": 30}, scoreAccordingProdUsage=True)
    asked = block(plugin, work("p", "1", priority=priority))
    answers, truth = [], []
    for level in range(4):
        nodes = NodeBlock(state.nodes)
        ahead = nodes.changed(nodes.free - asked.request[:, None] * level)
        answers.append((plugin.filter(asked, ahead).tolist(), plugin.score(asked, ahead).tolist()))
    for level in range(4):
        nodes = NodeBlock(state.nodes)
        truth.append((plugin.filter(asked, nodes).tolist(), plugin.score(asked, nodes).tolist()))
        state.assume(state.see_pod(work(f"x{level}", "1", priority=priority)), "a")
    assert answers == truth
    assert state.nodes.used[PODS].tolist() == [4]


# -- arguments ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param({"usageThresholds": {"cpu": 101}}, "<= 100", id="threshold"),
        pytest.param({"resourceWeights": {"cpu": 0}}, ">= 1", id="weight"),
        pytest.param({"estimatedScalingFactors": {"cpu": 0}}, ">= 1", id="factor"),
        pytest.param({"nodeMetricExpirationSeconds": 0}, ">= 1", id="expiry"),
        pytest.param({"estimator": "crystal"}, "estimator: there is no estimator 'crystal'", id="estimator"),
        pytest.param({"aggregated": {"usageAggregationType": "p42"}}, "p42", id="percentile"),
        pytest.param({"aggregated": {"usageAggregatedDuration": "5 minutes"}}, "'5 minutes' is not a duration", id="duration"),
        pytest.param({"supportedResources": list("abcdefg")}, "9 different resources", id="too many resources"),
        pytest.param({"treshold": 1}, "treshold", id="unknown member"),
    ],
)
def test_bad_arguments_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(args, LoadAwareArgs)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0), ("0", 0), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("500ms", 0.5), (".5s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert math.isclose(parse_duration(text), seconds)


@pytest.mark.parametrize("text", ["5", "m", "5m!", "-5m", "5m 3s", "9" * 100 + "s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write it like 90s"):
        parse_duration(text)
