"""Use in the units that people write: core-hours, GiB-hours, GPU-hours, bytes moved. Pure and exact.

| resource | limit and report | price |
|---|---|---|
| `cpu` | core-hours | of a core for an hour |
| what is counted in bytes (`memory`, `ephemeral-storage`, ...) | GiB-hours | of a GiB for an hour |
| `bandwidth`, `bandwidth-egress`, `bandwidth-ingress` | bytes | of a GB moved |
| anything else (a GPU, pods) | unit-hours | of one for an hour |
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from muster.objects.amounts import EGRESS, INGRESS, RawAmount, resources_named, unit_of
from muster.objects.quantity import Quantity
from muster.quota.ledger import BITS_MS_PER_BYTE, Totals

HOUR_MS: Final = 3_600_000
GIB: Final = 1 << 30
GB: Final = 10**9


def per_unit(resource: str) -> int:
    """Resource-milliseconds in one unit of the table above."""
    if resource in (EGRESS, INGRESS):
        return BITS_MS_PER_BYTE
    unit = unit_of(resource)
    return HOUR_MS * (1000 if unit == "milli" else GIB if unit == "bytes" else 1)


def threshold(resource: str, amount: RawAmount) -> int:
    """A consumption limit in resource-milliseconds. ValueError when it can't be read or is negative."""
    quantity = Quantity.parse(amount).fraction()
    if quantity < 0:
        raise ValueError(f"{amount!r} is negative; write how much may be used")
    return int(quantity * per_unit(resources_named(resource)[0]))


def consumed(totals: Mapping[str, int], resource: str) -> int:
    """What of `totals` counts for the name in a limit: `bandwidth` is both directions together."""
    return sum(totals.get(name, 0) for name in resources_named(resource))


def shown(resource: str, amount: int) -> str:
    """Resource-milliseconds as a plain number in the unit of the table, to the thousandth; bytes are whole."""
    name = resources_named(resource)[0]
    units = Fraction(amount, per_unit(name))
    if name in (EGRESS, INGRESS):
        return str(int(units))
    thousandths = round(units * 1000)
    return f"{thousandths // 1000}.{thousandths % 1000:03d}".rstrip("0").rstrip(".")


def unit_name(resource: str) -> str:
    name = resources_named(resource)[0]
    if name in (EGRESS, INGRESS):
        return "bytes"
    unit = unit_of(name)
    return "core-hours" if unit == "milli" else "GiB-hours" if unit == "bytes" else "hours"


def reported(totals: Totals) -> dict[str, int]:
    """`totals` under the names that people use: the two directions of bandwidth as one."""
    found = {name: amount for name, amount in totals.items() if name not in (EGRESS, INGRESS) and amount}
    moved = totals.get(EGRESS, 0) + totals.get(INGRESS, 0)
    return {**found, "bandwidth": moved} if moved else found
