"""Interfaces, addresses, routes and neighbours as messages to the kernel, and as what it answers. Pure.

Interfaces are named by name or by index: `Link` is what is known about one.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from typing import Final

import msgspec

from muster.agent.network.netlink import (
    CREATE,
    EXCLUSIVE,
    REPLACE,
    Message,
    attribute,
    attributes,
    nested,
    string,
    text,
    u8,
    u32,
)

GROUP: Final = 0x6D757374
"""The interface group of every agent's bridge, by which agents of one machine know each other's."""
ROUTE_PROTOCOL: Final = 186
"""Marks routes as made by an agent."""

_UP: Final = 1
_NEWLINK, _DELLINK, _GETLINK, _SETLINK = 16, 17, 18, 19
_NEWADDR, _DELADDR, _GETADDR = 20, 21, 22
_NEWROUTE, _DELROUTE, _GETROUTE = 24, 25, 26
_NEWNEIGH, _DELNEIGH = 28, 29
GET_LINK: Final = _GETLINK
GET_ADDRESS: Final = _GETADDR
GET_ROUTE: Final = _GETROUTE

_IFINFO: Final = struct.Struct("=BxHiII")
_IFADDR: Final = struct.Struct("=BBBBI")
_RTMSG: Final = struct.Struct("=BBBBBBBBI")
_NDMSG: Final = struct.Struct("=BxxxiHBB")
_ADDRESS, _IFNAME, _MTU, _MASTER, _TXQLEN, _LINKINFO, _ALIAS = 1, 3, 4, 10, 13, 18, 20
_STATS64, _AF_SPEC, _GROUP, _NETNS_FD, _EXT_MASK, _TX_QUEUES, _RX_QUEUES = 23, 26, 27, 28, 29, 31, 32
_GSO_MAX_SIZE: Final = 41
_SKIP_STATS: Final = 8
_MAIN: Final = 254
_ONLINK: Final = 4
_PERMANENT: Final = 0x80

ALIAS_BYTES_MAX: Final = 255
LUMP_BYTES: Final = 65_536
"""Of an interface for which nothing else was said."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    name: str
    alias: str = ""
    group: int = 0
    master: int = 0
    is_up: bool = False
    kind: str = ""
    mtu: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    """By this interface: what its other end has received."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    to: ipaddress.IPv4Network
    via: str = ""
    oif: int = 0
    metric: int = 0
    protocol: int = 0


def read_link(body: bytes) -> Link:
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    found = attributes(body[_IFINFO.size :])
    stats = found.get(_STATS64, b"")
    received, sent = struct.unpack_from("=QQ", stats, 16) if len(stats) >= 32 else (0, 0)
    info = attributes(found.get(_LINKINFO, b""))
    return Link(
        index=index,
        name=string(found.get(_IFNAME)),
        alias=string(found.get(_ALIAS)),
        group=_number(found.get(_GROUP)),
        master=_number(found.get(_MASTER)),
        is_up=bool(flags & _UP),
        kind=string(info.get(1)),
        mtu=_number(found.get(_MTU)),
        received_bytes=received,
        sent_bytes=sent,
    )


def index_of(body: bytes) -> int:
    """The index alone of an answer to `get_link`."""
    return int(_IFINFO.unpack_from(body)[2])


def _number(data: bytes | None) -> int:
    return int(struct.unpack_from("=I", data)[0]) if data and len(data) >= 4 else 0


def _link(index: int = 0, *, is_up: bool = False) -> bytes:
    flags = _UP if is_up else 0
    return _IFINFO.pack(0, 0, index, flags, flags)


_NO_IPV6: Final = nested(_AF_SPEC, nested(socket.AF_INET6, u8(8, 1)))
"""No link-local address is made when the interface comes up."""


def list_links(*, with_counters: bool = False) -> bytes:
    """The body of a dump request."""
    return _link() + (b"" if with_counters else u32(_EXT_MASK, _SKIP_STATS))


def get_link(name: str, *fine: int) -> Message:
    return Message(_GETLINK, 0, _link() + text(_IFNAME, name), f"interface {name}", fine)


def add_bridge(name: str, hardware: bytes, mtu: int) -> Message:
    settings = nested(2, u32(1, 0), u32(5, 0), u8(23, 0))  # no delay, no spanning tree, no snooping
    body = _link() + text(_IFNAME, name) + attribute(_ADDRESS, hardware) + u32(_MTU, mtu) + u32(_GROUP, GROUP)
    return Message(
        _NEWLINK, CREATE | EXCLUSIVE, body + nested(_LINKINFO, text(1, "bridge"), settings), f"bridge {name}", (errno.EEXIST,)
    )


def add_ifb(name: str) -> Message:
    body = _link() + text(_IFNAME, name) + u32(_TXQLEN, 1000) + nested(_LINKINFO, text(1, "ifb"))
    return Message(_NEWLINK, CREATE | EXCLUSIVE, body, f"device {name} of kind ifb", (errno.EEXIST,))


def add_cable(name: str, bridge: int, hardware: bytes, mtu: int, netns_fd: int) -> Message:
    """One end here, in the bridge; the other is `eth0` in the namespace, made there and nowhere else."""
    common = u32(_MTU, mtu) + u32(_TX_QUEUES, 1) + u32(_RX_QUEUES, 1)
    peer = _link() + text(_IFNAME, "eth0") + attribute(_ADDRESS, hardware) + u32(_NETNS_FD, netns_fd) + common
    info = nested(_LINKINFO, text(1, "veth"), nested(2, nested(1, peer)))
    body = _link() + text(_IFNAME, name) + u32(_MASTER, bridge) + common + info
    return Message(_NEWLINK, CREATE | EXCLUSIVE, body, f"cable {name}")


def change_link(
    name: str, *, alias: str | None = None, is_up: bool = False, no_ipv6: bool = False, mtu: int | None = None
) -> Message:
    body = _link(is_up=is_up) + text(_IFNAME, name)
    if mtu is not None:
        body += u32(_MTU, mtu)
    if alias is not None:
        body += attribute(_ALIAS, alias.encode()[:ALIAS_BYTES_MAX])
    if no_ipv6:
        body += _NO_IPV6
    return Message(_SETLINK, 0, body, f"settings of interface {name}")


def set_hardware(name: str, hardware: bytes) -> Message:
    return Message(_SETLINK, 0, _link() + text(_IFNAME, name) + attribute(_ADDRESS, hardware), f"hardware address of {name}")


def set_lump(name: str, size_bytes: int) -> Message:
    """The largest lump in which the interface is handed what is cut into packets further on."""
    return Message(_SETLINK, 0, _link() + text(_IFNAME, name) + u32(_GSO_MAX_SIZE, size_bytes), f"lumps of {name}")


def link_up(index: int) -> Message:
    return Message(_SETLINK, 0, _link(index, is_up=True), f"bringing interface {index} up")


def set_group(name: str, group: int) -> Message:
    return Message(_SETLINK, 0, _link() + text(_IFNAME, name) + u32(_GROUP, group), f"group of {name}", (errno.ENODEV,))


def delete_link(name: str) -> Message:
    return Message(_DELLINK, 0, _link() + text(_IFNAME, name), f"deleting interface {name}", (errno.ENODEV,))


def delete_group(group: int) -> Message:
    """All interfaces of a group at once: the kernel waits once for all of them, where it would wait for each."""
    return Message(_DELLINK, 0, _link() + u32(_GROUP, group), "deleting interfaces", (errno.ENODEV,))


# -- addresses ---------------------------------------------------------------------------------------------------------------


def add_address(index: int, address: ipaddress.IPv4Address, prefix: int) -> Message:
    body = _IFADDR.pack(socket.AF_INET, prefix, 0, 0, index) + attribute(2, address.packed) + attribute(1, address.packed)
    return Message(_NEWADDR, CREATE | EXCLUSIVE, body, f"address {address}/{prefix}", (errno.EEXIST,))


def delete_address(index: int, address: ipaddress.IPv4Address, prefix: int) -> Message:
    body = _IFADDR.pack(socket.AF_INET, prefix, 0, 0, index) + attribute(2, address.packed)
    return Message(_DELADDR, 0, body, f"deleting address {address}/{prefix}", (errno.EADDRNOTAVAIL,))


def list_addresses() -> bytes:
    return _IFADDR.pack(socket.AF_INET, 0, 0, 0, 0)


def read_address(body: bytes) -> tuple[int, ipaddress.IPv4Interface] | None:
    """Interface index and address."""
    family, prefix, _, _, index = _IFADDR.unpack_from(body)
    local = attributes(body[_IFADDR.size :]).get(2)
    if family != socket.AF_INET or not local:
        return None
    return index, ipaddress.IPv4Interface((local, prefix))


# -- routes and neighbours ---------------------------------------------------------------------------------------------------


def add_route(route: Route) -> Message:
    return Message(_NEWROUTE, CREATE | REPLACE, _route(route), f"route to {route.to} via {route.via or route.oif}")


def delete_route(route: Route) -> Message:
    return Message(_DELROUTE, 0, _route(route), f"deleting the route to {route.to}", (errno.ESRCH,))


def _route(route: Route) -> bytes:
    head = _RTMSG.pack(socket.AF_INET, route.to.prefixlen, 0, 0, _MAIN, route.protocol or 4, 0, 1, 0)
    body = head + attribute(1, route.to.network_address.packed)
    if route.via:
        body += attribute(5, ipaddress.IPv4Address(route.via).packed)
    if route.oif:
        body += u32(4, route.oif)
    return body + (u32(6, route.metric) if route.metric else b"")


def list_routes() -> bytes:
    return _RTMSG.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)


def read_route(body: bytes) -> Route | None:
    """None for what is not in the main table."""
    family, prefix, _, _, table, protocol, _, kind, _ = _RTMSG.unpack_from(body)
    found = attributes(body[_RTMSG.size :])
    if family != socket.AF_INET or table != _MAIN or kind != 1:
        return None
    return Route(
        to=ipaddress.IPv4Network((found.get(1, b"\0\0\0\0"), prefix)),
        via=str(ipaddress.IPv4Address(found[5])) if 5 in found else "",
        oif=_number(found.get(4)),
        metric=_number(found.get(6)),
        protocol=protocol,
    )


def add_neighbour(index: int, address: ipaddress.IPv4Address, hardware: bytes) -> Message:
    """For good: nobody has to ask for it, and nobody can answer falsely."""
    body = _NDMSG.pack(socket.AF_INET, index, _PERMANENT, 0, 0) + attribute(1, address.packed) + attribute(2, hardware)
    return Message(_NEWNEIGH, CREATE | REPLACE, body, f"neighbour {address}")


def delete_neighbour(index: int, address: ipaddress.IPv4Address) -> Message:
    body = _NDMSG.pack(socket.AF_INET, index, 0, 0, 0) + attribute(1, address.packed)
    return Message(_DELNEIGH, 0, body, f"deleting neighbour {address}", (errno.ENOENT, errno.ENODEV))
