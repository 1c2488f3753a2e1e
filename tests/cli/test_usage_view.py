"""`muster usage`: the sums that it shows are those of the ledger, in the units that people write, and the CSV is exact."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from muster.cli.usage_view import CSV_HEADERS, books_from, books_of, by_day, csv_text, recorded_runs, report, table
from muster.controllers.ledger_books import Account, Books
from muster.controllers.ledger_pages import runs_page
from muster.controllers.ledger_runs import record_of
from muster.history.tracking import Run as Recorded
from muster.objects.kinds.muster import User
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import view_of
from muster.quota.ledger import Run
from muster.quota.limits import NodeKind
from muster.quota.periods import DAY_MS
from muster.quota.units import HOUR_MS

NOW = 1_794_787_200_000 + 10 * HOUR_MS
"""2026-11-16, ten o'clock."""


def named(name: str, **spec: Any) -> Raw:
    return {"metadata": {"name": name, "uid": name}, "spec": spec}


def run(key: str, user: str, group: str, hours_ago: int, hours: int, **amounts: int) -> Run:
    start = NOW - hours_ago * HOUR_MS
    return Run(key=key, user=user, group=group, queue="q", amounts=amounts, start_ms=start, end_ms=start + hours * HOUR_MS)


@pytest.fixture
def books() -> Books:
    runs = [
        run("a", "ann", "vision", 30, 4, cpu=2000, memory=1 << 30),
        run("b", "ann", "vision", 5, 2, cpu=1000),
        run("c", "bob", "lab", 5, 1, **{"nvidia.com/gpu": 2}),
        run("d", "ann", "vision", 24 * 40, 1, cpu=1000),
    ]
    accounts: list[tuple[NodeKind, Raw]] = [
        ("UserGroup", named("lab", prices=[{"resource": "cpu", "amount": 0.5}, {"resource": "nvidia.com/gpu", "amount": 3}])),
        ("UserGroup", named("vision", parent="lab")),
        ("User", named("ann", group="vision")),
        ("User", named("bob", group="lab")),
    ]
    going: Raw = {
        "metadata": {"name": "p", "namespace": "d", "uid": "p", "labels": {"muster.dev/user": "bob", "muster.dev/queue": "q"}},
        "spec": {"nodeName": "n", "containers": [{"resources": {"requests": {"cpu": "500m"}}}]},
        "status": {"phase": "Running", "startTime": format_time((NOW - HOUR_MS) / 1000)},
    }
    made, problems = books_of(
        accounts=accounts, pages=[runs_page([record_of(one, "d/p") for one in runs])], pods=[going], now_ms=NOW
    )
    assert problems == []
    return made


def test_users(books: Books) -> None:
    headers, rows = table(report(books, "user", "Month", NOW).lines, "USER")
    assert headers == ["USER", "CPU (core-hours)", "MEMORY (GiB-hours)", "NVIDIA.COM/GPU (hours)", "SPENT", "RUNNING"]
    assert rows == [["ann", "10", "4", "0", "5.00", "0"], ["bob", "0.5", "0", "2", "6.25", "1"]]


def test_groups_include_those_below(books: Books) -> None:
    found = {line.name: line for line in report(books, "group", "Month", NOW).lines}
    assert (found["vision"].used["cpu"], found["lab"].used["cpu"]) == ("10", "10.5")
    assert found["lab"].spent == 11.25


def test_day_by_day(books: Books) -> None:
    found = by_day(books, "user", "ann", "Month", NOW)
    assert [(line.name, line.used["cpu"]) for line in found.lines] == [("2026-11-15", "8"), ("2026-11-16", "2")]
    assert len(by_day(books, "user", "ann", "Year", NOW).lines) == 3
    assert len(by_day(books, "group", "lab", "Day", NOW).lines) == 1


def test_csv_is_exact(books: Books) -> None:
    lines = list(csv.DictReader(io.StringIO(csv_text(books, "Ever", NOW))))
    assert tuple(lines[0]) == CSV_HEADERS
    cpu = sum(int(line["resource_milliseconds"]) for line in lines if line["resource"] == "cpu")
    assert cpu == 11_500 * HOUR_MS
    only = list(csv.DictReader(io.StringIO(csv_text(books, "Ever", NOW, ("user", "bob")))))
    assert {line["user"] for line in only} == {"bob"}
    assert sum(int(line["resource_milliseconds"]) for line in only if line["resource"] == "cpu") == 500 * HOUR_MS


def test_bad_objects_are_told_and_the_rest_counts() -> None:
    _, problems = books_of(
        accounts=[("User", {"metadata": {"name": "x"}, "spec": 3})],
        pages=[{"metadata": {"name": "page"}, "spec": {"sums": [{"day": "never", "amounts": {"cpu": "1"}}]}}],
        pods=[],
        now_ms=DAY_MS,
    )
    assert [one.split(":")[0] for one in problems] == ["User x", "spec.sums[0] of UsageRecord page"]


def test_the_log_of_decisions_gives_the_same() -> None:
    """Made anew from recorded runs: sums, and pages that come to the same; a run that says no group is of its user's group."""
    accounts: list[tuple[NodeKind, Raw]] = [("UserGroup", named("lab")), ("User", named("ann", group="lab"))]
    recorded = [
        Recorded(namespace="d", pod="p", uid="1", user="ann", started=100.0, ended=103.0, requests={"cpu": 2000}),
        Recorded(namespace="d", pod="q", uid="2", user="ann", started=100.0, requests={"cpu": 1000}),
        Recorded(namespace="d", pod="r", uid="3", user="ann", requests={"cpu": 1000}),
        Recorded(namespace="d", pod="s", uid="4", started=1.0, ended=2.0, requests={"cpu": 1000}),
    ]
    books, pages, problems = books_from(recorded_runs(recorded), accounts, now_ms=105_000)
    assert problems == []
    assert books.ledger.used("UserGroup", ["lab"], 0, DAY_MS, 105_000) == {"cpu": 6_000_000 + 5_000_000}
    restored, _ = books_of(accounts=accounts, pages=pages, pods=[], now_ms=105_000)
    assert restored.ledger.used("User", ["ann"], 0, DAY_MS, 105_000) == {"cpu": 6_000_000}


def test_parts_limits_and_budgets(books: Books) -> None:
    """Of a group by user, of a user by queue; what is in use of limits, and what is spent in the budget's own period."""
    lab = by_day(books, "group", "lab", "Month", NOW)
    assert [(part.name, part.used.get("cpu"), part.spent) for part in lab.parts] == [("ann", "10", 5.0), ("bob", "0.5", 6.25)]
    assert [part.name for part in by_day(books, "user", "ann", "Month", NOW).parts] == ["q"]
    raw = named("bob", group="lab", limits={"concurrent": {"cpu": 4}}, budget={"amount": 10, "period": "Day"})
    books.put_account(Account(view_of(User, raw), "bob", "bob", 1))
    found = {line.name: line for line in report(books, "user", "Year", NOW).lines}
    assert (found["bob"].in_use, found["bob"].budget) == ("cpu 500m/4", "6.25/10.00 Day")
    assert not any(line.in_use for line in report(books, "user", "Year", NOW, is_live=False).lines), "the past holds nothing"
    headers, rows = table(list(found.values()), "USER")
    assert headers[-2:] == ["IN USE / LIMIT", "BUDGET"]
    assert rows[0][-2:] == ["", ""]


def test_csv_has_what_it_cost(books: Books) -> None:
    lines = csv.DictReader(io.StringIO(csv_text(books, "Month", NOW)))
    assert round(sum(float(line["spent"]) for line in lines), 6) == 11.25
