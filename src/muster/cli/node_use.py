"""What each node has, has promised and is measured to use: for `muster top nodes`. Pure.

Counted by the engine, as the scheduler counts: capacity is what pods may have, requested what those have that are on the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.cli.bandwidth_use import BandwidthUse
from muster.engine.resources import CPU, EGRESS, INGRESS, MEMORY, STANDARD
from muster.objects.amounts import amount_of

ALWAYS: Final = (CPU, MEMORY, EGRESS, INGRESS)
"""Rows of what is shown of every node. Devices are shown where a node has some."""


class ResourceUse(msgspec.Struct, frozen=True, rename="camel"):
    """One resource of one node, in its own unit (thousandths of a core, bytes, bits per second, pieces); `used` is measured,
    None where nobody reports it."""

    node: str
    resource: str
    capacity: int
    requested: int
    free: int
    used: int | None = None

    @property
    def used_share(self) -> float | None:
        return None if self.used is None or not self.capacity else self.used / self.capacity


def by_node(use: BandwidthUse, names: Sequence[str] = (), *, is_all: bool = False) -> list[ResourceUse]:
    """One row for each resource of each node, or of those of these names. `is_all` adds storage and places for pods."""
    table, nodes = use.state.table, use.state.nodes
    found = []
    for slot, name in enumerate(nodes.names):
        if names and name not in names:
            continue
        metric = use.metrics.get(name)
        usage = metric.status.node_metric.node_usage.resources if metric and metric.status.node_metric else {}
        for row, resource in enumerate(table.names):
            capacity, free = int(nodes.capacity[row, slot]), int(nodes.free[row, slot])
            is_shown = row in ALWAYS or is_all if row < len(STANDARD) else capacity > 0
            if is_shown:
                used = _measured(usage, resource)
                found.append(ResourceUse(name, resource, capacity, capacity - free, max(free, 0), used))
    return found


def _measured(usage: Mapping[str, Any], resource: str) -> int | None:
    value = usage.get(resource)
    try:
        return None if value is None else amount_of(resource, value)
    except ValueError:
        return None
