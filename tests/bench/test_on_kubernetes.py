"""The Kubernetes side of the benchmarks, with the real thing: manifests are accepted, runs complete, lines are whole.

kube-scheduler stands on both sides here, so that what is tested is the measuring. Figures are not judged.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from muster.bench import on_kubernetes
from muster.bench.filling import collection_path, connected, create_all, resource_of
from muster.bench.kubernetes import ControlPlane
from muster.bench.scenario import load_scenario, scenario_names
from muster.bench.sides import KubeSchedulerSide
from muster.bench.workload import generate


@pytest.mark.kubernetes
@pytest.mark.parametrize("name", scenario_names())
def test_a_real_server_accepts_every_kind_of_manifest(kubernetes: ControlPlane, name: str) -> None:
    """Dry runs, one object of each template and a few more; only namespaces and priority classes are really made."""
    workload = generate(load_scenario(name), 5, 30, 1, scheduler_name="nobody")
    added = [raw for step in workload.churn for raw in (*step.create_nodes, *step.create_pods)]

    async def check() -> None:
        async with connected(kubernetes.kubeconfig_path) as client:
            await create_all(client, [*workload.namespaces, *workload.priority_classes])
            for raw in (*workload.nodes[:2], *workload.running[:2], *workload.backlog[:5], *workload.measured[:12], *added[:4]):
                path = collection_path(resource_of(raw), raw["metadata"].get("namespace"))
                await client.request("POST", path, params=[("dryRun", "All")], body=msgspec.json.encode(raw))

    asyncio.run(check())


@pytest.mark.slow
@pytest.mark.kubernetes
@pytest.mark.parametrize("name", ["preemption", "churn"])
def test_a_pair(kubernetes: ControlPlane, name: str) -> None:
    del kubernetes  # it makes sure that the binaries are here; the benchmark starts a control plane of its own
    said: list[str] = []
    line = on_kubernetes.run(
        load_scenario(name), 40, 30, seed=1, pairs=1, say=said.append, ours=KubeSchedulerSide, theirs=KubeSchedulerSide
    )
    assert (line.scenario, line.on, line.nodes, line.pods) == (name, "kubernetes", 40, 30)
    assert line.unbound == 0
    assert line.pods_per_s > 0
    assert line.peer_pods_per_s is not None
    assert line.ratio == pytest.approx(line.pods_per_s / line.peer_pods_per_s)
    assert line.rss_mb is not None
    assert line.rss_mb > 10
    assert [text for text in said if "30 of 30 bound" in text]
