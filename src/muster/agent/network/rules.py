"""The packet filter's part, as one table for each family, all replaced in one step. Messages only, pure.

    bridge  a pod's port takes only packets and ARP with the pod's own hardware and IP address
    netdev  what comes from pods and leaves by the uplink queues in the tree first (where there is one)
    ip      what enters by the uplink for pods goes to its class in the other tree, what is from this machine goes past it;
            what leaves by the uplink does so under the node's address; the machine forwards for its pods only

The class of a packet is the last 16 bits of the pod's address, worked out in the rule itself, so a pod needs one element in
one set (its port and its addresses) and nothing else.
"""

from __future__ import annotations

import enum
import ipaddress
import struct
from collections.abc import Iterable, Sequence, Set
from typing import Final

import msgspec

from muster.agent.network import links, shaping
from muster.agent.network.addresses import Names, PodRange, hardware
from muster.agent.network.netlink import CREATE, Message, attribute, be32, nested, text


class Family(enum.IntEnum):
    IP = 2
    NETDEV = 5
    BRIDGE = 7


_IP, _NETDEV, _BRIDGE = Family.IP, Family.NETDEV, Family.BRIDGE
_SUBSYSTEM: Final = 10
_NEWTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE, _NEWSET, _NEWELEMENT, _DELELEMENT = 0, 2, 3, 6, 9, 12, 14
_BATCH_BEGIN, _BATCH_END = 16, 17
_R1, _R2, _R2_PLUS_8 = 1, 2, 14
"""Registers: 16 bytes each from 1 on; 14 is the third word of the second."""
_PROTOCOL, _PRIORITY, _IIFNAME, _OIFNAME, _OIFGROUP = 1, 2, 6, 7, 22
_ETHERNET, _NETWORK = 0, 1
_EQUAL, _OTHER = 0, 1
_DROP, _ACCEPT = 0, 1
_PORTS: Final = "ports"
_PEERS: Final = "peers"
_IPV4_TYPE: Final = 7
_PORT_TYPE: Final = (41 << 6 | 9) << 6 | _IPV4_TYPE
"""Interface, hardware address, IP address: for `nft list`, the kernel does not care."""
_INTERVAL: Final = 4
_INTERVAL_END: Final = 1
_IPV4: Final = b"\x08\x00"
_ARP: Final = b"\x08\x06"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the tables shall say."""

    names: Names
    range: PodRange
    uplink: str = ""
    queue_index: int = 0
    """Of the device in which what leaves queues; 0: there is no tree."""
    has_tree_for_entering: bool = False
    masquerade: bool = False
    forward_for_pods_only: bool = False


def batch(messages: Sequence[Message]) -> list[Message]:
    """All or nothing."""
    head = struct.pack("!BBH", 0, 0, _SUBSYSTEM)
    return [
        Message(_BATCH_BEGIN, 0, head, "packet filter", is_answered=False),
        *messages,
        Message(_BATCH_END, 0, head, "packet filter", is_answered=False),
    ]


def replace(
    rules: Rules, families: Set[Family], pods: Iterable[ipaddress.IPv4Address], peers: Sequence[ipaddress.IPv4Network]
) -> list[Message]:
    """Everything new, in one step, in the families that the kernel has."""
    messages = clear(rules.names, families)
    table = rules.names.table
    messages += [_message(_NEWTABLE, one, text(1, table), what="table", flags=CREATE) for one in sorted(families)]
    if _BRIDGE in families:
        messages += [*_bridge(rules), *(port_element(rules.names, pod) for pod in pods)]
    if _NETDEV in families and rules.queue_index:
        messages += _netdev(rules)
    if _IP in families:
        messages += [*_ip(rules), *([_peer_elements(table, peers)] if peers else ())]
    return messages


def family_of(message: Message) -> Family:
    return Family(message.body[0])


def clear(names: Names, families: Set[Family]) -> list[Message]:
    """Taking away what is there. A table that is not there is made first, since its deletion would fail the batch."""
    return [
        message
        for family in sorted(families)
        for message in (
            _message(_NEWTABLE, family, text(1, names.table), what="table", flags=CREATE),
            _message(_DELTABLE, family, text(1, names.table), what="table"),
        )
    ]


def port_element(names: Names, pod: ipaddress.IPv4Address) -> Message:
    return _message(_NEWELEMENT, _BRIDGE, _elements(names.table, _PORTS, [(_port_key(names, pod), 0)]), what=f"port of {pod}",
                    flags=CREATE)  # fmt: skip


def delete_port_element(names: Names, pod: ipaddress.IPv4Address) -> Message:
    body = _elements(names.table, _PORTS, [(_port_key(names, pod), 0)])
    return _message(_DELELEMENT, _BRIDGE, body, what=f"port of {pod}")


def _port_key(names: Names, pod: ipaddress.IPv4Address) -> bytes:
    return _name(names.port(pod)) + hardware(pod) + b"\0\0" + pod.packed


# -- the tables --------------------------------------------------------------------------------------------------------------


def _bridge(rules: Rules) -> list[Message]:
    table, chain = rules.names.table, "pods-send-as-themselves"
    prefix = rules.names.port_prefix.encode()
    return [
        _set(_BRIDGE, table, _PORTS, key_type=_PORT_TYPE, key_bytes=28),
        _chain(_BRIDGE, table, chain, "filter", hook=0, priority=-300),
        _rule(_BRIDGE, table, chain, _meta(_IIFNAME), _cmp(prefix, _OTHER), _verdict(_ACCEPT)),
        _rule(
            _BRIDGE, table, chain, _meta(_PROTOCOL), _cmp(_IPV4), *_sender(_ETHERNET, 6, 12), _lookup(_PORTS), _verdict(_ACCEPT)
        ),
        _rule(
            _BRIDGE,
            table,
            chain,
            _meta(_PROTOCOL),
            _cmp(_ARP),
            *_sender(_ETHERNET, 6, 14),
            _lookup(_PORTS),
            *_sender(_NETWORK, 8, 14),
            _lookup(_PORTS),
            _verdict(_ACCEPT),
        ),
        _rule(_BRIDGE, table, chain, _verdict(_DROP)),
    ]


def _sender(base: int, hardware_offset: int, ip_offset: int) -> list[bytes]:
    """Loads port, hardware address and IP address of the sender, as the set has them."""
    return [_meta(_IIFNAME), _payload(base, hardware_offset, 6, _R2), _payload(_NETWORK, ip_offset, 4, _R2_PLUS_8)]


def _netdev(rules: Rules) -> list[Message]:
    table, chain = rules.names.table, "leaving"
    leaves_by_uplink = _expression("fib", be32(1, _R1), be32(2, 2), be32(3, 2))  # the name of the interface towards daddr
    return [
        _chain(_NETDEV, table, chain, "filter", hook=0, priority=0, device=rules.names.bridge),
        _rule(
            _NETDEV,
            table,
            chain,
            _meta(_PROTOCOL),
            _cmp(_IPV4),
            leaves_by_uplink,
            _cmp(_name(rules.uplink)),
            *_class_of(12),
            _immediate(struct.pack("=I", rules.queue_index)),
            _expression("fwd", be32(1, _R1)),
        ),
    ]


def _ip(rules: Rules) -> list[Message]:
    table, bridge = rules.names.table, _name(rules.names.bridge)
    to_pods = (_meta(_OIFNAME), _cmp(bridge))
    messages = [_set(_IP, table, _PEERS, key_type=_IPV4_TYPE, key_bytes=4, flags=_INTERVAL)]
    if rules.has_tree_for_entering:
        past_the_tree = (_immediate(struct.pack("=I", shaping.TREE)), _set_meta(_PRIORITY))
        messages += [
            _chain(_IP, table, "entering", "filter", hook=2, priority=-150),
            _rule(_IP, table, "entering", *to_pods, _meta(_IIFNAME), _cmp(_name(rules.uplink)), *_class_of(16)),
            _rule(_IP, table, "entering", *to_pods, _meta(_IIFNAME), _cmp(_name(rules.uplink), _OTHER), *past_the_tree),
            _chain(_IP, table, "from-this-machine", "filter", hook=3, priority=-150),
            _rule(_IP, table, "from-this-machine", *to_pods, *past_the_tree),
        ]
    if rules.uplink and rules.forward_for_pods_only:
        messages += [
            _chain(_IP, table, "for-pods-only", "filter", hook=2, priority=0),
            _rule(
                _IP,
                table,
                "for-pods-only",
                _meta(_IIFNAME),
                _cmp(_name(rules.uplink)),
                _meta(_OIFGROUP),
                _cmp(struct.pack("=I", links.GROUP), _OTHER),
                _verdict(_DROP),
            ),
        ]
    if rules.uplink and rules.masquerade:
        network = rules.range.network
        is_pod = (
            _payload(_NETWORK, 12, 4, _R1),
            _bitwise(network.netmask.packed, b"\0\0\0\0"),
            _cmp(network.network_address.packed),
        )
        is_no_peer = (_payload(_NETWORK, 16, 4, _R1), _lookup(_PEERS, is_inverted=True))
        messages += [
            _chain(_IP, table, "leaving", "nat", hook=4, priority=100),
            _rule(_IP, table, "leaving", _meta(_OIFNAME), _cmp(_name(rules.uplink)), *is_pod, *is_no_peer, _expression("masq")),
        ]
    return messages


def _class_of(ip_offset: int) -> list[bytes]:
    """Puts the packet into the class that follows from the address at this place of its header."""
    in_host_order = _expression("byteorder", be32(1, _R1), be32(2, _R1), be32(3, 0), be32(4, 4), be32(5, 4))
    return [
        _payload(_NETWORK, ip_offset, 4, _R1),
        in_host_order,
        _bitwise(struct.pack("=I", 0xFFFF), struct.pack("=I", shaping.TREE)),
        _set_meta(_PRIORITY),
    ]


# -- encoding ----------------------------------------------------------------------------------------------------------------


def _message(kind: int, family: int, body: bytes, *, what: str, flags: int = 0, fine: tuple[int, ...] = ()) -> Message:
    head = struct.pack("!BBH", family, 0, 0)
    return Message(_SUBSYSTEM << 8 | kind, flags, head + body, f"packet filter: {what}", fine)


def _chain(family: int, table: str, name: str, kind: str, *, hook: int, priority: int, device: str = "") -> Message:
    where = be32(1, hook) + attribute(2, struct.pack("!i", priority)) + (text(3, device) if device else b"")
    body = text(1, table) + text(3, name) + nested(4, where) + be32(5, _ACCEPT) + text(7, kind)
    return _message(_NEWCHAIN, family, body, what=f"chain {name}", flags=CREATE)


def _rule(family: int, table: str, chain: str, *expressions: bytes) -> Message:
    body = text(1, table) + text(2, chain) + nested(4, *expressions)
    return _message(_NEWRULE, family, body, what=f"rule of chain {chain}", flags=CREATE | 0x800)


def _set(family: int, table: str, name: str, *, key_type: int, key_bytes: int, flags: int = 0) -> Message:
    body = text(1, table) + text(2, name) + be32(3, flags) + be32(4, key_type) + be32(5, key_bytes) + be32(10, 1)
    return _message(_NEWSET, family, body, what=f"set {name}", flags=CREATE)


def _elements(table: str, name: str, keys: Iterable[tuple[bytes, int]]) -> bytes:
    listed = [nested(1, nested(1, attribute(1, key)), be32(3, flags) if flags else b"") for key, flags in keys]
    return text(1, table) + text(2, name) + nested(3, *listed)


def _peer_elements(table: str, peers: Sequence[ipaddress.IPv4Network]) -> Message:
    """Ranges, each as where it begins and the first address after it."""
    keys: list[tuple[bytes, int]] = []
    for peer in ipaddress.collapse_addresses(peers):
        keys.append((peer.network_address.packed, 0))
        after = int(peer.broadcast_address) + 1
        if after < 2**32:
            keys.append((struct.pack("!I", after), _INTERVAL_END))
    return _message(_NEWELEMENT, _IP, _elements(table, _PEERS, keys), what="pods of other nodes", flags=CREATE)


def _expression(name: str, *parts: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *parts))


def _meta(key: int) -> bytes:
    return _expression("meta", be32(2, key), be32(1, _R1))


def _set_meta(key: int) -> bytes:
    return _expression("meta", be32(2, key), be32(3, _R1))


def _cmp(value: bytes, operation: int = _EQUAL) -> bytes:
    return _expression("cmp", be32(1, _R1), be32(2, operation), nested(3, attribute(1, value)))


def _payload(base: int, offset: int, size: int, register: int) -> bytes:
    return _expression("payload", be32(1, register), be32(2, base), be32(3, offset), be32(4, size))


def _bitwise(mask: bytes, xor: bytes) -> bytes:
    return _expression(
        "bitwise", be32(1, _R1), be32(2, _R1), be32(3, 4), nested(4, attribute(1, mask)), nested(5, attribute(1, xor))
    )


def _immediate(value: bytes) -> bytes:
    return _expression("immediate", be32(1, _R1), nested(2, attribute(1, value)))


def _lookup(name: str, *, is_inverted: bool = False) -> bytes:
    return _expression("lookup", text(1, name), be32(2, _R1), be32(5, 1) if is_inverted else b"")


def _verdict(code: int) -> bytes:
    return _expression("immediate", be32(1, 0), nested(2, nested(2, be32(1, code))))


def _name(interface: str) -> bytes:
    return interface.encode().ljust(16, b"\0")
