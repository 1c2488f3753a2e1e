"""The cluster that a trace runs on, and what a job of the trace looks like on it: nodes and pods as the engine sees them.

With placement `nodes` the nodes are as they were given, and a job of more GPUs than any of them has becomes a gang of pods that
take whole nodes. With `counts` there is one node that has all GPUs, so nothing is ever lost to fragments.

Reads the node file, otherwise pure. What the cluster does not say (processors, memory) never runs out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from muster.engine.facts import ConditionFacts, ContainerFacts, Meta, NodeFacts, NodeStatusFacts, PodSpecFacts, Resources
from muster.objects.job_pods import DEFAULT_SCHEDULER
from muster.objects.kinds.affinity import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from muster.objects.labels import Koordinator, KoordinatorNode
from muster.sim.trace_formats import GPUS_MAX, PODS_MAX, TraceError, TraceJob, csv_rows, header_of

Placement = Literal["counts", "nodes"]
NODES_MAX = 100_000
WHOLE = Koordinator.RESOURCE_NVIDIA_GPU
PARTS = Koordinator.RESOURCE_GPU_CORE
"""Hundredths of GPUs, counted instead of whole ones when a job of the trace asks for a part of one: per node, not per card."""
_PLENTY = 10**12
_ALL = "all-gpus"


class ClusterNode(msgspec.Struct, frozen=True):
    """Processors and memory 0: as much as anybody asks for."""

    name: str
    gpus: int
    cpu_milli: int = 0
    memory_mib: int = 0
    model: str = ""


class TraceCluster(msgspec.Struct, frozen=True):
    nodes: tuple[ClusterNode, ...]
    placement: Placement = "counts"

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @property
    def gpus_per_node_max(self) -> int:
        return max(node.gpus for node in self.nodes)


def parse_cluster(text: str, placement: Placement = "counts") -> TraceCluster:
    """`48x8`: 48 nodes of 8 GPUs each."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,3})", text, re.ASCII)
    count, gpus = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= count <= NODES_MAX or count * gpus > GPUS_MAX:
        raise TraceError(
            f"cluster {text[:80]!r}: write NODESxGPUS, as in 48x8, with at most {NODES_MAX} nodes and {GPUS_MAX} GPUs in all"
        )
    width = len(str(count - 1))
    return TraceCluster(tuple(ClusterNode(f"node-{n:0{width}}", gpus) for n in range(count)), placement)


def read_nodes(path: Path, placement: Placement = "counts") -> TraceCluster:
    """A CSV with a line per node. Columns: `name` (or `sn`) and `gpus` (or `gpu`); `cpu_milli`, `memory_mib` and `model` where
    known. Any other is an error, so that a misspelled one does not make a node that never runs out."""
    names = header_of(path)
    name, gpu = ("sn" if "sn" in names else "name"), ("gpu" if "gpu" in names else "gpus")
    nodes: list[ClusterNode] = []
    lines: dict[str, int] = {}
    for row in csv_rows(path, (name, gpu), ("cpu_milli", "memory_mib", "model")):
        if len(nodes) >= NODES_MAX:
            raise TraceError(f"{path}, line {row.line}: more than {NODES_MAX} nodes; leave some out")
        node = ClusterNode(
            row.text(name, needed=True),
            row.whole(gpu, 0, 10_000),
            row.whole("cpu_milli", 0, 10**9, 0),
            row.whole("memory_mib", 0, 10**9, 0),
            row.text("model"),
        )
        if node.name in lines:
            row.fail(name, f"is the node of line {lines[node.name]} already; names are unique")
        lines[node.name] = row.line
        nodes.append(node)
    if not any(node.gpus for node in nodes):
        raise TraceError(f"{path}: holds no node that has a GPU, so the column {gpu} of at least one must be above 0")
    return TraceCluster(tuple(nodes), placement)


# -- as the engine sees it -----------------------------------------------------------------------------------------------------


class Shaping:
    """Makes nodes and pods of a cluster and the jobs of one trace. Equal pods share one spec, for speed."""

    def __init__(self, cluster: TraceCluster, jobs: Sequence[TraceJob], scheduler: str = DEFAULT_SCHEDULER) -> None:
        """`scheduler`: the profile that places the pods."""
        self._cluster, self._scheduler = cluster, scheduler
        self.counts_parts = any(job.gpu_milli % 1000 for job in jobs)
        self.resource = PARTS if self.counts_parts else WHOLE
        self._specs: dict[tuple[int, int, int, tuple[str, ...]], PodSpecFacts] = {}

    def nodes(self) -> list[NodeFacts]:
        nodes = self._cluster.nodes
        if self._cluster.placement == "nodes":
            return [self._node(node) for node in nodes]
        cpu_milli = 0 if any(not node.cpu_milli for node in nodes) else sum(node.cpu_milli for node in nodes)
        memory_mib = 0 if any(not node.memory_mib for node in nodes) else sum(node.memory_mib for node in nodes)
        return [self._node(ClusterNode(_ALL, self._cluster.gpus, cpu_milli, memory_mib))]

    def pods(self, job: TraceJob) -> tuple[PodSpecFacts, ...]:
        """The specs of the job's pods."""
        shares = shares_of(job, self._cluster)
        count = len(shares)
        models = job.gpu_models if self._cluster.placement == "nodes" else ()
        return tuple(self._spec(gpu, -(-job.cpu_milli // count), -(-job.memory_mib // count), models) for gpu in shares)

    def _node(self, node: ClusterNode) -> NodeFacts:
        gpus = node.gpus * 100 if self.counts_parts else node.gpus
        amounts: dict[str, str | int | float] = {
            "cpu": f"{node.cpu_milli}m" if node.cpu_milli else str(_PLENTY),
            "memory": f"{node.memory_mib}Mi" if node.memory_mib else str(_PLENTY * 1000),
            "pods": 1_000_000,
            self.resource: gpus,
        }
        labels = {"kubernetes.io/hostname": node.name}
        if node.model:
            labels[KoordinatorNode.GPU_MODEL] = node.model
        return NodeFacts(
            metadata=Meta(name=node.name, uid=f"node-{node.name}", labels=labels),
            status=NodeStatusFacts(allocatable=amounts, conditions=[ConditionFacts(type="Ready", status="True")]),
        )

    def _spec(self, gpu_milli: int, cpu_milli: int, memory_mib: int, models: tuple[str, ...]) -> PodSpecFacts:
        key = (gpu_milli, cpu_milli, memory_mib, models)
        spec = self._specs.get(key)
        if spec is None:
            gpus = -(-gpu_milli // 10) if self.counts_parts else gpu_milli // 1000
            requests: dict[str, str | int | float] = {self.resource: gpus} if gpus else {}
            if cpu_milli:
                requests["cpu"] = f"{cpu_milli}m"
            if memory_mib:
                requests["memory"] = f"{memory_mib}Mi"
            spec = self._specs[key] = PodSpecFacts(
                containers=[ContainerFacts(image="trace", resources=Resources(requests=requests))],
                affinity=_one_of(models) if models else None,
                scheduler_name=self._scheduler,
            )
        return spec


def shares_of(job: TraceJob, cluster: TraceCluster) -> list[int]:
    """Thousandths of GPUs of each of the job's pods."""
    if job.pods > 1:
        return [-(-job.gpu_milli // job.pods)] * job.pods
    if cluster.placement == "nodes" and job.pods == 0:
        largest = 1000 * cluster.gpus_per_node_max
        full, rest = divmod(job.gpu_milli, largest)
        return [largest] * full + ([rest] if rest or not full else [])
    return [job.gpu_milli]


def _one_of(models: Sequence[str]) -> Affinity:
    rule = NodeSelectorRequirement(key=KoordinatorNode.GPU_MODEL, operator="In", values=list(models))
    selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[rule])])
    return Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=selector))


def too_large(jobs: Sequence[TraceJob], cluster: TraceCluster) -> Mapping[str, str]:
    """Jobs that could never start here, with the reason, by id."""
    total_milli = 1000 * cluster.gpus
    room = _Room(cluster)
    found: dict[str, str] = {}
    for job in jobs:
        if job.gpu_milli > total_milli:
            found[job.id] = f"asks for {job.gpus:g} GPUs and the cluster has {cluster.gpus}"
        elif cluster.placement == "nodes" and (why := room.lacking(job)):
            found[job.id] = why
    return found


class _Room:
    """What an empty cluster could hold, by nodes."""

    def __init__(self, cluster: TraceCluster) -> None:
        self._cluster = cluster
        plenty = np.int64(_PLENTY)
        self._gpu = np.array([1000 * node.gpus for node in cluster.nodes], np.int64)
        self._cpu = np.array([node.cpu_milli or plenty for node in cluster.nodes], np.int64)
        self._memory = np.array([node.memory_mib or plenty for node in cluster.nodes], np.int64)
        self._model = np.array([node.model for node in cluster.nodes])
        self._known: dict[tuple[int, int, int, tuple[str, ...]], int] = {}

    def lacking(self, job: TraceJob) -> str:
        """What there is not for it; "" when it could start."""
        shares = shares_of(job, self._cluster)
        cpu_milli, memory_mib = -(-job.cpu_milli // len(shares)), -(-job.memory_mib // len(shares))
        for gpu_milli in sorted(set(shares), reverse=True):
            wanted, fits = shares.count(gpu_milli), self._fits(gpu_milli, cpu_milli, memory_mib, job.gpu_models)
            if fits < wanted:
                asks = [f"{gpu_milli / 1000:g} GPUs{' of ' + ' or '.join(job.gpu_models) if job.gpu_models else ''}"]
                asks += [f"{cpu_milli / 1000:g} cores"] if cpu_milli else []
                asks += [f"{memory_mib:,} MiB"] if memory_mib else []
                return f"needs {wanted} times {', '.join(asks)} on a node, and the empty cluster has room for {fits}"
        return ""

    def _fits(self, gpu_milli: int, cpu_milli: int, memory_mib: int, models: tuple[str, ...]) -> int:
        key = (gpu_milli, cpu_milli, memory_mib, models)
        if key not in self._known:
            count = np.full(len(self._gpu), PODS_MAX, np.int64)
            for have, want in ((self._gpu, gpu_milli), (self._cpu, cpu_milli), (self._memory, memory_mib)):
                if want:
                    count = np.minimum(count, have // want)
            self._known[key] = int(count[np.isin(self._model, models)].sum() if models else count.sum())
        return self._known[key]
