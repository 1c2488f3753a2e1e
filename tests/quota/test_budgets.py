"""Consumption limits, prices and budgets: what is spent, what follows, and when to look again."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.kinds.muster_base import Budget, ConsumptionLimit, Limits, Price
from muster.quota.budgets import Judgement, judge
from muster.quota.ledger import Ledger, Run
from muster.quota.periods import DAY_MS, bounds_ms
from muster.quota.prices import cost, prices_of
from muster.quota.units import HOUR_MS

PRICES = [
    Price(resource="cpu", amount=0.1),
    Price(resource="nvidia.com/gpu", amount=2),
    Price(resource="bandwidth", amount=0.05),
]


def judged(
    ledger: Ledger, now_ms: int, *, limits: Limits | None = None, budget: Budget | None = None, name: str = "ann"
) -> Judgement:
    def used(period: str) -> dict[str, int]:
        return ledger.used("User", [name], *bounds_ms(period, now_ms), now_ms=now_ms)  # type: ignore[arg-type]

    return judge(
        f"User {name}",
        limits=limits or Limits(),
        budget=budget,
        prices=prices_of(PRICES),
        used=used,
        rates=ledger.rates("User", [name]),
        now_ms=now_ms,
    )


def test_cost() -> None:
    totals = {"cpu": 3 * 1000 * HOUR_MS, "nvidia.com/gpu": HOUR_MS // 2, "bandwidth-egress": 4 * 10**9 * 8000, "memory": 1}
    assert cost(totals, prices_of(PRICES)) == Fraction("0.3") + 1 + Fraction("0.2")


@pytest.mark.parametrize(
    ("when_spent", "stopped", "limits"),
    [
        pytest.param("Hold", "BudgetSpent: spec.budget of User ann: 10.00 of 10.00 per Month is spent", None, id="Hold"),
        pytest.param("Limit", "", Limits(concurrent={"cpu": 1}), id="Limit"),
        pytest.param("Warn", "", None, id="Warn"),
    ],
)
def test_a_spent_budget(when_spent: str, stopped: str, limits: Limits | None) -> None:
    budget = Budget(amount=10, warn_at_percent=[100, 50], when_spent=when_spent, limits=Limits(concurrent={"cpu": 1}))  # type: ignore[arg-type]
    ledger = Ledger([Run(key="a", user="ann", amounts={"nvidia.com/gpu": 1}, start_ms=0, end_ms=5 * HOUR_MS)])
    found = judged(ledger, DAY_MS, budget=budget)
    assert (found.stopped.partition(";")[0], found.limits, found.spent) == (stopped, limits, 10.0)
    assert [one.percent for one in found.warned] == [50, 100]
    next_month = judged(ledger, 31 * DAY_MS, budget=budget)
    assert (next_month.stopped, next_month.limits, next_month.spent, next_month.warned) == ("", None, 0.0, ())


def test_a_budget_is_looked_at_again_exactly_when_it_is_spent() -> None:
    budget = Budget(amount=10, warn_at_percent=[80])
    ledger = Ledger()
    ledger.open(Run(key="a", user="ann", amounts={"nvidia.com/gpu": 1}, start_ms=0))
    first = judged(ledger, 0, budget=budget)
    assert first.look_ms == 4 * HOUR_MS
    second = judged(ledger, first.look_ms, budget=budget)
    assert [one.percent for one in second.warned] == [80]
    assert second.stopped == ""
    assert second.look_ms == 5 * HOUR_MS
    assert judged(ledger, 5 * HOUR_MS - 1, budget=budget).stopped == ""
    spent = judged(ledger, 5 * HOUR_MS, budget=budget)
    assert spent.stopped != ""
    assert [(one.percent, one.message.rpartition(": ")[2]) for one in spent.warned] == [
        (80, "once it is spent, nothing new starts"),
        (100, "nothing new starts until the next period"),
    ]


@given(st.integers(1, 50), st.integers(1, 64_000), st.integers(0, 10 * HOUR_MS))
def test_a_consumption_limit_stops_at_its_very_millisecond(core_hours: int, cpu: int, used_ms: int) -> None:
    limits = Limits(consumption=[ConsumptionLimit(resource="cpu", amount=core_hours, period="Ever")])
    ledger = Ledger([Run(key="before", user="ann", amounts={"cpu": 1000}, start_ms=0, end_ms=used_ms)])
    ledger.open(Run(key="now", user="ann", amounts={"cpu": cpu}, start_ms=used_ms))
    found = judged(ledger, used_ms, limits=limits)
    if found.exhausted:
        assert used_ms >= core_hours * HOUR_MS
        return
    assert found.look_ms is not None
    assert judged(ledger, found.look_ms - 1, limits=limits).exhausted == ()
    ((resource, figures),) = judged(ledger, found.look_ms, limits=limits).exhausted
    assert resource == "cpu"
    assert figures.startswith(f"spec.limits.consumption[0] of User ann: limit {core_hours} core-hours")


def test_a_limit_that_cannot_be_read_stops_and_says_so() -> None:
    found = judged(Ledger(), 0, limits=Limits(consumption=[ConsumptionLimit(resource="cpu", amount="much")]))
    assert [resource for resource, _ in found.exhausted] == ["cpu"]
    assert "spec.limits.consumption[0].amount of User ann" in found.problems[0]
