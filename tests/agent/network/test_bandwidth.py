"""What was granted is what moves: real TCP between namespaces, counted at the interfaces and by the receiver.

Rates are measured over a window that begins after TCP has settled; 5 % is what the promise allows.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from muster.agent.contracts import NetworkWant, PodNetwork, Traffic
from muster.agent.network import PodNetworks
from tests.agent.network.machine import MACHINE_ADDRESS, OUTSIDE_ADDRESS, Machine, Program, needs_namespaces

pytestmark = [needs_namespaces, pytest.mark.slow]

MBPS = 1_000_000
SETTLE_S = 1.5
WINDOW_S = 4.0
PAYLOAD = 1448 / 1514
"""The part of a full packet that is payload."""


async def rates_bps(networks: PodNetworks, *uids: str) -> list[tuple[float, float]]:
    """What each sends and receives, over one window."""
    await asyncio.sleep(SETTLE_S)
    before = [networks.traffic(uid) for uid in uids]
    started = time.monotonic()
    await asyncio.sleep(WINDOW_S)
    after = [networks.traffic(uid) for uid in uids]
    took_s = time.monotonic() - started
    return [
        ((b.sent_bytes - a.sent_bytes) * 8 / took_s, (b.received_bytes - a.received_bytes) * 8 / took_s)
        for a, b in zip(before, after, strict=True)
        if a is not None and b is not None
    ]


def near(bps: float, tolerance: float = 0.05) -> object:
    return pytest.approx(bps, rel=tolerance)


async def test_a_limit_is_a_ceiling_in_each_direction(machine: Machine) -> None:
    networks = machine.networks()
    await networks.open()
    sender = await networks.ensure(NetworkWant(uid="sender", egress_limit_bps=10 * MBPS))
    receiver = await networks.ensure(NetworkWant(uid="receiver", ingress_limit_bps=10 * MBPS))
    outside = machine.sink(machine.outside, 7000)
    inside = machine.sink(receiver.netns, 7000)
    machine.source(sender.netns, OUTSIDE_ADDRESS, 7000)
    machine.source(machine.netns, receiver.ip, 7000)
    read_before = outside.ask(), inside.ask()
    started = time.monotonic()
    (sends, _), (_, receives) = await rates_bps(networks, "sender", "receiver")
    took_s = time.monotonic() - started
    payload = [(after - before) * 8 / took_s for before, after in zip(read_before, (outside.ask(), inside.ask()), strict=True)]
    assert (sends, receives) == (near(10 * MBPS), near(10 * MBPS))
    assert payload == [near(10 * MBPS * PAYLOAD)] * 2
    await networks.teardown()


async def test_a_limit_that_changes_holds_at_once_and_without_one_nothing_holds(machine: Machine) -> None:
    networks = machine.networks()
    await networks.open()
    sender = await networks.ensure(NetworkWant(uid="sender", egress_limit_bps=5 * MBPS))
    receiver = await networks.ensure(NetworkWant(uid="receiver", ingress_limit_bps=5 * MBPS))
    machine.sink(machine.netns, 7000)
    machine.sink(receiver.netns, 7000)
    machine.source(sender.netns, sender.gateway, 7000)
    machine.source(machine.netns, receiver.ip, 7000)
    await asyncio.sleep(0.5)
    await networks.ensure(NetworkWant(uid="sender", egress_limit_bps=20 * MBPS))
    await networks.ensure(NetworkWant(uid="receiver", ingress_limit_bps=10 * MBPS))
    (sends, _), (_, receives) = await rates_bps(networks, "sender", "receiver")
    assert (sends, receives) == (near(20 * MBPS), near(10 * MBPS))
    for uid in ("sender", "receiver"):
        await networks.ensure(NetworkWant(uid=uid))
    (sends, _), (_, receives) = await rates_bps(networks, "sender", "receiver")
    assert min(sends, receives) > 100 * MBPS
    await networks.teardown()


class Pushing:
    """As much as will go, between each pod and the outside, with a receiver for each."""

    def __init__(self, machine: Machine, pods: list[PodNetwork], *, is_entering: bool) -> None:
        self._machine, self._pods, self._is_entering = machine, pods, is_entering
        if is_entering:
            machine.add_route(machine.outside, "10.250.1.0/24", MACHINE_ADDRESS)
        self._sinks = [machine.sink(pod.netns if is_entering else machine.outside, self._port(pod)) for pod in pods]
        self._sources: dict[str, Program] = {}

    def _port(self, pod: PodNetwork) -> int:
        return 7000 + self._pods.index(pod)

    def start(self, *uids: str) -> None:
        for pod in self._pods:
            if pod.uid in uids:
                here, there = (self._machine.outside, pod.ip) if self._is_entering else (pod.netns, OUTSIDE_ADDRESS)
                self._sources[pod.uid] = self._machine.source(here, there, self._port(pod))

    def stop(self, uid: str) -> None:
        self._sources.pop(uid).end()

    async def rates_bps(self) -> list[float]:
        """Of payload, for each pod, with the headers of full packets added."""
        await asyncio.sleep(SETTLE_S)
        before = [sink.ask() for sink in self._sinks]
        started = time.monotonic()
        await asyncio.sleep(WINDOW_S)
        after = [sink.ask() for sink in self._sinks]
        took_s = time.monotonic() - started
        return [(b - a) * 8 / PAYLOAD / took_s for a, b in zip(before, after, strict=True)]


@pytest.mark.parametrize("is_entering", [pytest.param(False, id="leaving"), pytest.param(True, id="entering")])
async def test_requests_share_the_uplink(machine: Machine, is_entering: bool) -> None:
    networks = machine.networks(uplink_bps=40 * MBPS)
    await networks.open()
    requests = {"large": 30 * MBPS, "small": 10 * MBPS}
    pods = [
        await networks.ensure(NetworkWant(uid=uid, egress_request_bps=bps, ingress_request_bps=bps))
        for uid, bps in requests.items()
    ]
    pushing = Pushing(machine, pods, is_entering=is_entering)
    pushing.start("large", "small")
    large, small = await pushing.rates_bps()
    assert (large, small) == (near(30 * MBPS), near(10 * MBPS))
    assert large / small == near(3)
    pushing.stop("large")
    assert await pushing.rates_bps() == [0, near(40 * MBPS)]
    pushing.stop("small")
    pushing.start("large")
    assert await pushing.rates_bps() == [near(40 * MBPS), 0]
    await networks.teardown()
    assert machine.left_over() == []


async def test_no_request_no_promise_and_figures_change_in_place(machine: Machine) -> None:
    networks = machine.networks(uplink_bps=20 * MBPS)
    await networks.open()
    asked = await networks.ensure(NetworkWant(uid="asked", egress_request_bps=18 * MBPS))
    free = await networks.ensure(NetworkWant(uid="free"))
    pushing = Pushing(machine, [asked, free], is_entering=False)
    pushing.start("asked", "free")
    rates = await pushing.rates_bps()
    assert rates[0] >= 18 * MBPS * 0.95
    assert sum(rates) == near(20 * MBPS)
    await networks.set_uplink(40 * MBPS, 40 * MBPS)
    await networks.ensure(NetworkWant(uid="asked", egress_request_bps=20 * MBPS))
    await networks.ensure(NetworkWant(uid="free", egress_request_bps=20 * MBPS))
    assert await pushing.rates_bps() == [near(20 * MBPS), near(20 * MBPS)]
    await networks.teardown()
    assert machine.left_over() == []


async def test_pods_of_this_node_are_not_held_up_by_the_uplink(machine: Machine) -> None:
    networks = machine.networks(uplink_bps=5 * MBPS)
    await networks.open()
    a = await networks.ensure(NetworkWant(uid="a", egress_request_bps=MBPS))
    b = await networks.ensure(NetworkWant(uid="b", ingress_request_bps=MBPS))
    machine.sink(b.netns, 7000)
    machine.sink(machine.netns, 7000)
    machine.source(a.netns, b.ip, 7000)
    machine.source(b.netns, b.gateway, 7000)
    (a_sends, _), (b_sends, b_receives) = await rates_bps(networks, "a", "b")
    assert min(a_sends, b_sends, b_receives) > 100 * MBPS
    await networks.teardown()


async def test_bytes_are_counted_exactly(machine: Machine) -> None:
    """Each count equals what the kernel counts at the pod's own interface, to the byte, also the last one."""
    networks = machine.networks()
    await networks.open()
    pod = await networks.ensure(NetworkWant(uid="pod"))
    sink = machine.sink(machine.outside, 7000)
    total = 10_000_000
    source = machine.source(pod.netns, OUTSIDE_ADDRESS, 7000, total)
    assert await asyncio.to_thread(source.line) == "done"
    assert sink.ask() == total
    received, sent, packets = machine.counters(pod.netns, "eth0")
    count = networks.traffic("pod")
    assert count == Traffic(sent_bytes=sent, received_bytes=received)
    # Ethernet 14, IP 20, TCP 32 with its timestamps; the first packet has 8 more.
    payload = sent - packets * 66 - 8
    assert payload >= total
    assert payload == total or machine.repeated_segments(pod.netns) > 0
    assert await networks.release("pod") == count
    await networks.teardown()
