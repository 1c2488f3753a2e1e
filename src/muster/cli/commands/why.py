"""`muster why`: why a job waits, where it stands in its queue, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import State, command, state_of
from muster.cli.job_options import job_argument
from muster.cli.options import Target, machine_output, target_options

if TYPE_CHECKING:
    from muster.cli.session import Session
    from muster.objects.status import Raw

TASKS_MAX = 20


async def _why(target: Target, state: State, name: str, output: str | None) -> ExitCode:
    from muster.cli.output import emit, render_value
    from muster.cli.session import session
    from muster.client.jobs import Jobs
    from muster.objects.time import wall_clock

    async with session(target, state) as s:
        jobs = Jobs(s.client, namespace=s.namespace)
        job = await jobs.get(name)
        found = await _answers(s, jobs, job)
    if output:
        emit(render_value({"job": f"{job['kind']}/{name}", "items": found}, output))
    else:
        emit("\n".join(_lines(job, found, wall_clock())))
    return ExitCode.OK


async def _answers(s: Session, jobs: object, job: Raw) -> list[Raw]:
    """One answer for a Job, one for each task of a KusciaJob that waits or runs."""
    from muster.client.jobs import Jobs
    from muster.objects.meta import name_of, namespace_of

    assert isinstance(jobs, Jobs)
    if job["kind"] == "Job":
        return [await _about(s, "Job", namespace_of(job), name_of(job), job)]
    tree = await jobs.tree(f"KusciaJob/{name_of(job)}")
    tasks = [task.task_id for task in tree.tasks if task.phase in ("Pending", "Running") and task.task_id][:TASKS_MAX]
    return [await _about(s, "KusciaTask", tree.namespace, task, None) for task in tasks]


async def _about(s: Session, kind: str, namespace: str, name: str, job: Raw | None) -> Raw:
    """Where it stands, and what the scheduler says of it; what can't be asked is left out."""
    from muster.cli.asking import ask, is_own
    from muster.objects.status import NotFound, ServiceUnavailable

    answer: Raw = {"subject": f"{kind}/{namespace}/{name}"}
    if not await is_own(s.client):
        return {**answer, **await _by_object(s, kind, namespace, name, job)}
    quoted = f"{quote(namespace, safe='')}/{quote(name, safe='')}"
    try:
        answer |= await ask(s.client, f"/muster/v1/jobs/{quoted}/place", [("kind", kind)])
    except (NotFound, ServiceUnavailable) as error:
        answer["placeProblem"] = error.message
    try:
        word = "jobs.muster.dev" if kind == "Job" else kind
        answer["explained"] = (await ask(s.client, f"/muster/v1/explain/{word}/{quoted}", [("nodes", "0")]))["items"]
    except (NotFound, ServiceUnavailable):
        answer["explained"] = []
    return answer


async def _by_object(s: Session, kind: str, namespace: str, name: str, job: Raw | None) -> Raw:
    """On a cluster: the controller answers a ScheduleExplanation; where it can't be asked, what is written in the status."""
    from muster.cli.commands.explain import Asking
    from muster.cli.queue_view import status_place
    from muster.objects.status import ApiError

    written = status_place(job) if job is not None else {}
    try:
        [asked] = await Asking(s, 0, s.client.transport.limits.timeout_s).named(kind, namespace, name)
    except (ApiError, CliError) as error:
        return {**written, "placeProblem": getattr(error, "message", "") or str(error)}
    details = (asked["explanation"].get("detailedExplanation") or [{}])[0]
    return {
        **written,
        **{word: details[word] for word in ("place", "ahead") if word in details},
        "answer": asked["explanation"],
    }


def _lines(job: Raw, found: list[Raw], now: float) -> Iterator[str]:
    from muster.cli.explaining import answer_text, explanation_text
    from muster.cli.output import cell_text
    from muster.cli.queue_view import act_lines, deadline_lines, place_lines, running_lines
    from muster.objects.meta import name_of, namespace_of

    status = job.get("status") or {}
    told = ": ".join(cell_text(word) for word in (status.get("reason"), status.get("message")) if word)
    yield f"{job['kind']} {namespace_of(job)}/{name_of(job)}: {cell_text(status.get('phase') or 'new')}" + (
        f" ({told})" if told else ""
    )
    for one in found:
        if job["kind"] != "Job":
            yield f" {cell_text(one['subject'])}: {cell_text(one.get('state') or 'not with the scheduler')}"
        yield from place_lines(one, now)
        if job["kind"] == "Job" and status.get("phase") in ("Starting", "Running"):
            yield from running_lines(job, one.get("place") or {}, now)
        if _is_waiting(job):
            yield from deadline_lines(job, one.get("place") or {}, now)
            if one.get("placeProblem") and not one.get("place"):
                yield f"  {cell_text(one['placeProblem'])}"
        yield from _refusal_lines(one)
        if "answer" in one and not _is_refused(one):
            yield from explanation_text(str(one["subject"]), one["answer"]).splitlines()[1:]
        for answer in one.get("explained") or []:
            if answer.get("state") == "waiting" and not _is_refused(one):
                yield from answer_text({**answer, "evaluations": []}, wide=False).splitlines()[1:]
    yield from act_lines(job)
    if not found and job["kind"] != "Job":
        yield "  nothing of it waits to be placed or runs"


def _is_waiting(job: Raw) -> bool:
    return ((job.get("status") or {}).get("phase") or "Pending") in ("Pending", "Queued")


def _is_refused(one: Raw) -> bool:
    return bool(((one.get("place") or {}).get("refused") or {}).get("reason"))


def _refusal_lines(one: Raw) -> Iterator[str]:
    """Why the order does not let it be tried."""
    from muster.cli.explaining import verdict_lines

    if _is_refused(one):
        yield from verdict_lines(one["place"]["refused"])


@command("why", "Say why a job waits, where it stands in its queue, and what would help.")
@job_argument
@machine_output
@target_options()
@click.pass_context
def why(ctx: click.Context, *, target: Target, name: str, output: str | None) -> None:
    """Say why a job waits: the reason, the number it is short by, who holds it, and what would help.

    Beside it: its place in the queue, and the factors that put it there, each compared with those of the job ahead.
    """
    from muster.cli.session import run

    ctx.exit(run(_why(target, state_of(ctx), name, output)))
