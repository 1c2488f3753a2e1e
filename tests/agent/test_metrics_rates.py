from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.metrics_rates import Rates, Reading, rates

BEFORE = Reading(at=100.0, cpu_ns=10**9, sent_bytes=1000, received_bytes=2000)


def test_rates() -> None:
    now = Reading(at=110.0, cpu_ns=6 * 10**9, sent_bytes=11_000, received_bytes=2000)
    assert rates(BEFORE, now, 15.0) == Rates(500.0, 8000.0, 0.0)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        pytest.param(None, BEFORE, id="the first reading"),
        pytest.param(BEFORE, BEFORE, id="no time between"),
        pytest.param(BEFORE, Reading(at=99.0, cpu_ns=2 * 10**9), id="time went back"),
        pytest.param(BEFORE, Reading(at=161.0, cpu_ns=2 * 10**9), id="a gap"),
        pytest.param(BEFORE, Reading(at=110.0, cpu_ns=5), id="the group was made anew"),
    ],
)
def test_nothing_is_said_where_nothing_is_known(before: Reading | None, now: Reading) -> None:
    assert rates(before, now, 15.0) is None


def test_a_counter_that_went_back_or_is_unknown_leaves_the_others() -> None:
    found = rates(BEFORE, Reading(at=110.0, cpu_ns=2 * 10**9, sent_bytes=5), 15.0)
    assert found is not None
    assert found.cpu_milli == 100.0
    assert math.isnan(found.egress_bps)
    assert math.isnan(found.ingress_bps)


@given(
    st.lists(st.tuples(st.floats(-100, 100), st.integers(0, 2**60), st.none() | st.integers(0, 2**60)), max_size=20),
)
def test_rates_are_never_negative(steps: list[tuple[float, int, int | None]]) -> None:
    """Whatever clock and counters do."""
    before, at = None, 0.0
    for step, cpu, sent in steps:
        at += step
        now = Reading(at=at, cpu_ns=cpu, sent_bytes=sent)
        found = rates(before, now, 15.0)
        if found is not None:
            assert found.cpu_milli >= 0
            assert math.isnan(found.egress_bps) or found.egress_bps >= 0
        before = now
