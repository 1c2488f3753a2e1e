"""What needs no kernel: addresses, figures, aliases, settings, and the wire format."""

from __future__ import annotations

import ipaddress
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.contracts import AgentError, NetworkWant
from muster.agent.network import netlink, shaping
from muster.agent.network.addresses import Names, PodRange, hardware, minor
from muster.agent.network.links import ALIAS_BYTES_MAX, Link
from muster.agent.network.ports import Port, read_port
from muster.agent.network.sysctls import Memory, forwarding

RANGES = st.builds(
    lambda base, prefix: PodRange(ipaddress.IPv4Network((base, prefix), strict=False)),
    st.integers(0, 2**32 - 1),
    st.integers(16, 30),
)


@given(RANGES, st.sets(st.integers(0, 300), max_size=40), st.integers(0, 2**16))
def test_an_address_is_free_inside_and_found_whenever_there_is_one(range_: PodRange, taken: set[int], last: int) -> None:
    found = range_.next_after(last, lambda address: range_.offset(address) in taken)
    free = [offset for offset in range(2, min(range_.network.num_addresses - 1, 600)) if offset not in taken]
    if found is None:
        assert not free
        return
    assert found in range_.network
    assert found not in (range_.network.network_address, range_.gateway, range_.network.broadcast_address)
    assert range_.offset(found) not in taken


@given(RANGES)
def test_no_pod_has_a_number_of_the_trees_own(range_: PodRange) -> None:
    numbers = {minor(address) for address in list(range_.network)[2:-1][:500]}
    assert not numbers & {range_.root_minor, range_.rest_minor, 0}
    assert range_.root_minor != range_.rest_minor


def test_all_addresses_are_used_before_one_comes_again() -> None:
    range_ = PodRange.parse("10.0.0.0/28")
    last, seen = 0, []
    for _ in range(range_.pods_max):
        address = range_.next_after(last, lambda _: False)
        assert address is not None
        last = range_.offset(address)
        seen.append(last)
    assert sorted(seen) == list(range(2, 15))
    assert str(range_.next_after(last, lambda _: False)) == "10.0.0.2"


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_names_fit_an_interface_and_tell_agents_apart(id_: int, address: int) -> None:
    names = Names(f"{id_:08x}")
    ip = ipaddress.IPv4Address(address)
    for name in (names.bridge, names.queue, names.port(ip)):
        assert len(name) <= 15
        assert name.startswith(names.prefix)
    assert len({names.bridge, names.queue, names.port(ip)}) == 3
    assert len(hardware(ip)) == 6
    assert hardware(ip)[0] & 3 == 2, "locally administered, and of one interface"
    assert names.leaving_group != 0x6D757374
    assert 0 < names.route_metric < 2**32


@given(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", fullmatch=True),
    st.none() | st.integers(0, 10**13),
    st.none() | st.integers(0, 10**13),
    st.integers(0, 10**13),
    st.integers(0, 10**13),
    st.ip_addresses(v=4),
)
def test_an_alias_says_everything(
    uid: str, e_limit: int | None, i_limit: int | None, e: int, i: int, address: ipaddress.IPv4Address
) -> None:
    want = NetworkWant(
        uid=uid, egress_limit_bps=e_limit, ingress_limit_bps=i_limit, egress_request_bps=e, ingress_request_bps=i
    )
    port = Port(want=want, address=address, name="p", index=7)
    assert len(port.alias) <= ALIAS_BYTES_MAX
    assert read_port(Link(index=7, name="p", alias=port.alias)) == port


@pytest.mark.parametrize("alias", ["", "a", "a 10.0.0.1 - - 0", "a x - - 0 0", "a 10.0.0.1 - - x 0", "../a 10.0.0.1 - - 0 0"])
def test_what_is_no_alias_of_ours_is_none(alias: str) -> None:
    assert read_port(Link(index=1, name="p", alias=alias)) is None


@given(st.integers(-(10**9), 10**15), st.integers(-(10**9), 10**15))
def test_figures_stay_within_what_the_kernel_takes(rate: int, uplink: int) -> None:
    rate_bps, uplink_bps = shaping.clamp_bps(rate), shaping.clamp_bps(uplink)
    assert 0 < shaping.quantum_bytes(min(rate_bps, uplink_bps), uplink_bps) <= 200_000
    assert 0 < shaping.burst_bytes(rate_bps) < 2**31
    assert 6_000 <= shaping.lump_bytes(rate_bps) <= 65_536
    assert shaping.queue_bytes(rate_bps) < 2**31
    assert shaping.set_ceiling(1, rate).body
    assert shaping.set_share(1, 2, 1, rate, uplink).body
    assert shaping.set_queue(1, 2, uplink).body


def test_what_is_borrowed_is_in_proportion() -> None:
    large, small = shaping.quantum_bytes(30_000_000, 40_000_000), shaping.quantum_bytes(10_000_000, 40_000_000)
    assert large == 3 * small


@given(st.lists(st.tuples(st.integers(1, 200), st.binary(max_size=40)), max_size=8))
def test_attributes_come_back(pairs: list[tuple[int, bytes]]) -> None:
    data = b"".join(netlink.attribute(kind, value) for kind, value in pairs)
    assert list(netlink.each_attribute(data)) == pairs
    assert len(data) % 4 == 0


@given(st.binary(max_size=64))
def test_nonsense_ends_the_reading(data: bytes) -> None:
    for _kind, value in netlink.each_attribute(data):
        assert len(value) <= len(data)


def test_a_nested_attribute() -> None:
    data = netlink.nested(2, netlink.u32(1, 5), netlink.text(3, "x"))
    inner = netlink.attributes(netlink.attributes(data)[2])
    assert struct.unpack("=I", inner[1]) == (5,)
    assert netlink.string(inner[3]) == "x"


# -- settings ----------------------------------------------------------------------------------------------------------------

KEY = forwarding("up0")


def settings(root: Path, value: str) -> Path:
    path = root / KEY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value)
    return path


@pytest.mark.parametrize(
    ("before", "others", "remembers"),
    [
        pytest.param("0", [], {KEY: "0"}, id="it was off"),
        pytest.param("1", [], {}, id="it was on: nothing to put back"),
        pytest.param("1", [{KEY: "0"}], {KEY: "0"}, id="another agent switched it on"),
    ],
)
def test_what_was_there_is_remembered(
    tmp_path: Path, before: str, others: list[dict[str, str]], remembers: dict[str, str]
) -> None:
    path = settings(tmp_path, before)
    kept: list[tuple[str, str]] = []
    memory = Memory("last=7", lambda alias: kept.append((alias, path.read_text())), tmp_path)
    for _ in range(2):
        memory.change(KEY, "1", others)
    assert path.read_text() == "1"
    assert memory.before == remembers
    assert kept == ([(str(memory), before)] if remembers else []), "once, and before the setting is written"
    again = Memory(str(memory))
    assert (again.last, again.before) == (7, remembers)


@pytest.mark.parametrize(
    ("others", "left"),
    [pytest.param([], "0", id="the last one puts it back"), pytest.param([{KEY: "0"}], "1", id="another still needs it")],
)
def test_what_was_there_is_put_back(tmp_path: Path, others: list[dict[str, str]], left: str) -> None:
    path = settings(tmp_path, "0")
    memory = Memory(root=tmp_path)
    memory.change(KEY, "1", [])
    after_a_restart = Memory(str(memory), root=tmp_path)
    assert after_a_restart.restore(others) == []
    assert path.read_text() == left
    assert after_a_restart.before == {}


def test_an_interface_that_is_gone_has_nothing_to_put_back(tmp_path: Path) -> None:
    path = settings(tmp_path, "0")
    memory = Memory(root=tmp_path)
    memory.change(KEY, "1", [])
    path.unlink()
    assert memory.restore([]) == []
    assert not path.exists()


def test_a_setting_that_the_kernel_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=f"can't read .*{KEY}: No such file or directory") as caught:
        Memory(root=tmp_path).change(KEY, "1", [])
    assert caught.value.reason == "NetworkNotReady"


@given(st.text(max_size=80))
def test_any_alias_can_be_read(text: str) -> None:
    assert Memory(str(Memory(text))).last == Memory(text).last
