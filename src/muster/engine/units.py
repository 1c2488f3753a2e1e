"""Units: what is decided at once. The one place where objects become units.

A pod that belongs to nothing is a unit of its own, with one group of one. Pods that name a gang (a PodGroup, or Koordinator's
annotations) are one unit, which starts when at least `min` pods of each of at least `min_groups` groups can, or not at all.

Pure. A unit is made anew whenever its members change, so that nobody holds a half-changed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from muster.engine.facts import PodGroupFacts
from muster.engine.pods import Phase, PodRecord

GANG_NAME = "gang.scheduling.koordinator.sh/name"
GANG_MIN = "gang.scheduling.koordinator.sh/min-available"
POD_GROUP_LABELS = (
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
)
POD_GROUP_MIN = "pod-group.scheduling.sigs.k8s.io/min-available"
GANG_LEN_MAX = 100_000
MISSING_GROUP = "missingPodGroup"
"""Attribute of a unit that names a PodGroup which does not exist (yet): its namespace/name."""

OrderKey = tuple[int, str, str]


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
    is_incomplete: bool = False
    """Fewer members exist than must start together."""

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
    return Unit(
        pod.unit,
        (-pod.priority, meta.creation_timestamp, pod.unit),
        (Group(meta.namespace, "", 1, (pod.uid,)),),
        1,
        pod.facts.spec.scheduler_name,
        pod.priority,
    )


def unit_id_of(pod: PodRecord) -> str:
    """The id of the unit that the pod belongs to: its gang, or itself."""
    meta = pod.facts.metadata
    labels, annotations = meta.labels, meta.annotations
    if labels:
        for label in POD_GROUP_LABELS:
            name = labels.get(label)
            if name:
                return gang_id(meta.namespace, name)
    if annotations and (name := annotations.get(GANG_NAME)):
        return gang_id(meta.namespace, name)
    return f"Pod/{meta.namespace}/{meta.name}"


def gang_id(namespace: str, name: str) -> str:
    return f"PodGroup/{namespace}/{name}"


def is_gang(unit_id: str) -> bool:
    return unit_id.startswith("PodGroup/")


def gang_unit(unit_id: str, members: Iterable[PodRecord], group: PodGroupFacts | None) -> Unit | None:
    """The unit of a gang from all its pods; None when none of them waits. Members are taken in order of name."""
    pods = sorted((pod for pod in members if not pod.is_ending or pod.phase is not Phase.WAITING), key=_member_order)
    waiting = [pod for pod in pods if pod.phase is Phase.WAITING]
    if not waiting:
        return None
    bound = len(pods) - len(waiting)
    least = _minimum(pods, group)
    first = min(waiting, key=lambda pod: (-pod.priority, pod.facts.metadata.creation_timestamp, pod.uid))
    created = group.metadata.creation_timestamp if group is not None else min(p.facts.metadata.creation_timestamp for p in pods)
    priority = max(pod.priority for pod in pods)
    return Unit(
        unit_id,
        (-priority, created, unit_id),
        (Group(first.namespace, "", least, tuple(pod.uid for pod in waiting), bound),),
        1,
        first.facts.spec.scheduler_name,
        priority,
        attributes={MISSING_GROUP: unit_id.removeprefix("PodGroup/")}
        if least > len(pods) and _lacks_group(pods, group)
        else {},
        is_incomplete=len(pods) < least,
    )


def _member_order(pod: PodRecord) -> tuple[int, str]:
    """By length first, so that worker-10 comes after worker-9."""
    return len(pod.name), pod.name


def _minimum(pods: list[PodRecord], group: PodGroupFacts | None) -> int:
    if group is not None:
        return max(group.spec.min_member, 1)
    for pod in pods:
        meta = pod.facts.metadata
        text = meta.annotations.get(GANG_MIN) or meta.labels.get(POD_GROUP_MIN)
        least = _small_number(text) if text is not None else 0
        if least:
            return least
    # A pod may be seen before the PodGroup that says how many must start together: one more than there are, until it is.
    return len(pods) + 1 if _lacks_group(pods, group) else 1


def _small_number(text: str) -> int:
    """A whole number up to GANG_LEN_MAX; 0 for anything else. Long texts are not read: that alone may fail."""
    number = int(text) if len(text) <= len(str(GANG_LEN_MAX)) and text.isdecimal() else 0
    return number if number <= GANG_LEN_MAX else 0


def _lacks_group(pods: list[PodRecord], group: PodGroupFacts | None) -> bool:
    """Whether a pod names a PodGroup, by its label, that is not there."""
    return group is None and any(pod.facts.metadata.labels.get(label) for pod in pods for label in POD_GROUP_LABELS)
