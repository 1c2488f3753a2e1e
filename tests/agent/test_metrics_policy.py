from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.metrics_policy import Policy, format_duration, parse_duration, policy_of, priority_class, qos_class
from muster.engine.plugins import load_args

QOS, PRIORITY = "koordinator.sh/qosClass", "koordinator.sh/priority-class"


def test_without_a_policy_it_is_the_agents() -> None:
    specs: list[object] = [{}, None, {"metricCollectPolicy": None}, {"metricCollectPolicy": []}, "text"]
    for spec in specs:
        assert policy_of(spec, 15.0, 60.0) == Policy()


def test_the_objects_policy_wins() -> None:
    policy = policy_of(
        {
            "metricCollectPolicy": {
                "aggregateDurationSeconds": 600,
                "reportIntervalSeconds": 120,
                "nodeAggregatePolicy": {"durations": ["1m", "1h30m", "1m0s"]},
                "nodeMemoryCollectPolicy": "usageWithPageCache",
            }
        },
        5.0,
        60.0,
    )
    assert policy == Policy(sample_s=5.0, report_s=120.0, aggregate_s=600.0, windows_s=(60.0, 5400.0), is_with_cache=True)
    assert policy.node_rows == 1082
    assert policy.pod_rows == 122


def test_koordinators_floors() -> None:
    policy = policy_of({"metricCollectPolicy": {"aggregateDurationSeconds": 1, "reportIntervalSeconds": 1}}, 15.0, 60.0)
    assert (policy.aggregate_s, policy.report_s) == (60.0, 30.0)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        pytest.param("aggregateDurationSeconds", -5, "aggregateDurationSeconds: -5: whole seconds", id="negative"),
        pytest.param("reportIntervalSeconds", "soon", "reportIntervalSeconds: 'soon'", id="a word"),
        pytest.param("reportIntervalSeconds", True, "reportIntervalSeconds: True", id="a boolean"),
        pytest.param("nodeMemoryCollectPolicy", "all", "nodeMemoryCollectPolicy: 'all': one of", id="unknown memory"),
        pytest.param("nodeMemoryCollectPolicy", "usageWithHotPageCache", "does not tell hot pages", id="hot pages"),
        pytest.param("nodeAggregatePolicy", {"durations": ["5x"]}, "durations: '5x': a duration", id="no duration"),
        pytest.param("nodeAggregatePolicy", {"durations": ["900h"]}, "durations: '900h'", id="too long"),
        pytest.param("nodeAggregatePolicy", {"durations": ["1m"] * 9}, "at most 8", id="too many"),
        pytest.param("nodeAggregatePolicy", {"durations": "5m"}, "at most 8", id="no list"),
    ],
)
def test_a_bad_figure_is_named_and_the_default_stands_in(field: str, value: object, says: str) -> None:
    policy = policy_of({"metricCollectPolicy": {field: value}}, 15.0, 60.0)
    assert len(policy.problems) == 1
    assert says in policy.problems[0]
    assert policy.problems[0].startswith("spec.metricCollectPolicy.")
    assert (policy.aggregate_s, policy.report_s, policy.windows_s) == (300.0, 60.0, (300.0, 600.0, 1800.0))


@given(st.integers(1, 10**6))
def test_durations_are_read_back_here_and_by_the_scheduler(seconds: int) -> None:
    text = format_duration(float(seconds))
    assert parse_duration(text) == seconds
    assert load_args.parse_duration(text) == seconds


def test_durations_as_go_writes_them() -> None:
    assert [format_duration(s) for s in (5.0, 300.0, 5400.0, 90.5)] == ["5s", "5m0s", "1h30m0s", "1m30.5s"]
    assert parse_duration("") is None


def pod(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "spec": spec}


ASKS = [{"resources": {"requests": {"cpu": "1"}}}]


@pytest.mark.parametrize(
    ("raw", "priority", "qos"),
    [
        pytest.param(pod({PRIORITY: "koord-mid"}, priority=9500), "koord-mid", "", id="label before priority"),
        pytest.param(pod(priority=9000), "koord-prod", "", id="band of prod"),
        pytest.param(pod(priority=7999), "koord-mid", "", id="band of mid"),
        pytest.param(pod(priority=5000), "koord-batch", "", id="band of batch"),
        pytest.param(pod(priority=3999, containers=ASKS), "koord-free", "", id="band of free"),
        pytest.param(pod({QOS: "BE"}, priority=0), "koord-batch", "BE", id="best effort"),
        pytest.param(pod({QOS: "LSR"}), "koord-prod", "LSR", id="latency sensitive"),
        pytest.param(pod({QOS: "??"}, containers=ASKS), "koord-prod", "", id="unknown label"),
        pytest.param(pod(containers=ASKS), "koord-prod", "", id="asks for something"),
        pytest.param(pod(containers=[{}]), "koord-batch", "", id="asks for nothing"),
        pytest.param({}, "koord-batch", "", id="empty"),
    ],
)
def test_classes_of_pods(raw: dict[str, Any], priority: str, qos: str) -> None:
    assert (priority_class(raw), qos_class(raw)) == (priority, qos)
