"""What a job is, whichever of the two kinds it has: its name as users write it, its phase, how it ended.

KusciaJob is work of several parties and lives in `cross-domain`; Job (muster.dev) is work with one owner and lives in that
one's namespace. The rest of the client, and the command line above it, speak of both alike through the values here.

Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from muster.objects.job_stages import RESTART, STOP, stage_version
from muster.objects.labels import KusciaLabel
from muster.objects.meta import generation_of, labels_of, name_of, namespace_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import BadRequest, Raw

PENDING_STAGES = (RESTART,)
"""Stage commands after which a finished job goes on: until they are carried out, the old end is not the end."""


class JobKind(msgspec.Struct, frozen=True):
    """One of the two kinds of job, and the words that mean it."""

    group: str
    kind: str
    plural: str
    words: frozenset[str]
    namespace: str = ""
    """Where all objects of the kind live; empty when they live in their owner's namespace."""

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1alpha1"


KUSCIA_JOB = JobKind(
    group="kuscia.secretflow",
    kind="KusciaJob",
    plural="kusciajobs",
    words=frozenset({"kusciajob", "kusciajobs", "kj"}),
    namespace=NAMESPACE_CROSS_DOMAIN,
)
OWN_JOB = JobKind(group="muster.dev", kind="Job", plural="jobs", words=frozenset({"job", "jobs", "mj"}))
KINDS = (KUSCIA_JOB, OWN_JOB)


class Outcome(enum.Enum):
    """How a job ended. `exit_code` is what a command that waits for it ends with; `docs/cli.md` lists the codes."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"
    CANCELLED = "Cancelled"
    REJECTED = "Rejected"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Outcome.SUCCEEDED: 0,
    Outcome.FAILED: 1,
    Outcome.STOPPED: 8,
    Outcome.CANCELLED: 8,
    Outcome.REJECTED: 8,
}


def kind_of(raw: Mapping[str, Any]) -> JobKind:
    """BadRequest when `raw` is no job."""
    group = str(raw.get("apiVersion", "")).rpartition("/")[0]
    for kind in KINDS:
        if (kind.group, kind.kind) == (group, raw.get("kind")):
            return kind
    raise BadRequest(
        f'kind "{raw.get("kind")}" of apiVersion "{raw.get("apiVersion")}" is no job; jobs are KusciaJob '
        f"({KUSCIA_JOB.api_version}) and Job ({OWN_JOB.api_version})"
    )


def is_job(raw: Mapping[str, Any]) -> bool:
    group = str(raw.get("apiVersion", "")).rpartition("/")[0]
    return any((kind.group, kind.kind) == (group, raw.get("kind")) for kind in KINDS)


def parse_name(text: str) -> tuple[tuple[JobKind, ...], str]:
    """`NAME` may be of either kind; `KIND/NAME`, `KIND.GROUP/NAME` is of one. BadRequest says what is wrong."""
    word, slash, name = text.rpartition("/")
    if not name:
        raise BadRequest(f'"{text}" names no job; write NAME, kusciajob/NAME or job/NAME')
    if not slash:
        return KINDS, name
    short, dot, group = word.lower().partition(".")
    found = tuple(kind for kind in KINDS if short in kind.words and (not dot or group == kind.group))
    if not found:
        raise BadRequest(f'"{word}" in "{text}" is no kind of job; write kusciajob/{name} or job/{name}')
    return found, name


def title_of(raw: Mapping[str, Any]) -> str:
    """For messages: `KusciaJob cross-domain/train`."""
    return f"{raw.get('kind')} {namespace_of(raw)}/{name_of(raw)}"


def qualified_name_of(raw: Mapping[str, Any]) -> str:
    """`kusciajob.kuscia.secretflow/train`: a name that every command takes back."""
    kind = kind_of(raw)
    return f"{kind.singular}.{kind.group}/{name_of(raw)}"


def spec_of(raw: Mapping[str, Any]) -> Raw:
    spec = raw.get("spec")
    return spec if isinstance(spec, dict) else {}


def status_of(raw: Mapping[str, Any]) -> Raw:
    status = raw.get("status")
    return status if isinstance(status, dict) else {}


def phase_of(raw: Mapping[str, Any]) -> str:
    """The phase; "" while no controller has seen the job."""
    return str(status_of(raw).get("phase") or "")


def stage_of(raw: Mapping[str, Any]) -> str:
    """The last stage command of a KusciaJob."""
    return labels_of(raw).get(KusciaLabel.JOB_STAGE, "")


def stage_version_of(raw: Mapping[str, Any]) -> int:
    """The version of that command; 0 when there is none that can be read."""
    return stage_version(labels_of(raw))


def next_stage_version(raw: Mapping[str, Any]) -> int:
    """For the next command: past the one that is there, and past the last one that was answered."""
    answered = status_of(raw).get("stageVersion")
    return max(stage_version_of(raw), answered if isinstance(answered, int) else 0) + 1


def has_pending_command(raw: Mapping[str, Any]) -> bool:
    """Whether a command was given that the controller has not carried out yet, so that an old end is not the end."""
    if raw.get("kind") == KUSCIA_JOB.kind:
        answered = status_of(raw).get("stageVersion")
        is_answered = (
            isinstance(answered, int) and answered >= stage_version_of(raw) and status_of(raw).get("stage") == stage_of(raw)
        )
        return stage_of(raw) in PENDING_STAGES and not is_answered
    observed = status_of(raw).get("observedGeneration")
    return isinstance(observed, int) and 0 < observed < generation_of(raw)


def outcome_of(raw: Mapping[str, Any]) -> Outcome | None:
    """How the job ended; None while it has not, or is about to go on."""
    if has_pending_command(raw):
        return None
    return _phase_outcome(raw)


def _phase_outcome(raw: Mapping[str, Any]) -> Outcome | None:
    phase, reason = phase_of(raw), str(status_of(raw).get("reason") or "")
    if phase == "Succeeded":
        return Outcome.SUCCEEDED
    if phase == "Cancelled":
        return Outcome.CANCELLED
    if phase == "ApprovalReject":
        return Outcome.REJECTED
    if phase == "Failed":
        was_stopped = reason in ("Stopped", "KusciaJobStopped") or (not reason and stage_of(raw) == STOP)
        return Outcome.STOPPED if was_stopped else Outcome.FAILED
    return None


def is_over(raw: Mapping[str, Any]) -> bool:
    return outcome_of(raw) is not None
