"""Waiting longer each time, spread by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.store.backoff import Backoff, doubled_s, spread


@pytest.mark.parametrize(
    ("failures", "expected_s"),
    [
        pytest.param(0, 0.1, id="first"),
        pytest.param(1, 0.2, id="doubles"),
        pytest.param(3, 0.8, id="doubles again"),
        pytest.param(7, 10.0, id="stops at the maximum"),
        pytest.param(10_000, 10.0, id="never overflows"),
    ],
)
def test_delay_without_spread(failures: int, expected_s: float) -> None:
    assert Backoff(base_s=0.1, max_s=10, spread_ratio=0).delay_s(failures, "x") == pytest.approx(expected_s)


@given(failures=st.integers(0, 10_000), who=st.text())
def test_spread_only_shortens_and_repeats(failures: int, who: str) -> None:
    backoff = Backoff(base_s=0.1, max_s=10, spread_ratio=0.25)
    full_s = Backoff(base_s=0.1, max_s=10, spread_ratio=0).delay_s(failures)
    assert 0.75 * full_s <= backoff.delay_s(failures, who) <= full_s
    assert backoff.delay_s(failures, who) == backoff.delay_s(failures, who)


def test_spread_is_even_and_the_same_everywhere() -> None:
    numbers = sorted(spread("pod", n) for n in range(1000))
    assert numbers[0] < 0.01
    assert numbers[-1] > 0.99
    assert abs(sum(numbers) / 1000 - 0.5) < 0.05
    assert len({spread("a", 1), spread("a", 2), spread("b", 2), spread("a1", "")}) == 4
    assert spread("pod", "web-0") == 0.22297960369721076


@pytest.mark.parametrize("bad", [{"base_s": 0}, {"base_s": 2, "max_s": 1}, {"factor": 0.5}, {"spread_ratio": 1.0}])
def test_nonsense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        Backoff(**bad)


@pytest.mark.parametrize(
    ("base_s", "times", "max_s", "expected_s"),
    [
        pytest.param(10, 0, 300, 10.0, id="the first pause"),
        pytest.param(10, 2, 300, 40.0, id="doubled twice"),
        pytest.param(10, 9, 300, 300.0, id="at most"),
        pytest.param(10, 10**9, 300, 300.0, id="however often"),
        pytest.param(10, -1, 300, 10.0, id="never less than once"),
        pytest.param(0, 5, 300, 0.0, id="no pause"),
        pytest.param(10, 0, -1, 0.0, id="never negative"),
    ],
)
def test_doubled(base_s: float, times: int, max_s: float, expected_s: float) -> None:
    assert doubled_s(base_s, times, max_s) == expected_s
