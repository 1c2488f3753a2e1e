"""Following the stage commands of a job: what each changes in the draft, and how it is answered. Pure.

Which commands there are and when they are possible is in `objects.job_stages`. Every command is answered once, in the write
that carries out what follows from it: `status.stage` and `status.stageVersion`, and the condition `JobStageAccepted`.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.controllers.actions import Patch
from muster.controllers.kuscia_job_draft import Draft, target_of_job
from muster.controllers.kuscia_job_graph import SUCCEEDED, WAITING
from muster.objects.conditions import find_condition
from muster.objects.job_stages import (
    CANCEL,
    RESTART,
    STAGE_CONDITION,
    START,
    STOP,
    SUSPEND,
    Command,
    is_new,
    read_command,
    refusal,
    rerun_aliases,
)
from muster.objects.kinds.kuscia_jobs import KusciaJob
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.reasons import Reason


def after_restart(job: KusciaJob) -> Patch | None:
    """Once a restart was followed its labels go back to Start, as Kuscia's do, and what was to run again is forgotten.

    This goes alone and before all else, with the version that was read: it must not write over a command given meanwhile.
    """
    command = read_command(job.metadata.labels)
    if command is None or command.stage != RESTART or command.problem:
        return None
    is_answered = (command.stage, command.version) == (job.status.stage, job.status.stage_version)
    if not is_answered or not any(c.type == STAGE_CONDITION and c.status == "True" for c in job.status.conditions):
        return None
    changes = {KusciaLabel.JOB_STAGE: START, KusciaLabel.JOB_STAGE_VERSION: str(command.version + 1)}
    return Patch(target_of_job(job), {"metadata": {"labels": changes, "annotations": {Muster.RERUN_FROM: None}}})


def obey(draft: Draft) -> None:
    command = read_command(draft.job.metadata.labels)
    if command is None:
        return
    if command.problem:
        old = find_condition(draft.conditions, STAGE_CONDITION)
        if old is None or old.get("message") != command.problem:
            draft.set(STAGE_CONDITION, "False", Reason.STAGE_NOT_ALLOWED.value, command.problem)
            draft.warn(Reason.STAGE_NOT_ALLOWED.value, command.problem)
        return
    if not is_new(command, draft.stage, draft.stage_version):
        return
    if draft.stage == RESTART and (command.stage, command.version) == (START, draft.stage_version + 1):
        draft.stage, draft.stage_version = command.stage, command.version  # see `after_restart`; there is nothing to follow
        return
    aliases = rerun_aliases(draft.job.metadata.annotations.get(Muster.RERUN_FROM, ""))
    why_not = refusal(command, draft.phase, reruns=bool(aliases)) or _restart_refusal(draft, command, aliases)
    draft.stage, draft.stage_version = command.stage, command.version
    if why_not:
        draft.set(STAGE_CONDITION, "False", Reason.STAGE_NOT_ALLOWED.value, why_not)
        draft.warn(Reason.STAGE_NOT_ALLOWED.value, why_not)
        return
    by = f" by {command.trigger}" if command.trigger else ""
    draft.set(STAGE_CONDITION, "True", command.stage, f"followed in phase {draft.phase or 'new'}{by and f', given{by}'}")
    draft.answer(command.stage)
    if command.stage == RESTART:
        _restart(draft, aliases, by)
    elif command.stage == STOP and draft.phase != "Failed":
        _end(draft, "Failed", Reason.STOPPED.value, f"stopped{by}")
    elif command.stage == CANCEL and draft.phase != "Cancelled":
        _end(draft, "Cancelled", Reason.CANCELLED.value, f"cancelled{by}")
    elif command.stage == SUSPEND and draft.phase != "Suspended":
        _end(draft, "Suspended", Reason.SUSPENDED.value, f"suspended{by}; the stage Restart goes on with what is left")


def _restart_refusal(draft: Draft, command: Command, aliases: Sequence[str]) -> str:
    if command.stage != RESTART:
        return ""
    unknown = [alias for alias in aliases if alias not in draft.standings]
    if unknown:
        return f"annotation {Muster.RERUN_FROM}: the job has no task {unknown[0]!r}"
    return draft.problems()


def _end(draft: Draft, phase: str, reason: str, message: str) -> None:
    draft.go(phase, reason, message)
    draft.set("JobStopInitialized", "True", reason, message)


def _restart(draft: Draft, aliases: Sequence[str], by: str) -> None:
    """What has succeeded stays, unless it is to run again; all else is made anew, under the same names."""
    draft.unset("JobStopInitialized", "JobStopSucceeded")
    draft.set("JobValidated", "True", "Validated")
    again = draft.graph.descendants(aliases)
    draft.run += 1
    for standing in draft:
        if standing.phase == SUCCEEDED and standing.alias not in again:
            continue
        is_rerun = standing.alias in again or standing.is_rerun
        reason = Reason.RERUNNING if is_rerun else Reason.RESTARTING
        if standing.live is not None:
            standing.stale, standing.live = standing.live, None
        standing.run, standing.is_lost = draft.run, False
        standing.say(WAITING, reason.value)
    if draft.start_time:
        draft.go("Running", Reason.STARTED.value, f"restarted{by}")
    else:
        # It never ran, so nobody may have been asked yet: from the beginning.
        draft.go("initialized", "", f"restarted{by}")
