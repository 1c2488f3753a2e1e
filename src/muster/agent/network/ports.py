"""A pod's port as the kernel holds it: what its alias says. Pure."""

from __future__ import annotations

import ipaddress

import msgspec

from muster.agent.contracts import NetworkWant
from muster.agent.layout import safe_part
from muster.agent.network.links import Link


class Port(msgspec.Struct, frozen=True, kw_only=True):
    want: NetworkWant
    address: ipaddress.IPv4Address
    name: str
    index: int = 0

    @property
    def alias(self) -> str:
        """Uid, address, and the four figures in the order of `NetworkWant`; `-` is no limit."""
        want = self.want
        limits = ("-" if bps is None else str(bps) for bps in (want.egress_limit_bps, want.ingress_limit_bps))
        return " ".join([want.uid, str(self.address), *limits, str(want.egress_request_bps), str(want.ingress_request_bps)])


def read_port(link: Link) -> Port | None:
    """None: it was never finished, or is not what this agent writes."""
    words = link.alias.split(" ")
    if len(words) != 6:
        return None
    try:
        limits = [None if word == "-" else int(word) for word in words[2:4]]
        want = NetworkWant(
            uid=safe_part(words[0]),
            egress_limit_bps=limits[0],
            ingress_limit_bps=limits[1],
            egress_request_bps=int(words[4]),
            ingress_request_bps=int(words[5]),
        )
        return Port(want=want, address=ipaddress.IPv4Address(words[1]), name=link.name, index=link.index)
    except ValueError:
        return None
