"""`muster queue`: the queues, the line of one, and what administrators do with jobs in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import Command, Entry, LazyGroup, State, command, common_options, state_of
from muster.cli.job_options import jobs_argument
from muster.cli.options import Target, machine_output, target_options

if TYPE_CHECKING:
    from muster.objects.status import Raw

QUEUES_PATH = "/muster/v1/queues"
PAGE_LEN = 500
REASON_LEN_MAX = 200
ENTRIES = {
    "show": Entry(__name__, "show", "Show all queues, or the line of one; also without the word show."),
    "move": Entry(__name__, "move", "Put jobs that have not started into another queue."),
    "pin": Entry(__name__, "pin", "Put a job before all others of its queue."),
    "unpin": Entry(__name__, "unpin", "Let pinned jobs stand where the policy puts them."),
    "hold": Entry(__name__, "hold", "Keep jobs from starting."),
    "release": Entry(__name__, "release", "Let jobs that were held start again."),
}


class _QueueGroup(LazyGroup):
    """What is no command is the name of a queue: `muster queue`, `muster queue research`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if first not in self.entries and first not in ("-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(
    "queue",
    cls=_QueueGroup,
    entries=ENTRIES,
    short_help="Queues: who waits in them, in which order; hold, pin and move jobs.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def queue() -> None:
    """Show queues and their lines; hold, pin and move jobs.

    `muster queue` lists the queues as a tree, `muster queue NAME` shows the line of one. Holding and pinning are for
    administrators of the queue: who may update the Queue. What they do is recorded on the job, with who and when.
    """


queue.params.extend(common_options())


# -- looking ------------------------------------------------------------------------------------------------------------------


async def _show(target: Target, state: State, name: str, first: int, output: str | None) -> None:
    from muster.cli.asking import ask, is_own
    from muster.cli.output import emit, render_value
    from muster.cli.queue_view import line_text, tree_text
    from muster.cli.session import session
    from muster.objects.time import wall_clock

    async with session(target, state) as s:
        own = await is_own(s.client)
        if name:
            answer = await _one(s.client, name, first, own, s.namespace)
            emit(render_value(answer, output) if output else line_text(answer, wall_clock()))
            return
        resource = await s.client.resource("muster.dev", "Queue")
        queues = (await s.client.list(resource, limit=PAGE_LEN)).items
        lines = {line["queue"]: line for line in (await ask(s.client, QUEUES_PATH))["items"]} if own else None
    if output:
        emit(render_value({"items": list(lines.values()) if lines is not None else queues}, output))
    elif not queues:
        click.echo("there are no queues; create objects of kind Queue, see docs/queues.md", err=True)
    else:
        emit(tree_text(queues, lines))


async def _one(client: Any, name: str, first: int, own: bool, namespace: str) -> Raw:
    from muster.cli.asking import ask
    from muster.objects.status import Forbidden

    if own:
        return await ask(client, f"{QUEUES_PATH}/{quote(name, safe='')}", [("first", str(first))])
    # A cluster's API server has no such endpoint: the places that are written into the jobs' own status are shown.
    resource = await client.resource("muster.dev", "Queue")
    status = (await client.get(resource, name)).get("status") or {}
    usage = status.get("usage") or {}
    seen: Raw = {}
    try:
        places = await _written_places(client, name, first, None)
    except Forbidden:  # most people may list their own namespace, and no more
        places = await _written_places(client, name, first, namespace)
        seen = {"namespace": namespace}
    return {
        "queue": name,
        "waiting": usage.get("jobsWaiting", 0),
        "running": usage.get("jobsRunning", 0),
        "held": status.get("held", 0),
        "runningRequest": usage.get("concurrent") or {},
        "places": places,
        "isWritten": True,
        **seen,
    }


async def _written_places(client: Any, name: str, first: int, namespace: str | None) -> list[Raw]:
    from muster.objects.acts import standing_of
    from muster.objects.meta import metadata_of, name_of, namespace_of
    from muster.objects.time import time_or

    jobs = await client.resource("muster.dev", "Job")
    found: list[Raw] = []
    token = ""
    while True:
        page = await client.list(jobs, namespace, limit=PAGE_LEN, continue_token=token)
        for job in page.items:
            place = (job.get("status") or {}).get("place") or {}
            if place.get("name") != name:
                continue
            made = time_or(metadata_of(job).get("creationTimestamp"), 0.0)
            standing = standing_of({**job, "kind": "Job"})
            found.append(
                {
                    **place,
                    "job": f"Job/{namespace_of(job)}/{name_of(job)}",
                    "user": (job.get("spec") or {}).get("user", ""),
                    "submitted": time_or((job.get("status") or {}).get("submittedTime"), made),
                    "hold": standing.hold or "",
                    "pin": standing.pin,
                }
            )
        token = page.continue_token
        if not token:
            return sorted(found, key=lambda place: int(place.get("position") or 0))[:first]


@command("show", "Show all queues, or the line of one; also without the word show.")
@click.argument("name", metavar="[QUEUE]", default="")
@click.option(
    "--first",
    metavar="N",
    type=click.IntRange(min=0, max=1000),
    default=50,
    show_default=True,
    help="How much of the line of a queue to show.",
)
@machine_output
@target_options()
@click.pass_context
def show(ctx: click.Context, *, target: Target, name: str, first: int, output: str | None) -> None:
    """Show all queues as a tree, with weights, limits and use; or the line of one, with places and scores."""
    from muster.cli.session import run

    run(_show(target, state_of(ctx), name, first, output))


# -- acting -------------------------------------------------------------------------------------------------------------------


async def _act(target: Target, state: State, names: tuple[str, ...], change: Raw, said: str) -> ExitCode:
    """Patch each job. `change` has what becomes of a Job; a KusciaJob has its queue as a label."""
    from muster.cli.session import Failures, each, session
    from muster.client.jobs import Jobs
    from muster.objects.meta import name_of, namespace_of

    failures = Failures()
    async with session(target, state) as s:
        jobs = Jobs(s.client, namespace=s.namespace)

        async def one(word: str) -> None:
            job = await jobs.get(word)
            _check(job, change)
            group = str(job["apiVersion"]).partition("/")[0]
            resource = await s.client.resource(group, str(job["kind"]))
            await s.client.patch(resource, name_of(job), _patch(job, change), namespace_of(job))
            note = _when_it_counts(job) if said == "held" else ""
            click.echo(f"{str(job['kind']).lower()}/{name_of(job)} {said}{note}")

        await each(list(names), one, failures, lambda name: name)
    return failures.exit_code


def _when_it_counts(job: Raw) -> str:
    """What runs goes on: whoever holds it should know."""
    phase = (job.get("status") or {}).get("phase")
    return "; it runs, and is kept from starting once it waits again" if phase in ("Starting", "Running") else ""


def _check(job: Raw, change: Raw) -> None:
    """Refuse what would change nothing, and say what would."""
    from muster.objects.acts import standing_of
    from muster.objects.labels import Muster

    standing, notes = standing_of(job), change.get("annotations") or {}
    if notes.get(Muster.HOLD, "") is None and standing.hold is None:
        raise CliError("it is not held; 'muster why' says why it waits", ExitCode.CONFLICT)
    if notes.get(Muster.PIN, "") is None and standing.pin is None:
        raise CliError("it is not pinned", ExitCode.CONFLICT)
    if "queue" in change and standing.queue == change["queue"]:
        raise CliError(f"it is in queue {change['queue'] or 'default'} already", ExitCode.CONFLICT)


def _patch(job: Raw, change: Raw) -> Raw:
    from muster.objects.labels import Muster

    meta: Raw = {"annotations": dict(change.get("annotations") or {})}
    if "queue" not in change:
        return {"metadata": meta}
    if job["kind"] == "Job":
        return {"spec": {"queue": change["queue"]}}
    # Whichever of the two it had, the label is what counts from now on.
    return {"metadata": {"labels": {Muster.QUEUE: change["queue"]}, "annotations": {Muster.QUEUE: None}}}


@command("move", "Put jobs that have not started into another queue.")
@jobs_argument
@click.option("--to", "to", metavar="QUEUE", required=True, help="The queue to put them into.")
@target_options()
@click.pass_context
def move(ctx: click.Context, *, target: Target, names: tuple[str, ...], to: str) -> None:
    """Put jobs that have not started into another queue. They keep the time since which they wait."""
    from muster.cli.session import run
    from muster.objects.names import validate_label_value

    if not to or (problems := validate_label_value(to)):
        why = "; ".join(problems) if to else "it is empty"
        raise UsageError(f"--to {to!r} can't be the name of a queue: {why}")
    ctx.exit(run(_act(target, state_of(ctx), names, {"queue": to}, f"moved to queue {to}")))


@command("pin", "Put a job before all others of its queue.")
@jobs_argument
@click.option(
    "--place",
    metavar="N",
    type=click.IntRange(min=-1_000_000, max=1_000_000),
    default=0,
    show_default=True,
    help="Among several that are pinned, the smallest goes first.",
)
@target_options()
@click.pass_context
def pin(ctx: click.Context, *, target: Target, names: tuple[str, ...], place: int) -> None:
    """Put jobs before all others of their queue, whatever the policy's formula says. Limits still hold."""
    from muster.cli.session import run
    from muster.objects.labels import Muster

    ctx.exit(run(_act(target, state_of(ctx), names, {"annotations": {Muster.PIN: str(place)}}, f"pinned at {place}")))


@command("hold", "Keep jobs from starting.")
@jobs_argument
@click.option("--reason", metavar="TEXT", default="", help="Why; its owner sees it.")
@target_options()
@click.pass_context
def hold(ctx: click.Context, *, target: Target, names: tuple[str, ...], reason: str) -> None:
    """Keep jobs from starting until they are released. What runs goes on; their place in the queue is kept."""
    from muster.cli.session import run
    from muster.objects.labels import Muster

    if len(reason) > REASON_LEN_MAX:
        raise UsageError(f"--reason has {len(reason)} characters; at most {REASON_LEN_MAX} are shown to users: shorten it")
    ctx.exit(run(_act(target, state_of(ctx), names, {"annotations": {Muster.HOLD: reason}}, "held")))


def _undo(word: str, summary: str, text: str, said: str) -> Command:
    """`unpin` and `release`: they take an annotation away, and are otherwise alike."""

    @jobs_argument
    @target_options()
    @click.pass_context
    def run_it(ctx: click.Context, *, target: Target, names: tuple[str, ...]) -> None:
        from muster.cli.session import run
        from muster.objects.labels import Muster

        key = Muster.PIN if word == "unpin" else Muster.HOLD
        ctx.exit(run(_act(target, state_of(ctx), names, {"annotations": {key: None}}, said)))

    run_it.__doc__ = text
    return command(word, summary)(run_it)


unpin = _undo("unpin", ENTRIES["unpin"].summary, "Let pinned jobs stand where the policy puts them.", "unpinned")
release = _undo("release", ENTRIES["release"].summary, "Let jobs that were held start again.", "released")
