"""Tables: kubectl's columns and cells, and that nothing stored can break one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.ages import INVALID
from muster.objects.catalog import CATALOG
from muster.objects.resources import Column, Resource
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.server.printers import PRINTERS
from muster.server.tables import table
from tests.counts import examples

_NOW = 1_800_000_000.0


def _ago(seconds: float) -> str:
    return format_time(_NOW - seconds)


def _row(group: str, kind: str, raw: Raw) -> dict[str, Any]:
    """Cells by column name."""
    resource = CATALOG.by_kind(group, kind)
    raw = {"metadata": {"name": "x", "creationTimestamp": _ago(90), **raw.pop("metadata", {})}, **raw}
    made = table(resource, [raw], _NOW)
    names = [column["name"] for column in made["columnDefinitions"]]
    return dict(zip(names, made["rows"][0]["cells"], strict=True))


def _pod(phase: str = "Running", containers: int = 1, **status: Any) -> Raw:
    spec = {"containers": [{"name": f"c{i}"} for i in range(containers)], "nodeName": "n1"}
    return {"spec": spec, "status": {"phase": phase, **status}}


def _running(ready: bool = True, restarts: int = 0) -> Raw:
    return {"name": "c0", "ready": ready, "restartCount": restarts, "state": {"running": {}}}


@pytest.mark.parametrize(
    ("pod", "ready", "status", "restarts"),
    [
        pytest.param(_pod("Pending"), "0/1", "Pending", "0", id="pending"),
        pytest.param(_pod(containerStatuses=[_running()]), "1/1", "Running", "0", id="running"),
        pytest.param(_pod(containerStatuses=[_running(False)]), "0/1", "Running", "0", id="not ready"),
        pytest.param(
            _pod(containerStatuses=[{"ready": False, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]),
            *("0/1", "CrashLoopBackOff", "4"),
            id="crash loop",
        ),
        pytest.param(
            _pod(
                containerStatuses=[
                    {**_running(True, 2), "lastState": {"terminated": {"finishedAt": _ago(300)}}},
                ]
            ),
            *("1/1", "Running", "2 (5m ago)"),
            id="restarted",
        ),
        pytest.param(
            _pod("Failed", containerStatuses=[{"state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]),
            "0/1",
            "Error",
            "0",
            id="error",
        ),
        pytest.param(
            _pod("Failed", containerStatuses=[{"state": {"terminated": {"exitCode": 3}}}]),
            "0/1",
            "ExitCode:3",
            "0",
            id="exit code",
        ),
        pytest.param(
            _pod("Succeeded", containerStatuses=[{"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]),
            *("0/1", "Completed", "0"),
            id="completed",
        ),
        pytest.param(_pod("Failed", reason="Evicted"), "0/1", "Evicted", "0", id="evicted"),
        pytest.param({**_pod(), "metadata": {"deletionTimestamp": _ago(1)}}, "0/1", "Terminating", "0", id="terminating"),
        pytest.param(
            {
                "spec": {"containers": [{}], "initContainers": [{"name": "i"}, {"name": "j"}]},
                "status": {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]},
            },
            *("0/1", "Init:0/2", "0"),
            id="initialising",
        ),
        pytest.param(
            _pod("Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
            *("0/1", "SchedulingGated", "0"),
            id="gated",
        ),
        pytest.param({}, "0/0", "<unknown>", "0", id="empty"),
    ],
)
def test_pods(pod: Raw, ready: str, status: str, restarts: str) -> None:
    row = _row("", "Pod", pod)
    assert (row["Ready"], row["Status"], row["Restarts"], row["Age"]) == (ready, status, restarts, "90s")


@pytest.mark.parametrize(
    ("group", "kind", "raw", "cells"),
    [
        pytest.param(
            *("", "Node"),
            {
                "metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}},
                "spec": {"unschedulable": True},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1"}},
            },
            {"Status": "Ready,SchedulingDisabled", "Roles": "control-plane", "Version": "v1", "Internal-IP": "<none>"},
            id="node",
        ),
        pytest.param(
            *("", "Service"),
            {
                "spec": {
                    "type": "NodePort",
                    "clusterIP": "10.0.0.1",
                    "ports": [{"port": 80, "nodePort": 30080}],
                    "selector": {"a": "b"},
                }
            },
            {
                "Type": "NodePort",
                "Cluster-IP": "10.0.0.1",
                "External-IP": "<none>",
                "Port(s)": "80:30080/TCP",
                "Selector": "a=b",
            },
            id="service",
        ),
        pytest.param(
            *("apps", "Deployment"),
            {
                "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}},
                "status": {"readyReplicas": 2, "updatedReplicas": 3},
            },
            {"Ready": "2/3", "Up-to-date": 3, "Available": 0, "Selector": "a=b"},
            id="deployment",
        ),
        pytest.param(
            *("batch", "Job"),
            {"spec": {"completions": 2}, "status": {"succeeded": 1, "startTime": _ago(60)}},
            {"Status": "Running", "Completions": "1/2", "Duration": "60s"},
            id="job",
        ),
        pytest.param(*("", "ConfigMap"), {"data": {"a": "1"}, "binaryData": {"b": ""}}, {"Data": 2}, id="configmap"),
        pytest.param(*("", "Secret"), {"type": "Opaque", "data": {"a": "1"}}, {"Type": "Opaque", "Data": 1}, id="secret"),
        pytest.param(
            *("", "Event"),
            {
                "type": "Warning",
                "reason": "R",
                "message": "m\n",
                "involvedObject": {"kind": "Pod", "name": "p"},
                "lastTimestamp": _ago(30),
            },
            {"Last Seen": "30s", "Type": "Warning", "Reason": "R", "Object": "pod/p", "Message": "m"},
            id="event",
        ),
        pytest.param(
            *("scheduling.k8s.io", "PriorityClass"), {"value": 5}, {"Value": 5, "Global-Default": False}, id="priority class"
        ),
    ],
)
def test_cells(group: str, kind: str, raw: Raw, cells: dict[str, Any]) -> None:
    row = _row(group, kind, raw)
    assert {key: row[key] for key in cells} == cells


def test_columns_from_a_definition() -> None:
    columns = (
        Column(name="Phase", path=".status.phase"),
        Column(name="Count", path=".spec.count", type="integer"),
        Column(name="Ready", path='.status.conditions[?(@.type=="Ready")].status'),
        Column(name="Map", path=".spec.map"),
        Column(name="Bad", path=".spec[", type="string"),
        Column(name="Since", path=".status.since", type="date"),
    )
    resource = Resource(group="g", version="v1", kind="K", plural="ks", columns=columns)
    raw = {
        "metadata": {"name": "x"},
        "spec": {"count": "no number", "map": {"a": 1}},
        "status": {"phase": "Up", "conditions": [{"type": "Ready", "status": "True"}], "since": _ago(5)},
    }
    made = table(resource, [raw, {"metadata": {"name": "y"}}], _NOW, include="None")
    assert made["rows"][0] == {"cells": ["x", "Up", "<invalid>", "True", '{"a":1}', "<invalid>", "5s"]}
    assert made["rows"][1] == {"cells": ["y", None, None, None, None, "<invalid>", "<unknown>"]}
    assert [column["type"] for column in made["columnDefinitions"]][-1] == "string"


def test_what_rows_carry() -> None:
    resource = CATALOG.by_kind("", "ConfigMap")
    raw: Raw = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {}}
    assert table(resource, [raw], _NOW, include="Object")["rows"][0]["object"] == raw
    meta = table(resource, [raw], _NOW)["rows"][0]["object"]
    assert meta == {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "x"}}


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = [
    "spec",
    "status",
    "data",
    "type",
    "subjects",
    "roleRef",
    "webhooks",
    "subsets",
    "endpoints",
    "ports",
    "value",
    "series",
    "rules",
]
_INNER = [
    "containers",
    "conditions",
    "containerStatuses",
    "initContainers",
    "replicas",
    "ports",
    "addresses",
    "template",
    "phase",
    "selector",
]
_OBJECTS = st.dictionaries(
    st.sampled_from(_FIELDS), _JUNK | st.dictionaries(st.sampled_from(_INNER), _JUNK, max_size=4), max_size=5
)


@given(_OBJECTS, st.sampled_from(sorted(PRINTERS)))
@settings(max_examples=examples(100))
def test_no_object_breaks_a_table(raw: Raw, kind: tuple[str, str]) -> None:
    resource = Resource(group=kind[0], version="v1", kind=kind[1], plural="x")
    made = table(resource, [{"metadata": {"name": "bad", "labels": 3}, **raw}, {"metadata": {"name": "good"}}], _NOW)
    place = [column["name"] for column in made["columnDefinitions"]].index("Name")
    assert made["rows"][1]["cells"][place] == "good"
    assert made["rows"][0]["cells"][place] in ("bad", INVALID)
    assert [row["object"]["metadata"]["name"] for row in made["rows"]] == ["bad", "good"]
    assert {len(row["cells"]) for row in made["rows"]} == {len(made["columnDefinitions"])}


@pytest.mark.parametrize("resource", CATALOG.all, ids=lambda r: r.qualified)
def test_every_kind_has_a_table(resource: Resource) -> None:
    made = table(resource, [{"metadata": {"name": "x", "creationTimestamp": _ago(1)}}], _NOW)
    assert len(made["rows"][0]["cells"]) == len(made["columnDefinitions"])
