"""Which pods belong to which unit of several pods, and when such a unit must be made anew.

A pod's unit can change although the pod does not: a PodGroup may join its gang with others, a TaskResourceGroup may leave the
pod out. Then all pods of the gang move at once, and both units are made anew.

Pure, single-threaded. Invariants: a pod is a member of at most one gang or task; all pods of a gang have the same `unit`; what
is kept for a gang goes with its last pod and its PodGroup, what is kept for a task with its last pod and its group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from muster.engine.facts import PodFacts, TaskGroupFacts
from muster.engine.gang_units import Gang, gang_unit
from muster.engine.gangs import GangSettings, gang_key_of, minimum_of, pod_group_settings, pod_settings, said
from muster.engine.pods import PodRecord
from muster.engine.state import State
from muster.engine.task_units import RESERVING, Round, lists, stranger_unit, task_unit
from muster.engine.units import GANG, TASK, Unit, gang_id, task_id, task_name_of


class Membership:
    def __init__(self, state: State) -> None:
        self._state = state
        self.gangs: dict[str, Gang] = {}
        """By key, `namespace/name`."""
        self.tasks: dict[str, dict[str, PodRecord]] = {}
        """By name of the TaskResourceGroup: all pods that name it."""
        self.rounds: dict[str, Round] = {}
        """By name of the TaskResourceGroup: how its last attempt to reserve at all parties went."""
        self.changed: dict[str, None] = {}
        """Units to make anew."""
        self._units: dict[str, dict[str, None]] = {}
        """Keys of the gangs of each unit."""
        self._wanted: dict[str, tuple[str, ...]] = {}
        """Keys of the gangs that each unit is to have."""
        self._awaited: dict[str, dict[str, None]] = {}
        """By key of a gang: units that it is to be part of, whether it is or not."""

    def members(self, unit_id: str) -> Iterator[PodRecord]:
        """All pods of the unit, whatever became of them."""
        if unit_id.startswith(TASK):
            name = _task_name(unit_id)
            yield from (pod for pod in self.tasks.get(name, {}).values() if pod.unit == unit_id)
        for key in self._units.get(unit_id, ()):
            yield from self.gangs[key].members.values()

    # -- pods --------------------------------------------------------------------------------------------------------------

    def join(self, pod: PodRecord) -> None:
        """Take in a pod whose `unit` is what the pod itself names, a gang or a task; afterwards it is the one that it is in."""
        if pod.unit.startswith(TASK):
            task = _task_name(pod.unit)
            self.tasks.setdefault(task, {})[pod.uid] = pod
            self._assign(pod, task)
            return
        key = pod.unit.removeprefix(GANG)
        gang = self.gangs.get(key)
        if gang is None:
            gang = self.gangs[key] = Gang(key, GangSettings())
            self._read(gang)
        gang.members[pod.uid] = pod
        self._learn(gang, pod)
        pod.unit = gang.unit
        gang.note(pod)
        self.changed[pod.unit] = None

    def leave(self, pod: PodRecord) -> None:
        """The pod is gone, or is not ours any more."""
        if pod.unit.startswith(TASK):
            name = _task_name(pod.unit)
            pods = self.tasks.get(name, {})
            pods.pop(pod.uid, None)
            if not pods:
                self.tasks.pop(name, None)
            self.changed[pod.unit] = None
            return
        key = self._key_of(pod)
        gang = self.gangs.get(key)
        if gang is None:
            return
        gang.members.pop(pod.uid, None)
        self.changed[gang.unit] = None
        if gang.source == _age(pod):
            self._read(gang)
        self._drop_if_empty(gang)

    def note(self, pod: PodRecord) -> None:
        """The pod is another than it was for its unit: it has or needs a node, or not any more."""
        self.changed[pod.unit] = None
        if pod.unit.startswith(GANG):
            gang = self.gangs.get(self._key_of(pod))
            if gang is not None:
                gang.note(pod)

    def is_moved(self, pod: PodRecord, before: PodFacts) -> bool:
        """Whether the pod names another gang or task than it did."""
        meta, was = pod.facts.metadata, before.metadata
        if meta.labels == was.labels and meta.annotations == was.annotations:
            return False
        return task_name_of(meta) != task_name_of(was) or gang_key_of(meta) != gang_key_of(was)

    def update(self, pod: PodRecord, before: PodFacts) -> None:
        """A member of a gang that says something else about it."""
        if pod.unit.startswith(GANG) and said(pod.facts.metadata) != said(before.metadata):
            gang = self.gangs[self._key_of(pod)]
            self._read(gang)
            self.changed[gang.unit] = None

    def mark_started(self, key: str) -> None:
        """The gang started once, whatever became of the pods that did."""
        gang = self.gangs.get(key)
        if gang is None and self._has_group(key):
            gang = self.gangs[key] = Gang(key, GangSettings())
            self._read(gang)
        if gang is not None:
            gang.has_started = True

    # -- objects -----------------------------------------------------------------------------------------------------------

    def group_changed(self, namespace: str, name: str) -> None:
        """A PodGroup came, changed or went."""
        gang = self.gangs.get(f"{namespace}/{name}")
        if gang is not None:
            self._read(gang)
            self.changed[gang.unit] = None
            self._drop_if_empty(gang)

    def task_changed(self, name: str, before: TaskGroupFacts | None) -> None:
        """A TaskResourceGroup came, changed or went; `before` is what was known of it."""
        now = self._state.task_groups.get(name)
        if now is None or now.status.phase != RESERVING:
            # The next attempt is another one, whatever its number. That it was permitted still counts.
            last = self.rounds.get(name)
            if last is not None and (now is None or not last.is_permitted):
                del self.rounds[name]
        if before is None or now is None or before.spec != now.spec:
            for pod in self.tasks.get(name, {}).values():
                self._assign(pod, name)
        self.changed[task_id(name)] = None

    def end_round(self, unit_id: str, *, is_permitted: bool) -> None:
        """An attempt of the task to reserve at all parties was permitted, or denied."""
        group = self._state.task_groups.get(_task_name(unit_id)) if unit_id.startswith(TASK) else None
        if group is not None:
            name = group.metadata.name
            self.rounds[name] = Round(group.metadata.uid, group.status.retry_count, is_permitted)

    # -- units -------------------------------------------------------------------------------------------------------------

    def build(self, unit_id: str, held: Collection[str] = ()) -> Unit | None:
        """The unit as it is now; None when none of its pods waits. Pods in `held` count as waiting."""
        if unit_id.startswith(TASK):
            return self._build_task(unit_id, held)
        keys = self._units.get(unit_id)
        if not keys:
            return None
        wanted = self._wanted[unit_id]
        others = {key: self._why_apart(key) for key in wanted if key not in keys}
        return gang_unit(unit_id, [self.gangs[key] for key in wanted if key in keys], others, held=held)

    def _build_task(self, unit_id: str, held: Collection[str]) -> Unit | None:
        name = _task_name(unit_id)
        if unit_id != task_id(name):
            pods = list(self.members(unit_id))
            return stranger_unit(unit_id, name, pods[0]) if pods else None
        return task_unit(
            unit_id, name, self.members(unit_id), self._state.task_groups.get(name), self.rounds.get(name), held=held
        )

    def _why_apart(self, key: str) -> str:
        gang = self.gangs.get(key)
        if gang is None or not gang.members:
            return "has no pods yet"
        return "does not name the same gangs in its annotation gang.scheduling.koordinator.sh/groups"

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _assign(self, pod: PodRecord, task: str) -> None:
        """Put the pod into the unit of its task, or, if it is not listed there, into one of its own."""
        group = self._state.task_groups.get(task)
        unit = task_id(task)
        if group is not None and not lists(group, pod):
            unit = f"{unit}/{pod.key}"
        if pod.unit != unit and pod.unit.startswith(TASK):
            self.changed[pod.unit] = None
        pod.unit = unit
        self.changed[unit] = None

    def _key_of(self, pod: PodRecord) -> str:
        """The gang that the pod is in. As its unit tells, unless that has several: its labels may have changed since."""
        keys = self._units.get(pod.unit, {})
        if len(keys) == 1:
            return next(iter(keys))
        return next((key for key in keys if pod.uid in self.gangs[key].members), "")

    def _has_group(self, key: str) -> bool:
        namespace, _, name = key.partition("/")
        return (namespace, name) in self._state.groups

    def _group_settings(self, key: str) -> GangSettings | None:
        namespace, _, name = key.partition("/")
        group = self._state.groups.get((namespace, name))
        return pod_group_settings(group) if group is not None else None

    def _learn(self, gang: Gang, pod: PodRecord) -> None:
        """A new member: it may be the one that the settings are to come from."""
        if gang.has_group:
            return
        age = _age(pod)
        if (gang.source is None or age < gang.source) and minimum_of(pod.facts.metadata):
            gang.source, gang.settings = age, pod_settings(pod.facts, gang.key)
            self._place(gang)

    def _read(self, gang: Gang) -> None:
        """Find the settings anew."""
        found = self._group_settings(gang.key)
        gang.has_group, gang.source = found is not None, None
        if found is None:
            able = [pod for pod in gang.members.values() if minimum_of(pod.facts.metadata)]
            first = min(able, key=_age, default=None)
            if first is not None:
                gang.source = _age(first)
                found = pod_settings(first.facts, gang.key)
        gang.settings = found or GangSettings(groups=(gang.key,))
        self._place(gang)

    def _place(self, gang: Gang) -> None:
        """Put the gang, with all its pods, into the unit that its settings name."""
        unit = gang_id(*gang.settings.groups)
        if gang.unit == unit:
            return
        self._take_out(gang)
        gang.unit = unit
        self._units.setdefault(unit, {})[gang.key] = None
        self._wanted[unit] = gang.settings.groups
        for key in gang.settings.groups:
            self._awaited.setdefault(key, {})[unit] = None
        for pod in gang.members.values():
            pod.unit = unit
        self.changed.update(self._awaited[gang.key])

    def _take_out(self, gang: Gang) -> None:
        if not gang.unit:
            return
        keys = self._units[gang.unit]
        keys.pop(gang.key)
        if not keys:
            del self._units[gang.unit]
            for key in self._wanted.pop(gang.unit):
                units = self._awaited.get(key, {})
                units.pop(gang.unit, None)
                if not units:
                    self._awaited.pop(key, None)
        self.changed[gang.unit] = None
        self.changed.update(self._awaited.get(gang.key, {}))

    def _drop_if_empty(self, gang: Gang) -> None:
        if not gang.members and not self._has_group(gang.key) and self.gangs.get(gang.key) is gang:
            self._take_out(gang)
            del self.gangs[gang.key]


def _task_name(unit_id: str) -> str:
    return unit_id.removeprefix(TASK).split("/", 1)[0]


def _age(pod: PodRecord) -> tuple[str, str, str]:
    return pod.facts.metadata.creation_timestamp, pod.name, pod.uid
