"""Bandwidth figures: what is read, what is refused and how, and that nothing is lost."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.bandwidth import (
    BANDWIDTH_MAX_BPS,
    LIMIT_MAX_BPS,
    Directions,
    both,
    bps_to_mbps,
    divide,
    format_bandwidth,
    kbps_to_bps,
    largest_share_bps,
    mbps_to_bps,
    parse_bandwidth,
)
from muster.objects.kinds.shapes import AMOUNT_PATTERN

FIGURES = st.integers(0, BANDWIDTH_MAX_BPS)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=80), st.binary(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
LIKELY = st.from_regex(
    r"[+-]?[0-9]{0,40}(\.[0-9]{0,20})?([kKmMgGtTPEun]?i?(bps|Bps|B/s|b)?|[eE][+-]?[0-9]{1,8})", fullmatch=True
)


@pytest.mark.parametrize(
    ("written", "bps"),
    [
        ("500Mbps", 500 * 10**6),
        ("500mbps", 500 * 10**6),
        ("10Gbps", 10 * 10**9),
        ("1.5Gbps", 1_500_000_000),
        ("0.001Tbps", 10**9),
        ("64Kbps", 64_000),
        ("64kbps", 64_000),
        ("9bps", 9),
        ("500M", 500 * 10**6),
        ("10G", 10 * 10**9),
        ("500k", 500_000),
        ("500Mi", 500 * 10**6),
        ("1Gi", 10**9),
        ("64Ki", 64_000),
        ("1Ti", 10**12),
        (".5G", 500 * 10**6),
        ("+2G", 2 * 10**9),
        ("1e9", 10**9),
        ("12500000e-2", 125_000),
        ("1000", 1000),
        (1000, 1000),
        (1e6, 10**6),
        ("0", 0),
        ("0bps", 0),
        ("100Tbps", BANDWIDTH_MAX_BPS),
    ],
    ids=str,
)
def test_parse(written: str | float, bps: int) -> None:
    assert parse_bandwidth(written) == bps


@pytest.mark.parametrize(
    ("written", "why"),
    [
        pytest.param("500m", "no thousandths", id="milli"),
        pytest.param("500MBps", "bytes are not taken", id="bytes"),
        pytest.param("12MB/s", "bytes are not taken", id="bytes per second"),
        pytest.param("10GB", "bytes are not taken", id="plain bytes"),
        pytest.param("500K", "write bits per second", id="capital K alone"),
        pytest.param("500Mibps", "write bits per second", id="two units"),
        pytest.param("10 Gbps", "write bits per second", id="blank"),
        pytest.param("Gbps", "write bits per second", id="no number"),
        pytest.param(".", "write bits per second", id="a dot"),
        pytest.param("", "write bits per second", id="nothing"),
        pytest.param("-1G", "negative", id="negative"),
        pytest.param(-1, "negative", id="negative number"),
        pytest.param("1.5bps", "whole number of bits", id="half a bit"),
        pytest.param("1e-3", "whole number of bits", id="thousandth"),
        pytest.param("101T", "more than 100Tbps", id="too large"),
        pytest.param("1e9999", "more than 100Tbps", id="far too large"),
        pytest.param(10**5000, "more than 100Tbps", id="a number of 5,000 digits"),
        pytest.param("9" * 5000, "write bits per second", id="a text of 5,000 digits"),
        pytest.param("٣Gbps", "write bits per second", id="other digits"),
        pytest.param(True, "bool", id="bool"),
        pytest.param(None, "NoneType", id="None"),
        pytest.param(float("nan"), "not a bandwidth", id="nan"),
        pytest.param(float("inf"), "not a bandwidth", id="inf"),
    ],
)
def test_refuses(written: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        parse_bandwidth(written)
    assert len(str(caught.value)) < 400


def test_a_bare_number_counts_what_the_field_says() -> None:
    assert parse_bandwidth("1000", bare_unit_bps=10**6) == 10**9
    assert parse_bandwidth(1000, bare_unit_bps=10**6) == 10**9
    assert parse_bandwidth("1000Kbps", bare_unit_bps=10**6) == 10**6, "a unit that is written holds"


@pytest.mark.parametrize(
    ("written", "bps"),
    [("200", 200 * 10**6), (200, 200 * 10**6), ("1k", 10**9), ("2e3", 2 * 10**9), ("0", 0)],
    ids=str,
)
def test_kuscias_resource_counts_whole_mbps(written: Any, bps: int) -> None:
    assert mbps_to_bps(written) == bps


@pytest.mark.parametrize("written", ["0.5", "500m", "200Mbps", "-1", "1Gi", None, [], True, ""], ids=str)
def test_kuscias_resource_refuses(written: Any) -> None:
    with pytest.raises(ValueError, match=r"Mbps|negative|Tbps"):
        mbps_to_bps(written)


def test_kuscias_limit_counts_kib_per_second() -> None:
    assert kbps_to_bps(1024) == 8 * 1024 * 1024
    assert kbps_to_bps(LIMIT_MAX_BPS // 8192) <= LIMIT_MAX_BPS
    for value in (LIMIT_MAX_BPS, -1, "1024", 1.5, None, True):
        with pytest.raises(ValueError, match=r"KiB|Tbps|negative"):
            kbps_to_bps(value)


@pytest.mark.parametrize(
    ("bps", "text"),
    [
        (0, "0bps"),
        (1, "1bps"),
        (999, "999bps"),
        (1000, "1Kbps"),
        (1_500_000_000, "1.5Gbps"),
        (33_333_334, "33333.334Kbps"),
        (1_234_567_891, "1234567.891Kbps"),
        (BANDWIDTH_MAX_BPS, "100Tbps"),
        (LIMIT_MAX_BPS, "1000Tbps"),
    ],
)
def test_format(bps: int, text: str) -> None:
    assert format_bandwidth(bps) == text


def test_format_refuses_what_is_no_bandwidth() -> None:
    with pytest.raises(ValueError, match="negative"):
        format_bandwidth(-1)


@given(FIGURES)
def test_what_is_written_reads_back(bps: int) -> None:
    assert parse_bandwidth(format_bandwidth(bps)) == bps


@given(st.one_of(ANYTHING, LIKELY))
def test_only_value_errors(value: Any) -> None:
    for parse in (parse_bandwidth, mbps_to_bps, kbps_to_bps):
        found = 0
        with contextlib.suppress(ValueError):
            found = parse(value)
        assert 0 <= found <= LIMIT_MAX_BPS


@given(FIGURES, st.integers(1, 2000))
def test_division_loses_nothing(total: int, parts: int) -> None:
    shares = divide(total, parts)
    assert len(shares) == parts
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == largest_share_bps(total, parts)


@pytest.mark.parametrize(("total", "parts"), [(1, 0), (1, -1), (1, 10**7), (-1, 2)])
def test_division_refuses(total: int, parts: int) -> None:
    with pytest.raises(ValueError, match=r"divided|negative"):
        divide(total, parts)


def test_directions() -> None:
    assert str(both(10**9)) == "1Gbps"
    assert str(Directions(10**9, 5)) == "egress 1Gbps, ingress 5bps"
    assert Directions(3, 1).minus(2) == Directions(1, 0)
    assert Directions(3, 1).holds(Directions(3, 1))
    assert not Directions(3, 1).holds(Directions(0, 2))
    assert Directions(1, 2) + Directions(3, 4) == Directions(4, 6)
    assert bps_to_mbps(1_999_999) == 1


@given(LIKELY)
def test_the_schema_takes_whatever_is_understood(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_bandwidth(text)
        assert re.match(AMOUNT_PATTERN, text)
