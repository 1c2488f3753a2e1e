"""`muster job submit|watch`: starting jobs, and following them to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import State, command, state_of
from muster.cli.job_options import DURATION, job_argument, jobs_of, wait_options
from muster.cli.options import Target, file_options, target_options

if TYPE_CHECKING:
    from muster.cli.files import Manifests
    from muster.client.job_tree import JobTree
    from muster.client.jobs import Jobs


async def _submit(
    target: Target,
    state: State,
    manifests: Manifests,
    *,
    wait: bool,
    timeout_s: float | None,
    dry_run: bool,
    output: str | None,
) -> ExitCode:
    from muster.objects.requests import WriteOptions

    async with jobs_of(target, state) as jobs:
        options = WriteOptions(dry_run=dry_run, field_manager="muster", field_validation="Strict")
        made = await jobs.submit([document.object for document in manifests.documents], options=options)
        if output is None or output == "name":
            for tree in made:
                said = "" if output else f" submitted{' (dry run)' if dry_run else ''}"
                click.echo(f"{_qualified(tree)}{said}")
        code = await _wait(jobs, made, timeout_s, is_shown=output is None) if wait and not dry_run else ExitCode.OK
        if output in ("json", "yaml"):
            await _print_objects(jobs, made, output)
    return code


def _qualified(tree: JobTree) -> str:
    from muster.client.job_kinds import KINDS

    kind = next(kind for kind in KINDS if kind.kind == tree.kind)
    return f"{kind.singular}.{kind.group}/{tree.name}"


def _home(jobs: Jobs, tree: JobTree) -> Jobs:
    """Where the job is: a Job may name a namespace of its own in its manifest."""
    return jobs if tree.kind == "KusciaJob" else jobs.within(tree.namespace)


async def _wait(jobs: Jobs, made: list[JobTree], timeout_s: float | None, *, is_shown: bool) -> ExitCode:
    from muster.cli.job_following import follow_all, screen, silent

    found = [(_home(jobs, tree), f"{tree.kind}/{tree.name}") for tree in made]
    return await follow_all(found, screen() if is_shown else silent(), timeout_s=timeout_s)


async def _print_objects(jobs: Jobs, made: list[JobTree], output: str) -> None:
    from muster.cli.output import print_objects

    objects = [await _home(jobs, tree).get(f"{tree.kind}/{tree.name}") for tree in made if tree.uid]
    print_objects(objects, output, single=True)


@command("submit", "Create jobs from files, and wait for them if asked to.")
@file_options("The jobs, and what they refer to", required=True)
@wait_options
@click.option("--dry-run", is_flag=True, help="Let the server check everything, but store nothing.")
@click.option("-o", "--output", type=click.Choice(["json", "yaml", "name"]), help="Print the objects, or names only.")
@target_options()
@click.pass_context
def submit(
    ctx: click.Context,
    *,
    target: Target,
    filenames: tuple[str, ...],
    recursive: bool,
    wait: bool,
    timeout_s: float | None,
    dry_run: bool,
    output: str | None,
) -> None:
    """Create the jobs in the files. All are checked before the first is created, and none is created if one is wrong.

    Other objects in the files (Domain, AppImage, ...) are applied first, as `muster apply` does. With --wait the job is shown
    until it has ended, and the exit code says how: 0 it succeeded, 1 it failed, 8 it was stopped, cancelled or rejected.
    """
    from muster.cli.files import read_manifests
    from muster.cli.session import run

    if timeout_s is not None and not wait:
        raise UsageError("--timeout bounds --wait: give both, or neither")
    manifests = read_manifests(filenames, recursive=recursive)
    if manifests.problems:
        raise CliError("; ".join([*manifests.problems, "nothing was submitted"]))
    work = _submit(target, state_of(ctx), manifests, wait=wait, timeout_s=timeout_s, dry_run=dry_run, output=output)
    ctx.exit(run(work))


async def _watch(target: Target, state: State, name: str, timeout_s: float | None) -> ExitCode:
    from muster.cli.job_following import follow_all, screen

    async with jobs_of(target, state) as jobs:
        return await follow_all([(jobs, name)], screen(), timeout_s=timeout_s)


@command("watch", "Follow a job until it has ended.")
@job_argument
@click.option(
    "--timeout",
    "timeout_s",
    metavar="DURATION",
    type=DURATION,
    help="How long to follow it; exit code 124 when it has not ended by then.  [default: no limit]",
)
@target_options()
@click.pass_context
def watch(ctx: click.Context, *, target: Target, name: str, timeout_s: float | None) -> None:
    """Follow a job until it has ended: its tasks with phases, waiting reasons and progress.

    On a terminal the tree is repainted in place; elsewhere each change is one line. The exit code says how the job ended:
    0 it succeeded, 1 it failed, 8 it was stopped, cancelled or rejected.
    """
    from muster.cli.session import run

    ctx.exit(run(_watch(target, state_of(ctx), name, timeout_s)))
