"""How often machines may knock to join: a bucket for each address and one for all. Pure: instants are handed in.

Tokens can't be guessed; this bounds what strangers can make the server compute and write. Addresses of one IPv6 network of 64
bits are one; at most `ADDRESSES_MAX` are remembered, the least recent ones are forgotten.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

from muster.server.config import ServerLimits

ADDRESSES_MAX: Final = 4096
_MINUTE_S: Final = 60.0


class Bucket:
    """Full at first; refills within a minute."""

    __slots__ = ("_at_s", "_left", "_size")

    def __init__(self, size: float, now_s: float) -> None:
        self._size = size
        self._left = size
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """How long until there is one; 0 when there is."""
        rate = self._size / _MINUTE_S
        self._left = min(self._size, self._left + (now_s - self._at_s) * rate)
        self._at_s = now_s
        return 0.0 if self._left >= 1 else (1 - self._left) / rate

    def take(self) -> None:
        self._left -= 1


class JoinRates:
    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._all: Bucket | None = None
        self._by_address: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, address: str, now_s: float) -> float:
        """0 when the request may go on, which counts it; otherwise after how many seconds to come back."""
        if self._all is None:
            self._all = Bucket(self._limits.join_per_minute_max, now_s)
        key = _network(address)
        own = self._by_address.get(key)
        if own is None:
            own = self._by_address[key] = Bucket(self._limits.join_per_address_minute_max, now_s)
            if len(self._by_address) > ADDRESSES_MAX:
                self._by_address.popitem(last=False)
        self._by_address.move_to_end(key)
        wait_s = max(own.wait_s(now_s), self._all.wait_s(now_s))
        if not wait_s:
            own.take()
            self._all.take()
        return wait_s


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return str(getattr(found, "ipv4_mapped", None) or found)
