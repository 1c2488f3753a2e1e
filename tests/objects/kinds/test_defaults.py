from __future__ import annotations

from typing import Any

import pytest

from muster.objects.catalog import CATALOG
from muster.objects.kinds.defaults import apply_defaults, image_pull_policy, qos_class
from muster.objects.status import Raw
from muster.objects.view import copy_json


def filled(group: str, kind: str, raw: Raw, old: Raw | None = None) -> Raw:
    kept = copy_json(raw)
    result = apply_defaults(CATALOG.by_kind(group, kind), raw, old)
    assert raw == kept
    return result


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1.36", "IfNotPresent"),
        ("localhost:5000/busybox", "Always"),
        ("localhost:5000/busybox:1", "IfNotPresent"),
        ("busybox@sha256:00", "IfNotPresent"),
        ("busybox:latest@sha256:00", "IfNotPresent"),
    ],
)
def test_image_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    assert image_pull_policy(image) == policy


def container(requests: Any = None, limits: Any = None) -> Raw:
    return {"resources": {"requests": requests, "limits": limits}}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param([container()], "BestEffort", id="nothing"),
        pytest.param([container({"example.com/gpu": 1}, {"example.com/gpu": 1})], "BestEffort", id="only devices"),
        pytest.param([container({"cpu": 1}, None)], "Burstable", id="request only"),
        pytest.param([container({"cpu": "500m", "memory": "1Gi"}, {"cpu": 0.5, "memory": "1024Mi"})], "Guaranteed", id="equal"),
        pytest.param([container(None, {"cpu": 1, "memory": "1Gi"})], "Guaranteed", id="limits alone"),
        pytest.param([container({"cpu": 1, "memory": "1Gi"}, {"cpu": 1, "memory": "2Gi"})], "Burstable", id="one differs"),
        pytest.param([container(None, {"cpu": 1, "memory": 1}), container()], "Burstable", id="one of two has none"),
    ],
)
def test_qos_class(containers: list[Raw], expected: str) -> None:
    assert qos_class({"containers": containers}) == expected


def test_a_pod_gets_its_requests_from_its_limits() -> None:
    pod = filled(
        "",
        "Pod",
        {
            "spec": {
                "containers": [{"image": "x:1", "resources": {"limits": {"cpu": 1, "memory": 2}, "requests": {"cpu": 0.5}}}]
            }
        },
    )
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": 0.5, "memory": 2}
    assert pod["status"] == {"phase": "Pending", "qosClass": "Burstable"}


def test_a_pod_that_has_a_phase_keeps_its_status() -> None:
    pod = filled("", "Pod", {"spec": {"containers": []}, "status": {"phase": "Running"}})
    assert pod["status"] == {"phase": "Running"}


def test_secret_text_goes_into_its_data_and_wins() -> None:
    assert filled("", "Secret", {"stringData": {"a": "b"}, "data": {"a": "eA==", "c": "eA=="}}) == {
        "data": {"a": "Yg==", "c": "eA=="}
    }


def test_a_namespace_carries_its_name_as_a_label() -> None:
    namespace = filled("", "Namespace", {"metadata": {"name": "alice"}})
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": "alice"}
    assert namespace["spec"]["finalizers"] == ["kubernetes"]
    assert namespace["status"]["phase"] == "Active"


def test_a_service_keeps_what_it_was_given() -> None:
    old = {
        "spec": {
            "type": "NodePort",
            "clusterIP": "10.0.0.7",
            "clusterIPs": ["10.0.0.7"],
            "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}],
        }
    }
    new = filled("", "Service", {"spec": {"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}]}}, old)
    assert new["spec"]["clusterIP"] == "10.0.0.7"
    assert new["spec"]["clusterIPs"] == ["10.0.0.7"]
    assert new["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30080}]


def test_a_service_that_becomes_a_name_loses_its_address() -> None:
    old = {"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.7"}}
    assert "clusterIP" not in filled("", "Service", {"spec": {"type": "ExternalName", "externalName": "a.b"}}, old)["spec"]


def test_a_deployment_that_recreates_has_no_rolling_update() -> None:
    assert filled("apps", "Deployment", {"spec": {"strategy": {"type": "Recreate"}}})["spec"]["strategy"] == {
        "type": "Recreate"
    }


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"template": {}}, (1, 1, 6)),
        ({"template": {}, "parallelism": 3}, (None, 3, 6)),
        ({"template": {}, "completions": 3}, (3, 1, 6)),
        ({"template": {}, "completions": 3, "backoffLimitPerIndex": 1}, (3, 1, 2**31 - 1)),
    ],
)
def test_job_counts(spec: Raw, expected: tuple[int | None, int, int]) -> None:
    job = filled("batch", "Job", {"spec": spec})["spec"]
    assert (job.get("completions"), job["parallelism"], job["backoffLimit"]) == expected


def test_other_kinds_are_left_alone() -> None:
    raw: Raw = {"data": {"a": "b"}}
    assert apply_defaults(CATALOG.by_kind("", "ConfigMap"), raw) is raw
