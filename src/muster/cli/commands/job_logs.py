"""`muster job logs`: what the pods of a job wrote, together."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from muster.cli.errors import ExitCode
from muster.cli.framework import State, command, state_of
from muster.cli.job_options import DURATION, job_argument, jobs_of
from muster.cli.options import Target, target_options

if TYPE_CHECKING:
    from muster.client.job_logs import LogLine, LogQuery

_HUES = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class _Printer:
    """Lines with the pod that wrote them in front, each pod in a colour of its own on a terminal."""

    def __init__(self, *, has_prefix: bool, is_colored: bool) -> None:
        self._has_prefix = has_prefix
        self._is_colored = is_colored
        self._hues: dict[str, int] = {}
        self.errors = self.lines = 0

    def show(self, line: LogLine) -> None:
        from muster.cli.output import emit

        where = f"{line.namespace}/{line.pod}" + (f"/{line.container}" if line.container else "")
        if line.error:
            self.errors += 1
            click.echo(f"error: {where}: {line.text}", err=True)
            return
        self.lines += 1
        emit(f"{self._painted(where)} {line.text}" if self._has_prefix else line.text)

    def _painted(self, where: str) -> str:
        if not self._is_colored:
            return f"[{where}]"
        hue = self._hues.setdefault(where, _HUES[len(self._hues) % len(_HUES)])
        return f"\x1b[{hue}m[{where}]\x1b[0m"


async def _logs(target: Target, state: State, name: str, query: LogQuery, has_prefix: bool) -> ExitCode:
    import os
    import sys

    printer = _Printer(has_prefix=has_prefix, is_colored=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    async with jobs_of(target, state) as jobs, aclosing(jobs.logs(name, query)) as lines:
        async for line in lines:
            printer.show(line)
    return ExitCode.FAILURE if printer.errors else ExitCode.OK


@command("logs", "Show what the pods of a job wrote.")
@job_argument
@click.option("--task", metavar="ALIAS", default="", help="Only this task, or role.")
@click.option("--party", metavar="PARTY", default="", help="Only the pods of this party.")
@click.option("--pod", metavar="POD", default="", help="Only this pod: NAME, or NAMESPACE/NAME.")
@click.option("-c", "--container", metavar="NAME", default="", help="Only this container of each pod.")
@click.option("-f", "--follow", is_flag=True, help="Show lines as they are written, of new pods too, until the job has ended.")
@click.option(
    "--tail", "tail_lines", metavar="N", type=click.IntRange(0, 10_000_000), help="Only the last N lines of each pod."
)
@click.option("--since", metavar="DURATION", type=DURATION, help="Only lines written within this time, as in 5m.")
@click.option("-p", "--previous", is_flag=True, help="Of the run before, where a container was restarted.")
@click.option("--timestamps", is_flag=True, help="Put the time before each line.")
@click.option("--prefix/--no-prefix", default=True, show_default=True, help="Put the pod before each line.")
@target_options()
@click.pass_context
def logs(
    ctx: click.Context,
    *,
    target: Target,
    name: str,
    task: str,
    party: str,
    pod: str,
    container: str,
    follow: bool,
    tail_lines: int | None,
    since: float | None,
    previous: bool,
    timestamps: bool,
    prefix: bool,
) -> None:
    """Show what the pods of a job wrote: all of them, or those of a task, of a party, or one.

    A pod whose log can't be read is named on standard error, the others are shown, and the exit code is 1.
    """
    from muster.cli.session import run
    from muster.client.job_logs import LogQuery

    query = LogQuery(
        task=task,
        party=party,
        pod=pod,
        container=container,
        follow=follow,
        previous=previous,
        timestamps=timestamps,
        tail_lines=tail_lines,
        since_s=max(1, round(since)) if since is not None else None,
    )
    ctx.exit(run(_logs(target, state_of(ctx), name, query, prefix)))
