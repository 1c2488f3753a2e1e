"""A machine for tests: a network namespace with an uplink into another one, `outside`. Nothing of the real machine is touched.

Programs are started inside namespaces and ended by their pid. `left_over` names everything that an agent could have left.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from muster.agent.config import Network
from muster.agent.layout import Layout
from muster.agent.network import PodNetworks, links, namespaces
from muster.agent.network.links import Link, Route
from muster.agent.network.netlink import NETFILTER, ROUTE, Netlink

T = TypeVar("T")

PROGRAM = Path(__file__).with_name("traffic.py")
MACHINE_ADDRESS = "198.51.100.2"
OUTSIDE_ADDRESS = "198.51.100.1"
UPLINK = "up0"

needs_namespaces = pytest.mark.skipif(
    bool(namespaces.why_impossible()), reason="network namespaces can't be made here (no root)"
)


def within(netns: str, function: Callable[[], T]) -> T:
    """Call it in a thread that is inside the namespace."""
    thread = namespaces.NamespaceThread(netns)
    thread.open()
    try:
        return thread.run(function)
    finally:
        thread.close()


def _configure(interface: str, address: str = "") -> None:
    with Netlink(ROUTE) as route:
        index = links.read_link(route.send([links.get_link(interface)])[0].body).index
        route.send([links.link_up(index)])
        if address:
            route.send([links.add_address(index, ipaddress.IPv4Address(address), 24)])


class Program:
    """Something that runs inside a namespace, and answers a line for a line."""

    def __init__(self, netns: str, *argv: str) -> None:
        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )

        self._process = within(netns, start)

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self.line())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Machine:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._programs: list[Program] = []
        self._networks: list[PodNetworks] = []
        self.layouts: list[Layout] = []
        self.netns = self._namespace("machine")
        self.outside = self.neighbour("outside", UPLINK, MACHINE_ADDRESS, OUTSIDE_ADDRESS)
        self.add_route(self.netns, "0.0.0.0/0", OUTSIDE_ADDRESS)

    def _namespace(self, name: str) -> str:
        path = self._directory / f"netns-{name}"
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            within("", lambda: namespaces.create(path, home, lambda: None))
        finally:
            os.close(home)
        within(str(path), lambda: _configure("lo"))
        return str(path)

    def neighbour(self, name: str, interface: str, address: str, their_address: str) -> str:
        """Another machine, on a cable of its own."""
        there = self._namespace(name)

        def connect() -> None:
            fd = os.open(there, os.O_RDONLY | os.O_CLOEXEC)
            try:
                with Netlink(ROUTE) as here:
                    hardware = b"\x0a\x58" + ipaddress.IPv4Address(their_address).packed
                    here.send([links.add_cable(interface, 0, hardware, 1500, fd)])
            finally:
                os.close(fd)
            _configure(interface, address)

        within(self.netns, connect)
        within(there, lambda: _configure("eth0", their_address))
        return there

    def add_route(self, netns: str, to: str, via: str) -> None:
        def add() -> None:
            with Netlink(ROUTE) as route:
                route.send([links.add_route(Route(to=ipaddress.IPv4Network(to), via=via))])

        within(netns, add)

    def networks(
        self,
        name: str = "agent",
        cidr: str = "10.250.1.0/24",
        uplink_bps: int = 10**9,
        config: Network | None = None,
        home: str = "",
    ) -> PodNetworks:
        layout = Layout(self._directory / name / "data", self._directory / name / "run")
        self.layouts.append(layout)
        made = PodNetworks(
            layout,
            config or Network(),
            cidr,
            uplink_egress_bps=uplink_bps,
            uplink_ingress_bps=uplink_bps,
            home=home or self.netns,
        )
        self._networks.append(made)
        return made

    def sink(self, netns: str, port: int) -> Program:
        program = self.program(netns, str(PROGRAM), "sink", str(port))
        assert program.line() == "ready"
        return program

    def source(self, netns: str, host: str, port: int, total: int = 0) -> Program:
        program = self.program(netns, str(PROGRAM), "source", host, str(port), str(total))
        assert program.line() == "ready"
        return program

    def program(self, netns: str, *argv: str) -> Program:
        program = Program(netns, *argv)
        self._programs.append(program)
        return program

    def links(self) -> list[Link]:
        def read() -> list[Link]:
            with Netlink(ROUTE) as route:
                return [links.read_link(answer.body) for answer in route.dump(links.GET_LINK, links.list_links())]

        return within(self.netns, read)

    def routes(self) -> list[Route]:
        def read() -> list[Route]:
            with Netlink(ROUTE) as route:
                found = [links.read_route(answer.body) for answer in route.dump(links.GET_ROUTE, links.list_routes())]
                return [one for one in found if one is not None]

        return within(self.netns, read)

    def counters(self, netns: str, interface: str) -> tuple[int, int, int]:
        """Bytes received, bytes sent and packets sent, as /proc has them."""
        text = within(netns, lambda: Path("/proc/thread-self/net/dev").read_text())
        words = next(line for line in text.splitlines() if line.strip().startswith(f"{interface}:")).split()
        return int(words[1]), int(words[9]), int(words[10])

    def repeated_segments(self, netns: str) -> int:
        """How often TCP had to send something again in this namespace."""
        lines = within(netns, lambda: Path("/proc/thread-self/net/snmp").read_text()).splitlines()
        names, values = [line.split() for line in lines if line.startswith("Tcp:")]
        return int(values[names.index("RetransSegs")])

    def setting(self, key: str) -> str:
        return within(self.netns, lambda: Path("/proc/sys", key).read_text().strip())

    def change_setting(self, key: str, value: str) -> None:
        within(self.netns, lambda: Path("/proc/sys", key).write_text(value))

    def tables(self) -> int:
        """How many tables the packet filter has."""

        def count() -> int:
            with Netlink(NETFILTER) as netfilter:
                return len(netfilter.dump(10 << 8 | 1, b"\0\0\0\0"))

        return within(self.netns, count)

    def left_over(self) -> list[str]:
        found = [link.name for link in self.links() if link.name not in ("lo", UPLINK)]
        found += [f"route {route.to}" for route in self.routes() if route.protocol == links.ROUTE_PROTOCOL]
        found += [str(path) for layout in self.layouts for path in layout.run.rglob("*")]
        if self.tables():
            found.append(f"{self.tables()} tables")
        return found

    async def close(self) -> None:
        for networks in self._networks:
            await networks.close()
        for program in self._programs:
            program.end()
        for layout in self.layouts:
            for path in (layout.run / "netns").glob("*"):
                namespaces.remove(path)
        for netns in self._directory.glob("netns-*"):
            namespaces.remove(netns)


@contextlib.asynccontextmanager
async def a_machine(directory: Path) -> AsyncIterator[Machine]:
    machine = Machine(directory / uuid.uuid4().hex[:8])
    try:
        yield machine
    finally:
        await machine.close()
