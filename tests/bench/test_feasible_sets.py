"""The recorder of kube-scheduler's feasible sets gives the known answers of a small cluster written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.bench.extender import Extender
from muster.bench.feasible import Case, feasible_sets
from muster.bench.kubernetes import ControlPlane
from muster.objects.status import Raw

SCHEDULER = "recorded"


def node(name: str, cpu: str, **more: Any) -> Raw:
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": more, "status": status}


def pod(name: str, cpu: str, **more: Any) -> Raw:
    container = {"name": "main", "image": "example/none", "resources": {"requests": {"cpu": cpu}}}
    spec = {"schedulerName": SCHEDULER, "containers": [container], **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


CASE = Case(
    name="by-hand",
    scheduler_name=SCHEDULER,
    nodes=[
        node("large", "8"),
        node("small", "2"),
        node("tainted", "8", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]),
        node("closed", "8", unschedulable=True),
    ],
    running=[pod("standing", "1", nodeName="small")],
    pods=[
        pod("fits-both", "1"),
        pod("too-large-for-small", "1500m"),
        pod("tolerates", "4", tolerations=[{"key": "k", "operator": "Exists"}]),
        pod("named", "1", nodeSelector={"kubernetes.io/hostname": "small"}),
        pod("nowhere", "100"),
        pod("no-such-claim", "1", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}]),
    ],
)
EXPECTED = {
    "fits-both": {"large", "small"},
    "too-large-for-small": {"large"},
    "tolerates": {"large", "tainted"},
    "named": {"small"},
    "nowhere": set(),
    "no-such-claim": set(),
}


def test_an_extender_records_and_refuses() -> None:
    with Extender() as extender:
        for names in (["a", "b"], ["a", "b"]):
            args = {"Pod": {"metadata": {"name": "p", "namespace": "n"}}, "Nodes": None, "NodeNames": names}
            answer = msgspec.json.decode(extender.answer(msgspec.json.encode(args)))
            assert answer["NodeNames"] == []
            assert set(answer["FailedNodes"]) == {"a", "b"}
        assert extender.seen == {("n", "p"): frozenset({"a", "b"})}
        assert not extender.differing
        extender.answer(msgspec.json.encode({"Pod": {"metadata": {"name": "p", "namespace": "n"}}, "NodeNames": ["a"]}))
        assert extender.differing == {("n", "p")}


@pytest.mark.slow
@pytest.mark.kubernetes
def test_known_answers(kubernetes: ControlPlane, tmp_path: Path) -> None:
    """Twice in a row on a control plane of its own, where no other test's nodes count: the first run leaves nothing behind."""
    with ControlPlane(kubernetes.assets, tmp_path / "plane", controllers=False) as plane:
        for _ in range(2):
            found = feasible_sets(plane, CASE)
            assert {name: set(nodes) for (_, name), nodes in found.items()} == EXPECTED
