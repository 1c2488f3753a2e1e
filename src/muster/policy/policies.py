"""A SchedulingPolicy made ready: its factors, its compiled formula, and the scores of many units at once.

Pure. A Policy never changes after it was made; another spec makes another one. Scores are rounded to 40 binary digits, so that
processors which differ in the last digit of an exponential rank work alike: the rounding keeps the order, it only makes ties.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from muster.engine.columns import Array
from muster.objects.formula import RESERVED, WEIGHTED_SUM, FormulaError
from muster.objects.kinds.muster_queues import Factor, SchedulingPolicySpec
from muster.policy.factors import OF_USE, Asked, Indices, bounded, column_of
from muster.policy.formula import Formula, compile_formula

if TYPE_CHECKING:
    from muster.policy.table import Table, View

SCORE_BITS: Final = 40
_BITS_CUT: Final = 52 - SCORE_BITS


class Policy:
    """See the module. Made by `make_policy`."""

    def __init__(self, spec: SchedulingPolicySpec, formula: Formula) -> None:
        self.spec = spec
        self.formula = formula
        self.factors: tuple[Factor, ...] = tuple(spec.factors)
        self.names: tuple[str, ...] = tuple(factor.name for factor in self.factors)
        self.weights: Array = np.array([factor.weight for factor in self.factors], np.float64)
        self.is_sum = formula.text == WEIGHTED_SUM
        self._uses_sum = WEIGHTED_SUM in formula.names
        self.looks_at_use = any(factor.source in OF_USE for factor in self.factors)
        """Whether scores depend on what is in use."""

    def scores(self, table: Table, rows: Indices, now: float, view: View) -> Scored:
        """The score of each of `rows`, larger is sooner; NaN where the formula gives no number."""
        asked = Asked(table, rows, now, view)
        with np.errstate(all="ignore"):
            columns = [column_of(factor, asked) for factor in self.factors]
            return Scored(self, columns, self._total(columns, len(rows)))

    def total(self, columns: Sequence[Array], length: int) -> Array:
        """The formula over the factors' columns, rounded."""
        with np.errstate(all="ignore"):
            return self._total(columns, length)

    def _total(self, columns: Sequence[Array], length: int) -> Array:
        if self.is_sum:
            return quantised(self._weighted_sum(columns, length))
        named = dict(zip(self.names, columns, strict=True))
        if self._uses_sum:
            named[WEIGHTED_SUM] = self._weighted_sum(columns, length)
        return quantised(self.formula.evaluate_quietly(named, length))

    def _weighted_sum(self, columns: Sequence[Array], length: int) -> Array:
        """One after the other, not as a product of matrices: libraries of linear algebra add in an order of their own."""
        total: Array = np.zeros(length)
        for weight, column in zip(self.weights, columns, strict=True):
            total += weight * column
        return total


class Scored:
    """Scores of some units. `total[i]` and `values[:, i]` belong to the i-th of the rows that were asked for."""

    def __init__(self, policy: Policy, columns: Sequence[Array], total: Array) -> None:
        self.policy = policy
        self._columns = columns
        self.total = total

    @functools.cached_property
    def values(self) -> Array:
        """Of each factor (factor, row)."""
        found: Array = np.empty((len(self._columns), len(self.total)))
        for index, column in enumerate(self._columns):
            found[index] = column
        return found

    def of(self, positions: Sequence[int] | Indices) -> Scored:
        """The same for some of the rows, by position."""
        some = np.asarray(positions, np.int64)
        columns = [column[some] for column in self._columns]
        return Scored(self.policy, columns, self.policy.total(columns, len(some)))

    @functools.cached_property
    def contributions(self) -> Array:
        """What each factor adds to each score (factor, row): weight times value where the formula is their sum; otherwise how
        much the score differs from that with the factor at its default. NaN where either is no number. It costs one evaluation
        per factor: take the rows in question with `of` first."""
        policy = self.policy
        if policy.is_sum:
            with np.errstate(all="ignore"):
                return policy.weights[:, None] * self.values
        found = np.zeros_like(self.values)
        used = set(policy.names) if WEIGHTED_SUM in policy.formula.names else set(policy.formula.names)
        for index, factor in enumerate(policy.factors):
            if factor.name not in used:
                continue
            changed = [*self._columns]
            changed[index] = np.full(len(self.total), bounded(factor, factor.default))
            with np.errstate(all="ignore"):
                found[index] = self.total - policy.total(changed, len(self.total))
        return found


def quantised(values: Array) -> Array:
    """`values` with SCORE_BITS binary digits, rounded to the nearest; NaN and infinity stay."""
    # The digits are the low bits of a float, whatever its exponent: half of what is cut off is added before.
    bits = values.view(np.int64)
    rounded: Array = ((bits + (1 << (_BITS_CUT - 1))) & -(1 << _BITS_CUT)).view(np.float64)
    return rounded


def make_policy(spec: SchedulingPolicySpec) -> Policy:
    """The policy that `spec` describes. FormulaError when its formula or the names of its factors are wrong."""
    names: set[str] = set()
    for factor in spec.factors:
        if factor.name in names:
            raise FormulaError(spec.formula, 0, f"two factors are called `{factor.name}`", "rename one")
        if factor.name in RESERVED:
            raise FormulaError(spec.formula, 0, f"a factor can't be called `{factor.name}`: the language uses it", "rename it")
        names.add(factor.name)
    return Policy(spec, compile_formula(spec.formula.strip() or WEIGHTED_SUM, names))
