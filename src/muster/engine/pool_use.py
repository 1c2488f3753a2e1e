"""What a pool of nodes has, what of it is promised and measured, and who uses it: read from the engine's state.

Pure; nothing is changed. Amounts are in the engine's units, by resource. Called on the engine's thread between two steps, or on
an engine that was filled from objects only to be asked this (`muster pool`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock
from muster.engine.facts import NodeFacts, PoolFacts
from muster.engine.plugins.node_pool import pool_mask
from muster.engine.pods import PodRecord
from muster.engine.resources import STANDARD
from muster.engine.state import State
from muster.engine.work import Work, work_of
from muster.objects.amounts import amount_of, amount_text
from muster.objects.labels import KoordinatorNode

GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu", "koordinator.sh/gpu", "dcu.com/gpu", "huawei.com/npu-core")
"""Devices that nodes offer as plain resources, by the piece."""
_MODEL_LABELS: Final = (KoordinatorNode.GPU_MODEL, "nvidia.com/gpu.product")
_MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""Of one GPU of the node, in MiB."""
_SHOWN: Final = frozenset(STANDARD)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Of one node, or of several together. `used` is measured, and lacks what nobody reports."""

    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    requested: Mapping[str, int]
    used: Mapping[str, int]


class PoolUse(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[str, ...]
    ready: int
    totals: Totals


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod holds, and for whom."""

    node: str
    namespace: str
    pod: str
    unit: str
    work: Work
    request: Mapping[str, int]


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one kind."""

    type: str
    model: str = ""
    memory: str = ""
    """Of one device."""
    total: int
    used: int


def pool_slots(state: State, pool: PoolFacts) -> list[int]:
    slots: list[int] = np.flatnonzero(pool_mask(pool, NodeBlock(state.nodes))).tolist()
    return slots


def pool_use(state: State, slots: Sequence[int]) -> PoolUse:
    names = state.nodes.names
    ready = sum(is_ready(state.nodes.facts[slot]) for slot in slots)
    return PoolUse(nodes=tuple(names[slot] for slot in slots), ready=ready, totals=totals_of(state, slots))


def totals_of(state: State, slots: Sequence[int]) -> Totals:
    """Of these nodes together."""
    nodes, index = state.nodes, np.asarray(slots, np.intp)
    allocatable, free = nodes.capacity[:, index].sum(axis=1), nodes.free[:, index].sum(axis=1)
    names = state.table.names[: len(allocatable)]
    capacity: dict[str, int] = {}
    used: dict[str, int] = {}
    for slot in slots:
        _add(capacity, nodes.facts[slot].status.capacity)
        metric = state.metrics.get(nodes.names[slot])
        if metric is not None and metric.status.node_metric is not None:
            _add(used, metric.status.node_metric.node_usage.resources)
    return Totals(
        capacity=capacity,
        allocatable={name: int(n) for name, n in zip(names, allocatable.tolist(), strict=True) if n or name in _SHOWN},
        requested={name: int(n) for name, n in zip(names, (allocatable - free).tolist(), strict=True) if n},
        used=used,
    )


def _add(sums: dict[str, int], more: Mapping[str, object]) -> None:
    for name, value in more.items():
        try:
            sums[name] = sums.get(name, 0) + amount_of(name, str(value))
        except ValueError:
            continue  # said by the node's own problems


def uses(state: State, nodes: Iterable[str]) -> Iterator[Use]:
    """What the pods on these nodes hold, by node, then pod."""
    wanted = set(nodes)
    on_them = [pod for pod in state.pods.values() if pod.node in wanted]
    for pod in sorted(on_them, key=lambda pod: (pod.node, pod.key)):
        yield Use(
            node=pod.node,
            namespace=pod.namespace,
            pod=pod.name,
            unit=pod.unit,
            work=work_of(pod.facts),
            request=request_of(state, pod),
        )


def request_of(state: State, pod: PodRecord) -> dict[str, int]:
    return {state.table.names[row]: int(amount) for row, amount in enumerate(pod.request.tolist()) if amount}


def is_ready(node: NodeFacts) -> bool:
    """Whether it says that it can take pods, and nobody has closed it."""
    conditions = {condition.type: condition.status for condition in node.status.conditions}
    return conditions.get("Ready", "True") == "True" and not node.spec.unschedulable


def plain_devices(state: State, slots: Iterable[int]) -> list[Devices]:
    """Devices that these nodes offer as plain resources, one entry for each kind, model and memory."""
    found: dict[tuple[str, str, str], list[int]] = {}
    nodes = state.nodes
    for slot in slots:
        labels = nodes.facts[slot].metadata.labels
        model = next((labels[label] for label in _MODEL_LABELS if labels.get(label)), "")
        mib = labels.get(_MEMORY_LABEL, "")
        memory = amount_text("memory", int(mib) << 20) if mib.isascii() and mib.isdecimal() and len(mib) < 10 else ""
        for resource in GPUS:
            row = state.table.rows.get(resource)
            if row is None or row >= len(nodes.capacity) or not nodes.capacity[row, slot]:
                continue
            total = int(nodes.capacity[row, slot])
            sums = found.setdefault((resource, model, memory), [0, 0])
            sums[0] += total
            sums[1] += total - int(nodes.free[row, slot])
    return [Devices(type=t, model=m, memory=x, total=n[0], used=n[1]) for (t, m, x), n in sorted(found.items())]
