"""metrics.k8s.io: what is computed from NodeMetrics, and what is left out. `top.console` shows it with kubectl."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.status import Raw
from muster.objects.time import format_time, wall_clock
from tests.server.running import RunningServer

_MERGE = {"content-type": "application/merge-patch+json"}
_NODES = "/apis/metrics.k8s.io/v1beta1/nodes"


def _report(server: RunningServer, node: str, status: Raw, **policy: int) -> None:
    server.create("/api/v1/nodes", {"metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}})
    metrics = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
    spec = {"metricCollectPolicy": policy} if policy else {}
    server.create(metrics, {"metadata": {"name": node}, "spec": spec})
    reply = server.request("PATCH", f"{metrics}/{node}/status", {"status": status}, headers=_MERGE)
    assert reply.code == 200, reply.body


def _usage(cpu: str, memory: str) -> Raw:
    return {"resources": {"cpu": cpu, "memory": memory, "bandwidth-egress": "5"}}


def _ago(seconds: float) -> str:
    return format_time(wall_clock() - seconds)


@pytest.mark.parametrize(
    ("age_s", "interval_s", "is_shown"),
    [
        pytest.param(10, 60, True, id="fresh"),
        pytest.param(3600, 60, False, id="old"),
        pytest.param(3600, 1800, True, id="old, but the agent reports seldom"),
    ],
)
def test_old_reports_are_left_out(server: RunningServer, namespace: str, age_s: int, interval_s: int, is_shown: bool) -> None:
    node = f"n-{namespace}"
    status = {"updateTime": _ago(age_s), "nodeMetric": {"nodeUsage": _usage("1500m", "100")}}
    _report(server, node, status, reportIntervalSeconds=interval_s)
    one = server.request("GET", f"{_NODES}/{node}")
    listed = server.request("GET", f"{_NODES}?labelSelector=kubernetes.io/hostname%3D{node}").json
    assert (one.code == 200) is is_shown
    assert listed["kind"] == "NodeMetricsList"
    assert [item["usage"] for item in listed["items"]] == ([{"cpu": "1500m", "memory": "100"}] if is_shown else [])
    if not is_shown:
        assert one.code == 404
        assert "none of the last minutes" in one.message


def test_pods_by_container_or_as_a_whole(server: RunningServer, namespace: str) -> None:
    node = f"n-{namespace}"
    names: dict[str, list[str]] = {"one": ["main"], "two": ["main", "side"], "unknown": ["main"]}
    for pod, containers in names.items():
        spec = {"nodeName": node, "containers": [{"name": name, "image": "i"} for name in containers]}
        server.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": pod, "labels": {"p": pod}}, "spec": spec})
    reported = [{"namespace": namespace, "name": pod, "podUsage": _usage("250m", "7")} for pod in ("one", "two", "gone")]
    _report(server, node, {"updateTime": _ago(1), "podsMetric": reported}, aggregateDurationSeconds=300)
    pods = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
    items = server.request("GET", pods).json["items"]
    usage = {"cpu": "250m", "memory": "7"}
    assert {item["metadata"]["name"]: item["containers"] for item in items} == {
        "one": [{"name": "main", "usage": usage}],
        "two": [{"name": "all", "usage": usage}],
    }
    assert {item["window"] for item in items} == {"300s"}
    chosen = server.request("GET", f"{pods}?labelSelector=p%3Dtwo").json["items"]
    assert [item["metadata"]["labels"] for item in chosen] == [{"p": "two"}]
    named = server.request("GET", f"{pods}?fieldSelector=metadata.name%3Done").json["items"]
    assert [item["metadata"]["name"] for item in named] == ["one"]
    # A node that reported its pods and nothing of itself is no node with 0 use.
    assert server.request("GET", f"{_NODES}/{node}").code == 404


def test_they_are_read_only_and_need_a_permission(server: RunningServer, namespace: str) -> None:
    pods = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
    assert server.request("GET", f"{pods}?watch=true").code == 405
    assert server.request("POST", pods, {"metadata": {"name": "x"}}).code == 405
    assert server.request("DELETE", f"{pods}/x").code == 405
    assert server.request("GET", f"{pods}/x/status").code == 404
    assert server.request("GET", pods, token=server.user("nobody-special")).code == 403
    assert server.request("GET", "/apis/metrics.k8s.io/v1beta2/nodes").code == 404


def test_discovery_lists_the_group(server: RunningServer) -> None:
    groups: list[Any] = server.request("GET", "/apis").json["groups"]
    assert "metrics.k8s.io" in {group["name"] for group in groups}
    listed = server.request("GET", "/apis/metrics.k8s.io/v1beta1").json["resources"]
    assert {(entry["name"], entry["kind"], entry["namespaced"], *entry["verbs"]) for entry in listed} == {
        ("nodes", "NodeMetrics", False, "get", "list"),
        ("pods", "PodMetrics", True, "get", "list"),
    }
    core = server.request("GET", "/api/v1/nodes").json
    assert core["kind"] == "NodeList", "the nodes themselves stay what they are"
