"""The wires of one node, in the kernel: the bridge and the cables of pods. `Uplink` has the rest.

`Wiring` is the synchronous half of `PodNetworks`: every method runs in the network's thread, and raises OSError (of which
`NetlinkError` says which message was refused) or AgentError.

Invariant: a port gets its alias when everything else of its pod is in place, so one without an alias was never finished.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from muster.agent.config import Network
from muster.agent.contracts import AgentError, Missing, NetworkWant, Traffic
from muster.agent.layout import Layout, safe_part
from muster.agent.network import links, namespaces, shaping
from muster.agent.network.addresses import Names, PodRange, hardware
from muster.agent.network.links import Link, Route
from muster.agent.network.netlink import ROUTE, Message, Netlink, NetlinkError
from muster.agent.network.ports import Port, read_port
from muster.agent.network.sysctls import PORTS_FOR_ALL, Memory, alone, forwarding
from muster.agent.network.uplink import Uplink

_EVERYWHERE: Final = ipaddress.IPv4Network("0.0.0.0/0")


log = logging.getLogger(__name__)


class Wiring:
    def __init__(self, layout: Layout, config: Network, range_: PodRange, home_fd: int) -> None:
        self.names = Names(layout.id)
        self.range = range_
        self.ports: dict[str, Port] = {}
        self._leaving: dict[str, Port] = {}
        self.missing: list[Missing] = []
        self._layout = layout
        self._config = config
        self._home_fd = home_fd
        self._memory = Memory()
        self._bridge = 0
        self._route = Netlink(ROUTE)
        self._has_ipv6 = Path("/proc/sys/net/ipv6").exists()
        self._counters = Path(f"/proc/self/task/{threading.get_native_id()}/net/dev")
        """As this thread's namespace has them, for whoever reads."""
        self.uplink = Uplink(self.names, config, self._route, has_ipv6=self._has_ipv6)

    def close(self) -> None:
        self._route.close()
        self.uplink.close()

    # -- the node ----------------------------------------------------------------------------------------------------------

    def open(self, egress_bps: int, ingress_bps: int) -> None:
        """What pods share is in place, what is left of a crash is gone, and the pods that are there are known."""
        found = {link.name: link for link in self._links()}
        ports = {name: read_port(link) for name, link in found.items() if name.startswith(self.names.port_prefix)}
        self.ports = {port.want.uid: port for port in ports.values() if port is not None}
        finished = {port.name for port in self.ports.values()}
        _delete(self._route, self.names, [name for name in ports if name not in finished])
        bridge = self._bridge_as_wanted(found.get(self.names.bridge))
        self._bridge = bridge.index
        self._memory = Memory(bridge.alias, self._remember)
        self._route.send(
            [
                links.change_link(bridge.name, no_ipv6=self._has_ipv6, is_up=True, mtu=self._config.mtu),
                links.add_address(self._bridge, self.range.gateway, self.range.network.prefixlen),
            ]
        )
        self._memory.put(forwarding(bridge.name), "1")
        self.uplink.find(found.values(), self._routes())
        self.set_uplink(egress_bps, ingress_bps)

    def _bridge_as_wanted(self, bridge: Link | None) -> Link:
        """While pods are there, the range that they have stays; another one is taken up when the last of them has gone."""
        if bridge is not None:
            here = [address.network for index, address in self._addresses() if index == bridge.index]
            if here and self.range.network not in here:
                if self.ports:
                    self.missing.append(_range_is_kept(self.range.network, here[0], len(self.ports)))
                    self.range = PodRange(here[0])
                    return bridge
                self._route.send([links.delete_link(self.names.queue), links.delete_link(self.names.bridge)])
                bridge = None
        if bridge is None:
            self._route.send([links.add_bridge(self.names.bridge, hardware(self.range.gateway), self._config.mtu)])
        return bridge or self._link(self.names.bridge)

    def set_uplink(self, egress_bps: int, ingress_bps: int) -> None:
        self._forward()
        self.uplink.arrange(self._bridge, self.range, list(self.ports.values()), egress_bps, ingress_bps)
        for port in self.ports.values():
            if port.want.egress_request_bps and namespaces.is_namespace(self._layout.netns(port.want.uid)):
                self._set_inside(port, port.want)

    def set_peers(self, peers: Mapping[ipaddress.IPv4Network, str]) -> None:
        self.uplink.set_peers(peers, self.range, self._addresses(), self._routes())
        self._forward()
        self.uplink.write_rules(list(self.ports.values()))

    def teardown(self) -> None:
        """Nothing of this agent's is left, whether or not it was opened."""
        self.release(sorted(self.uids()))
        found = {link.name: link for link in self._links()}
        _delete(self._route, self.names, [name for name in found if name.startswith(self.names.port_prefix)])
        self._route.send([links.delete_link(self.names.queue)])
        self.uplink.clear(self._routes())
        bridge = found.get(self.names.bridge)
        if bridge is not None:
            with alone():
                for problem in Memory(bridge.alias).restore(self._memories_of_others()):
                    log.warning("a setting of this machine stays changed: %s", problem.message)
                self._route.send([links.delete_link(bridge.name)])
        directory = self._layout.run / "netns"
        with contextlib.suppress(OSError):
            directory.rmdir()

    # -- pods --------------------------------------------------------------------------------------------------------------

    def ensure(self, want: NetworkWant) -> Port:
        path = self._layout.netns(want.uid)
        port = self.ports.get(want.uid)
        is_broken = port is not None and not (namespaces.is_namespace(path) and self._is_there(port))
        if is_broken or want.uid in self._leaving:
            self.release([want.uid])
            port = None
        if port is None:
            return self._create(want)
        if port.want != want:
            port = self._change(port, want)
        return port

    def _create(self, want: NetworkWant) -> Port:
        taken = {port.name for port in (*self.ports.values(), *self._leaving.values())}
        address = self.range.next_after(self._memory.last, lambda address: self.names.port(address) in taken)
        if address is None:
            raise AgentError(
                "NetworkNotReady",
                f"all {self.range.pods_max} addresses of the node's pod CIDR {self.range.network} are in use; "
                "give the node a larger network.podCIDR, or lower its capacity.pods",
            )
        self._memory.last = self.range.offset(address)
        path = self._layout.netns(want.uid)
        namespaces.remove(path)
        port = Port(want=want, address=address, name=self.names.port(address))
        try:
            with namespaces.create(path, self._home_fd, self._prepare) as inside:
                port = self._plug_in(port, inside)
        except BaseException:
            self.ports[want.uid] = port
            self.release([want.uid])
            raise
        self.ports[want.uid] = port
        return port

    def _prepare(self) -> Netlink:
        """In the new namespace. Its ports are all the pod's own, also those that only root has on a host."""
        self._memory.put(PORTS_FOR_ALL, "0")
        return Netlink(ROUTE)

    def _plug_in(self, port: Port, inside: Netlink) -> Port:
        fd = os.open(self._layout.netns(port.want.uid), os.O_RDONLY | os.O_CLOEXEC)
        try:
            cable = links.add_cable(port.name, self._bridge, hardware(port.address), self._config.mtu, fd)
            (answer,) = self._route.send([cable, links.get_link(port.name)])
        finally:
            os.close(fd)
        port = Port(want=port.want, address=port.address, name=port.name, index=links.index_of(answer.body))
        self.uplink.admit(port)
        (answer,) = inside.send([links.get_link("eth0")])
        eth0 = links.index_of(answer.body)
        gateway, lump = self.range.gateway, self.uplink.lump_bytes(port.want)
        inside.send(
            [
                # Before it comes up: on an interface that is up, the kernel waits for what might be on its way.
                *_ceiling(eth0, None, port.want.egress_limit_bps),
                *([] if lump == links.LUMP_BYTES else [links.set_lump("eth0", lump)]),
                links.link_up(1),
                links.change_link("eth0", no_ipv6=self._has_ipv6, is_up=True),
                links.add_address(eth0, port.address, self.range.network.prefixlen),
                links.add_neighbour(eth0, gateway, hardware(gateway)),
                links.add_route(Route(to=_EVERYWHERE, via=str(gateway))),
            ]
        )
        self._route.send(
            [
                *_ceiling(port.index, None, port.want.ingress_limit_bps),
                links.change_link(port.name, no_ipv6=self._has_ipv6, is_up=True),
                links.add_neighbour(self._bridge, port.address, hardware(port.address)),
                *self.uplink.shares(port),
                links.change_link(self.names.bridge, alias=str(self._memory)),
                links.change_link(port.name, alias=port.alias),
            ]
        )
        return port

    def _change(self, old: Port, want: NetworkWant) -> Port:
        """Other figures for a pod that runs."""
        port = Port(want=want, address=old.address, name=old.name, index=old.index)
        self._set_inside(old, want)
        self._route.send(
            [
                *_ceiling(port.index, old.want.ingress_limit_bps, want.ingress_limit_bps),
                *self.uplink.shares(port, old),
                links.change_link(port.name, alias=port.alias),
            ]
        )
        self.ports[want.uid] = port
        return port

    def _set_inside(self, old: Port, want: NetworkWant) -> None:
        with self._inside(want.uid) as inside:
            (answer,) = inside.send([links.get_link("eth0")])
            index = links.index_of(answer.body)
            ceiling = _ceiling(index, old.want.egress_limit_bps, want.egress_limit_bps)
            inside.send([*ceiling, links.set_lump("eth0", self.uplink.lump_bytes(want))])

    def release(self, uids: Sequence[str]) -> dict[str, Traffic]:
        """All of them at once, from beginning to end."""
        self.unplug(uids)
        counts = self.reap(uids, self._route)
        self.forget(uids)
        return counts

    def unplug(self, uids: Sequence[str]) -> None:
        """Their shares are free and nobody hears them any more. Their addresses are kept until they are gone."""
        for uid in uids:
            if (port := self.ports.pop(uid, None)) is not None:
                self._leaving[uid] = port
        leaving = [port for uid in uids if (port := self._leaving.get(uid)) is not None]
        messages = [message for port in leaving for message in self.uplink.no_shares(port)]
        if self._bridge:
            messages += [links.delete_neighbour(self._bridge, port.address) for port in leaving]
        self._route.send(messages)
        self.uplink.dismiss(leaving)

    def reap(self, uids: Sequence[str], route: Netlink) -> dict[str, Traffic]:
        """Interfaces and namespaces of pods that were unplugged; what those that had a port have counted. Most of it is waiting
        for the kernel, so it may run in another thread, with a socket of that thread's."""
        ports = {port.name: uid for uid in uids if (port := self._leaving.get(uid)) is not None}
        counts = _delete(route, self.names, list(ports))
        for uid in uids:
            namespaces.remove(self._layout.netns(uid))
        return {ports[name]: count for name, count in counts.items()}

    def forget(self, uids: Sequence[str]) -> None:
        for uid in uids:
            self._leaving.pop(uid, None)

    def uids(self) -> set[str]:
        """Also what has a namespace and nothing else."""
        kept = set(self.ports)
        for link in self._links():
            port = read_port(link) if link.name.startswith(self.names.port_prefix) else None
            if port is not None:
                if port.want.uid not in self._leaving:
                    self.ports.setdefault(port.want.uid, port)
                kept.add(port.want.uid)
        directory = self._layout.run / "netns"
        for entry in directory.iterdir() if directory.is_dir() else ():
            with contextlib.suppress(ValueError):
                kept.add(safe_part(entry.name))
        return kept

    def traffic(self) -> dict[str, Traffic]:
        """Of all pods. May be called in any thread: it waits for nobody who changes interfaces."""
        by_name = {port.name: uid for uid, port in list(self.ports.items())}
        found: dict[str, Traffic] = {}
        for line in self._counters.read_text().splitlines():
            name, _, numbers = line.strip().partition(":")
            uid = by_name.get(name)
            if uid is not None:
                words = numbers.split(maxsplit=9)
                found[uid] = Traffic(sent_bytes=int(words[0]), received_bytes=int(words[8]))
        return found

    # -- helpers -----------------------------------------------------------------------------------------------------------

    def _forward(self) -> None:
        with alone():
            self.uplink.forward(self._memory, self._memories_of_others())

    def _remember(self, alias: str) -> None:
        self._route.send([links.change_link(self.names.bridge, alias=alias)])

    def _memories_of_others(self) -> list[Mapping[str, str]]:
        others = [link for link in self._links() if link.group == links.GROUP and link.name != self.names.bridge]
        return [Memory(link.alias).before for link in others]

    @contextlib.contextmanager
    def _inside(self, uid: str) -> Iterator[Netlink]:
        fd = os.open(self._layout.netns(uid), os.O_RDONLY | os.O_CLOEXEC)
        try:
            with namespaces.inside(fd, self._home_fd):
                inside = Netlink(ROUTE)
        finally:
            os.close(fd)
        with inside:
            yield inside

    def _is_there(self, port: Port) -> bool:
        try:
            return self._link(port.name).index == port.index
        except NetlinkError:
            return False

    def _link(self, name: str) -> Link:
        (answer,) = self._route.send([links.get_link(name)])
        return links.read_link(answer.body)

    def _links(self) -> list[Link]:
        return [links.read_link(answer.body) for answer in self._route.dump(links.GET_LINK, links.list_links())]

    def _addresses(self) -> list[tuple[int, ipaddress.IPv4Interface]]:
        found = (links.read_address(answer.body) for answer in self._route.dump(links.GET_ADDRESS, links.list_addresses()))
        return [address for address in found if address is not None]

    def _routes(self) -> list[Route]:
        found = (links.read_route(answer.body) for answer in self._route.dump(links.GET_ROUTE, links.list_routes()))
        return [route for route in found if route is not None]


def _delete(route: Netlink, ours: Names, names: Sequence[str]) -> dict[str, Traffic]:
    """Interfaces, with what each has counted. Read in the same breath: a cable that is being taken away has forgotten what
    came from its other end."""
    if not names:
        return {}
    going = [links.get_link(name, errno.ENODEV) for name in names]
    if len(names) == 1:
        going.append(links.delete_link(names[0]))
    else:
        group = ours.leaving_group
        going += [*(links.set_group(name, group) for name in names), links.delete_group(group)]
    found = [links.read_link(answer.body) for answer in route.send(going)]
    return {link.name: _traffic(link) for link in found}


def _ceiling(index: int, old_bps: int | None, new_bps: int | None) -> list[Message]:
    if new_bps == old_bps:
        return []
    if new_bps is None:
        return [shaping.clear_ceiling(index, errno.ENOENT, errno.EINVAL)]
    return [shaping.set_ceiling(index, new_bps)]


def _traffic(link: Link) -> Traffic:
    """What the host's end received, the pod has sent."""
    return Traffic(link.received_bytes, link.sent_bytes)


def _range_is_kept(wanted: ipaddress.IPv4Network, kept: ipaddress.IPv4Network, pods: int) -> Missing:
    return Missing(
        f"pod CIDR {wanted}",
        f"{pods} pods still have addresses of {kept}",
        f"pods get addresses of {kept} until the agent is started while none of them is left",
    )
