"""Where each waiting Job stands in its queue, written into its status: `place`, `startEstimate`, `prediction`.

The live answer comes from the engine (`server.queueing`); what is written here is for those who only look at objects. So it is
written seldom: when the place has changed in a way that matters. The first TOP places matter each; behind them only how many
times the line before it has halved. A job that moves from place 50,000 to the first is written some 25 times in all. At most
WRITES_MAX are written in a pass, those in front first, and passes are PASS_S apart: however long the lines are, this writes no
more than that. What was left out is looked at again in the next pass, as it is by then.

`due` is pure. Concurrency: one worker, one key for everything; the engine is read on the loop that it lives on, between two of
its steps. Invariant: a place is written only on the version of the job in which it waits, so that one that has
started has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from prometheus_client import Counter, Gauge

from muster.controllers.actions import Action, PatchStatus, Target, Together
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.engine.machine import Engine
from muster.objects.amounts import amount_text
from muster.objects.status import Conflict, Raw
from muster.objects.time import format_time
from muster.objects.view import View
from muster.policy.places import Place, Places, places_of
from muster.store.cache import Cached, ObjectKey

TOP: Final = 10
"""Places that are told exactly."""
PASS_S: Final = 5.0
WRITES_MAX: Final = 100
FORECASTS_MAX: Final = 2
"""Of those, so many are told when they will start: that takes long, and the loop is the scheduler's too. `muster why` asks."""
NOT_YET_S: Final = 2.0
"""How long to wait for a scheduler that is not running yet, or not here."""
WRITTEN = Counter("muster_places_written", "Places in queues that were written into the status of jobs.")
LEFT = Gauge("muster_places_left", "Jobs whose place has changed and is not written yet.")

LiveEngine = Callable[[], Engine | None]
_ALL = ObjectKey("", "places")


# -- pure ---------------------------------------------------------------------------------------------------------------------


class Told(NamedTuple):
    """What is known to be written about a unit: its queue, and its place as far as it matters."""

    queue: str
    step: int


class Due(NamedTuple):
    position: int
    unit: str
    told: Told


def step_of(position: int) -> int:
    """Equal for places between which there is no difference worth writing."""
    return position if position <= TOP else TOP + math.ceil(math.log2(position / TOP))


def steps(count: int) -> list[int]:
    """`step_of` of the places from 1 to `count`; all of a step at once, since lines are long and steps are few."""
    found = list(range(1, min(count, TOP) + 1))
    step, last = TOP, TOP
    while last < count:
        step, until = step + 1, min(last * 2, count)
        found += [step] * (until - last)
        last = until
    return found


def due(places: Places, told: Mapping[str, Told]) -> tuple[list[Due], dict[str, Told]]:
    """Units whose place is not as it was told, those in front first; and what was told of those that still wait."""
    found: list[Due] = []
    kept: dict[str, Told] = {}
    for queue in places.lines():
        units = places.ranked(queue)
        for position, (unit, step) in enumerate(zip(units, steps(len(units)), strict=True), 1):
            before = told.get(unit)
            if before is not None:
                kept[unit] = before
                if before.step == step and before.queue == queue:
                    continue
            found.append(Due(position, unit, Told(queue, step)))
    found.sort()
    return found, kept


def status_of(place: Place, now: float) -> Raw:
    """The members of a job's status."""
    shown: Raw = {
        "name": place.queue,
        "position": place.position,
        "score": _finite(place.score),
        "factors": [
            {
                "name": factor.name,
                "value": _finite(factor.value),
                "weight": _finite(factor.weight),
                "contribution": _finite(factor.contribution),
            }
            for factor in place.factors
        ],
        "since": format_time(now),
    }
    status: Raw = {"place": shown, "startEstimate": None, "prediction": None}
    if place.earliest_start is not None and place.latest_start is not None:
        status["startEstimate"] = {
            "earliest": format_time(place.earliest_start),
            "latest": format_time(place.latest_start),
            "confidence": round(place.confidence, 3),
            "updated": format_time(now),
        }
    if place.predicted_s is not None and math.isfinite(place.predicted_s):
        high_s = place.predicted_high_s if place.predicted_high_s is not None else place.predicted_s
        status["prediction"] = {
            "runSeconds": round(place.predicted_s, 1),
            "runSecondsHigh": round(_finite(high_s), 1),
            "resources": {n: amount_text(n, round(use)) for n, use in sorted(place.predicted_use.items()) if _finite(use) > 0},
            "affinity": dict(place.affinity),
            "grounds": "; ".join(filter(None, (place.grounds, place.affinity_grounds))) or "none",
        }
    return status


def _finite(number: float) -> float:
    """JSON has no infinity; a score that is no number ranks last and is written as 0."""
    return float(number) if math.isfinite(number) else 0.0


# -- the controller -----------------------------------------------------------------------------------------------------------


class PlaceView(View):
    name: str = ""
    position: int = 0


class StatusView(View):
    phase: str = ""
    place: PlaceView | None = None


class JobView(View):
    status: StatusView = msgspec.field(default_factory=StatusView)


JOBS = Watch(group="muster.dev", kind="Job", view=JobView, keys=lambda _job, _caches: (_ALL,))


class PlaceKeeper(Controller):
    """See the module. `engine` is the scheduler's, None while it does not run here."""

    name = "places"
    watches = (JOBS,)

    def __init__(self, engine: LiveEngine) -> None:
        self._engine = engine
        self._told: dict[str, Told] = {}
        self._told_by: object = None
        self._seen: tuple[int, int] = (0, -1)
        self._next_pass = 0.0
        self._left = 0

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        """What to write in this pass. Changes nothing but what this controller remembers."""
        engine = self._engine()
        places = places_of(engine) if engine is not None else None
        if engine is None or places is None:
            return Plan((), NOT_YET_S if engine is None else None)
        if now < self._next_pass:
            return Plan((), self._next_pass - now)
        if self._told_by is not engine:
            self._told, self._told_by, self._left = {}, engine, 0
        version = (id(engine), places.ranking_version)
        if version == self._seen and not self._left:
            return Plan((), PASS_S if self._told else None)
        self._next_pass, self._seen = now + PASS_S, version
        found, self._told = due(places, self._told)
        actions = self._writes(found, places, caches, now)
        LEFT.set(self._left)
        waits = bool(found or self._told)
        return Plan([Together(tuple(actions))] if actions else [], PASS_S if waits else None)

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        plan = self.reconcile(key, context.caches, context.clock())
        for action in _flat(plan.actions):
            try:
                await context.executor.apply([action])
                WRITTEN.inc()
            except Conflict:
                self._forget(action)  # it has changed meanwhile: the next pass sees how
        return plan.requeue_after_s

    def _writes(self, found: Sequence[Due], places: Places, caches: Caches, now: float) -> list[PatchStatus]:
        actions: list[PatchStatus] = []
        self._units: dict[Target, str] = {}
        looked_at = late = forecasts = 0
        for one in found:
            if len(actions) >= WRITES_MAX:
                break
            looked_at += 1
            kind, _, rest = places.job_of(one.unit).partition("/")
            if kind != "Job":
                self._told[one.unit] = one.told  # pods on their own, and tasks, have no such status
                continue
            cached = caches[JOBS].get(ObjectKey(*rest.split("/", 1))) if "/" in rest else None
            status = cached.view(JobView).status if cached is not None and not cached.deleting else None
            if cached is None or status is None or status.phase in ("", "Suspended"):
                late += 1  # the cache is behind the engine, or the engine behind it
                continue
            written = status.place
            if status.phase == "Queued" and (written is None or _told(written) != one.told):
                is_forecast = one.position <= TOP and forecasts < FORECASTS_MAX
                forecasts += is_forecast
                place = places.place_of(one.unit, now, with_start=is_forecast)
                if place is None:
                    continue
                target = _target(cached)
                self._units[target] = one.unit
                actions.append(PatchStatus(target, status_of(place, now)))
            self._told[one.unit] = one.told
        self._left = len(found) - looked_at + late
        return actions

    def _forget(self, action: Action) -> None:
        if isinstance(action, PatchStatus) and (unit := self._units.get(action.target)) is not None:
            self._told.pop(unit, None)
            self._left += 1


def _told(place: PlaceView) -> Told:
    return Told(place.name, step_of(max(place.position, 1)))


def _target(job: Cached) -> Target:
    return Target("muster.dev", "Job", job.key.name, job.key.namespace, job.uid, job.resource_version)


def _flat(actions: Iterable[Action]) -> list[Action]:
    return [one for action in actions for one in (action.actions if isinstance(action, Together) else (action,))]
