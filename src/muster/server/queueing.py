"""Muster's own API for questions about queues, answered by the engine that decides, as it is now.

    GET /muster/v1/queues                           every queue: what waits, runs and is held in it
    GET /muster/v1/queues/{queue}?first=N           one queue, and the first N of its line with their factors
    GET /muster/v1/jobs/{namespace}/{name}/place    where a job stands, and who is just before it; `?kind=KusciaTask` for others

Everybody who is authenticated may knock (role `system:basic-user`); then it takes `get` on the queue, or on the job. Of work in
a line that the caller may not `get`, only the place and the score are told: not whose it is, nor its factors; nor is it named
as the head of a queue, or as who holds what is missing.

Concurrency: on the event loop that the scheduler also uses, between two of its steps; long lines and places take their turn
(`turns`). Nothing is stored, nothing is ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from muster.engine.machine import Engine
from muster.objects.amounts import amount_text
from muster.objects.sight import told
from muster.objects.status import NotFound, Raw, ServiceUnavailable
from muster.policy.holders import with_holders
from muster.policy.places import PLACES_MAX, Line, Place, Places, hidden_to_raw, place_to_raw, places_of
from muster.server.asking import Sight, answer_json, number_asked, require, running, unknown_work, work_asked
from muster.server.rbac import Attributes
from muster.server.turns import Turns

QUEUES_PATH: Final = "/muster/v1/queues"
JOBS_PATH: Final = "/muster/v1/jobs"
FIRST: Final = 50


class Queueing:
    """`engine` gives the scheduler's engine, None while it does not run."""

    def __init__(self, engine: Callable[[], Engine | None], turns: Turns | None = None) -> None:
        self._engine = engine
        self._turns = turns or Turns()

    def routes(self) -> list[BaseRoute]:
        return [
            Route(QUEUES_PATH, self._queues, methods=["GET"]),
            Route(QUEUES_PATH + "/{queue}", self._queue, methods=["GET"]),
            Route(JOBS_PATH + "/{namespace}/{name}/place", self._place, methods=["GET"]),
        ]

    async def _queues(self, request: Request) -> Response:
        require(request, Attributes(verb="list", group="muster.dev", resource="queues"))
        _, places = self._asked()
        sight = Sight(request)
        return answer_json({"items": [_line_told(line, sight) for _, line in sorted(places.lines().items())]})

    async def _queue(self, request: Request) -> Response:
        name = request.path_params["queue"]
        require(request, Attributes(verb="get", group="muster.dev", resource="queues", name=name))
        first = number_asked(request, "first", FIRST, PLACES_MAX)
        sight = Sight(request)

        def found() -> Raw:
            engine, places = self._asked()
            line = places.lines().get(name)
            if line is None:
                raise NotFound(f"queue {name!r:.100}: there is none, and no work names it; 'muster queue' lists them")
            some = places.places(name, engine.state.now, first)
            return {**_line_told(line, sight), "places": [_place_told(one, sight) for one in some]}

        return answer_json(await self._turns.take(sight.user, found))

    async def _place(self, request: Request) -> Response:
        key = work_asked(request)
        sight = Sight(request)
        return answer_json(await self._turns.take(sight.user, lambda: self._about(key, sight)))

    def _about(self, key: str, sight: Sight) -> Raw:
        engine, places = self._asked()
        unit = places.unit_of(key)
        if unit is None:
            raise unknown_work(key)
        sees = sight.sees_units(places.job_of)
        place, ahead = places.place_of(unit, engine.state.now), places.ahead_of(unit, engine.state.now)
        if place is not None and place.refused is not None:
            place = msgspec.structs.replace(place, refused=told(with_holders(engine.state, place.refused), sees))
        return {
            "unit": unit,
            "state": _state(engine, unit),
            "place": None if place is None else place_to_raw(place),
            "ahead": None if ahead is None else _place_told(ahead, sight),
        }

    def _asked(self) -> tuple[Engine, Places]:
        engine = running(self._engine)
        places = places_of(engine)
        if places is None:
            raise ServiceUnavailable("the scheduler here goes by priority and age, and has no queues", retry_after_s=60)
        return engine, places


def _place_told(place: Place, sight: Sight) -> Raw:
    return place_to_raw(place) if sight.sees(place.job or place.unit) else hidden_to_raw(place)


def _state(engine: Engine, unit: str) -> str:
    if unit in engine.holds:
        return "reserved"
    return "waiting" if unit in engine.waiting.units else "running"


def _line_told(line: Line, sight: Sight) -> Raw:
    return {
        "queue": line.queue,
        "waiting": line.waiting,
        "running": line.running,
        "held": line.held,
        "head": line.head if sight.sees(line.head) else "",
        "waitingRequest": _texts(line.waiting_request),
        "runningRequest": _texts(line.running_request),
    }


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: amount_text(name, amount) for name, amount in sorted(amounts.items()) if amount}
