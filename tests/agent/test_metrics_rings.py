from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.metrics_rings import COLUMNS, CPU, EGRESS, MEMORY, ROWS_MAX, Ring, aggregate, average, percentile

AMOUNT = st.floats(0, 1e15)


def row(cpu: float, memory: float = 0.0) -> list[float]:
    return [cpu, memory, memory, math.nan, math.nan]


def column(*values: float) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([row(value) for value in values])


@pytest.mark.parametrize(
    ("n", "part", "index"),
    [
        pytest.param(1, 0.99, 0, id="one sample"),
        pytest.param(2, 0.5, 0, id="two"),
        pytest.param(50, 0.99, 48, id="p99 of fifty is the 49th"),
        pytest.param(100, 0.5, 49, id="median of a hundred"),
        pytest.param(100, 0.95, 94, id="p95 of a hundred"),
        pytest.param(10, 0.9, 8, id="p90 of ten"),
    ],
)
def test_percentile_is_a_sample_by_koordinators_rule(n: int, part: float, index: int) -> None:
    assert percentile(column(*reversed(range(n))), part)[CPU] == index


@given(st.lists(AMOUNT, min_size=1, max_size=200))
def test_percentiles_are_samples_in_order(values: list[float]) -> None:
    data = column(*values)
    found = [percentile(data, part)[CPU] for part in (0.5, 0.9, 0.95, 0.99)]
    assert found == sorted(found)
    assert set(found) <= set(values)
    assert min(values) <= average(data)[CPU] * (1 + 1e-9) + 1e-9
    assert average(data)[CPU] <= max(values) * (1 + 1e-9) + 1e-9


def test_what_is_not_known_counts_for_nothing() -> None:
    data = np.array([[1.0, 5.0, math.nan, math.nan, 2.0], [3.0, math.nan, math.nan, math.nan, 4.0]])
    assert average(data)[[CPU, MEMORY]].tolist() == [2.0, 5.0]
    assert math.isnan(average(data)[EGRESS])
    assert percentile(data, 0.99)[MEMORY] == 5.0
    assert math.isnan(percentile(data, 0.5)[EGRESS])


def test_a_window_has_what_is_young_enough_in_order() -> None:
    ring = Ring(4)
    for i in range(7):
        ring.add(float(i), row(i))
    assert len(ring) == 4
    assert ring.last_at == 6
    at, values = ring.window(6.0, 2.0)
    assert at.tolist() == [4, 5, 6]
    assert values[:, CPU].tolist() == [4, 5, 6]
    assert ring.window(100.0, 5.0)[0].tolist() == []


def test_a_sample_that_is_not_newer_is_left_out() -> None:
    ring = Ring(4)
    for at in (5.0, 5.0, 4.0, 6.0):
        ring.add(at, row(at))
    assert ring.window(6.0, 100.0)[0].tolist() == [5.0, 6.0]


@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 20))
def test_resizing_keeps_the_newest(n: int, before: int, after: int) -> None:
    ring = Ring(before)
    for i in range(n):
        ring.add(float(i + 1), row(i))
    kept = ring.resized(after).window(1e9, 2e9)[0].tolist()
    assert kept == [float(i + 1) for i in range(n)][-min(max(before, 2), max(after, 2)) :][: n or None]


def test_rings_are_bounded_and_empty_ones_say_nothing() -> None:
    ring = Ring(10**9)
    assert ring._values.shape == (ROWS_MAX, COLUMNS)
    assert ring.last is None
    assert ring.last_at is None
    assert aggregate(ring, 0.0, 300.0, 15.0) is None


@pytest.mark.parametrize(
    ("samples", "is_told"),
    [
        pytest.param(9, False, id="less than half"),
        pytest.param(10, True, id="half"),
        pytest.param(20, True, id="all"),
    ],
)
def test_a_window_is_told_when_its_samples_reach_over_half_of_it(samples: int, is_told: bool) -> None:
    ring = Ring(64)
    for i in range(samples):
        ring.add(i * 15.0, row(i + 1))
    found = aggregate(ring, (samples - 1) * 15.0, 300.0, 15.0)
    assert (found is not None) == is_told
    if found is not None:
        assert set(found) == {"avg", "p50", "p90", "p95", "p99"}
        assert found["avg"][CPU] == pytest.approx((samples + 1) / 2)


def test_a_gap_leaves_the_old_side_out_of_a_short_window() -> None:
    ring = Ring(64)
    for at in (0.0, 15.0, 30.0, 2000.0, 2015.0):
        ring.add(at, row(at))
    assert aggregate(ring, 2015.0, 300.0, 15.0) is None
    assert ring.window(2015.0, 300.0)[0].tolist() == [2000.0, 2015.0]
