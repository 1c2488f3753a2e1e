"""Random small clusters for comparing feasibility with kube-scheduler's, filter by filter. One seed, one cluster.

A case has 10 to 20 nodes of many kinds, pods that run on them, bound volumes, and pods to try. Each pod to try exercises one
or two filters (`corpus_pods.EXERCISES`), so that a difference points at its cause; its label `exercise` names them.
`recorded_cases` adds what the real kube-scheduler says. Only what Kubernetes 1.20 knows is used.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import msgspec

from muster.bench import corpus_pods
from muster.bench.extender import PodKey
from muster.bench.feasible import Case, feasible_sets
from muster.bench.kubernetes import ControlPlane
from muster.objects.status import Raw

SCHEDULER = "corpus"
NAMESPACES = ("red", "blue")
ZONE, HOST, RACK = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "rack"
GPU = "example.com/gpu"
CLAIMS_PER_NAMESPACE = 5


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A case and, for each of its pods by namespace and name, the nodes that kube-scheduler finds feasible."""

    case: Case
    expected: dict[PodKey, frozenset[str]]


def recorded_cases(plane: ControlPlane, seeds: Iterable[int], *, pods: int = 60) -> Iterator[Recorded]:
    """One after the other on a control plane that nobody else uses; each takes a few seconds."""
    for seed in seeds:
        case = make_case(seed, pods=pods)
        yield Recorded(case=case, expected=feasible_sets(plane, case))


def make_case(seed: int, *, pods: int = 60) -> Case:
    """The cluster of this seed, with `pods` pods to try."""
    chance = random.Random(f"corpus {seed}")
    nodes = [_node(chance, index) for index in range(chance.randint(10, 20))]
    names = [node["metadata"]["name"] for node in nodes]
    volumes, claims = _volumes(chance, names)
    running = [_running(chance, index, names) for index in range(2 * len(nodes))]
    return Case(
        name=f"corpus-{seed}",
        scheduler_name=SCHEDULER,
        namespaces=[{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in NAMESPACES],
        furniture=[corpus_pods.runtime_class()],
        nodes=nodes,
        volumes=volumes,
        claims=claims,
        running=_without_port_clashes(running),
        pods=[corpus_pods.pod_to_try(chance, index, names, SCHEDULER) for index in range(pods)],
    )


def _node(chance: random.Random, index: int) -> Raw:
    name = f"n{index:02d}"
    labels = {HOST: name, "kubernetes.io/os": "linux"}
    # Some nodes lack some keys: a topology of which they are no part.
    if chance.random() < 0.85:
        labels[ZONE] = chance.choice(("east", "west", "north"))
    if chance.random() < 0.6:
        labels[RACK] = chance.choice(("r1", "r2", "r3", "r4"))
    if chance.random() < 0.7:
        labels["disk"] = chance.choice(("ssd", "hdd", ""))
    if chance.random() < 0.7:
        labels["generation"] = chance.choice(("1", "2", "10", "03", "old"))
    spec: Raw = {}
    taints = _taints(chance)
    if taints:
        spec["taints"] = taints
    if chance.random() < 0.08:
        spec["unschedulable"] = True
    allocatable = {
        "cpu": chance.choice(("1", "2", "4", "8", "16", "3500m")),
        "memory": chance.choice(("1Gi", "4Gi", "16Gi", "32Gi", "4000M")),
        "ephemeral-storage": chance.choice(("10Gi", "100Gi")),
        "pods": chance.choice(("3", "8", "20", "110", "110")),
    }
    if chance.random() < 0.4:
        allocatable[GPU] = chance.choice(("0", "1", "4"))
    if chance.random() < 0.2:
        allocatable["hugepages-2Mi"] = "64Mi"
    images = [{"names": [f"example/image-{number}:1"], "sizeBytes": 1_000_000 * number} for number in (1, 2, 3)]
    status = {
        "allocatable": allocatable,
        "capacity": allocatable,
        "conditions": [{"type": "Ready", "status": "True"}],
        "images": chance.sample(images, chance.randint(0, 3)),
    }
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def _taints(chance: random.Random) -> list[Raw]:
    if chance.random() < 0.6:
        return []
    keys = chance.sample(("dedicated", "gpu", "spot"), chance.randint(1, 2))
    effects = ("NoSchedule", "NoSchedule", "PreferNoSchedule", "NoExecute")
    return [
        {"key": key, "effect": chance.choice(effects)} | ({"value": chance.choice(("a", "b"))} if chance.random() < 0.8 else {})
        for key in keys
    ]


def _running(chance: random.Random, index: int, names: list[str]) -> Raw:
    """A bound pod; mostly small, with labels that selectors look for, some with ports, some that keep others away."""
    spec: Raw = {
        "nodeName": chance.choice(names),
        "schedulerName": SCHEDULER,
        "terminationGracePeriodSeconds": 0,
        "containers": [corpus_pods.container(chance, small=True)],
    }
    if chance.random() < 0.25:
        spec["containers"][0]["ports"] = [corpus_pods.host_port(chance)]
    if chance.random() < 0.2:
        spec["initContainers"] = [corpus_pods.container(chance, small=True, name="init")]
    if chance.random() < 0.07:
        terms = [corpus_pods.pod_term(chance) for _ in range(chance.randint(1, 2))]
        spec["affinity"] = {"podAntiAffinity": {corpus_pods.REQUIRED: terms}}
    elif chance.random() < 0.15:
        # Of no effect on feasibility of others, and must stay so.
        spec["affinity"] = {"podAffinity": {corpus_pods.REQUIRED: [corpus_pods.pod_term(chance)]}}
    metadata = {"name": f"run-{index:03d}", "namespace": chance.choice(NAMESPACES), "labels": corpus_pods.labels(chance)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _without_port_clashes(pods: list[Raw]) -> list[Raw]:
    """Bound pods as a kubelet would have admitted them: the first of two that want the same port keeps it."""
    taken: set[tuple[str, int, str]] = set()
    for pod in pods:
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                key = (pod["spec"]["nodeName"], port["hostPort"], port.get("protocol", "TCP"))
                if key in taken:
                    container.pop("ports")
                    break
                taken.add(key)
    return pods


def _volumes(chance: random.Random, names: list[str]) -> tuple[list[Raw], list[Raw]]:
    """Claims bound to volumes that only some nodes reach."""
    volumes, claims = [], []
    for namespace in NAMESPACES:
        for number in range(CLAIMS_PER_NAMESPACE):
            name, volume = corpus_pods.claim_name(number), f"pv-{namespace}-{number}"
            expression = chance.choice(
                (
                    {"key": ZONE, "operator": "In", "values": chance.sample(("east", "west", "north"), 2)},
                    {"key": HOST, "operator": "In", "values": chance.sample(names, min(4, len(names)))},
                    {"key": "disk", "operator": "Exists"},
                    {"key": RACK, "operator": "NotIn", "values": ["r1"]},
                )
            )
            reach = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
            claim_ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name}
            spec: Raw = {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany"],
                "claimRef": claim_ref,
                "nfs": {"server": "nfs.example", "path": f"/{volume}"},
            }
            if chance.random() < 0.85:
                spec["nodeAffinity"] = reach
            volumes.append({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec})
            metadata = {"name": name, "namespace": namespace, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
            claim = {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
                "volumeName": volume,
                "storageClassName": "",
            }
            claims.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim})
    return volumes, claims
