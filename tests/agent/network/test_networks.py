"""Namespaces, addresses and what becomes of them, on a machine of the test's own."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import ipaddress
import json
import subprocess
import sys
from pathlib import Path

import pytest

from muster.agent.config import Network
from muster.agent.contracts import AgentError, NetworkWant, PodNetwork
from muster.agent.network import NoNetworks, links, namespaces, open_networks, rules
from muster.agent.network.netlink import ROUTE, Message, Netlink
from tests.agent.network.machine import MACHINE_ADDRESS, OUTSIDE_ADDRESS, UPLINK, Machine, needs_namespaces, within

pytestmark = needs_namespaces

HELLO = """
import socket, sys
host, port, bind = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if bind:
    s.setsockopt(socket.SOL_IP, 19, 1)  # IP_TRANSPARENT: any address may be the sender's
    s.bind((bind, 0))
s.settimeout(2)
s.sendto(b"hello", (host, port))
try:
    print(s.recvfrom(100)[0].decode(), flush=True)
except TimeoutError:
    print("nothing", flush=True)
"""
ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
while True:
    data, sender = s.recvfrom(100)
    s.sendto(sender[0].encode(), sender)
"""
HEAR = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
while True:
    data, sender = s.recvfrom(100)
    print(data.decode(), sender[0], flush=True)
"""
SAY = """
import socket, sys
word, host, port, bind = sys.argv[1].encode(), sys.argv[2], int(sys.argv[3]), "".join(sys.argv[4:])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if bind:
    s.setsockopt(socket.SOL_IP, 19, 1)  # IP_TRANSPARENT: any address may be the sender's
    s.bind((bind, 0))
s.sendto(word, (host, port))
print("said", flush=True)
"""


def want(uid: str, limit_bps: int | None = None, request_bps: int = 0) -> NetworkWant:
    return NetworkWant(
        uid=uid,
        egress_limit_bps=limit_bps,
        ingress_limit_bps=limit_bps,
        egress_request_bps=request_bps,
        ingress_request_bps=request_bps,
    )


def echo(machine: Machine, netns: str, port: int = 7000) -> None:
    assert machine.program(netns, "-c", ECHO, str(port)).line() == "ready"


def ask(machine: Machine, netns: str, host: str, port: int = 7000, bind: str = "") -> str:
    """Who the other side takes us for."""
    return machine.program(netns, "-c", HELLO, host, str(port), *([bind] if bind else [])).line()


async def test_pods_reach_each_other_the_node_and_the_world(machine: Machine) -> None:
    networks = machine.networks(uplink_bps=10**9)
    await networks.open()
    assert list(networks.missing()) == []
    a, b = await networks.ensure(want("a", 10**8, 10**7)), await networks.ensure(want("b"))
    assert (a.ip, b.ip, a.gateway) == ("10.250.1.2", "10.250.1.3", "10.250.1.1")
    for netns in (b.netns, machine.netns, machine.outside, a.netns):
        echo(machine, netns)
    assert ask(machine, a.netns, b.ip) == a.ip
    assert ask(machine, a.netns, a.gateway) == a.ip
    assert ask(machine, a.netns, OUTSIDE_ADDRESS) == MACHINE_ADDRESS, "what leaves does so under the node's address"
    assert ask(machine, a.netns, "127.0.0.1") == "127.0.0.1"
    assert ask(machine, machine.netns, b.ip) == "10.250.1.1"
    await networks.teardown()
    assert machine.left_over() == []


async def test_forwarding_is_put_back_by_the_last_agent(machine: Machine) -> None:
    key = f"net/ipv4/conf/{UPLINK}/forwarding"
    assert machine.setting(key) == "0"
    one, two = machine.networks("one"), machine.networks("two", "10.250.2.0/24")
    await one.open()
    await two.open()
    assert machine.setting(key) == "1"
    assert machine.setting("net/ipv4/ip_forward") == "0"
    await one.teardown()
    assert machine.setting(key) == "1"
    await two.teardown()
    assert machine.setting(key) == "0"
    assert machine.left_over() == []


async def test_agents_that_come_and_go_together_leave_the_setting_as_it_was(machine: Machine) -> None:
    for _ in range(3):
        agents = [machine.networks(f"agent{n}", f"10.250.{n}.0/24") for n in range(4)]
        await asyncio.gather(*(agent.open() for agent in agents))
        assert machine.setting(f"net/ipv4/conf/{UPLINK}/forwarding") == "1"
        late = machine.networks("late", "10.250.9.0/24")
        await asyncio.gather(late.open(), *(agent.teardown() for agent in agents))
        assert machine.setting(f"net/ipv4/conf/{UPLINK}/forwarding") == "1"
        await late.teardown()
        assert machine.setting(f"net/ipv4/conf/{UPLINK}/forwarding") == "0"
    assert machine.left_over() == []


async def test_nothing_of_the_host_is_changed_where_pods_stay_on_it(machine: Machine) -> None:
    networks = machine.networks(config=Network(masquerade=False))
    await networks.open()
    assert machine.setting(f"net/ipv4/conf/{UPLINK}/forwarding") == "0"
    await networks.teardown()


async def test_pods_of_two_agents_of_one_machine_reach_each_other(machine: Machine) -> None:
    one, two = machine.networks("one"), machine.networks("two", "10.250.9.0/24", config=Network(masquerade=False))
    await one.open()
    await two.open()
    for networks, other in ((one, "10.250.9.0/24"), (two, "10.250.1.0/24")):
        await networks.set_peers({other: MACHINE_ADDRESS})
    a, b = await one.ensure(want("a")), await two.ensure(want("b"))
    echo(machine, b.netns)
    assert ask(machine, a.netns, b.ip) == a.ip
    await one.teardown()
    await two.teardown()
    assert machine.left_over() == []


async def test_a_machine_with_pods_routes_for_nobody_else(machine: Machine) -> None:
    """Forwarding is on for the uplink, but only towards pods."""
    third = machine.neighbour("third", "third0", "203.0.113.1", "203.0.113.2")
    machine.add_route(third, "0.0.0.0/0", "203.0.113.1")
    machine.add_route(machine.outside, "203.0.113.0/24", MACHINE_ADDRESS)
    machine.add_route(machine.outside, "10.250.1.0/24", MACHINE_ADDRESS)
    machine.change_setting("net/ipv4/conf/third0/forwarding", "1")
    echo(machine, third)
    key = f"net/ipv4/conf/{UPLINK}/forwarding"
    machine.change_setting(key, "1")
    assert ask(machine, machine.outside, "203.0.113.2") == OUTSIDE_ADDRESS, "the way would be open"
    machine.change_setting(key, "0")

    networks = machine.networks()
    await networks.open()
    pod = await networks.ensure(want("a"))
    echo(machine, pod.netns)
    assert ask(machine, machine.outside, pod.ip) == OUTSIDE_ADDRESS
    assert ask(machine, machine.outside, "203.0.113.2") == "nothing"
    await networks.teardown()


async def test_ensure_and_release_may_be_repeated(machine: Machine) -> None:
    networks = machine.networks(uplink_bps=10**9)
    await networks.open()
    first = await networks.ensure(want("a", 10**7, 10**6))
    assert await networks.ensure(want("a", 10**7, 10**6)) == first
    assert await networks.list() == {"a"}
    assert await networks.release("a") is not None
    assert await networks.release("a") is None
    assert await networks.list() == set()
    assert networks.traffic("a") is None
    await networks.teardown()
    await networks.teardown()
    assert machine.left_over() == []


async def test_addresses_are_used_again_as_late_as_possible(machine: Machine) -> None:
    networks = machine.networks(cidr="10.250.1.0/29")
    await networks.open()
    given: list[str] = []
    for n in range(7):
        given.append((await networks.ensure(want(f"p{n}"))).ip.rpartition(".")[2])
        await networks.release(f"p{n}")
        if n == 2:
            await networks.close()
            networks = machine.networks(cidr="10.250.1.0/29")
            await networks.open()
    assert given == ["2", "3", "4", "5", "6", "2", "3"]
    await networks.teardown()


async def test_a_full_range_says_so_and_leaves_nothing(machine: Machine) -> None:
    networks = machine.networks(cidr="10.250.1.0/30")
    await networks.open()
    await networks.ensure(want("a"))
    with pytest.raises(AgentError, match=r"all 1 addresses of the node's pod CIDR 10\.250\.1\.0/30 are in use") as caught:
        await networks.ensure(want("b"))
    assert caught.value.reason == "NetworkNotReady"
    assert await networks.list() == {"a"}
    await networks.release("a")
    assert (await networks.ensure(want("b"))).ip == "10.250.1.2"
    await networks.teardown()
    assert machine.left_over() == []


async def test_a_new_agent_finds_everything_again(machine: Machine) -> None:
    networks = machine.networks(uplink_bps=10**9)
    await networks.open()
    before = await networks.ensure(want("a", 10**7, 10**6))
    await networks.ensure(want("gone", None, 10**6))
    echo(machine, before.netns)
    assert ask(machine, machine.netns, before.ip) == before.gateway
    count = networks.traffic("a")
    await networks.close()

    again = machine.networks(uplink_bps=2 * 10**9)
    await again.open()
    assert await again.list() == {"a", "gone"}
    assert again.traffic("a") == count
    assert await again.ensure(want("a", 2 * 10**7, None or 0)) == before
    assert ask(machine, machine.netns, before.ip) == before.gateway
    assert await again.release("gone") is not None
    assert (await again.ensure(want("new"))).ip == "10.250.1.4"
    await again.teardown()
    assert machine.left_over() == []


async def test_what_a_crash_left_half_made_is_taken_away(machine: Machine) -> None:
    networks = machine.networks()
    await networks.open()
    await networks.ensure(want("a"))
    await networks.ensure(want("b"))
    port = next(link for link in machine.links() if link.alias.startswith("a "))

    def forget() -> None:
        with Netlink(ROUTE) as route:
            route.send([links.change_link(port.name, alias="")])

    within(machine.netns, forget)
    await networks.close()
    again = machine.networks()
    await again.open()
    assert port.name not in {link.name for link in machine.links()}
    assert await again.list() == {"a", "b"}, "its namespace is still there"
    assert await again.release("a") is None
    assert await again.list() == {"b"}
    await again.teardown()
    assert machine.left_over() == []


async def test_a_network_that_somebody_broke_is_made_anew(machine: Machine) -> None:
    networks = machine.networks()
    await networks.open()
    first = await networks.ensure(want("a"))
    port = next(link for link in machine.links() if link.alias.startswith("a "))

    def cut() -> None:
        with Netlink(ROUTE) as route:
            route.send([links.delete_link(port.name)])

    within(machine.netns, cut)
    second = await networks.ensure(want("a"))
    assert second.ip != first.ip
    echo(machine, second.netns)
    assert ask(machine, machine.netns, second.ip) == second.gateway
    await networks.teardown()
    assert machine.left_over() == []


async def test_a_release_that_failed_is_finished_by_whoever_comes_next(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = machine.networks()
    await networks.open()
    first = await networks.ensure(want("a"))
    await networks.ensure(want("b"))

    def refuse(*_: object) -> None:
        raise OSError(errno.EBUSY, "not now")

    with monkeypatch.context() as broken:
        broken.setattr(namespaces, "remove", refuse)
        broken.setattr(links, "delete_link", refuse)
        for uid in ("a", "b"):
            with pytest.raises(AgentError, match="not now"):
                await networks.release(uid)
    assert await networks.list() == {"a", "b"}
    second = await networks.ensure(want("a"))
    assert second.ip != first.ip
    assert sum(link.alias.startswith("a ") for link in machine.links()) == 1
    assert await networks.release("b") is not None
    assert await networks.list() == {"a"}
    await networks.teardown()
    assert machine.left_over() == []


async def test_many_at_once(machine: Machine) -> None:
    networks = machine.networks(uplink_bps=10**9)
    await networks.open()
    made = await asyncio.gather(*(networks.ensure(want(f"p{n}", 10**7, 10**6)) for n in range(40)))
    assert len({pod.ip for pod in made}) == 40
    counts = await asyncio.gather(*(networks.release(f"p{n}") for n in range(40)))
    assert all(count is not None for count in counts)
    assert await networks.list() == set()
    await networks.teardown()
    assert machine.left_over() == []


async def test_another_range_is_taken_up_when_the_last_pod_has_gone(machine: Machine) -> None:
    networks = machine.networks()
    await networks.open()
    await networks.ensure(want("a"))
    await networks.close()
    moved = machine.networks(cidr="10.250.7.0/24")
    await moved.open()
    assert [one.feature for one in moved.missing()] == ["pod CIDR 10.250.7.0/24"]
    assert (await moved.ensure(want("b"))).ip == "10.250.1.3"
    await moved.release("a")
    await moved.release("b")
    await moved.close()
    moved = machine.networks(cidr="10.250.7.0/24")
    await moved.open()
    assert list(moved.missing()) == []
    assert (await moved.ensure(want("b"))).ip == "10.250.7.2"
    await moved.teardown()
    assert machine.left_over() == []


async def test_a_pod_sends_as_itself_only(machine: Machine) -> None:
    networks = machine.networks()
    await networks.open()
    bad, victim, server = [await networks.ensure(want(name)) for name in ("bad", "victim", "server")]
    heard = machine.program(server.netns, "-c", HEAR, "7000")
    assert heard.line() == "ready"
    for liar in (victim.ip, "203.0.113.9"):
        assert machine.program(bad.netns, "-c", SAY, "lie", server.ip, "7000", liar).line() == "said"

    def other_hardware(netns: PodNetwork, hardware: bytes) -> None:
        def change() -> None:
            with Netlink(ROUTE) as route:
                route.send([links.set_hardware("eth0", hardware)])

        within(netns.netns, change)

    other_hardware(bad, b"\x0a\x58" + ipaddress.IPv4Address(victim.ip).packed)
    assert machine.program(bad.netns, "-c", SAY, "lie", server.ip, "7000").line() == "said"
    other_hardware(bad, b"\x0a\x58" + ipaddress.IPv4Address(bad.ip).packed)
    assert machine.program(bad.netns, "-c", SAY, "truth", server.ip, "7000").line() == "said"
    assert heard.line() == f"truth {bad.ip}", "the first that is heard is the only honest one"
    await networks.teardown()


@pytest.mark.parametrize(
    ("peers", "routes", "missing"),
    [
        pytest.param({"10.251.0.0/24": OUTSIDE_ADDRESS}, ["10.251.0.0/24"], [], id="another node"),
        pytest.param({"10.251.0.0/24": MACHINE_ADDRESS}, [], [], id="another agent of this machine"),
        pytest.param({"10.250.1.0/24": OUTSIDE_ADDRESS}, [], [], id="this node itself"),
        pytest.param({"10.251.0.0/24": "192.0.2.77"}, [], ["pods of 10.251.0.0/24"], id="not on the same network"),
        pytest.param({"198.51.0.0/16": OUTSIDE_ADDRESS}, [], ["pods of 198.51.0.0/16"], id="the machine's network"),
        pytest.param({"0.0.0.0/0": OUTSIDE_ADDRESS, "x": "y", "10.251.0.0/24": "::1"}, [], [], id="nonsense"),
    ],
)
async def test_peers(machine: Machine, peers: dict[str, str], routes: list[str], missing: list[str]) -> None:
    networks = machine.networks()
    await networks.open()
    await networks.set_peers(peers)
    await networks.set_peers(peers)
    assert [str(route.to) for route in machine.routes() if route.protocol == links.ROUTE_PROTOCOL] == routes
    assert [one.feature for one in networks.missing()] == missing
    await networks.set_peers({})
    assert [route for route in machine.routes() if route.protocol == links.ROUTE_PROTOCOL] == []
    await networks.teardown()
    assert machine.left_over() == []


async def test_pods_of_two_nodes_see_each_others_addresses(machine: Machine) -> None:
    """The other node is `outside`, which is reached by the uplink."""
    here = machine.networks()
    there = machine.networks("there", "10.251.0.0/24", config=Network(uplink="eth0"), home=machine.outside)
    await here.open()
    await there.open()
    await here.set_peers({"10.251.0.0/24": OUTSIDE_ADDRESS})
    await there.set_peers({"10.250.1.0/24": MACHINE_ADDRESS})
    a, b = await here.ensure(want("a")), await there.ensure(want("b"))
    echo(machine, b.netns)
    assert ask(machine, a.netns, b.ip) == a.ip, "no masquerade between nodes"
    await here.teardown()
    await there.teardown()
    assert machine.left_over() == []


@pytest.mark.parametrize("cidr", ["", "10.250.1.0", "10.250.1.1/24", "10.0.0.0/8", "10.250.1.0/31", "fd00::/64", "x" * 500])
async def test_a_wrong_range_is_named(machine: Machine, cidr: str) -> None:
    with pytest.raises(AgentError, match="podCIDR: ") as caught:
        machine.networks(cidr=cidr)
    assert cidr[:20] in caught.value.message


@pytest.mark.parametrize("uid", ["", "..", "a/b", "x" * 300, "a b"])
async def test_a_wrong_uid_is_refused(machine: Machine, uid: str) -> None:
    networks = machine.networks()
    await networks.open()
    with pytest.raises(AgentError, match="pod uid"):
        await networks.ensure(want(uid))
    with pytest.raises(AgentError, match="pod uid"):
        await networks.release(uid)
    await networks.teardown()


async def test_without_an_uplink_pods_still_have_each_other(machine: Machine) -> None:
    networks = machine.networks(uplink_bps=10**9, config=Network(uplink="nowhere0"))
    await networks.open()
    assert "nowhere0" in next(one.why for one in networks.missing() if one.feature == "uplink")
    a, b = await networks.ensure(want("a", 10**7, 10**6)), await networks.ensure(want("b"))
    echo(machine, b.netns)
    assert ask(machine, a.netns, b.ip) == a.ip
    await networks.teardown()
    assert machine.left_over() == []


@pytest.mark.parametrize(
    ("part", "feature", "seen_as"),
    [
        pytest.param("_netdev", "shares of what leaves", MACHINE_ADDRESS, id="no shares"),
        pytest.param("_bridge", "sender addresses", MACHINE_ADDRESS, id="no check of senders"),
        pytest.param("_ip", "masquerade", "nothing", id="no way out"),
    ],
)
async def test_what_the_kernel_refuses_is_left_out_and_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, part: str, feature: str, seen_as: str
) -> None:
    """A rule that this kernel does not know, where it would know the right one."""
    family = rules.Family[part[1:].upper()]
    original = getattr(rules, part)

    def unknown(wanted: rules.Rules) -> list[Message]:
        chain = next(message for message in original(wanted) if "chain" in message.what)
        name = chain.what.rpartition(" ")[2]
        return [chain, rules._rule(family, wanted.names.table, name, rules._expression("nonsense"))]

    monkeypatch.setattr(rules, part, unknown)
    networks = machine.networks()
    await networks.open()
    assert [one.feature for one in networks.missing()] == [feature]
    a, b = await networks.ensure(want("a", 10**8, 10**7)), await networks.ensure(want("b"))
    echo(machine, b.netns)
    echo(machine, machine.outside)
    assert ask(machine, a.netns, b.ip) == a.ip
    assert ask(machine, a.netns, OUTSIDE_ADDRESS) == seen_as
    await networks.release("a")
    await networks.teardown()
    assert machine.left_over() == []


async def test_what_the_machine_allows_is_picked(machine: Machine, tmp_path: Path) -> None:
    layout = machine.networks("picked").layout
    picked = await open_networks(layout, Network(), "10.250.1.0/24", home=machine.netns)
    assert not isinstance(picked, NoNetworks)
    await picked.teardown()
    none = await open_networks(layout, Network(enabled="never"), "10.250.1.0/24", node_address="192.0.2.9")
    assert (await none.ensure(want("a"))).ip == "192.0.2.9"
    assert (await none.ensure(want("a"))).netns == ""
    assert await none.list() == {"a"}
    assert await none.release("a") is None
    assert await none.list() == set()
    assert "never" in str(none.missing()[0])
    without = await open_networks(layout, Network(), "")
    assert "no pod CIDR" in str(without.missing()[0])
    with pytest.raises(AgentError, match="always"):
        await open_networks(layout, Network(enabled="always"), "")
    assert json.dumps([str(one) for one in without.missing()])
    assert machine.left_over() == []


WITHOUT = """
import asyncio, sys
from pathlib import Path
from muster.agent.config import Network
from muster.agent.contracts import AgentError, NetworkWant
from muster.agent.layout import Layout
from muster.agent.network import open_networks

async def main(top):
    layout = Layout(Path(top) / "data", Path(top) / "run")
    networks = await open_networks(layout, Network(), "10.250.1.0/24", node_address="192.0.2.9")
    print(type(networks).__name__, (await networks.ensure(NetworkWant(uid="a"))).ip, networks.missing()[0])
    try:
        await open_networks(layout, Network(enabled="always"), "10.250.1.0/24")
    except AgentError as error:
        print(error.reason, error.message)
    await networks.teardown()

asyncio.run(main(sys.argv[1]))
"""


def drop_the_right_to_make_namespaces() -> None:
    """CAP_SYS_ADMIN, from what the next program can have."""
    ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)


def test_without_the_rights_pods_share_the_hosts_network_and_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)],
        preexec_fn=drop_the_right_to_make_namespaces,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("NoNetworks 192.0.2.9 network namespaces: ")
    assert "Operation not permitted" in first
    assert "bandwidth is neither limited nor counted" in first
    assert second.startswith("NetworkNotReady network.enabled is `always`")
    assert list(tmp_path.iterdir()) == []
