"""Resources as rows: which row of the columns belongs to which resource, and what a pod asks for in those rows.

Rows are whole numbers: thousandths of a core for CPU, bits per second for the two directions of bandwidth, units (bytes,
devices, pods) for the rest. A resource that nobody has seen yet gets the next row when it is first seen.

Pure. A table only grows, so that a row means the same for as long as the engine lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from muster.engine.facts import PodFacts
from muster.objects.amounts import AMOUNT_MAX, amount_of, unit_of
from muster.objects.bandwidth import pod_bandwidth
from muster.objects.labels import Kuscia
from muster.objects.reasons import Reason, Unit

CPU: Final = 0
MEMORY: Final = 1
EPHEMERAL_STORAGE: Final = 2
PODS: Final = 3
EGRESS: Final = 4
INGRESS: Final = 5

STANDARD: Final = ("cpu", "memory", "ephemeral-storage", "pods", "bandwidth-egress", "bandwidth-ingress")
RESOURCES_MAX: Final = 256
ASKED_MAX: Final = 128
"""So many of them, at most, because a pod asked: whatever pods ask for, rows are left for what nodes really have."""
OTHER: Final = "other resources"
"""The row of all that has none of its own. No node ever has any of it."""

DEFAULT_CPU_MILLI: Final = 100
DEFAULT_MEMORY_BYTES: Final = 200 * 1024 * 1024
"""What scoring counts for a container that asks for none, as kube-scheduler does."""

_REASONS: Final = {
    "cpu": Reason.CPU_INSUFFICIENT,
    "memory": Reason.MEMORY_INSUFFICIENT,
    "ephemeral-storage": Reason.EPHEMERAL_STORAGE_INSUFFICIENT,
    "pods": Reason.POD_SLOTS_INSUFFICIENT,
    "bandwidth-egress": Reason.BANDWIDTH_INSUFFICIENT,
    "bandwidth-ingress": Reason.BANDWIDTH_INSUFFICIENT,
    "nvidia.com/gpu": Reason.GPU_INSUFFICIENT,
    "amd.com/gpu": Reason.GPU_INSUFFICIENT,
    "koordinator.sh/gpu": Reason.GPU_INSUFFICIENT,
    "koordinator.sh/gpu-core": Reason.GPU_INSUFFICIENT,
    "koordinator.sh/gpu-memory": Reason.GPU_MEMORY_INSUFFICIENT,
    "koordinator.sh/gpu-memory-ratio": Reason.GPU_MEMORY_INSUFFICIENT,
    "kubernetes.io/batch-cpu": Reason.BATCH_RESOURCE_INSUFFICIENT,
    "kubernetes.io/batch-memory": Reason.BATCH_RESOURCE_INSUFFICIENT,
    "kubernetes.io/mid-cpu": Reason.BATCH_RESOURCE_INSUFFICIENT,
    "kubernetes.io/mid-memory": Reason.BATCH_RESOURCE_INSUFFICIENT,
}


class ResourceTable:
    """Names and rows of the resources seen so far."""

    def __init__(self) -> None:
        self.names: list[str] = list(STANDARD)
        self.rows: dict[str, int] = {name: row for row, name in enumerate(STANDARD)}

    def __len__(self) -> int:
        return len(self.names)

    def row(self, name: str) -> int:
        """The row of `name`, made if it is new. Past RESOURCES_MAX every further name is refused with ValueError."""
        row = self.rows.get(name)
        if row is None:
            if len(self.names) >= RESOURCES_MAX:
                raise ValueError(f"resource {name!r}: more than {RESOURCES_MAX} different resources; remove unused ones")
            row = self.rows[name] = len(self.names)
            self.names.append(name)
        return row

    def row_asked(self, name: str) -> int:
        """The row of something that a pod asks for: past ASKED_MAX, a new name counts as OTHER, which no node has."""
        is_new = name not in self.rows and len(self.names) >= ASKED_MAX
        if is_new and OTHER not in self.rows:
            # Kept free beyond the rest, so that it always finds a place.
            self.rows[OTHER] = len(self.names)
            self.names.append(OTHER)
        return self.rows[OTHER] if is_new else self.row(name)

    def reason(self, row: int) -> Reason:
        return _REASONS.get(self.names[row], Reason.EXTENDED_RESOURCE_INSUFFICIENT)

    def unit(self, row: int) -> Unit:
        return unit_of(self.names[row])


class Requests(msgspec.Struct, frozen=True):
    """What a pod asks for: amounts by resource name, what scoring counts, and what could not be read."""

    amounts: Mapping[str, int]
    scoring_cpu: int
    scoring_memory: int
    limits: Mapping[str, int]
    problems: tuple[str, ...] = ()


def requests_of(pod: PodFacts) -> Requests:
    """Kubernetes' sum: containers together, or one init container if that is more, sidecars beside both; then overhead.

    Bandwidth comes out of it as the two rows `bandwidth-egress` and `bandwidth-ingress`, whichever way it was asked for.
    """
    problems: list[str] = []
    running, limits = _Sum(problems), _Sum(problems)
    for index, container in enumerate(pod.spec.containers):
        where = f"spec.containers[{index}].resources"
        running.add(container.resources.requests, f"{where}.requests")
        running.add_defaults(container.resources.requests)
        limits.add(container.resources.limits, f"{where}.limits")
    peak: dict[str, int] = {}
    sidecars = _Sum(problems)
    for index, container in enumerate(pod.spec.init_containers):
        where = f"spec.initContainers[{index}].resources.requests"
        if container.restart_policy == "Always":
            sidecars.add(container.resources.requests, where)
            sidecars.add_defaults(container.resources.requests)
            started = sidecars.amounts
        else:
            alone = _Sum(problems)
            alone.add(container.resources.requests, where)
            alone.add_defaults(container.resources.requests)
            started = {
                name: alone.amounts.get(name, 0) + sidecars.amounts.get(name, 0)
                for name in {**alone.amounts, **sidecars.amounts}
            }
        for name, amount in started.items():
            peak[name] = max(peak.get(name, 0), amount)
    for name, amount in sidecars.amounts.items():
        running.amounts[name] = running.amounts.get(name, 0) + amount
    for name, amount in peak.items():
        running.amounts[name] = max(running.amounts.get(name, 0), amount)
    if pod.spec.overhead:
        running.add(pod.spec.overhead, "spec.overhead", also_scoring=True)
    amounts = running.amounts
    scoring_cpu, scoring_memory = amounts.pop(_SCORING_CPU, 0), amounts.pop(_SCORING_MEMORY, 0)
    amounts["pods"] = 1
    _take_bandwidth(pod, amounts, limits.amounts, problems)
    return Requests(amounts, min(scoring_cpu, AMOUNT_MAX), min(scoring_memory, AMOUNT_MAX), limits.amounts, tuple(problems))


_SCORING_CPU: Final = "\0cpu"
_SCORING_MEMORY: Final = "\0memory"
"""Rows that exist only while summing: the same rules apply to them, defaults included."""


class _Sum:
    def __init__(self, problems: list[str]) -> None:
        self.amounts: dict[str, int] = {}
        self._problems = problems

    def add(self, quantities: Mapping[str, str | int | float], where: str, *, also_scoring: bool = False) -> None:
        for name, value in quantities.items():
            try:
                amount = amount_of(name, value)
            except ValueError as error:
                self._problems.append(f"{where}.{name}: {error}")
                continue
            self.amounts[name] = min(self.amounts.get(name, 0) + amount, AMOUNT_MAX)
            if also_scoring and name in ("cpu", "memory"):
                hidden = _SCORING_CPU if name == "cpu" else _SCORING_MEMORY
                self.amounts[hidden] = self.amounts.get(hidden, 0) + amount

    def add_defaults(self, quantities: Mapping[str, str | int | float]) -> None:
        for name, hidden, default in (
            ("cpu", _SCORING_CPU, DEFAULT_CPU_MILLI),
            ("memory", _SCORING_MEMORY, DEFAULT_MEMORY_BYTES),
        ):
            amount = default
            if name in quantities:
                try:
                    amount = amount_of(name, quantities[name])
                except ValueError:
                    amount = default
            self.amounts[hidden] = self.amounts.get(hidden, 0) + amount


def _take_bandwidth(pod: PodFacts, amounts: dict[str, int], limits: dict[str, int], problems: list[str]) -> None:
    annotations = pod.metadata.annotations
    mbps = amounts.pop(Kuscia.RESOURCE_BANDWIDTH, 0)
    limits.pop(Kuscia.RESOURCE_BANDWIDTH, None)
    if not mbps and not annotations:
        return
    found = pod_bandwidth(annotations, {Kuscia.RESOURCE_BANDWIDTH: mbps} if mbps else {}, {})
    problems.extend(map(str, found.problems))
    if found.request.egress_bps:
        amounts["bandwidth-egress"] = min(found.request.egress_bps, AMOUNT_MAX)
    if found.request.ingress_bps:
        amounts["bandwidth-ingress"] = min(found.request.ingress_bps, AMOUNT_MAX)
