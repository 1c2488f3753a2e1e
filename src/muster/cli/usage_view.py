"""What users, groups and queues have used, from the pages of the ledger and from what runs: tables and CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from muster.cli.accounts_view import budget_text, use_of_limits
from muster.controllers.ledger_books import Account, Books
from muster.controllers.ledger_pages import day_text, runs_page
from muster.controllers.ledger_runs import RunPod, record_of
from muster.controllers.ledger_status import amounts_text, prices_for
from muster.history.tracking import Run as Recorded
from muster.objects.kinds.muster import User, UserGroup
from muster.objects.kinds.muster_base import Period
from muster.objects.kinds.muster_queues import Queue
from muster.objects.kinds.muster_usage import RUNS_MAX, UsageRecord
from muster.objects.meta import generation_of, name_of, uid_of
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.quota.ledger import Row, Run, Totals, add_into
from muster.quota.limits import NodeKind
from muster.quota.periods import DAY_MS, bounds_ms, day_of
from muster.quota.prices import cost
from muster.quota.units import reported, shown, unit_name

What = Literal["user", "group", "queue"]
KINDS: Final[dict[What, NodeKind]] = {"user": "User", "group": "UserGroup", "queue": "Queue"}
NOBODY: Final = "-"
_VIEWS: Final[dict[NodeKind, type[User] | type[UserGroup] | type[Queue]]] = {
    "User": User,
    "UserGroup": UserGroup,
    "Queue": Queue,
}
_HIDDEN: Final = frozenset({"pods"})
_FIELDS: Final[dict[NodeKind, int]] = {"User": 1, "UserGroup": 2, "Queue": 3}
"""Of a row of the ledger."""


class Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one user, group or queue has used in a period, in the units of `docs/users.md`."""

    name: str
    used: dict[str, str]
    spent: float = 0
    running: int = 0
    in_use: str = ""
    """Of each thing that is limited at once, what is in use now."""
    budget: str = ""
    """What is spent of it, in its own period."""


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    period: Period
    since: str
    until: str
    lines: list[Line]
    parts: list[Line] = []
    """Of one group or queue: by user; of one user: by queue."""


def books_of(
    *, accounts: Iterable[tuple[NodeKind, Raw]], pages: Iterable[Raw], pods: Iterable[Raw], now_ms: int
) -> tuple[Books, list[str]]:
    """The ledger's picture from objects, and what of them could not be read."""
    books, problems = Books(), []
    for kind, raw in accounts:
        try:
            books.put_account(Account(view_of(_VIEWS[kind], raw), name_of(raw), uid_of(raw), generation_of(raw)))
        except msgspec.ValidationError as error:
            problems.append(f"{kind} {name_of(raw)}: {error}")
    for raw in pages:
        try:
            books.put_page(name_of(raw), view_of(UsageRecord, raw))
        except msgspec.ValidationError as error:
            problems.append(f"UsageRecord {name_of(raw)}: {error}")
    for raw in pods:
        try:
            books.put_pod(view_of(RunPod, raw), "", now_ms)
        except msgspec.ValidationError as error:
            problems.append(f"Pod {name_of(raw)}: {error}")
    books.loaded(now_ms)
    return books, [*problems, *books.pages.problems.values()]


def books_from(
    runs: Iterable[tuple[Run, str]], accounts: Iterable[tuple[NodeKind, Raw]], now_ms: int
) -> tuple[Books, list[Raw], list[str]]:
    """The ledger made anew from runs, wherever they are known from, without any of its pages; the pages that it would have had;
    and problems. A run counts for the group that its user is in now."""
    books, problems = books_of(accounts=accounts, pages=(), pods=(), now_ms=now_ms)
    whole: list[tuple[Run, str]] = []
    for run, pod in runs:
        said = books.filled_in(run)
        whole.append((said, pod))
        if said.end_ms is None:
            books.ledger.open(said)
        else:
            books.ledger.add(said)
    return books, pages_for(whole), problems


def recorded_runs(found: Iterable[Recorded]) -> Iterator[tuple[Run, str]]:
    """Runs of the decision log that the ledger would have noted, with the pod of each."""
    for one in found:
        if one.started is None or not (one.user or one.queue or one.group):
            continue
        start = round(one.started * 1000)
        end = None if one.ended is None else max(round(one.ended * 1000), start)
        amounts = {name: amount for name, amount in one.requests.items() if amount > 0}
        run = Run(
            key=one.uid,
            user=one.user,
            group=one.group,
            queue=one.queue,
            work=one.job or f"Pod/{one.namespace}/{one.pod}",
            amounts=amounts,
            start_ms=start,
            end_ms=end,
        )
        yield run, f"{one.namespace}/{one.pod}"


def pages_for(runs: Iterable[tuple[Run, str]]) -> list[Raw]:
    """UsageRecords that say what these runs used: to be applied where the ledger is lost. Those that go on are left out."""
    ended = [record_of(run, pod) for run, pod in runs if run.end_ms is not None]
    return [runs_page(ended[first : first + RUNS_MAX]) for first in range(0, len(ended), RUNS_MAX)]


def report(books: Books, what: What, period: Period, now_ms: int, *, is_live: bool = True) -> Report:
    """Everyone of the kind, who has an object or has used something. `is_live` is false for books that were made from the log
    of decisions alone: what is in use now is not in them."""
    kind = KINDS[what]
    first, after = bounds_ms(period, now_ms)
    names = {name for one, name in books.accounts if one == kind} | set(books.ledger.known(kind))
    lines = []
    for name in sorted(names):
        below = books.names_below((kind, name))
        totals = books.ledger.used(kind, below, first, after, now_ms)
        if not totals and not name:
            continue
        lines.append(
            Line(
                name=name or NOBODY,
                used=_shown(totals),
                spent=_cost(books, kind, name, totals),
                running=books.tree.running(kind, name).jobs,
                in_use=_in_use(books, kind, name) if is_live else "",
                budget=_budget(books, kind, name, now_ms),
            )
        )
    return Report(period=period, since=_instant(first), until=_instant(min(after, now_ms)), lines=lines)


def by_day(books: Books, what: What, name: str, period: Period, now_ms: int) -> Report:
    """One of them, day by day, days without use left out; and by user, or by queue for a user."""
    kind = KINDS[what]
    first, after = bounds_ms(period, now_ms)
    below = set(books.names_below((kind, name)))
    days: dict[int, Totals] = {}
    by_name: dict[str, Totals] = {}
    for row, totals in books.ledger.rows(now_ms).items():
        if row[_FIELDS[kind]] in below and first <= row.day * DAY_MS < after:
            add_into(days.setdefault(row.day, {}), totals)
            add_into(by_name.setdefault(row.queue if kind == "User" else row.user, {}), totals)
    lines = [
        Line(name=day_text(day), used=_shown(totals), spent=_cost(books, kind, name, totals))
        for day, totals in sorted(days.items())
    ]
    parts = [
        Line(name=part or NOBODY, used=_shown(totals), spent=_cost(books, "User", name if kind == "User" else part, totals))
        for part, totals in sorted(by_name.items())
    ]
    since, until = _instant(first), _instant(min(after, now_ms))
    return Report(period=period, since=since, until=until, lines=lines, parts=parts)


def _in_use(books: Books, kind: NodeKind, name: str) -> str:
    account = books.accounts.get((kind, name))
    if account is None:
        return ""
    running = books.tree.running(kind, name)
    usage = {"concurrent": amounts_text(running.amounts), "jobsRunning": running.jobs}
    return use_of_limits({"limits": msgspec.to_builtins(account.view.spec.limits)}, usage)


def _budget(books: Books, kind: NodeKind, name: str, now_ms: int) -> str:
    account = books.accounts.get((kind, name))
    if account is None or isinstance(account.view, Queue) or account.view.spec.budget is None:
        return ""
    budget = account.view.spec.budget
    totals = books.ledger.used(kind, books.names_below((kind, name)), *bounds_ms(budget.period, now_ms), now_ms)
    return budget_text({"budget": msgspec.to_builtins(budget)}, {"spent": _cost(books, kind, name, totals)})


def _shown(totals: Totals) -> dict[str, str]:
    return {name: shown(name, amount) for name, amount in sorted(reported(totals).items()) if name not in _HIDDEN}


def _cost(books: Books, kind: NodeKind, name: str, totals: Totals) -> float:
    account = books.accounts.get((kind, name))
    if account is None or isinstance(account.view, Queue):
        return 0.0
    return round(float(cost(totals, prices_for(books, account.view))), 6)


def table(lines: Sequence[Line], head: str) -> tuple[list[str], list[list[str]]]:
    """Columns are the resources that anybody used, and what somebody has: a price, running work, limits, a budget."""
    resources = sorted({name for line in lines for name in line.used})
    has_cost = any(line.spent for line in lines)
    has_running = any(line.running for line in lines)
    has_limits, has_budget = any(line.in_use for line in lines), any(line.budget for line in lines)
    headers = [head, *(f"{name.upper()} ({unit_name(name)})" for name in resources)]
    headers += ["SPENT"] * has_cost + ["RUNNING"] * has_running + ["IN USE / LIMIT"] * has_limits + ["BUDGET"] * has_budget
    rows = [
        [
            line.name,
            *(line.used.get(name, "0") for name in resources),
            *([f"{line.spent:.2f}"] * has_cost),
            *([str(line.running)] * has_running),
            *([line.in_use] * has_limits),
            *([line.budget] * has_budget),
        ]
        for line in lines
    ]
    return headers, rows


CSV_HEADERS: Final = ("day", "user", "group", "queue", "resource", "amount", "unit", "spent", "resource_milliseconds")


def csv_text(books: Books, period: Period, now_ms: int, only: tuple[What, str] | None = None) -> str:
    """Every sum of the period: a line for each day, user, group, queue and resource. The last column is exact."""
    first, after = bounds_ms(period, now_ms)
    rows = [row for row in books.ledger.rows(now_ms).items() if day_of(first) <= row[0].day < day_of(after)]
    if only is not None and only[1]:
        kind = KINDS[only[0]]
        below = set(books.names_below((kind, only[1])))
        rows = [row for row in rows if row[0][_FIELDS[kind]] in below]
    written = io.StringIO()
    out = csv.writer(written, lineterminator="\n")
    out.writerow(CSV_HEADERS)
    out.writerows(_csv_rows(books, rows))
    return written.getvalue()


def _csv_rows(books: Books, rows: Sequence[tuple[Row, Totals]]) -> Iterable[tuple[object, ...]]:
    for row, totals in rows:
        for name, amount in sorted(totals.items()):
            if name in _HIDDEN or not amount:
                continue
            spent = _cost(books, "UserGroup", row.group, {name: amount})
            yield (day_text(row.day), *row[1:4], name, shown(name, amount), unit_name(name), f"{spent:.6f}", amount)


def _instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
