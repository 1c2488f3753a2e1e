"""`muster job stop|suspend|resume|restart|rerun|cancel|delete|approve|reject`: commanding jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import Command, State, command, state_of
from muster.cli.job_options import DURATION, job_argument, jobs_argument, jobs_of, party_option, wait_options
from muster.cli.options import Target, target_options

if TYPE_CHECKING:
    from muster.client.job_tree import JobTree
    from muster.client.jobs import Jobs

Act = Callable[["Jobs", str], Awaitable["JobTree"]]


async def _each(
    target: Target,
    state: State,
    names: tuple[str, ...],
    act: Act,
    said: str,
    *,
    wait: bool,
    timeout_s: float | None,
    until: str = "",
) -> ExitCode:
    from muster.cli.job_following import follow_all, screen
    from muster.cli.session import Failures, each

    failures = Failures()
    done: list[str] = []
    async with jobs_of(target, state) as jobs:

        async def one(name: str) -> None:
            tree = await act(jobs, name)
            done.append(f"{tree.kind}/{tree.name}")
            click.echo(f"{tree.kind.lower()}/{tree.name} {said}")

        await each(names, one, failures, lambda name: name)
        if wait and done:
            code = await follow_all([(jobs, name) for name in done], screen(), timeout_s=timeout_s, until=until)
            return failures.exit_code or code
    return failures.exit_code


def _check_wait(wait: bool, timeout_s: float | None) -> None:
    if timeout_s is not None and not wait:
        raise UsageError("--timeout bounds --wait: give both, or neither")


def _declare(word: str, summary: str, text: str, said: str, *, until: str = "") -> Command:
    """One of the commands that take names and a party, and are otherwise alike. `until`: the phase that --wait waits for."""

    @jobs_argument
    @party_option
    @wait_options
    @target_options()
    @click.pass_context
    def run_it(
        ctx: click.Context,
        *,
        target: Target,
        names: tuple[str, ...],
        party: str,
        wait: bool,
        timeout_s: float | None,
    ) -> None:
        from muster.cli.session import run

        _check_wait(wait, timeout_s)

        async def act(jobs: Jobs, name: str) -> JobTree:
            done: JobTree = await getattr(jobs, word)(name, party=party)
            return done

        ctx.exit(run(_each(target, state_of(ctx), names, act, said, wait=wait, timeout_s=timeout_s, until=until)))

    run_it.__doc__ = text
    return command(word, summary)(run_it)


stop = _declare(
    "stop",
    "End what runs; it can be restarted.",
    """End what runs of the jobs. A stopped job can be restarted; tasks that succeeded keep their result.""",
    "stopping",
)
suspend = _declare(
    "suspend",
    "End what runs, to go on later.",
    """End what runs of the jobs and keep what has succeeded, to go on with `muster job resume`.

    With --wait the exit code is 0 as soon as they are suspended.
    """,
    "suspending",
    until="Suspended",
)
resume = _declare(
    "resume",
    "Go on with a suspended job.",
    """Go on with suspended jobs. Tasks that succeeded are not run again.""",
    "resuming",
)
restart = _declare(
    "restart",
    "Run again, in place, what did not succeed.",
    """Run again, in place, what did not succeed in jobs that failed, were stopped or suspended.""",
    "restarting",
)
cancel = _declare(
    "cancel",
    "End a job for good.",
    """End jobs for good: they can't be restarted. `muster job rerun` makes a new job from an old one.""",
    "cancelling",
)


async def _rerun(
    target: Target, state: State, name: str, aliases: tuple[str, ...], party: str, *, wait: bool, timeout_s: float | None
) -> ExitCode:
    from muster.cli.job_following import follow_all, screen

    async with jobs_of(target, state) as jobs:
        tree = await jobs.rerun(name, from_=aliases, party=party)
        said = f"rerunning from {', '.join(aliases)}" if aliases else "submitted"
        click.echo(f"{tree.kind.lower()}/{tree.name} {said}")
        if wait:
            return await follow_all([(jobs, f"{tree.kind}/{tree.name}")], screen(), timeout_s=timeout_s)
    return ExitCode.OK


@command("rerun", "Run a job that has ended once more, whole or from a task on.")
@job_argument
@click.option(
    "--from",
    "aliases",
    metavar="ALIAS",
    multiple=True,
    help="Run this task and all that depends on it again, in place. May be given several times.",
)
@party_option
@wait_options
@target_options()
@click.pass_context
def rerun(
    ctx: click.Context,
    *,
    target: Target,
    name: str,
    aliases: tuple[str, ...],
    party: str,
    wait: bool,
    timeout_s: float | None,
) -> None:
    """Run a job that has ended once more: as a new job NAME-rerun-N with the same spec, or, with --from, in place.

    In place, the named tasks and all that depends on them run again; the results of the others are kept.
    """
    from muster.cli.session import run

    _check_wait(wait, timeout_s)
    if party and not aliases:
        raise UsageError("--party is for --from: a new job is commanded by nobody yet")
    ctx.exit(run(_rerun(target, state_of(ctx), name, aliases, party, wait=wait, timeout_s=timeout_s)))


async def _delete(
    target: Target, state: State, names: tuple[str, ...], *, wait: bool, timeout_s: float | None, ignore_not_found: bool
) -> ExitCode:
    import asyncio

    from muster.cli.applying import wait_gone
    from muster.cli.session import Failures, each, session
    from muster.client.job_kinds import kind_of, qualified_name_of
    from muster.client.jobs import Jobs
    from muster.objects.meta import name_of, namespace_of, uid_of
    from muster.objects.status import NotFound, Raw

    failures = Failures()
    leaving: list[Raw] = []
    async with session(target, state) as s:
        jobs = Jobs(s.client, namespace=s.namespace)

        async def one(name: str) -> None:
            try:
                leaving.append(await jobs.delete(name))
            except NotFound:
                if not ignore_not_found:
                    raise
                return
            click.echo(f"{qualified_name_of(leaving[-1])} deleted")

        await each(names, one, failures, lambda name: name)
        try:
            async with asyncio.timeout(timeout_s):
                for raw in leaving if wait else ():
                    resource = await s.client.resource(kind_of(raw).group, kind_of(raw).kind)
                    await wait_gone(s, resource, name_of(raw), namespace_of(raw), uid_of(raw))
        except TimeoutError:
            raise CliError(
                f"not all jobs are gone after {timeout_s:g} s: something of them still runs, or a finalizer holds them; see "
                "'muster describe'",
                ExitCode.TIMEOUT,
            ) from None
    return failures.exit_code


@command("delete", "Delete jobs with all that belongs to them.")
@jobs_argument
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the jobs are gone.")
@click.option("--timeout", "timeout_s", metavar="DURATION", type=DURATION, help="How long to wait.  [default: no limit]")
@click.option("--ignore-not-found", is_flag=True, help="A job that does not exist is no error.")
@target_options()
@click.pass_context
def delete(
    ctx: click.Context,
    *,
    target: Target,
    names: tuple[str, ...],
    wait: bool,
    timeout_s: float | None,
    ignore_not_found: bool,
) -> None:
    """Delete jobs with their tasks, pods and logs. What still runs is ended first."""
    from muster.cli.session import run

    work = _delete(target, state_of(ctx), names, wait=wait, timeout_s=timeout_s, ignore_not_found=ignore_not_found)
    ctx.exit(run(work))


def _declare_answer(word: str, summary: str, text: str, said: str) -> Command:
    @jobs_argument
    @click.option("--party", metavar="PARTY", required=True, help="The party that answers.")
    @target_options()
    @click.pass_context
    def run_it(ctx: click.Context, *, target: Target, names: tuple[str, ...], party: str) -> None:
        from muster.cli.session import run

        async def act(jobs: Jobs, name: str) -> JobTree:
            done: JobTree = await getattr(jobs, word)(name, party)
            return done

        ctx.exit(run(_each(target, state_of(ctx), names, act, f"{said} by {party}", wait=False, timeout_s=None)))

    run_it.__doc__ = text
    return command(word, summary)(run_it)


approve = _declare_answer(
    "approve",
    "Accept a job for a party.",
    """Accept jobs that await approval, for one of their parties. A job starts when all parties have accepted.""",
    "approved",
)
reject = _declare_answer(
    "reject",
    "Refuse a job for a party.",
    """Refuse jobs that await approval, for one of their parties. A job that one party refuses has ended.""",
    "rejected",
)
