"""`muster replay`: a recorded log through the engine again; every decision must come out as it was recorded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import command

if TYPE_CHECKING:
    from muster.history.replaying import Progress


@command("replay", "Run a recorded log through the engine again, and compare every decision.")
@click.argument("log", metavar="[LOG]", required=False)
@click.option(
    "--from", "start", metavar="TIME", help="Leave out segments that ended before: 2026-11-16T09:00:00Z, or 2h (ago)."
)
@click.option("--to", "stop", metavar="TIME", help="Leave out what came after.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@click.pass_context
def replay(ctx: click.Context, *, log: str | None, start: str | None, stop: str | None, quiet: bool) -> None:
    """Run the decision log LOG (a directory, one of its *.mlog files, or a URL; by default that of muster up here) through the
    engine again, and compare every decision with the one that was recorded.

    Exit code 0 when all are equal. Otherwise the first that is not is shown as a difference, and the exit code is 1. A log
    whose end was torn off by a crash is replayed as far as it goes, and that is said; damaged bytes are an error that names
    them.
    """
    from muster.cli.history_places import instant, local_log, open_log
    from muster.history.replaying import NotReplayable, engines, known_orders
    from muster.history.replaying import replay as run
    from muster.history.segments import SegmentDamaged
    from muster.objects.time import wall_clock

    now = wall_clock()
    begin, end = instant(start, "--from", now), instant(stop, "--to", now)
    if begin is not None and end is not None and begin > end:
        raise UsageError(f"--from {start} is later than --to {stop}")
    log = log or local_log()
    found = open_log(log)
    try:
        outcome = run(
            found, engines(orders=known_orders()), start=begin, stop=end, watch=None if quiet else _Shown(sys.stderr.isatty())
        )
    except (SegmentDamaged, NotReplayable) as error:
        raise CliError(str(error)) from error
    for finding in outcome.findings:
        click.echo(f"{'warning' if finding.is_loss else 'note'}: {finding.segment}: {finding.text}", err=True)
    if not outcome.segments:
        raise CliError(f"{log}: there is no segment in it, or none from that time", ExitCode.NOT_FOUND)
    if outcome.difference is not None:
        click.echo(outcome.difference.text())
        ctx.exit(ExitCode.FAILURE)
    click.echo(
        f"equal: {outcome.decisions:,} decisions of {outcome.steps:,} steps with {outcome.events:,} events in "
        f"{outcome.segments:,} segments"
    )


class _Shown:
    """Progress on stderr: one line that is written over on a terminal, and otherwise one line per segment."""

    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._segment = ""

    def __call__(self, progress: Progress) -> None:
        text = f"{progress.segments} of {progress.segments_in_all} segments, {progress.steps:,} steps"
        if self._is_terminal:
            click.echo(f"\r{text}\x1b[K", err=True, nl=False)
            if progress.segments == progress.segments_in_all and progress.segment == self._segment:
                return
        elif progress.segment != self._segment:
            click.echo(f"{progress.segment}: {text}", err=True)
        self._segment = progress.segment
