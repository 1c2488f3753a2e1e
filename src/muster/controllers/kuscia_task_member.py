"""A task whose initiator has another control plane: how this side of an attempt stands, and how it ends. Pure.

The initiator starts, restarts and ends a task, everywhere at once. A KusciaTask here stands for one attempt of it. This side

- starts nothing again. A party whose pods failed, were preempted, evicted or lost has failed; what is left of it is stopped;
- says so, with a reason code (`partyTaskStatus`), and leaves what follows to the initiator. When all own parties have failed
  the KusciaTask is Failed;
- has succeeded when the initiator says so: that its own parties are done says nothing about the others.

Invariant: a party that was written as Failed stays so, with its first reason. Its other pods, which are deleted afterwards, do
not turn a failure into a loss, nor a preemption into a deletion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from muster.controllers.actions import Target
from muster.controllers.kuscia_task_pods import TaskPod
from muster.controllers.kuscia_task_status import LOST, Evaluation
from muster.objects.kinds.kuscia_tasks import TaskResourceGroup
from muster.objects.rules.report import objs
from muster.objects.status import Raw


def own_side(found: Evaluation, group: TaskResourceGroup, written: Any) -> Evaluation:
    """`found`, as far as this side may judge it. `written` is the task's `partyTaskStatus`."""
    kept = {_who(party): party for party in _failed_parties(written)}
    own = {(party.domain_id, party.role) for party in group.spec.parties}
    parties = [kept.get(_who(party), party) if _who(party) in own else party for party in found.parties]
    mine = [party for party in parties if _who(party) in own]
    failed = [party for party in mine if party.get("phase") == "Failed"]
    if failed and len(failed) == len(mine):
        first = next((party for party in failed if party.get("reason") in LOST), failed[0])
        return msgspec.structs.replace(
            found,
            outcome="failed",
            reason=str(first.get("reason", "")),
            message=str(first.get("message", "")),
            parties=parties,
        )
    if found.outcome == "pending":
        return msgspec.structs.replace(found, parties=parties)
    return msgspec.structs.replace(found, outcome="running", reason="", message="", parties=parties)


def rest_of_failed(group: TaskResourceGroup, pods: Sequence[TaskPod], written: Any) -> list[Target]:
    """The pods that still wait or run though their party was written as Failed."""
    failed = {_who(party) for party in _failed_parties(written)}
    names = {
        f"{party.domain_id}/{pod.name}"
        for party in group.spec.parties
        if (party.domain_id, party.role) in failed
        for pod in party.pods
    }
    metas = (pod.metadata for pod in pods if pod.key in names and not pod.is_finished and not pod.metadata.deletion_timestamp)
    return [Target("", "Pod", meta.name, meta.namespace, meta.uid) for meta in metas]


def _failed_parties(written: Any) -> Iterable[Raw]:
    return [party for _, party in objs({"parties": written}, "parties", "") if party.get("phase") == "Failed"]


def _who(party: Raw) -> tuple[str, str]:
    return str(party.get("domainID", "")), str(party.get("role", ""))
