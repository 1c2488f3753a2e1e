"""A job whose initiator has another control plane: what it is here. Pure.

Here only the own parties answer whether they take part. All else is the initiator's to decide: once the own parties have
accepted, the job has the phase that it has there, which comes in annotations (`Muster.HOST_PHASE`). Its tasks come, and are
stopped, one by one with their KusciaTaskSummaries; nothing is started from here.

When the Domain of the initiator is deleted, nobody is left who could end the job: it fails here and its tasks are stopped.
"""

from __future__ import annotations

from typing import Final

from muster.controllers.kuscia_job_draft import Draft
from muster.objects.kinds.kuscia_jobs import FINAL_PHASES
from muster.objects.labels import Muster
from muster.objects.reasons import Reason

_FOLLOWED: Final = ("Running", "Suspended", *FINAL_PHASES)


def take_part(draft: Draft) -> None:
    """Answer for the own parties, then follow the initiator."""
    initiator, notes = draft.job.spec.initiator, draft.job.metadata.annotations
    if draft.facts.parties.get(initiator) is not True:
        _without_initiator(draft)
        return
    own = draft.own_parties
    if not draft.facts.workload_approval:
        for party in own:
            draft.approve.setdefault(party, "JobAccepted")
    rejected = [party for party in own if draft.approve.get(party) == "JobRejected"]
    waiting = [party for party in own if draft.approve.get(party) is None]
    said = notes.get(Muster.HOST_PHASE, "")
    if rejected:
        draft.go("ApprovalReject", Reason.APPROVAL_REJECTED.value, f"rejected by {', '.join(rejected)}")
    elif said in FINAL_PHASES or (said in _FOLLOWED and not waiting):
        draft.go(said, notes.get(Muster.HOST_REASON, ""), f"{said} at {initiator}, which decides about the job")
    elif waiting:
        draft.go("AwaitingApproval", Reason.AWAITING_APPROVAL.value, f"waits for the approval of {', '.join(waiting)}")
    else:
        draft.go("Pending", "", f"accepted; {initiator} decides when it starts")


def _without_initiator(draft: Draft) -> None:
    initiator = draft.job.spec.initiator
    if draft.phase not in FINAL_PHASES:
        what = "is no partner" if initiator in draft.facts.parties else "does not exist"
        message = f"Domain {initiator}, the initiator, {what} here, so that nobody decides about the job; delete it"
        draft.go("Failed", Reason.PARTY_UNKNOWN.value, message)
    for standing in draft:
        draft.stop(standing.live, Reason.STOPPED)
        draft.stop(standing.stale, Reason.STOPPED)
