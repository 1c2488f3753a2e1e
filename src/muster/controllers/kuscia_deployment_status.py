"""How much of a KusciaDeployment is up: its status, from pods and from what partners say. Pure.

| part | phase |
|---|---|
| as many pods of the present template are ready as are wanted, and no other is left | Available |
| some are ready | PartialAvailable |
| none is ready, and a pod has failed or can't start | Failed; it is still tried |
| anything else | Progressing |

The deployment is Available when all of its parties are, PartialAvailable when any pod of any party is ready, Failed when a
party is and nothing is ready, else Progressing. `reason` and `message` say what the first pod that is not ready waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster.controllers.kuscia_deployment_parts import Part
from muster.controllers.kuscia_deployment_rollout import Replica
from muster.controllers.kuscia_task_pods import Finding
from muster.objects.conditions import ConditionStatus, find_condition
from muster.objects.reason_codes import Reason
from muster.objects.rules.report import number, obj, text
from muster.objects.status import Raw
from muster.objects.time import format_time

AVAILABLE: Final = "Available"
PARTIAL: Final = "PartialAvailable"
PROGRESSING: Final = "Progressing"
FAILED: Final = "Failed"
_MESSAGE_LEN_MAX: Final = 1_000


class PartState(msgspec.Struct, frozen=True, kw_only=True):
    """One part as it stands."""

    part: Part
    template_hash: str
    pods: Sequence[Replica]
    findings: Mapping[str, Finding]
    """By name, of the pods that are not ready."""

    @property
    def active(self) -> list[Replica]:
        return [pod for pod in self.pods if pod.is_active]

    @property
    def ready(self) -> int:
        return sum(1 for pod in self.active if pod.is_ready)

    @property
    def updated(self) -> int:
        return sum(1 for pod in self.active if pod.template_hash == self.template_hash)

    @property
    def problem(self) -> Finding | None:
        """Why the first pod that is not ready is not; a failure before a wait."""
        found = [self.findings[pod.name] for pod in self.pods if pod.name in self.findings and not pod.is_deleting]
        found = [one for one in found if one.reason]
        return min(found, key=lambda one: one.state != "failed", default=None)

    @property
    def phase(self) -> str:
        ready_new = sum(1 for pod in self.active if pod.is_ready and pod.template_hash == self.template_hash)
        if ready_new >= self.part.desired and self.updated == len(self.active) == self.part.desired:
            return AVAILABLE
        if self.ready:
            return PARTIAL
        return FAILED if any(one.state == "failed" for one in self.findings.values()) else PROGRESSING


def part_status(state: PartState, old: Raw, now: float) -> Raw:
    """The part's entry in `status.partyDeploymentStatuses`."""
    part, ready = state.part, state.ready
    problem = state.problem
    missing = max(part.desired - ready, 0)
    said = f": {problem.message}" if problem is not None and problem.message else ""
    available = ready >= part.desired
    is_done = state.phase == AVAILABLE
    facts: list[tuple[str, ConditionStatus, str, str]] = [
        (
            "Available",
            "True" if available else "False",
            "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable",
            f"{ready} of {part.desired} pods are ready",
        ),
        (
            "Progressing",
            "False" if state.phase == FAILED else "True",
            "UpToDate" if is_done else (problem.reason if problem is not None else "Updating"),
            "every pod has the present template" if is_done else f"{state.updated} of {part.desired} pods are up to date{said}",
        ),
    ]
    return {
        "phase": state.phase,
        **({"role": part.kit.role} if part.kit.role else {}),
        "replicas": len(state.active),
        "updatedReplicas": state.updated,
        "availableReplicas": ready,
        "unavailableReplicas": missing,
        "conditions": _conditions(old.get("conditions"), facts, now),
        "creationTimestamp": text(old, "creationTimestamp") or format_time(now),
    }


def _conditions(old: object, facts: Sequence[tuple[str, ConditionStatus, str, str]], now: float) -> list[Raw]:
    known = old if isinstance(old, list) else []
    made = []
    for type_, status, reason, words in facts:
        before = find_condition(known, type_) or {}
        message = words[:_MESSAGE_LEN_MAX]
        is_same = (before.get("status"), before.get("reason"), before.get("message")) == (status, reason, message)
        moved = text(before, "lastTransitionTime") if before.get("status") == status else ""
        made.append(
            {
                "type": type_,
                "status": status,
                "reason": reason,
                "message": message,
                "lastUpdateTime": text(before, "lastUpdateTime") if is_same else format_time(now),
                "lastTransitionTime": moved or format_time(now),
            }
        )
    return made


class Whole(msgspec.Struct, frozen=True):
    phase: str
    reason: str
    message: str


def whole_of(states: Sequence[PartState], partners: Mapping[str, Mapping[str, Raw]], silent: Sequence[str]) -> Whole:
    """The deployment as a whole. `partners` are the entries of parties elsewhere, `silent` those that have said nothing yet."""
    theirs = [entry for entries in partners.values() for entry in entries.values()]
    phases = [state.phase for state in states] + [text(entry, "phase") for entry in theirs] + [""] * len(silent)
    any_ready = any(state.ready for state in states) or any(number(entry, "availableReplicas") for entry in theirs)
    behind = [state for state in states if state.phase != AVAILABLE]
    problem = next((state.problem for state in behind if state.problem is not None), None)
    reason = problem.reason if problem is not None else ""
    if behind:
        first = behind[0]
        message = f"{first.part.kit.who} has {first.ready} of {first.part.desired} pods ready"
        message += f": {problem.message}" if problem is not None and problem.message else ""
    elif silent:
        reason, message = Reason.PARTY_NOT_RESERVED.value, f"nothing has been heard of {', '.join(silent)} yet"
    else:
        message = ""
    if all(phase == AVAILABLE for phase in phases):
        return Whole(AVAILABLE, "", "")
    if any_ready:
        return Whole(PARTIAL, reason, message[:_MESSAGE_LEN_MAX])
    return Whole(FAILED if FAILED in phases else PROGRESSING, reason, message[:_MESSAGE_LEN_MAX])


def status_patch(old: Raw, new: Raw, now: float) -> Raw | None:
    """The merge patch from `old` to `new`; None when there is no difference. A text that is empty is taken away: not every
    API server takes an empty one in a patch."""
    plain = {key: value for key, value in new.items() if key != "partyDeploymentStatuses"}
    patch: Raw = {key: None if value == "" else value for key, value in plain.items() if old.get(key, "") != value}
    before, after = obj(old, "partyDeploymentStatuses"), obj(new, "partyDeploymentStatuses")
    changed: Raw = {party: None for party in before if party not in after}
    for party, entries in after.items():
        known = obj(before, party)
        differs: Raw = {name: None for name in known if name not in entries}
        differs |= {name: entry for name, entry in entries.items() if known.get(name) != entry}
        if differs:
            changed[party] = differs
    if changed:
        patch["partyDeploymentStatuses"] = changed
    return {**patch, "lastReconcileTime": format_time(now)} if patch else None
