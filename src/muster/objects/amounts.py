"""Amounts of resources as whole numbers, in the units that the scheduler counts in.

Thousandths of a core for `cpu`, bits per second for the two directions of bandwidth, units (bytes, devices, pods) for the rest.
The same for requests, capacities, limits and what was used: sums of them are exact.

Pure. ValueError names the value and what to write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.objects.bandwidth_units import format_bandwidth, mbps_to_bps, parse_bandwidth
from muster.objects.labels import Kuscia, Muster
from muster.objects.quantity import Quantity
from muster.objects.reasons import Unit

AMOUNT_MAX: Final = 2**53
"""Larger amounts are cut to this (8 PiB of memory, 9 Pbps): sums over hundreds of pods still fit into the columns, and shares
are worked out exactly."""
EGRESS: Final = "bandwidth-egress"
INGRESS: Final = "bandwidth-ingress"

RawAmount = str | int | float


def amount_of(name: str, value: RawAmount) -> int:
    """`value` in the unit of its resource, rounded up. ValueError when it is no quantity."""
    quantity = Quantity.parse(value)
    return min(max(quantity.milli() if name == "cpu" else quantity.value(), 0), AMOUNT_MAX)


def unit_of(resource: str) -> Unit:
    """What amounts of the resource are counted in."""
    if resource == "cpu":
        return "milli"
    if resource in (EGRESS, INGRESS):
        return "bps"
    return "bytes" if resource == "ephemeral-storage" or resource.startswith("hugepages-") or "memory" in resource else "count"


def resources_named(name: str) -> tuple[str, ...]:
    """The resources that a name in a limit stands for: `bandwidth` is both directions."""
    if name in (Muster.RESOURCE_BANDWIDTH, Kuscia.RESOURCE_BANDWIDTH):
        return EGRESS, INGRESS
    return {Muster.RESOURCE_BANDWIDTH_EGRESS: (EGRESS,), Muster.RESOURCE_BANDWIDTH_INGRESS: (INGRESS,)}.get(name, (name,))


def limit_amounts(name: str, value: RawAmount) -> dict[str, int]:
    """What one entry of a table of limits says: amounts by resource. ValueError when it can't be read."""
    found = resources_named(name)
    if name == Kuscia.RESOURCE_BANDWIDTH:
        amount = mbps_to_bps(value)
    elif found[0] in (EGRESS, INGRESS):
        amount = parse_bandwidth(value)
    else:
        amount = amount_of(name, value)
    return dict.fromkeys(found, min(amount, AMOUNT_MAX))


def read_limits(limits: Mapping[str, RawAmount], where: str) -> tuple[dict[str, int], list[str]]:
    """A table of limits, and what of it could not be read. Of two for one resource the lower holds; what can't be read is a
    limit of nothing, since it was meant as a limit."""
    amounts: dict[str, int] = {}
    problems: list[str] = []
    for name, value in limits.items():
        try:
            found = limit_amounts(name, value)
        except ValueError as error:
            problems.append(f"{where}[{name}]: {error}")
            found = dict.fromkeys(resources_named(name), 0)
        for resource, amount in found.items():
            amounts[resource] = min(amounts.get(resource, AMOUNT_MAX), amount)
    return amounts, problems


def amount_text(resource: str, amount: int) -> str:
    """An amount as objects write it: `1500m`, `2`, `3Gi`, `200Mbps`; exact, so that reading it gives `amount` back."""
    unit = unit_of(resource)
    if unit == "milli":
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if unit == "bps":
        return format_bandwidth(amount)
    if unit == "bytes" and amount:
        for power, suffix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
            if amount % 1024**power == 0:
                return f"{amount // 1024**power}{suffix}"
    return str(amount)
