"""The order of waiting work, as a part that the engine is handed: `Engine(profiles, order=...)`.

The engine knows no queues, users, policies or estimates. It tells the order everything (events, who waits, who runs), tries
units in the ranking that the order gives, and asks it before each try. `muster.policy` has the real one; without one the engine
goes by priority, then age.

An order is as pure as the engine: it is called from one thread, reads `state` and changes nothing in it, keeps what it needs of
the events, and takes the time from its arguments. So a log of events replays it too, and another policy can be tried on them.

A refused unit (`refuse`) sleeps until the order itself wakes it (`wakes`): freed room does not. So thousands can stand behind a
blocked head of the line, and cost nothing until the order, in vectors, finds who may go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from muster.objects.reasons import Verdict

if TYPE_CHECKING:
    from muster.engine.events import AnyEvent
    from muster.engine.plugin import Plugin, PostFilterHelper
    from muster.engine.state import State
    from muster.engine.units import Unit


class Ranking(Protocol):
    """Places in the line by unit; smaller is sooner. Asked only about units that are about to be tried."""

    def get(self, unit_id: str, otherwise: int, /) -> int: ...


class Order(Protocol):
    """See the module. What raises in here costs an entry in `state.faults`, and the engine goes on by its own order."""

    @property
    def plugin(self) -> Plugin | None:
        """Takes part in every profile, after the profile's own plugins: `filter` (where a unit may not go because of somebody's
        planned start), `reserve`, `post_filter` (policy preemption). It observes the state once: `pod_added`, `pod_removed`."""

    def attach(self, state: State) -> None:
        """Called once, before anything else."""

    def event(self, event: AnyEvent) -> None:
        """An event, after the state has taken it in."""

    def joined(self, unit: Unit) -> None:
        """The unit waits: it is new, or was made anew because its members changed."""

    def left(self, unit_id: str) -> None:
        """It does not wait any more: placed, held, or gone."""

    def placing(self, names: Sequence[str], helper: PostFilterHelper) -> None:
        """Who places for the profiles of these names, from now on: for asking where pods could be at all."""

    def rank(self, now: float) -> Ranking | None:
        """The places of waiting units; None while the last ranking holds. Asked before units are tried. Units of equal place,
        and those that are not in it, which come behind all others, go in the engine's own order."""

    def refuse(self, unit: Unit, now: float) -> Verdict | None:
        """Why the unit may not be tried now: its queue is stopped, a limit is reached, it would delay others. None to go on."""

    def parked(self, unit: Unit, verdict: Verdict, now: float) -> None:
        """It was tried and found no room."""

    def wakes(self, now: float) -> Iterable[str]:
        """Units that it refused and that may be tried now. Asked after events were taken in, and when nothing else is left to
        try; each id once per change, or the engine would never come to rest."""

    def next_look(self) -> float | None:
        """When time alone will change a ranking or a refusal."""

    def checkpoint(self) -> Mapping[str, object]:
        """What it keeps that does not follow from the objects (use that fades, runs it has seen), as plain JSON values."""

    def restore(self, kept: Mapping[str, object]) -> None: ...
