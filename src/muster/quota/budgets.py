"""Consumption limits and budgets: how much of each is used up, and what follows. Pure.

`judge` says of one user, group or queue at one moment: which consumption limits are reached, why nothing new of it may start at
all, which limits are in force besides its own, what to warn of, and when to look again because use that goes on by itself
will reach something, or a new period begins.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final, Literal

import msgspec

from muster.objects.kinds.muster_base import Budget, ConsumptionLimit, Limits, Period
from muster.objects.reasons import Reason
from muster.objects.time import format_time
from muster.quota.ledger import Totals
from muster.quota.periods import bounds_ms
from muster.quota.prices import Prices, cost, cost_per_ms
from muster.quota.units import consumed, shown, threshold, unit_name

UsedIn = Callable[[Period], Totals]
"""What was used in the present period of that kind, up to now."""
SPENT_DIGITS: Final = 6


class Warned(msgspec.Struct, frozen=True):
    """A share of a budget that is used up."""

    percent: int
    period_start_ms: int
    message: str


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    exhausted: tuple[tuple[str, str], ...] = ()
    """Consumption limits that are reached, in the order of the spec: resource as the limit names it, and the figures."""
    stopped: str = ""
    """`<reason code>: <why>`; "" when new work may start."""
    limits: Limits | None = None
    """In force besides those in the spec, because a budget is spent."""
    spent: float = 0
    percent: int = 0
    """Of the budget, rounded down; 0 without one."""
    warned: tuple[Warned, ...] = ()
    """All thresholds that are reached, the lowest first. That it is spent is one of them, whatever the budget names."""
    look_ms: int | None = None
    """When time alone may change the above."""
    problems: tuple[str, ...] = ()


class _Look(msgspec.Struct):
    """What is found on the way."""

    whose: str
    used: UsedIn
    rates: Totals
    now_ms: int
    times_ms: list[int] = msgspec.field(default_factory=list)
    exhausted: list[tuple[str, str]] = msgspec.field(default_factory=list)
    stops: list[str] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)


def judge(
    whose: str,
    *,
    limits: Limits,
    budget: Budget | None,
    prices: Prices,
    used: UsedIn,
    rates: Totals,
    now_ms: int,
) -> Judgement:
    """`whose` is the kind and name, for messages; `rates` are the amounts in use now."""
    look = _Look(whose, used, rates, now_ms)
    for index, limit in enumerate(limits.consumption):
        _judge_consumption(look, f"spec.limits.consumption[{index}]", limit)
    spent, percent = Fraction(0), 0
    warned: tuple[Warned, ...] = ()
    in_force: Limits | None = None
    if budget is not None:
        amount = Fraction(str(budget.amount))
        spent = cost(used(budget.period), prices)
        percent = int(spent * 100 / amount) if amount else 100
        warned = tuple(_warned(whose, budget, spent, percent, bounds_ms(budget.period, now_ms)[0]))
        in_force = _judge_budget(look, budget, amount, spent, cost_per_ms(rates, prices))
    return Judgement(
        exhausted=tuple(look.exhausted),
        stopped=look.stops[0] if look.stops else "",
        limits=in_force,
        spent=float(round(spent, SPENT_DIGITS)),
        percent=percent,
        warned=warned,
        look_ms=min(look.times_ms) if look.times_ms else None,
        problems=tuple(look.problems),
    )


def _judge_budget(look: _Look, budget: Budget, amount: Fraction, spent: Fraction, grows: Fraction) -> Limits | None:
    """The limits that hold because it is spent. A budget of nothing is spent from the beginning."""
    after = bounds_ms(budget.period, look.now_ms)[1]
    if budget.period != "Ever":
        look.times_ms.append(after)
    for mark in sorted({*budget.warn_at_percent, 100}):
        missing = amount * mark / 100 - spent
        if grows > 0 and missing > 0:
            look.times_ms.append(look.now_ms + _ceil(missing / grows))
    if spent < amount:
        return None
    if budget.when_spent == "Hold":
        look.stops.append(
            f"{Reason.BUDGET_SPENT.value}: spec.budget of {look.whose}: {_money(spent)} of {_money(amount)} per "
            f"{budget.period} is spent" + _next_period(budget.period, after)
        )
    return budget.limits if budget.when_spent == "Limit" else None


def _judge_consumption(look: _Look, field: str, limit: ConsumptionLimit) -> None:
    try:
        most = threshold(limit.resource, limit.amount)
    except ValueError as error:
        look.problems.append(f"{field}.amount of {look.whose}: {error}")
        most = 0
    after = bounds_ms(limit.period, look.now_ms)[1]
    have = consumed(look.used(limit.period), limit.resource)
    if limit.period != "Ever":
        look.times_ms.append(after)
    if have >= most:
        figures = (
            f"{field} of {look.whose}: limit {shown(limit.resource, most)} {unit_name(limit.resource)} of {limit.resource} per "
            f"{limit.period}, used {shown(limit.resource, have)}"
        )
        look.exhausted.append((limit.resource, figures + _next_period(limit.period, after)))
    elif (rate := consumed(look.rates, limit.resource)) > 0:
        look.times_ms.append(look.now_ms + -(-(most - have) // rate))


def _next_period(period: Period, after_ms: int) -> str:
    return "" if period == "Ever" else f"; the next period begins at {format_time(after_ms / 1000)}"


def _warned(whose: str, budget: Budget, spent: Fraction, percent: int, first_ms: int) -> list[Warned]:
    amount = Fraction(str(budget.amount))
    return [
        Warned(
            mark,
            first_ms,
            f"{whose} has spent {_money(spent)} of its budget of {_money(amount)} per {budget.period} ({percent} %): "
            f"{(_WHAT_FOLLOWS if mark < 100 else _WHAT_HOLDS)[budget.when_spent]}",
        )
        for mark in sorted({*budget.warn_at_percent, 100})
        if spent * 100 >= amount * mark and (spent or not amount)
    ]


_WHAT_FOLLOWS: Final[dict[Literal["Hold", "Limit", "Warn"], str]] = {
    "Hold": "once it is spent, nothing new starts",
    "Limit": "once it is spent, the limits in spec.budget.limits hold",
    "Warn": "nothing is held back when it is spent",
}
_WHAT_HOLDS: Final[dict[Literal["Hold", "Limit", "Warn"], str]] = {
    "Hold": "nothing new starts until the next period",
    "Limit": "the limits in spec.budget.limits hold until the next period",
    "Warn": "nothing is held back",
}


def _money(amount: Fraction) -> str:
    return f"{float(amount):.2f}"


def _ceil(number: Fraction) -> int:
    return -(-number.numerator // number.denominator)
