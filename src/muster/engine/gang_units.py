"""The unit of a gang, or of several gangs that are joined: one group for each gang, and all of them must start.

What counts towards a gang's minimum is its match policy's to say. A gang has started when one of its pods has a node or has
succeeded, and it stays so for as long as it is known. Members in order of name. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from muster.engine.gangs import GangSettings, Match, Mode, names_pod_group, summed
from muster.engine.pods import Phase, PodRecord
from muster.engine.units import GANG, Age, Group, Unit, age_of, first_of, has_succeeded, is_waiting, member_order
from muster.objects.reasons import Reason, Verdict


class Gang(msgspec.Struct):
    """What is known of one gang."""

    key: str
    settings: GangSettings
    members: dict[str, PodRecord] = msgspec.field(default_factory=dict)
    """By uid: all its pods, whatever became of them."""
    source: tuple[str, str, str] | None = None
    """The place in the order of age of the pod that the settings are from."""
    unit: str = ""
    has_group: bool = False
    """The settings are from its PodGroup."""
    has_started: bool = False

    def note(self, pod: PodRecord) -> None:
        if pod.phase is Phase.BOUND or has_succeeded(pod):
            self.has_started = True


def gang_unit(
    unit_id: str, gangs: Sequence[Gang], others: Mapping[str, str] | None = None, *, held: Collection[str] = ()
) -> Unit | None:
    """The unit of these gangs, in order of key; None when none of their pods waits. `others` are gangs that it is to be joined
    with and can't be, each with why. Pods in `held` count as waiting."""
    has_started = any(gang.has_started for gang in gangs)
    rolls = [_Roll(gang, has_started, held) for gang in gangs]
    waiting = [pod for roll in rolls for pod in roll.waiting]
    if not waiting:
        return None
    present = [pod for roll in rolls for pod in roll.present]
    priority = max(pod.priority for pod in present)
    age = min(_age(roll) for roll in rolls if roll.present)
    first = first_of(waiting)
    settings = [gang.settings for gang in gangs]
    is_free = has_started and all(one.match is Match.ONCE_SATISFIED for one in settings)
    is_joined = len(gangs) > 1 or bool(others)
    return Unit(
        unit_id,
        (-priority, age[0], unit_id),
        tuple(roll.group(is_joined) for roll in rolls),
        len(gangs),
        first.facts.spec.scheduler_name,
        priority,
        age=age,
        blocked=None if is_free else _blocked(rolls, others or {}),
        keeps_s=0.0 if is_free or any(s.mode is Mode.STRICT for s in settings) else min(s.waiting_s for s in settings),
        min_free={} if has_started else summed(s.min_free for s in settings),
        gang_id=unit_id.removeprefix(GANG),
    )


class _Roll:
    """Who of one gang waits, and who counts."""

    def __init__(self, gang: Gang, has_started: bool, held: Collection[str]) -> None:
        self.gang = gang
        pods = sorted(gang.members.values(), key=member_order)
        self.waiting = [pod for pod in pods if is_waiting(pod, held)]
        placed = [pod for pod in pods if pod.phase is not Phase.WAITING and pod.uid not in held]
        done = [pod for pod in pods if pod.phase is Phase.WAITING and has_succeeded(pod)]
        self.present = [*self.waiting, *placed, *done]
        match = gang.settings.match
        if match is Match.ONLY_WAITING:
            # Those on their way to a node waited with the others a moment ago.
            placed, done = [pod for pod in placed if pod.phase is Phase.ASSUMED], []
        self.bound = len(placed) + len(done)
        self.is_free = has_started and match is Match.ONCE_SATISFIED
        self.min = 0 if self.is_free else gang.settings.min

    @property
    def there(self) -> int:
        return len(self.waiting) + self.bound

    def group(self, is_joined: bool) -> Group:
        namespace, _, name = self.gang.key.partition("/")
        return Group(namespace, name if is_joined else "", self.min, tuple(pod.uid for pod in self.waiting), self.bound)


def _age(roll: _Roll) -> Age:
    settings = roll.gang.settings
    return (settings.created, settings.uid) if settings.uid or settings.created else age_of(roll.present)


def _blocked(rolls: Sequence[_Roll], others: Mapping[str, str]) -> Verdict | None:
    for key, why in others.items():
        return Verdict(
            reason=Reason.GANG_INCOMPLETE, subject=key, message=f"gang {key}, which starts together with this, {why}"
        )
    for roll in rolls:
        if roll.is_free:
            continue
        key, least = roll.gang.key, roll.gang.settings.min
        if not least:
            return _unknown(roll)
        if roll.there < least:
            whose = f" of {key}" if len(rolls) > 1 else ""
            message = f"{roll.there} of the {least} pods{whose} that must start together exist"
            if roll.gang.settings.match is Match.ONLY_WAITING and len(roll.present) > roll.there:
                message = f"{roll.there} of the {least} pods{whose} that must start together wait; its match policy is {_ONLY}"
            return Verdict(reason=Reason.GANG_INCOMPLETE, message=message)
    return None


_ONLY = f"{Match.ONLY_WAITING.value}, so those that run do not count"


def _unknown(roll: _Roll) -> Verdict:
    key = roll.gang.key
    if any(names_pod_group(pod.facts) for pod in roll.present):
        message = f"PodGroup {key} does not exist, so it is not known how many pods must start together; create it"
    else:
        message = (
            f"no pod of gang {key} says how many must start together; give one the annotation"
            " gang.scheduling.koordinator.sh/min-available with a whole number above 0, or create the PodGroup"
        )
    return Verdict(reason=Reason.GANG_INCOMPLETE, subject=key, message=message)
