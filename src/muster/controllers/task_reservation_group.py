"""A TaskResourceGroup with all that belongs to it, at one moment, and what `task_reservation.plan` asks of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.controllers.actions import Action, Emit, PatchStatus, Target
from muster.controllers.task_reservation_parts import (
    GROUP_KIND,
    Fact,
    ReservationPod,
    advance,
    all_parties,
    is_member,
    least_pods,
    spread_s,
    sums,
    with_facts,
)
from muster.objects.conditions import find_condition
from muster.objects.kinds.kuscia_base import API_VERSION, GROUP
from muster.objects.kinds.kuscia_tasks import TaskResource, TaskResourceGroup, TaskResourceGroupParty, TaskResourcePhase
from muster.objects.labels import KusciaAnnotation, Muster
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.store.events import NORMAL, WARNING

RETRY_S = 30.0
"""Where the group says 0."""

OVER = ("Reserved", "Failed")


class Voter(msgspec.Struct, frozen=True):
    raw: Raw
    view: TaskResource

    @property
    def withdrawn(self) -> str:
        """Why its scheduler wants it back; empty when it does not."""
        return self.view.metadata.annotations.get(Muster.WITHDRAW, "")


class GroupState(msgspec.Struct, frozen=True):
    """A group with all that belongs to it, at one moment."""

    raw: Raw
    view: TaskResourceGroup
    resources: Mapping[tuple[str, str], Voter]
    """By namespace and name."""
    pods: Mapping[tuple[str, str], ReservationPod]
    now: float

    @property
    def has_partners(self) -> bool:
        return bool(self.view.spec.out_of_controlled_parties)

    @property
    def is_member(self) -> bool:
        return is_member(self.view)

    @property
    def stopped(self) -> str:
        """Why its task has ended; empty while it has not."""
        return self.view.metadata.annotations.get(Muster.STOP, "")

    @property
    def handled(self) -> list[TaskResourceGroupParty]:
        """The parties that have a TaskResource here: all at the initiator, where partners' stand for theirs."""
        return self.view.spec.parties if self.is_member else all_parties(self.view)

    def resource_of(self, party: TaskResourceGroupParty) -> Voter | None:
        return self.resources.get((party.domain_id, party.task_resource_name))

    @property
    def conditions(self) -> list[Raw]:
        known = (self.raw.get("status") or {}).get("conditions")
        return known if isinstance(known, list) else []

    def write(self, phase: str, *facts: Fact, **fields: object) -> PatchStatus:
        """Go on to a phase, if the group is still as it was read."""
        meta = self.view.metadata
        status: Raw = {"phase": phase, "conditions": with_facts(self.conditions, facts, self.now), **fields}
        if phase != self.view.status.phase or "retryCount" in fields:
            status["lastTransitionTime"] = format_time(self.now)
        if not self.view.status.start_time:
            status["startTime"] = format_time(self.now)
        if phase in OVER and not self.view.status.completion_time:
            status["completionTime"] = format_time(self.now)
        return PatchStatus(Target(GROUP, GROUP_KIND, meta.name, "", meta.uid, meta.resource_version), status)

    def tell(self, reason: str, message: str, *, is_bad: bool) -> Emit:
        meta = self.view.metadata
        regarding: Raw = {
            "apiVersion": API_VERSION,
            "kind": GROUP_KIND,
            "metadata": {"name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version},
        }
        return Emit(regarding, WARNING if is_bad else NORMAL, reason, message)


def all_to(state: GroupState, phase: TaskResourcePhase, reason: str, message: str) -> list[Action]:
    """Patches for all TaskResources that are not there yet; a member leaves them to the initiator."""
    if state.is_member:
        return []
    tried = state.view.status.retry_count
    patches = (
        advance(one.raw, phase, tried, now=state.now, reason=reason, message=message) for one in state.resources.values()
    )
    return [patch for patch in patches if patch is not None]


def votes_by_pods(state: GroupState) -> list[Action]:
    """On one control plane: a party has reserved when as many of its pods as must have a node."""
    tried = state.view.status.retry_count
    votes: list[Action] = []
    for party in state.view.spec.parties:
        one = state.resource_of(party)
        if one is None or one.view.status.phase != "Reserving" or one.view.status.retry_count != tried:
            continue
        placed = [pod for pod in party.pods if (found := state.pods.get((party.domain_id, pod.name))) and found.spec.node_name]
        if len(placed) >= least_pods(party):
            message = f"{len(placed)} of {len(party.pods)} pods have a node"
            patch = advance(one.raw, "Reserved", tried, now=state.now, reason="Placed", message=message)
            votes += [patch] if patch is not None else []
    return votes


def sums_of(state: GroupState) -> list[Action]:
    patches: list[Action] = []
    for party in state.view.spec.parties:
        one = state.resource_of(party)
        if one is not None:
            named = {pod.name: found for pod in party.pods if (found := state.pods.get((party.domain_id, pod.name)))}
            patch = sums(one.view, named)
            patches += [patch] if patch is not None else []
    return patches


def are_linked(state: GroupState) -> bool:
    """Whether all own pods exist and name their TaskResource."""
    for party in state.view.spec.parties:
        for listed in party.pods:
            pod = state.pods.get((party.domain_id, listed.name))
            if pod is None or pod.metadata.annotations.get(KusciaAnnotation.TASK_RESOURCE) != party.task_resource_name:
                return False
    return True


def who_is_missing(state: GroupState) -> str:
    """Which parties have not reserved."""
    waiting = [
        party.domain_id
        for party in state.handled
        if (one := state.resource_of(party)) is None or one.view.status.phase not in ("Reserved", "Schedulable")
    ]
    return f"{', '.join(dict.fromkeys(waiting)) or 'nobody'} had not reserved"


def pause_s(state: GroupState) -> float:
    """From giving back to trying again."""
    interval_s = float(state.view.spec.retry_interval_seconds or RETRY_S)
    return interval_s + spread_s(state.view.metadata.uid, state.view.status.retry_count, interval_s)


def why_failed(state: GroupState) -> str:
    failed = find_condition(state.conditions, "TaskResourceGroupFailed") or {}
    return str(failed.get("message") or failed.get("reason") or "the group failed")
