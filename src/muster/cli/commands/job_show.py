"""`muster job list|get|tree|diff`: looking at jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from muster.cli.errors import ExitCode
from muster.cli.framework import State, command, state_of
from muster.cli.job_options import DURATION, complete_job, complete_phase, jobs_argument, jobs_of
from muster.cli.options import Target, machine_output, target_options

if TYPE_CHECKING:
    from muster.client.job_reading import JobFilter
    from muster.client.job_tree import JobTree
    from muster.client.jobs import Jobs

FORMATS = click.Choice(["table", "wide", "json", "yaml", "name"])
PAGE_LEN = 500


async def _pages(jobs: Jobs, chosen: JobFilter, now: float) -> list[JobTree]:
    found, token = list[Any](), ""
    while True:
        page = await jobs.list(chosen, limit=PAGE_LEN, continue_token=token, now=now)
        found += page.items
        token = page.continue_token
        if not token:
            return found


async def _list(target: Target, state: State, where: dict[str, object], *, output: str, limit: int, with_headers: bool) -> None:
    import msgspec

    from muster.cli.job_view import LIST_HEADERS, WIDE_HEADERS, list_row
    from muster.cli.output import emit, render_value, simple_table
    from muster.cli.people import own_selector
    from muster.cli.session import session
    from muster.client.job_kinds import KINDS
    from muster.client.job_reading import JobFilter
    from muster.client.jobs import Jobs
    from muster.objects.labels import Muster
    from muster.objects.status import Forbidden
    from muster.objects.time import wall_clock

    now = wall_clock()
    chosen = JobFilter(**where)  # type: ignore[arg-type]
    async with session(target, state, warn_once=True) as s:
        jobs = Jobs(s.client, namespace=s.namespace)
        try:
            found = await _pages(jobs, chosen, now)
        except Forbidden:
            own = "" if Muster.USER in chosen.label_selector else await own_selector(s.client)
            if not own:
                raise
            both = ",".join(filter(None, (chosen.label_selector, own)))
            found = await _pages(jobs, msgspec.structs.replace(chosen, label_selector=both), now)
            click.echo(f"what you may see: -l '{own}'", err=True)
    found.sort(key=lambda tree: (tree.created, tree.name), reverse=True)
    shown = found[:limit] if limit else found
    if output in ("json", "yaml"):
        emit(render_value({"items": [msgspec.to_builtins(tree) for tree in shown]}, output))
    elif not shown:
        click.echo("no jobs found", err=True)
    elif output == "name":
        groups = {kind.kind: kind for kind in KINDS}
        emit("\n".join(f"{groups[t.kind].singular}.{groups[t.kind].group}/{t.name}" for t in shown))
    else:
        is_wide = output == "wide"
        headers = [*LIST_HEADERS, *(WIDE_HEADERS if is_wide else ())]
        emit(simple_table(headers, [list_row(tree, now, is_wide=is_wide) for tree in shown], with_headers=with_headers))
    if len(shown) < len(found):
        click.echo(f"{len(found) - len(shown)} older jobs are not shown; see --limit", err=True)


@command("list", "List jobs, by phase, party, initiator, label or age.")
@click.option(
    "--phase",
    "phases",
    metavar="PHASE",
    multiple=True,
    shell_complete=complete_phase,
    help="Only jobs in this phase, or that ended so (Stopped). May be given several times.",
)
@click.option("--party", "parties", metavar="PARTY", multiple=True, help="Only jobs this party takes part in.")
@click.option("--initiator", metavar="PARTY", default="", help="Only jobs of this initiator, or user.")
@click.option("-l", "--selector", "label_selector", metavar="QUERY", default="", help="Only jobs whose labels match.")
@click.option("--newer-than", metavar="DURATION", type=DURATION, help="Only jobs made within this time, as in 2h.")
@click.option("--older-than", metavar="DURATION", type=DURATION, help="Only jobs made before that, as in 7d.")
@click.option("--kind", type=click.Choice(["kusciajob", "job"]), help="Only jobs of this kind.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of one owner in all namespaces.")
@click.option("--limit", metavar="N", type=click.IntRange(0, 100_000), default=0, help="Only the newest N; 0 for all.")
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True, help="Format.")
@click.option("--no-headers", is_flag=True, help="Leave the table's header line out.")
@target_options()
@click.pass_context
def list_jobs(
    ctx: click.Context,
    *,
    target: Target,
    phases: tuple[str, ...],
    parties: tuple[str, ...],
    initiator: str,
    label_selector: str,
    newer_than: float | None,
    older_than: float | None,
    kind: str | None,
    all_namespaces: bool,
    limit: int,
    output: str,
    no_headers: bool,
) -> None:
    """List jobs of both kinds, the newest first."""
    from muster.cli.errors import UsageError
    from muster.cli.job_options import PHASES
    from muster.cli.session import run
    from muster.client.job_kinds import KINDS

    known = {phase.lower() for phase in PHASES}
    for phase in phases:
        if phase.lower() not in known:
            raise UsageError(f"--phase '{phase}': there is no such phase; there are: {', '.join(PHASES)}")
    where: dict[str, object] = {
        "phases": phases,
        "parties": parties,
        "initiator": initiator,
        "label_selector": label_selector,
        "newer_than_s": newer_than,
        "older_than_s": older_than,
        "all_namespaces": all_namespaces,
        "kinds": [k for k in KINDS if kind in (None, k.singular)],
    }
    run(_list(target, state_of(ctx), where, output=output, limit=limit, with_headers=not no_headers))


async def _get(target: Target, state: State, names: tuple[str, ...], output: str) -> ExitCode:
    from muster.cli.job_view import bar, head_why, task_table
    from muster.cli.output import cell_text, emit, print_objects
    from muster.cli.session import Failures, each
    from muster.client.job_kinds import qualified_name_of
    from muster.objects.ages import since
    from muster.objects.status import Raw
    from muster.objects.time import wall_clock

    failures = Failures()
    found: list[Raw] = []
    now = wall_clock()

    def words(tree: JobTree) -> str:
        rows = [
            ("Job", tree.title),
            ("Phase", tree.outcome or tree.phase or "Waiting"),
            ("Reason", head_why(tree)),
            ("Progress", bar(tree.progress)),
            ("Initiator" if tree.kind == "KusciaJob" else "User", tree.initiator),
            ("Parties", ", ".join(tree.parties)),
            ("Created", f"{tree.created} ({since(tree.created, now)} ago)"),
            ("Started", tree.started),
            ("Ended", tree.ended),
        ]
        return "\n".join(f"{word + ':':<12}{cell_text(value)}" for word, value in rows if value)

    async with jobs_of(target, state) as jobs:

        async def one(name: str) -> None:
            if output in ("json", "yaml", "name"):
                found.append(await jobs.get(name))
                return
            tree = await jobs.tree(name)
            emit(f"{words(tree)}\n\n{task_table(tree, now, is_wide=output == 'wide')}")

        await each(names, one, failures, lambda name: name)
    if output == "name" and found:
        emit("\n".join(qualified_name_of(raw) for raw in found))
    elif output in ("json", "yaml") and (found or len(names) > 1):
        print_objects(found, output, single=len(names) == 1)
    return failures.exit_code


@command("get", "Show one job and its tasks.")
@jobs_argument
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True, help="json and yaml print the object.")
@target_options()
@click.pass_context
def get(ctx: click.Context, *, target: Target, names: tuple[str, ...], output: str) -> None:
    """Show jobs: phase, reason, progress, and a line for each task."""
    from muster.cli.session import run

    ctx.exit(run(_get(target, state_of(ctx), names, output)))


async def _tree(target: Target, state: State, names: tuple[str, ...], output: str | None) -> ExitCode:
    import os
    import sys

    import msgspec

    from muster.cli.job_view import Style, tree_lines
    from muster.cli.output import emit, render_value
    from muster.cli.session import Failures, each
    from muster.objects.time import wall_clock

    failures = Failures()
    style = Style(is_colored=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    found: list[object] = []
    async with jobs_of(target, state) as jobs:

        async def one(name: str) -> None:
            tree = await jobs.tree(name)
            if output:
                found.append(msgspec.to_builtins(tree))
            else:
                emit("\n".join(tree_lines(tree, wall_clock(), style=style)))

        await each(names, one, failures, lambda name: name)
    if output and found:
        emit(render_value(found[0] if len(names) == 1 else {"items": found}, output))
    return failures.exit_code


@command("tree", "Show a job with its tasks, parties and pods.")
@jobs_argument
@machine_output
@target_options()
@click.pass_context
def tree(ctx: click.Context, *, target: Target, names: tuple[str, ...], output: str | None) -> None:
    """Show jobs as trees: tasks, parties and pods, with phases, why each waits, progress, attempts and nodes."""
    from muster.cli.session import run

    ctx.exit(run(_tree(target, state_of(ctx), names, output)))


async def _diff(target: Target, state: State, before: str, after: str, output: str | None) -> None:
    import msgspec

    from muster.cli.job_view import diff_text
    from muster.cli.output import emit, render_value

    async with jobs_of(target, state) as jobs:
        found = await jobs.diff(before, after)
    emit(render_value(msgspec.to_builtins(found), output) if output else diff_text(found))


@command("diff", "Compare two runs.")
@click.argument("before", metavar="[KIND/]A", shell_complete=complete_job)
@click.argument("after", metavar="[KIND/]B", shell_complete=complete_job)
@machine_output
@target_options()
@click.pass_context
def diff(ctx: click.Context, *, target: Target, before: str, after: str, output: str | None) -> None:
    """Compare two runs: which fields of the spec differ, and how each task went in either."""
    from muster.cli.session import run

    run(_diff(target, state_of(ctx), before, after, output))
