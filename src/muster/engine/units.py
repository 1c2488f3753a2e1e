"""Units: what is decided at once.

A pod that belongs to nothing is a unit of its own, with one group of one. Pods that name a gang are one unit (`gang_units`),
and so are the pods of a task, over all its parties (`task_units`). A unit starts when at least `min` pods of each of at least
`min_groups` groups can, or not at all.

Pure. A unit is made anew whenever its members change, so that nobody holds a half-changed one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from muster.engine.facts import Meta
from muster.engine.gangs import gang_key_of, plain_name
from muster.engine.pods import Phase, PodRecord
from muster.objects.labels import KusciaAnnotation
from muster.objects.reasons import Verdict

OrderKey = tuple[int, str, str]
Age = tuple[str, str]
"""When it was made, and a uid: an order that nobody can change. Of a task it is the same at every party."""


class Group(msgspec.Struct, frozen=True):
    """Members of one party and role. `bound` of them have a node already; `pods` (uids) are those that have not."""

    party: str
    role: str
    min: int
    pods: tuple[str, ...]
    bound: int = 0
    controlled: bool = True
    """Placed from here; a group that is not is a partner's, and its word arrives as events."""

    @property
    def missing(self) -> int:
        """How many more must be placed before the group can start."""
        return max(self.min - self.bound, 0)


class Promise(msgspec.Struct, frozen=True):
    """Other control planes take part: what is found here is held, and they are told, before anything starts."""

    seconds: float
    parties: tuple[str, ...]


class Unit(msgspec.Struct, frozen=True):
    id: str
    order_key: OrderKey
    """Smaller goes first; the default is priority, then age, then id."""
    groups: tuple[Group, ...]
    min_groups: int
    schedule_as: str
    """The profile."""
    priority: int = 0
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)
    age: Age = ("", "")
    """Who yields to whom: the younger (larger) to the older, whatever their priorities."""
    blocked: Verdict | None = None
    """Why it is not to be tried as it is now; only a change of its objects helps."""
    not_before: float = 0.0
    """It is not tried before this instant."""
    promise: Promise | None = None
    keeps_s: float = 0.0
    """Above 0: members that find a place keep it so long while the others wait."""
    min_free: Mapping[str, int] = msgspec.field(default_factory=dict)
    """What must be free in all before it is tried."""
    gang_id: str = ""
    """Koordinator's id of the group of gangs."""

    @property
    def pods(self) -> tuple[str, ...]:
        return self.groups[0].pods if len(self.groups) == 1 else tuple(uid for group in self.groups for uid in group.pods)

    @property
    def is_single(self) -> bool:
        return len(self.groups) == 1 and len(self.groups[0].pods) == 1 and self.groups[0].min <= 1


def single_unit_id(namespace: str, name: str) -> str:
    return f"Pod/{namespace}/{name}"


def single_unit(pod: PodRecord) -> Unit:
    meta = pod.facts.metadata
    created = meta.creation_timestamp
    return Unit(
        pod.unit,
        (-pod.priority, created, pod.unit),
        (Group(meta.namespace, "", 1, (pod.uid,)),),
        1,
        pod.facts.spec.scheduler_name,
        pod.priority,
        age=(created, pod.uid),
    )


def unit_id_of(pod: PodRecord) -> str:
    """The id of the unit that the pod names: its task, its gang, or itself. `Membership` knows better about the first two, as
    a gang may be joined with others."""
    meta = pod.facts.metadata
    if meta.annotations and (task := task_name_of(meta)):
        return task_id(task)
    key = gang_key_of(meta) if meta.labels or meta.annotations else ""
    return f"{GANG}{key}" if key else f"Pod/{meta.namespace}/{meta.name}"


def task_name_of(meta: Meta) -> str:
    """The name of the TaskResourceGroup that the pod names, or ""."""
    name = meta.annotations.get(KusciaAnnotation.TASK_RESOURCE_GROUP)
    return plain_name(name) if name else ""


GANG = "PodGroup/"
TASK = "Task/"


def gang_id(*keys: str) -> str:
    """The id of the unit of these gangs, each `namespace/name`, in order."""
    return GANG + ",".join(keys)


def task_id(name: str) -> str:
    return TASK + name


def is_shared(unit_id: str) -> bool:
    """Whether the unit may have several pods."""
    return not unit_id.startswith("Pod/")


def may_wait(pod: PodRecord) -> bool:
    """Whether the pod is to be placed at all: alive, and let through its gates."""
    return not pod.is_ending and not pod.facts.spec.scheduling_gates and not pod.facts.is_finished


def has_succeeded(pod: PodRecord) -> bool:
    return pod.facts.status.phase == "Succeeded"


def member_order(pod: PodRecord) -> tuple[int, str, str]:
    """By length of the name first, so that worker-10 comes after worker-9."""
    return len(pod.name), pod.name, pod.namespace


def is_waiting(pod: PodRecord, held: Collection[str]) -> bool:
    """Whether the pod has no node: it waits, or it is one of those that are `held` for a permit."""
    return (pod.phase is Phase.WAITING or pod.uid in held) and may_wait(pod)


def without(unit: Unit, found: Collection[str]) -> Unit:
    """The unit once these of its pods have a place."""
    groups = []
    for group in unit.groups:
        left = tuple(uid for uid in group.pods if uid not in found)
        groups.append(msgspec.structs.replace(group, pods=left, bound=group.bound + len(group.pods) - len(left)))
    return msgspec.structs.replace(unit, groups=tuple(groups))


def first_of(pods: Sequence[PodRecord]) -> PodRecord:
    """The most important of the pods, the oldest of those."""
    return min(pods, key=lambda pod: (-pod.priority, pod.facts.metadata.creation_timestamp, pod.uid))


def age_of(pods: Sequence[PodRecord]) -> Age:
    """Of the oldest of the pods."""
    return min((pod.facts.metadata.creation_timestamp, pod.uid) for pod in pods)
