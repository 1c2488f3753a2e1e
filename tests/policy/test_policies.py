"""Policies made ready: scores, contributions, ties that every processor sees alike, and specs that are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.kinds.muster_queues import Factor, SchedulingPolicySpec
from muster.policy.formula import FormulaError
from muster.policy.policies import SCORE_BITS, Scored, make_policy, quantised
from tests.policy.test_factors import NOW, table, view


def scored(spec: SchedulingPolicySpec, *names: str) -> Scored:
    made = table()
    return make_policy(spec).scores(made, np.array([made.row_of[name] for name in names], np.int64), NOW, view())


LEVEL = Factor(name="level", source="JobLevel", weight=3)
AGE = Factor(name="age", source="AgeSeconds", scale=1_000, weight=-2)


def test_without_a_formula_it_is_the_weighted_sum() -> None:
    found = scored(SchedulingPolicySpec(factors=[LEVEL, AGE]), "new", "told")
    assert found.values.tolist() == [[0, 5], [1, 6]]
    assert found.total.tolist() == [-2, 3]
    assert found.contributions.tolist() == [[0, 15], [-2, -12]]


def test_a_formula_may_use_the_weighted_sum() -> None:
    spec = SchedulingPolicySpec(factors=[LEVEL, AGE], formula="weighted_sum + 100 * (age > 5)")
    assert scored(spec, "new", "told").total.tolist() == [-2, 103]


def test_contributions_are_differences_from_the_default() -> None:
    waited = Factor(name="waited", source="AgeSeconds")
    unused = Factor(name="unused", source="JobLevel")
    run = Factor(name="run", source="EstimatedRunSeconds", default=1_000)
    found = scored(SchedulingPolicySpec(factors=[waited, run, unused], formula="waited / run"), "new", "told")
    assert found.total.tolist() == pytest.approx([1, 6_000 / 3_600])
    assert found.contributions[0].tolist() == pytest.approx([1, 6_000 / 3_600])
    assert found.contributions[1].tolist() == pytest.approx([0, 6_000 / 3_600 - 6])
    assert found.contributions[2].tolist() == [0, 0]
    assert found.of([1]).total.tolist() == found.total[1:].tolist()
    assert found.of([1]).contributions.tolist() == found.contributions[:, 1:].tolist()


def test_no_factors_score_nothing() -> None:
    assert scored(SchedulingPolicySpec(), "new", "told").total.tolist() == [0, 0]
    assert scored(SchedulingPolicySpec(formula="1"), "new", "told").total.tolist() == [1, 1]
    assert scored(SchedulingPolicySpec(factors=[LEVEL])).total.tolist() == []


def test_what_is_no_number_stays_so() -> None:
    found = scored(SchedulingPolicySpec(factors=[Factor(name="level", source="JobLevel")], formula="0 / level"), "new", "told")
    assert math.isnan(found.total[0])
    assert found.total[1] == 0


@pytest.mark.parametrize(
    ("spec", "position", "message"),
    [
        pytest.param(SchedulingPolicySpec(factors=[LEVEL], formula="levl"), 1, "no factor", id="formula"),
        pytest.param(SchedulingPolicySpec(factors=[LEVEL, LEVEL]), 0, "two factors", id="twice"),
        pytest.param(SchedulingPolicySpec(factors=[Factor(name="min", source="JobLevel")]), 0, "the language", id="reserved"),
    ],
)
def test_wrong_specs(spec: SchedulingPolicySpec, position: int, message: str) -> None:
    with pytest.raises(FormulaError, match=message) as caught:
        make_policy(spec)
    assert caught.value.position == position
    assert caught.value.hint


@given(st.lists(st.floats(), max_size=50))
@settings(deadline=None)
def test_rounding_keeps_the_order(numbers: list[float]) -> None:
    """It never turns two scores round, changes one by more than its last digit, or makes a number of what is none."""
    values = np.sort(np.array(numbers, np.float64))
    rounded = quantised(values)
    assert np.array_equal(np.isnan(values), np.isnan(rounded))
    known = rounded[~np.isnan(rounded)]
    assert (known[1:] >= known[:-1]).all()
    usual = np.isfinite(values) & (np.abs(values) < 1e300) & (np.abs(values) > 1e-290)
    assert (np.abs(rounded[usual] - values[usual]) <= np.abs(values[usual]) * 2.0**-SCORE_BITS).all()


def test_scores_that_differ_in_the_last_digit_are_equal() -> None:
    values = np.array([0.1 + 0.2, 0.3, math.nextafter(1e9, 2e9), 1e9])
    rounded = quantised(values)
    assert rounded[0] == rounded[1]
    assert rounded[2] == rounded[3]
