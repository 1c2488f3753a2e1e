"""The stage commands of a KusciaJob: which there are, which are new, and which a job can follow in its present phase. Pure.

Here, and not with the controller that follows them, because the client gives them.

A command is three labels: the stage, who gave it, and a version that goes up by one each time. The one that was answered last
is kept in `status.stage` and `status.stageVersion`, in the same write as what it changed, so that it is carried out once
however often the controller starts again. A command with a lower version than that is old and is passed over; one without a
version counts as version 0, so that setting the stage alone works for as long as nobody writes versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from muster.objects.labels import KusciaLabel
from muster.objects.words import whole_number

CREATE, START, STOP, CANCEL, SUSPEND, RESTART = "Create", "Start", "Stop", "Cancel", "Suspend", "Restart"
STAGE_CONDITION: Final = "JobStageAccepted"
"""The answer: whether the last command was followed, and if not, why."""

BEFORE_RUNNING: Final = ("", "initialized", "AwaitingApproval", "Pending")

ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    CREATE: (*BEFORE_RUNNING, "Running"),
    START: (*BEFORE_RUNNING, "Running"),
    STOP: (*BEFORE_RUNNING, "Running", "Suspended", "Failed"),
    CANCEL: (*BEFORE_RUNNING, "Running", "Suspended", "Failed", "Cancelled"),
    SUSPEND: ("Running", "Suspended"),
    RESTART: ("Suspended", "Failed"),
}
"""From which phases each command is followed. Restart is also taken from Succeeded when tasks to run again are named."""

_WAY_OUT: Final[Mapping[str, str]] = {
    START: "use Restart for a job that failed or is suspended",
    CREATE: "use Restart for a job that failed or is suspended",
    STOP: "there is nothing left to stop",
    CANCEL: "there is nothing left to cancel",
    SUSPEND: "only a running job can be suspended; use Stop",
    RESTART: "restart a job that failed or is suspended; one that succeeded needs the tasks to run again in the annotation "
    "muster.dev/rerun-from; submit one that was cancelled or rejected again",
}
_VERSION_DIGITS_MAX: Final = 18


class Command(msgspec.Struct, frozen=True):
    """What the labels say. `problem` is set, and says why, when that is no command."""

    stage: str
    version: int = 0
    trigger: str = ""
    problem: str = ""


def read_command(labels: Mapping[str, str]) -> Command | None:
    """None when there is no stage label."""
    stage = labels.get(KusciaLabel.JOB_STAGE, "")
    if not stage:
        return None
    text, version, problem = labels.get(KusciaLabel.JOB_STAGE_VERSION, ""), _version(labels), ""
    if version is None:
        problem = f"label {KusciaLabel.JOB_STAGE_VERSION}: {text!r} is not a whole number; count up from 1"
    if stage not in ALLOWED:
        problem = f"label {KusciaLabel.JOB_STAGE}: {stage!r} is no stage; there are {', '.join(ALLOWED)}"
    return Command(stage, version or 0, labels.get(KusciaLabel.JOB_STAGE_TRIGGER, ""), problem)


def _version(labels: Mapping[str, str]) -> int | None:
    """None when it can't be read; 0 when there is none."""
    number = whole_number(labels.get(KusciaLabel.JOB_STAGE_VERSION, "") or "0", -1, digits_max=_VERSION_DIGITS_MAX)
    return number if number >= 0 else None


def stage_version(labels: Mapping[str, str]) -> int:
    """The version of the last command; 0 when there is none that can be read."""
    return _version(labels) or 0


def is_new(command: Command, stage: str, version: int) -> bool:
    """Whether it was not answered yet; `stage` and `version` are those of the last answer."""
    return command.version >= version and (command.stage, command.version) != (stage, version)


def refusal(command: Command, phase: str, *, reruns: bool) -> str:
    """Why the command can't be followed from `phase`; empty when it can. `reruns`: tasks to run again are named."""
    allowed = ALLOWED[command.stage]
    if command.stage == RESTART and reruns:
        allowed = (*allowed, "Succeeded")
    if phase in allowed:
        return ""
    names = ", ".join(name for name in allowed if name)
    return f"{command.stage} is possible in the phases {names}; this job is {phase or 'new'}: {_WAY_OUT[command.stage]}"


def rerun_aliases(text: str) -> list[str]:
    """The value of the annotation `muster.dev/rerun-from`."""
    return [alias for alias in dict.fromkeys(word.strip() for word in text.split(",")) if alias]
