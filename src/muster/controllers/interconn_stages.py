"""Stage commands of a job between control planes: whose counts. Pure.

A command is the stage, who gave it and a version (`objects.job_stages`). The initiator's job has it in labels, and so has the
copy at each member; between them it is in the KusciaJobSummary: `spec.stage`, `spec.stageTrigger` and the label
`job-stage-version`. The higher version wins. Of two commands with one version the initiator's does, so that both sides come to
the same.

A member may stop, cancel, suspend or restart a job in the name of its own parties. Its version may be ahead by no more than
`LEAP_MAX`: with the highest number there is, nobody could give a command after it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from muster.objects.job_stages import CANCEL, CREATE, RESTART, STOP, SUSPEND, Command, read_command, stage_version
from muster.objects.labels import KusciaLabel
from muster.objects.meta import labels_of
from muster.objects.status import Raw

MEMBERS_STAGES: Final = (STOP, CANCEL, SUSPEND, RESTART)
LEAP_MAX: Final = 1_000


def command_in(summary: Raw) -> Command:
    """What a KusciaJobSummary says."""
    spec = summary.get("spec") or {}
    return Command(str(spec.get("stage") or CREATE), stage_version(labels_of(summary)), str(spec.get("stageTrigger") or ""))


def command_on(job: Raw, initiator: str) -> Command:
    """What the labels of a job say; without a command, it was made and no more."""
    found = read_command(labels_of(job))
    if found is None or found.problem:
        return Command(CREATE, 0, initiator, found.problem if found is not None else "")
    return Command(found.stage, found.version, found.trigger or initiator)


def members_command(copy: Raw, summary: Raw, own: Collection[str]) -> Command | None:
    """A command that was given at the member, on its copy of the job, and that the initiator does not know yet."""
    given, known = read_command(labels_of(copy)), command_in(summary)
    if given is None or given.problem or given.version <= known.version or given.stage not in MEMBERS_STAGES or not own:
        return None
    # Who may write here speaks for the parties that are here, and for no others.
    trigger = given.trigger if given.trigger in own else next(iter(own))
    return Command(given.stage, given.version, trigger)


def is_taken(given: Command, ours: Command, partners: Collection[str]) -> bool:
    """Whether the initiator follows what a member has put into the summary."""
    is_theirs = given.stage in MEMBERS_STAGES and given.trigger in partners
    return is_theirs and ours.version < given.version <= ours.version + LEAP_MAX


def stage_labels(command: Command) -> dict[str, str]:
    """For a job."""
    return {
        KusciaLabel.JOB_STAGE: command.stage,
        **({KusciaLabel.JOB_STAGE_TRIGGER: command.trigger} if command.trigger else {}),
        **({KusciaLabel.JOB_STAGE_VERSION: str(command.version)} if command.version else {}),
    }


def stage_patch(command: Command) -> Raw:
    """For a KusciaJobSummary."""
    patch: Raw = {"spec": {"stage": command.stage, "stageTrigger": command.trigger}}
    if command.version:
        patch["metadata"] = {"labels": {KusciaLabel.JOB_STAGE_VERSION: str(command.version)}}
    return patch
