"""How two control planes agree about one TaskResource over an entry of a KusciaTaskSummary. Pure.

The initiator's side (the *host*) has a TaskResource that stands for the partner's (the *member*'s); the member has its own.
Both sides see the entry in `status.resourceStatus` of the summary, which is in the host's store:

    host -> member    Reserving, Schedulable, Failed: what the initiator decided
    member -> host    Reserved: the vote; condition `Withdraw`: the member's scheduler wants it back

Host, entry and member each hold (try, phase), which only grows (`task_reservation_parts`). Each side moves what is behind to
what is ahead, as far as it is its turn to say so, and writes with the version that it read. So it does not matter in which
order, how often or how late either side sees the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.controllers.actions import Action, Patch, Target
from muster.controllers.task_reservation_parts import advance, is_later, resource_target
from muster.objects.conditions import find_condition, set_condition, without_condition
from muster.objects.kinds.kuscia_tasks import TaskResource, TaskResourceGroupParty
from muster.objects.labels import Muster
from muster.objects.meta import resource_version_of
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import copy_json, view_of

WITHDRAW_CONDITION = "Withdraw"
_HOSTS_WORDS = ("Reserving", "Schedulable", "Failed")


class Both(msgspec.Struct, frozen=True):
    """What to do in each of the two stores."""

    here: Sequence[Action] = ()
    host: Sequence[Action] = ()
    absent: Sequence[Target] = ()
    """What they take to be gone here; a cache that lags may only not show it yet, so the store is asked first."""


class Step(msgspec.Struct, frozen=True):
    """What one side does now: an entry that replaces the old one, a patch of its own TaskResource; None for nothing."""

    entry: Raw | None = None
    patch: Patch | None = None


def host_step(resource: Raw, entry: Raw | None, role: str, *, now: float) -> Step:
    """What the initiator's side does about a partner's TaskResource and its entry."""
    view = view_of(TaskResource, resource)
    if entry is None or _is_ahead(view, entry):
        return Step(entry=_from_host(resource, view, entry, role, now=now))
    if _tried(entry) != view.status.retry_count:
        return Step()
    if withdrawn := asked_back(entry):
        is_open = view.status.phase in ("Reserving", "Reserved") and Muster.WITHDRAW not in view.metadata.annotations
        if is_open:
            return Step(patch=_ask_back(view, withdrawn))
    if entry.get("phase") == "Reserved":
        message = "as the partner says"
        return Step(patch=advance(resource, "Reserved", _tried(entry), now=now, reason="Reserved", message=message))
    return Step()


def member_step(resource: Raw, entry: Raw, *, now: float) -> Step:
    """What the member's side does about its TaskResource and the entry."""
    view = view_of(TaskResource, resource)
    phase, tried = entry.get("phase", ""), _tried(entry)
    if phase in _HOSTS_WORDS and is_later(phase, tried, view):
        said = find_condition(entry.get("conditions"), phase) or {}
        message = str(said.get("message") or "as the initiator says")
        return Step(patch=advance(resource, phase, tried, now=now, reason="Initiator", message=message))
    if view.status.retry_count != tried:
        return Step()
    changed = copy_json(entry)
    changed |= {"memberTaskResourceName": view.metadata.name, "memberTaskResourceVersion": resource_version_of(resource)}
    if view.status.phase == "Reserved" and phase == "Reserving":
        changed |= {"phase": "Reserved", "lastTransitionTime": format_time(now)}
        changed["conditions"] = set_condition(
            entry.get("conditions"), type_="Reserved", status="True", now=now, reason="Reserved", message="as the member says"
        )
        return Step(entry=changed)
    why = view.metadata.annotations.get(Muster.WITHDRAW)
    if why is not None and phase in ("Reserving", "Reserved") and not asked_back(entry):
        changed["conditions"] = set_condition(
            entry.get("conditions"), type_=WITHDRAW_CONDITION, status="True", now=now, reason="Withdraw", message=why
        )
        return Step(entry=changed)
    return Step()


def asked_back(entry: Raw) -> str:
    """Why the member wants it back; empty when it does not."""
    found = find_condition(entry.get("conditions"), WITHDRAW_CONDITION)
    return str(found.get("message") or "asked back") if found is not None and found.get("status") == "True" else ""


def has_voted(entry: Raw) -> bool:
    """Whether the member has promised in the try that the entry is at, so that the initiator may count on it."""
    return entry.get("phase") in ("Reserved", "Schedulable") and bool(entry.get("memberTaskResourceName"))


def entry_of(status: Mapping[str, Any], party: TaskResourceGroupParty) -> Raw | None:
    """The entry of a party and role in the status of a summary."""
    for entry in entries_of(status, party.domain_id):
        if entry.get("role", "") == party.role:
            return entry
    return None


def entries_of(status: Mapping[str, Any], domain_id: str) -> list[Raw]:
    by_domain = status.get("resourceStatus")
    found = by_domain.get(domain_id) if isinstance(by_domain, dict) else None
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def with_entries(status: Mapping[str, Any], changed: Sequence[tuple[TaskResourceGroupParty, Raw]]) -> Raw:
    """`resourceStatus`, with only the domains in it that changed: the merge patch for it."""
    patch: Raw = {}
    for party, entry in changed:
        entries = patch.get(party.domain_id) or entries_of(status, party.domain_id)
        others = [one for one in entries if one.get("role", "") != party.role]
        patch[party.domain_id] = [*others, entry]
    return patch


def _tried(entry: Raw) -> int:
    count = entry.get("retryCount", 0)
    return count if isinstance(count, int) else 0


def _is_ahead(view: TaskResource, entry: Raw) -> bool:
    known = TaskResource(spec=view.spec)
    known.status.phase = entry.get("phase", "")
    known.status.retry_count = _tried(entry)
    return is_later(view.status.phase, view.status.retry_count, known)


def _from_host(resource: Raw, view: TaskResource, entry: Raw | None, role: str, *, now: float) -> Raw:
    old: Raw = copy_json(entry) if entry is not None else {}
    said = (resource.get("status") or {}).get("conditions") or []
    # What the member said of an earlier try does not count for this one.
    kept = without_condition(said, WITHDRAW_CONDITION)
    made = old | {
        **({"role": role} if role else {}),
        "hostTaskResourceName": view.metadata.name,
        "hostTaskResourceVersion": view.metadata.resource_version,
        "phase": view.status.phase or "Pending",
        "retryCount": view.status.retry_count,
        "conditions": kept,
        "lastTransitionTime": view.status.last_transition_time or format_time(now),
    }
    for field, value in (("startTime", view.status.start_time), ("completionTime", view.status.completion_time)):
        made.pop(field, None)
        if value:
            made[field] = value
    return made


def _ask_back(view: TaskResource, why: str) -> Patch:
    return Patch(resource_target(view), {"metadata": {"annotations": {Muster.WITHDRAW: why}}})
