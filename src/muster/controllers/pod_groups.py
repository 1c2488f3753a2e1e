"""PodGroup.status: how many of a gang's pods are how far, as Koordinator counts them.

| what is there | phase |
|---|---|
| no pod, or fewer than `minMember` and none has a node | Pending |
| as many pods as `minMember`, none has a node | PreScheduling |
| some have a node, fewer than `minMember` | Scheduling |
| `minMember` have a node | Scheduled |
| running and succeeded are `minMember` | Running |
| one failed, and failed, running and succeeded are `minMember` | Failed |
| `minMember` succeeded | Finished |

The last line that holds counts. `scheduleStartTime` is when the first pod was seen with a node, and goes when no pod is left.
`occupiedBy` are the owners of the pods. Koordinator leaves groups alone that are older than 48 hours; here they go on.

Pods of any operator count, by whichever label or annotation they name their gang (`engine.gangs`). A gang without a PodGroup
has no status. Status is a plain field of this kind, so it is written as such, only when it changed, and only on the version
that it was computed from.

`status_of` and `plan` are pure; the controller around them reads caches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from muster.controllers.actions import Patch, target_of
from muster.controllers.runtime import Caches, Controller, Plan, Watch
from muster.engine.facts import Meta
from muster.engine.gangs import gang_key_of
from muster.objects.kinds.sigs import PodGroup, PodGroupStatus
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import View, view_of
from muster.store.cache import Cached, ObjectKey

GANG_INDEX = "gang"
Phase = Literal["Pending", "PreScheduling", "Scheduling", "Scheduled", "Running", "Finished", "Failed"]
_OWNERS_MAX = 64
"""Owners named in `occupiedBy`."""


class PodSpec(View):
    node_name: str = ""


class PodStatus(View):
    phase: str = ""


class PodView(View):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class Member(msgspec.Struct, frozen=True):
    """Of one pod, what its group counts."""

    phase: str = ""
    has_node: bool = False
    owners: tuple[str, ...] = ()
    """`namespace/name` of each."""


def status_of(old: PodGroupStatus, least: int, members: Sequence[Member], now: float) -> PodGroupStatus:
    """The status of a group with these pods. `old` gives only the time when its first pod got a node."""
    ends = Counter(member.phase for member in members)
    scheduled = sum(member.has_node for member in members)
    owners = sorted({owner for member in members for owner in member.owners})[:_OWNERS_MAX]
    since = old.schedule_start_time or (format_time(now) if scheduled else "")
    return PodGroupStatus(
        phase=_phase(least, len(members), scheduled, ends),
        occupied_by=",".join(owners),
        scheduled=scheduled,
        running=ends["Running"],
        succeeded=ends["Succeeded"],
        failed=ends["Failed"],
        schedule_start_time=since if members else "",
    )


def _phase(least: int, count: int, scheduled: int, ends: Counter[str]) -> Phase:
    running, succeeded, failed = ends["Running"], ends["Succeeded"], ends["Failed"]
    phase: Phase = "Pending"
    if count >= least > 0:
        phase = "PreScheduling"
    if scheduled:
        phase = "Scheduling" if scheduled < least else "Scheduled"
    if least > 0 and succeeded + running >= least:
        phase = "Running"
    if failed and failed + running + succeeded >= least:
        phase = "Failed"
    if least > 0 and succeeded >= least:
        phase = "Finished"
    return phase


def plan(group: Raw, members: Sequence[Member], now: float) -> Plan:
    """Write the status if it is not what is there."""
    try:
        view = view_of(PodGroup, group)
        old, least = view.status, view.spec.min_member
    except msgspec.ValidationError:
        return Plan()  # another server let it in; nothing can be counted against a minimum that is no number
    new = status_of(old, least, members, now)
    if new == old:
        return Plan()
    known = group.get("status")
    gone = set(known) if isinstance(known, dict) else set()
    wanted: Raw = msgspec.to_builtins(new)
    # Members at their default are left out of `wanted`, and must go from what is stored.
    patch = {**dict.fromkeys((gone & _FIELDS) - set(wanted)), **wanted}
    return Plan([Patch(target_of(group, at_version=True), {"status": patch})])


_FIELDS = {field.encode_name for field in msgspec.structs.fields(PodGroupStatus)}


def _gangs(pod: Cached) -> Iterable[str]:
    key = gang_key_of(pod.view(PodView).metadata)
    return (key,) if key else ()


def _groups(pod: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    return [ObjectKey(*key.split("/", 1)) for key in _gangs(pod)]


def _member(pod: Cached) -> Member:
    view = pod.view(PodView)
    owners = tuple(f"{pod.key.namespace}/{owner.name}" for owner in view.metadata.owner_references if owner.name)
    return Member(view.status.phase, bool(view.spec.node_name), owners)


PODS = Watch(group="", kind="Pod", view=PodView, keep="nothing", indexes={GANG_INDEX: _gangs}, keys=_groups)
GROUPS = Watch(group="scheduling.sigs.k8s.io", kind="PodGroup")


class PodGroups(Controller):
    """Keys are PodGroups."""

    name = "pod-groups"
    watches = (GROUPS, PODS)
    workers = 2

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        group = caches[GROUPS].get(key)
        if group is None or group.deleting:
            return Plan()
        return plan(group.raw, [_member(pod) for pod in caches[PODS].by_index(GANG_INDEX, str(key))], now)
