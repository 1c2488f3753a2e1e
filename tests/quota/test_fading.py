"""Use that fades: the closed form against adding up small steps, and independence of the order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.quota.fading import Faded, weight_s
from muster.quota.ledger import Run


@pytest.mark.parametrize(("half_life_s", "start_s", "end_s", "at_s"), [(10.0, 0.0, 30.0, 30.0), (7.0, 5.0, 6.0, 100.0)])
def test_the_closed_form_is_the_integral(half_life_s: float, start_s: float, end_s: float, at_s: float) -> None:
    steps = 20_000
    width = (end_s - start_s) / steps
    added = sum(math.exp2((start_s + (n + 0.5) * width - at_s) / half_life_s) * width for n in range(steps))
    assert weight_s(start_s, end_s, at_s, half_life_s) == pytest.approx(added, rel=1e-6)


def test_half_is_left_after_a_half_life() -> None:
    faded = Faded(half_life_s=100.0)
    faded.add({"cpu": 2.0}, 0.0, 10.0)
    before, after = faded.at(50.0)["cpu"], faded.at(150.0)["cpu"]
    assert after == pytest.approx(before / 2)


@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**6), st.integers(1, 64)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_order_does_not_matter_and_runs_that_go_on_count(runs: list[tuple[int, int, int]], chance: object) -> None:
    ended = [
        Run(key=str(n), amounts={"cpu": cpu}, start_ms=start, end_ms=start + length)
        for n, (start, length, cpu) in enumerate(runs)
    ]
    now_ms = max(run.end_ms or 0 for run in ended)
    first, second = Faded(3600.0), Faded(3600.0)
    for run in ended:
        first.add_run(run, now_ms)
    chance.shuffle(ended)  # type: ignore[attr-defined]
    half = len(ended) // 2
    for run in ended[:half]:
        second.add_run(run, now_ms)
    assert second.at(now_ms / 1000, ended[half:]) == pytest.approx(first.at(now_ms / 1000))


def test_centuries_do_not_overflow() -> None:
    faded = Faded(1.0)
    for year in range(0, 300, 50):
        faded.add({"cpu": 1.0}, year * 3.15e7, year * 3.15e7 + 10)
    assert faded.at(250 * 3.15e7 + 10)["cpu"] == pytest.approx(1 / math.log(2), rel=1e-3)
