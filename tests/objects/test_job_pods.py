"""Pods, groups, services and priorities of a Job (muster.dev), as values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.configuration import DEFAULT_NAME
from muster.objects.job_pods import (
    DEFAULT_SCHEDULER,
    PORT_COUNT,
    PORT_FIRST,
    PROCESS_IMAGE,
    JobPods,
    priority_class,
    priority_class_name,
)
from muster.objects.status import Raw


def job(*roles: Raw, name: str = "train", **spec: Any) -> Raw:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "lab", "uid": "u-1", "creationTimestamp": "2026-01-05T08:00:00Z"},
        "spec": {"roles": list(roles) or [{"name": "main", "command": ["run"]}], **spec},
    }


def pod(raw: Raw, role: int = 0, index: int = 0, attempt: int = 1) -> Raw:
    made = JobPods(raw)
    return made.pod(made.view.spec.roles[role], index, attempt)


def env(made: Raw) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in made["spec"]["containers"][0]["env"]}


def test_a_command_alone_is_a_process_of_the_node() -> None:
    made = pod(job())
    assert made["metadata"]["name"] == "train-main-0"
    assert made["metadata"]["annotations"]["muster.dev/runtime"] == "process"
    assert made["metadata"]["annotations"]["muster.dev/origin-created"] == "2026-01-05T08:00:00Z"
    assert made["spec"]["containers"] == [
        {"name": "main", "image": PROCESS_IMAGE, "command": ["run"], "env": made["spec"]["containers"][0]["env"]}
    ]
    assert made["spec"]["schedulerName"] == DEFAULT_SCHEDULER == DEFAULT_NAME
    assert made["spec"]["restartPolicy"] == "Never"
    assert "pod-group.scheduling.sigs.k8s.io" not in made["metadata"]["labels"], "one pod alone needs no group"
    assert "subdomain" not in made["spec"]


def test_what_the_process_is_told() -> None:
    raw = job(
        {"name": "ps", "command": ["ps"], "ports": [{"name": "rpc", "port": 7000}]},
        {"name": "w", "replicas": 2, "command": ["w"]},
    )
    told = env(pod(raw, 1, 1, attempt=3))
    assert told == {
        "MUSTER_JOB": "train",
        "MUSTER_NAMESPACE": "lab",
        "MUSTER_ROLE": "w",
        "MUSTER_INDEX": "1",
        "MUSTER_REPLICAS": "2",
        "MUSTER_ATTEMPT": "3",
        "MUSTER_ADDRESS": "train-w-1.train",
        "MUSTER_REPLICAS_PS": "1",
        "MUSTER_REPLICAS_W": "2",
        "MUSTER_ADDRESSES_PS": "train-ps-0.train:7000",
        "MUSTER_ADDRESSES_W": "train-w-0.train,train-w-1.train",
    }
    assert env(pod(raw, 0))["MUSTER_PORT_RPC"] == "7000"


def test_roles_start_together() -> None:
    raw = job({"name": "ps", "command": ["ps"]}, {"name": "w", "replicas": 4, "minReplicas": 2, "command": ["w"]})
    made = JobPods(raw)
    groups = made.groups()
    assert [(group["metadata"]["name"], group["spec"]["minMember"]) for group in groups] == [("train-ps", 1), ("train-w", 2)]
    for group in groups:
        joined = json.loads(group["metadata"]["annotations"]["gang.scheduling.koordinator.sh/groups"])
        assert joined == ["lab/train-ps", "lab/train-w"]
        assert group["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert pod(raw, 1)["metadata"]["labels"]["pod-group.scheduling.sigs.k8s.io"] == "train-w"
    [alone] = JobPods(job({"name": "w", "replicas": 2, "command": ["w"]})).groups()
    assert "gang.scheduling.koordinator.sh/groups" not in alone["metadata"]["annotations"]


def test_the_role_is_laid_over_its_template() -> None:
    template: Raw = {
        "metadata": {"labels": {"team": "red"}, "annotations": {"note": "kept"}},
        "spec": {
            "volumes": [{"name": "data", "emptyDir": {}}],
            "nodeSelector": {"disk": "ssd", "zone": "a"},
            "tolerations": [{"key": "x", "operator": "Exists"}],
            "containers": [
                {"name": "sidecar", "image": "proxy:1"},
                {
                    "name": "main",
                    "image": "old:1",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "env": [{"name": "LR", "value": "1"}, {"name": "KEEP", "value": "yes"}],
                    "resources": {"requests": {"cpu": "9", "memory": "1Gi"}},
                },
            ],
        },
    }
    role = {
        "name": "w",
        "image": "new:2",
        "env": [{"name": "LR", "value": "0.1"}, {"name": "MUSTER_JOB", "value": "mine"}],
        "resources": {"requests": {"cpu": 2}},
        "nodeSelector": {"zone": "b"},
        "tolerations": [{"key": "y", "operator": "Exists"}],
        "template": template,
    }
    made = pod(job(role))
    main, sidecar = made["spec"]["containers"]
    assert (main["name"], main["image"], sidecar["name"]) == ("main", "new:2", "sidecar")
    assert main["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert main["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}
    assert {"LR": "0.1", "KEEP": "yes", "MUSTER_JOB": "mine"}.items() <= env(made).items()
    assert made["spec"]["nodeSelector"] == {"disk": "ssd", "zone": "b"}
    assert [t["key"] for t in made["spec"]["tolerations"]] == ["x", "y"]
    assert made["metadata"]["labels"]["team"] == "red"
    assert made["metadata"]["annotations"]["note"] == "kept"
    assert "muster.dev/runtime" not in made["metadata"]["annotations"]
    assert template["spec"]["containers"][1]["image"] == "old:1", "the template itself is not touched"


def test_bandwidth_is_asked_for_by_annotation() -> None:
    resources = {
        "requests": {"bandwidth-egress": "2Gbps", "nvidia.com/gpu": 1, "cpu": 1},
        "limits": {"bandwidth": "4Gbps"},
    }
    made = pod(job({"name": "w", "image": "x", "resources": resources}))
    notes = made["metadata"]["annotations"]
    assert (notes["muster.dev/bandwidth-egress"], notes["muster.dev/bandwidth-ingress"]) == ("2Gbps", "4Gbps")
    assert notes["kubernetes.io/ingress-bandwidth"] == "4000000000"
    assert made["spec"]["containers"][0]["resources"] == {
        "requests": {"nvidia.com/gpu": "1", "cpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
    }


def test_owner_queue_pool_and_priority() -> None:
    raw = job(user="ann", queue="research", pools=["h100"], preemptible=True, priority=-5, schedulerName="mine")
    made = pod(raw)
    labels = made["metadata"]["labels"]
    assert {labels[f"muster.dev/{key}"] for key in ("user", "queue", "pool", "preemptible")} == {
        "ann",
        "research",
        "h100",
        "true",
    }
    assert (made["spec"]["priorityClassName"], made["spec"]["priority"]) == ("muster-priority-minus-5", -5)
    assert made["spec"]["schedulerName"] == "mine"
    assert priority_class(-5)["metadata"]["name"] == priority_class_name(-5)
    assert priority_class(-5)["value"] == -5
    assert "priorityClassName" not in pod(job())["spec"], "0 leaves the cluster's default class in force"
    odd = pod(job(user="ann@example.com"))["metadata"]
    assert odd["annotations"]["muster.dev/user"] == "ann@example.com"
    assert "muster.dev/user" not in odd["labels"]


def test_several_pools_and_what_is_said_of_the_work_are_annotations() -> None:
    raw = job(pools=["h100", "a100"])
    made = JobPods(raw, notes={"muster.dev/work": "{}"})
    meta = made.pod(made.view.spec.roles[0], 0)["metadata"]
    assert meta["annotations"]["muster.dev/pools"] == "h100,a100"
    assert meta["annotations"]["muster.dev/work"] == "{}"
    assert "muster.dev/pool" not in meta["labels"]


def test_the_service_is_headless_and_lists_numbers_that_are_fixed() -> None:
    ports = [{"name": "rpc", "port": 7000}, {"name": "free"}]
    raw = job({"name": "a", "image": "x", "ports": ports}, {"name": "b", "image": "x", "ports": ports})
    service = JobPods(raw).service()
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["ports"] == [{"name": "tcp-7000", "port": 7000, "protocol": "TCP"}]
    assert pod(raw)["spec"]["subdomain"] == service["metadata"]["name"] == "train"
    assert JobPods(job()).has_service is False


@pytest.mark.parametrize(
    ("role", "on_host"),
    [
        pytest.param({"command": ["x"]}, True, id="a process has the node's ports"),
        pytest.param({"image": "x"}, False, id="a container has its own"),
        pytest.param({"image": "x", "runtime": "process"}, True, id="a process though it names an image"),
    ],
)
def test_ports_of_the_node(role: Raw, on_host: bool) -> None:
    made = pod(job({"name": "w", "replicas": 2, "ports": [{"name": "rpc"}], **role}), index=1)
    [port] = made["spec"]["containers"][0]["ports"]
    assert (port.get("hostPort") == port["containerPort"]) is on_host
    assert env(made)["MUSTER_PORT_RPC"] == str(port["containerPort"])


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.lists(st.one_of(st.none(), st.integers(20_000, 29_999)), max_size=3)),
        min_size=1,
        max_size=4,
    ),
    st.text(min_size=1, max_size=8),
)
def test_allocated_ports_never_clash_in_a_job(shape: list[tuple[int, list[int | None]]], uid: str) -> None:
    roles = [
        {
            "name": f"r{n}",
            "replicas": replicas,
            "command": ["x"],
            "ports": [{"name": f"p{m}"} | ({"port": port} if port else {}) for m, port in enumerate(ports)],
        }
        for n, (replicas, ports) in enumerate(shape)
    ]
    raw = job(*roles)
    raw["metadata"]["uid"] = uid
    fixed = {port for _, ports in shape for port in ports if port}
    made = JobPods(raw)
    given_out: list[int] = []
    for role in made.view.spec.roles:
        free = [n for n, port in enumerate(role.ports) if port.port is None]
        for index in range(role.replicas):
            entries = made.pod(role, index)["spec"]["containers"][0].get("ports") or []
            given_out += [entries[n]["containerPort"] for n in free]
    assert len(given_out) == len(set(given_out)), "each replica has its own"
    assert not fixed & set(given_out)
    assert all(PORT_FIRST <= port < PORT_FIRST + PORT_COUNT for port in given_out)
