"""Where pods leave the node: forwarding, masquerade, the trees of shares, the packet filter, routes to other nodes' pods.

Part of `wiring`, in the same thread. What this kernel does not have is left out and named in `missing`; what is left works.
"""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from muster.agent.config import Network
from muster.agent.contracts import Missing, NetworkWant
from muster.agent.network import links, rules, shaping
from muster.agent.network.addresses import Names, PodRange, minor
from muster.agent.network.links import Link, Route
from muster.agent.network.netlink import NETFILTER, Message, Netlink, NetlinkError
from muster.agent.network.ports import Port
from muster.agent.network.sysctls import Memory, forwarding

_GONE: Final = (errno.ENOENT, errno.ENODEV, errno.EINVAL)
_SHARES: Final = "shares of the uplink"


class Uplink:
    def __init__(self, names: Names, config: Network, route: Netlink, *, has_ipv6: bool) -> None:
        self._has_ipv6 = has_ipv6
        self.name = ""
        self._names = names
        self._config = config
        self._route = route
        self._filter: Netlink | None = None
        self._missing: dict[str, Missing] = {}
        self._range: PodRange | None = None
        self._bridge = 0
        self._queue = 0
        self._egress_bps = 0
        self._ingress_bps = 0
        self._peers: dict[ipaddress.IPv4Network, str] = {}
        self._families: frozenset[rules.Family] = frozenset()
        self._was_forwarding = True

    def missing(self) -> list[Missing]:
        return list(self._missing.values())

    def close(self) -> None:
        if self._filter is not None:
            self._filter.close()

    # -- the interface ---------------------------------------------------------------------------------------------------------

    def find(self, found: Iterable[Link], routes: Iterable[Route]) -> None:
        """The interface that the configuration names, or the one of the default route."""
        by_index = {link.index: link.name for link in found}
        wanted = self._config.uplink
        if wanted:
            self.name = wanted if wanted in by_index.values() else ""
            why = f"there is no interface {wanted!r} (network.uplink)"
        else:
            defaults = sorted((route for route in routes if route.to.prefixlen == 0), key=lambda route: route.metric)
            self.name = next((by_index[route.oif] for route in defaults if route.oif in by_index), "")
            why = "this machine has no default route, and network.uplink names no interface"
        self._miss("uplink", "" if self.name else why, "tasks reach this node only; requests for bandwidth are not enforced")

    def forward(self, memory: Memory, others: Sequence[Mapping[str, str]]) -> None:
        """What comes back by the uplink reaches pods."""
        if not self.name or not (self._config.masquerade or self._peers):
            return
        key = forwarding(self.name)
        memory.change(key, "1", others)
        self._was_forwarding = memory.before.get(key, "1") == "1"

    # -- trees -----------------------------------------------------------------------------------------------------------------

    def arrange(self, bridge: int, range_: PodRange, ports: Sequence[Port], egress_bps: int, ingress_bps: int) -> None:
        """Trees with these figures, a class for each pod that has a request, and the packet filter to go with them."""
        self._bridge, self._range = bridge, range_
        self._egress_bps, self._ingress_bps = (egress_bps, ingress_bps) if self.name else (0, 0)
        why = ""
        if self.name and not (egress_bps and ingress_bps):
            why = "the speed of the uplink is not known; give capacity.bandwidth"
        try:
            self._queue = self._make_queue() if self._egress_bps else 0
            self._grow(self._queue, self._egress_bps, ports)
            self._grow(bridge, self._ingress_bps, ports)
        except NetlinkError as error:
            why = str(error)
            self._egress_bps = self._ingress_bps = self._queue = 0
        if not self._egress_bps:
            self._route.send([links.delete_link(self._names.queue)])
        if not self._ingress_bps:
            self._route.send([shaping.fell_tree(bridge, *_GONE)])
        self._miss(_SHARES, why, "requests for bandwidth are counted, and not enforced; limits are")
        self.write_rules(ports)

    def _make_queue(self) -> int:
        answers = self._route.send(
            [
                links.add_ifb(self._names.queue),
                links.change_link(self._names.queue, no_ipv6=self._has_ipv6, is_up=True),
                links.get_link(self._names.queue),
            ]
        )
        return links.read_link(answers[0].body).index

    def _grow(self, index: int, uplink_bps: int, ports: Sequence[Port]) -> None:
        if not uplink_bps or self._range is None:
            return
        root, rest = self._range.root_minor, self._range.rest_minor
        self._route.send(
            [
                shaping.plant_tree(index, rest),
                shaping.set_share(index, root, 0, uplink_bps, uplink_bps),
                shaping.set_share(index, rest, root, shaping.RATE_BPS_MIN, uplink_bps),
                shaping.set_queue(index, rest, uplink_bps),
                *(message for port in ports for message in self._share(index, port)),
            ]
        )
        wanted = {root, rest, *(minor(port.address) for port in ports if self._request(index, port))}
        answers = self._route.dump(shaping.GET_CLASS, shaping.list_classes(index))
        strays = {shaping.class_minor(answer.body) for answer in answers} - wanted
        self._route.send([shaping.clear_share(index, stray, *_GONE) for stray in strays])

    def _request(self, index: int, port: Port) -> int:
        return port.want.egress_request_bps if index == self._queue else port.want.ingress_request_bps

    def _uplink_bps(self, index: int) -> int:
        return self._egress_bps if index == self._queue else self._ingress_bps

    def _share(self, index: int, port: Port) -> list[Message]:
        request_bps, uplink_bps = self._request(index, port), self._uplink_bps(index)
        if not request_bps or not uplink_bps or self._range is None:
            return []
        number = minor(port.address)
        return [
            shaping.set_share(index, number, self._range.root_minor, request_bps, uplink_bps),
            shaping.set_queue(index, number, uplink_bps),
        ]

    def lump_bytes(self, want: NetworkWant) -> int:
        """Of what the pod sends: under its own ceiling, and under the uplink's where it has a share of that."""
        ceilings = [want.egress_limit_bps, self._egress_bps if want.egress_request_bps else 0]
        return shaping.lump_bytes(min((bps for bps in ceilings if bps), default=None))

    def _trees(self) -> list[int]:
        return [index for index, bps in ((self._queue, self._egress_bps), (self._bridge, self._ingress_bps)) if index and bps]

    def shares(self, port: Port, old: Port | None = None) -> list[Message]:
        """What gives the pod its classes, in place of those that it had."""
        messages: list[Message] = []
        for index in self._trees():
            if self._request(index, port):
                messages += self._share(index, port)
            elif old is not None and self._request(index, old):
                messages.append(shaping.clear_share(index, minor(port.address), *_GONE))
        return messages

    def no_shares(self, port: Port) -> list[Message]:
        number = minor(port.address)
        return [shaping.clear_share(index, number, *_GONE) for index in self._trees() if self._request(index, port)]

    # -- packet filter ---------------------------------------------------------------------------------------------------------

    def write_rules(self, ports: Sequence[Port]) -> None:
        """All tables new, in one step. A family that this kernel does not have is left out, and said to be missing."""
        assert self._range is not None
        wanted = rules.Rules(
            names=self._names,
            range=self._range,
            uplink=self.name,
            queue_index=self._queue,
            has_tree_for_entering=bool(self._ingress_bps),
            masquerade=self._config.masquerade,
            forward_for_pods_only=not self._was_forwarding,
        )
        families = set(rules.Family)
        while families:
            messages = rules.replace(wanted, families, [port.address for port in ports], list(self._peers))
            try:
                self._filtering().send(rules.batch(messages))
                break
            except NetlinkError as error:
                family = rules.family_of(messages[error.index - 1]) if 0 < error.index <= len(messages) else None
                families -= {family} if family in families else set(families)
                self._miss_family(family, str(error))
        self._families = frozenset(families)

    def admit(self, port: Port) -> None:
        if rules.Family.BRIDGE in self._families:
            self._filtering().send(rules.batch([rules.port_element(self._names, port.address)]))

    def dismiss(self, ports: Sequence[Port]) -> None:
        if not ports or rules.Family.BRIDGE not in self._families:
            return
        try:
            self._filtering().send(rules.batch([rules.delete_port_element(self._names, port.address) for port in ports]))
        except NetlinkError as error:
            if error.errno not in _GONE:
                raise
            # One that was never admitted keeps all others: the filter takes a batch whole or not at all.
            for port in ports if len(ports) > 1 else ():
                self.dismiss([port])

    def _filtering(self) -> Netlink:
        if self._filter is None:
            self._filter = Netlink(NETFILTER)
        return self._filter

    def _miss_family(self, family: rules.Family | None, why: str) -> None:
        follows = {
            rules.Family.BRIDGE: ("sender addresses", "a task that may send raw packets can pretend to be another"),
            rules.Family.NETDEV: ("shares of what leaves", "requests for egress bandwidth are not enforced"),
            rules.Family.IP: ("masquerade", "tasks reach this node and, by routes, other nodes only"),
        }
        for one in [family] if family is not None else list(rules.Family):
            feature, so = follows[one]
            self._miss(feature, why, so)

    # -- other nodes -----------------------------------------------------------------------------------------------------------

    def set_peers(
        self,
        peers: Mapping[ipaddress.IPv4Network, str],
        own: PodRange,
        addresses: Sequence[tuple[int, ipaddress.IPv4Interface]],
        routes: Sequence[Route],
    ) -> None:
        """A route for each range of pods beyond this machine. To those of its other agents, their bridges are the routes."""
        here = {str(address.ip) for _, address in addresses}
        local = [address.network for _, address in addresses]
        for feature in [one for one in self._missing if one.startswith("pods of ")]:
            del self._missing[feature]
        wanted: dict[ipaddress.IPv4Network, str] = {}
        for range_, node in peers.items():
            if node in here or range_ == own.network:
                continue
            if clash := next((network for network in local if network.overlaps(range_)), None):
                self._miss_peer(range_, node, f"it overlaps {clash}, which is a network of this machine")
            else:
                wanted[range_] = node
        mine = {route.to: route for route in routes if self._is_mine(route)}
        self._route.send([links.delete_route(route) for to, route in mine.items() if wanted.get(to) != route.via])
        for range_, node in wanted.items():
            if range_ in mine and mine[range_].via == node:
                continue
            try:
                self._route.send([links.add_route(self._route_to(range_, node))])
            except NetlinkError as error:
                self._miss_peer(range_, node, str(error))
        self._peers = wanted

    def _route_to(self, range_: ipaddress.IPv4Network, node: str) -> Route:
        return Route(to=range_, via=node, metric=self._names.route_metric, protocol=links.ROUTE_PROTOCOL)

    def _is_mine(self, route: Route) -> bool:
        return route.protocol == links.ROUTE_PROTOCOL and route.metric == self._names.route_metric

    def _miss_peer(self, range_: ipaddress.IPv4Network, node: str, why: str) -> None:
        so = f"tasks here do not reach those tasks; the node's address {node} must be on a network of this machine"
        self._miss(f"pods of {range_}", why, so)

    def clear(self, routes: Sequence[Route]) -> None:
        self._route.send([links.delete_route(route) for route in routes if self._is_mine(route)])
        families = set(rules.Family)
        while families:
            messages = rules.clear(self._names, families)
            try:
                self._filtering().send(rules.batch(messages))
                return
            except NetlinkError as error:
                family = rules.family_of(messages[error.index - 1]) if 0 < error.index <= len(messages) else None
                families -= {family} if family in families else set(families)

    def _miss(self, feature: str, why: str, so: str) -> None:
        if why:
            self._missing[feature] = Missing(feature, why, so)
        else:
            self._missing.pop(feature, None)
