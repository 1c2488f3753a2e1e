"""What a command means for a job as it stands: the patch that gives it, or why it can't be given. Pure.

A KusciaJob takes commands as Kuscia does, by the labels `job-stage`, `job-stage-trigger` and `job-stage-version`: the highest
version wins, so each command writes the next one, on the very version of the object that it was decided on. A Job (muster.dev)
says in `spec.state` what its owner wants.

Invariant: a command that has nothing to change gives no patch, so giving it twice is harmless.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any

from muster.client.job_kinds import (
    KUSCIA_JOB,
    Outcome,
    kind_of,
    next_stage_version,
    outcome_of,
    phase_of,
    spec_of,
    stage_of,
    status_of,
    title_of,
)
from muster.client.job_tree import parties_of, refusal_of
from muster.objects.job_stages import CANCEL, RESTART, STOP, SUSPEND
from muster.objects.labels import Kubernetes, KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of, name_of, namespace_of, resource_version_of
from muster.objects.names import LABEL_LEN_MAX
from muster.objects.status import BadRequest, Conflict, Raw
from muster.objects.words import short_list

RERUNS_MAX = 10_000


class Command(enum.Enum):
    """What an owner may say to a job. The value is the word that people type."""

    STOP = "stop"
    SUSPEND = "suspend"
    RESUME = "resume"
    RESTART = "restart"
    CANCEL = "cancel"


_STAGES = {
    Command.STOP: STOP,
    Command.SUSPEND: SUSPEND,
    Command.RESUME: RESTART,
    Command.RESTART: RESTART,
    Command.CANCEL: CANCEL,
}
_STATES = {
    Command.STOP: "Stopped",
    Command.SUSPEND: "Suspended",
    Command.RESUME: "Running",
    Command.RESTART: "Running",
    Command.CANCEL: "Cancelled",
}


def command_patch(raw: Raw, command: Command, *, trigger: str = "") -> Raw | None:
    """The merge patch that gives `command`, or None when the job is already as it would make it. Conflict when it can't be.

    `trigger` is the party that gives a KusciaJob the command; its initiator unless another is named.
    """
    _check_phase(raw, command)
    if kind_of(raw) is KUSCIA_JOB:
        is_given = command in (Command.STOP, Command.CANCEL, Command.SUSPEND) and stage_of(raw) == _STAGES[command]
        if is_given and not refusal_of(raw):
            return None
        return stage_patch(raw, _STAGES[command], trigger=trigger)
    state = _STATES[command]
    if spec_of(raw).get("state", "Running") == state:
        return None
    return {"metadata": _precondition(raw), "spec": {"state": state}}


def stage_patch(raw: Raw, stage: str, *, trigger: str = "", annotations: Mapping[str, str] | None = None) -> Raw:
    """The merge patch of one stage command on a KusciaJob."""
    parties = [spec_of(raw).get("initiator", ""), *parties_of(raw)]
    if trigger and trigger not in parties:
        raise BadRequest(
            f"party {trigger!r} takes no part in {title_of(raw)}, so it can't command it; its parties are: "
            f"{', '.join(dict.fromkeys(filter(None, parties)))}",
            name=name_of(raw),
        )
    labels = {
        KusciaLabel.JOB_STAGE: stage,
        KusciaLabel.JOB_STAGE_TRIGGER: trigger or spec_of(raw).get("initiator", ""),
        KusciaLabel.JOB_STAGE_VERSION: str(next_stage_version(raw)),
    }
    metadata: Raw = {**_precondition(raw), "labels": labels}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"metadata": metadata}


def rerun_from_patch(raw: Raw, aliases: Sequence[str], *, trigger: str = "") -> Raw:
    """Run these tasks again, and all that depends on them, in place. Conflict while the job has not ended."""
    if kind_of(raw) is not KUSCIA_JOB:
        raise BadRequest(f"{title_of(raw)} has no tasks to begin from; rerun it as a whole, without --from", name=name_of(raw))
    known = [str(task.get("alias")) for task in spec_of(raw).get("tasks") or () if isinstance(task, dict)]
    for alias in aliases:
        if alias not in known:
            raise BadRequest(
                f"{title_of(raw)} has no task {alias!r}; its tasks are: {short_list(known, 20)}", name=name_of(raw)
            )
    outcome = outcome_of(raw)
    if outcome in (Outcome.CANCELLED, Outcome.REJECTED):
        raise _refused(raw, "rerun from a task", "make a new one: leave --from out")
    if outcome is None and phase_of(raw) != "Suspended":
        raise _refused(raw, "rerun from a task", "stop it first")
    return stage_patch(raw, RESTART, trigger=trigger, annotations={Muster.RERUN_FROM: ",".join(aliases)})


def approval_patch(raw: Raw, party: str, *, is_accepted: bool) -> Raw | None:
    """For the status: that `party` accepts or rejects the job; None when it has said so already."""
    if kind_of(raw) is not KUSCIA_JOB:
        raise BadRequest(f"{title_of(raw)} has one owner and needs no approval", name=name_of(raw))
    if party not in parties_of(raw):
        raise BadRequest(
            f"party {party!r} takes no part in {title_of(raw)}; its parties are: {', '.join(parties_of(raw))}",
            name=name_of(raw),
        )
    word = "JobAccepted" if is_accepted else "JobRejected"
    given = (status_of(raw).get("approveStatus") or {}).get(party)
    if given == word:
        return None
    if phase_of(raw) not in ("", "initialized", "AwaitingApproval"):
        verb = "approved" if is_accepted else "rejected"
        raise Conflict(
            f"{title_of(raw)} is {phase_of(raw)}: it can be {verb} only while it awaits approval; to end it use "
            f"'muster job cancel {name_of(raw)}'",
            name=name_of(raw),
        )
    return {"metadata": _precondition(raw), "status": {"approveStatus": {party: word}}}


def rerun_of(raw: Raw, number: int) -> Raw:
    """A new job from an old one: `<name>-rerun-N` with the same spec. Conflict while the old one has not ended."""
    if outcome_of(raw) is None:
        raise _refused(raw, "rerun", "stop it first, or submit the manifest under another name")
    name = rerun_name(name_of(raw), number, len_max=name_len_max(raw))
    labels = {key: value for key, value in labels_of(raw).items() if key not in _OF_THE_RUN}
    annotations = {key: value for key, value in annotations_of(raw).items() if key not in _OF_THE_RUN}
    annotations[Muster.RERUN_OF] = name_of(raw)
    spec = dict(spec_of(raw))
    if kind_of(raw) is KUSCIA_JOB:
        # A task id is the name of an object: two runs can't have the same.
        spec["tasks"] = [{k: v for k, v in task.items() if k != "taskID"} for task in spec.get("tasks") or ()]
    else:
        spec.pop("state", None)
    metadata: Raw = {"name": name, "namespace": namespace_of(raw), "annotations": annotations}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": kind_of(raw).api_version, "kind": kind_of(raw).kind, "metadata": metadata, "spec": spec}


def rerun_name(name: str, number: int, *, len_max: int = LABEL_LEN_MAX) -> str:
    """`train` and `train-rerun-3` both rerun as `train-rerun-N`; a long name is cut."""
    base, suffix = rerun_base(name), f"-rerun-{number}"
    return base[: max(1, len_max - len(suffix))].rstrip("-.") + suffix


def name_len_max(raw: Raw) -> int:
    """How long a job's name may be: pods of a Job are called `JOB-ROLE-INDEX`, which has to be a DNS label."""
    if kind_of(raw) is KUSCIA_JOB:
        return LABEL_LEN_MAX
    roles = [role for role in spec_of(raw).get("roles") or () if isinstance(role, dict)]
    return LABEL_LEN_MAX - max((len(f"-{role.get('name')}-{role.get('replicas', 1)}") for role in roles), default=0)


def rerun_base(name: str) -> str:
    return re.sub(r"-rerun-[0-9]{1,5}$", "", name)


_OF_THE_RUN = frozenset(
    {
        KusciaLabel.JOB_STAGE,
        KusciaLabel.JOB_STAGE_TRIGGER,
        KusciaLabel.JOB_STAGE_VERSION,
        KusciaLabel.RESOURCE_VERSION_UNDER_HOST,
        KusciaLabel.HAS_SYNCED,
        KusciaLabel.JOB_UID,
        KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR,
        KusciaAnnotation.SELF_CLUSTER_AS_PARTICIPANT,
        KusciaAnnotation.INITIATOR,
        KusciaAnnotation.INITIATOR_MASTER_DOMAIN,
        KusciaAnnotation.PARTY_MASTER_DOMAIN,
        KusciaAnnotation.INTERCONN_KUSCIA_PARTIES,
        KusciaAnnotation.INTERCONN_BFIA_PARTIES,
        KusciaAnnotation.INTERCONN_SELF_PARTIES,
        Muster.RERUN_FROM,
        Muster.RERUN_OF,
        Kubernetes.LAST_APPLIED,
    }
)
"""What belongs to one run and must not be carried into the next."""


def _check_phase(raw: Raw, command: Command) -> None:
    """Conflict says which phase forbids the command, and what to do instead."""
    outcome, phase = outcome_of(raw), phase_of(raw)
    if command in (Command.STOP, Command.CANCEL):
        same = Outcome.STOPPED if command is Command.STOP else Outcome.CANCELLED
        may_cancel = command is Command.CANCEL and outcome in (Outcome.FAILED, Outcome.STOPPED)
        if outcome is not None and outcome is not same and not may_cancel:
            raise _refused(raw, command.value, "there is nothing left to end; delete it when its record is no longer needed")
    elif command is Command.SUSPEND:
        if outcome is not None:
            raise _refused(raw, "suspend", "it has ended; restart or rerun it")
        if phase not in ("Running", "Suspended") and kind_of(raw) is KUSCIA_JOB:
            raise _refused(raw, "suspend", "only a running job is suspended: wait until it runs, or stop it")
    elif command is Command.RESUME:
        state = spec_of(raw).get("state")
        is_held = phase == "Suspended" or state in ("Suspended", "Stopped")
        if not is_held and not (phase == "Running" and outcome is None):
            raise _refused(raw, "resume", "only a suspended job is resumed; restart one that failed, rerun one that has ended")
    elif command is Command.RESTART:
        _check_restart(raw, outcome, phase)


def _check_restart(raw: Raw, outcome: Outcome | None, phase: str) -> None:
    if outcome is None and phase != "Suspended":
        raise _refused(raw, "restart", "it has not ended: stop or suspend it first")
    if outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.REJECTED):
        raise _refused(raw, "restart", f"make a new run of it: muster job rerun {name_of(raw)}")
    if kind_of(raw) is not KUSCIA_JOB and outcome is Outcome.FAILED:
        raise _refused(
            raw, "restart", f"a Job that failed is not started again; make a new one: muster job rerun {name_of(raw)}"
        )


def _refused(raw: Raw, verb: str, way_out: str) -> Conflict:
    outcome = outcome_of(raw)
    stands = outcome.value if outcome else phase_of(raw) or "not seen by a controller yet"
    return Conflict(f"{title_of(raw)}: can't {verb}: status.phase is {stands}; {way_out}", name=name_of(raw))


def _precondition(raw: Mapping[str, Any]) -> Raw:
    version = resource_version_of(raw)
    return {"resourceVersion": version} if version else {}
