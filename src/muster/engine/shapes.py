"""Shapes: pods that no plugin can tell apart share one, and what is worked out for a shape holds for all its pods.

A shape is what the pod's spec says about placing it. Labels and namespace are not part of it: they matter only to rules between
pods, which look at them when they decide. Exceptions are named in `ShapeNames`: annotations and labels that plugins decide by,
namespaces that nodes are set apart for, and queues that are bound to pools. Pure; shapes are immutable and live as long as a
pod has them.
"""

from __future__ import annotations

import msgspec
import numpy as np

from muster.engine.columns import Array
from muster.engine.facts import PodFacts, PodSpecFacts
from muster.engine.resources import Requests, ResourceTable, requests_of
from muster.engine.vectors import Vector, vector_of, widened
from muster.objects.labels import Kubernetes, Muster

_encoder = msgspec.json.Encoder()

ANNOTATIONS = (
    Muster.BANDWIDTH,
    Muster.BANDWIDTH_EGRESS,
    Muster.BANDWIDTH_INGRESS,
    Kubernetes.EGRESS_BANDWIDTH,
    Kubernetes.INGRESS_BANDWIDTH,
    "scheduling.koordinator.sh/load-estimated-scaling-factors",
    "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled",
    "scheduling.koordinator.sh/load-estimated-seconds-after-initialized",
    Muster.POOLS,
)
"""Annotations that decide about placing. A plugin's own are added by `Plugin.shape_annotations`."""
LABELS = (Muster.POOL, "koordinator.sh/priority-class", "koordinator.sh/qosClass")
"""Labels that do."""

NOTHING_ASKED = np.iinfo(np.int64).min
"""In `Shape.need`: a resource that is not asked for fits everywhere, also where it is overdrawn."""


class Shape:
    """See the module. `number` is unique within the engine's life and grows."""

    __slots__ = (
        "annotations",
        "asks",
        "height",
        "is_daemon",
        "key",
        "labels",
        "namespace",
        "need",
        "number",
        "priority",
        "queue",
        "request",
        "requests",
        "scoring",
        "spec",
    )

    def __init__(self, number: int, key: bytes, pod: PodFacts, table: ResourceTable, names: ShapeNames) -> None:
        requests = requests_of(pod)
        self.number = number
        self.key = key
        self.spec: PodSpecFacts = pod.spec
        self.requests: Requests = requests
        self.priority = pod.spec.priority or 0
        self.annotations = {a: v for a in names.annotations if (v := pod.metadata.annotations.get(a)) is not None}
        self.labels = {a: v for a in names.labels if (v := pod.metadata.labels.get(a)) is not None}
        namespace = pod.metadata.namespace
        self.namespace = namespace if namespace in names.namespaces else ""
        """Where it makes a difference: see `ShapeNames.namespaces`."""
        queue = queue_of(pod)
        self.queue: str | None = queue if queue in names.queues else None
        """The same: see `ShapeNames.queues`."""
        self.is_daemon = is_daemon(pod)
        self.request: Vector = vector_of(requests.amounts, table)
        amounts = enumerate(self.request.tolist())
        self.asks: tuple[tuple[int, int], ...] = tuple((row, amount) for row, amount in amounts if amount)
        """Rows of the resources that it asks for, in order, and how much of each."""
        self.height = self.asks[-1][0] + 1 if self.asks else 0
        """How high columns must be to have all of these rows."""
        self.need: Vector = need_of(self.request)
        self.scoring: Array = np.array([requests.scoring_cpu, requests.scoring_memory], np.int64)

    def widen(self, rows: int) -> None:
        """Make the vectors as long as the columns are high."""
        if len(self.request) < rows:
            self.request = widened(self.request, rows)
            self.need = need_of(self.request)

    def __repr__(self) -> str:
        return f"<Shape {self.number}: {dict(self.requests.amounts)}>"


def need_of(request: Array) -> Array:
    return np.where(request > 0, request, NOTHING_ASKED)


def is_daemon(pod: PodFacts) -> bool:
    return any(owner.controller and owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)


def queue_of(pod: PodFacts) -> str:
    """The queue that the pod names; empty for the default one."""
    meta = pod.metadata
    return meta.labels.get(Muster.QUEUE) or meta.annotations.get(Muster.QUEUE) or ""


class ShapeNames:
    """Which annotations and labels make shapes different."""

    def __init__(self) -> None:
        self.annotations: tuple[str, ...] = ANNOTATIONS
        self.labels: tuple[str, ...] = LABELS
        self.namespaces: set[str] = set()
        """Namespaces whose pods are of shapes of their own."""
        self.queues: set[str] = set()
        """Queues whose pods are; empty stands for pods that name none."""
        self.has_grown = False
        """Pods that waited before one was added have the shapes of others; the machine gives them their own."""

    def add(self, annotations: tuple[str, ...], labels: tuple[str, ...] = ()) -> None:
        self.annotations = tuple(dict.fromkeys((*self.annotations, *annotations)))
        self.labels = tuple(dict.fromkeys((*self.labels, *labels)))

    def set_apart(self, namespace: str) -> None:
        if namespace not in self.namespaces:
            self.namespaces.add(namespace)
            self.has_grown = True

    def set_queue_apart(self, queue: str) -> None:
        if queue not in self.queues:
            self.queues.add(queue)
            self.has_grown = True


class ShapeTable:
    """Finds the shape of a pod. Bounded: past `shapes_max` the table starts anew, which costs time and nothing else."""

    def __init__(self, table: ResourceTable, shapes_max: int = 65_536) -> None:
        self.names = ShapeNames()
        self._table = table
        self._shapes: dict[bytes, Shape] = {}
        self._number = 0
        self._shapes_max = shapes_max

    def __len__(self) -> int:
        return len(self._shapes)

    def shape_of(self, pod: PodFacts) -> Shape:
        key = self.key_of(pod)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= self._shapes_max:
                self._shapes.clear()
            self._number += 1
            shape = self._shapes[key] = Shape(self._number, key, pod, self._table, self.names)
        return shape

    def shape_of_seen(self, pod: PodFacts) -> Shape:
        """The shape of a pod of the cluster. Where it is says nothing about what it is: a pod keeps its shape as it is bound,
        and there are as many shapes as kinds of pods, not times nodes."""
        if pod.spec.node_name:
            pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))
        return self.shape_of(pod)

    def key_of(self, pod: PodFacts) -> bytes:
        spec = pod.spec
        parts: list[object] = [
            spec.containers,
            spec.node_selector,
            spec.tolerations,
            spec.priority,
            spec.scheduler_name,
        ]
        # Rare parts are added by name, so that an ordinary pod's key stays short.
        if spec.init_containers or spec.overhead or spec.resources:
            parts.append(("init", spec.init_containers, spec.overhead, spec.resources))
        if spec.affinity is not None:
            parts.append(("affinity", spec.affinity))
        if spec.topology_spread_constraints:
            parts.append(("spread", spec.topology_spread_constraints))
        if spec.volumes:
            parts.append(
                (
                    "volumes",
                    pod.metadata.namespace,
                    pod.metadata.name if any(v.ephemeral for v in spec.volumes) else "",
                    spec.volumes,
                )
            )
        if spec.node_name or spec.preemption_policy not in (None, "PreemptLowerPriority"):
            parts.append(("fixed", spec.node_name, spec.preemption_policy))
        annotations = pod.metadata.annotations
        if annotations:
            parts.extend((name, annotations[name]) for name in self.names.annotations if name in annotations)
        labels = pod.metadata.labels
        if labels:
            parts.extend((name, labels[name]) for name in self.names.labels if name in labels)
        if pod.metadata.namespace in self.names.namespaces:
            parts.append(("namespace", pod.metadata.namespace))
        if self.names.queues and (queue := queue_of(pod)) in self.names.queues:
            parts.append(("queue", queue))
        if pod.metadata.owner_references and is_daemon(pod):
            parts.append("daemon")
        return _encoder.encode(parts)
