"""The ledger: exact to the millisecond, each run once, whatever the order, over every period."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.time import parse_time
from muster.quota.ledger import Ledger, Row, Run
from muster.quota.periods import DAY_MS, PERIODS, bounds_ms, day_of
from muster.quota.units import HOUR_MS, consumed, reported, shown, threshold


def ms(text: str) -> int:
    return round(parse_time(text) * 1000)


def run(key: str = "a", *, user: str = "ann", start: int = 0, end: int | None = 1000, **amounts: int) -> Run:
    return Run(key=key, user=user, group="g", queue="q", amounts=amounts or {"cpu": 1000}, start_ms=start, end_ms=end)


@pytest.mark.parametrize(
    ("period", "at", "first", "after"),
    [
        pytest.param("Day", "2026-11-16T23:59:59Z", "2026-11-16", "2026-11-17", id="day"),
        pytest.param("Week", "2026-11-15T12:00:00Z", "2026-11-09", "2026-11-16", id="a week ends with Sunday"),
        pytest.param("Week", "2026-11-16T00:00:00Z", "2026-11-16", "2026-11-23", id="and begins with Monday"),
        pytest.param("Month", "2026-12-31T00:00:00Z", "2026-12-01", "2027-01-01", id="December"),
        pytest.param("Month", "2028-02-29T00:00:00Z", "2028-02-01", "2028-03-01", id="a leap year"),
        pytest.param("Year", "2026-06-01T00:00:00Z", "2026-01-01", "2027-01-01", id="year"),
        pytest.param("Ever", "2026-06-01T00:00:00Z", "1970-01-01", "9999-01-01", id="ever"),
    ],
)
def test_bounds(period: str, at: str, first: str, after: str) -> None:
    assert bounds_ms(period, ms(at)) == (ms(f"{first}T00:00:00Z"), ms(f"{after}T00:00:00Z"))  # type: ignore[arg-type]


@given(st.integers(0, 200_000_000_000_000), st.sampled_from(PERIODS))
def test_every_instant_is_in_one_period_of_whole_days(instant_ms: int, period: str) -> None:
    first, after = bounds_ms(period, instant_ms)  # type: ignore[arg-type]
    assert first <= instant_ms < after
    assert first % DAY_MS == 0
    assert after % DAY_MS == 0
    if period != "Ever":
        assert bounds_ms(period, after)[0] == after  # type: ignore[arg-type]


def test_a_run_over_midnight_is_clipped_to_each_day() -> None:
    start, end = ms("2026-11-16T23:59:30Z"), ms("2026-11-17T00:00:45Z")
    ledger = Ledger([run(start=start, end=end, cpu=2000)])
    day = day_of(start)
    assert ledger.rows() == {
        Row(day, "ann", "g", "q"): {"cpu": 30_000 * 2000},
        Row(day + 1, "ann", "g", "q"): {"cpu": 45_000 * 2000},
    }


def test_a_run_counts_once_and_while_it_goes_on() -> None:
    ledger = Ledger()
    ledger.open(run(end=None))
    assert ledger.used("User", ["ann"], 0, DAY_MS, now_ms=500) == {"cpu": 500_000}
    assert ledger.rates("UserGroup", ["g"]) == {"cpu": 1000}
    assert ledger.add(run(end=1000))
    assert not ledger.add(run(end=2000)), "the first word about a run stands"
    ledger.open(run(end=None))
    assert ledger.used("User", ["ann"], 0, DAY_MS, now_ms=9000) == {"cpu": 1_000_000}
    assert ledger.rates("User", ["ann"]) == {}


def test_what_was_moved_counts_instead_of_what_was_asked_for() -> None:
    moved = Run(
        key="a", user="ann", amounts={"bandwidth-egress": 10**9}, moved={"bandwidth-egress": 7}, start_ms=0, end_ms=2 * DAY_MS
    )
    assert [consumed(totals, "bandwidth") // 8000 for _, totals in moved.days()] == [3, 4]
    assert reported(moved.within(0, 2 * DAY_MS)) == {"bandwidth": 7 * 8000}
    at_once = Run(key="b", moved={"bandwidth-ingress": 5}, start_ms=10, end_ms=10)
    assert dict(at_once.days()) == {0: {"bandwidth-ingress": 40_000}}


@pytest.mark.parametrize(
    ("resource", "limit", "amount_ms", "text"),
    [
        pytest.param("cpu", 2, 2 * 1000 * HOUR_MS, "2", id="core-hours"),
        pytest.param("memory", "1.5", 3 * (1 << 29) * HOUR_MS, "1.5", id="GiB-hours"),
        pytest.param("nvidia.com/gpu", 8, 8 * HOUR_MS, "8", id="GPU-hours"),
        pytest.param("bandwidth", "10G", 10**10 * 8000, "10000000000", id="bytes"),
    ],
)
def test_units(resource: str, limit: str | int, amount_ms: int, text: str) -> None:
    assert threshold(resource, limit) == amount_ms
    assert shown(resource, amount_ms) == text


RUNS = st.lists(
    st.builds(
        lambda key, user, group, queue, cpu, gpu, start, length, moved: Run(
            key=str(key),
            user=user,
            group=group,
            queue=queue,
            amounts={"cpu": cpu, "gpu": gpu},
            start_ms=start,
            end_ms=start + length,
            moved={"bandwidth-egress": moved} if moved else {},
        ),
        st.integers(0, 1000),
        st.sampled_from(["", "ann", "bob"]),
        st.sampled_from(["", "g", "h"]),
        st.sampled_from(["", "q"]),
        st.integers(0, 64_000),
        st.integers(0, 8),
        st.integers(0, 40 * DAY_MS),
        st.integers(0, 3 * DAY_MS),
        st.integers(0, 10**9),
    ),
    max_size=12,
    unique_by=lambda one: one.key,
)


@given(RUNS, st.randoms(use_true_random=False))
def test_nothing_is_lost_or_counted_twice(runs: list[Run], chance: object) -> None:
    """Whatever the order and however often it is told: the whole is what each run used, and all ways to divide it agree."""
    ledger = Ledger(runs)
    again = [*runs, *runs]
    chance.shuffle(again)  # type: ignore[attr-defined]
    assert Ledger(again) == ledger
    want: dict[str, int] = {}
    for one in runs:
        assert one.end_ms is not None
        for name, amount in one.amounts.items():
            if name not in one.moved:
                want[name] = want.get(name, 0) + amount * (one.end_ms - one.start_ms)
        for name, moved in one.moved.items():
            want[name] = want.get(name, 0) + moved * 8000
    want = {name: amount for name, amount in want.items() if amount}
    ever = bounds_ms("Ever", 0)
    for kind in ("User", "UserGroup", "Queue"):
        got = ledger.used(kind, ledger.known(kind), *ever, now_ms=50 * DAY_MS)
        assert {name: amount for name, amount in got.items() if amount} == want
    months = [bounds_ms("Month", month * 28 * DAY_MS) for month in range(4)]
    parts: dict[str, int] = {}
    for first, after in sorted(set(months)):
        for name, amount in ledger.used("User", ledger.known("User"), first, after, now_ms=50 * DAY_MS).items():
            parts[name] = parts.get(name, 0) + amount
    assert {name: amount for name, amount in parts.items() if amount} == want


@given(RUNS)
def test_sums_can_take_the_place_of_runs(runs: list[Run]) -> None:
    whole, folded = Ledger(runs), Ledger()
    for row, totals in whole.rows().items():
        folded.add_sum(row, totals)
    assert folded == whole


@given(RUNS, st.integers(0, 45 * DAY_MS))
def test_open_runs_count_as_if_they_ended_now(runs: list[Run], now_ms: int) -> None:
    started = [one for one in runs if one.start_ms <= now_ms]
    ledger = Ledger()
    for one in started:
        ledger.open(one)
    assert ledger.rows(now_ms) == Ledger([one.until(now_ms) for one in started]).rows()
