"""What use costs, at prices per resource. Pure; exact until it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

from muster.objects.amounts import EGRESS, INGRESS, resources_named
from muster.objects.kinds.muster_base import Price
from muster.quota.ledger import BITS_MS_PER_BYTE
from muster.quota.units import GB, per_unit

Prices = Mapping[str, Fraction]
"""By resource, of one resource-millisecond."""

FREE: Final[Prices] = {}


def prices_of(listed: Iterable[Price]) -> Prices:
    """A price list made ready: see `Price` for what each is the price of. A later entry for a resource stands."""
    found: dict[str, Fraction] = {}
    for price in listed:
        # As it was written, not as a binary fraction comes near to it.
        amount = Fraction(str(price.amount)) if price.amount >= 0 else Fraction(0)
        for name in resources_named(price.resource):
            found[name] = amount / (GB * BITS_MS_PER_BYTE if name in (EGRESS, INGRESS) else per_unit(name))
    return found


def cost(totals: Mapping[str, int], prices: Prices) -> Fraction:
    return sum((prices[name] * amount for name, amount in totals.items() if name in prices), Fraction(0))


def cost_per_ms(amounts: Mapping[str, int], prices: Prices) -> Fraction:
    """How fast it grows while these amounts are in use."""
    return cost(amounts, prices)
