"""The public openb pod and node lists: every row is read, parts of GPUs and models count, and what can't start is named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from muster.sim.trace_cluster import TraceCluster, read_nodes, too_large
from muster.sim.trace_figures import figures
from muster.sim.trace_formats import TraceJob, read_trace
from muster.sim.trace_policy import load_policy
from muster.sim.trace_simulation import Setup, simulate

OPENB = Path(__file__).parents[3] / "shared" / "data" / "openb"
pytestmark = pytest.mark.skipif(not OPENB.is_dir(), reason="the openb lists are not in ../shared/data/openb")


def pods(variant: str) -> list[TraceJob]:
    return read_trace(OPENB / f"openb_pod_list_{variant}.csv", "openb")


def test_every_row_is_read_as_it_is_meant() -> None:
    jobs = pods("default")
    assert len(jobs) == 8152
    asked = Counter("none" if not job.gpu_milli else "part" if job.gpu_milli < 1000 else "whole" for job in jobs)
    assert asked == {"part": 3078, "none": 1088, "whole": 3911 + 44 + 15 + 16}
    assert Counter(job.type for job in jobs) == {"LS": 4647, "BE": 3398, "Burstable": 100, "Guaranteed": 7}
    assert not any(job.gpu_models for job in jobs)
    by_id = {job.id: job for job in jobs}
    assert (by_id["openb-pod-0001"].gpu_milli, by_id["openb-pod-0001"].run_s) == (460, 12902960 - 427061)


def test_models_are_those_of_the_nodes_and_what_no_node_can_hold_is_named() -> None:
    jobs, cluster = pods("gpuspec33"), read_nodes(OPENB / "openb_node_list_gpu_node.csv", "nodes")
    assert (len(cluster.nodes), cluster.gpus) == (1213, 6212)
    assert sum(bool(job.gpu_models) for job in jobs) == 8152 - 5764
    assert {model for job in jobs for model in job.gpu_models} <= {node.model for node in cluster.nodes}
    assert too_large(jobs, cluster) == {
        "openb-pod-1639": "needs 1 times 8 GPUs of G2, 120 cores, 737,280 MiB on a node, and the empty cluster has room for 0"
    }


@pytest.mark.slow
def test_a_crowded_part_of_it_runs_to_its_end() -> None:
    """The last 400 pods on 13 nodes: they wait, and never is more in use than there is."""
    nodes = read_nodes(OPENB / "openb_node_list_gpu_node.csv", "nodes").nodes[::97]
    cluster = TraceCluster(nodes, "nodes")
    jobs = pods("gpuspec33")[-400:]
    impossible = too_large(jobs, cluster)
    outcome = simulate(jobs, Setup(cluster=cluster, policy=load_policy("skip-ahead")))
    found = figures(outcome, 0)
    assert found.unstarted == len(impossible)
    assert found.wait_mean_h > 0
    assert max(used for _, used in outcome.use) <= cluster.gpus
