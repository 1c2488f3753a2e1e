"""`muster eta`: when a job will start, or would start with another size, or if it were sent now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import click

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import State, command, state_of
from muster.cli.job_options import complete_job
from muster.cli.options import Target, file_options, machine_output, target_options

if TYPE_CHECKING:
    from muster.cli.commands.explain import Asking
    from muster.cli.files import Document
    from muster.cli.session import Failures, Session
    from muster.objects.status import Raw

PATH = "/muster/v1/eta"
TASKS_MAX = 20
ENDED = frozenset({"Succeeded", "Failed", "Cancelled", "Suspended"})
"""Phases of jobs that are in no line."""


class _Asked(NamedTuple):
    """What the command line says."""

    name: str
    filenames: tuple[str, ...]
    recursive: bool
    gpus: tuple[int, ...]
    output: str | None


async def _eta(target: Target, state: State, asked: _Asked) -> ExitCode:
    from muster.cli.asking import is_own
    from muster.cli.commands.explain import Asking
    from muster.cli.eta_view import eta_lines
    from muster.cli.output import emit, render_value
    from muster.cli.session import Failures, session
    from muster.objects.time import wall_clock

    failures = Failures()
    async with session(target, state) as s:
        # A cluster's API server has no such endpoint: there the controller answers a ScheduleExplanation.
        asking = None if await is_own(s.client) else Asking(s, 0, target.request_timeout_s)
        found = await _by_name(s, asked, asking) if asked.name else await _by_file(s, asked, failures, asking)
    if asked.output:
        emit(render_value({"items": [{"subject": subject, **answer} for subject, answer in found]}, asked.output))
    else:
        for subject, answer in found:
            emit("\n".join(eta_lines(subject, answer, float(answer.get("now") or wall_clock()))))
    return failures.exit_code


async def _by_name(s: Session, asked: _Asked, asking: Asking | None) -> list[tuple[str, Raw]]:
    from muster.cli.asking import ask
    from muster.client.jobs import Jobs
    from muster.objects.meta import name_of, namespace_of

    jobs = Jobs(s.client, namespace=s.namespace)
    job = await jobs.get(asked.name)
    works = [("Job", namespace_of(job), name_of(job))]
    if job["kind"] != "Job":
        tree = await jobs.tree(f"KusciaJob/{name_of(job)}")
        chosen = [task.task_id for task in tree.tasks if task.phase in ("Pending", "Running") and task.task_id][:TASKS_MAX]
        works = [("KusciaTask", tree.namespace, task) for task in chosen]
    phase = str((job.get("status") or {}).get("phase") or "")
    if phase in ENDED or not works:
        subject = f"{job['kind']} {namespace_of(job)}/{name_of(job)}"
        return [(subject, {"state": "ended" if phase in ENDED else "idle", "phase": phase, "items": []})]
    found = []
    for kind, namespace, word in works:

        async def when(gpus: Sequence[int], kind: str = kind, namespace: str = namespace, word: str = word) -> Raw:
            if asking is not None:
                return await asking.when({"questionObjectKey": f"{kind}/{namespace}/{word}"}, namespace, gpus)
            path = f"/muster/v1/jobs/{quote(namespace, safe='')}/{quote(word, safe='')}/eta"
            return await ask(s.client, path, [("kind", kind), *(("gpus", str(one)) for one in gpus)])

        found.append((f"{kind} {namespace}/{word}", await _or_smaller(asked, when)))
    return found


async def _or_smaller(asked: _Asked, when: Callable[[Sequence[int]], Awaitable[Raw]]) -> Raw:
    """The answer; for people who name no size, with half of the GPUs beside it where that would start sooner."""
    from muster.cli.eta_view import half_of, is_sooner

    answer = await when(asked.gpus)
    half = 0 if asked.gpus or asked.output else half_of(answer)
    if not half:
        return answer
    again = await when([half])
    return again if is_sooner(again) else answer


async def _by_file(s: Session, asked: _Asked, failures: Failures, asking: Asking | None) -> list[tuple[str, Raw]]:
    import msgspec

    from muster.cli.files import read_manifests
    from muster.cli.session import each

    manifests = read_manifests(asked.filenames, recursive=asked.recursive)
    for problem in manifests.problems:
        failures.add(CliError(problem))
    found: list[tuple[str, Raw]] = []

    async def one(document: Document) -> None:
        if asking is not None:
            namespace = str((document.object.get("metadata") or {}).get("namespace") or s.namespace)
            template = {"questionObjectTemplate": document.object}
            found.append((document.where, await _or_smaller(asked, lambda gpus: asking.when(template, namespace, gpus))))
            return
        manifest = await _as_sent(s, document.object)

        async def when(gpus: Sequence[int]) -> Raw:
            body: Raw = {"manifest": manifest, "namespace": s.namespace, "gpus": list(gpus)}
            answer: Raw = msgspec.json.decode((await s.client.request("POST", PATH, body=body)).body)
            return answer

        never = await _never(s, document)
        answer = await when(asked.gpus) if never else await _or_smaller(asked, when)
        found.append((document.where, {**answer, "never": never}))

    await each(manifests.documents, one, failures, lambda document: document.where)
    return found


async def _as_sent(s: Session, manifest: Raw) -> Raw:
    """What the server would make of it: whose it is, and in which queue. ApiError says why it would be refused."""
    from muster.cli.applying import group_and_kind
    from muster.objects.requests import WriteOptions
    from muster.objects.status import AlreadyExists

    resource = await s.client.resource(*group_and_kind(manifest))
    namespace = str((manifest.get("metadata") or {}).get("namespace") or s.namespace) if resource.namespaced else None
    try:
        return await s.client.create(resource, manifest, namespace, WriteOptions(dry_run=True, field_validation="Strict"))
    except AlreadyExists:
        return manifest  # it was sent before, and was not refused then


async def _never(s: Session, document: Document) -> str:
    """Why no node could ever hold it; "" where one could, or where that is not for the caller to ask."""
    from muster.cli.commands.explain import Asking
    from muster.objects.status import Forbidden

    try:
        verdicts = [item.get("verdict") or {} for item in await Asking(s, 0, 30.0).hypothetical(document)]
    except Forbidden:
        return ""
    return next((str(one.get("message")) for one in verdicts if one.get("reason") == "Impossible"), "")


@command("eta", "Say when a job will start, or would if it were sent now or were smaller.")
@click.argument("name", metavar="[[KIND/]NAME]", required=False, default="", shell_complete=complete_job)
@file_options("Manifest of work that need not exist: it is forecast, and nothing is stored")
@click.option(
    "--gpus",
    metavar="N",
    multiple=True,
    type=click.IntRange(min=1, max=100_000),
    help="Also say when it would start with so many GPUs, other resources in proportion. May be given several times.",
)
@machine_output
@target_options()
@click.pass_context
def eta(
    ctx: click.Context,
    *,
    target: Target,
    name: str,
    filenames: tuple[str, ...],
    recursive: bool,
    gpus: tuple[int, ...],
    output: str | None,
) -> None:
    """Say when a job will start: an interval, how sure it is, and what that rests on.

    With --gpus: when it would start with another number of GPUs; without, half of them where that is sooner. With -f: when work
    that is not there would start if it were sent now.
    """
    from muster.cli.session import run

    if bool(name) == bool(filenames):
        raise UsageError("name a job, or give a manifest with -f: muster eta train; muster eta -f job.yaml")
    ctx.exit(run(_eta(target, state_of(ctx), _Asked(name, filenames, recursive, gpus, output))))
