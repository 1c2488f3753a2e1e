"""`muster run`: one command as a Job, followed to its end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from muster.cli.errors import ExitCode, UsageError
from muster.cli.framework import State, command, state_of
from muster.cli.job_options import DURATION
from muster.cli.options import Target, target_options

if TYPE_CHECKING:
    from muster.objects.status import Raw


_SAME = "; 'none' for no limit.  [default: what it asks for]"


async def _run(target: Target, state: State, manifest: Raw, *, detach: bool, dry_run: bool, output: str | None) -> int:
    from muster.cli.running import Following
    from muster.cli.session import session
    from muster.client.jobs import Jobs
    from muster.objects.requests import WriteOptions

    async with session(target, state) as s:
        jobs = Jobs(s.client, namespace=s.namespace)
        options = WriteOptions(dry_run=dry_run, field_manager="muster", field_validation="Strict")
        [tree] = await jobs.submit([manifest], options=options)
        if dry_run:
            placed = {**manifest["metadata"], "namespace": jobs.namespace}
            _print({**manifest, "metadata": placed}, output, "submitted (dry run)")
            return ExitCode.OK
        job = await jobs.get(f"Job/{tree.name}")
        if output in (None, "name"):
            _print(job, output, "submitted" if detach or output else "")
        if detach:
            if output in ("json", "yaml"):
                _print(job, output, "")
            return ExitCode.OK
        following = Following(s.client, job, replicas=manifest["spec"]["roles"][0]["replicas"], is_shown=output is None)
        following.say("submitted")
        code = await following.run()
        if output in ("json", "yaml"):
            _print(await jobs.get(f"Job/{tree.name}"), output, "")
    return code


def _print(job: Raw, output: str | None, said: str) -> None:
    from muster.cli.output import print_objects

    metadata = job["metadata"]
    name = f"job.muster.dev/{metadata.get('name') or metadata['generateName'] + '...'}"
    if output in ("json", "yaml"):
        print_objects([job], output, single=True)
    elif output == "name":
        click.echo(name)
    elif said:
        click.echo(f"{name} {said}")


def _amount(option: str, text: str) -> str:
    from muster.cli.run_job import NO_LIMIT
    from muster.objects.quantity import Quantity

    if text and not (option.endswith("-limit") and text == NO_LIMIT):
        try:
            Quantity.parse(text)
        except ValueError as error:
            raise UsageError(f"{option} '{text}': {error}") from None
    return text


def _rate(option: str, text: str) -> str:
    if text.isdecimal():
        raise UsageError(f"{option} '{text}': in which unit? as in {text}Mbps")
    return text


def _deadline(text: str) -> str:
    from muster.cli.run_job import deadline_of
    from muster.objects.time import wall_clock

    try:
        seconds: float | None = DURATION.convert(text, None, None) if text else None
    except click.UsageError:
        seconds = None
    return deadline_of(text, seconds, math.floor(wall_clock()))


@command("run", "Run a command as a job, and follow it to its end.")
@click.argument("words", metavar="-- COMMAND [ARG]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", default="", metavar="NAME", help="Name of the job.  [default: made from the command]")
@click.option("--image", default="", help="Image to run it in; without one it runs as a process of the node.")
@click.option("--replicas", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Copies that start together.")
@click.option("--cpu", default="", metavar="AMOUNT", help="CPUs promised to each replica, as in 2 or 500m.")
@click.option("--memory", default="", metavar="AMOUNT", help="Memory promised to each replica, as in 4Gi.")
@click.option("--gpu", type=click.IntRange(0, 1024), default=0, metavar="N", help="GPUs (nvidia.com/gpu) for each replica.")
@click.option("--bandwidth", default="", metavar="RATE", help="Network bandwidth promised to each replica, as in 200Mbps.")
@click.option("--cpu-limit", default="", metavar="AMOUNT", help=f"Most CPUs of a replica{_SAME}")
@click.option("--memory-limit", default="", metavar="AMOUNT", help=f"Above so much memory a replica is ended{_SAME}")
@click.option("--bandwidth-limit", default="", metavar="RATE", help=f"Most bandwidth of a replica{_SAME}")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment variable. May be given several times.")
@click.option("--workdir", default="", metavar="DIR", help="Directory in which the command runs.")
@click.option("--node-selector", multiple=True, metavar="LABEL=VALUE", help="Only nodes that have this label.")
@click.option("--pool", "pools", multiple=True, metavar="NAME", help="Only nodes of this NodePool. May be given several times.")
@click.option("--queue", default="", help="Queue to wait in.  [default: the default queue]")
@click.option("--priority", type=click.IntRange(-1_000_000, 1_000_000), default=0, show_default=True, help="Larger is sooner.")
@click.option("--user", default="", help="Whose work it is.  [default: who submits it]")
@click.option("--type", "type_", default="", metavar="WORD", help="Kind of work: training, inference, etl, ...")
@click.option("--attribute", multiple=True, metavar="NAME=VALUE", help="What is known about it, for policies and predictions.")
@click.option("--label", multiple=True, metavar="NAME=VALUE", help="Label of the job.")
@click.option("--estimate", "estimate_s", type=DURATION, metavar="DURATION", help="How long it will probably run.")
@click.option("--deadline", default="", metavar="WHEN", help="When the result is needed: a moment, or a time from now like 8h.")
@click.option("--preemptible", is_flag=True, help="It may be stopped for other work, and starts again later.")
@click.option("--checkpoint-interval", type=DURATION, metavar="DURATION", help="How often it saves its state.")
@click.option(
    "--retries", type=click.IntRange(0, 1000), default=0, show_default=True, help="How often to try again when it fails."
)
@click.option("--timeout", "timeout_s", type=DURATION, metavar="DURATION", help="End the job, as failed, when it runs longer.")
@click.option("--detach", is_flag=True, help="Do not follow it: print its name and leave.")
@click.option("--dry-run", is_flag=True, help="Let the server check it, but store nothing.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "yaml", "name"]),
    help="Print the Job when it has ended (with --detach: at once), or its name first; no phases, no logs.",
)
@target_options()
@click.pass_context
def run(
    ctx: click.Context,
    /,
    *,
    target: Target,
    words: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    output: str | None,
    **given: Any,
) -> None:
    """Run a command as a job: it waits for what it needs, starts, and is followed to its end.

    Phases and waiting reasons go to stderr, what the job writes to stdout. The exit code is the command's own where there is
    one replica, else 0 when all succeeded and 1 when not; 8 when somebody stopped or cancelled it.

    Ctrl-C asks whether to cancel the job, and leaves it running when pressed again, or when there is no terminal to ask on;
    the exit code is 130 either way.
    """
    from muster.cli.run_job import RunOptions, manifest_of, pairs
    from muster.cli.session import run as run_work

    manifest = manifest_of(
        RunOptions(
            command=words,
            cpu=_amount("--cpu", given.pop("cpu")),
            memory=_amount("--memory", given.pop("memory")),
            bandwidth=_rate("--bandwidth", given.pop("bandwidth")),
            cpu_limit=_amount("--cpu-limit", given.pop("cpu_limit")),
            memory_limit=_amount("--memory-limit", given.pop("memory_limit")),
            bandwidth_limit=_rate("--bandwidth-limit", given.pop("bandwidth_limit")),
            env=pairs(given.pop("env"), "--env"),
            node_selector=pairs(given.pop("node_selector"), "--node-selector"),
            attributes=pairs(given.pop("attribute"), "--attribute"),
            labels=pairs(given.pop("label"), "--label"),
            deadline=_deadline(given.pop("deadline")),
            type=given.pop("type_"),
            checkpoint_interval_s=given.pop("checkpoint_interval"),
            **given,
        )
    )
    ctx.exit(run_work(_run(target, state_of(ctx), manifest, detach=detach, dry_run=dry_run, output=output)))
