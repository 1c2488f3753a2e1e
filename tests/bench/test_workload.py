"""Generated manifests: the same for the same seed, as many as asked for, valid, and what the scenario says."""

from __future__ import annotations

from collections import Counter

import pytest

from muster.bench import workload as workloads
from muster.bench.scenario import Scenario, load_scenario, scenario_names
from muster.bench.workload import MEASURED, ROLE, Workload, as_stored, encoded
from muster.objects.quantity import Quantity
from muster.objects.status import Raw
from tests.bench.admitted import objections

NODES, PODS = 40, 130


def generate(scenario: Scenario, nodes: int, pods: int, seed: int, scheduler_name: str = "muster") -> Workload:
    return workloads.generate(scenario, nodes, pods, seed, scheduler_name=scheduler_name)


@pytest.fixture(params=scenario_names())
def scenario(request: pytest.FixtureRequest) -> Scenario:
    return load_scenario(request.param)


def everything(workload: Workload) -> list[Raw]:
    added = [raw for step in workload.churn for raw in (*step.create_nodes, *step.create_pods)]
    return [*workload.namespaces, *workload.priority_classes, *workload.nodes, *workload.running, *workload.pending, *added]


def test_the_same_seed_gives_the_same_bytes(scenario: Scenario) -> None:
    first, second = (generate(scenario, NODES, PODS, 7) for _ in range(2))
    assert encoded(everything(first)) == encoded(everything(second))
    assert first == second


def test_counts_and_names(scenario: Scenario) -> None:
    workload = generate(scenario, NODES, PODS, 7)
    assert len(workload.nodes) == NODES
    assert len(workload.measured) == PODS
    assert len(workload.running) == (NODES * scenario.running.per_node if scenario.running else 0)
    assert len(workload.backlog) == (round(scenario.backlog.share * PODS) if scenario.backlog else 0)
    keys = [(raw["kind"], raw["metadata"]["name"]) for raw in everything(workload)]
    assert len(keys) == len(set(keys))
    assert {pod["metadata"]["labels"][ROLE] for pod in workload.measured} == {MEASURED}
    assert {pod["spec"]["schedulerName"] for pod in workload.pending} == {"muster"}


def test_every_manifest_is_valid(scenario: Scenario) -> None:
    for raw in everything(generate(scenario, NODES, PODS, 7)):
        assert objections(raw) == [], raw


def test_what_runs_already_fits(scenario: Scenario) -> None:
    workload = generate(scenario, NODES, PODS, 7)
    free = {node["metadata"]["name"]: Quantity.parse(node["status"]["allocatable"]["cpu"]).milli() for node in workload.nodes}
    for pod in workload.running:
        request = Quantity.parse(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]).milli()
        free[pod["spec"]["nodeName"]] -= request
    assert min(free.values()) >= 0


def test_only_the_scheduler_name_depends_on_the_scheduler_name(scenario: Scenario) -> None:
    ours, theirs = (generate(scenario, 5, 20, 7, scheduler_name=name) for name in ("muster", "other-one"))
    assert encoded(theirs.pending) == [line.replace(b'"muster"', b'"other-one"') for line in encoded(ours.pending)]


def test_200_shapes_with_a_popular_head() -> None:
    workload = generate(load_scenario("basic"), 10, 20_000, 7)
    shapes = Counter(
        (str(pod["spec"]["containers"][0]["resources"]), str(pod["spec"].get("nodeSelector"))) for pod in workload.measured
    )
    assert len(shapes) == 200
    counts = sorted(shapes.values(), reverse=True)
    # Zipf 0.8 over 200: the first gets 1 in 10.6, the last a 69th of that.
    assert counts[0] / 20_000 == pytest.approx(1 / 10.6, rel=0.1)
    assert counts[0] / counts[-1] > 20


@pytest.mark.parametrize("size", [8, 64, 1000])
def test_gangs_have_one_shape_and_their_size(size: int) -> None:
    workload = generate(load_scenario(f"gang-{size}"), 5, 3 * size, 7)
    gangs = Counter(pod["metadata"]["annotations"]["gang.scheduling.koordinator.sh/name"] for pod in workload.measured)
    assert list(gangs.values()) == [size] * 3
    assert {pod["metadata"]["annotations"]["gang.scheduling.koordinator.sh/min-available"] for pod in workload.measured} == {
        str(size)
    }
    for gang in gangs:
        requests = {
            str(pod["spec"]["containers"][0]["resources"])
            for pod in workload.measured
            if pod["metadata"]["annotations"]["gang.scheduling.koordinator.sh/name"] == gang
        }
        assert len(requests) == 1


def test_churn_names_what_exists() -> None:
    workload = generate(load_scenario("churn"), NODES, PODS, 7)
    assert workload.churn
    running = {pod["metadata"]["name"] for pod in workload.running}
    deleted = [name for step in workload.churn for name in step.delete_pods]
    assert set(deleted) <= running
    assert len(deleted) == len(set(deleted))
    moments = [step.after_bound for step in workload.churn]
    assert moments == sorted(moments)
    assert moments[-1] < PODS


@pytest.mark.parametrize(("nodes", "pods"), [(0, 1), (1, 0), (10**9, 1), (1, 10**9)])
def test_sizes_have_limits(nodes: int, pods: int) -> None:
    with pytest.raises(ValueError, match="give from 1 to"):
        generate(load_scenario("basic"), nodes, pods, 7)


def test_stored_objects_have_what_a_server_adds() -> None:
    pods = generate(load_scenario("basic"), 1, 3, 7).measured
    stored = [as_stored(pod, number) for number, pod in enumerate(pods)]
    assert len({one["metadata"]["uid"] for one in stored}) == 3
    assert [one["metadata"]["creationTimestamp"] for one in stored] == sorted(
        one["metadata"]["creationTimestamp"] for one in stored
    )
    assert "uid" not in pods[0]["metadata"]
