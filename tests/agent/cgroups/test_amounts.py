from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.cgroups import amounts

MILLI = st.integers(0, 10**7)


@pytest.mark.parametrize(
    ("milli", "shares", "weight"),
    [
        pytest.param(0, 2, 1, id="nothing asked"),
        pytest.param(1, 2, 1, id="least"),
        pytest.param(100, 102, 4, id="tenth of a core"),
        pytest.param(1000, 1024, 39, id="one core"),
        pytest.param(8000, 8192, 313, id="eight cores"),
        pytest.param(256_000, 262_144, 10_000, id="most"),
        pytest.param(10**9, 262_144, 10_000, id="cut"),
    ],
)
def test_shares_and_weight(milli: int, shares: int, weight: int) -> None:
    assert amounts.shares(milli) == shares
    assert amounts.weight(shares) == weight


@given(MILLI, MILLI)
def test_shares_and_weight_keep_the_order_and_the_kernels_ranges(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert 2 <= amounts.shares(low) <= amounts.shares(high) <= 262_144
    assert 1 <= amounts.weight(amounts.shares(low)) <= amounts.weight(amounts.shares(high)) <= 10_000


@given(MILLI)
def test_quota_is_the_limit_and_never_less_than_the_kernel_takes(milli: int) -> None:
    quota = amounts.quota_us(milli)
    if milli == 0:
        assert quota is None
    else:
        assert quota is not None
        assert quota >= 1000
        assert quota == max(1000, milli * 100)


@given(st.integers(1, 2**50))
def test_memory_is_in_whole_pages_and_never_nothing(limit: int) -> None:
    pages = amounts.memory_bytes(limit)
    assert pages is not None
    assert pages % amounts.PAGE_BYTES == 0
    assert amounts.PAGE_BYTES <= pages <= max(limit, amounts.PAGE_BYTES)
    assert limit - pages < amounts.PAGE_BYTES


@pytest.mark.parametrize(
    ("most", "text"), [(None, "max"), (0, "max"), (1, "1"), (10**9, "4194304")], ids=["none", "zero", "one", "cut"]
)
def test_pids(most: int | None, text: str) -> None:
    assert amounts.pids(most) == text
    assert amounts.memory_bytes(None) is None
    assert amounts.memory_bytes(0) is None
