"""`muster usage`: what users, groups and queues have used, and what it cost; as a table, as JSON, or as CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode, UsageError, message_of
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, machine_output, target_options

if TYPE_CHECKING:
    from muster.cli.usage_view import What
    from muster.controllers.ledger_books import Books
    from muster.objects.kinds.muster_base import Period

PERIODS = ("Day", "Week", "Month", "Year", "Ever")
WORDS = ("user", "group", "queue")


async def _books(target: Target, state: State, now_ms: int) -> Books:
    from muster.cli.commands.top import _all
    from muster.cli.session import session, warn
    from muster.cli.usage_view import KINDS, books_of

    async with session(target, state) as s:
        accounts = [(kind, raw) for kind in KINDS.values() for raw in await _all(s, "muster.dev", kind, is_optional=True)]
        books, problems = books_of(
            accounts=accounts,
            pages=await _all(s, "muster.dev", "UsageRecord"),
            pods=await _all(s, "", "Pod", is_optional=True),
            now_ms=now_ms,
        )
    for problem in problems:
        warn(problem)
    return books


async def _rebuilt(target: Target, state: State, now_ms: int, place: str, records: str) -> Books:
    """From the log of decisions alone; prices and groups are today's."""
    from muster.cli.commands.top import _all
    from muster.cli.session import session, warn
    from muster.cli.usage_view import KINDS, books_from, recorded_runs
    from muster.history.queries import runs
    from muster.history.reader import Log
    from muster.history.segments import SegmentDamaged
    from muster.history.stores import StoreUnusable
    from muster.objects.yaml_text import dump

    try:
        found = list(
            recorded_runs(runs(Log.at(place), note=lambda one: None if one.is_open else warn(f"{one.segment}: {one.text}")))
        )
    except (StoreUnusable, SegmentDamaged, OSError) as error:
        raise CliError(f"--history {place}: {error}") from error
    async with session(target, state) as s:
        accounts = [(kind, raw) for kind in KINDS.values() for raw in await _all(s, "muster.dev", kind, is_optional=True)]
    books, pages, problems = books_from(found, accounts, now_ms)
    if records:
        _write(records, "---\n".join(dump(page) for page in pages))
    for problem in problems:
        warn(problem)
    return books


async def _own(target: Target, state: State, what: What, name: str) -> str:
    """What somebody may see who may not see the ledger: what stands on an object that one may get; of oneself unless named."""
    from muster.cli.accounts_view import budget_text, use_of_limits
    from muster.cli.asking import is_own
    from muster.cli.output import simple_table
    from muster.cli.people import who_am_i
    from muster.cli.session import session
    from muster.cli.usage_view import KINDS
    from muster.objects.rules.report import obj
    from muster.objects.status import Forbidden
    from muster.quota.units import unit_name

    async with session(target, state) as s:
        if not name:
            me = await who_am_i(s.client)
            if me is None or not me.get("user"):
                raise CliError(
                    "you may not see what everybody used: that takes list on usagerecords.muster.dev; name a user or group "
                    "that you may get: muster usage user NAME",
                    ExitCode.FORBIDDEN,
                )
            name = me["user"] if what == "user" else next(iter(me.get("groups") or ("",)))
        try:
            raw = await s.client.get(await s.client.resource("muster.dev", KINDS[what]), name)
        except Forbidden as error:
            if await is_own(s.client):
                raise
            how = f"on a cluster its RBAC decides: it takes get on the {KINDS[what]} {name} (docs/users.md shows the role)"
            raise CliError(f"{message_of(error)}; {how}", ExitCode.FORBIDDEN) from error
    spec, usage = obj(raw, "spec"), obj(obj(raw, "status"), "usage")
    lines = [f"{KINDS[what]} {name}: {usage.get('jobsRunning') or 0} running, {usage.get('jobsWaiting') or 0} waiting"]
    lines += [f"  In use / limit: {text}" for text in [use_of_limits(spec, usage)] if text]
    lines += [f"  Budget: {text}" for text in [budget_text(spec, usage)] if text]
    rows = [
        [one.get("period"), one.get("resource"), f"{one.get('amount')} {unit_name(str(one.get('resource')))}", one.get("since")]
        for one in usage.get("consumed") or ()
    ]
    if rows:
        lines.append(simple_table(["PERIOD", "RESOURCE", "USED", "SINCE"], rows))
    return "\n".join(lines)


def _write(path: str, text: str) -> None:
    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise CliError(f"--csv {path}: {error.strerror}; name a file that can be written") from error


@command("usage", "Show what users, groups and queues have used, and what it cost.")
@click.argument("what", type=click.Choice(WORDS), default="user", metavar="[user|group|queue]")
@click.argument("name", metavar="[NAME]", default="")
@click.option(
    "--period", type=click.Choice(PERIODS, case_sensitive=False), default="Month", show_default=True, help="Up to now, in UTC."
)
@click.option(
    "--csv", "csv_path", metavar="FILE", default="", help="Write every sum of the period there; - is standard output."
)
@click.option("--history", metavar="DIR|URL", default="", help="Add it up anew from the log of decisions, not from the ledger.")
@click.option(
    "--records", metavar="FILE", default="", help="With --history: write UsageRecords there, to restore a lost ledger."
)
@machine_output
@target_options(namespace=False)
@click.pass_context
def usage(
    ctx: click.Context,
    *,
    target: Target,
    what: What,
    name: str,
    period: Period,
    csv_path: str,
    history: str,
    records: str,
    output: str | None,
) -> None:
    """Show what everyone has used in this period; or one user, group or queue, day by day, and by user or queue.

    Use is what was asked for times how long it ran: core-hours, GiB-hours, GPU-hours; of bandwidth, bytes. What runs counts up
    to now. Groups and queues include those below them.
    """
    import msgspec

    from muster.cli.output import emit, render_value, simple_table
    from muster.cli.session import run
    from muster.cli.usage_view import KINDS, by_day, csv_text, report, table
    from muster.objects.status import Forbidden
    from muster.objects.time import wall_clock

    if csv_path and output:
        raise UsageError("--csv and --output are two ways to write the same: give one")
    now_ms = round(wall_clock() * 1000)
    state = state_of(ctx)
    if records and not history:
        raise UsageError("--records writes what --history holds: give both")
    try:
        books = run(_rebuilt(target, state, now_ms, history, records) if history else _books(target, state, now_ms))
    except Forbidden:
        if csv_path or output or (what == "queue" and not name):
            raise
        emit(run(_own(target, state, what, name)))
        return
    kind = KINDS[what]
    if name and (kind, name) not in books.accounts and name not in books.ledger.known(kind):
        known = ", ".join(sorted(one for k, one in books.accounts if k == kind)[:20]) or "none"
        raise CliError(
            f"{kind} {name}: there is none of that name, and nothing was used under it; there is: {known}", ExitCode.NOT_FOUND
        )
    if csv_path:
        _write(csv_path, csv_text(books, period, now_ms, (what, name)))
        return
    found = by_day(books, what, name, period, now_ms) if name else report(books, what, period, now_ms, is_live=not history)
    if output:
        emit(render_value(msgspec.to_builtins(found), output))
    elif found.lines:
        parts = [simple_table(*table(found.lines, "DAY" if name else what.upper()))]
        if found.parts:
            parts.append(simple_table(*table(found.parts, "QUEUE" if what == "user" else "USER")))
        emit("\n\n".join(parts))
    else:
        click.echo(f"nothing was used since {found.since}", err=True)
