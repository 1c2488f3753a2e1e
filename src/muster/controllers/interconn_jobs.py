"""The member's side of a job whose initiator has another control plane. Pure.

| in the host's store, in the member's namespace | here |
|---|---|
| KusciaJob (mirror) appears | KusciaJob in `cross-domain`; the job controller answers for the own parties and starts nothing |
| goes, or is of another job | that one is deleted, and with it all tasks of the job |
| KusciaJobSummary: phase, reason | annotations `muster.dev/host-*` of that job, which the job controller follows |
| stage, trigger, version | its labels, unless they are a later command that was given here (`interconn_stages`) |
| approveStatus, stageStatus | written from that job, for the own parties |

What follows from a command comes task by task, with the KusciaTaskSummaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.controllers.actions import Action, Create, Delete, Patch, target_of
from muster.controllers.interconn_host import PROTOCOL, Partner
from muster.controllers.interconn_parts import Both
from muster.controllers.interconn_stages import command_in, members_command, stage_labels, stage_patch
from muster.objects.job_stages import CREATE, START
from muster.objects.kinds.kuscia_base import API_VERSION
from muster.objects.kinds.kuscia_jobs import FINAL_PHASES, KusciaJob
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of, is_deleting, labels_of, name_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import Raw
from muster.objects.view import copy_json, view_of

_KEPT = (Muster.ORIGIN_CREATED, Muster.ORIGIN_UID, Muster.PREEMPTIBLE, KusciaAnnotation.INITIATOR)


def plan_job(mirror: Raw | None, summary: Raw | None, job: Raw | None, domains: Mapping[str, Partner]) -> Both:
    """What to do next for a job: `mirror` and `summary` are in the host's store, `job` is here."""
    if job is not None and annotations_of(job).get(KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR) != "false":
        return Both()  # it was made here
    if job is not None and is_deleting(job):
        return Both()
    if mirror is None:
        return Both([Delete(target_of(job))] if job is not None else [])
    if job is None:
        initiator = domains.get(view_of(KusciaJob, mirror).spec.initiator)
        # Nobody starts a job in the name of a party that is ours, or that nobody here knows. One that is over does not come
        # back when it was cleaned up here.
        is_wanted = initiator is not None and initiator.is_partner and _status(summary).get("phase") not in FINAL_PHASES
        return Both([Create(_local_job(mirror))] if is_wanted else [])
    if annotations_of(job).get(Muster.ORIGIN_UID) != annotations_of(mirror).get(Muster.ORIGIN_UID):
        return Both([Delete(target_of(job))])
    if summary is None:
        return Both()
    own = [party for party in _parties(job) if (found := domains.get(party)) is not None and not found.is_partner]
    command = members_command(job, summary, own)
    patch: Raw = stage_patch(command) if command is not None else {}
    answer = _answer(summary, job, own)
    if answer:
        patch["status"] = answer
    here = _news(summary, job, is_ahead=command is not None)
    return Both(here, [Patch(target_of(summary, at_version=True), patch)] if patch else [])


def _news(summary: Raw, job: Raw, *, is_ahead: bool) -> list[Action]:
    """What the host says, where the job here does not say so yet."""
    # At the version that was read: a command that is given here meanwhile must not be written over.
    wanted = {} if is_ahead else stage_labels(command_in(summary))
    labels = {key: value for key, value in wanted.items() if labels_of(job).get(key, "") != value}
    status = _status(summary)
    said = {Muster.HOST_PHASE: status.get("phase") or None, Muster.HOST_REASON: status.get("reason") or None}
    notes = {key: value for key, value in said.items() if annotations_of(job).get(key) != value}
    patch = {key: value for key, value in (("labels", labels), ("annotations", notes)) if value}
    return [Patch(target_of(job, at_version=True), {"metadata": patch})] if patch else []


def _answer(summary: Raw, job: Raw, own: Sequence[str]) -> Raw:
    """What the own parties say, where the host does not know it yet."""
    known, said, answer = _status(summary), job.get("status") or {}, {}
    approvals = {party: said["approveStatus"][party] for party in own if (said.get("approveStatus") or {}).get(party)}
    if any((known.get("approveStatus") or {}).get(party) != value for party, value in approvals.items()):
        answer["approveStatus"] = approvals
    stage = command_in(summary).stage
    stages = {party: word for party in own if (word := _stage_of(job, stage, approvals.get(party)))}
    if any((known.get("stageStatus") or {}).get(party) != value for party, value in stages.items()):
        answer["stageStatus"] = stages
    return answer


def _stage_of(job: Raw, stage: str, approval: str | None) -> str:
    """How the command went here. Tasks follow the initiator's one by one, so there is nothing to fail but the job itself."""
    has_failed = (job.get("status") or {}).get("phase", "") == "Failed" != annotations_of(job).get(Muster.HOST_PHASE)
    if stage == CREATE and approval is None:
        return ""
    return f"Job{stage}Stage{'Failed' if has_failed and stage in (CREATE, START) else 'Succeeded'}"


def _status(summary: Raw | None) -> Raw:
    return ((summary or {}).get("status")) or {}


def _parties(job: Raw) -> list[str]:
    view = view_of(KusciaJob, job)
    return list(dict.fromkeys(party.domain_id for task in view.spec.tasks for party in task.parties))


def _local_job(mirror: Raw) -> Raw:
    notes = annotations_of(mirror)
    kept = {key: notes[key] for key in _KEPT if key in notes}
    labels = {key: value for key, value in labels_of(mirror).items() if key.startswith(KusciaLabel.JOB_CUSTOM_FIELD_PREFIX)}
    return {
        "apiVersion": API_VERSION,
        "kind": "KusciaJob",
        "metadata": {
            "name": name_of(mirror),
            "namespace": NAMESPACE_CROSS_DOMAIN,
            "labels": {**labels, KusciaLabel.INTERCONN_PROTOCOL_TYPE: PROTOCOL},
            "annotations": {**kept, KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR: "false"},
        },
        "spec": copy_json(mirror.get("spec") or {}),
    }
