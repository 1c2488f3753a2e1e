"""`muster history`: what a decision log says about the past, as a table, CSV or JSON."""

from __future__ import annotations

import csv
import functools
import io
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from muster.cli.datadir import default_data_dir
from muster.cli.errors import CliError
from muster.cli.framework import Entry, LazyGroup, command, common_options

if TYPE_CHECKING:
    from muster.history.queries import Value, Wanted
    from muster.history.reader import Finding, Log

F = TypeVar("F", bound=Callable[..., Any])
_TIMES = frozenset({"submitted", "placed", "started", "ended", "at", "began"})
_BY = ("user", "group", "queue", "namespace", "type", "node", "job")
ROWS_MAX = 1_000_000


@click.group(
    "history",
    cls=LazyGroup,
    entries={
        "jobs": Entry(__name__, "jobs", "Jobs: whose, where, when, how long they waited and ran."),
        "runs": Entry(__name__, "runs", "Pods: the same for each, with what it asked for and used."),
        "decisions": Entry(__name__, "decisions", "What was decided, and why."),
        "waits": Entry(__name__, "waits", "How long work waited, by user, queue, reason and so on."),
        "use": Entry(__name__, "use", "What was used of what was asked for."),
        "actions": Entry(__name__, "actions", "Who submitted, changed and commanded what."),
        "segments": Entry(__name__, "segments", "The segments of the log: whose, from when, whole or not."),
        "sql": Entry(__name__, "sql", "Ask in SQL (needs muster[history])."),
    },
    short_help="Ask what ran where when, what waited, what was used, and who did what.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def history() -> None:
    """Ask a decision log what ran where when, what waited, what was used, and who did what."""


history.params.extend(common_options())


def _log_options(function: F) -> F:
    """`--log`, `--from`, `--to`, `-o`, `--limit`; the function gets `ask`."""

    @functools.wraps(function)
    def wrapper(*args: Any, log: str | None, start: str | None, stop: str | None, output: str, limit: int, **more: Any) -> Any:
        return function(*args, ask=_Ask(log, start, stop, output, limit), **more)

    decorated: Any = wrapper
    for option in (
        click.option(
            "--limit",
            metavar="N",
            type=click.IntRange(1, ROWS_MAX),
            default=1_000,
            show_default=True,
            help="Rows at most; the last ones.",
        ),
        click.option(
            "-o",
            "--output",
            type=click.Choice(["table", "csv", "json"]),
            default="table",
            show_default=True,
            help="How to print it.",
        ),
        click.option("--to", "stop", metavar="TIME", help="Leave out what came after."),
        click.option(
            "--from",
            "start",
            metavar="TIME",
            help="Leave out what came before: 2026-11-16T09:00:00Z, a date, or how long ago: 2h, 7d.",
        ),
        click.option(
            "--log", metavar="LOG", help="A directory, one of its *.mlog files, or a URL.  [default: that of muster up]"
        ),
    ):
        decorated = option(decorated)
    return cast(F, decorated)


def _filters(function: F) -> F:
    decorated: Any = function
    for name, text in (
        ("job", "Only this job, unit or pod."),
        ("namespace", "Only this namespace."),
        ("queue", "Only this queue."),
        ("group", "Only this group."),
        ("user", "Only this user."),
    ):
        decorated = click.option(f"--{name}", metavar="NAME", default="", help=text)(decorated)
    return cast(F, decorated)


class _Ask:
    """The log that is asked, and how its answer is printed."""

    def __init__(self, place: str | None, start: str | None, stop: str | None, output: str, limit: int) -> None:
        self._place, self._start, self._stop, self._output, self._limit = place, start, stop, output, limit

    @functools.cached_property
    def log(self) -> Log:
        from muster.cli.history_places import open_log

        return open_log(self._place or str(default_data_dir(os.environ).absolute() / "history"))

    def wanted(self, **filters: str) -> Wanted:
        from muster.cli.history_places import instant
        from muster.history.queries import Wanted
        from muster.objects.time import wall_clock

        now = wall_clock()
        return Wanted(start=instant(self._start, "--from", now), stop=instant(self._stop, "--to", now), **filters)

    def note(self, finding: Finding) -> None:
        if finding.is_open and finding.segment == str(self.log.names[-1]):
            return  # the log of a Muster that runs
        click.echo(f"warning: {finding.segment}: {finding.text}", err=True)

    def show(self, columns: tuple[str, ...], rows: Iterable[tuple[Value, ...]]) -> None:
        from collections import deque

        from muster.cli.output import emit, simple_table, to_json
        from muster.history.segments import SegmentDamaged

        kept: deque[tuple[Value, ...]] = deque(maxlen=self._limit)
        count = 0
        try:
            for row in rows:
                count += 1
                kept.append(row)
        except SegmentDamaged as error:
            raise CliError(str(error)) from error
        if count > len(kept):
            click.echo(f"note: the last {len(kept)} of {count} rows are shown; --limit shows more", err=True)
        if self._output == "json":
            emit(to_json([dict(zip(columns, row, strict=True)) for row in kept]))
        elif self._output == "csv":
            text = io.StringIO()
            writer = csv.writer(text)
            writer.writerow(columns)
            writer.writerows(_for_csv(columns, row) for row in kept)
            emit(text.getvalue())
        else:
            emit(simple_table(columns, [_shown(columns, row) for row in kept]))


def _for_csv(columns: tuple[str, ...], row: tuple[Value, ...]) -> list[Value]:
    """Texts that a spreadsheet would take for a formula are quoted: names in a log are anybody's."""
    return [f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell for cell in row]


def _shown(columns: tuple[str, ...], row: tuple[Value, ...]) -> list[Value]:
    from muster.objects.time import format_time

    return [_cell(column, cell, format_time) for column, cell in zip(columns, row, strict=True)]


def _cell(column: str, cell: Value, format_time: Callable[[float], str]) -> Value:
    if not isinstance(cell, float):
        return cell
    if column in _TIMES:
        return format_time(cell) if cell > 1e6 else f"{cell:g}"
    return f"{cell:.1f}" if column.endswith("_s") else f"{cell:.6g}"


@command("jobs", "Jobs: whose, where, when, how long they waited and ran.")
@_filters
@_log_options
def jobs(*, ask: _Ask, **filters: str) -> None:
    """One row per job, and per pod or gang that belongs to no job: whose it was, where it ran and when, how long it waited and
    ran, how it ended, and how often pods of it had to make way."""
    from muster.history import queries

    table = queries.jobs_table(queries.runs(ask.log, ask.wanted(**filters), ask.note))
    ask.show(table.columns, table.rows)


@command("runs", "Pods: the same for each, with what it asked for and used.")
@click.option("--at", metavar="TIME", help="Only pods that had a node at this moment: who used what.")
@_filters
@_log_options
def runs(*, ask: _Ask, at: str | None, **filters: str) -> None:
    """One row per pod: where it ran and when, what it asked for, what it used on average and at most, and how long it waited
    for what."""
    from muster.cli.history_places import instant
    from muster.history import queries
    from muster.objects.time import wall_clock

    found = queries.runs(ask.log, ask.wanted(**filters), ask.note)
    moment = instant(at, "--at", wall_clock())
    table = queries.runs_table(found if moment is None else queries.running_at(found, moment))
    ask.show(table.columns, table.rows)


@command("decisions", "What was decided, and why.")
@click.option("--job", metavar="NAME", default="", help="Only this unit: a job, gang or pod.")
@_log_options
def decisions(*, ask: _Ask, job: str) -> None:
    """Every decision in order: what was placed where, what had to wait and why, what was evicted or given back, with the
    factors that gave the unit its place in the queue."""
    from muster.history import queries

    ask.show(queries.DECISION_COLUMNS, queries.decisions(ask.log, ask.wanted(job=job), ask.note))


@command("waits", "How long work waited, by user, queue, reason and so on.")
@click.option("--by", type=click.Choice([*_BY, "reason"]), default="queue", show_default=True, help="What the rows are.")
@_filters
@_log_options
def waits(*, ask: _Ask, by: str, **filters: str) -> None:
    """How long pods waited from submission until they were placed: mean, quantiles and the longest. By reason: how long for
    what."""
    from muster.history import queries

    table = queries.waits_table(queries.runs(ask.log, ask.wanted(**filters), ask.note), by)
    ask.show(table.columns, table.rows)


@command("use", "What was used of what was asked for.")
@click.option("--by", type=click.Choice(_BY), default="user", show_default=True, help="What the rows are.")
@_filters
@_log_options
def use(*, ask: _Ask, by: str, **filters: str) -> None:
    """What pods asked for and what they used of it, by resource: on average, at most, as a share, and hours of it asked for.
    Amounts are thousandths of a core, bytes, bits per second, or devices."""
    from muster.history import queries

    table = queries.use_table(queries.runs(ask.log, ask.wanted(**filters), ask.note), by)
    ask.show(table.columns, table.rows)


@command("actions", "Who submitted, changed and commanded what.")
@click.option("--namespace", metavar="NAME", default="", help="Only in this namespace.")
@click.option("--user", metavar="NAME", default="", help="Only of this user.")
@click.option("--name", "job", metavar="NAME", default="", help="Only on the object of this name.")
@_log_options
def actions(*, ask: _Ask, **filters: str) -> None:
    """What people and programs asked the server to change: who, what, when, and with what answer."""
    from muster.history import queries

    ask.show(queries.ACTION_COLUMNS, queries.actions(ask.log, ask.wanted(**filters), ask.note))


@command("segments", "The segments of the log: whose, from when, whole or not.")
@_log_options
def segments(*, ask: _Ask) -> None:
    """The segments of the log, each read to its end: who wrote it, how large it is, and whether it is whole."""
    from muster.history import queries

    table = queries.segments_table(ask.log)
    ask.show(table.columns, table.rows)


@command("sql", "Ask in SQL (needs muster[history]).")
@click.argument("query", metavar="QUERY")
@_log_options
def sql(*, ask: _Ask, query: str) -> None:
    """Run one SELECT with DuckDB over the tables runs, jobs, decisions and actions, which have the columns that the commands of
    these names print. Times are seconds since 1970."""
    from muster.history import sql as engine

    try:
        table = engine.query(ask.log, query, ask.wanted(), ask.note)
    except engine.SqlUnusable as error:
        raise CliError(str(error)) from error
    ask.show(table.columns, table.rows)
