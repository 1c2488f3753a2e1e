"""What a hold is, and how an older unit gets what a younger one holds.

| kind | waits for | taken back |
|---|---|---|
| PERMIT | a plugin's permit | when its time is over, for an older unit, for a lost pod or node: at once |
| PROMISE | parties that have their own control plane | asked for by time and by older units, and given back when they say so |
| PART | the other members of a NonStrict gang | as PERMIT |

Wound-wait: a unit that does not fit takes what younger units hold and have not bound, the youngest first; never the other way
round. Who waits for whom follows the age alone, so no two can wait for each other. What is promised is not taken but asked for:
the older waits for the answer, which always comes, as whoever decides about the promise never waits for what others hold.

Pure: takes from the state and gives back.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from muster.engine.decisions import AnyDecision, Release
from muster.engine.placing import Placed, Shortage
from muster.engine.pods import PodRecord
from muster.engine.profile import Profile
from muster.engine.units import Unit
from muster.engine.vectors import Vector
from muster.objects.reasons import Reason, Verdict

if TYPE_CHECKING:
    from muster.engine.cycle import Cycle

WOUNDED_MAX = 16
"""At most so many holds of younger units are given up for one."""


class HoldKind(enum.Enum):
    PERMIT = "permit"
    PROMISE = "promise"
    PART = "part"


class Held(msgspec.Struct):
    """A unit that has reserved and waits."""

    unit: Unit
    profile: Profile
    placed: list[Placed]
    until: float
    waiting_for: set[str]
    kind: HoldKind = HoldKind.PERMIT
    is_asked: bool = False
    """Those to whom it was promised were asked to give it back."""
    askers: dict[str, None] = msgspec.field(default_factory=dict)
    """Older units that wait for that; they are tried again when it is decided."""


class Withdrawal(msgspec.Struct, frozen=True):
    """The unit would fit if these younger ones gave back what they promised to others."""

    younger: tuple[str, ...]
    stuck: PodRecord

    def verdict(self) -> Verdict:
        return Verdict(
            reason=Reason.WAITING_FOR_YOUNGER,
            subject=self.younger[0],
            message="waits for younger work to withdraw what it reserved together with other parties",
        )


Short = Shortage | PodRecord
Try = Callable[[Unit], list[Placed] | Short]
_Places = list[tuple[str, Vector]]


def uids_of(placed: Sequence[Placed]) -> tuple[str, ...]:
    return tuple(one.pod.uid for one in placed)


def ask_back(held: Held, reason: Reason, message: str) -> list[AnyDecision]:
    """Ask those to whom it was promised to let it go; once."""
    if held.is_asked:
        return []
    held.is_asked = True
    return [Release(held.unit.id, reason, message, uids_of(held.placed), is_asked=True)]


def wound(cycle: Cycle, unit: Unit, short: Short, place: Try, yielded: list[AnyDecision]) -> list[Placed] | Short | Withdrawal:
    """Try `unit` with what younger units hold given back, step by step; what they lose, or are asked for, is said in `yielded`.
    If it never fits they keep all of it."""
    younger = [held for held in cycle.holds.values() if held.unit.age > unit.age and held.unit.id != unit.id]
    # What can be had at once is taken before anybody is asked.
    younger.sort(key=lambda held: held.unit.age, reverse=True)
    younger.sort(key=lambda held: held.kind is HoldKind.PROMISE)
    wounded: list[tuple[Held, _Places]] = []
    news = cycle.state.news()
    for held in younger[:WOUNDED_MAX]:
        wounded.append((held, [(one.pod.node, one.pod.request) for one in held.placed]))
        cycle.give_back(held.placed, held.profile)
        try:
            placed = place(unit)
        except Exception:
            _hold_again(cycle, wounded)
            raise
        if not isinstance(placed, list):
            short = placed
            continue
        if held.kind is not HoldKind.PROMISE:
            _yield(cycle, unit, [loser for loser, _ in wounded], yielded)
            return placed
        found = {one.pod.node for one in placed}
        cycle.give_back(placed)
        promised = [(one, {node for node, _ in places}) for one, places in wounded if one.kind is HoldKind.PROMISE]
        # Asked are those whose room is the room that was found; a rule between pods may be about others, then all are.
        asked = [one for one, nodes in promised if nodes & found] or [one for one, _ in promised]
        _hold_again(cycle, wounded)
        cycle.state.restore_news(news)
        return _withdrawal(cycle, unit, short, asked, yielded)
    _hold_again(cycle, wounded)
    cycle.state.restore_news(news)
    return short


def _yield(cycle: Cycle, unit: Unit, losers: Sequence[Held], yielded: list[AnyDecision]) -> None:
    message = f"{unit.id} is older and needs what this held"
    for loser in losers:
        del cycle.holds[loser.unit.id]
        cycle.waiting.add(loser.unit)
        yielded.append(Release(loser.unit.id, Reason.YIELDED_TO_OLDER, message, uids_of(loser.placed)))


def _withdrawal(cycle: Cycle, unit: Unit, short: Short, asked: Sequence[Held], yielded: list[AnyDecision]) -> Withdrawal:
    message = f"{unit.id} is older and needs what this reserved"
    for held in asked:
        held.askers[unit.id] = None
        yielded += ask_back(held, Reason.YIELDED_TO_OLDER, message)
    stuck = short.stuck if isinstance(short, Shortage) else short
    return Withdrawal(tuple(held.unit.id for held in asked), stuck)


def _hold_again(cycle: Cycle, wounded: Sequence[tuple[Held, _Places]]) -> None:
    for held, places in reversed(wounded):
        for one, (node, request) in zip(held.placed, places, strict=True):
            if not node:
                continue
            cycle.state.assume(one.pod, node, request)
            cycle.state.mark_held(one.pod, True)
            slot = cycle.state.nodes.slots.get(node)
            if slot is not None:
                cycle.evaluator.touch(slot)
            for plugin in held.profile.at["reserve"]:
                # It was reserved before; who can't say so again does not undo what others hold.
                with contextlib.suppress(Exception):
                    plugin.reserve(one.pod, node)
