"""Use that fades: exact whatever the half-life, and bounded whatever the number of names."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.policy.fading import NAMES_MAX, Fading, ratios


def used(fading: Fading, name: str = "ann") -> float:
    return float(fading.values([name])[0])


@pytest.mark.parametrize("half_life_s", [1e3, 1e9, 1e12, 1e17, 2.0**63 - 1])
def test_what_hardly_fades_counts_in_full(half_life_s: float) -> None:
    fading = Fading(half_life_s, 0.0)
    fading.change("ann", 0.5)
    for step in range(1, 101):
        fading.advance(step * 0.1)
    assert used(fading) == pytest.approx(5.0, rel=1e-2)


@pytest.mark.parametrize("half_life_s", [1.0, 60.0])
def test_what_was_used_long_ago_is_gone(half_life_s: float) -> None:
    fading = Fading(half_life_s, 0.0)
    fading.change("ann", 1.0)
    fading.advance(1e6)
    assert used(fading) == pytest.approx(half_life_s / math.log(2))
    fading.change("ann", -1.0)
    fading.advance(2e6)
    assert used(fading) == 0.0


@given(st.floats(1, 1e18), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_a_clock_that_is_set_back_takes_nothing_away(half_life_s: float, moves: list[float]) -> None:
    fading = Fading(half_life_s, 0.0)
    fading.change("ann", 0.25)
    now = 0.0
    for move in moves:
        before, as_of = used(fading), fading.as_of
        now += move
        fading.advance(now)
        if now <= as_of:
            assert (used(fading), fading.as_of) == (before, as_of)
        assert 0.0 <= used(fading) <= 0.25 * max(fading.as_of, 0.0) * (1 + 1e-9)


def test_names_without_end_are_bounded_and_who_uses_something_is_kept() -> None:
    fading = Fading(1_000.0, 0.0)
    fading.change("ann", 0.5)
    for n in range(NAMES_MAX + 10):
        fading.add(f"passer-by-{n}", 1e-6)
    assert len(fading.kept()) <= NAMES_MAX
    assert fading.rates() == {"ann": 0.5}


def test_more_names_than_at_first() -> None:
    """As many users as one likes, from the ledger and from a checkpoint."""
    count = 100
    fading = Fading(1_000.0, 0.0)
    for n in range(count):
        fading.add(f"u{n}", float(n))
    again = Fading(1_000.0, 5.0)
    again.restore(fading.kept(), 0.0)
    names = [f"u{n}" for n in range(count)]
    assert fading.values(names).tolist() == again.values(names).tolist() == [float(n) for n in range(count)]


def test_weights_of_nothing_divide_nothing() -> None:
    assert ratios(np.array([1.0, 2.0]), np.zeros(2)).tolist() == [0, 0]
    assert np.isfinite(ratios(np.array([1.0, 2.0]), np.array([0.0, 1.0]))).all()
