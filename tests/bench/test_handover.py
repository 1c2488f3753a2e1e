"""What a child reads is what the parent generated, with what a server would have added."""

from __future__ import annotations

from pathlib import Path

from muster.bench.handover import Handover, write
from muster.bench.scenario import load_scenario
from muster.bench.workload import NAMESPACE, generate, uid_of


def test_round_trip(tmp_path: Path) -> None:
    workload = generate(load_scenario("churn"), 20, 100, 3, scheduler_name="s")
    write(workload, tmp_path)
    handover = Handover(tmp_path)
    for part in ("namespaces", "priority_classes", "nodes", "running", "backlog", "measured"):
        sent, received = getattr(workload, part), list(handover.raw(part))
        assert [raw.get("spec") for raw in received] == [raw.get("spec") for raw in sent]
        assert handover.count(part) == len(sent)
    pods = [*handover.raw("running"), *handover.raw("backlog"), *handover.raw("measured")]
    assert [pod["metadata"]["uid"] for pod in pods] == [uid_of("Pod", NAMESPACE, pod["metadata"]["name"]) for pod in pods]
    versions = [int(pod["metadata"]["resourceVersion"]) for pod in pods]
    assert versions == sorted(set(versions))
    assert [step.after_bound for step in handover.churn()] == [step.after_bound for step in workload.churn]
    assert all(node["metadata"]["uid"] for step in handover.churn() for node in step.create_nodes)
