"""Which addresses the pods of one `muster up` have."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from muster.cli.pod_range import FILE, choose, pod_range, read_routes

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"


def test_it_is_kept(tmp_path: Path) -> None:
    first = pod_range(tmp_path, tmp_path / "none")
    routes = tmp_path / "routes"
    routes.write_text(f"{HEAD}br0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\n")
    assert pod_range(tmp_path, routes) == first, "its own pods are why there is a route now"
    (tmp_path / FILE).write_text("nonsense")
    assert ipaddress.IPv4Network(pod_range(tmp_path, tmp_path / "none")) == ipaddress.IPv4Network(first)


def test_routes_of_the_machine(tmp_path: Path) -> None:
    routes = tmp_path / "routes"
    lines = [
        "eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000",
        "br0\t0040F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF",
        "x\tzz\t0\t0\t0\t0\t0\tzz",
        "short",
    ]
    routes.write_text(HEAD + "\n".join(lines))
    assert read_routes(routes) == [ipaddress.IPv4Network("10.244.64.0/24")]


@given(st.text(max_size=20), st.lists(st.integers(0, 719), max_size=50))
def test_what_is_taken_is_left_alone(name: str, taken: list[int]) -> None:
    first = int(ipaddress.IPv4Address("10.64.0.0"))
    busy = [ipaddress.IPv4Network((first + n * 2**14 + 256, 24)) for n in taken]
    chosen = choose(name, busy)
    assert not any(chosen.overlaps(one) for one in busy)
    assert chosen.subnet_of(ipaddress.IPv4Network("10.0.0.0/8"))
    assert choose(name, busy) == chosen


def test_when_everything_is_taken_one_is_chosen_all_the_same() -> None:
    assert choose("x", [ipaddress.IPv4Network("10.0.0.0/8")]).prefixlen == 18
