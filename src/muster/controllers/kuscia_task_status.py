"""How a task stands, from its pods and from what partners say: the arithmetic of success and failure. Pure.

Kuscia's rules, with M = minReservedPods (all pods unless it is set) and N = minReservedMembers (all parties unless it is set):

| | failed when | succeeded when |
|---|---|---|
| a party | M > pods - failed pods | M pods have succeeded |
| the task | N > parties - failed parties | N parties have succeeded |

Pods that had to give way (`kuscia_task_pods`) are neither: when too few are left because of them, the task is *lost*, and
starts again. While any pod is lost, failures beside it count as its consequence: an application whose peer was taken away
fails, and should not use up a retry for it. What other control planes say of their parties counts as own parties do: one that
failed for a reason of `LOST` is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from muster.controllers.kuscia_task_pods import Finding, TaskPod, finding, pod_status, progress_of
from muster.objects.kinds.kuscia_base import TaskPhase
from muster.objects.kinds.kuscia_tasks import PartyTaskStatus, TaskResourceGroup, TaskResourceGroupParty
from muster.objects.reason_codes import Reason
from muster.objects.status import Raw

Outcome = Literal["pending", "running", "succeeded", "failed", "lost"]
PartnerStatuses = Mapping[tuple[str, str], PartyTaskStatus]
"""What other control planes say of their parties, by party and role."""

LOST: Final = frozenset({Reason.PREEMPTED.value, Reason.EVICTED_BY_ADMIN.value})
"""Why pods are lost (`kuscia_task_pods.gave_way`)."""

_FROM_PHASE: Mapping[str, Literal["succeeded", "failed"]] = {"Succeeded": "succeeded", "Failed": "failed"}


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Outcome
    reason: str = ""
    message: str = ""
    parties: list[Raw] = msgspec.field(default_factory=list)
    pods: dict[str, Raw] = msgspec.field(default_factory=dict)
    progress: float = 0.0
    again_s: float | None = None


class _Party(msgspec.Struct, frozen=True):
    phase: TaskPhase
    is_lost: bool
    first: Finding | None
    """Of the findings that matter most, the first: why it failed, is lost, or waits."""
    where: str = ""


def lack_of(group: TaskResourceGroup) -> str:
    """What the group asks for and does not list. Nothing when a task has made it so; somebody may have changed it since."""
    spec = group.spec
    count = len(spec.parties) + len(spec.out_of_controlled_parties)
    if max(spec.min_reserved_members, 1) > count:
        return f"spec.minReservedMembers is {spec.min_reserved_members}, and it has {count} parties"
    for party in spec.parties:
        if party.min_reserved_pods > len(party.pods):
            return f"minReservedPods of party {party.domain_id} is {party.min_reserved_pods}, and it has {len(party.pods)} pods"
    return ""


def evaluate(
    group: TaskResourceGroup, pods: Sequence[TaskPod], known: Mapping[str, Raw], partners: PartnerStatuses, now: float
) -> Evaluation:
    """How the task stands. `pods` are those of this attempt, `known` the podStatuses written before: a pod that had ended and
    was cleaned up since still counts as it ended."""
    seen = {pod.key: pod for pod in pods}
    findings: dict[str, Finding] = {}
    statuses: dict[str, Raw] = {}
    own = {(party.domain_id, party.role): party for party in group.spec.parties}
    states: list[tuple[tuple[str, str], _Party]] = []
    for who, party in own.items():
        for listed in party.pods:
            key = f"{party.domain_id}/{listed.name}"
            pod = seen.get(key)
            findings[key] = finding(pod, now) if pod is not None else _gone(key, known.get(key))
            statuses[key] = pod_status(pod, findings[key]) if pod is not None else _kept(known.get(key), party, listed.name)
        states.append((who, _own_party(party, findings)))
    others = [(other.domain_id, other.role) for other in group.spec.out_of_controlled_parties]
    states += [(who, _partner(partners.get(who))) for who in others]
    reports = [progress for pod in pods if (progress := progress_of(pod)) is not None]
    waits = [found.again_s for found in findings.values() if found.again_s is not None]
    outcome, first, where = _outcome(states, group.spec.min_reserved_members, findings.values())
    return Evaluation(
        outcome=outcome,
        reason=first.reason if first is not None else "",
        message=f"{where}: {first.message}" if first is not None and first.message and where else _said(first),
        parties=[_party_status(who, state) for who, state in states],
        pods=statuses,
        progress=1.0 if outcome == "succeeded" else round(sum(reports) / len(reports), 3) if reports else 0.0,
        again_s=min(waits, default=None),
    )


def _said(first: Finding | None) -> str:
    return first.message if first is not None else ""


def _gone(key: str, known: Raw | None) -> Finding:
    """A pod that is not there any more."""
    ended = _FROM_PHASE.get(str((known or {}).get("podPhase", "")))
    if ended is not None and known is not None:
        return Finding(ended, str(known.get("reason", "")), str(known.get("message", "")))
    return Finding("lost", Reason.EVICTED_BY_ADMIN.value, f"pod {key} was deleted")


def _kept(known: Raw | None, party: TaskResourceGroupParty, name: str) -> Raw:
    return dict(known) if known else {"podName": name, "namespace": party.domain_id, "podPhase": "Unknown"}


def _own_party(party: TaskResourceGroupParty, findings: Mapping[str, Finding]) -> _Party:
    keys = [f"{party.domain_id}/{listed.name}" for listed in party.pods]
    by_state: dict[str, list[str]] = {}
    for key in keys:
        by_state.setdefault(findings[key].state, []).append(key)
    least = party.min_reserved_pods or len(keys)
    failed, lost = by_state.get("failed", []), by_state.get("lost", [])
    if len(by_state.get("succeeded", [])) >= least:
        return _Party("Succeeded", False, None)
    if least > len(keys) - len(failed) - len(lost):
        first = (lost or failed)[0]
        return _Party("Failed", bool(lost), findings[first], f"pod {first}")
    if len(by_state.get("pending", [])) < len(keys):
        return _Party("Running", False, None)
    waiting = [key for key in keys if findings[key].reason]
    first = waiting[0] if waiting else keys[0]
    return _Party("Pending", False, findings[first] if waiting else None, f"pod {first}")


def _partner(status: PartyTaskStatus | None) -> _Party:
    if status is None or status.phase in ("", "Pending"):
        waits = status is not None and status.message
        return _Party("Pending", False, Finding("pending", status.reason, status.message) if status and waits else None)
    if status.phase == "Failed":
        is_lost = status.reason in LOST
        reason = status.reason or Reason.PARTY_FAILED.value
        return _Party("Failed", is_lost, Finding("lost" if is_lost else "failed", reason, status.message or "its part failed"))
    return _Party(status.phase, False, None)


def _outcome(
    states: Sequence[tuple[tuple[str, str], _Party]], least: int, findings: Any
) -> tuple[Outcome, Finding | None, str]:
    least = least or len(states)
    failed = [(who, state) for who, state in states if state.phase == "Failed" or state.is_lost]
    if sum(state.phase == "Succeeded" for _, state in states) >= least:
        return "succeeded", None, ""
    if least > len(states) - len(failed):
        lost = [(who, state) for who, state in failed if state.is_lost]
        (domain_id, _), state = (lost or failed)[0]
        return "lost" if lost else "failed", state.first, state.where or f"party {domain_id}"
    # Kuscia: as soon as one pod is further than pending; with no pods here, one party.
    here = list(findings)
    if any(found.state != "pending" for found in here) or (not here and any(s.phase != "Pending" for _, s in states)):
        return "running", None, ""
    waiting = [(who, state) for who, state in states if state.first is not None and state.phase == "Pending"]
    if not waiting:
        return "pending", None, ""
    (domain_id, _), state = waiting[0]
    return "pending", state.first, "" if state.where else f"party {domain_id}"


def _party_status(who: tuple[str, str], state: _Party) -> Raw:
    status: Raw = {"domainID": who[0], "role": who[1], "phase": state.phase}
    if state.first is not None:
        status["reason"] = state.first.reason
    if state.first is not None and state.first.message:
        status["message"] = f"{state.where}: {state.first.message}" if state.where else state.first.message
    return {key: value for key, value in status.items() if value or key == "domainID"}


def without_blanks(value: Any, *, in_list: bool = False) -> Any:
    """Empty text is written as no text: some API servers take it for null, and refuse that in a custom resource."""
    if isinstance(value, dict):
        plain = {key: without_blanks(one, in_list=in_list) for key, one in value.items()}
        return {key: one for key, one in plain.items() if one is not None} if in_list else plain
    if isinstance(value, list):
        return [without_blanks(one, in_list=True) for one in value]
    return None if value == "" else value


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Raw:
    """The merge patch that makes the members named in `new` equal to it; empty when they are. Maps are compared by member."""
    return _difference(old, without_blanks(dict(new)))


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Raw:
    patch: Raw = {}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = _difference(before, {**{gone: None for gone in before if gone not in value}, **value})
            if inner:
                patch[key] = inner
        elif value is None:
            if before is not None:
                patch[key] = None
        elif before != value:
            patch[key] = without_blanks(value, in_list=True)
    return patch
