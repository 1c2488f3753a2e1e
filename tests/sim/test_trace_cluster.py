"""Clusters for traces, and what jobs look like on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.sim.trace_cluster import Placement, Shaping, parse_cluster, read_nodes, too_large
from muster.sim.trace_formats import TraceError, TraceJob


def job(gpu_milli: int, **more: object) -> TraceJob:
    return TraceJob(id="j", submit_s=0, run_s=1, gpu_milli=gpu_milli, **more)  # type: ignore[arg-type]


def test_nodes_times_gpus() -> None:
    cluster = parse_cluster("12x8")
    assert [node.name for node in cluster.nodes][:2] == ["node-00", "node-01"]
    assert (len(cluster.nodes), cluster.gpus, cluster.gpus_per_node_max) == (12, 96, 8)


@pytest.mark.parametrize("text", ["", "8", "0x8", "8x0", "4x", "x4", "4 x 8", "-1x8", "1e3x8", "999999x9999", "٣x8"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(TraceError, match="write NODESxGPUS"):
        parse_cluster(text)


@pytest.mark.parametrize(
    ("gpus", "placement", "pods", "expected"),
    [
        pytest.param(4, "nodes", 0, [4], id="fits a node"),
        pytest.param(8, "nodes", 0, [8], id="a whole node"),
        pytest.param(32, "nodes", 0, [8, 8, 8, 8], id="whole nodes"),
        pytest.param(12, "nodes", 0, [8, 4], id="whole nodes and a rest"),
        pytest.param(32, "counts", 0, [32], id="counted only"),
        pytest.param(4, "nodes", 4, [1, 1, 1, 1], id="its own number of pods"),
        pytest.param(4, "counts", 2, [2, 2], id="its own number of pods, counted"),
        pytest.param(0, "nodes", 0, [0], id="no GPU"),
    ],
)
def test_pods_of_a_job(gpus: int, placement: Placement, pods: int, expected: list[int]) -> None:
    one = job(gpus * 1000, pods=pods)
    specs = Shaping(parse_cluster("4x8", placement), [one]).pods(one)
    assert [spec.containers[0].resources.requests.get("nvidia.com/gpu", 0) for spec in specs] == expected


def test_equal_pods_share_a_spec() -> None:
    shaping = Shaping(parse_cluster("4x8", "nodes"), [job(16_000)])
    first, second = shaping.pods(job(16_000))
    assert first is second
    assert shaping.pods(job(8_000))[0] is first


def test_parts_of_gpus_are_counted_in_hundredths() -> None:
    whole, part = job(2000), job(460)
    shaping = Shaping(parse_cluster("1x8", "nodes"), [whole, part])
    assert shaping.nodes()[0].status.allocatable["koordinator.sh/gpu-core"] == 800
    assert shaping.pods(part)[0].containers[0].resources.requests == {"koordinator.sh/gpu-core": 46}
    assert shaping.pods(whole)[0].containers[0].resources.requests == {"koordinator.sh/gpu-core": 200}


def test_counts_is_one_node_that_has_everything() -> None:
    (node,) = Shaping(parse_cluster("48x8"), []).nodes()
    assert node.status.allocatable["nvidia.com/gpu"] == 384


def test_nodes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,32000,1024,0,\n")
    cluster = read_nodes(path, "nodes")
    assert (cluster.gpus, cluster.nodes[0].model) == (2, "P100")
    first, second = Shaping(cluster, []).nodes()
    assert first.metadata.labels["node.koordinator.sh/gpu-model"] == "P100"
    assert second.status.allocatable["cpu"] == "32000m"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("name,gpus\na,8\na,8\n", "line 3, column name: 'a' is the node of line 2", id="twice"),
        pytest.param("name,gpus\na,many\n", "line 2, column gpus: 'many'", id="no number"),
        pytest.param("name\na\n", "lacks the column gpus", id="column missing"),
        pytest.param("name,gpus,memory_mb\na,8,1\n", "line 1: column 'memory_mb' is unknown", id="column misspelled"),
        pytest.param("", "lacks the column name, gpus; it has none", id="empty"),
        pytest.param("name,gpus\na,0\n", "no node that has a GPU", id="no GPU"),
    ],
)
def test_wrong_nodes_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_nodes(path)
    assert says in str(caught.value)


def test_jobs_that_can_never_start() -> None:
    assert too_large([job(64_000)], parse_cluster("4x8")) == {"j": "asks for 64 GPUs and the cluster has 32"}
    assert not too_large([job(32_000)], parse_cluster("4x8"))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        pytest.param(job(8000), "", id="fits"),
        pytest.param(
            job(8000, pods=1, cpu_milli=97_000), "8 GPUs, 97 cores on a node, and the empty cluster has room for 0", id="cores"
        ),
        pytest.param(job(1000, memory_mib=2000), "1 GPUs, 2,000 MiB on a node", id="memory"),
        pytest.param(job(4000, pods=1, gpu_models=("T4",)), "4 GPUs of T4 on a node", id="model"),
        pytest.param(job(2000, pods=1, gpu_models=("A10", "T4")), "", id="one of two models"),
        pytest.param(job(24_000), "", id="one more node than there are, but not more GPUs"),
        pytest.param(
            job(4000, pods=4, cpu_milli=4 * 90_000),
            "4 times 1 GPUs, 90 cores on a node, and the empty cluster has room for 2",
            id="gang",
        ),
    ],
)
def test_jobs_that_no_node_could_hold(tmp_path: Path, asked: TraceJob, why: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(
        "name,gpus,cpu_milli,memory_mib,model\na,8,96000,1000,V100\nb,8,96000,1000,V100\nc,2,8000,1000,T4\nd,8,8000,1000,V100\n"
    )
    found = too_large([asked], read_nodes(path, "nodes"))
    assert (why in found["j"]) if why else not found
    assert not too_large([asked], read_nodes(path, "counts"))
