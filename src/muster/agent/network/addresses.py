"""Which address a pod gets, and the names and numbers that follow from it. Pure.

Everything about a pod's network follows from its address: the last 16 bits name its interface on the host's side and its
class in the trees of the uplink; the whole of it is its hardware address. So nothing has to be remembered besides.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final

import msgspec

PREFIX_MIN: Final = 16
PREFIX_MAX: Final = 30


class PodRange(msgspec.Struct, frozen=True):
    """The addresses of one node's pods. The first is the gateway."""

    network: ipaddress.IPv4Network

    @classmethod
    def parse(cls, text: str) -> PodRange:
        """ValueError says what is wrong with it."""
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise ValueError(f"{text!r} is no range of addresses such as 10.244.1.0/24: {error}") from error
        if not isinstance(network, ipaddress.IPv4Network):
            raise ValueError(f"{text!r}: pods have IPv4 addresses, such as 10.244.1.0/24")
        if not PREFIX_MIN <= network.prefixlen <= PREFIX_MAX:
            raise ValueError(f"{text!r}: the prefix is from /{PREFIX_MIN} to /{PREFIX_MAX}")
        return cls(network)

    @property
    def gateway(self) -> ipaddress.IPv4Address:
        return self.network[1]

    @property
    def pods_max(self) -> int:
        return self.network.num_addresses - 3

    @property
    def root_minor(self) -> int:
        """The number of the class above all pods: the gateway's, so no pod has it."""
        return minor(self.gateway)

    @property
    def rest_minor(self) -> int:
        """The number of the class of pods without a request: the broadcast address', so no pod has it."""
        return minor(self.network.broadcast_address)

    def next_after(self, last: int, is_taken: Callable[[ipaddress.IPv4Address], bool]) -> ipaddress.IPv4Address | None:
        """The next free address after `last` (an offset in the range), so that one that was let go is used again last."""
        for step in range(1, self.pods_max + 1):
            address = self.network[2 + (max(last, 1) - 2 + step) % self.pods_max]
            if not is_taken(address):
                return address
        return None

    def offset(self, address: ipaddress.IPv4Address) -> int:
        return int(address) - int(self.network.network_address)


def minor(address: ipaddress.IPv4Address) -> int:
    return int(address) & 0xFFFF


def hardware(address: ipaddress.IPv4Address) -> bytes:
    """A locally administered hardware address that follows from the IP address."""
    return b"\x0a\x58" + address.packed


class Names(msgspec.Struct, frozen=True):
    """Interfaces and tables of one agent, by `Layout.id`. At most 15 characters each."""

    id: str

    @property
    def prefix(self) -> str:
        return f"m{self.id}"

    @property
    def bridge(self) -> str:
        return f"{self.prefix}br"

    @property
    def queue(self) -> str:
        """The device in which what leaves by the uplink queues."""
        return f"{self.prefix}if"

    @property
    def port_prefix(self) -> str:
        return f"{self.prefix}v"

    def port(self, address: ipaddress.IPv4Address) -> str:
        """The host's end of a pod's cable."""
        return f"{self.port_prefix}{minor(address):04x}"

    @property
    def table(self) -> str:
        return f"muster-{self.id}"

    @property
    def route_metric(self) -> int:
        """Tells this agent's routes from those of others on the same machine."""
        return 0x10000 + int(self.id[:6], 16)

    @property
    def leaving_group(self) -> int:
        """The interface group of ports that are deleted together."""
        return 0x40000000 | int(self.id[:7], 16)
