"""What was granted is what moves: real TCP between namespaces, counted at the interfaces and by the receiver.

Rates are measured over windows that begin after TCP has settled; 5 % is what the promise allows. Nothing lets a sender send
more than it was granted, so no window may show more. A busy machine can keep it from sending for a moment, so one of a few
windows must show that it gets all of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from muster.agent.contracts import NetworkWant, PodNetwork, Traffic
from muster.agent.network import PodNetworks
from tests.agent.network.machine import MACHINE_ADDRESS, OUTSIDE_ADDRESS, Machine, Program, needs_namespaces

pytestmark = [needs_namespaces, pytest.mark.slow]

MBPS = 1_000_000
SETTLE_S = 1.5
WINDOW_S = 4.0
WINDOWS_MAX = 5
TOLERANCE = 0.05
PAYLOAD = 1448 / 1514
"""The part of a full packet that is payload."""


async def rates_bps(networks: PodNetworks, *uids: str) -> list[tuple[float, float]]:
    """What each sends and receives, over one window."""
    await asyncio.sleep(SETTLE_S)
    started = time.monotonic()  # first, so that a pause makes a rate smaller, never larger
    before = [networks.traffic(uid) for uid in uids]
    await asyncio.sleep(WINDOW_S)
    after = [networks.traffic(uid) for uid in uids]
    took_s = time.monotonic() - started
    return [
        ((b.sent_bytes - a.sent_bytes) * 8 / took_s, (b.received_bytes - a.received_bytes) * 8 / took_s)
        for a, b in zip(before, after, strict=True)
        if a is not None and b is not None
    ]


async def assert_granted(
    measure: Callable[[], Awaitable[Sequence[float]]], wanted_bps: Sequence[float], *, together_bps: float | None = None
) -> None:
    """Each rate is what is wanted in one of a few windows, and never more in any of them; with `together_bps`, senders that may
    use what others leave are never more than that together."""
    seen: list[Sequence[float]] = []
    for _ in range(WINDOWS_MAX):
        rates = await measure()
        seen.append(rates)
        if together_bps is None:
            assert all(rate <= want * (1 + TOLERANCE) for rate, want in zip(rates, wanted_bps, strict=True)), (seen, wanted_bps)
        else:
            assert sum(rates) <= together_bps * (1 + TOLERANCE), (seen, together_bps)
        if rates == pytest.approx(wanted_bps, rel=TOLERANCE):
            return
    pytest.fail(f"none of these is what was granted, {wanted_bps}: {seen}")


async def test_a_limit_is_a_ceiling_in_each_direction(machine: Machine) -> None:
    networks = machine.networks()
    await networks.open()
    sender = await networks.ensure(NetworkWant(uid="sender", egress_limit_bps=10 * MBPS))
    receiver = await networks.ensure(NetworkWant(uid="receiver", ingress_limit_bps=10 * MBPS))
    outside = machine.sink(machine.outside, 7000)
    inside = machine.sink(receiver.netns, 7000)
    machine.source(sender.netns, OUTSIDE_ADDRESS, 7000)
    machine.source(machine.netns, receiver.ip, 7000)

    async def measure() -> list[float]:
        """At the interfaces, and of payload by those who read it."""
        started = time.monotonic()
        read_before = outside.ask(), inside.ask()
        (sends, _), (_, receives) = await rates_bps(networks, "sender", "receiver")
        read = [after - before for before, after in zip(read_before, (outside.ask(), inside.ask()), strict=True)]
        took_s = time.monotonic() - started
        return [sends, receives, *(count * 8 / took_s for count in read)]

    await assert_granted(measure, [10 * MBPS] * 2 + [10 * MBPS * PAYLOAD] * 2)
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

    async def measure() -> list[float]:
        (sends, _), (_, receives) = await rates_bps(networks, "sender", "receiver")
        return [sends, receives]

    await assert_granted(measure, [20 * MBPS, 10 * MBPS])
    for uid in ("sender", "receiver"):
        await networks.ensure(NetworkWant(uid=uid))
    assert min(await measure()) > 100 * MBPS
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
        started = time.monotonic()
        before = [sink.ask() for sink in self._sinks]
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
    await assert_granted(pushing.rates_bps, [30 * MBPS, 10 * MBPS], together_bps=40 * MBPS)
    pushing.stop("large")
    await assert_granted(pushing.rates_bps, [0, 40 * MBPS])
    pushing.stop("small")
    pushing.start("large")
    await assert_granted(pushing.rates_bps, [40 * MBPS, 0])
    await networks.teardown()
    assert machine.left_over() == []


async def test_no_request_no_promise_and_figures_change_in_place(machine: Machine) -> None:
    networks = machine.networks(uplink_bps=20 * MBPS)
    await networks.open()
    asked = await networks.ensure(NetworkWant(uid="asked", egress_request_bps=18 * MBPS))
    free = await networks.ensure(NetworkWant(uid="free"))
    pushing = Pushing(machine, [asked, free], is_entering=False)
    pushing.start("asked", "free")

    async def measure() -> list[float]:
        """What of the promise is kept, and all."""
        asks, asks_not = await pushing.rates_bps()
        return [min(asks, 18 * MBPS), asks + asks_not]

    await assert_granted(measure, [18 * MBPS, 20 * MBPS])
    await networks.set_uplink(40 * MBPS, 40 * MBPS)
    await networks.ensure(NetworkWant(uid="asked", egress_request_bps=20 * MBPS))
    await networks.ensure(NetworkWant(uid="free", egress_request_bps=20 * MBPS))
    await assert_granted(pushing.rates_bps, [20 * MBPS, 20 * MBPS], together_bps=40 * MBPS)
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
