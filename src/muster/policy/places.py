"""Where waiting work stands in its queue, as an order tells it: the values that commands, endpoints and statuses show.

Pure data. `PolicyOrder` answers `Places`; who asks does so on the engine's thread, between two of its steps. An answer is about
the order as it was last ranked: asking changes nothing, and ranks nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from muster.objects.reasons import Verdict
from muster.objects.status import Raw

if TYPE_CHECKING:
    from muster.engine.machine import Engine

PLACES_MAX = 1_000
"""Places of one queue that are told at once."""


class PlaceFactor(msgspec.Struct, frozen=True):
    """One line of the table that decides the order; `contribution` is what it adds to the score, where the formula is a sum."""

    name: str
    value: float
    weight: float
    contribution: float


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One waiting unit in its queue."""

    unit: str
    job: str = ""
    """`Kind/namespace/name`, as `Work.job` has it; empty for pods on their own."""
    queue: str = ""
    position: int = 0
    """1 is next, within the queue; 0 when it does not wait."""
    of: int = 0
    """How many wait in the queue."""
    score: float = math.nan
    factors: tuple[PlaceFactor, ...] = ()
    policy: str = ""
    user: str = ""
    submitted: float = 0
    hold: str = ""
    """Why an administrator keeps it from starting."""
    pin: int | None = None
    is_starving: bool = False
    """It waited longer than its policy allows, and goes before all that came after it."""
    refused: Verdict | None = None
    """Why the order does not let it be tried, if it said so last."""
    planned_start: float | None = None
    """When room for it is kept, if it is the one that others may not delay."""
    predicted_s: float | None = None
    """How long it will probably run, and how long at most in nine cases of ten."""
    predicted_high_s: float | None = None
    predicted_use: Mapping[str, float] = msgspec.field(default_factory=dict)
    """What it will probably use, by resource, in the engine's units, as far as runs like it were measured."""
    affinity: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Node labels under which work like it ran clearly better."""
    affinity_grounds: str = ""
    """Where such work ran better and where worse, in words: what placement goes by, as far as there is room."""
    grounds: str = ""
    """What the prediction rests on, such as `42 runs of user ann, type training`."""
    likely_start: float | None = None
    earliest_start: float | None = None
    latest_start: float | None = None
    confidence: float = 0
    """That it starts between the two, from 0 to 1."""
    start_grounds: str = ""
    """What that rests on."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One queue at a moment, its own work only, not that of the queues below it."""

    queue: str
    waiting: int = 0
    running: int = 0
    held: int = 0
    head: str = ""
    """`Work.job`, else the id, of the unit that is next."""
    waiting_request: Mapping[str, int] = msgspec.field(default_factory=dict)
    """What its waiting units ask for, by resource, in the engine's units."""
    running_request: Mapping[str, int] = msgspec.field(default_factory=dict)


@runtime_checkable
class Places(Protocol):
    """What an order that knows queues can be asked."""

    @property
    def ranking_version(self) -> int:
        """Grows whenever anybody's place may have changed."""

    def lines(self) -> Mapping[str, Line]:
        """Every queue that exists or has work."""

    def ranked(self, queue: str) -> Sequence[str]:
        """Ids of the units that wait in the queue, the next first, held ones included."""

    def job_of(self, unit_id: str) -> str:
        """Its `Work.job`; cheap, as it is asked about everyone in the line."""

    def places(self, queue: str, now: float, first: int = 100) -> Sequence[Place]:
        """The first of the line, in order."""

    def place_of(self, unit_id: str, now: float, *, with_start: bool = True) -> Place | None:
        """`with_start` works out when it will start, which takes far longer than the rest."""

    def ahead_of(self, unit_id: str, now: float) -> Place | None:
        """The unit just before it in its queue."""

    def unit_of(self, job: str) -> str | None:
        """The id of the unit of `Work.job`, waiting or running."""


def places_of(engine: Engine) -> Places | None:
    """What can be asked about places; None when the engine goes by its own order."""
    order = engine.order.inner if engine.order is not None else None
    return order if isinstance(order, Places) else None


# -- as JSON ------------------------------------------------------------------------------------------------------------------


def place_to_raw(place: Place) -> Raw:
    """As endpoints and explanations write it. What is not known is left out; a verdict has its meaning and remedy, so that
    readers need no table."""
    found: Raw = msgspec.to_builtins(place)
    if place.refused is not None:
        found["refused"] |= {"meaning": place.refused.reason.meaning, "remedy": place.refused.reason.remedy}
    found["score"] = _finite(place.score)
    if math.isnan(place.score):
        found["is_not_a_number"] = True
    found["factors"] = [
        {"name": one.name, **{word: _finite(getattr(one, word)) for word in ("value", "weight", "contribution")}}
        for one in place.factors
    ]
    return {_camel(key): value for key, value in found.items() if value is not None}


def hidden_to_raw(place: Place) -> Raw:
    """Of work that whoever asks may not see: that somebody is there, and how it scores."""
    told = {"queue": place.queue, "position": place.position, "of": place.of, "score": _finite(place.score), "hidden": True}
    return {key: value for key, value in told.items() if value is not None}


def _finite(number: float) -> float | None:
    """JSON has no infinity, and nothing that is no number."""
    return float(number) if math.isfinite(number) else None


def _camel(word: str) -> str:
    first, *others = word.split("_")
    return first + "".join(one.capitalize() for one in others)
